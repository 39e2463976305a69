package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// ended returns the state of a tool's call with a receipt.
func ended(tool string, status receipts.Status, result string) state {
	return state{VisibleCall: client.VisibleCall{ID: "c1", Tool: tool, Status: string(status),
		Receipt: &receipts.Receipt{ID: "r1", CallID: "c1", ToolName: tool, Status: status,
			Result: json.RawMessage(result), Effects: json.RawMessage(`{"db_writes": []}`), ReplayOf: "r0"}}}
}

func failedWith(code, message, details string) string {
	return fmt.Sprintf(`{"error": {"error_code": %q, "message": %q, "details": %s}}`, code, message, details)
}

func TestAFailureSaysWhatAModelShouldDo(t *testing.T) {
	t.Parallel()
	d := newShopServer(t, "")
	for _, tc := range []struct{ tool, result, want string }{
		{"shop.order", failedWith("validation_error", "The input does not fit.",
			`[{"path": "/item", "keyword": "type", "message": "must be a string"}, {"path": "", "message": "must have size"}]`),
			"shop.order failed (validation_error): The input does not fit.\n- /item: must be a string\n- the input: must have " +
				"size\nCorrect the input, and call the tool again."},
		{"shop.order", failedWith("execution_error", "The shop is closed.", "null"),
			"shop.order failed (execution_error): The shop is closed.\nA new call repeats everything: before you make " +
				"it, check the effects of this one."},
		{"shop.refund", failedWith("timeout", "It took longer than 1 s.", "null"), "It took longer than 1 s.$"},
		{"shop.ship", failedWith("worker_lost", "The worker died.", "null"), "The worker died.$"},
		{"shop.stock.find", failedWith("panic", "nil pointer", "null"), "nil pointer$"},
		{"shop.order", failedWith("no_such_item", "We have none.", `{"advice": "never"}`),
			"\nDo not repeat the call: it would fail again.$"},
		{"shop.ship", failedWith("no_stock", "We have none today.", `{"advice": "later"}`),
			"\nThe same call may succeed later.$"},
		{"shop.ship", failedWith("no_stock", "We have none of these.", `{"advice": "change_input"}`),
			"\nChange the input before you call the tool again.$"},
		{"shop.ship", failedWith("no_stock", "We have none.", `{"advice": "panic"}`), "details: {\"advice\": \"panic\"}$"},
		{"shop.order", failedWith("no_such_item", "We have none.", `{"item": "roof"}`),
			"shop.order failed (no_such_item): We have none.\ndetails: {\"item\": \"roof\"}\nA new call"},
		{"shop.order", failedWith("output_invalid", "The output does not fit.", "null"),
			"A new call repeats everything"},
		{"shop.order", failedWith("outcome_unknown", "The worker was lost.", "null"),
			"It may have taken effect: do not repeat the call before somebody has checked. Its receipt is r1."},
		{"shop.order", failedWith("rule_blocked", "Not at night.", `{"do": "Ask in the morning.", "rule": "night"}`),
			"Not at night.\nAsk in the morning.\nThis is a policy of the tools' operator, not an error: the same call will be " +
				"refused again."},
		{"shop.order", failedWith("limit_reached", "Ten a day.", `{"retry_after_ms": 60000}`),
			"Ten a day.\nretry_after_ms: 60000\nThis is a policy"},
		{"shop.order", failedWith("approval_denied", "ada said no.", "{}"), "ada said no.\nThis is a policy"},
		{"shop.order", failedWith("approval_expired", "Nobody decided.", "{}"), "Nobody decided.\nThis is a policy"},
		{"shop.order", failedWith("not_allowed", "It is closed.", "null"), "It is closed.\nThis is a policy"},
		{"shop.order", failedWith("cancelled", "Someone asked for its end.", "null"),
			"shop.order failed (cancelled): Someone asked for its end."},
		{"shop.order", failedWith("key_reused", "The key had another input.", "null"),
			"(key_reused): The key had another input."},
		// the registry does not have it
		{"gone.tool", failedWith("execution_error", "No.", "null"), "A new call repeats everything"},
	} {
		r, err := d.result(ended(tc.tool, receipts.Failed, tc.result))
		if err != nil || !r.IsError || r.StructuredContent != nil || !strings.Contains(textIn(r)+"$", tc.want) {
			t.Errorf("%s: got %v and\n%s\nwant\n%s", tc.result, err, textIn(r), tc.want)
			continue
		}
		if r.Meta[meta+"receiptId"] != "r1" || r.Meta[meta+"callId"] != "c1" || r.Meta[meta+"status"] != "failed" ||
			r.Meta[meta+"replayOf"] != "r0" {
			t.Errorf("%s: %v", tc.result, r.Meta)
		}
	}
}

func TestAToolThatNoWorkerKnowsIsAnErrorOfTheProtocol(t *testing.T) {
	t.Parallel()
	_, err := newShopServer(t, "").result(ended("shop.order", receipts.Failed,
		failedWith("unknown_tool", "There is no such tool.", "null")))
	var coded *jsonrpc.Error
	if !errors.As(err, &coded) || coded.Code != jsonrpc.CodeInvalidParams {
		t.Errorf("got %v", err)
	}
}

func TestNotConfiguredSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	r, err := newShopServer(t, "").result(ended("shop.order", receipts.NotConfigured,
		`{"status": "not_configured", "reason": "No key.", "required_env": ["SHOP_KEY", "SHOP_URL"], "next_steps": ["Set them.", "Start again."]}`))
	want := "shop.order is not configured: No key.\nrequired_env: SHOP_KEY, SHOP_URL\n- Set them.\n- Start again."
	if err != nil || !r.IsError || textIn(r) != want {
		t.Errorf("got %v and\n%s", err, textIn(r))
	}
}

func TestAPendingCallSaysWhereItStands(t *testing.T) {
	t.Parallel()
	d := newShopServer(t, "")
	for _, tc := range []struct {
		seen client.VisibleCall
		asks string
		want string
	}{
		{client.VisibleCall{Status: "queued", Event: "retried"}, "", "(it is queued, last event: retried)"},
		{client.VisibleCall{Status: "running", Attempt: 2}, "", "(it runs, attempt 2)"},
		{client.VisibleCall{Status: "waiting", WaitsFor: "key"}, "", "(it waits for another call with its key)"},
		{client.VisibleCall{Status: "waiting", WaitsFor: "call"}, "Approve it: gem approve q1.",
			"accepted and waits. Approve it: gem approve q1. Tell your user"},
		{client.VisibleCall{Status: "waiting", WaitsFor: "call"}, "", "(it waits for calls that it made)"},
		{client.VisibleCall{}, "", "(its state could not be read)"},
	} {
		tc.seen.ID, tc.seen.Tool = "c1", "shop.order"
		r, err := d.result(state{VisibleCall: tc.seen, asks: tc.asks})
		said := structuredIn(t, r)
		if err != nil || r.IsError || !strings.Contains(said, tc.want) || !strings.Contains(said, `"call_id":"c1"`) ||
			!strings.Contains(said, "Do not call the tool again") {
			t.Errorf("got %s, %v, want %s", said, err, tc.want)
		}
	}
}

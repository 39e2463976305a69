package prose

import (
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
)

func TestAWaitForManyCallsSaysThatNotAllAreNamed(t *testing.T) {
	t.Parallel()
	for n, others := range map[int]bool{1: false, client.MaxChildren: true} {
		said := Explanation(&client.Explanation{WaitsFor: client.ForCalls, Children: make([]client.Call, n)})
		if strings.Contains(said, "and maybe others") != others {
			t.Errorf("%d calls: %s", n, said)
		}
	}
}

func TestAnUnknownToolOfGEMIsToBeIncluded(t *testing.T) {
	t.Parallel()
	for tool, want := range map[string]string{
		"llm.chat":  `has no tool llm.chat, which comes with GEM: add "llm.chat" to "include" in the registry`,
		"shop.chat": "has no tool shop.chat. Compare the name with `gem registry list`",
	} {
		r := &receipts.Receipt{ToolName: tool, Status: receipts.Failed, RegistryVersion: "4"}
		r.Result = []byte(`{"error": {"error_code": "unknown_tool", "message": "no", "details": null}}`)
		if said := explainFailed(&client.Explanation{Receipt: r}); !strings.Contains(said, want) {
			t.Errorf("%s: %s", tool, said)
		}
	}
}

func TestTheErrorOfACallThatAHandlerMadeIsNotTakenForItsOwn(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"unknown_tool", "validation_error"} {
		r := &receipts.Receipt{CallID: "17", ToolName: "shop.refund", Status: receipts.Failed,
			Effects: []byte(`{"durable": {"steps": 1, "calls": 1}}`)}
		r.Result = []byte(`{"error": {"error_code": "` + code + `", "message": "No such tool."}}`)
		want := "A call that the handler of shop.refund made failed with " + code + ": No such tool. `gem trace 17` shows it."
		if said := explainFailed(&client.Explanation{Receipt: r}); said != want {
			t.Errorf("it says %q", said)
		}
	}
}

// An approval that was given does not read like a refusal.
func TestTheReceiptOfAnApprovalSaysWhoDecidedWhat(t *testing.T) {
	t.Parallel()
	call := client.Call{Tool: "wait.approval", Input: []byte(`{"tool": "shop.refund"}`)}
	for result, want := range map[string]string{
		`{"approved": true, "by": "ada", "at": "2026-01-02T03:04:05Z", "reason": "a good customer"}`: "ada approved the " +
			"call to shop.refund at 2026-01-02 03:04:05 UTC (a good customer).",
		`{"approved": false, "by": "ada", "at": "2026-01-02T03:04:05Z"}`: "ada denied the call " +
			"to shop.refund at 2026-01-02 03:04:05 UTC.",
		`{"approved": false, "reason": "expired", "at": "2026-01-02T03:04:05Z"}`: "Nobody decided " +
			"about the call to shop.refund in time, so it was not approved.",
	} {
		r := &receipts.Receipt{ToolName: "wait.approval", Status: receipts.Succeeded, Result: []byte(result)}
		if said := Explanation(&client.Explanation{Call: call, Receipt: r}); said != want {
			t.Errorf("%s: got %q, want %q", result, said, want)
		}
	}
	other := &receipts.Receipt{ToolName: "shop.refund", Status: receipts.Succeeded, Result: []byte(`{"approved": true}`)}
	if said := Explanation(&client.Explanation{Receipt: other}); !strings.HasPrefix(said, "It succeeded") {
		t.Errorf("another tool: %q", said)
	}
}

func TestAQuestionThatNoWorkerClaimedWasAnswered(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	said := Explanation(&client.Explanation{Call: client.Call{CreatedAt: made}, Receipt: &receipts.Receipt{
		ToolName: "wait.answer", Status: receipts.Succeeded, CreatedAt: made.Add(90 * time.Second),
		Result: []byte(`{"answer": "blue", "by": "ada"}`)}})
	if want := "It was answered 1 min 30 s after it was made. The result: "; !strings.HasPrefix(said, want) {
		t.Errorf("got %q", said)
	}
	event := receipts.Event{Event: "waiting", Data: []byte(`{"for": ["#answer"]}`)}
	if said := Happened(event); said != "it waits for the answer" {
		t.Errorf("got %q", said)
	}
}

func TestOnlyAFailureMakesARunAnAttempt(t *testing.T) {
	t.Parallel()
	r := &receipts.Receipt{ToolName: "shop.refund", Status: receipts.Succeeded, Attempt: 2, WorkerID: "w"}
	for want, call := range map[string]client.Call{
		"in run 2 on w.": {}, "in attempt 2 on w.": {Retries: 1}, "attempt 2 on w.": {Losses: 1},
	} {
		if said := Explanation(&client.Explanation{Call: call, Receipt: r}); !strings.HasSuffix(said, want) {
			t.Errorf("%+v: %s", call, said)
		}
	}
}

func TestOnlyANamedCallerIsExcludedFromApproving(t *testing.T) {
	t.Parallel()
	for caller, want := range map[string]string{
		"ada": "Only someone with the role boss may approve it: gem approve Q, or gem deny Q. The person who made the " +
			"call, ada, may not approve it.",
		"": "Only someone with the role boss may approve it: gem approve Q, or gem deny Q. gem roles list",
	} {
		e := &client.Explanation{WaitsFor: client.ForApproval, Call: client.Call{CreatedBy: caller, Status: "waiting"},
			Rules:     []string{"big"},
			Approvals: []client.Question{{ID: "Q", By: []string{"role:boss"}}}}
		if said := Explanation(e); !strings.Contains(said, want) {
			t.Errorf("%q: %s", caller, said)
		}
	}
}

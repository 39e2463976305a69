package rules_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func in(d time.Duration) *time.Time { at := now.Add(d); return &at }

// four lists rules that ask different things of earlier calls; a call to billing.refund meets their checks 0 to 5.
var four = []string{
	`{"name": "pace", "tools": ["billing.*"], "action": "block", "limit": {"max": 5, "within": "1m", "per": ["caller"]}, "say": "Wait a little."}`,
	`{"name": "budget", "tools": ["billing.refund"], "action": "block", "limit": {"max": 500, "within": "24h", "sum": "/amount"}}`,
	`{"name": "look", "tools": ["billing.refund"], "action": "block", "requires": {"tool": "billing.list", "within": "30m"}}`,
	`{"name": "strikes", "tools": ["billing.refund"], "action": "block", "failures": {"in_a_row": 3, "cooldown": "5m"}}`,
	`{"name": "turn", "tools": ["billing.refund"], "action": "wait", "limit": {"max": 1, "within": "1s"}}`,
	`{"name": "big", "tools": ["billing.refund"], "action": "ask", "ask": {"of": ["finance"]}, "when": {"input": {"amount": {"minimum": 100}}}}`,
	`{"name": "also", "tools": ["billing.refund"], "action": "ask", "ask": {"of": ["boss"]}}`,
	`{"name": "heed", "tools": ["billing.refund"], "action": "warn", "after": {"tools": ["comms.*"], "ended": ["approval_denied"]}}`,
}

const (
	pace = iota
	budget
	look
	strikes
	turn
	big
	also
	heed
)

func TestARulingSaysWhyAndWhatToDo(t *testing.T) {
	t.Parallel()
	j := judge(t, refund(t, `{"amount": 31337, "to": "secret-value"}`), four...)
	if len(j.Checks) != len(four) {
		t.Fatalf("got %+v", j)
	}
	met := func(check int, seen receipts.Evidence) rules.Met { return rules.Met{Check: check, Seen: seen} }
	type details struct {
		Rule, Do string
		Kind     rules.Kind
		FreeAt   *time.Time
		Retry    int64 // -1 for none
	}
	for name, c := range map[string]struct {
		answer  rules.Answer
		code    string
		details details
		message []string // its lines
	}{
		"it runs":        {rules.Answer{Outcome: rules.Passed}, "", details{}, nil},
		"it has no gate": {rules.Answer{}, "", details{}, nil},
		"it waits": {rules.Answer{Outcome: rules.Delayed, StartsAt: now.Add(time.Second),
			Met: []rules.Met{met(turn, receipts.Evidence{FreeAt: in(time.Second)})}}, "", details{}, nil},
		"it asks": {rules.Answer{Outcome: rules.Asked, Met: []rules.Met{met(big, receipts.Evidence{})}}, "", details{}, nil},
		"a full limit": {rules.Answer{Outcome: rules.Stopped,
			Met: []rules.Met{met(pace, receipts.Evidence{FreeAt: in(30*time.Second + 1)})}}, "limit_reached",
			details{"pace", "Wait a little.", rules.Count, in(30*time.Second + 1), 30_001},
			[]string{"This is a policy of the operator, not an error: the rule pace (rules 1.0.0) blocks this call to " +
				"billing.refund: it allows 5 calls within 1m per caller, and this limit is reached. It can be made again in 31s, " +
				"at " +
				"2026-05-01T12:00:30Z. Wait a little."}},
		"two full limits": {rules.Answer{Outcome: rules.Stopped,
			Met: []rules.Met{met(pace, receipts.Evidence{FreeAt: in(time.Second)}),
				met(budget, receipts.Evidence{FreeAt: in(time.Hour), Total: "480"})}}, "limit_reached",
			details{"budget", "", rules.Sum, in(time.Hour), 3_600_000},
			[]string{"the rule pace", "the rule budget (rules 1.0.0) blocks this call to billing.refund: the sum of /amount " +
				"within 1d may be at most 500; it is 480 so far, and this call would exceed that. It can be made again in " +
				"1h0m0s, at 2026-05-01T13:00:00Z."}},
		"one that never has room": {rules.Answer{Outcome: rules.Stopped,
			Met: []rules.Met{met(pace, receipts.Evidence{FreeAt: in(time.Second)}), met(budget, receipts.Evidence{Total: "0"})}},
			"limit_reached",
			details{"budget", "", rules.Sum, nil, -1}, []string{"the rule pace", "the rule budget"}},
		"a place that was free": {rules.Answer{Outcome: rules.Stopped,
			Met: []rules.Met{met(pace, receipts.Evidence{FreeAt: in(-time.Second)})}}, "limit_reached",
			details{"pace", "Wait a little.", rules.Count, in(-time.Second), 0},
			[]string{"It can be made again at 2026-05-01T11:59:59Z."}},
		"a turn too late": {rules.Answer{Outcome: rules.Stopped,
			Met: []rules.Met{met(turn, receipts.Evidence{FreeAt: in(2 * time.Hour), NotInTime: true})}}, "limit_reached",
			details{"turn", "", rules.Count, in(2 * time.Hour), 7_200_000},
			[]string{"the rule turn (rules 1.0.0) blocks this call to billing.refund: it allows 1 call within 1s, and this " +
				"limit is reached; the next start is later than a call may wait, 1h. It can be made again in 2h0m0s"}},
		"nothing came before": {rules.Answer{Outcome: rules.Stopped, Met: []rules.Met{met(look, receipts.Evidence{})}},
			"rule_blocked",
			details{"look", "", rules.Required, nil, -1},
			[]string{"no call to billing.list had succeeded in this session within 30m before this call was made; make one, " +
				"and repeat this call after its receipt."}},
		"a limit and another": {rules.Answer{Outcome: rules.Stopped,
			Met: []rules.Met{met(pace, receipts.Evidence{FreeAt: in(time.Second)}), met(look, receipts.Evidence{})}},
			"rule_blocked", details{"look", "", rules.Required, nil, -1}, []string{"the rule pace", "the rule look"}},
		"failures": {rules.Answer{Outcome: rules.Stopped,
			Met: []rules.Met{met(strikes, receipts.Evidence{FreeAt: in(time.Minute), Receipts: []string{"r3", "r2", "r1"}})}},
			"rule_blocked",
			details{"strikes", "", rules.FailureRow, in(time.Minute), 60_000},
			[]string{"the last 3 calls failed, one after another (receipts r3, r2, r1). It can be made again in 1m0s"}},
		"a no": {rules.Answer{Outcome: rules.Denied, Met: []rules.Met{met(big, receipts.Evidence{By: "eve", Reason: "Too much."}),
			met(also, receipts.Evidence{})}}, "approval_denied",
			details{"big", "", rules.ItsCall, nil, -1},
			[]string{"the rule big (rules 1.0.0) asks whether this call to billing.refund may run: amount is at least 100. " +
				"eve denied it: Too much."}},
		"a no without a word": {rules.Answer{Outcome: rules.Denied,
			Met:       []rules.Met{met(big, receipts.Evidence{By: "bob"}), met(also, receipts.Evidence{})},
			Approvals: []receipts.Approval{{Rule: "also", By: "eve", Digest: j.Checks[also].Digest}}}, "approval_denied",
			details{"big", "", rules.ItsCall, nil, -1}, []string{"the rule big (rules 1.0.0) asks whether this call to " +
				"billing.refund may run: amount is at least 100. bob denied it."}},
		"nobody": {rules.Answer{Outcome: rules.Expired, Met: []rules.Met{met(big, receipts.Evidence{Reason: "expired"})}},
			"approval_expired",
			details{"big", "", rules.ItsCall, nil, -1}, []string{"Nobody answered within 1d."}},
		"nobody knows why": {rules.Answer{Outcome: rules.Stopped}, "rule_error", details{Retry: -1},
			[]string{"A rule (rules 1.0.0) stopped the call"}},
	} {
		c.answer.At = now
		got := j.Rule("1.0.0", c.answer)
		if got.Code != c.code {
			t.Errorf("%s: got %+v, want %s", name, got, c.code)
			continue
		}
		lines := strings.Split(got.Message, "\n")
		if c.code != "" && len(lines) != len(c.message) {
			t.Errorf("%s: got %q, want %q", name, lines, c.message)
			continue
		}
		for i, want := range c.message {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%s: got %q, want %q", name, lines[i], want)
			}
		}
		if c.code == "" {
			if got.Message != "" || got.Details != nil {
				t.Errorf("%s: got %+v", name, got)
			}
		} else {
			d := got.Details.(rules.Details)
			retry := int64(-1)
			if d.RetryAfterMS != nil {
				retry = *d.RetryAfterMS
			}
			if diff := cmp.Diff(c.details, details{d.Rule, d.Do, d.Kind, d.FreeAt, retry}); diff != "" ||
				d.RulesVersion != "1.0.0" {
				t.Errorf("%s: %+v %s", name, d, diff)
			}
		}
		if len(got.Verdicts) != len(c.answer.Met) {
			t.Errorf("%s: got %+v", name, got.Verdicts)
		}
		said, _ := json.Marshal(got)
		for _, value := range []string{"31337", "secret-value"} {
			if strings.Contains(string(said), value) {
				t.Errorf("%s: the input is repeated: %s", name, said)
			}
		}
	}
}

func TestACallThatRunsKeepsWhatTheRulesSaid(t *testing.T) {
	t.Parallel()
	j := judge(t, refund(t, `{"amount": 31337}`), append(
		[]string{`{"name": "every", "tools": ["billing.*"], "action": "warn", "say": "Careful."}`}, four...)...)
	sent := now.Add(-time.Minute)
	got := j.Rule("2", rules.Answer{Outcome: rules.Passed, At: now, Met: []rules.Met{
		{Check: big},
		{Check: heed, Seen: receipts.Evidence{Tool: "comms.send_sms", Ended: "approval_denied", ReceiptID: "r1", EndedAt: &sent}},
	}, Approvals: []receipts.Approval{{Rule: "big", By: "eve", Digest: j.Checks[big].Digest}}})
	want := []rules.Verdict{
		{Kind: rules.ItsCall, Do: "Careful.", Verdict: receipts.Verdict{Rule: "every", Action: rules.Warn,
			Message: "This is a policy of the operator, not an error: the rule every (rules 1.0.0) warns about this call to " +
				"billing.refund, which runs anyway: it applies to every call to the tool. Careful."}},
		{Kind: rules.ItsCall, Verdict: receipts.Verdict{Rule: "big", Action: rules.Ask,
			Message: "The rule big (rules 2) asked whether this call to billing.refund may run: amount is at least 100. eve " +
				"approved it."}},
		{Kind: rules.Afterwards, Verdict: receipts.Verdict{Rule: "heed", Action: rules.Warn,
			Seen: &receipts.Evidence{Tool: "comms.send_sms", Ended: "approval_denied", ReceiptID: "r1", EndedAt: &sent},
			Message: "This is a policy of the operator, not an error: the rule heed (rules 2) warns about this call to " +
				"billing.refund, which runs anyway: comms.send_sms had ended with approval_denied in this session when " +
				"this call was made (receipt r1)."}},
	}
	if diff := cmp.Diff(want, got.Verdicts); diff != "" || got.Code != "" {
		t.Errorf("%s: %s", got.Code, diff)
	}
	waits := j.Rule("2", rules.Answer{Outcome: rules.Delayed, At: now, StartsAt: now.Add(time.Second),
		Met: []rules.Met{{Check: turn, Seen: receipts.Evidence{FreeAt: in(time.Second)}}}})
	asks := j.Rule("2", rules.Answer{Outcome: rules.Asked, At: now, Met: []rules.Met{{Check: also}}})
	for message, want := range map[string]string{
		waits.Verdicts[1].Message: "the rule turn (rules 2) lets this call to billing.refund wait: it allows 1 call within " +
			"1s, and this limit is reached; it runs at 2026-05-01T12:00:01Z.",
		asks.Verdicts[1].Message: "the rule also (rules 2) asks whether this call to billing.refund may run: it applies to " +
			"every call to the tool. Someone with the role boss decides.",
	} {
		if !strings.HasSuffix(message, want) {
			t.Errorf("got %q, want %q", message, want)
		}
	}
}

func TestAStaticBlockIsRuledWithoutAGate(t *testing.T) {
	t.Parallel()
	j := judge(t, refund(t, `{"amount": 1}`),
		on(`"action": "block", "when": {"input": {"amount": true}}, "say": "Ask a person."`))
	got := j.Rule("1.0.0", rules.Answer{})
	if got.Code != "rule_blocked" || got.Message != "This is a policy of the operator, not an error: the rule r (rules "+
		"1.0.0) blocks this call to billing.refund: amount is given. Ask a person." {
		t.Errorf("got %+v", got)
	}
	if text, _ := json.Marshal(got.Details); string(
		text) != `{"rule":"r","rules_version":"1.0.0","kind":"call","do":"Ask a person."}` {
		t.Errorf("got %s", text)
	}
	if text, _ := json.Marshal(got.Verdicts[0]); strings.Contains(string(text), "Do") ||
		strings.Contains(string(text), "Kind") {
		t.Errorf("a receipt would have %s", text)
	}
}

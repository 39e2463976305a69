package rules_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/rules"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// after is the time so many milliseconds after the beginning.
func after(ms int64) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }

// ms writes a time as milliseconds after the beginning.
func ms(t time.Time) int64 { return t.Sub(began).Milliseconds() }

// said writes an answer as its outcome, the turn, and what met the call.
func said(a rules.Answer) string {
	words := []string{string(a.Outcome)}
	if !a.StartsAt.IsZero() {
		words = append(words, fmt.Sprintf("at %d", ms(a.StartsAt)))
	}
	for _, m := range a.Met {
		word := fmt.Sprintf("met %d", m.Check)
		if m.Seen.FreeAt != nil {
			word += fmt.Sprintf(" free %d", ms(*m.Seen.FreeAt))
		}
		if m.Seen.Total != "" {
			word += fmt.Sprintf(" total %s", m.Seen.Total)
		}
		if len(m.Seen.Receipts) > 0 {
			word += " receipts " + strings.Join(m.Seen.Receipts, ",")
		}
		if m.Seen.Ended != "" {
			word += fmt.Sprintf(" %s %s %s %d", m.Seen.Tool, m.Seen.Ended, m.Seen.ReceiptID, ms(*m.Seen.EndedAt))
		}
		if m.Seen.NotInTime {
			word += " not in time"
		}
		if m.Seen.Reason != "" {
			word += " reason " + m.Seen.Reason
		}
		words = append(words, word)
	}
	for _, p := range a.Approvals {
		words = append(words, "approved by "+p.By)
	}
	return strings.Join(words, "; ")
}

// gate asks for a call of the session s of the caller c, made now.
func gate(m *rules.Memory, at int64, id string, checks ...rules.Check) string {
	return said(m.Gate(after(at), rules.MemoryCall{ID: id, SessionID: "s", CreatedBy: "c", CreatedAt: after(at)}, checks))
}

func ended(id, tool, status, code string, at int64) rules.CallEnd {
	return rules.CallEnd{CallID: id, Tool: tool, Status: status, Code: code, ReceiptID: "r" + id, SessionID: "s",
		CreatedBy: "c", At: after(at)}
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func limit(action rules.Action, most json.Number, within int64) rules.Check {
	return rules.Check{Rule: "r", Action: action, Kind: rules.Count, Counter: "r/calls", Max: most, WithinMS: within,
		AtMostMS: 1000}
}

func TestAPlaceIsFreeWhenItSays(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	c := limit(rules.Block, "2", 100)
	expect(t, gate(&m, 0, "a", c), "run")
	expect(t, gate(&m, 10, "b", c), "run")
	expect(t, gate(&m, 99, "c", c), "stopped; met 0 free 100")
	expect(t, gate(&m, 99, "a", c), "run") // it was counted, and is not counted again
	expect(t, gate(&m, 100, "c", c), "run")
	expect(t, gate(&m, 109, "d", c), "stopped; met 0 free 110")
	expect(t, gate(&m, 110, "d", limit(rules.Block, "0", 100)), "stopped; met 0")
	expect(t, gate(&m, 110, "d", limit(rules.Warn, "1", 100)), "run; met 0 free 200")
	expect(t, gate(&m, 150, "e", c), "stopped; met 0 free 200") // the call that was warned is counted, too
}

func TestAStoppedCallIsNotCounted(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	a, b := limit(rules.Block, "1", 100), limit(rules.Block, "1", 1000)
	b.Counter = "r/other"
	expect(t, gate(&m, 0, "a", b), "run")
	expect(t, gate(&m, 0, "b", a, b), "stopped; met 1 free 1000")
	expect(t, gate(&m, 0, "c", a), "run")
}

func TestASumIsExact(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	add := func(n json.Number) rules.Check {
		return rules.Check{Rule: "r", Action: rules.Block, Kind: rules.Sum, Counter: "r/sum:/n", Max: "0.3", WithinMS: 100,
			Add: n}
	}
	expect(t, gate(&m, 0, "a", add("0.1")), "run")
	expect(t, gate(&m, 10, "b", add("0.2")), "run")
	expect(t, gate(&m, 20, "c", add("0")), "run")
	expect(t, gate(&m, 30, "d", add("1e-30")), "stopped; met 0 free 100 total 0.3")
	expect(t, gate(&m, 30, "d", add("0.15")), "stopped; met 0 free 110 total 0.3")
	expect(t, gate(&m, 30, "d", add("0.31")), "stopped; met 0 total 0.3")
	expect(t, gate(&m, 100, "d", add("0.10")), "run")
}

func TestWaitingCallsGetTurnsInOrder(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	c := limit(rules.Wait, "2", 400)
	expect(t, gate(&m, 0, "a", c), "run")
	expect(t, gate(&m, 10, "b", c), "run")
	expect(t, gate(&m, 20, "c", c), "delayed; at 400; met 0 free 400")
	expect(t, gate(&m, 20, "d", c), "delayed; at 410; met 0 free 410")
	expect(t, gate(&m, 20, "e", c), "delayed; at 800; met 0 free 800")
	expect(t, gate(&m, 20, "f", c), "delayed; at 810; met 0 free 810")
	expect(t, gate(&m, 20, "g", c), "stopped; met 0 free 1200 not in time")
	expect(t, gate(&m, 399, "c", c), "delayed; at 400; met 0 free 400")
	expect(t, gate(&m, 400, "c", c), "run")
	expect(t, gate(&m, 1500, "g", c), "run")
}

// A call's turn is the last that one of its rules gives it. The others look at it then: one caller's turns keep nobody
// else waiting.
func TestACallOfTwoPacesHasOneTurn(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	slow, quick := limit(rules.Wait, "1", 500), limit(rules.Wait, "1", 100)
	quick.Counter = "q/starts"
	block := limit(rules.Block, "1", 100)
	block.Counter = "b/calls"
	expect(t, gate(&m, 0, "a", slow, quick), "run")
	expect(t, gate(&m, 200, "b", slow, quick, block), "delayed; at 500; met 0 free 500")
	expect(t, gate(&m, 210, "c", quick), "run")
	expect(t, gate(&m, 210, "d", block), "run") // other rules do not count a turn
	expect(t, gate(&m, 500, "b", slow, quick, block), "run")
}

func TestTheClockOfACounterNeverGoesBack(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	c := limit(rules.Block, "2", 100)
	expect(t, gate(&m, 1000, "a", c), "run")
	expect(t, gate(&m, 0, "b", c), "run")
	expect(t, gate(&m, 50, "c", c), "stopped; met 0 free 1100")
}

func TestSequencesAreJudgedAsOfWhenTheCallWasMade(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	needs := rules.Check{Rule: "r", Action: rules.Block, Kind: rules.Required, Tools: []string{"look"}, WithinMS: 100}
	not := rules.Check{Rule: "n", Action: rules.Block, Kind: rules.Afterwards, Tools: []string{"look", "pay"},
		Ended: []string{"succeeded", "approval_denied"}}
	expect(t, gate(&m, 0, "a", needs, not), "stopped; met 0")
	m.Ended(ended("1", "look", "succeeded", "", 50))
	m.Ended(ended("2", "pay", "failed", "timeout", 60))
	expect(t, gate(&m, 49, "a", needs, not), "stopped; met 0")
	expect(t, gate(&m, 50, "a", needs, not), "stopped; met 1 look succeeded r1 50")
	expect(t, gate(&m, 149, "a", needs), "run")
	expect(t, gate(&m, 150, "a", needs), "stopped; met 0")
	m.Ended(ended("3", "pay", "failed", "approval_denied", 70))
	expect(t, gate(&m, 200, "a", not), "stopped; met 0 pay approval_denied r3 70")
	failed := rules.Check{Rule: "f", Action: rules.Warn, Kind: rules.Afterwards, Tools: []string{"pay"},
		Ended: []string{"failed"}}
	expect(t, gate(&m, 200, "b", failed), "run; met 0 pay approval_denied r3 70") // whatever the code
	other := rules.MemoryCall{ID: "o", SessionID: "s", CreatedBy: "another", CreatedAt: after(100)}
	expect(t, said(m.Gate(after(100), other, []rules.Check{needs, not})), "stopped; met 0")
}

func TestFailuresInARowCoolDown(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	c := rules.Check{Rule: "r", Action: rules.Block, Kind: rules.FailureRow, Counter: "r/failures", InARow: 2,
		CooldownMS: 100}
	for i, id := range []string{"a", "b", "c", "open"} {
		expect(t, gate(&m, int64(i), id, c), "run")
	}
	m.Ended(ended("a", "t", "succeeded", "", 50))
	m.Ended(ended("b", "t", "failed", "timeout", 60))
	m.Ended(ended("c", "t", "failed", "timeout", 55))
	expect(t, gate(&m, 70, "d", c), "stopped; met 0 free 160 receipts rc,rb")
	expect(t, gate(&m, 70, "open", c), "run")
	expect(t, gate(&m, 160, "d", c), "run")
	m.Ended(ended("d", "t", "succeeded", "", 161))
	expect(t, gate(&m, 162, "e", c), "run")
}

func TestPeopleDecideOnce(t *testing.T) {
	t.Parallel()
	var m rules.Memory
	ask := rules.Check{Rule: "r", Action: rules.Ask, Kind: rules.ItsCall, Digest: "x"}
	count := limit(rules.Block, "1", 100)
	expect(t, gate(&m, 0, "a", ask, count), "asked; met 0")
	expect(t, gate(&m, 0, "a", ask, count), "asked; met 0")
	m.Decided(rules.Decision{Digest: "x", Outcome: rules.Passed, By: "eve", ID: "1", At: after(5)})
	expect(t, gate(&m, 6, "a", ask, count), "run; met 0; approved by eve")
	other := ask
	other.Digest = "y"
	expect(t, gate(&m, 6, "b", other, count), "stopped; met 0; met 1 free 106")
	m.Decided(rules.Decision{Digest: "y", Outcome: rules.Denied, Reason: "no", At: after(7)})
	expect(t, gate(&m, 200, "b", other, count), "denied; met 0 reason no")
	m.Decided(rules.Decision{Digest: "y", Outcome: rules.Expired, Reason: "expired", At: after(7)})
	expect(t, gate(&m, 200, "b", other), "expired; met 0 reason expired")
}

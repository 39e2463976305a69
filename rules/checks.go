package rules

import (
	"encoding/json"
	"time"

	"github.com/gemworker/gem/receipts"
)

// Check is a rule's condition about earlier calls or about a person. gem.gate in SQL answers it, and [Memory] in Go.
// Times are in milliseconds, so that both compute the same; 0 means none.
type Check struct {
	Rule   string `json:"rule"`
	Action Action `json:"action"`
	Kind   Kind   `json:"kind"`
	// Counter names the calls that are counted together, for [Count], [Sum], [FailureRow] and [AtOnce]. It begins with
	// the rule's name and a slash.
	Counter    string      `json:"counter,omitempty"`
	Max        json.Number `json:"max,omitempty"`
	WithinMS   int64       `json:"within_ms,omitempty"`
	Add        json.Number `json:"add,omitempty"`        // for Sum: the call's amount; at least 0
	AtMostMS   int64       `json:"at_most_ms,omitempty"` // for the action wait
	InARow     int         `json:"in_a_row,omitempty"`
	CooldownMS int64       `json:"cooldown_ms,omitempty"`
	// CoarseMS is set if the counter has calls of other callers and the caller may read what the check sees. Times are
	// then rounded up to its multiples since 1970, and sums and receipts are left out, because they would reveal other
	// callers' activity.
	CoarseMS int64    `json:"coarse_ms,omitempty"`
	Tools    []string `json:"tools,omitempty"` // names of tools, without patterns, sorted
	Ended    []string `json:"ended,omitempty"` // statuses and error codes, sorted
	// For the action ask. Digest covers the call, its input, the tool's entry and the rule: see [Judge.Judge].
	Digest   string          `json:"digest,omitempty"`
	Question json.RawMessage `json:"question,omitempty"` // the input of wait.approval without until and before
	AskMS    int64           `json:"ask_ms,omitempty"`   // how long people may take to decide
}

// coarse rounds a time up, if the check is coarse.
func (c *Check) coarse(t time.Time) time.Time {
	if c.CoarseMS <= 0 {
		return t
	}
	step := c.CoarseMS * 1000
	return time.UnixMicro((t.UnixMicro() + step - 1) / step * step).UTC()
}

// asksText returns the text of the question, or "" if the check asks nobody.
func (c *Check) asksText() string {
	var question struct{ Text string }
	_ = json.Unmarshal(c.Question, &question)
	return question.Text
}

// Kind is the kind of a check's condition.
type Kind string

// The kinds. All except [ItsCall] depend on earlier calls.
const (
	ItsCall    Kind = "call"     // on the call itself: a rule asks people about it
	Count      Kind = "count"    // on the number of calls that passed
	Sum        Kind = "sum"      // on the sum of their amounts
	Required   Kind = "requires" // met if the session has no success of these tools
	Afterwards Kind = "after"    // met if a call of the session ended in this way
	FailureRow Kind = "failures" // met if the last calls of the counter failed
	AtOnce     Kind = "running"  // met if as many calls of the counter run as may run at the same time
)

// Outcome is the result of a call's checks.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "run"     // it runs, and is counted
	Stopped Outcome = "stopped" // a rule blocks it
	Delayed Outcome = "delayed" // a limit delays it: it may start later
	Parked  Outcome = "parked"  // it waits for a place of a running rule
	Asked   Outcome = "asked"   // people were asked: it waits for them
	Denied  Outcome = "denied"  // one of them denied it
	Expired Outcome = "expired" // nobody answered in time
	Unasked Outcome = "unasked" // they could not be asked
)

// Answer has the results of a call's checks.
type Answer struct {
	Outcome  Outcome
	At       time.Time // the time of the answer, by the clock of the counters
	StartsAt time.Time // of a delayed call
	// Met are the checks that are met, in their order.
	Met []Met
	// Approvals are the approvals of the call, in the order of the checks.
	Approvals []receipts.Approval
}

// Met is a check that is met, with its findings.
type Met struct {
	Check int               `json:"check"`          // its index, or [NoCheck]
	Rule  string            `json:"rule,omitempty"` // for a denial without a check: the rule that asked
	Seen  receipts.Evidence `json:"seen"`
}

// NoCheck is the index of a denial that no current check needs, because the rule or the tool's entry has changed.
const NoCheck = -1

package rules

import (
	"encoding/json"
	"time"
)

// Check is what a rule asks of the calls before one, or of a person: gem.gate in SQL answers it, and [Memory] in Go. Times are in
// milliseconds, so that both compute alike; 0 means that there is none.
type Check struct {
	Rule   string `json:"rule"`
	Action Action `json:"action"`
	Kind   Kind   `json:"kind"`
	// Counter names what is counted together, of a [Count], [Sum] or [FailureRow]. It begins with the rule's name and a slash.
	Counter  string      `json:"counter,omitempty"`
	Max      json.Number `json:"max,omitempty"`
	WithinMS int64       `json:"within_ms,omitempty"`
	Add      json.Number `json:"add,omitempty"`        // of a Sum: what the call adds; nothing below 0
	AtMostMS int64       `json:"at_most_ms,omitempty"` // of the action wait
	InARow   int         `json:"in_a_row,omitempty"`
	RestMS   int64       `json:"rest_ms,omitempty"`
	// CoarseMS is set if the counter has calls of other callers and the caller may read what the check sees. Times are then rounded up to its multiples
	// since 1970, and sums and receipts are left out: they would reveal what others did, and when.
	CoarseMS int64    `json:"coarse_ms,omitempty"`
	Tools    []string `json:"tools,omitempty"` // names of tools, without patterns, sorted
	Ended    []string `json:"ended,omitempty"` // statuses and error codes, sorted
	// Of the action ask.
	Digest   string          `json:"digest,omitempty"`   // of the call, its input, the tool's entry and the rule: see [Judge.Judge]
	Question json.RawMessage `json:"question,omitempty"` // the input of wait.approval without until and before
	AskMS    int64           `json:"ask_ms,omitempty"`   // how long it may take to decide
}

// coarse rounds a time up, if the check is coarse.
func (c *Check) coarse(t time.Time) time.Time {
	if c.CoarseMS <= 0 {
		return t
	}
	step := c.CoarseMS * 1000
	return time.UnixMicro((t.UnixMicro() + step - 1) / step * step).UTC()
}

// asksText is the text of the question; empty if the check asks nobody.
func (c *Check) asksText() string {
	var question struct{ Text string }
	_ = json.Unmarshal(c.Question, &question)
	return question.Text
}

// Kind is what a check looks at.
type Kind string

// The kinds. One that is not [ItsCall] is answered by what happened before.
const (
	ItsCall    Kind = "call"     // nothing more: the call itself met a rule that asks
	Count      Kind = "count"    // calls that were let through
	Sum        Kind = "sum"      // what they added
	Required   Kind = "requires" // a success in the session; met if there is none
	Afterwards Kind = "after"    // an end in the session; met if there is one
	FailureRow Kind = "failures" // the last calls of the counter
)

// Outcome is what becomes of a call whose checks were answered.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "run"     // it runs, and is counted
	Stopped Outcome = "stopped" // a rule blocks it
	Delayed Outcome = "delayed" // it has a turn, and runs then
	Asked   Outcome = "asked"   // people were asked: it waits for them
	Denied  Outcome = "denied"  // one of them said no
	Expired Outcome = "expired" // none of them said anything in time
	Unasked Outcome = "unasked" // they could not be asked
)

// Answer is what the checks of a call come to.
type Answer struct {
	Outcome Outcome
	At      time.Time // when they were answered, by the clock of the counters
	Turn    time.Time // of a call that is delayed: when it runs
	// Met are the checks that met the call, in their order.
	Met []Met
	// Approvals are those that were given for the call, in the order of the checks.
	Approvals []Approval
}

// Met is what a check saw that met a call.
type Met struct {
	Check int  `json:"check"` // its index
	Seen  Seen `json:"seen"`
}

// Seen is what a check saw. Only what its kind knows is there.
type Seen struct {
	// FreeAt is when the call would be let through: nil if it is not known, or never.
	FreeAt *time.Time `json:"free_at,omitempty"`
	// Total is what calls of the window have added so far, of a [Sum].
	Total json.Number `json:"total,omitempty"`
	// Receipts are those of the failures, the last first.
	Receipts []string `json:"receipts,omitempty"`
	// What ended before, of [Afterwards].
	Tool      string     `json:"tool,omitempty"`
	Ended     string     `json:"ended,omitempty"`
	ReceiptID string     `json:"receipt_id,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// NotInTime: the turn would come later than the rule lets a call wait.
	NotInTime bool `json:"not_in_time,omitempty"`
	// By is the person who denied the call, and Reason the reason that was given.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Approval is a decision on a call.
type Approval struct {
	Rule   string    `json:"rule"`
	ID     string    `json:"id"` // of the call of wait.approval
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Digest string    `json:"digest"`
	Reason string    `json:"reason,omitempty"` // as given
}

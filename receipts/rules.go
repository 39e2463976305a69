package receipts

import (
	"encoding/json"
	"time"
)

// RuleAction is what a rule does with a call that it meets. Package rules has the actions.
type RuleAction string

// Verdict is the verdict of one rule on a call.
type Verdict struct {
	Rule    string     `json:"rule"`
	Action  RuleAction `json:"action"`
	Message string     `json:"message"` // names the rule as policy, its findings, and the next step
	Seen    *Evidence  `json:"seen,omitempty"`
	// Undecided means that the rule could not be judged, and stops the call for that reason.
	Undecided bool `json:"undecided,omitempty"`
}

// Evidence has the findings of a check. Its fields depend on the kind of check.
type Evidence struct {
	// FreeAt is the time at which the limit would let the call pass; nil if it is unknown, or never.
	FreeAt *time.Time `json:"free_at,omitempty"`
	// Total is the sum of the calls in the window, for a limit on a sum.
	Total json.Number `json:"total,omitempty"`
	// Receipts are the receipts of the failures, the latest first.
	Receipts []string `json:"receipts,omitempty"`
	// The earlier call, for a rule about the calls after it.
	Tool      string     `json:"tool,omitempty"`
	Ended     string     `json:"ended,omitempty"`
	ReceiptID string     `json:"receipt_id,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// NotInTime means that the call would have to wait for longer than the rule allows.
	NotInTime bool `json:"not_in_time,omitempty"`
	// By is the person who denied the call, and Reason is that person's reason.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Approval is a decision on a call.
type Approval struct {
	Rule   string    `json:"rule"`
	ID     string    `json:"id"` // of the call to wait.approval
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Digest string    `json:"digest"`
	Reason string    `json:"reason,omitempty"` // as given
}

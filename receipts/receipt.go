// Package receipts has the types that record calls: the receipt of each call, the journal, and the idempotency keys
// with which a call repeats an earlier receipt instead of running. It reads and writes nothing.
package receipts

import (
	"encoding/json"
	"errors"
	"time"
)

// Status is the outcome of a call.
type Status string

// The three outcomes.
const (
	Succeeded     Status = "succeeded"
	Failed        Status = "failed"
	NotConfigured Status = "not_configured"
)

// Code is the machine-readable reason for a failure: result.error.error_code.
type Code string

// GEM's own codes; a handler may return others.
const (
	UnknownTool     Code = "unknown_tool"     // the registry has no tool of that name
	ValidationError Code = "validation_error" // the input does not match its schema; details list {path, keyword, message}
	ExecutionError  Code = "execution_error"  // the handler returned an error
	Timeout         Code = "timeout"          // the handler exceeded the tool's timeout_ms
	Panic           Code = "panic"            // the handler panicked
	OutputInvalid   Code = "output_invalid"   // the output does not match its schema, or Postgres cannot store it
	OutcomeUnknown  Code = "outcome_unknown"  // the worker was lost during the call, and the call must not run twice
	WorkerLost      Code = "worker_lost"      // the call lost its worker, and has no attempts left
	Cancelled       Code = "cancelled"        // the call's cancellation was requested
	NotAllowed      Code = "not_allowed"      // the tool is closed to signed-in users, and one of them made the call
	JournalFull     Code = "journal_full"     // a durable call has made too many steps
	KeyDeadlock     Code = "key_deadlock"     // a call that waits for this one has the same key
	// a rule of the operator blocks it; details {rule, rules_version, kind, seen, do}
	RuleBlocked Code = "rule_blocked"
	// a limit blocks it; details also have free_at and retry_after_ms, if they are known
	LimitReached    Code = "limit_reached"
	ApprovalDenied  Code = "approval_denied"  // a rule asked people, and one of them denied it
	ApprovalExpired Code = "approval_expired" // a rule asked people, and none decided in time
	RuleError       Code = "rule_error"       // a rule could not be judged
	KeyReused       Code = "key_reused"       // the key succeeded before with another input, and the tool refuses that
)

// OfGEM reports whether c is one of GEM's own codes.
func (c Code) OfGEM() bool {
	switch c {
	case UnknownTool, ValidationError, ExecutionError, Timeout, Panic, OutputInvalid, OutcomeUnknown, WorkerLost,
		Cancelled, NotAllowed, JournalFull,
		KeyDeadlock, RuleBlocked, LimitReached, ApprovalDenied, ApprovalExpired, RuleError, KeyReused:
		return true
	}
	return false
}

// Receipt is the final record of a call.
type Receipt struct {
	ID              string          `json:"id"`
	CallID          string          `json:"call_id"`
	ToolName        string          `json:"tool_name"`
	Status          Status          `json:"status"`
	Result          json.RawMessage `json:"result"`
	Effects         json.RawMessage `json:"effects"`
	CreatedAt       time.Time       `json:"created_at"`
	Attempt         int             `json:"attempt"`
	WorkerID        string          `json:"worker_id,omitempty"`
	RegistryVersion string          `json:"registry_version,omitempty"`
	IdempotencyKey  string          `json:"idempotency_key,omitempty"`
	ReplayOf        string          `json:"replay_of,omitempty"`
	DurationMS      float64         `json:"duration_ms"` // from the claim of its attempt; 0 on an imported receipt
}

// Error is the error object of a failed receipt.
type Error struct {
	Code    Code            `json:"error_code"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details"`
}

// Error returns the error of a failed receipt, and false for the other outcomes.
func (r *Receipt) Error() (Error, bool) {
	var result struct {
		Error Error `json:"error"`
	}
	if r.Status != Failed || json.Unmarshal(r.Result, &result) != nil {
		return Error{}, false
	}
	return result.Error, true
}

// ErrNone means that the call has no receipt yet.
var ErrNone = errors.New("no receipt yet")

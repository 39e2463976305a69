package watch

import (
	"context"
	"time"
)

// Failure sums up calls of a tool that did not succeed for the same reason.
type Failure struct {
	Tool string `json:"tool"`
	Code string `json:"code"` // not_configured for such
	// Message is the message with … in place of its numbers, ids and quoted texts.
	Message string    `json:"message"`
	Count   int       `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	// CallID is the last of them, and Example its message, at most 300 characters.
	CallID  string `json:"call_id"`
	Example string `json:"example"`
}

// Failures are sums of failures.
type Failures struct {
	Failures []Failure `json:"failures"`           // the most frequent first
	Looked   int       `json:"looked"`             // how many calls they sum up
	AtLeast  bool      `json:"at_least,omitempty"` // older ones since From were not looked at
	From     time.Time `json:"from"`               // the first that was looked at, if so; otherwise as asked
}

// ReadFailures sums up the last calls that did not succeed since a time, 5,000 at most; of one tool, or of all if tool is empty.
func ReadFailures(ctx context.Context, db DB, from time.Time, tool string) (*Failures, error) {
	return &Failures{}, nil
}

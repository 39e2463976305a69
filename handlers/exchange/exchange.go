// Package exchange has what a worker and a service exchange about a durable call whose handler is not Go. The worker
// sends the journal's entries, the service runs the handler from its beginning, and answers with the operations that
// the journal lacks. The worker records them and sends the next exchange.
package exchange

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
)

// Entry is an operation in the journal of a call.
type Entry struct {
	// Name is the unique name of the operation: the second one with a name has the suffix #2, and so on.
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Tool is the tool of a call.
	Tool string `json:"tool,omitempty"`
	// Ended grows with the order in which the operations ended; nil: it has not ended. One that has ended has a result,
	// an error or neither.
	Ended         *int                    `json:"ended"`
	Result        json.RawMessage         `json:"result,omitempty"`
	Error         *receipts.Error         `json:"error,omitempty"`
	NotConfigured *handlers.NotConfigured `json:"not_configured,omitempty"`
	// TimedOut means that the wait for the operation ended without its result.
	TimedOut bool `json:"timed_out,omitempty"`
	// Early means that no recorded wait has asked for this answer. Such an answer does not show that an earlier run passed
	// this point.
	Early bool `json:"early,omitempty"`
}

// Kind is the kind of an entry.
type Kind string

// The kinds of entries.
const (
	Step      Kind = "step"      // as of [handlers.Step]
	Tx        Kind = "tx"        // as of [handlers.StepTx]
	Once      Kind = "once"      // as of [handlers.StepOnce]
	Call      Kind = "call"      // as of [handlers.Start]
	Time      Kind = "time"      // as of [handlers.Sleep]
	Answer    Kind = "answer"    // as of [handlers.Receive]
	Version   Kind = "version"   // as of [handlers.Version]
	Cancelled Kind = "cancelled" // a wait that a cancellation ended
)

// Operation is an operation that a service reports.
type Operation struct {
	Do   Verb
	Name string // as of an [Entry]
	// Kind is Step, Once or, for a step that failed, Tx, for End.
	Kind Kind
	// Result and Err are the end of a step, or the result of a Version.
	Result  json.RawMessage
	Err     error
	Effects receipts.HandlerEffects
	// Tool and Input are the call to make, or to approve.
	Tool  string
	Input json.RawMessage
	// Approval is set for an Approve. Its tool and input are those above.
	Approval handlers.Approval
	// Approved names the approval of a call to make; empty: it needs none.
	Approved string
	// CleanUp means that the operation belongs to a clean-up after a cancellation.
	CleanUp bool
}

// Verb is what a service asks for with an operation.
type Verb string

// The verbs of operations.
const (
	End           Verb = "step"      // a step has ended
	Begin         Verb = "began"     // a step that must not run twice is about to begin
	RecordVersion Verb = "version"   // the code has a version here
	ListTools     Verb = "tools"     // the tools that the handler may call
	Make          Verb = "call"      // make a call
	Approve       Verb = "approve"   // ask people to approve a call
	Cancel        Verb = "cancelled" // a wait has ended because of a cancellation
)

// State is the state of an attempt before an exchange.
type State struct {
	Steps     int           // events of steps and waits in the journal
	Left      time.Duration // until the tool's timeout
	Cancelled bool          // the call's cancellation was requested
	Replay    bool          // nothing may run
}

// Attempt is an attempt of a call. A worker implements it. Methods that move the call may end the goroutine in place of
// returning: the attempt then has ended.
type Attempt interface {
	State() State
	// Entries returns the journal, in the order of its events. complete is false if the results of calls take more than
	// 8 MiB. Such a journal does not fit into a request.
	Entries() (entries []Entry, complete bool)
	// Token returns the token with which the service may write steps in its own transactions.
	Token() (string, error)
	// Reread reads the journal again, because the service may have written into it.
	Reread() error
	// Record writes operations into the journal. It returns an error for an operation that does not fit the journal or
	// that no service may report.
	Record(operations []Operation) error
	// Wait parks the call until at least need of the names have arrived, and returns if they have. It also returns after
	// a cancellation, unless the wait belongs to a clean-up.
	Wait(need int, names []handlers.Await, cleanUp bool) error
	// Unanswered is called if a service gave no answer that counts, because of err. It returns err if the call has made
	// no progress. Otherwise it does not return: the call runs again, or waits for code if its attempts are used up.
	Unanswered(err error) error
	// DoesNotFit ends the attempt: the call waits for code. It does not return.
	DoesNotFit(name, why string)
	// Stopped ends a replay at an operation that the journal lacks. It does not return.
	Stopped(lacks string)
	// Finished records which entries of the journal the handler has not asked for when it returns, or when its replay
	// stops.
	Finished(unread []string)
	// Life is the context of the whole attempt.
	Life() context.Context
}

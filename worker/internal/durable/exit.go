package durable

import (
	"errors"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
)

// Exit is the end of an attempt whose handler has not returned.
type Exit struct {
	Why     Why
	Err     error            // of Retried and LeftToRecovery
	Misfit  store.Misfit     // of WaitingForCode
	Lacks   string           // of Replayed: the first operation that the journal lacks
	Outcome receipts.Outcome // of Ended
}

// Why is the kind of an exit.
type Why string

// The kinds of exits.
const (
	Waiting        Why = "waiting"          // the call waits, and the attempt no longer holds it
	Retried        Why = "retried"          // a step failed with a transient error, and may run again
	Released       Why = "released"         // the worker stops, or could not read the journal
	NotHeld        Why = "not_held"         // the attempt no longer holds its call
	LeftToRecovery Why = "left_to_recovery" // it is unknown whether a statement took effect
	WaitingForCode Why = "waiting_for_code" // the handler's code does not fit the journal
	Ended          Why = "ended"            // the call ends, independent of the handler's result
	Replayed       Why = "replayed"         // a replay has reached the end of the journal
)

// The reasons why the context of an attempt ends, in addition to the tool's timeout and [handlers.ErrCancelled].
var (
	ErrStopping = errors.New("the worker is stopping")
	ErrNotHeld  = errors.New("the attempt no longer has its call")
	ErrDeadline = errors.New("the time of the call is over")
)

// errLeft ends the context of a handler whose attempt ends before the handler has returned.
var errLeft = errors.New("the attempt has ended in the middle of a step")

package handlers

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gemworker/gem/internal/plainjson"
	"github.com/gemworker/gem/receipts"
)

// Durable is the call of a durable handler. In such a handler, everything that has an effect must happen inside a
// step. A step's result is in the call's journal before the handler sees it. If the handler runs again, because its
// worker was lost or a later step is retried, each step with a recorded result returns it without running.
//
// The handler must therefore be deterministic: its input and the results of its steps determine everything that it
// does. It may read clocks, random numbers and external data only inside of steps, and the names of steps must be
// constants or come from the journal.
type Durable struct {
	*Call
	journal Journal
}

// NewDurable returns the call for a durable handler. Workers use it.
func NewDurable(call *Call, journal Journal) *Durable { return &Durable{call, journal} }

// Journal records the steps and waits of a call. A worker implements it for the functions of this package that take a
// [Durable].
type Journal interface {
	// Step returns the recorded result of the step, or runs do and records its result. If the attempt ends in the
	// meantime, Step ends the goroutine instead of returning.
	Step(ctx context.Context, kind StepKind, name string,
		do func(context.Context, Tx) (json.RawMessage, error)) (json.RawMessage, error)
	// Start makes a call under a name, or finds the call that an earlier run made. It returns the name, with a suffix
	// such as #2 if it is not the first of that name in the journal, and the call's id. It calls input only if it makes
	// the call. If the call is refused, the refusal is recorded under its name. Start itself returns an error only for a
	// mistake in the handler's code. chosen is true if StartWith makes the call.
	Start(name, tool string, chosen bool, input func() (json.RawMessage, error)) (unique, id string, err error)
	// Timer registers a timer, and returns its unique name in the journal.
	Timer(name string) (unique string, err error)
	// Receive registers a wait for an answer, and returns its unique name in the journal.
	Receive(name string) (unique string, err error)
	// Tools returns the tools that the handler may call according to this worker's registry.
	Tools() []Tool
	// Digest returns the digest of a call to approve, or an error with the reason if the handler may not make that call.
	Digest(tool string, input json.RawMessage) (string, error)
	// Wait returns once something has arrived under at least `need` of the names. Until then the call is
	// parked: Wait ends the goroutine, and a later attempt runs the handler again.
	Wait(ctx context.Context, need int, names []Await) error
	// DoesNotFit ends the attempt, and does not return. The call then waits for a program whose code fits the journal's
	// entry of that name.
	DoesNotFit(name, why string)
	// Version returns the version of the code in the journal's entry of that name, or 0 if earlier runs passed this
	// point without recording one.
	Version(name string, current int) int
	// Arrived returns the arrival under a name, and whether there is one. Its Result is certain only directly after a
	// Wait for this name alone, because large results are read only then.
	Arrived(name string) (Arrival, bool)
}

// StepKind determines how often a step may take effect.
type StepKind string

// The kinds of steps.
const (
	AtLeastOnce StepKind = "step" // [Step]
	WithItsRows StepKind = "tx"   // [StepTx]
	AtMostOnce  StepKind = "once" // [StepOnce]
)

// Func returns the name of the function that makes such a step.
func (k StepKind) Func() string {
	switch k {
	case WithItsRows:
		return "StepTx"
	case AtMostOnce:
		return "StepOnce"
	}
	return "Step"
}

// ErrUnknown is the error of a [StepOnce] that had begun when its worker was lost, so that it may or may not have taken
// effect. The handler may look for the effect, or ask a person. If the handler returns the error, the call ends as
// failed with the code outcome_unknown.
var ErrUnknown error = &Failure{
	Code:    "outcome_unknown",
	Message: "A step that must not run twice had begun when its worker was lost: whether it took effect is not known.",
}

// Step calls the function do at least once, records its result in the journal, and returns that result. The result must
// be encodable as JSON of at most 1 MiB. If the worker is lost before the result is recorded, another worker calls the
// function again. A name has at most 200 characters and no #. If several steps have the same name, the second gets the
// suffix #2 in the journal, and so on.
//
// A [Transient] error ends the attempt, and the call runs again after a pause. The tool's retry.max_attempts limits
// this; the count restarts whenever the journal gets another step, call or wait. When the attempts are used up, or on
// any other error, Step records the error as a [Failure] or a [NotConfigured], and returns it in every later run.
func Step[T any](ctx context.Context, d *Durable, name string, do func(context.Context) (T, error)) (T, error) {
	return step(ctx, d, AtLeastOnce, name, func(ctx context.Context, _ Tx) (T, error) { return do(ctx) })
}

// StepTx is a [Step] whose rows and result commit in one transaction: it takes effect exactly once. No other step of
// the call runs at the same time.
func StepTx[T any](ctx context.Context, d *Durable, name string, do func(context.Context, Tx) (T, error)) (T, error) {
	return step(ctx, d, WithItsRows, name, do)
}

// StepOnce is a [Step] that never runs twice, not even after a [Transient] error. If its worker is lost during the
// step, it returns [ErrUnknown] in every later run.
func StepOnce[T any](ctx context.Context, d *Durable, name string, do func(context.Context) (T, error)) (T, error) {
	return step(ctx, d, AtMostOnce, name, func(ctx context.Context, _ Tx) (T, error) { return do(ctx) })
}

func step[T any](ctx context.Context, d *Durable, kind StepKind, name string,
	do func(context.Context, Tx) (T, error)) (result T, err error) {
	encoded, err := d.journal.Step(ctx, kind, name, func(ctx context.Context, tx Tx) (json.RawMessage, error) {
		value, err := do(ctx, tx)
		if err != nil {
			return nil, err
		}
		return encode(value)
	})
	if err != nil {
		return result, err
	}
	if err := receipts.Decode(encoded, &result); err != nil {
		d.journal.DoesNotFit(name, fmt.Sprintf("The result of the step does not fit %T: %v", result, err))
	}
	return result, nil
}

// Version returns which version of the code a call must run at this place in the handler. A call that comes here for
// the first time records the given number, and gets the same number in every later run. The result is 0 for a call that
// had passed this place before Version was added to the code. Use it when the changed code would not match the journals
// of calls that are still open:
//
//	if handlers.Version(call, "ask first", 1) >= 1 {
//		…
//	}
func Version(d *Durable, name string, current int) int { return d.journal.Version(name, current) }

// encode writes a value as JSON.
func encode(value any) (json.RawMessage, error) {
	encoded, err := plainjson.Encode(value)
	if err != nil {
		return nil, &OutputError{Err: err}
	}
	return encoded, nil
}

package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// Durable is the call of a durable handler. Its effects are its steps: what a step returned is in the call's journal before the handler
// sees it, and when the handler runs again, after its worker was lost or a step is to be tried again, the step returns that
// and does not run.
//
// So all that a handler does must follow from its input and from what its steps return: it reads clocks, random numbers and the
// world only inside of steps, and their names are constants or come from the journal.
type Durable struct {
	*Call
	journal Journal
}

// NewDurable returns the call that a durable handler gets. It is for workers.
func NewDurable(call *Call, journal Journal) *Durable { return &Durable{call, journal} }

// Journal keeps the steps of a call and its waits. A worker implements it for the functions of this package that take a [Durable].
type Journal interface {
	// Step returns what the step of that name returned before, or runs do and keeps what it returns. Where the attempt
	// ends in the middle, it does not return: it ends the goroutine.
	Step(ctx context.Context, kind StepKind, name string, do func(context.Context, Tx) (json.RawMessage, error)) (json.RawMessage, error)
	// Start makes a call under a name, or finds the one that was made, and returns the name that it has in the journal. It asks for
	// the input only if there is none. What refuses the call, comes under its name: see Came. Its own error says what is wrong with the code.
	// chosen: see StartWith.
	Start(name, tool string, chosen bool, input func() (json.RawMessage, error)) (unique, id string, err error)
	// Timer returns the name that a time has in the journal.
	Timer(name string) (unique string, err error)
	// Receive returns the name that an answer has in the journal.
	Receive(name string) (unique string, err error)
	// Tools returns the tools of which the handler may make calls, as the registry has them now.
	Tools() []Tool
	// Digest returns the digest of a call that is to be approved. Its error says why the handler may not make that call.
	Digest(tool string, input json.RawMessage) (string, error)
	// Wait returns when so many of the names have come. Where they have not, it does not return: it ends the goroutine.
	Wait(ctx context.Context, need int, names []Await) error
	// DoesNotFit ends the attempt, and does not return: the call waits for a program whose code fits what the journal has under a name.
	DoesNotFit(name, why string)
	// Version returns the version of the code that the journal has under a name: 0 where runs passed there without one.
	Version(name string, current int) int
	// Came returns what came under a name, and whether anything did. A result is there after a Wait for this name alone.
	Came(name string) (Came, bool)
}

// StepKind says how often a step may take effect.
type StepKind string

// The kinds of steps.
const (
	AtLeastOnce StepKind = "step" // [Step]
	WithItsRows StepKind = "tx"   // [StepTx]
	AtMostOnce  StepKind = "once" // [StepOnce]
)

// Func is the name of the function that makes such a step.
func (k StepKind) Func() string {
	switch k {
	case WithItsRows:
		return "StepTx"
	case AtMostOnce:
		return "StepOnce"
	}
	return "Step"
}

// ErrUnknown is the error of a [StepOnce] that had begun when its worker was lost: whether it took effect is not known. The
// handler may look, or ask a person. Returned by a handler, it ends the call as failed with the code outcome_unknown.
var ErrUnknown error = &Failure{
	Code:    "outcome_unknown",
	Message: "A step that must not run twice had begun when its worker was lost: whether it took effect is not known.",
}

// Step runs do at least once, until its result is in the journal, and returns that result: a value that JSON can hold, of at most 1 MiB.
// A worker that is lost before that runs it again elsewhere. A name has at most 200 characters and no #; the second step
// of one name has the name with #2 behind it, and so on.
//
// A [Transient] error ends the attempt: the call runs again after a pause, as often as its tool's retry.max_attempts allows since its
// last progress. The last such error, and every other, is kept, and returned again whenever the handler runs again: a [Failure], or
// a [NotConfigured].
func Step[T any](ctx context.Context, d *Durable, name string, do func(context.Context) (T, error)) (T, error) {
	return step(ctx, d, AtLeastOnce, name, func(ctx context.Context, _ Tx) (T, error) { return do(ctx) })
}

// StepTx is a [Step] whose rows and result commit together: it takes effect exactly once. While it runs, no other step of the call
// does.
func StepTx[T any](ctx context.Context, d *Durable, name string, do func(context.Context, Tx) (T, error)) (T, error) {
	return step(ctx, d, WithItsRows, name, do)
}

// StepOnce is a [Step] that never runs twice. If its worker is lost in the middle, it returns [ErrUnknown] from then on.
func StepOnce[T any](ctx context.Context, d *Durable, name string, do func(context.Context) (T, error)) (T, error) {
	return step(ctx, d, AtMostOnce, name, func(ctx context.Context, _ Tx) (T, error) { return do(ctx) })
}

func step[T any](ctx context.Context, d *Durable, kind StepKind, name string, do func(context.Context, Tx) (T, error)) (result T, err error) {
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
	if err := json.Unmarshal(encoded, &result); err != nil {
		d.journal.DoesNotFit(name, fmt.Sprintf("The result of the step does not fit %T: %v", result, err))
	}
	return result, nil
}

// Version says which code the call runs where it differs from code that calls may have begun with: current where this run is the first to come
// here, and then in every later one; 0 where an earlier run passed here when the code did not ask yet. It is for changes that the journal
// would not fit:
//
//	if handlers.Version(call, "ask first", 1) >= 1 {
//		…
//	}
func Version(d *Durable, name string, current int) int { return d.journal.Version(name, current) }

// encode writes a value as JSON, without escaping what only HTML would need.
func encode(value any) (json.RawMessage, error) {
	var encoded bytes.Buffer
	enc := json.NewEncoder(&encoded)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, &OutputError{Err: err}
	}
	return bytes.TrimSpace(encoded.Bytes()), nil
}

package handlers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gemworker/gem/receipts"
)

// Child is a call that a durable handler made, or an answer that it requested.
type Child[T any] struct {
	call   *Durable
	name   string // in the journal
	id     string
	field  string // of the result, which has the T; empty: the result is the T
	within time.Duration
	until  *time.Time
	err    error    // why there is nothing to wait for
	asked  *Request // of an approval
	waited bool     // Wait has returned, in this run
}

// Awaited is a [Child] of any type: what a durable handler can wait for.
type Awaited interface {
	awaits() (*Durable, Await, error)
}

// Await is something that a handler waits for, by its name in the call's journal, with a time limit: a duration, or a
// time. With neither, the handler waits indefinitely.
type Await struct {
	Name   string
	Within time.Duration
	Until  *time.Time
}

// Arrival is what a handler has received under the name of something that it waits for: the result of a child, an
// answer, or a timeout.
type Arrival struct {
	Seq    int             // its place in the journal
	Result json.RawMessage // the child's result; for an answer, an object with its value, who gave it (by) and when (at)
	Err    error           // the error of a child that did not succeed, or ErrTimeout
	// InputDiffers: see [Child.InputDiffers].
	InputDiffers bool
}

// ErrTimeout is the error that [Child.Wait] returns if the child has not ended, or was not answered, within the limit
// of [Child.Within] or [Child.Until].
var ErrTimeout error = &Failure{Code: "timeout", Message: "Nothing arrived within the time limit of the wait."}

// ErrCancelled is the error that new steps and waits return once someone has asked to cancel the call. context.Cause
// returns it for the handler's context, too. Steps and waits that already have a recorded result return that result. A
// handler may clean up with steps, calls and waits under context.WithoutCancel(ctx), for at most an hour after the
// request. The call ends when the handler returns. If the handler returns an error, the call ends as failed, with the
// code cancelled.
var ErrCancelled error = &Failure{Code: "cancelled", Message: "Someone asked to cancel the call."}

// Start makes a call to a tool under a name, once, even if the handler runs several times. It does not insert the call
// itself: the worker does, when the handler reaches its next step or wait. After a cancellation, the worker inserts the
// call only if the handler waits for it. The handler's entry in the registry must list the tool in `calls`. The input
// is an object of at most 1 MiB. The tool's output is decoded into a T. If the call cannot be made, [Child.Wait]
// returns the reason. Do not use Start inside a step.
//
// A child has the session, the user and the priority of its parent. When the parent ends, its open children are
// cancelled.
func Start[T any](d *Durable, name, tool string, input any) *Child[T] {
	return start[T](d, name, tool, func() (json.RawMessage, error) {
		encoded, err := encode(input)
		if err != nil {
			return nil, &Failure{Code: "validation_error",
				Message: fmt.Sprintf("The input of %s, a call to %s, cannot be encoded: %v", name, tool, err)}
		}
		return encoded, nil
	})
}

// Tool is a tool that a handler may call.
type Tool struct {
	Name, Description string
	// InputSchema is a JSON Schema.
	InputSchema json.RawMessage
	// Closed says why the user of the handler's call may not call the tool, such as "needs the permission send:sms". It
	// is empty if the user may, or if the handler's call was made without a user's token. [Start] makes
	// the call even if Closed is set. [StartWith] does not.
	Closed string
}

// Tools returns the tools that the call's handler may call, in the order of the registry. The result depends on this
// worker's registry, so a handler must use it only in a step or in the input of [StartWith].
func Tools(d *Durable) []Tool { return d.journal.Tools() }

// StartWith is like [Start], but takes a function that returns the input. The function runs only if no earlier run has
// made the call. If it returns an error, that error is recorded in place of the call, and Wait returns it in every run.
// Use StartWith for calls that are chosen not by the handler's code but by a model or a document. If the user of the
// handler's call may not call the tool, the call is not made, and Wait returns a [Failure] with the code not_allowed. A
// question asked with StartWith is treated as if the user had asked it: users' limits apply, and people see that the
// handler chose neither the text nor who may answer.
func StartWith[T any](d *Durable, name, tool string, input func() (json.RawMessage, error)) *Child[T] {
	c := &Child[T]{call: d}
	c.name, c.id, c.err = d.journal.Start(name, tool, true, input)
	return c
}

func start[T any](d *Durable, name, tool string, input func() (json.RawMessage, error)) *Child[T] {
	c := &Child[T]{call: d}
	c.name, c.id, c.err = d.journal.Start(name, tool, false, input)
	return c
}

// Receive returns a Child for an answer that somebody sends to the handler's own call, under a name. The answer comes
// from public.answer_tool_call, `gem answer` or client.Answer, and may be sent before Receive is called. The answer is
// unchecked JSON of at most 64 KiB, and is decoded into a T. To ask a question with a schema, use [Ask].
func Receive[T any](d *Durable, name string) *Child[T] {
	c := &Child[T]{call: d, id: d.ID, field: "value"}
	c.name, c.err = d.journal.Receive(name)
	return c
}

// ID returns the id of the call, even before the call is inserted. For [Receive] it is the id of the handler's own
// call. It is empty if the call cannot be made.
func (c *Child[T]) ID() string { return c.id }

// Within limits the time to wait for the child. The limit counts from the handler's first wait for the child. After the
// limit [Child.Wait] returns [ErrTimeout], in this and every later run. The
// limit does not cancel the child. A child that is open when its parent ends is cancelled then.
func (c *Child[T]) Within(t time.Duration) *Child[T] {
	c.within = max(t, time.Millisecond)
	return c
}

// Until ends the wait for the child at time t by Postgres's clock. After that time, [Child.Wait] returns [ErrTimeout].
// A time after the year 9999 is treated as the end of that year.
func (c *Child[T]) Until(t time.Time) *Child[T] {
	if t = t.UTC(); t.Year() > 9999 {
		t = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)
	} else if t.Year() < 1 {
		t = time.Time{}
	}
	c.until = &t
	return c
}

// Wait waits for the child's end and returns its result. Meanwhile, no process runs the call that waits. The error is
// the error of the child's receipt, as a [Failure] or a [NotConfigured], or ErrTimeout, or the error of ctx.
//
// Call Wait only in the handler's own goroutine, and never inside a step. Wait does not always return: it may end this
// run, and the handler starts again from the beginning once the child has ended.
func (c *Child[T]) Wait(ctx context.Context) (result T, err error) {
	if err := All(ctx, c); err != nil {
		return result, err
	}
	if c.err != nil {
		return result, c.err
	}
	c.waited = true
	return c.result()
}

// result returns the child's result, which has arrived.
func (c *Child[T]) result() (result T, err error) {
	arrival, _ := c.call.journal.Arrived(c.name)
	if arrival.Err != nil {
		return result, arrival.Err
	}
	encoded := arrival.Result
	if c.field != "" {
		var fields map[string]json.RawMessage
		if err = json.Unmarshal(encoded, &fields); err == nil {
			encoded = fields[c.field]
		}
	}
	if err == nil {
		err = receipts.Decode(encoded, &result)
	}
	if err != nil && c.field == "value" { // nobody has checked it
		return result, &Failure{Code: "answer_does_not_fit",
			Message: fmt.Sprintf("The answer does not fit %T: %v", result, err)}
	}
	if err != nil {
		c.call.journal.DoesNotFit(c.name, fmt.Sprintf("The result of the call %s does not fit %T: %v", c.id, result, err))
	}
	return result, nil
}

// By returns the subject that answered a [Receive] or an [Ask], and the time, once Wait has returned. The subject is a
// token's `sub`, or service_role, or the name of a Postgres role. It is empty without an answer.
func (c *Child[T]) By() (subject string, at time.Time) {
	var answer struct {
		By string
		At time.Time
	}
	if arrival, ok := c.call.journal.Arrived(c.name); ok && arrival.Err == nil {
		_ = json.Unmarshal(arrival.Result, &answer)
	}
	return answer.By, answer.At
}

// InputDiffers reports whether the call repeated the result of an earlier call with the same idempotency key but a
// different input, and did nothing itself. It is valid once Wait has returned.
func (c *Child[T]) InputDiffers() bool {
	if c.err != nil {
		return false
	}
	arrival, _ := c.call.journal.Arrived(c.name)
	return arrival.InputDiffers
}

func (c *Child[T]) awaits() (*Durable, Await, error) {
	return c.call, Await{c.name, c.within, c.until}, c.err
}

// All blocks until every child has ended or timed out, whatever the outcome. It returns an error only if ctx ends, or
// if it is called inside a step.
func All[C Awaited](ctx context.Context, of ...C) error {
	d, names, _ := awaited(of)
	if len(names) == 0 {
		return nil
	}
	return d.journal.Wait(ctx, len(names), names)
}

// First waits until a child has ended or timed out, and returns the index of the earliest. If one of the children could
// not be started, First returns its index at once. When the handler runs again, First returns the same index. It needs
// at least one child. It returns an error only if ctx ends, or if it is called inside a step.
func First(ctx context.Context, of ...Awaited) (int, error) {
	d, names, failed := awaited(of)
	if failed >= 0 {
		return failed, nil
	}
	if err := d.journal.Wait(ctx, 1, names); err != nil {
		return 0, err
	}
	first, at := 0, 0
	for i, n := range names {
		if arrival, ok := d.journal.Arrived(n.Name); ok && (at == 0 || arrival.Seq < at) {
			first, at = i, arrival.Seq
		}
	}
	return first, nil
}

// awaited returns the names to wait for, and the index of the first child that cannot be made, or -1.
func awaited[C Awaited](of []C) (d *Durable, names []Await, failed int) {
	failed = -1
	for i, one := range of {
		call, name, err := one.awaits()
		if err != nil {
			if failed < 0 {
				failed = i
			}
			continue
		}
		d, names = call, append(names, name)
	}
	return d, names, failed
}

const maxSleep = 366 * 24 * time.Hour

// Sleep pauses the call for the duration t, which begins when the handler first reaches the Sleep. No process runs
// the call during the pause. Sleep returns an error if the duration is longer than 366 days, or if ctx ends.
func Sleep(ctx context.Context, d *Durable, name string, t time.Duration) error {
	name, err := d.journal.Timer(name)
	if err == nil && t > maxSleep {
		err = &Failure{Message: fmt.Sprintf("The sleep %s lasts %s, and may last 366 days at most.", name, t)}
	}
	if err != nil {
		return err
	}
	return d.journal.Wait(ctx, 1, []Await{{Name: name, Within: max(t, time.Millisecond)}})
}

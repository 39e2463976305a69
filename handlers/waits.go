package handlers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Child is what a durable handler asked for: a call that it made, or an answer.
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

// Awaited is what a durable handler can wait for: a [Child].
type Awaited interface {
	awaits() (*Durable, Await, error)
}

// Await is a name in a call's journal that is waited for: for so long, or until a time; zero and nil: until it comes.
type Await struct {
	Name   string
	Within time.Duration
	Until  *time.Time
}

// Came is what came under a name.
type Came struct {
	Seq    int             // its place in the journal
	Result json.RawMessage // of an answer: {"value", "by", "at"}
	Err    error           // of a child that did not succeed, or ErrTimeout
}

// ErrTimeout is the error of a [Child] that did not come in the time of [Child.Within] or [Child.Until].
var ErrTimeout error = &Failure{Code: "timeout", Message: "What the call waited for did not come in its time."}

// ErrCancelled is the error of whatever a durable handler begins after someone has asked for its call's end: new steps and waits return it, and the
// context ends with it as its cause. What the journal has is still returned. A handler may clean up with steps, calls and waits under
// context.WithoutCancel(ctx), for an hour after the request at most; what it returns then, ends the call: an error as cancelled.
var ErrCancelled error = &Failure{Code: "cancelled", Message: "Someone asked to cancel the call."}

// Start makes a call of a tool under a name: once, however often the handler runs. It is sent with the next step or wait, and after a
// cancellation only with a wait for it that cleans up. The tool must be one of those in `calls` of the handler's own entry in the registry; an
// input is an object of at most 1 MiB. T is what the tool returns.
// Why a call cannot be made, [Child.Wait] says. A call is not begun inside of a step.
//
// A child has the session, the user and the priority of its parent. One that has not ended when its parent does is cancelled.
func Start[T any](d *Durable, name, tool string, input any) *Child[T] {
	return start[T](d, name, tool, func() (json.RawMessage, error) {
		encoded, err := encode(input)
		if err != nil {
			return nil, &Failure{Code: "validation_error", Message: fmt.Sprintf("The input of %s, for %s, is not one: %v", name, tool, err)}
		}
		return encoded, nil
	})
}

// Tool is one of which a handler may make calls.
type Tool struct {
	Name, Description string
	// InputSchema is a JSON Schema.
	InputSchema json.RawMessage
	// Closed says why the user whose call the handler serves may not call the tool, as in "needs the permission send:sms". It is empty where
	// that user may, and for a call that no user made with a token. [Start] does not ask for it: see [StartWith].
	Closed string
}

// Tools returns the tools of which the call's handler may make calls, ordered as in the registry, as this worker's registry has them now: a
// handler that decides by them does so in a step, or in the input of [StartWith].
func Tools(d *Durable) []Tool { return d.journal.Tools() }

// StartWith is [Start] with a function that returns the input, called only when the call is made. An error of input replaces the
// call: it is kept, and Wait returns it in every run. Use it for calls that a model or a document chooses, and not the handler's code:
// whether such a call is allowed is checked only when it begins. A question that it asks counts as a user's, and not as the
// handler's: users' limits apply to it, and people see that the handler chose neither its text nor the people to ask.
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

// Receive asks for an answer to this very call, under a name: what public.answer_tool_call, `gem answer` or client.Answer gives it. An answer
// that came before is there. The answer is JSON of at most 64 KiB, which nobody has checked, and is read as a T. [Ask] asks a question with
// a schema instead.
func Receive[T any](d *Durable, name string) *Child[T] {
	c := &Child[T]{call: d, id: d.ID, field: "value"}
	c.name, c.err = d.journal.Receive(name)
	return c
}

// ID returns the id of the call, also before it is sent: for [Receive], that of the handler's own. It is empty for one that may not be made.
func (c *Child[T]) ID() string { return c.id }

// Within limits the time that the child is waited for, from when the call first waits for it and has to: [Child.Wait] then returns [ErrTimeout],
// from then on. The child goes on until its parent ends.
func (c *Child[T]) Within(t time.Duration) *Child[T] {
	c.within = max(t, time.Millisecond)
	return c
}

// Until limits it to a time, by Postgres's clock: [Child.Wait] then returns [ErrTimeout].
func (c *Child[T]) Until(t time.Time) *Child[T] {
	c.until = &t
	return c
}

// Wait waits for the child's end and returns its result: while it waits, the call is in no process. The error is that of the child's
// receipt, as a [Failure] or a [NotConfigured]; ErrTimeout; or that of ctx.
//
// Only the goroutine of the handler may wait, and not inside of a step. It may be run anew when the child has ended: Wait need not return.
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

// result is what came, which is there.
func (c *Child[T]) result() (result T, err error) {
	came, _ := c.call.journal.Came(c.name)
	if came.Err != nil {
		return result, came.Err
	}
	encoded := came.Result
	if c.field != "" {
		var fields map[string]json.RawMessage
		if err = json.Unmarshal(encoded, &fields); err == nil {
			encoded = fields[c.field]
		}
	}
	if err == nil {
		err = json.Unmarshal(encoded, &result)
	}
	if err != nil && c.field == "value" { // nobody has checked it
		return result, &Failure{Code: "answer_does_not_fit", Message: fmt.Sprintf("The answer does not fit %T: %v", result, err)}
	}
	if err != nil {
		c.call.journal.DoesNotFit(c.name, fmt.Sprintf("The result of the call %s does not fit %T: %v", c.id, result, err))
	}
	return result, nil
}

// By returns who gave the answer, and when, of a [Receive] or an [Ask] whose Wait has returned: the `sub` of a token, service_role, or a role
// of Postgres. It is empty where there is no answer.
func (c *Child[T]) By() (subject string, at time.Time) {
	var answer struct {
		By string
		At time.Time
	}
	if came, ok := c.call.journal.Came(c.name); ok && came.Err == nil {
		_ = json.Unmarshal(came.Result, &answer)
	}
	return answer.By, answer.At
}

func (c *Child[T]) awaits() (*Durable, Await, error) {
	return c.call, Await{c.name, c.within, c.until}, c.err
}

// All waits until all have come, whatever they came to. Its error is that of ctx.
func All[C Awaited](ctx context.Context, of ...C) error {
	d, names, _ := awaited(of)
	if len(names) == 0 {
		return nil
	}
	return d.journal.Wait(ctx, len(names), names)
}

// First waits until one has come, and returns which of them came first: the same in every run. Its error is that of ctx. It needs at
// least one.
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
		if came, ok := d.journal.Came(n.Name); ok && (at == 0 || came.Seq < at) {
			first, at = i, came.Seq
		}
	}
	return first, nil
}

// awaited returns what is to be waited for, and the place of the first that cannot be made, or -1.
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

// Sleep waits for some time, at most 366 days, from when the handler first comes here. While it waits, the call is in no process. Its
// error is that of ctx.
func Sleep(ctx context.Context, d *Durable, name string, t time.Duration) error {
	name, err := d.journal.Timer(name)
	if err == nil && t > maxSleep {
		err = &Failure{Message: fmt.Sprintf("The handler sleeps for %s under the name %s, and may for 366 days.", t, name)}
	}
	if err != nil {
		return err
	}
	return d.journal.Wait(ctx, 1, []Await{{Name: name, Within: max(t, time.Millisecond)}})
}

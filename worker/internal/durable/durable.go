// Package durable runs a durable handler with the journal of its call: it returns the results in the journal, and runs
// and records the missing operations. A [Run] needs a [Journal] with the events of earlier attempts, a [Writer] whose
// statements add events, and a [Clock].
//
// A run does not end its call. If it cannot continue, it leaves with an [Exit], and the worker decides how the attempt
// ends and records the end.
package durable

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/registry"
	"golang.org/x/sync/semaphore"
)

// The limits of a call's steps.
const (
	maxStepName   = 200      // characters
	maxStepResult = 1 << 20  // bytes of JSON
	maxSteps      = 10_000   // events
	maxStepBytes  = 64 << 20 // bytes of JSON, of all steps
)

// Options configure a run.
type Options struct {
	Journal *Journal // the run owns it from now on
	Writer  Writer
	Clock   Clock

	Call     *handlers.Call // the handler records its effects here
	Tool     *registry.Tool
	Registry *registry.Registry // has the tools that the handler may call, if Tool permits it

	Age          time.Duration // of the call, since it was due
	Cancelled    bool          // the call's cancellation was requested
	CancelledFor time.Duration // since that request
	Spent        int           // attempts since the call's last progress
	MaxAttempts  int

	// Stopping reports whether the worker is stopping, so that nothing new may begin.
	Stopping func() bool
	// Open returns how long a call that the handler makes may wait for an answer without being claimed. It returns 0 for a
	// call that is not a question, or that a worker must claim first. Default: nil, always 0.
	Open func(id, tool string, input json.RawMessage) time.Duration
	// Traceparent is the trace context of the calls that the handler makes. Default: nil, none.
	Traceparent func() string
	// Replay ends the run at the first operation that the journal lacks. Nothing is written.
	Replay bool
}

// Run is one attempt of a durable call. It is the [handlers.Journal] of the handler.
type Run struct {
	options Options
	life    life
	course  course
	pen     pen
	calls   calls

	cancellations cancellations
}

// New returns a run that has not begun.
func New(o Options) *Run {
	r := &Run{options: o}
	r.life.clock, r.life.timeout, r.life.cancelledFor = o.Clock, o.Tool.Timeout, o.CancelledFor
	r.course.options, r.course.journal, r.course.life = &r.options, o.Journal, &r.life
	r.course.turns = semaphore.NewWeighted(allTurns)
	r.pen.course, r.pen.writer = &r.course, o.Writer
	r.pen.open, r.pen.close = context.WithCancel(context.Background())
	r.calls.course, r.calls.pen = &r.course, &r.pen
	r.cancellations.course, r.cancellations.pen = &r.course, &r.pen
	return r
}

// Begin returns the context of the handler. claimed ends when the call's cancellation is requested, or with the
// attempt. life ends only with the attempt, and end ends it.
func (r *Run) Begin(claimed, life context.Context, end context.CancelCauseFunc) context.Context {
	return r.life.begin(claimed, life, end, r.options.Tool.Deadline-r.options.Age, r.options.Cancelled)
}

// Life returns the context of the whole run: the handler may clean up until it ends.
func (r *Run) Life() context.Context { return r.life.whole }

// Stop ends the handler's open operations. It returns the end of the attempt if it ended before the handler had
// returned, and nil otherwise. Nothing more is written for the steps of this attempt.
func (r *Run) Stop() *Exit {
	r.life.end(nil)
	r.pen.close()
	r.pen.writing.Lock()
	defer r.pen.writing.Unlock()
	r.life.stop()
	return r.course.stop()
}

// Summary returns the receipt's summary of the journal and of this run.
func (r *Run) Summary() Summary {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	s := r.options.Journal.Summary()
	s.Effects.Add(r.course.tried)
	s.Effects.Add(r.course.outside)
	unread := r.options.Journal.unread()
	s.Durable.Unread = unread[:min(len(unread), maxUnread)]
	return s
}

// maxUnread limits the names on a receipt.
const maxUnread = 100

// Unread returns the names in the journal that earlier runs reached and this run did not.
func (r *Run) Unread() []string {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	return r.options.Journal.unread()
}

// NotKept returns the effects that are not in the journal and that no later run records again, or nil if there are
// none.
func (r *Run) NotKept() json.RawMessage {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	if encoded := encodeEffects(r.course.tried); string(encoded) != "{}" {
		return encoded
	}
	return nil
}

// Spent returns the number of attempts that the call has spent since its last progress.
func (r *Run) Spent() int { return r.course.spent() }

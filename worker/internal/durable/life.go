package durable

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
)

// Clock runs functions later.
type Clock interface {
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a timer like that of [time.AfterFunc].
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// SystemClock is the clock of the machine.
type SystemClock struct{}

// AfterFunc calls [time.AfterFunc].
func (SystemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// CleanUpTime is how long a handler may clean up after its call's cancellation was requested: see gem.wait.
const CleanUpTime = time.Hour

// life has the time limits of a run.
type life struct {
	clock        Clock
	timeout      time.Duration
	cancelledFor time.Duration

	whole   context.Context // ends when the handler has made no progress for the tool's timeout
	end     context.CancelCauseFunc
	handler context.Context // ends with whole, and when the call's cancellation is requested
	cancel  context.CancelCauseFunc
	timer   Timer // of the timeout

	mu       sync.Mutex
	last     time.Time // of progress
	limits   []Timer   // the deadline, and the end of the clean-up
	cleaning bool      // the call's cancellation was requested
	stopped  bool
}

// begin returns the context of the handler. left is the time until the call's deadline.
func (l *life) begin(claimed, whole context.Context, end context.CancelCauseFunc, left time.Duration,
	cancelled bool) context.Context {
	l.whole, l.end = whole, end
	l.handler, l.cancel = context.WithCancelCause(whole)
	l.timer, l.last = l.clock.AfterFunc(l.timeout, func() { l.end(context.DeadlineExceeded) }), time.Now()
	l.endIn(left, ErrDeadline)
	context.AfterFunc(claimed, func() {
		if errors.Is(context.Cause(claimed), handlers.ErrCancelled) {
			l.cleanUp()
		}
	})
	if cancelled {
		l.cleanUp()
	}
	return l.handler
}

// cleanUp ends the handler's context, and leaves the handler some time to clean up.
func (l *life) cleanUp() {
	l.cancel(handlers.ErrCancelled)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cleaning && !l.stopped {
		l.cleaning = true
		l.endIn(CleanUpTime-l.cancelledFor, handlers.ErrCancelled)
	}
}

// cleansUp reports whether the call's cancellation was requested.
func (l *life) cleansUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cleaning
}

// asked records that Postgres did nothing because the call's cancellation was requested. For a clean-up, this means
// that its time is over.
func (l *life) asked(cleansUp bool) {
	l.cleanUp()
	if cleansUp {
		l.end(handlers.ErrCancelled)
	}
}

// endIn ends the run after some time, or at once if no time is left.
func (l *life) endIn(left time.Duration, cause error) {
	if left <= 0 {
		l.end(cause)
		return
	}
	l.limits = append(l.limits, l.clock.AfterFunc(left, func() { l.end(cause) }))
}

// progress restarts the tool's timeout.
func (l *life) progress() {
	l.timer.Reset(l.timeout)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = time.Now()
}

// left returns the time until the timeout.
func (l *life) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.timeout - time.Since(l.last)
}

// within returns the context of a step: it ends with the run, and is marked as the context of a step.
func (l *life) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, inStep{}, true))
	stop := context.AfterFunc(l.whole, func() { cancel(context.Cause(l.whole)) })
	return ctx, func() { stop(); cancel(nil) }
}

// stop stops the timers.
func (l *life) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	for _, limit := range l.limits {
		limit.Stop()
	}
	l.stopped = true
}

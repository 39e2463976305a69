package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"go.uber.org/zap"
)

// reactionTime is what a handler gets to return after its context has ended.
const reactionTime = time.Second

// apart runs f in another goroutine, one that has run such functions before if any is free: a new one grows its stack anew.
func (w *Worker) apart(f func()) {
	select {
	case w.handed <- f:
	default:
		go func() {
			f()
			for f := range w.handed {
				f()
			}
		}()
	}
}

// within runs f apart and reports whether it has returned, soon after the end of ctx at the latest. One that has not is given up: it
// costs its goroutine, and nobody must read what it writes.
func (w *Worker) within(ctx context.Context, f func()) bool {
	returned := make(chan struct{})
	w.apart(func() {
		defer close(returned)
		f()
	})
	select {
	case <-returned:
		return true
	case <-ctx.Done():
	}
	select {
	case <-returned:
		return true
	case <-time.After(reactionTime):
		return false
	}
}

// checkInput ends a call whose input does not fit, or takes longer to check than its tool may run.
func (a *attempt) checkInput(ctx context.Context) *end {
	ctx, cancel := context.WithTimeout(ctx, a.tool.Timeout)
	defer cancel()
	var faults []registry.Fault
	checked := a.within(ctx, func() { faults = a.tool.ValidateInput(a.Input) })
	switch cause := context.Cause(ctx); {
	case checked && len(faults) > 0:
		return a.invalidInput(faults)
	case checked:
		return nil
	case errors.Is(cause, errNotHeld):
		return &end{how: notHeld}
	case errors.Is(cause, errStopping):
		return &end{how: released}
	case errors.Is(cause, errCancelled) && a.Losses == 0:
		return a.cancelledBefore()
	}
	return a.invalidInput([]registry.Fault{{Keyword: "size",
		Message: fmt.Sprintf("the check took longer than the tool's %s: send less, or nest it less", a.tool.Timeout)}})
}

// runHandler runs the handler apart, checks its output there, and returns it. What a handler does that was given up reaches neither
// the transaction nor the receipt.
func (a *attempt) runHandler(ctx context.Context) (json.RawMessage, error) {
	type result struct {
		output json.RawMessage
		err    error
	}
	r := result{err: &panicked{value: "the handler ended its goroutine"}} // unless it returns, or panics
	if a.within(ctx, func() {
		defer func() {
			if v := recover(); v != nil {
				a.log.Error("the handler panicked",
					a.fields(zap.String("panic", value.Shorten(fmt.Sprint(v), 500)), zap.ByteString("stack", debug.Stack()))...)
				r = result{err: &panicked{value: v}}
			}
		}()
		output, err := a.handler.Run(ctx, a.tx, a.call)
		examine(err)
		if err == nil {
			if faults := a.tool.ValidateOutput(output); len(faults) > 0 {
				err = &invalidOutput{tool: a.tool.Name, faults: faults}
			}
		}
		r = result{output, err}
	}) {
		return r.output, r.err
	}
	a.log.Error("the handler ignores that its context has ended: it is given up",
		a.fields(zap.String("handler", a.handler.Func), zap.String("file", a.handler.File))...)
	return nil, ctx.Err()
}

// examine reads all that a receipt needs of a handler's error. An error may panic when it is read, such as a nil pointer: here that
// is a panic of the handler.
func examine(err error) {
	var (
		failure       *handlers.Failure
		notConfigured *handlers.NotConfigured
		unencodable   *handlers.OutputError
		details       any
	)
	if err == nil {
		return
	}
	if errors.As(err, &failure) {
		details = failure.Details
	}
	if errors.As(err, &notConfigured) {
		details = notConfigured.Reason
	}
	if errors.As(err, &unencodable) {
		details = unencodable.Error()
	}
	_ = receipts.Failure(receipts.ExecutionError, err.Error(), details)
}

// panicked is the error of a handler that panicked.
type panicked struct{ value any }

func (e *panicked) Error() string { return fmt.Sprint(e.value) }

// invalidOutput is the error of an output that the tool's schema forbids.
type invalidOutput struct {
	tool   string
	faults []registry.Fault
}

func (e *invalidOutput) Error() string {
	return fmt.Sprintf("The output of %s does not fit its schema.", e.tool)
}

// unstorable is the error of an outcome that Postgres refuses to store.
type unstorable struct {
	tool string
	err  error
}

func (e *unstorable) Error() string {
	return fmt.Sprintf("Postgres cannot store the receipt of %s: %s", e.tool, publicMessage(e.err))
}

func (e *unstorable) Unwrap() error { return e.err }

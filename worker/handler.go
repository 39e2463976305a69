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

// runHandler runs the handler apart and returns its output. A handler that ignores the end of its context is given up: it costs
// its goroutine, and what it does later reaches neither the transaction nor the receipt.
func (a *attempt) runHandler(ctx context.Context) (json.RawMessage, error) {
	type result struct {
		output json.RawMessage
		err    error
	}
	returned := make(chan result, 1)
	a.apart(func() {
		r := result{err: &panicked{value: "the handler ended its goroutine"}} // unless it returns, or panics
		defer func() {
			if v := recover(); v != nil {
				a.log.Error("the handler panicked",
					a.fields(zap.String("panic", value.Shorten(fmt.Sprint(v), 500)), zap.ByteString("stack", debug.Stack()))...)
				r = result{err: &panicked{value: v}}
			}
			returned <- r
		}()
		output, err := a.handler.Run(ctx, a.tx, a.call)
		examine(err)
		r = result{output, err}
	})
	select {
	case r := <-returned:
		return r.output, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-returned:
		return r.output, r.err
	case <-time.After(reactionTime):
		a.log.Error("the handler ignores that its context has ended: it is given up",
			a.fields(zap.String("handler", a.handler.Func), zap.String("file", a.handler.File))...)
		return nil, ctx.Err()
	}
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

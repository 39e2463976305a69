package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker/internal/plain"
	"go.uber.org/zap"
)

// reactionTime is the time for a handler to return after its context has ended.
const reactionTime = time.Second

// apart runs f in another goroutine. It reuses an idle goroutine if possible, because a new one must grow its stack.
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

// within runs f in another goroutine and reports whether it has returned. It returns soon after the end of ctx at the
// latest. It then abandons f: the goroutine is lost, and the variables that f writes must not be read.
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

// runHandler runs the handler in another goroutine, checks its output, and returns it. An abandoned handler can change
// neither the transaction nor the receipt.
func (a *attempt) runHandler(ctx context.Context) (json.RawMessage, error) {
	type result struct {
		output json.RawMessage
		err    error
		faults []receipts.Fault
		left   bool // the output may be expensive to check
	}
	r := result{err: &panicError{"the handler ended its goroutine"}} // unless it returns, or panics
	life := ctx
	if a.handler.Durable {
		life = a.steps.Life() // it may clean up
	}
	returned := a.worker.within(life, func() {
		defer func() {
			if v := recover(); v != nil {
				text := printed(v)
				a.worker.log.Error("the handler panicked", a.fields(zap.String("panic", text),
					zap.ByteString("stack", debug.Stack()))...)
				r = result{err: &panicError{text}}
			}
		}()
		output, err := a.handler.Run(ctx, a.call, a.tx, a.steps)
		if a.handler.Durable {
			a.steps.Returned()
		}
		next := result{output: output, err: plain.Error(err, a.claim.CallID)}
		if err == nil {
			next.faults, next.left = a.tool.CheckOutput(output, false)
		}
		r = next
	})
	a.cause = context.Cause(ctx)
	if end := context.Cause(life); errors.Is(end, errStopping) || errors.Is(end, errNotHeld) {
		a.cause = end
	}
	switch {
	case !returned:
		a.worker.log.Error("the handler ignores the end of its context, and is abandoned",
			a.fields(zap.String("handler", a.handler.Func), zap.String("file", a.handler.File))...)
		return nil, life.Err()
	case r.err != nil:
		return nil, r.err
	}
	if r.left {
		return r.output, a.checkOutput(life, r.output)
	}
	return r.output, a.unfit(r.faults)
}

// rollback ends the handler's transaction, and returns the error that broke it, as a plain error, because one of the
// handler's arguments may have caused it.
func (a *attempt) rollback() error {
	broken := a.tx.Rollback()
	if broken == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), reactionTime)
	defer cancel()
	var read error
	if a.worker.within(ctx, func() {
		defer func() { _ = recover() }()
		read = plain.Error(broken, a.claim.CallID)
		for _, ours := range []error{lanes.ErrNoConnection, lanes.ErrNoTransaction} {
			if errors.Is(broken, ours) {
				read = ours
			}
		}
	}) && read != nil {
		return read
	}
	return errors.New("a statement failed with an error that cannot be read")
}

// panicError is the error of a handler that panicked.
type panicError struct{ text string }

func (e *panicError) Error() string { return e.text }

// printed returns the text of a panic's value. Printing the value may also panic.
func printed(v any) (text string) {
	defer func() {
		if recover() != nil {
			text = "its value panics when it is printed"
		}
	}()
	switch reflect.ValueOf(v).Kind() {
	case reflect.Map, reflect.Slice, reflect.Array, reflect.Struct, reflect.Pointer, reflect.Interface:
		if _, speaks := v.(error); !speaks { // printing the value may never end
			return fmt.Sprintf("a value of type %T", v)
		}
	}
	return receipts.Shorten(fmt.Sprint(v), 500)
}

// invalidOutput is the error of an output that does not match the tool's schema.
type invalidOutput struct {
	tool   string
	faults []receipts.Fault
}

func (e *invalidOutput) Error() string {
	return fmt.Sprintf("The output of %s does not fit its schema.", e.tool)
}

// unstorable is the error of an outcome that Postgres cannot store.
type unstorable struct {
	tool string
	err  error
}

func (e *unstorable) Error() string {
	return fmt.Sprintf("Postgres cannot store the receipt of %s: %s", e.tool, plain.OwnMessage(e.err))
}

func (e *unstorable) Unwrap() error { return e.err }

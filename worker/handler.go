package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/lanes"
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

// runHandler runs the handler apart, checks its output, and returns it. What a handler does that was given up reaches neither the
// transaction nor the receipt.
func (a *attempt) runHandler(ctx context.Context) (json.RawMessage, error) {
	type result struct {
		output json.RawMessage
		err    error
		faults []registry.Fault
		left   bool // the output may be expensive to check
	}
	r := result{err: &panicked{"the handler ended its goroutine"}} // unless it returns, or panics
	life := ctx
	if a.handler.Durable {
		life = a.steps.life // it may clean up
	}
	returned := a.within(life, func() {
		defer func() {
			if v := recover(); v != nil {
				text := printed(v)
				a.log.Error("the handler panicked", a.fields(zap.String("panic", text), zap.ByteString("stack", debug.Stack()))...)
				r = result{err: &panicked{text}}
			}
		}()
		output, err := a.handler.Run(ctx, a.call, a.tx, a.steps)
		next := result{output: output, err: plain(err, a.CallID)}
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
		a.log.Error("the handler ignores that its context has ended: it is given up",
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

// plain copies the parts of an error that are used: the type, the texts, and whether the next attempt may succeed. An error may panic
// when it is read, such as a nil pointer, or never return: it is read only here, where that counts as the handler's fault. An error of
// Postgres that the handler did not turn into a failure becomes one with the reference.
func plain(err error, reference string) error {
	var (
		notConfigured *handlers.NotConfigured
		unencodable   *handlers.OutputError
		failure       *handlers.Failure
		copied        error
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &notConfigured):
		c := *notConfigured
		copied = &c
	case errors.As(err, &unencodable):
		copied = &handlers.OutputError{Err: errors.New(unencodable.Err.Error())}
	case errors.As(err, &failure):
		copied = &handlers.Failure{Code: failure.Code, Message: failure.Message,
			Details: advised(receipts.CleanDetails(failure.Details), failure.Advice), Context: failure.Context}
	case refusedBy(err) != nil:
		copied = refusal(err, reference)
	default:
		copied = errors.New(publicMessage(err))
	}
	switch {
	case nothingSent(err):
		return handlers.NothingSent(copied, pauseOf(err))
	case isTransient(err):
		return handlers.TransientAfter(copied, pauseOf(err))
	}
	return copied
}

// advised returns details with the advice of a failure. Details from remote services may contain advice, too. Unknown advice is dropped.
func advised(details json.RawMessage, advice handlers.Advice) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if string(details) != "null" && json.Unmarshal(details, &fields) != nil {
		if !advice.Valid() {
			return details
		}
		fields = map[string]json.RawMessage{"details": details}
	}
	if !advice.Valid() {
		given, there := fields["advice"]
		if !there || json.Unmarshal(given, &advice) == nil && advice.Valid() {
			return details
		}
		delete(fields, "advice")
	} else {
		fields["advice"] = json.RawMessage(strconv.Quote(string(advice)))
	}
	return receipts.CleanDetails(fields)
}

// rollback ends the handler's transaction, and returns the error that broke it. It is plain: an argument of the handler's may have
// made it.
func (a *attempt) rollback() error {
	broken := a.tx.Rollback()
	if broken == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), reactionTime)
	defer cancel()
	var read error
	if a.within(ctx, func() {
		defer func() { _ = recover() }()
		read = plain(broken, a.CallID)
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

// panicked is the error of a handler that panicked.
type panicked struct{ text string }

func (e *panicked) Error() string { return e.text }

// printed is the text of a panic's value, which may panic itself.
func printed(v any) (text string) {
	defer func() {
		if recover() != nil {
			text = "its value panics when it is printed"
		}
	}()
	switch reflect.ValueOf(v).Kind() {
	case reflect.Map, reflect.Slice, reflect.Array, reflect.Struct, reflect.Pointer, reflect.Interface:
		if _, speaks := v.(error); !speaks { // printing it may never end
			return fmt.Sprintf("a value of type %T", v)
		}
	}
	return value.Shorten(fmt.Sprint(v), 500)
}

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
	return fmt.Sprintf("Postgres cannot store the receipt of %s: %s", e.tool, ownMessage(e.err))
}

func (e *unstorable) Unwrap() error { return e.err }

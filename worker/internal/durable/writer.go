package durable

import (
	"context"
	"fmt"
	"sync"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker/internal/plain"
)

// Writer runs the statements of a run. Each statement names the attempt, and fails if the attempt no longer holds its
// call.
type Writer struct {
	Attempt store.Attempt
	Key     string // the key that the attempt holds
	DB      store.DB
	Lanes   *lanes.Lanes
	// Persist repeats a statement until Postgres has executed or rejected it, or the worker has stopped.
	Persist func(ctx context.Context, doing string, statement func(context.Context) error) error
	// Began is called after the beginning of a step that must not run twice was written. Default: nil.
	Began func(name string)
	// At is called before and after each write and each step. Tests end the process there.
	At func(when, what string)
}

// step writes an event of a step. before is the number of earlier events of steps in the journal.
func (w *Writer) step(ctx context.Context, s store.Step, before int) error {
	tries := 0
	s.Key = w.Key
	w.At("before", s.Event)
	err := w.Persist(ctx, "write a step", func(ctx context.Context) error {
		tries++
		return w.Lanes.Write(ctx, s.Statement(w.Attempt, before, tries > 1))
	})
	w.At("after", s.Event)
	return err
}

// commit writes an event of a step and commits its transaction. written means that Postgres accepted the event, so that
// the error belongs to the commit.
func (w *Writer) commit(tx *lanes.Tx, s store.Step, before int) (written bool, err error) {
	s.Key = w.Key
	w.At("before", s.Event)
	written, err = tx.Finish(s.Statement(w.Attempt, before, false))
	w.At("after", s.Event)
	return written, err
}

// hasStep reports whether a step has committed.
func (w *Writer) hasStep(ctx context.Context, name string) (there bool, err error) {
	err = w.Persist(ctx, "look for a step", func(ctx context.Context) (err error) {
		there, err = store.HasStep(ctx, w.DB, w.Attempt, name)
		return err
	})
	return there, err
}

// token returns the token of the attempt for exchanges.
func (w *Writer) token(ctx context.Context) (token string, err error) {
	err = w.Persist(ctx, "make a token", func(ctx context.Context) (err error) {
		token, err = store.ExchangeToken(ctx, w.DB, w.Attempt)
		return err
	})
	return token, err
}

// journal reads the whole journal. It first waits for transactions of the attempt that are about to commit.
func (w *Writer) journal(ctx context.Context) (steps int, events []store.Event, err error) {
	err = w.Persist(ctx, "read the journal", func(ctx context.Context) (err error) {
		if steps, err = store.StepsOf(ctx, w.DB, w.Attempt); err == nil {
			events, err = store.Steps(ctx, w.DB, w.Attempt.CallID)
		}
		return err
	})
	return steps, events, err
}

// wait makes calls and waits, in one statement, and returns the new number of events of steps in the journal.
func (w *Writer) wait(ctx context.Context, of store.Wait) (verdict store.WaitVerdict, events int, err error) {
	of.Key = w.Key
	w.At("before", "wait")
	err = w.Persist(ctx, "wait", func(ctx context.Context) (err error) {
		verdict, events, err = of.Do(ctx, w.DB, w.Attempt)
		return err
	})
	w.At("after", "wait")
	return verdict, events, err
}

// arrivals reads the arrivals after an event.
func (w *Writer) arrivals(ctx context.Context, after int) (events []store.Event, err error) {
	err = w.Persist(ctx, "read what arrived", func(ctx context.Context) (err error) {
		events, err = store.Came(ctx, w.DB, w.Attempt.CallID, after)
		return err
	})
	return events, err
}

// result reads the result of a child.
func (w *Writer) result(ctx context.Context, callID string) (store.Event, error) {
	var found map[string]store.Event
	err := w.Persist(ctx, "read a result", func(ctx context.Context) (err error) {
		found, err = store.Results(ctx, w.DB, []string{callID})
		return err
	})
	return found[callID], err
}

// pen holds the writer while the attempt waits for the handler. It writes one event at a time, because each event
// contains the number of earlier ones. [Run.Stop] closes the pen, and waits for the current write.
type pen struct {
	course  *course
	writer  Writer
	writing sync.Mutex
	open    context.Context
	close   context.CancelFunc
}

// write writes an event of a step in a separate transaction. It returns an error if Postgres rejects the data.
func (p *pen) write(event string, data *stepData) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.leaveIfClosed()
	encoded := data.encode()
	err := p.writer.step(p.open, store.Step{Event: event, Data: encoded}, p.course.events())
	if err == nil {
		p.course.wrote(event, data, receipts.PrintedSize(encoded))
		if event == store.StepBegan && p.writer.Began != nil {
			p.writer.Began(data.Name)
		}
		return nil
	}
	p.leaveUnlessRefused(err)
	return unstorable(data, err)
}

// wait makes calls and waits, in one statement. It returns an error if Postgres rejects the data.
func (p *pen) wait(w store.Wait) (store.WaitVerdict, error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.leaveIfClosed()
	w.Steps = p.course.events()
	verdict, events, err := p.writer.wait(p.open, w)
	if err != nil {
		p.leaveUnlessRefused(err)
		return "", err
	}
	p.course.counted(events)
	return verdict, nil
}

// leaveIfClosed ends the attempt if it no longer waits for the handler.
func (p *pen) leaveIfClosed() {
	if p.open.Err() != nil {
		p.course.leave(nil)
	}
}

// leaveIfUnread ends the attempt if the journal could not be read. The next attempt reads it.
func (p *pen) leaveIfUnread(err error) {
	p.leaveIfClosed()
	if err != nil {
		p.course.leave(&Exit{Why: Released})
	}
}

// leaveUnlessRefused ends the attempt after an error of a statement that moves its call. It returns only if Postgres
// rejects the values.
func (p *pen) leaveUnlessRefused(err error) {
	switch {
	case store.IsNotHeld(err):
		p.course.leave(&Exit{Why: NotHeld})
	case p.open.Err() != nil:
		p.course.leave(nil)
	case !store.IsRefusal(err):
		p.course.leave(&Exit{Why: LeftToRecovery, Err: err})
	}
}

func unstorable(data *stepData, err error) error {
	return &handlers.Failure{Code: string(receipts.OutputInvalid),
		Message: fmt.Sprintf("Postgres cannot store the result of the step %s: %s", data.Name, plain.OwnMessage(err))}
}

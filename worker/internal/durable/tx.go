package durable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker/internal/plain"
)

// doTx runs the step in a transaction, and commits it with the step's result.
func (s *step) doTx(ctx context.Context,
	do func(context.Context, handlers.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
	course, writer := &s.run.course, &s.run.pen.writer
	ctx, tx := writer.Lanes.Begin(ctx, s.run.options.Tool.Timeout)
	course.mu.Lock()
	course.tx = tx
	stopped := course.stopped
	course.mu.Unlock()
	ended := false
	defer func() {
		if !ended { // the step panicked, or ended its goroutine
			_ = s.rollback(tx)
		}
	}()
	if stopped {
		course.leave(nil)
	}
	writer.At("before", "work")
	result, err := do(ctx, tx)
	writer.At("after", "work")
	result, err = s.fit(result, err)
	if err == nil && tx.Open() {
		if err = s.commit(tx, result); err == nil {
			ended = true
			return s.data.outcome()
		}
	}
	ended = true
	if broken := s.rollback(tx); err != nil && plain.IsTransient(broken) {
		err = handlers.Transient(err)
	}
	return s.keep(ctx, result, err)
}

// rollback ends a transaction that did not commit, and drops the rows that were recorded for it.
func (s *step) rollback(tx *lanes.Tx) error {
	broken := tx.Rollback()
	course := &s.run.course
	course.mu.Lock()
	defer course.mu.Unlock()
	course.tx = nil
	if !course.stopped {
		course.pending = course.takePending()
		course.pending.DBWrites = nil
	}
	return broken
}

// commit writes the end of the step and commits its transaction, or returns the error that prevented this.
func (s *step) commit(tx *lanes.Tx, result json.RawMessage) error {
	course, pen := &s.run.course, &s.run.pen
	pen.writing.Lock()
	defer pen.writing.Unlock()
	pen.leaveIfClosed()
	s.data.describe(result, nil)
	course.mu.Lock()
	effects := course.takePending()
	course.pending = effects // until the step is written
	course.mu.Unlock()
	s.data.Effects = encodeEffects(effects)
	encoded := s.data.encode()
	size := receipts.PrintedSize(encoded)
	written, err := pen.writer.commit(tx, store.Step{Event: store.StepEnded, Data: encoded}, course.events())
	if err == nil {
		s.committed(size)
		return nil
	}
	broken := tx.Rollback()
	switch {
	case store.IsNotHeld(err):
		course.leave(&Exit{Why: NotHeld})
	case !written && store.IsRefusal(err):
		err = unstorable(&s.data, err)
	case written && store.IsRefusal(err): // a deferred constraint
		err = s.plain(err)
	case errors.Is(err, lanes.ErrBroken) && !plain.IsTransient(broken):
		err = s.plain(fmt.Errorf("the step %s %w: %w", s.data.Name, lanes.ErrBroken, broken))
	case errors.Is(err, lanes.ErrStatementOpen) || errors.Is(broken, lanes.ErrNoTransaction):
		err = s.plain(fmt.Errorf("the step %s: %w", s.data.Name, errors.Join(err, broken)))
	case s.isThere():
		s.committed(size)
		return nil
	default: // if it still reaches Postgres, it fails: another event or another attempt has taken its place
		err = handlers.Transient(s.plain(err))
	}
	return err
}

// committed records that the step committed with its transaction.
func (s *step) committed(size int) {
	course := &s.run.course
	course.mu.Lock()
	course.journal.kept.Add(course.takePending())
	course.tx = nil
	course.mu.Unlock()
	course.wrote(store.StepEnded, &s.data, size)
}

// isThere checks whether the step has committed, after the answer was lost.
func (s *step) isThere() bool {
	course, pen := &s.run.course, &s.run.pen
	there, err := pen.writer.hasStep(pen.open, s.data.Name)
	switch {
	case store.IsNotHeld(err):
		course.leave(&Exit{Why: NotHeld})
	case pen.open.Err() != nil:
		course.leave(nil)
	case err != nil:
		course.leave(&Exit{Why: LeftToRecovery, Err: err})
	}
	return there
}

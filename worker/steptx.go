package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
)

// runTx runs a step in a transaction, and commits it with the step's result.
func (s *steps) runTx(ctx context.Context, data stepData, do func(context.Context, handlers.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
	ctx, tx := s.lanes.Begin(ctx, s.tool.Timeout)
	s.mu.Lock()
	s.tx = tx
	stopped := s.stopped
	s.mu.Unlock()
	ended := false
	defer func() {
		if !ended { // the step panicked, or ended its goroutine
			_ = s.rollback(tx)
		}
	}()
	if stopped {
		s.leave(nil)
	}
	s.at("before", "work")
	result, err := do(ctx, tx)
	s.at("after", "work")
	err = s.fit(data, result, err)
	if err == nil && tx.Open() {
		if err = s.commit(tx, &data, result); err == nil {
			ended = true
			return data.outcome()
		}
	}
	ended = true
	if broken := s.rollback(tx); err != nil && isTransient(broken) {
		err = handlers.Transient(err)
	}
	return s.keep(ctx, data, result, err)
}

// rollback ends a transaction that did not commit, and forgets the rows that were recorded for it.
func (s *steps) rollback(tx *lanes.Tx) error {
	broken := tx.Rollback()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tx = nil
	if !s.stopped {
		s.pending = s.takePending()
		s.pending.DBWrites = nil
	}
	return broken
}

// commit writes the end of a step and commits its transaction. It returns the error for which that did not happen.
func (s *steps) commit(tx *lanes.Tx, data *stepData, result json.RawMessage) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.open.Err() != nil {
		s.leave(nil)
	}
	data.describe(result, nil)
	s.mu.Lock()
	effects := s.takePending()
	s.pending = effects // until the step is kept
	s.mu.Unlock()
	data.Effects = encodeEffects(effects)
	encoded := data.encode()
	s.at("before", store.StepEnded)
	written, err := tx.Finish(store.Step{Event: store.StepEnded, Data: encoded}.Statement(s.Attempt, s.before(), false))
	s.at("after", store.StepEnded)
	if err == nil {
		s.committed(data, len(encoded))
		return nil
	}
	broken := tx.Rollback()
	switch {
	case store.IsNotHeld(err):
		s.leave(&end{how: notHeld})
	case !written && store.IsRefusal(err):
		err = s.unstorable(data, err)
	case written && store.IsRefusal(err): // a deferred constraint
		err = plain(err, s.CallID)
	case errors.Is(err, lanes.ErrBroken) && !isTransient(broken):
		err = plain(fmt.Errorf("the step %s %w: %w", data.Name, lanes.ErrBroken, broken), s.CallID)
	case errors.Is(err, lanes.ErrStatementOpen) || errors.Is(broken, lanes.ErrNoTransaction):
		err = plain(fmt.Errorf("the step %s: %w", data.Name, errors.Join(err, broken)), s.CallID)
	case s.isThere(data.Name):
		s.committed(data, len(encoded))
		return nil
	default: // if it commits all the same, it finds another event in its place, or another attempt, and is refused
		err = handlers.Transient(plain(err, s.CallID))
	}
	return err
}

// committed takes note of a step that committed with its transaction.
func (s *steps) committed(data *stepData, size int) {
	s.mu.Lock()
	s.kept.Add(s.takePending())
	s.tx = nil
	s.mu.Unlock()
	s.progress(store.StepEnded, data, size)
}

// isThere asks the database whether a step has committed, after its answer was lost.
func (s *steps) isThere(name string) (there bool) {
	err := s.persist(s.open, "look for a step", func(ctx context.Context) (err error) {
		there, err = store.HasStep(ctx, s.options.Calls, s.Attempt, name)
		return err
	})
	switch {
	case store.IsNotHeld(err):
		s.leave(&end{how: notHeld})
	case s.open.Err() != nil:
		s.leave(nil)
	case err != nil:
		s.leave(&end{how: leftToRecovery, reason: err})
	}
	return there
}

package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
)

// Step is that of [handlers.Journal].
func (s *steps) Step(ctx context.Context, kind handlers.StepKind, name string,
	do func(context.Context, handlers.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
	if ctx.Value(inStep{}) != nil {
		return nil, handlers.Fail("step_in_step", fmt.Sprintf("The step %s was begun inside of another step: begin it after that one.", name))
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	name, ended, found := s.find(name)
	if found {
		if ended.Kind != kind {
			s.DoesNotFit(name, fmt.Sprintf("The journal has %s under this name, and the handler asks for a %s.", ended.kind(), kind.Func()))
		}
		return ended.outcome()
	}
	if has := s.kindOf(name); has != "" && (has != startedStep || kind != handlers.AtMostOnce) {
		s.DoesNotFit(name, fmt.Sprintf("The journal has %s under this name, and the handler asks for a %s.", has, kind.Func()))
	}
	turns := int64(1)
	if kind == handlers.WithItsRows {
		turns = allTurns
	}
	exit, err := s.enter(ctx, turns, "the step "+name)
	if err != nil {
		return nil, err
	}
	defer exit(name)
	s.send(ctx, nil)
	if _, err := s.begins(ctx); err != nil {
		return nil, err
	}
	data := stepData{Name: name, Kind: kind}
	if kind == handlers.AtMostOnce {
		if s.kindOf(name) == startedStep {
			return s.keep(ctx, data, nil, handlers.ErrUnknown)
		}
		if err := s.write(store.StepBegan, &stepData{Name: name}); err != nil {
			return nil, err
		}
		if err := context.Cause(ctx); errors.Is(err, errCancelled) { // it has not run
			return nil, err
		}
	}
	ctx, done := s.within(ctx)
	defer done()
	if kind == handlers.WithItsRows {
		return s.runTx(ctx, data, do)
	}
	s.at("before", "work")
	result, err := do(ctx, nil)
	s.at("after", "work")
	return s.keep(ctx, data, result, err)
}

// enter waits until a step may run, alone if it takes all turns, and returns what is to be called when the step of a name has ended. An
// attempt that is to begin nothing new ends here.
func (s *steps) enter(ctx context.Context, turns int64, what string) (exit func(name string), err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if err := s.turns.Acquire(waiting, turns); err != nil {
		turns = 0
	}
	entered := false
	release := func() { s.turns.Release(turns) }
	defer func() {
		if !entered {
			release()
		}
	}()
	if _, err := s.begins(ctx); err != nil {
		return nil, err
	}
	if s.replaying {
		s.leave(&end{how: replayed, misfit: store.Misfit{Message: what}})
	}
	entered = true
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == 0 {
		s.outside.Add(s.call.TakeEffects())
	}
	s.running++
	return func(name string) {
		s.mu.Lock()
		s.running--
		if _, kept := s.ended[name]; !kept && !s.stopped {
			s.tried.Add(s.takePending())
		}
		last := s.running == 0 && s.left != nil
		s.mu.Unlock()
		if last {
			s.end(errLeft)
		}
		release()
	}, nil
}

// begins returns the error for which nothing new begins in ctx, and whether what begins there cleans up: someone asked for the end of the call, and
// ctx continues after that. An attempt that is to begin nothing new ends here. The result may be different after a round trip.
//
// cleanUp ends contexts before it sets s.cleaning, and this function reads them in the opposite order, so that nothing else is taken for a clean-up. The reasons
// to end the attempt are read last: the handler sees no error of a worker that stops.
func (s *steps) begins(ctx context.Context) (cleansUp bool, err error) {
	s.mu.Lock()
	cleansUp = s.cleaning
	s.mu.Unlock()
	err = cmp.Or(context.Cause(s.life), context.Cause(ctx))
	if end := s.ends(); end != nil {
		s.leave(end)
	}
	return cleansUp, err
}

// inStep is the key of a context's mark that a step runs.
type inStep struct{}

// within returns the context of a step: it ends with that of the handler, and says that a step runs.
func (s *steps) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, inStep{}, true))
	stop := context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// fit returns the error of a step, plain, or that of a result that is too large.
func (s *steps) fit(data stepData, result json.RawMessage, err error) error {
	if err == nil && len(result) > maxStepResult {
		return &handlers.Failure{Code: string(receipts.OutputInvalid),
			Message: fmt.Sprintf("The result of the step %s takes %d bytes as JSON, and may take %d.", data.Name, len(result), maxStepResult)}
	}
	return plain(err, s.CallID)
}

// keep writes what a step came to into the journal, and returns it. An attempt that is to end, or to run again after a pause,
// ends here.
func (s *steps) keep(ctx context.Context, data stepData, result json.RawMessage, err error) (json.RawMessage, error) {
	err = s.fit(data, result, err)
	if s.open.Err() != nil { // the handler was given up
		s.leave(nil)
	}
	cause := context.Cause(s.life)
	if errors.Is(context.Cause(ctx), errCancelled) {
		cause = errCancelled
	}
	if err != nil && cause != nil { // it could not go on to its end, and says nothing about the next attempt
		if end := s.ends(); end != nil {
			s.leave(end)
		}
		return nil, cause
	}
	if err != nil && isTransient(err) && s.spent()+1 < s.retry().MaxAttempts && data.Kind != handlers.AtMostOnce {
		s.leave(&end{how: retried, reason: err})
	}
	data.describe(result, err)
	s.mu.Lock()
	effects := s.takePending()
	s.kept.Add(effects)
	s.mu.Unlock()
	data.Effects = encodeEffects(effects)
	refused := s.write(store.StepEnded, &data)
	if refused != nil {
		data.describe(nil, refused)
		if refused = s.write(store.StepEnded, &data); refused != nil { // this is storable: an effect is not
			data.Effects = nil
			refused = s.write(store.StepEnded, &data)
		}
	}
	if refused != nil {
		return nil, refused
	}
	return data.outcome()
}

// write writes an event of a step in a transaction of its own, and returns the error of data that Postgres refuses.
func (s *steps) write(event string, data *stepData) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.open.Err() != nil {
		s.leave(nil)
	}
	encoded, before, tries := data.encode(), s.before(), 0
	s.at("before", event)
	err := s.persist(s.open, "write a step", func(ctx context.Context) error {
		tries++
		return s.lanes.Write(ctx, store.Step{Event: event, Data: encoded}.Statement(s.Attempt, before, tries > 1))
	})
	s.at("after", event)
	if err == nil {
		s.progress(event, data, len(encoded))
		return nil
	}
	s.leaveUnlessRefused(err)
	return s.unstorable(data, err)
}

// leaveUnlessRefused ends the attempt after an error of a statement that moves its call. It returns only if Postgres refuses the values.
func (s *steps) leaveUnlessRefused(err error) {
	switch {
	case store.IsNotHeld(err):
		s.leave(&end{how: notHeld})
	case s.open.Err() != nil:
		s.leave(nil)
	case !store.IsRefusal(err):
		s.leave(&end{how: leftToRecovery, reason: err})
	}
}

func (s *steps) unstorable(data *stepData, err error) error {
	return &handlers.Failure{Code: string(receipts.OutputInvalid),
		Message: fmt.Sprintf("Postgres cannot store the result of the step %s: %s", data.Name, ownMessage(err))}
}

// progress takes note of an event that was written: attempts and time count from here.
func (s *steps) progress(event string, data *stepData, size int) {
	s.mu.Lock()
	if event == store.StepBegan {
		s.began[data.Name] = *data
	} else if data.Kind != refusedCall {
		s.ended[data.Name] = *data
	}
	s.events++
	s.bytes += size
	s.progressed = true
	s.mu.Unlock()
	s.timer.Reset(s.tool.Timeout)
}

// before is how many events of steps the journal has.
func (s *steps) before() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

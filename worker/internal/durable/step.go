package durable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker/internal/plain"
)

// Step implements [handlers.Journal].
func (r *Run) Step(ctx context.Context, kind handlers.StepKind, name string,
	do func(context.Context, handlers.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
	if ctx.Value(inStep{}) != nil {
		return nil, handlers.Fail("step_in_step", fmt.Sprintf(
			"The step %s was begun inside of another step: begin it after that one.", name))
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	name, ended, found, has := r.find(name)
	if found {
		if ended.Kind != kind {
			r.DoesNotFit(name, fmt.Sprintf("The journal has %s under this name, and the handler asks for a %s.", ended.kind(),
				kind.Func()))
		}
		return ended.outcome()
	}
	if has != "" && (has != startedStep || kind != handlers.AtMostOnce) {
		r.DoesNotFit(name, fmt.Sprintf("The journal has %s under this name, and the handler asks for a %s.", has,
			kind.Func()))
	}
	turns := int64(1)
	if kind == handlers.WithItsRows {
		turns = allTurns
	}
	exit, err := r.enter(ctx, turns, "the step "+name)
	if err != nil {
		return nil, err
	}
	defer exit(name)
	r.calls.send(ctx, nil)
	if _, err := r.course.begins(ctx); err != nil {
		return nil, err
	}
	s := &step{run: r, data: stepData{Name: name, Kind: kind}}
	return s.do(ctx, has == startedStep, do)
}

// find returns the journal's entry for the step that the run reaches next under a name: its end, or a description of
// the operation that has not ended.
func (r *Run) find(name string) (unique string, ended stepData, found bool, has string) {
	r.course.mu.Lock()
	defer r.course.mu.Unlock()
	unique, ended, found = r.options.Journal.find(name)
	return unique, ended, found, r.options.Journal.kindOf(unique)
}

// DoesNotFit implements [handlers.Journal].
func (r *Run) DoesNotFit(name, why string) {
	r.course.mu.Lock()
	seq := r.options.Journal.seqs[name]
	r.course.mu.Unlock()
	r.course.leave(&Exit{Why: WaitingForCode, Misfit: store.Misfit{Name: name, Seq: seq, Message: why}})
}

// Version implements [handlers.Journal].
func (r *Run) Version(name string, current int) (version int) {
	if err := checkName(name); err != nil {
		panic(err)
	}
	name, data, found, has := r.find(name)
	if found && data.Kind == codeVersion && json.Unmarshal(data.Result, &version) == nil {
		return version
	}
	if found {
		has = data.kind()
	}
	if has != "" {
		r.DoesNotFit(name, fmt.Sprintf("The journal has %s under this name, and the handler asks for a Version.", has))
	}
	if len(r.Unread()) > 0 { // an earlier run continued from here
		return 0
	}
	ctx := context.Background()
	exit, err := r.enter(ctx, 1, "the version "+name)
	if err != nil {
		return current // the journal has nothing after it
	}
	defer exit(name)
	r.calls.send(ctx, nil)
	_ = r.pen.write(store.StepEnded, &stepData{Name: name, Kind: codeVersion,
		Result: json.RawMessage(strconv.Itoa(current))})
	return current
}

// checkName returns an error for a name that a journal cannot contain.
func checkName(name string) error {
	if name == "" || len([]rune(name)) > maxStepName || strings.ToValidUTF8(name, "") != name ||
		strings.ContainsAny(name, "#\x00") {
		return handlers.Fail("step_name", fmt.Sprintf("A name has 1 to %d characters, and no # among them: %.100q cannot "+
			"be one.", maxStepName, name))
	}
	return nil
}

// step is a running step.
type step struct {
	run  *Run
	data stepData
}

// do runs the step. begun means that an earlier attempt began it but did not end it.
func (s *step) do(ctx context.Context, begun bool,
	do func(context.Context, handlers.Tx) (json.RawMessage, error)) (json.RawMessage, error) {
	if s.data.Kind == handlers.AtMostOnce {
		if begun {
			return s.keep(ctx, nil, handlers.ErrUnknown)
		}
		if err := s.run.pen.write(store.StepBegan, &stepData{Name: s.data.Name}); err != nil {
			return nil, err
		}
		if err := context.Cause(ctx); errors.Is(err, handlers.ErrCancelled) { // it has not run
			return nil, err
		}
	}
	ctx, done := s.run.life.within(ctx)
	defer done()
	if s.data.Kind == handlers.WithItsRows {
		return s.doTx(ctx, do)
	}
	s.run.pen.writer.At("before", "work")
	result, err := do(ctx, nil)
	s.run.pen.writer.At("after", "work")
	return s.keep(ctx, result, err)
}

// inStep is the key of the mark in the context of a step.
type inStep struct{}

// fit returns the result of a step as the journal will return it, or err as a plain error. It returns another error if
// the journal cannot store the result.
func (s *step) fit(result json.RawMessage, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, s.plain(err)
	}
	if size := max(len(result), receipts.PrintedSize(result)); size > maxStepResult {
		return nil, &handlers.Failure{Code: string(receipts.OutputInvalid),
			Message: fmt.Sprintf("The result of the step %s takes %d bytes as JSON, and may take %d.", s.data.Name, size,
				maxStepResult)}
	}
	if excess := receipts.Excess(result); excess != "" {
		return nil, &handlers.Failure{Code: string(receipts.OutputInvalid),
			Message: fmt.Sprintf("The result of the step %s has %s, which the journal cannot keep.", s.data.Name, excess)}
	}
	return receipts.WithoutRepeatedKeys(result), nil
}

func (s *step) plain(err error) error { return plain.Error(err, s.run.options.Call.ID) }

// keep writes the result of a step into the journal and returns it. If the attempt must end, or the call must run again
// after a pause, keep does not return.
func (s *step) keep(ctx context.Context, result json.RawMessage, err error) (json.RawMessage, error) {
	course, pen := &s.run.course, &s.run.pen
	result, err = s.fit(result, err)
	pen.leaveIfClosed()
	cause := context.Cause(s.run.life.whole)
	if errors.Is(context.Cause(ctx), handlers.ErrCancelled) {
		cause = handlers.ErrCancelled
	}
	if err != nil && cause != nil { // the step could not finish, and its error says nothing about the next attempt
		if exit := course.ends(); exit != nil {
			course.leave(exit)
		}
		return nil, cause
	}
	if err != nil && plain.IsTransient(err) && course.spent()+1 < s.run.options.MaxAttempts &&
		s.data.Kind != handlers.AtMostOnce {
		course.leave(&Exit{Why: Retried, Err: err})
	}
	if refused := s.write(result, err); refused != nil {
		return nil, refused
	}
	return s.data.outcome()
}

// write writes the end of a step into the journal, with the effects since the last one. If Postgres rejects the result,
// the journal gets the reason as the step's error.
func (s *step) write(result json.RawMessage, err error) (refused error) {
	course, pen := &s.run.course, &s.run.pen
	s.data.describe(result, err)
	course.mu.Lock()
	effects := course.takePending()
	course.journal.kept.Add(effects)
	course.mu.Unlock()
	s.data.Effects = encodeEffects(effects)
	refused = pen.write(store.StepEnded, &s.data)
	if refused != nil {
		s.data.describe(nil, refused)
		if refused = pen.write(store.StepEnded, &s.data); refused != nil { // the result is storable, but an effect is not
			s.data.Effects = nil
			refused = pen.write(store.StepEnded, &s.data)
		}
	}
	return refused
}

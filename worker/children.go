package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// The limits of a call's children.
const (
	maxChildren   = 4000
	maxChildInput = 1 << 20 // bytes of JSON
	maxStartBytes = 4 << 20 // of inputs in one statement
)

// child is a call that the handler made, or is about to make.
type child struct {
	ID, Tool string
}

// first is the place of a call that was refused: before all others, since it is told at once.
const first = -1

// Start is that of [handlers.Journal].
func (s *steps) Start(name, tool string, chosen bool, input func() (json.RawMessage, error)) (unique, id string, err error) {
	if err := checkName(name); err != nil {
		return "", "", err
	}
	unique, made, found, misfit := s.findChild(name, tool)
	if misfit != "" {
		s.DoesNotFit(unique, misfit)
	}
	if found {
		return unique, made.ID, nil
	}
	encoded, refusal := s.inputOf(tool, input)
	made = child{ID: uuid.Must(uuid.NewV7()).String(), Tool: tool}
	start := store.Start{ID: made.ID, Name: unique, Tool: tool, Input: encoded, Chosen: chosen}
	if s.span != nil {
		start.Traceparent = s.span.traceparent()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children[unique] = made
	if refusal == nil && len(s.children) > maxChildren {
		refusal = failWith(receipts.JournalFull, fmt.Sprintf("%s has made %d calls, and may make no more.", s.tool.Name, maxChildren))
	}
	if refusal != nil {
		s.refuse(start, refusal)
		return unique, "", nil
	}
	s.unsent = append(s.unsent, start)
	return unique, made.ID, nil
}

// inputOf returns the input of a call that the handler makes, or the error for which it cannot.
func (s *steps) inputOf(tool string, input func() (json.RawMessage, error)) (json.RawMessage, error) {
	encoded, err := input()
	if err == nil {
		err = s.mayCall(tool)
	}
	if err == nil && len(encoded) > maxChildInput {
		err = failWith(receipts.ValidationError, fmt.Sprintf("The input takes %d bytes as JSON, and may take %d.", len(encoded), maxChildInput))
	}
	return encoded, err
}

// findChild returns the call to which the run comes next under a name, and whether there is one, or was to be one. misfit says
// that the journal has something else.
func (s *steps) findChild(name, tool string) (unique string, made child, found bool, misfit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unique = s.next(name)
	made, found = s.children[unique]
	switch {
	case found && made.Tool != tool:
		misfit = fmt.Sprintf("The journal has a call of %s under this name, and the handler makes one of %s.", made.Tool, tool)
	case !found && s.isStep(unique):
		misfit = "The journal has a step under this name, and the handler makes a call."
	case !found && s.seqs[unique] > 0:
		misfit = "The journal has a time under this name, and the handler makes a call."
	}
	return unique, made, found, misfit
}

// mayCall returns the error of a call that the handler may not make.
func (s *steps) mayCall(tool string) error {
	if s.tool.MayCall(tool) {
		return nil
	}
	return failWith(receipts.NotAllowed, fmt.Sprintf("%s may not call %s: the registry does not list it in the `calls` of its entry.", s.tool.Name, tool))
}

// Tools is that of [handlers.Journal].
func (s *steps) Tools() (all []handlers.Tool) {
	for _, t := range s.options.Registry.Tools() {
		if !s.tool.MayCall(t.Name) {
			continue
		}
		may := handlers.Tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema}
		if s.SignedIn {
			may.Closed = t.ClosedBecause()
		}
		all = append(all, may)
	}
	return all
}

// Digest is that of [handlers.Journal].
func (s *steps) Digest(tool string, input json.RawMessage) (string, error) {
	entry, known := s.options.Registry.Tool(tool)
	if !known {
		return "", failWith(receipts.UnknownTool, fmt.Sprintf("The registry %s has no tool %q.", s.options.Registry.Version, value.Shorten(tool, 200)))
	}
	if err := s.mayCall(tool); err != nil {
		return "", err
	}
	digest, err := entry.Digest(input)
	if err != nil {
		return "", failWith(receipts.ValidationError, fmt.Sprintf("The input of %s cannot be approved: %v", tool, err))
	}
	return digest, nil
}

// send makes the calls that the handler began and that are not made yet, and records which of them were refused: the next run gets the same
// refusals, even if the registry has changed by then. Once the end of the call is known, only a clean-up makes calls: those that it waits for.
func (s *steps) send(ctx context.Context, of []handlers.Await) {
	defer s.writeRefused()
	for alone := 0; ; alone-- {
		batch, cleansUp := s.nextUnsent(ctx, of, alone > 0)
		if len(batch) == 0 {
			return
		}
		verdict, err := s.wait(store.Wait{Start: batch, What: "call", CleanUp: cleansUp})
		switch {
		case err != nil && len(batch) > 1: // one by one, to know which of them Postgres refuses
			alone = len(batch) + 1
			continue
		case err != nil:
			s.refusedByPostgres(batch[0], err)
		case verdict == store.WaitCancelled:
			s.asked(cleansUp)
			continue
		}
		s.sent(batch)
	}
}

// nextUnsent returns the calls to make in the next statement, as many as fit, and whether a clean-up makes them.
func (s *steps) nextUnsent(ctx context.Context, of []handlers.Await, alone bool) (batch []store.Start, cleansUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cleansUp = s.cleaning
	if cleansUp && cmp.Or(context.Cause(s.life), context.Cause(ctx)) != nil {
		return nil, false
	}
	size := 0
	for _, start := range s.unsent {
		if cleansUp && !slices.ContainsFunc(of, func(one handlers.Await) bool { return one.Name == start.Name }) {
			continue
		}
		if size += len(start.Input); len(batch) > 0 && (alone || size > maxStartBytes) {
			break
		}
		batch = append(batch, start)
	}
	return batch, cleansUp
}

// sent records that the calls of a batch were made or refused.
func (s *steps) sent(batch []store.Start) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent = slices.DeleteFunc(s.unsent, func(start store.Start) bool {
		if len(batch) == 0 || start.ID != batch[0].ID {
			return false
		}
		batch = batch[1:] // both are in the order in which the handler began them
		return true
	})
}

// refusedByPostgres takes note of a call that Postgres does not take.
func (s *steps) refusedByPostgres(start store.Start, err error) {
	failure := failWith(receipts.ValidationError, fmt.Sprintf("Postgres refuses the call %s of %s: %s", start.Name, start.Tool, ownMessage(err)))
	var refused *pgconn.PgError
	if store.IsRefusedQuestion(err) && errors.As(err, &refused) {
		failure = failWith(receipts.NotAllowed, fmt.Sprintf("The question was refused: %s. %s", refused.Message, refused.Hint))
	}
	if store.IsTooDeep(err) {
		failure = failWith(receipts.NotAllowed, fmt.Sprintf("%s may make no call: it is the child of a child, eight times over.", s.tool.Name))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse(start, failure)
}

// refuse takes note of a call that cannot be made. s.mu is locked.
func (s *steps) refuse(start store.Start, err error) {
	data := stepData{Name: start.Name, Kind: refusedCall, Tool: start.Tool}
	data.describe(nil, plain(err, s.CallID))
	s.takeRefused(data)
	s.refused = append(s.refused, data)
}

// takeRefused takes a call that was refused into account. s.mu is locked.
func (s *steps) takeRefused(data stepData) {
	_, err := data.outcome()
	s.children[data.Name] = child{Tool: data.Tool}
	s.came[data.Name] = handlers.Came{Seq: first, Err: err}
}

func (s *steps) writeRefused() {
	for {
		s.mu.Lock()
		if len(s.refused) == 0 {
			s.mu.Unlock()
			return
		}
		next := s.refused[0]
		s.mu.Unlock()
		_ = s.write(store.StepEnded, &next) // of texts alone, which Postgres takes
		s.mu.Lock()
		s.refused = s.refused[1:]
		s.mu.Unlock()
	}
}

func failWith(code receipts.Code, message string) error {
	return &handlers.Failure{Code: string(code), Message: message}
}

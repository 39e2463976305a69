package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker/internal/durable"
)

// ReplayResult is the result of a replay: exactly one of Lacks, Misfit, Stopped and Outcome is set.
type ReplayResult struct {
	// Lacks describes what the replay needs and this program does not have: the tool, its handler, a variable, or an
	// answer of its service.
	Lacks string
	// Misfit describes how the journal contradicts the code.
	Misfit string
	// Stopped is the first operation that is not in the journal. The replay of an open call ends there: at a wait for
	// something that has not come yet, or at a step that has no result yet.
	Stopped string
	// Outcome is the handler's result. Differs reports that the receipt has another outcome.
	Outcome receipts.Outcome
	Differs bool
	// Unread are the names in the journal that the run did not use.
	Unread []string
}

// Same reports whether the handler returned the outcome on the receipt.
func (r *ReplayResult) Same() bool { return r.Lacks+r.Misfit+r.Stopped == "" && !r.Differs }

// replayed is the end of a replay at the first operation that the journal lacks.
const replayed how = "replayed"

// Replay runs a durable handler on a call that was recorded with `gem replay --save`, and shows how this program would
// continue the call. It reads only the recording, and writes nothing: the first operation that the journal lacks ends
// the replay. The worker need not have been started. Replay returns an error if the recording cannot be read.
func (w *Worker) Replay(ctx context.Context, recording json.RawMessage) (*ReplayResult, error) {
	var r store.Recorded
	if err := json.Unmarshal(recording, &r); err != nil {
		return nil, fmt.Errorf("read the recording of the call: %w", err)
	}
	return w.replay(ctx, &r), nil
}

func (w *Worker) replay(ctx context.Context, r *store.Recorded) *ReplayResult {
	w = &Worker{id: w.id, options: w.options, log: w.log, handed: make(chan func())} // the caller's worker does not change
	defer close(w.handed)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &attempt{worker: w, started: time.Now(), claim: &claimedCall{life: ctx, Call: store.Call{
		Attempt: store.Attempt{CallID: r.ID, Number: r.Attempt, WorkerID: w.id}, Tool: r.Tool, Input: r.Input,
		SessionID: r.SessionID, CreatedBy: r.CreatedBy,
		Cancelled: r.Cancelled, Steps: 1}}}
	var known, bound bool
	if a.tool, known = w.options.Registry.Tool(r.Tool); !known {
		return &ReplayResult{Lacks: fmt.Sprintf("The registry %s has no tool %q.", w.options.Registry.Version, r.Tool)}
	}
	if a.handler, bound = w.options.Handlers.For(r.Tool); !bound || !a.handler.Durable {
		return &ReplayResult{Lacks: fmt.Sprintf("The program has no durable handler for %s.", r.Tool)}
	}
	if end := a.takeJournal(r.Events); end != nil {
		return &ReplayResult{Misfit: end.misfit.Message}
	}
	a.call = &handlers.Call{ID: r.ID, Tool: r.Tool, Attempt: r.Attempt, SessionID: r.SessionID, CreatedBy: r.CreatedBy,
		Input: r.Input}
	options := a.durableOptions()
	options.Replay = true
	a.steps = durable.New(options)
	life, endLife := a.claim.uncancelled(ctx)
	output, err := a.runHandler(a.steps.Begin(ctx, life, endLife))
	end := endOfExit(a.steps.Stop())
	result := &ReplayResult{Unread: a.steps.Unread()}
	switch {
	case end != nil && end.how == waitingForCode && end.misfit.Name == "":
		result.Lacks = end.misfit.Message
		return result
	case end != nil && end.how == waitingForCode:
		result.Misfit = end.misfit.Name + ": " + end.misfit.Message
		return result
	case end != nil:
		result.Stopped = end.lacks
		return result
	case err == nil:
		result.Outcome = receipts.Success(output)
	default:
		if end := a.endOf(err, nil); end.how == receipted {
			result.Outcome = end.outcome
		} else {
			result.Outcome = a.failure(err)
		}
	}
	if r.Receipt != nil {
		result.Differs = r.Receipt.Status != result.Outcome.Status || !sameJSON(r.Receipt.Result, result.Outcome.Result)
	}
	return result
}

// sameJSON reports whether two texts are the same JSON, in any notation.
func sameJSON(a, b json.RawMessage) bool {
	var one, two any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &two) == nil && reflect.DeepEqual(one, two)
}

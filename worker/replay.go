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
)

// Replayed is what came of a replay: one of Misfit, Stopped and Outcome.
type Replayed struct {
	// Misfit says what in the journal does not fit the code, or why there is no code for it.
	Misfit string
	// Stopped is the first operation that the journal lacks. An open call stops so where it waits or would go on.
	Stopped string
	// Outcome is what the handler returned; Differs says that the receipt has another.
	Outcome receipts.Outcome
	Differs bool
	// Unread are the names of the journal to which the run did not come.
	Unread []string
}

// Same reports whether the handler came to what the receipt says.
func (r *Replayed) Same() bool { return r.Misfit == "" && r.Stopped == "" && !r.Differs }

// replayed is the end of a replay at the first operation that the journal lacks.
const replayed how = "replayed"

// Replay runs a durable handler on what was recorded of a call, as this program would go on with it. It reads nothing else, and writes nothing: an
// operation that the journal lacks ends it. The worker need not have been started.
func (w *Worker) Replay(ctx context.Context, r *store.Recorded) *Replayed {
	w = &Worker{id: w.id, options: w.options, log: w.log, handed: make(chan func())} // of which nothing is left
	defer close(w.handed)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &attempt{Worker: w, started: time.Now(), claimedCall: &claimedCall{life: ctx, Call: store.Call{
		Attempt: store.Attempt{CallID: r.ID, Number: r.Attempt, WorkerID: w.id}, Tool: r.Tool, Input: r.Input, SessionID: r.SessionID, CreatedBy: r.CreatedBy,
		Cancelled: r.Cancelled, Steps: 1}}}
	var known, bound bool
	if a.tool, known = w.options.Registry.Tool(r.Tool); !known {
		return &Replayed{Misfit: fmt.Sprintf("The registry %s has no tool %q.", w.options.Registry.Version, r.Tool)}
	}
	if a.handler, bound = w.options.Handlers.For(r.Tool); !bound || !a.handler.Durable {
		return &Replayed{Misfit: fmt.Sprintf("The program has no durable handler for %s.", r.Tool)}
	}
	if end := a.takeSteps(r.Events); end != nil {
		return &Replayed{Misfit: end.misfit.Message}
	}
	a.steps.replaying = true
	a.call = &handlers.Call{ID: r.ID, Tool: r.Tool, Attempt: r.Attempt, SessionID: r.SessionID, CreatedBy: r.CreatedBy, Input: r.Input}
	output, err := a.runHandler(a.steps.start(ctx))
	end := a.steps.stop()
	result := &Replayed{Unread: a.steps.unread()}
	switch {
	case end != nil && end.how == waitingForCode:
		result.Misfit = fmt.Sprintf("%s: %s", end.misfit.Name, end.misfit.Message)
		return result
	case end != nil:
		result.Stopped = end.misfit.Message
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

// sameJSON reports whether two texts are the same JSON, however it is written.
func sameJSON(a, b json.RawMessage) bool {
	var one, two any
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &two) == nil && reflect.DeepEqual(one, two)
}

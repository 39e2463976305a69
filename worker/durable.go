package worker

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/worker/internal/durable"
	"github.com/gemworker/gem/worker/internal/plain"
)

// readJournal reads the events that earlier attempts wrote for the handler.
func (a *attempt) readJournal(ctx context.Context) *end {
	events, end := a.readEvents(ctx)
	if end != nil {
		return end
	}
	return a.takeJournal(events)
}

// readEvents reads the events of a journal for a handler, or returns how the attempt ends if it cannot.
func (a *attempt) readEvents(ctx context.Context) (events []store.Event, _ *end) {
	ctx, done := a.claim.uncancelled(ctx)
	defer done(nil)
	err := a.persist(ctx, "read the journal", func(ctx context.Context) (err error) {
		events, err = store.Steps(ctx, a.worker.options.Calls, a.claim.CallID)
		return err
	})
	switch {
	case err == nil:
		return events, nil
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), errNotHeld):
		return nil, &end{how: notHeld}
	case store.IsRefusal(err): // it would again
		return nil, withoutCode("Postgres cannot read its journal: " + plain.OwnMessage(err))
	}
	return nil, &end{how: released} // the next attempt reads them
}

// readEffects reads the effects of earlier attempts of a call that ends before its handler runs in this one: they may
// have had effects without progress. It returns how the attempt ends if it cannot.
func (a *attempt) readEffects() *end {
	handler, bound := a.worker.options.Handlers.For(a.claim.Tool)
	if a.journal != nil || a.claim.Number == 1 || bound && !handler.Durable {
		return nil
	}
	events, end := a.readEvents(context.Background())
	if end != nil && end.how != waitingForCode { // if Postgres cannot read them, the call still ends
		return end
	}
	if journal, _ := durable.Read(a.claim.Steps, events); journal.HasEffects() {
		a.journal = journal
	}
	return nil
}

// takeJournal makes a journal of the events. It also takes the key that the call holds, and the verdicts of the rules.
func (a *attempt) takeJournal(events []store.Event) *end {
	var exit *durable.Exit
	a.journal, exit = durable.Read(a.claim.Steps, events)
	if a.journal.Key != "" {
		a.key, a.holds = a.journal.Key, a.journal.Key
	}
	if a.journal.Ruling != nil {
		a.ruling = a.journal.Ruling
	}
	return endOfExit(exit)
}

// durableOptions returns the options for the run of a durable handler.
func (a *attempt) durableOptions() durable.Options {
	o := durable.Options{
		Journal: a.journal,
		Writer: durable.Writer{Attempt: a.claim.Attempt, Key: a.holds, DB: a.worker.options.Calls, Lanes: a.worker.lanes,
			Persist: a.persist, Began: a.rememberStep, At: a.worker.at},
		Clock: durable.SystemClock{},
		Call:  a.call, Tool: a.tool, Registry: a.worker.options.Registry,
		Age: a.claim.Age, Cancelled: a.claim.Cancelled, CancelledFor: a.claim.CancelledFor,
		Spent: a.claim.Spent(), MaxAttempts: a.retry().MaxAttempts,
		Stopping: a.worker.stopping, Open: a.openHandlers,
	}
	if a.span != nil {
		o.Traceparent = a.span.traceparent
	}
	return o
}

// hows maps the exits of a run to the ends of attempts.
var hows = map[durable.Why]how{
	durable.Waiting: waiting, durable.Retried: retried, durable.Released: released, durable.NotHeld: notHeld,
	durable.LeftToRecovery: leftToRecovery, durable.WaitingForCode: waitingForCode, durable.Ended: receipted,
	durable.Replayed: replayed,
}

// endOfExit returns the end of an attempt whose run left with an exit, or nil if the run did not leave.
func endOfExit(exit *durable.Exit) *end {
	if exit == nil {
		return nil
	}
	return &end{how: hows[exit.Why], outcome: exit.Outcome, reason: exit.Err, misfit: exit.Misfit, lacks: exit.Lacks}
}

// summary returns the receipt's summary of the call's journal and of this run.
func (a *attempt) summary() durable.Summary {
	if a.steps != nil {
		return a.steps.Summary()
	}
	return a.journal.Summary()
}

// notKept returns the effects that the journal lacks and that no later run records again, or nil if there are none.
func (a *attempt) notKept() json.RawMessage {
	if a.steps == nil {
		return nil
	}
	return a.steps.NotKept()
}

// spent returns the number of attempts that were spent since the last progress.
func (a *attempt) spent() int {
	if a.steps == nil {
		return a.claim.Spent()
	}
	return a.steps.Spent()
}

package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker/internal/durable"
	"go.uber.org/zap"
)

// attempt is one run of a call, from its claim to its end.
type attempt struct {
	worker  *Worker
	claim   *claimedCall
	started time.Time
	span    *attemptSpan // nil without telemetry
	tool    *registry.Tool
	handler *binding.Handler
	key     string // the computed idempotency key; empty for none
	holds   string // the key, once the attempt holds it and its handler may run
	// inputDiffers: a call with this key succeeded before, with another input
	inputDiffers bool
	call         *handlers.Call   // what the handler sees, and where it records effects; nil until it runs
	tx           *lanes.Tx        // the handler's transaction; nil until the handler runs, and for a durable handler
	journal      *durable.Journal // the call's journal for a durable handler; nil if it was not read
	steps        *durable.Run     // of a durable handler; nil until it runs
	judged       rules.Judgement  // what rules decided from the call alone, and the checks that need the database
	ruling       *receipts.Rules  // all verdicts and approvals, for the receipt; nil if there are none
	cause        error            // why the call's context ended before the handler was done; nil if it did not
}

// run runs an attempt of a claimed call on this worker, and returns how it ended. Each stage returns how the attempt
// ends, or nil to continue with the next stage.
func (w *Worker) run(c *claimedCall) *end {
	a := &attempt{worker: w, claim: c, started: time.Now()}
	ctx := c.ctx
	if c.Traceparent != "" {
		ctx = inTrace(ctx, c.Traceparent)
	}
	if w.telemetry != nil {
		ctx, a.span = w.telemetry.begin(ctx, c)
	}
	if line := w.log.Check(zap.DebugLevel, "call claimed"); line != nil {
		line.Write(a.fields()...)
	}
	end := a.decide(ctx)
	if end == nil {
		end = a.judgeCall()
	}
	if end == nil {
		end = a.takeKey(ctx)
	}
	if end == nil {
		end = a.noteRuling(ctx)
	}
	if end == nil {
		end = a.execute(ctx)
	}
	return a.write(end)
}

// decide ends an attempt early, before anything runs, in these cases: the call was cancelled, or has no attempts left;
// the worker is stopping; the tool is unknown; an earlier attempt may have had effects that must not be repeated; the
// tool is closed to the user or has no handler; the input is invalid.
func (a *attempt) decide(ctx context.Context) *end {
	var known, bound bool
	a.tool, known = a.worker.options.Registry.Tool(a.claim.Tool)
	if a.claim.Steps > 0 {
		if end := a.readJournal(ctx); end != nil {
			return end
		}
	}
	if end := a.endedBefore(ctx); end != nil {
		return end
	}
	if !known {
		return a.leaveUnknown(ctx)
	}
	a.handler, bound = a.worker.options.Handlers.For(a.tool.Name)
	if end := a.mustNotRepeat(ctx); end != nil {
		return end
	}
	if a.claim.SignedIn && !a.claim.Child() && !a.tool.Frontends {
		return a.notAllowed()
	}
	if a.claim.Steps == 0 { // the input of a call that made progress was checked before
		if end := a.checkInput(ctx); end != nil {
			return end
		}
	}
	switch most := a.retry().MaxAttempts; {
	case a.claim.Steps > 0 && (!bound || !a.handler.Durable):
		return withoutCode(fmt.Sprintf("The program has no durable handler for %s.", a.tool.Name))
	case !bound:
		return ended(a.livesNowhere())
	case a.claim.Losses > 0 && a.claim.Spent() >= most:
		return failed(receipts.WorkerLost, fmt.Sprintf("All %[2]d attempts are used up, and %[1]d of them lost their worker.",
			a.claim.Losses, most),
			map[string]int{"lost_attempts": a.claim.Losses, "max_attempts": most})
	case a.claim.Cancelled && (a.claim.Steps == 0 || !a.handler.Durable):
		return a.cancelledBefore()
	case a.handler.Durable && a.claim.Age >= a.tool.Deadline:
		return ended(a.pastDeadline())
	case a.handler.Checks && a.claim.Steps == 0:
		return a.askInput(ctx)
	}
	return nil
}

// livesNowhere returns the outcome of a call whose tool has no handler.
func (a *attempt) livesNowhere() receipts.Outcome {
	domain, method, _ := strings.Cut(a.tool.Name, ".")
	return receipts.Unconfigured(fmt.Sprintf("%s is registered, but this worker has no handler for it in SQL, HTTP, "+
		"MCP or Go.", a.tool.Name), nil, []string{
		fmt.Sprintf("SQL: create the function tools.%s(input jsonb) returns jsonb.",
			strings.ReplaceAll(a.tool.Name, ".", "_")),
		fmt.Sprintf(`HTTP: name the service of %s in domains.json, `+
			`as in {"%[1]s": {"http": {"url": ..., "secret_env": ...}}}, and restart the worker.`, domain),
		fmt.Sprintf(`MCP: name the server of %s in domains.json, `+
			`as in {"%[1]s": {"mcp": {"url": ...}}}, and restart the worker.`, domain),
		fmt.Sprintf("Go: write the method %s of the domain %s, and deploy a worker with it.", method, domain),
		"Then make the call again. docs/tools.md has an example of each.",
	})
}

// deadline returns the longest time that a durable call may take after it was due. If its tool is unknown, it returns
// the maximum for any tool.
func (a *attempt) deadline() time.Duration {
	if a.tool == nil {
		return 366 * 24 * time.Hour
	}
	return a.tool.Deadline
}

// pastDeadline returns the outcome of a call whose deadline has passed.
func (a *attempt) pastDeadline() receipts.Outcome {
	return receipts.Failure(receipts.Timeout, fmt.Sprintf(
		"%s did not finish within %s. The effects of its steps remain, and the receipt lists them.",
		a.claim.Tool, a.deadline()), map[string]int64{"deadline_ms": a.deadline().Milliseconds()})
}

// endedBefore ends an attempt whose context ended before its handler began. It returns nil if the context is live. It
// also returns nil for two kinds of cancelled calls, which it leaves to decide(): those with recorded steps, and those
// that lost a worker and whose handler is not known yet.
func (a *attempt) endedBefore(ctx context.Context) *end {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return nil
	case errors.Is(cause, errNotHeld):
		return &end{how: notHeld}
	case errors.Is(cause, errStopping):
		return &end{how: released}
	case a.claim.Losses > 0 && a.handler == nil || a.claim.Steps > 0: // the handler may clean up
		a.claim.Cancelled = true
		return nil
	}
	return a.cancelledBefore()
}

// cancelledBefore ends a call that was cancelled before this attempt ran it.
func (a *attempt) cancelledBefore() *end {
	message := "The call was cancelled before it ran."
	switch {
	case a.claim.Losses > 0:
		message = "The call was cancelled before it ran again, after an attempt that lost its worker. " + a.mayHaveDone()
	case a.claim.Number > 1:
		message = "The call was cancelled before it ran again."
	}
	return failed(receipts.Cancelled, message, nil)
}

// withoutCode ends an attempt of a call that has made progress: the call then waits for a program that can continue it.
func withoutCode(message string) *end {
	return &end{how: waitingForCode, misfit: store.Misfit{Message: message}}
}

// mayWait returns e, which makes the call wait for a program that can continue it. If the call's deadline or its time
// to clean up has passed, it returns a failure instead.
func (a *attempt) mayWait(e *end) *end {
	switch {
	case a.claim.CancelledFor >= durable.CleanUpTime:
		return failed(receipts.Cancelled, fmt.Sprintf("The call was cancelled, and within %s no worker had the code to "+
			"clean up after it: %s %s", durable.CleanUpTime,
			e.misfit.Message, a.mayHaveDone()), e.misfit)
	case a.claim.Age >= a.deadline():
		return ended(a.pastDeadline())
	}
	return e
}

// leaveUnknown leaves a call to a worker with another registry if this one lacks the call's tool. If no such worker has
// been alive in the last five minutes, the call fails or, if it has made progress, waits for code.
func (a *attempt) leaveUnknown(ctx context.Context) *end {
	var left bool
	ctx, done := a.claim.uncancelled(ctx)
	defer done(nil)
	err := a.persist(ctx, "look for a worker that knows the tool", func(ctx context.Context) (err error) {
		left, err = store.LeaveTo(ctx, a.worker.options.Calls, a.claim.Attempt, knows(a.claim.Tool))
		return err
	})
	switch {
	case store.IsNotHeld(err):
		return &end{how: notHeld}
	case err != nil: // the worker stops, or the call was cancelled: the next worker decides again
		return &end{how: released}
	case left:
		return &end{how: leftToOthers}
	case a.claim.Steps > 0:
		return withoutCode(fmt.Sprintf("The registry %s has no tool %q.", a.worker.options.Registry.Version,
			receipts.Shorten(a.claim.Tool, 200)))
	}
	known := a.worker.options.Registry
	hint := cmp.Or(known.DidYouMean(a.claim.Tool), ".")
	if a.claim.Losses > 0 {
		return failed(receipts.OutcomeUnknown, fmt.Sprintf(
			"The worker that ran the call was lost, and no worker knows %s any more, so it is not known whether the call took "+
				"effect. Check whether it did.", receipts.Shorten(a.claim.Tool, 200)), nil)
	}
	return failed(receipts.UnknownTool, fmt.Sprintf(
		"The registry %s has no tool %q%s `gem registry list` lists its tools.",
		known.Version, receipts.Shorten(a.claim.Tool, 200), hint), nil)
}

// takeKey takes the call's idempotency key, if it has one, and checks the rules. The attempt ends if a call with this
// key has succeeded, if another call holds the key, or if the rules say so.
func (a *attempt) takeKey(ctx context.Context) *end {
	if a.claim.Steps > 0 { // the call has kept its key since its first attempt
		return a.takePlaces(ctx)
	}
	switch field := a.tool.Idempotency.KeyField; a.tool.Idempotency.Mode {
	case registry.SafeRetry:
		if key := receipts.TrimKey(a.claim.ClientKey); key != "" {
			a.key = receipts.ClientKey(a.tool.Name, a.claim.CreatedBy, key)
		}
	case registry.Keyed:
		value := a.field(field)
		key, present := receipts.Key(a.tool.Name, field, value)
		switch {
		case len(value) > maxKeyValue:
			return a.invalidInput([]receipts.Fault{{Path: "/" + field, Keyword: "maxLength",
				Message: fmt.Sprintf("%s is the key of this tool, and may have at most %d bytes", field, maxKeyValue)}})
		case !present:
			return a.invalidInput([]receipts.Fault{{Path: "/" + field, Keyword: "required",
				Message: field + " is the key of this tool and must not be empty"}})
		}
		a.key = key
	}
	refuse := a.tool.Idempotency.OnOtherInput == registry.Refuse
	gate := store.Gate{Key: a.key, KeyField: a.tool.Idempotency.KeyField, Refuse: refuse, Checks: a.judged.Checks,
		Version: a.worker.rulesVersion(), Again: a.claim.Number > 1}
	// even if the current rules ask nobody, a person may have denied the call during an earlier attempt
	gated := len(gate.Checks) > 0 || gate.Again && !a.claim.OfRules()
	if !gated && a.key == "" {
		return nil
	}
	held, ruled, err := a.pass(ctx, gate, gated)
	switch {
	case err != nil:
		if end := a.endedBefore(ctx); end != nil {
			return end
		}
		return a.endOf(err, nil)
	case held.Verdict == store.KeyBusy:
		return &end{how: waiting}
	case held.Verdict == store.KeyDeadlock:
		return failed(receipts.KeyDeadlock, fmt.Sprintf(
			"This call's parent, or a call above it, has the same key, %s, and waits for this one. "+
				"A handler must not call a tool with the key of its own call.", receipts.Shorten(a.key, 200)), nil)
	case held.InputDiffers && refuse:
		a.inputDiffers = true
		return failed(receipts.KeyReused, fmt.Sprintf("A call to %s with the same key succeeded before, with another input "+
			"or for another user. To do something else, make a call with another key. If that call was yours and you want its "+
			"result, send exactly its input.", a.tool.Name),
			map[string]string{"receipt_id": held.ReceiptID})
	case held.Verdict == store.KeyHit:
		a.inputDiffers = held.InputDiffers
		return ended(receipts.Replay(held.ReceiptID, held.Result))
	case ruled == nil:
		a.holds = a.key
	}
	return ruled
}

// takePlaces takes the places that a call needs under rules with `running` (see places.sql). A call that has made
// progress was judged before its first step, but takes its places again in each attempt.
func (a *attempt) takePlaces(ctx context.Context) *end {
	if len(a.judged.Checks) == 0 {
		return nil
	}
	gate := store.Gate{Checks: a.judged.Checks, Version: a.worker.rulesVersion()}
	_, ruled, err := a.pass(ctx, gate, true)
	if err != nil {
		if end := a.endedBefore(ctx); end != nil {
			return end
		}
		return a.endOf(err, nil)
	}
	return ruled
}

// execute runs the handler. Unless the handler is durable, its first statement begins a transaction. After a success,
// the transaction is still open, and a.write commits it together with the receipt.
func (a *attempt) execute(ctx context.Context) *end {
	a.worker.at("before", "handler")
	if end := a.endedBefore(ctx); end != nil {
		return end
	}
	if end := a.noteOutside(ctx); end != nil {
		return end
	}
	if !a.claim.start.CompareAndSwap(nil, &start{key: a.holds, outside: !inside(a.handler)}) {
		return &end{how: notHeld}
	}
	a.call = a.newCall()
	if a.handler.Durable {
		return a.executeSteps(ctx)
	}
	ctx, a.tx = a.worker.lanes.Begin(ctx, a.tool.Timeout)

	output, err := a.runHandler(ctx)
	a.worker.at("after", "handler")
	if err == nil {
		if end := a.judgeResult(output); end != nil {
			return end
		}
		return ended(receipts.Success(output))
	}
	return a.endOf(err, a.rollback())
}

// noteOutside records that the tool's effects happen outside of the receipt's transaction, unless the worker's row says
// so already. If the row does not say so, the tool has moved to another backend since the worker registered. If this
// worker is lost, the worker that takes over the call must know that the call may have had effects outside.
func (a *attempt) noteOutside(ctx context.Context) *end {
	if inside(a.handler) {
		return nil
	}
	if has, _ := a.worker.noted.LoadOrStore(a.tool.Name, false); has == true {
		return nil
	}
	err := a.persist(ctx, "record where the tool's work is done", func(ctx context.Context) error {
		return store.NoteOutside(ctx, a.worker.options.Calls, a.claim.WorkerID, a.tool.Name,
			string(a.tool.Idempotency.Mode))
	})
	if err == nil {
		a.worker.noted.Store(a.tool.Name, true)
		return nil
	}
	if end := a.endedBefore(ctx); end != nil {
		return end
	}
	return &end{how: released}
}

// newCall returns the handler's view of its call.
func (a *attempt) newCall() *handlers.Call {
	return &handlers.Call{
		ID: a.claim.CallID, Tool: a.tool.Name, Attempt: a.claim.Number, SessionID: a.claim.SessionID,
		CreatedBy: a.claim.CreatedBy,
		SignedIn:  a.claim.SignedIn, Input: a.claim.Input,
	}
}

// executeSteps runs a durable handler, without a transaction, until it returns or a step ends the attempt.
func (a *attempt) executeSteps(ctx context.Context) *end {
	switch {
	case a.journal != nil:
	case a.claim.Number > 1: // an earlier attempt may have had effects although no step was recorded
		if end := a.readJournal(ctx); end != nil {
			return end
		}
	default:
		a.journal, _ = durable.Read(a.claim.Steps, nil)
	}
	a.steps = durable.New(a.durableOptions())
	life, endLife := a.claim.uncancelled(ctx)
	output, err := a.runHandler(a.steps.Begin(ctx, life, endLife))
	end := endOfExit(a.steps.Stop())
	a.worker.at("after", "handler")
	switch {
	case end != nil:
		return end
	case err == nil:
		a.judgeResult(output)
		return ended(receipts.Success(output))
	}
	return a.endOf(err, nil)
}

// mayRunAgain reports whether a second run is harmless: the first was rolled back, or the tool is declared idempotent.
func (a *attempt) mayRunAgain() bool {
	return inside(a.handler) || a.tool.Idempotency.Mode != registry.None
}

// inside reports whether Postgres keeps track of a handler's effects: an unfinished transaction is rolled back, and
// steps are in the journal.
func inside(h *binding.Handler) bool { return h != nil && (h.Transactional || h.Durable) }

// mustNotRepeat ends a call whose earlier attempts may have had effects that must not happen twice. A deploy may have
// changed the tool's mode, key field or backend since those attempts. The call ends if either the tool's old registry
// entry or its present one forbids a second run.
func (a *attempt) mustNotRepeat(ctx context.Context) *end {
	none, keyed := a.tool.Idempotency.Mode == registry.None, a.tool.Idempotency.Mode == registry.Keyed
	switch {
	case a.claim.Number == 1 || a.claim.Steps > 0 || a.claim.Losses == 0 && !none && !keyed ||
		slices.Contains(registry.Asking, a.claim.Tool):
		return nil
	case a.claim.Losses == 0 || a.handler == nil || a.mayRunAgain():
		var key *string
		if keyed {
			field := a.tool.Idempotency.KeyField
			now, _ := receipts.Key(a.tool.Name, field, a.field(field))
			key = &now
		}
		ctx, done := a.claim.uncancelled(ctx)
		defer done(nil)
		var must bool
		err := a.persist(ctx, "look at what earlier attempts may have done", func(ctx context.Context) (err error) {
			must, err = store.MustNotRepeat(ctx, a.worker.options.Calls, a.claim.Attempt, none, inside(a.handler),
				key)
			return err
		})
		switch {
		case err != nil: // the worker stops, or the call was cancelled: the next worker decides again
			return &end{how: released}
		case !must:
			return nil
		}
	}
	if a.claim.Losses == 0 {
		return failed(receipts.OutcomeUnknown, fmt.Sprintf("An earlier attempt may have taken effect, and under the current "+
			"registry %s must not run twice. Check whether it took effect, and if not, make a new call.", a.tool.Name), nil)
	}
	return failed(receipts.OutcomeUnknown, fmt.Sprintf(
		"The worker that ran the call was lost, and %s must not run twice. It is not known whether the call took effect. "+
			"Check whether it did, and if not, make a new call.", a.tool.Name), nil)
}

// retry returns the policy for retries of the call.
func (a *attempt) retry() registry.Retry { return a.tool.Retry(a.handler != nil && a.handler.Remote) }

// mayHaveDone describes, for a receipt, the possible effects of an interrupted attempt.
func (a *attempt) mayHaveDone() string {
	switch {
	case slices.Contains(registry.Asking, a.claim.Tool):
		return "A question has no effects."
	case a.claim.Steps > 0 || a.handler != nil && a.handler.Durable:
		return "The effects of its steps remain, and the receipt lists them. An interrupted step may have done more."
	case a.handler != nil && a.handler.Transactional:
		return "It had no effect: its transaction was rolled back."
	case a.call == nil: // another worker ran it
		return "Its effects are not known."
	}
	return "The receipt lists its known effects; there may be more."
}

func (a *attempt) notAllowed() *end {
	lost := ""
	if a.claim.Losses > 0 {
		lost = " The effects of an earlier attempt, whose worker was lost, are not known."
	}
	return failed(receipts.NotAllowed, fmt.Sprintf(
		"%s is closed to signed-in users: it %s. A server may call it with a secret key. "+
			`To open it, set "frontends": true in its entry in the registry.%s`, a.tool.Name, a.tool.ClosedBecause(), lost),
		nil)
}

func (a *attempt) invalidInput(faults []receipts.Fault) *end {
	problems := make([]string, 0, len(faults))
	for _, f := range faults {
		problems = append(problems, strings.TrimPrefix(f.Path+": ", ": ")+f.Message)
	}
	return failed(receipts.ValidationError, fmt.Sprintf("The input does not fit %s: %s", a.tool.Name,
		strings.Join(problems, "; ")), faults)
}

// fields returns the fields of every log line about this attempt.
func (a *attempt) fields(more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("call_id", a.claim.CallID), zap.String("tool", a.claim.Tool),
		zap.Int("attempt", a.claim.Number)},
		more...)
}

// at marks a point in an attempt, just before or after a persistent change. Tests end the process there.
func (w *Worker) at(when, what string) {
	if w.options.hook != nil {
		w.options.hook(when, what)
	}
}

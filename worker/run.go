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
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"go.uber.org/zap"
)

// attempt is one run of a call, from its claim to its end.
type attempt struct {
	*Worker
	*claimedCall
	started time.Time
	span    *attemptSpan // nil without telemetry
	tool    *registry.Tool
	handler *handlers.Handler
	key     string // the computed idempotency key; empty for none
	// inputDiffers: the key succeeded before with another input.
	inputDiffers bool
	call         *handlers.Call  // what the handler knows, and where it records its effects; nil until it runs
	tx           *lanes.Tx       // the handler's transaction; nil until the handler runs, and for a durable one
	steps        *steps          // of a durable handler, and of a call that has steps
	judged       rules.Judgement // of what the call shows
	ruling       *receipts.Rules // what the rules said; nil if they said nothing
	cause        error           // why the call's context had ended when the last step did; nil if it had not
}

// run is the life of a claimed call on this worker. Each step returns how the attempt ends, or nil if it goes on; run returns
// how it ended.
func (w *Worker) run(c *claimedCall) *end {
	a := &attempt{Worker: w, claimedCall: c, started: time.Now()}
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

// decide ends what can be decided without running anything: the call was cancelled or taken away, the worker stops, the tool is
// unknown or closed, the input is wrong, nobody wrote a handler, lost attempts forbid another, or the input refuses itself.
func (a *attempt) decide(ctx context.Context) *end {
	var known, bound bool
	a.tool, known = a.options.Registry.Tool(a.Tool)
	if a.Steps > 0 {
		if end := a.readSteps(ctx); end != nil {
			return end
		}
	}
	if end := a.endedBefore(ctx); end != nil {
		return end
	}
	if !known {
		return a.leaveUnknown(ctx)
	}
	if a.SignedIn && !a.Child && !a.tool.Frontends {
		return a.notAllowed()
	}
	if a.Steps == 0 { // a call that has begun goes on
		if end := a.checkInput(ctx); end != nil {
			return end
		}
	}
	a.handler, bound = a.options.Handlers.For(a.tool.Name)
	switch {
	case a.Steps > 0 && (!bound || !a.handler.Durable):
		return withoutCode(fmt.Sprintf("The program has no durable handler for %s.", a.tool.Name))
	case !bound:
		return ended(a.livesNowhere())
	}
	switch most := a.retry().MaxAttempts; {
	case a.Losses > 0 && !a.mayRunAgain():
		return failed(receipts.OutcomeUnknown, fmt.Sprintf("The worker that ran the call was lost, and %s must not run twice: whether it took "+
			"effect is not known. Look for its effect, and make a new call if there is none.", a.tool.Name), nil)
	case a.Losses > 0 && a.Spent() >= most:
		return failed(receipts.WorkerLost, fmt.Sprintf("The call lost its worker %d times, and has spent its %d attempts.", a.Losses, most),
			map[string]int{"lost_attempts": a.Losses, "max_attempts": most})
	case a.Cancelled && (a.Steps == 0 || !a.handler.Durable):
		return a.cancelledBefore()
	case a.handler.Durable && a.Age >= a.tool.Deadline:
		return ended(a.pastDeadline())
	case a.handler.Checks && a.Steps == 0:
		return a.askInput(ctx)
	}
	return nil
}

// livesNowhere is the outcome of a call whose tool nobody wrote.
func (a *attempt) livesNowhere() receipts.Outcome {
	domain, method, _ := strings.Cut(a.tool.Name, ".")
	return receipts.Unconfigured(fmt.Sprintf("%s is registered and has no handler on this worker, in none of the places where tools live.", a.tool.Name), nil, []string{
		fmt.Sprintf("SQL: create the function tools.%s(input jsonb) returns jsonb.", strings.ReplaceAll(a.tool.Name, ".", "_")),
		fmt.Sprintf(`HTTP: name the service of %s in domains.json, as in {"%[1]s": {"http": {"url": ..., "secret_env": ...}}}, and restart the worker.`, domain),
		fmt.Sprintf(`MCP: name the server of %s in domains.json, as in {"%[1]s": {"mcp": {"url": ...}}}, and restart the worker.`, domain),
		fmt.Sprintf("Go: write the method %s of the domain %s, and deploy a worker with it.", method, domain),
		"Then make the call again. docs/tools.md has an example of each.",
	})
}

// deadline is how long after it was to run the call ends, if its handler is durable: as long as any may have, where its tool is not known.
func (a *attempt) deadline() time.Duration {
	if a.tool == nil {
		return 366 * 24 * time.Hour
	}
	return a.tool.Deadline
}

// pastDeadline is the outcome of a call whose time is over, whatever it waited for.
func (a *attempt) pastDeadline() receipts.Outcome {
	return receipts.Failure(receipts.Timeout, fmt.Sprintf("%s was not done within %s. What its steps did stays, and is in its effects.",
		a.Tool, a.deadline()), map[string]int64{"deadline_ms": a.deadline().Milliseconds()})
}

// endedBefore ends an attempt whose context has ended before its handler began; it returns nil if that has not. Of a cancelled
// call that lost workers, decide says at its end what is known.
func (a *attempt) endedBefore(ctx context.Context) *end {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return nil
	case errors.Is(cause, errNotHeld):
		return &end{how: notHeld}
	case errors.Is(cause, errStopping):
		return &end{how: released}
	case a.Losses > 0 && a.handler == nil || a.Steps > 0: // its handler may clean up
		a.Cancelled = true
		return nil
	}
	return a.cancelledBefore()
}

// cancelledBefore ends a call that was cancelled before this attempt began to run it.
func (a *attempt) cancelledBefore() *end {
	message := "The call was cancelled before it ran."
	switch {
	case a.Losses > 0:
		message = "The call was cancelled before it ran again, after an attempt that lost its worker. " + a.mayHaveDone()
	case a.Number > 1:
		message = "The call was cancelled before it ran again."
	}
	return failed(receipts.Cancelled, message, nil)
}

// withoutCode leaves a call that made progress to a program that knows it.
func withoutCode(message string) *end {
	return &end{how: waitingForCode, misfit: store.Misfit{Message: message}}
}

// mayWait turns the end of a call that would wait for code beyond its time into its last one.
func (a *attempt) mayWait(e *end) *end {
	switch {
	case a.CancelledFor >= cleanUpTime:
		return failed(receipts.Cancelled, fmt.Sprintf("The call was cancelled, and no program could let its handler clean up within %s: %s %s", cleanUpTime,
			e.misfit.Message, a.mayHaveDone()), e.misfit)
	case a.Age >= a.deadline():
		return ended(a.pastDeadline())
	}
	return e
}

// leaveUnknown leaves a call of a tool that this registry lacks to a worker whose registry has it. If none has lived for some minutes,
// nobody knows the tool.
func (a *attempt) leaveUnknown(ctx context.Context) *end {
	var left bool
	ctx, done := a.uncancelled(ctx)
	defer done(nil)
	err := a.persist(ctx, "look for a worker that knows the tool", func(ctx context.Context) (err error) {
		left, err = store.LeaveTo(ctx, a.options.Calls, a.Attempt, knows(a.Tool))
		return err
	})
	switch {
	case store.IsNotHeld(err):
		return &end{how: notHeld}
	case err != nil: // the worker stops, or the call was cancelled: whoever claims it next decides again
		return &end{how: released}
	case left:
		return &end{how: leftToOthers}
	case a.Steps > 0:
		return withoutCode(fmt.Sprintf("The registry %s has no tool %q.", a.options.Registry.Version, value.Shorten(a.Tool, 200)))
	}
	known := a.options.Registry
	hint := cmp.Or(known.DidYouMean(a.Tool), ".")
	if a.Losses > 0 {
		return failed(receipts.OutcomeUnknown, fmt.Sprintf("The worker that ran the call was lost, and no worker knows %s any more: whether it "+
			"took effect is not known. Look for its effect.", value.Shorten(a.Tool, 200)), nil)
	}
	return failed(receipts.UnknownTool, fmt.Sprintf("The registry %s has no tool %q%s `gem registry list` shows those that it has.",
		known.Version, value.Shorten(a.Tool, 200), hint), nil)
}

// takeKey asks for the call's idempotency key, if it has one, and for what the rules ask. The attempt ends if the key has succeeded before,
// or is held by another call, and where the rules end it.
func (a *attempt) takeKey(ctx context.Context) *end {
	if a.Steps > 0 { // it has kept its key since its first attempt
		return nil
	}
	switch field := a.tool.Idempotency.KeyField; a.tool.Idempotency.Mode {
	case registry.SafeRetry:
		if key := receipts.TrimKey(a.ClientKey); key != "" {
			a.key = receipts.ClientKey(a.tool.Name, a.CreatedBy, key)
		}
	case registry.Keyed:
		value := a.field(field)
		key, present := receipts.Key(a.tool.Name, field, value)
		switch {
		case len(value) > maxKeyValue:
			return a.invalidInput([]registry.Fault{{Path: "/" + field, Keyword: "maxLength",
				Message: fmt.Sprintf("%s is the key of this tool, and may have at most %d bytes", field, maxKeyValue)}})
		case !present:
			return a.invalidInput([]registry.Fault{{Path: "/" + field, Keyword: "required",
				Message: field + " is the key of this tool and must not be empty"}})
		}
		a.key = key
	}
	var (
		held   store.Key
		ruled  *end
		err    error
		refuse = a.tool.Idempotency.OnOtherInput == registry.Refuse
	)
	switch {
	case len(a.judged.Checks) > 0:
		a.at("before", "gate")
		held, ruled, err = a.pass(ctx, a.key, a.tool.Idempotency.KeyField, refuse)
		a.at("after", "gate")
	case a.key == "":
		return nil
	default:
		a.at("before", "key")
		err = a.persist(ctx, "take the idempotency key", func(ctx context.Context) (err error) {
			return pgpool.ReadCommitted(ctx, a.options.Calls, func(db pgpool.Querier) (err error) { // it looks twice for a success
				held, err = store.HoldKey(ctx, db, a.Attempt, a.key, a.tool.Idempotency.KeyField, refuse)
				return err
			})
		})
		a.at("after", "key")
	}
	switch {
	case err != nil:
		if end := a.endedBefore(ctx); end != nil {
			return end
		}
		return a.endOf(err, nil)
	case held.Verdict == store.KeyBusy:
		return &end{how: waiting}
	case held.Verdict == store.KeyDeadlock:
		return failed(receipts.KeyDeadlock, fmt.Sprintf("A call on whose behalf this one was made has the same key, %s, and waits for its end: "+
			"a handler calls no tool with the key of its own call.", value.Shorten(a.key, 200)), nil)
	case held.InputDiffers && refuse:
		a.inputDiffers = true
		return failed(receipts.KeyReused, fmt.Sprintf("A call of %s with the same key succeeded before, with another input or for another "+
			"user. To do something else, make a call with another key; to get the result of a call of your own, send its input.", a.tool.Name),
			map[string]string{"receipt_id": held.ReceiptID})
	case held.Verdict == store.KeyHit:
		a.inputDiffers = held.InputDiffers
		return ended(receipts.Replay(held.ReceiptID, held.Result))
	}
	return ruled
}

// execute runs the handler, inside a transaction that begins with its first statement. If it succeeds, the transaction is
// still open: write commits it together with the receipt.
func (a *attempt) execute(ctx context.Context) *end {
	a.at("before", "handler")
	if end := a.endedBefore(ctx); end != nil {
		return end
	}
	a.call = a.newCall()
	if a.handler.Durable {
		return a.executeSteps(ctx)
	}
	ctx, a.tx = a.lanes.Begin(ctx, a.tool.Timeout)

	output, err := a.runHandler(ctx)
	a.at("after", "handler")
	if err == nil {
		if end := a.judgeResult(output); end != nil {
			return end
		}
		return ended(receipts.Success(output))
	}
	return a.endOf(err, a.rollback())
}

// newCall returns what the handler knows of its call.
func (a *attempt) newCall() *handlers.Call {
	return &handlers.Call{
		ID: a.CallID, Tool: a.tool.Name, Attempt: a.Number, SessionID: a.SessionID, CreatedBy: a.CreatedBy,
		SignedIn: a.SignedIn, Input: a.Input,
	}
}

// executeSteps runs a durable handler, which has no transaction of its own, up to its end or to a step that ends the attempt.
func (a *attempt) executeSteps(ctx context.Context) *end {
	switch {
	case a.steps != nil:
	case a.Number > 1: // which may have done something without making progress
		if end := a.readSteps(ctx); end != nil {
			return end
		}
	default:
		a.steps = newSteps(a)
	}
	output, err := a.runHandler(a.steps.start(ctx))
	end := a.steps.stop()
	a.at("after", "handler")
	switch {
	case end != nil:
		return end
	case err == nil:
		a.judgeResult(output)
		return ended(receipts.Success(output))
	}
	return a.endOf(err, nil)
}

// mayRunAgain reports whether a second run does no harm: the first one's rows went with its transaction, or the tool promises
// that running twice is like running once.
func (a *attempt) mayRunAgain() bool {
	return a.handler.Transactional || a.handler.Durable || a.tool.Idempotency.Mode != registry.None
}

// retry is the policy for retries of the call.
func (a *attempt) retry() registry.Retry { return a.tool.Retry(a.handler != nil && a.handler.Remote) }

// mayHaveDone says on a receipt what an attempt that was cut short may have done.
func (a *attempt) mayHaveDone() string {
	switch {
	case slices.Contains(registry.Asking, a.Tool):
		return "A question has no effects."
	case a.Steps > 0 || a.handler != nil && a.handler.Durable:
		return "What its steps did stays, and is in its effects; a step that was cut short may have done more."
	case a.handler != nil && a.handler.Transactional:
		return "Nothing of it stays: its rows went with its transaction."
	case a.call == nil: // it ran on another worker
		return "What it did is not known."
	}
	return "The effects list what it did as far as that is known; it may have done more."
}

func (a *attempt) notAllowed() *end {
	lost := ""
	if a.Losses > 0 {
		lost = " What an earlier attempt did whose worker was lost is not known."
	}
	return failed(receipts.NotAllowed, fmt.Sprintf("%s is closed to signed-in users: it %s. A server may call it with a secret key. Who keeps "+
		`the registry opens it with "frontends": true in its entry.%s`, a.tool.Name, a.tool.ClosedBecause(), lost), nil)
}

func (a *attempt) invalidInput(faults []registry.Fault) *end {
	problems := make([]string, 0, len(faults))
	for _, f := range faults {
		problems = append(problems, strings.TrimPrefix(f.Path+": ", ": ")+f.Message)
	}
	return failed(receipts.ValidationError, fmt.Sprintf("The input does not fit %s: %s", a.tool.Name, strings.Join(problems, "; ")), faults)
}

// fields are what every line of the log about this attempt has.
func (a *attempt) fields(more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("call_id", a.CallID), zap.String("tool", a.Tool), zap.Int("attempt", a.Number)}, more...)
}

// at passes a point of a call's life: just before or after something is done that outlives the process. Tests end the process
// there.
func (w *Worker) at(when, what string) {
	if w.options.hook != nil {
		w.options.hook(when, what)
	}
}

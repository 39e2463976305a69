package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"go.uber.org/zap"
)

// attempt is one run of a call, from its claim to its end.
type attempt struct {
	*Worker
	claimed
	tool    *registry.Tool
	handler *handlers.Handler
	call    *handlers.Call // nil until a handler is to run
	key     string         // the computed idempotency key; empty when the call has none
	hands   *hands         // what the handler runs on
	started time.Time
	seen    *seen // nil when nobody watches
}

// run takes a claimed call to its end: a receipt, or back to the queue. ctx ends when the call is to end early.
func (w *Worker) run(ctx context.Context, c claimed, hands *hands) {
	a := &attempt{Worker: w, claimed: c, hands: hands, started: time.Now()}
	ctx, a.seen = w.telemetry.begin(ctx, &a.claimed)
	if line := w.Log.Check(zap.DebugLevel, "call claimed"); line != nil {
		line.Write(a.named()...)
	}

	if why := context.Cause(ctx); why != nil && a.notBegun(why) {
		return
	}
	if outcome, ended := a.check(); ended {
		a.finish(outcome)
		return
	}
	switch held, err := a.holdKey(ctx); {
	case err != nil:
		a.settle(err, context.Cause(ctx), nil)
		return
	case held.Verdict == store.KeyBusy:
		a.ended(waiting, zap.String("key", a.key))
		return
	case held.Verdict == store.KeyHit:
		a.finish(receipts.Replay(held.ReceiptID, held.Result))
		return
	}
	a.execute(ctx)
}

// named are the fields that every line of the log about this attempt has.
func (a *attempt) named(more ...zap.Field) []zap.Field {
	return append([]zap.Field{zap.String("call_id", a.CallID), zap.String("tool", a.Tool), zap.Int("attempt", a.Number)}, more...)
}

// notBegun ends a call that was to end early before it began. It reports false where [attempt.check] has more to say.
func (a *attempt) notBegun(why error) bool {
	switch {
	case errors.Is(why, errCancelled) && a.Losses > 0:
		a.Cancelled = true
		return false
	case errors.Is(why, errCancelled):
		a.finish(receipts.Failure(receipts.Cancelled, "The call was cancelled before it ran.", nil))
	case errors.Is(why, errNotHeld):
		a.lost()
	default:
		a.release()
	}
	return true
}

// check decides what can be decided without running anything.
func (a *attempt) check() (receipts.Outcome, bool) {
	tool, known := a.Registry.Tool(a.Tool)
	if !known {
		return receipts.Failure(receipts.UnknownTool,
			fmt.Sprintf("The registry %s has no tool %q: see `gem registry list` for what it has.", a.Registry.Version, cut(a.Tool, 200)), nil), true
	}
	a.tool = tool
	if faults := tool.ValidateInput(a.Input); len(faults) > 0 {
		return invalidInput(tool.Name, faults), true
	}
	handler, bound := a.Handlers.For(tool.Name)
	if !bound {
		return receipts.Unconfigured(fmt.Sprintf("The tool %s is registered, and no handler is built for it.", tool.Name), nil,
			[]string{"Write the handler: see docs/tools.md.", "Deploy the worker with it, and make the call again."}), true
	}
	a.handler = handler
	if missing := a.computeKey(); missing != nil {
		return *missing, true
	}
	if a.Losses > 0 {
		if !a.mayRunAgain() {
			return receipts.Failure(receipts.OutcomeUnknown, fmt.Sprintf(
				"The worker that ran the call was lost, and %s may not run twice: whether it took effect is not known. "+
					"Look for its effect, and make a new call where there is none.", tool.Name), nil), true
		}
		if a.spent() >= tool.Retry.MaxAttempts {
			return receipts.Failure(receipts.WorkerLost, fmt.Sprintf(
				"The call lost its worker %d times, and has spent its %d attempts.", a.Losses, tool.Retry.MaxAttempts),
				map[string]int{"lost_attempts": a.Losses, "max_attempts": tool.Retry.MaxAttempts}), true
		}
	}
	if a.Cancelled {
		return receipts.Failure(receipts.Cancelled, fmt.Sprintf(
			"The call was cancelled while an attempt ran whose worker was lost. %s", a.whatIsKnown()), nil), true
	}
	return receipts.Outcome{}, false
}

func invalidInput(tool string, faults []registry.Fault) receipts.Outcome {
	problems := make([]string, 0, len(faults))
	for _, f := range faults {
		problems = append(problems, strings.TrimPrefix(f.Path+": ", ": ")+f.Message)
	}
	return receipts.Failure(receipts.ValidationError, fmt.Sprintf("The input does not fit %s: %s", tool, strings.Join(problems, "; ")), faults)
}

// mayRunAgain says whether a second run can do no harm: the first one's rows went with its transaction, or the tool
// promises that running twice is running once.
func (a *attempt) mayRunAgain() bool {
	return a.handler.Transactional || a.tool.Idempotency.Mode != registry.None
}

// whatIsKnown says, of an attempt that did not come to its end, what it may have done.
func (a *attempt) whatIsKnown() string {
	if a.handler.Transactional {
		return "Nothing of it stays: its rows went with its transaction."
	}
	return "What it did up to then is listed in the effects as far as it is known; it may have done more."
}

// computeKey sets the call's idempotency key, if the tool has one, and fails the call whose key field is missing or empty.
func (a *attempt) computeKey() *receipts.Outcome {
	switch field := a.tool.Idempotency.KeyField; a.tool.Idempotency.Mode {
	case registry.SafeRetry:
		if a.ClientKey != "" {
			a.key = receipts.ClientKey(a.tool.Name, a.CreatedBy, a.ClientKey)
		}
	case registry.Keyed:
		key, present := receipts.Key(a.tool.Name, field, a.keyValue())
		if !present {
			outcome := invalidInput(a.tool.Name, []registry.Fault{{Path: "/" + field, Keyword: "required",
				Message: field + " is the key of this tool and must not be empty"}})
			return &outcome
		}
		a.key = key
	}
	return nil
}

func (a *attempt) keyValue() json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(a.Input, &fields) != nil {
		return nil
	}
	return fields[a.tool.Idempotency.KeyField]
}

// holdKey asks the database for the call's key. A call without one may run.
func (a *attempt) holdKey(ctx context.Context) (store.Key, error) {
	held := store.Key{Verdict: store.KeyTaken}
	if a.key == "" {
		return held, nil
	}
	a.at(BeforeKey)
	defer a.at(AfterKey)
	err := a.persist(ctx, "hold the idempotency key", func(ctx context.Context) (err error) {
		held, err = store.HoldKey(ctx, a.calls, a.Attempt, a.key)
		return err
	})
	return held, err
}

// execute runs the handler and turns what comes out into the call's end.
func (a *attempt) execute(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, a.tool.Timeout)
	defer cancel()
	a.call = &handlers.Call{ID: a.CallID, Tool: a.tool.Name, Attempt: a.Number, SessionID: a.SessionID, CreatedBy: a.CreatedBy, Input: a.Input}
	tx := &callTx{lanes: a.lanes, ctx: ctx, cancel: cancel}

	a.at(BeforeHandler)
	output, err := a.runHandler(ctx, tx)
	a.at(AfterHandler)
	cause := context.Cause(ctx) // what happens from here on is not the handler's doing
	if err == nil {
		if faults := a.tool.ValidateOutput(output); len(faults) > 0 {
			err = &invalidOutput{tool: a.tool.Name, faults: faults}
		}
	}
	if err == nil && tx.used() {
		err = a.commit(tx, receipts.Success(output))
		if err == nil {
			return
		}
	}
	tx.rollback()
	if err == nil {
		a.finish(receipts.Success(output))
		return
	}
	a.settle(err, cause, tx.broken())
}

// runHandler runs the handler in another goroutine, so that one which ignores its context costs that goroutine and nothing
// else. What it does after it was given up reaches neither the transaction nor the receipt.
func (a *attempt) runHandler(ctx context.Context, tx *callTx) (json.RawMessage, error) {
	type result struct {
		output json.RawMessage
		err    error
	}
	returned := make(chan result, 1)
	a.hands.do(func() {
		r := result{err: errGone}
		defer func() {
			if v := recover(); v != nil {
				a.Log.Error("the handler panicked", a.named(zap.String("panic", cut(fmt.Sprint(v), 500)), zap.ByteString("stack", debug.Stack()))...)
				r = result{err: &panicked{value: v}}
			}
			returned <- r
		}()
		output, err := a.handler.Run(ctx, tx, a.call)
		r = result{output, err}
	})
	r, late := result{}, false
	select {
	case r = <-returned:
	case <-ctx.Done():
		select {
		case r = <-returned:
		case <-time.After(reactionTime):
			r, late = result{err: ctx.Err()}, true
			a.Log.Error("the handler ignores that its context has ended: it is given up", a.named(zap.String("handler", a.handler.Func), zap.String("file", a.handler.File))...)
		}
	}
	if late || errors.Is(r.err, errGone) {
		a.hands.leave()
	}
	return r.output, r.err
}

// errGone is the error of a handler that called runtime.Goexit.
var errGone = &panicked{value: "the handler ended its goroutine"}

// panicked is the error of a handler that panicked.
type panicked struct{ value any }

func (e *panicked) Error() string { return fmt.Sprint(e.value) }

// invalidOutput is the error of an output that its schema forbids.
type invalidOutput struct {
	tool   string
	faults []registry.Fault
}

func (e *invalidOutput) Error() string {
	return fmt.Sprintf("The output of %s does not fit its schema.", e.tool)
}

func cut(s string, limit int) string {
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}

// commit writes the receipt into the handler's transaction and commits both.
func (a *attempt) commit(tx *callTx, outcome receipts.Outcome) error {
	a.at(BeforeCommit)
	committing, err := tx.finish(a.final(outcome, a.call.Effects()))
	switch {
	case err == nil:
		a.at(AfterCommit)
		a.endedWith(outcome)
		return nil
	case errors.Is(err, errBlocked):
		return handlers.Transient(errBlocked)
	case errors.Is(err, errOpen):
		return fmt.Errorf("%s left the rows of a query open: read them to the end, or close them", a.handler.Func)
	case tx.broken() != nil:
		return fmt.Errorf("%s went on after a statement had failed: %w", a.handler.Func, tx.broken())
	case !committing && isRefusal(err):
		return &refused{err: err}
	case !committing && !store.IsNotHeld(err):
		return handlers.Transient(err) // Postgres has reasons of its own, and the receipt is not the handler's statement
	}
	return err
}

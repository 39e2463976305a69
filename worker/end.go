package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// end is how an attempt ends. The steps of run decide it; write carries it out.
type end struct {
	how     how
	outcome receipts.Outcome // of a receipt
	reason  error            // of a retry, and of a call that is left to recovery
	misfit  store.Misfit     // of a call that waits for code
	again   time.Time        // when a retried call may run again, set by write, and when a delayed one does
	late    bool             // a retried call took longer than its tool's timeout
}

// how names the kinds of ends, in the words of the journal where it has one.
type how string

const (
	receipted      how = "receipt"          // the call gets its receipt
	retried        how = "retried"          // after a transient error it goes back into the queue, to run again later
	delayed        how = "delayed"          // a rule gave it a turn: it is in the queue until then
	released       how = "released"         // the worker stops: it goes back into the queue at once
	waiting        how = "waiting"          // another call runs with its key, or its handler waits
	waitingForCode how = "waiting_for_code" // this program cannot go on with it: it waits for another
	leftToOthers   how = "left_to_others"   // other workers know its tool: it is back in the queue, for them
	notHeld        how = "not_held"         // the call is another attempt's, or has ended: nothing is written
	leftToRecovery how = "left_to_recovery" // the end could not be written; the call stays running until this worker has stopped
)

func ended(o receipts.Outcome) *end { return &end{how: receipted, outcome: o} }

func failed(code receipts.Code, message string, details any) *end {
	return ended(receipts.Failure(code, message, details))
}

// write carries out an end, and logs it. Every attempt that has begun ends here, with three exceptions: gem.hold_key parks a call
// whose key is taken, gem.gate one that waits for people or for its turn, and gem.leave_to leaves one to workers that know its tool.
func (a *attempt) write(e *end) *end {
	if e.how == waitingForCode {
		e = a.mayWait(e)
	}
	a.at("before", string(e.how))
	var err error
	switch e.how {
	case receipted:
		if a.tx != nil && a.tx.Open() {
			written, err := a.tx.Finish(a.final(e.outcome).Statement())
			if err != nil {
				return a.write(a.endOfCommit(err, written))
			}
			break
		}
		if a.tx != nil {
			_ = a.tx.Rollback() // it has written nothing
		}
		if e, err = a.writeReceipt(e); e.how == released {
			return a.write(e)
		}
	case retried:
		e.again, err = a.putBack(e)
		if err == nil && e.again.IsZero() { // its attempts are spent
			return a.write(ended(a.spentOn(e)))
		}
	case delayed:
		a.wakeAt(e.again)
	case released:
		err = a.persist(context.Background(), "hand the call over", func(ctx context.Context) error {
			return store.Release(ctx, a.options.Calls, a.Attempt, a.notKept())
		})
	case waitingForCode:
		err = a.persist(context.Background(), "put the call aside", func(ctx context.Context) error {
			return store.WaitForCode(ctx, a.options.Calls, a.Attempt, e.misfit, a.notKept(), a.deadline())
		})
	}
	switch {
	case err == nil:
		a.at("after", string(e.how))
		if e.how == receipted && a.Child { // its parent may be back at an earlier place
			a.lookBehind()
		}
	case store.IsNotHeld(err):
		e = &end{how: notHeld}
	default:
		e = &end{how: leftToRecovery, reason: err}
	}
	if e.how == notHeld {
		if e = a.ownReceipt(); e.how == notHeld {
			a.sweepSoon() // the call is this worker's all the same if a failover has set the database back
		}
	}
	if e.how == receipted && a.Awaited {
		a.ends.add(a.CallID)
	}
	a.tell(e)
	return e
}

// endOf says how an attempt ends whose step gave an error. broken is the error that broke the handler's transaction, whatever the
// handler made of it; nil if there was none. The transaction is rolled back by now.
func (a *attempt) endOf(err, broken error) *end {
	switch {
	case store.IsNotHeld(err) || errors.Is(a.cause, errNotHeld):
		return &end{how: notHeld}
	case errors.Is(a.cause, errCancelled):
		while := " while it ran"
		if a.handler != nil && a.handler.Durable { // it may have been waiting
			while = ""
		}
		var details any // the last words of a handler
		if failure := (*handlers.Failure)(nil); errors.As(err, &failure) {
			details = failure.Details
		}
		return failed(receipts.Cancelled, "The call was cancelled"+while+". "+a.mayHaveDone(), details)
	case errors.Is(a.cause, errStopping) && (a.mayRunAgain() || nothingSent(err)):
		return &end{how: released}
	case errors.Is(a.cause, errStopping):
		return failed(receipts.OutcomeUnknown, fmt.Sprintf("The worker was stopped in the middle of the call, and %s must not run twice: "+
			"whether it took effect is not known.", a.tool.Name), nil)
	case errors.Is(broken, lanes.ErrNoConnection) && a.mayRunAgain(): // the handler had not begun, even if its time is over
		return &end{how: retried, reason: lanes.ErrNoConnection}
	case errors.Is(a.cause, errDeadline):
	case nothingSent(err):
		return &end{how: retried, reason: err}
	case errors.Is(a.cause, context.DeadlineExceeded) && a.tool.Idempotency.Mode != registry.None:
		return &end{how: retried, reason: err, late: true}
	case errors.Is(a.cause, context.DeadlineExceeded):
	case (isTransient(err) || isTransient(broken)) && a.mayRunAgain():
		return &end{how: retried, reason: err}
	}
	return ended(a.failure(err))
}

// endOfCommit rolls back a handler's transaction that could not be committed with its receipt, and says how the attempt ends.
// written means that the receipt was accepted, and the commit refused.
func (a *attempt) endOfCommit(err error, written bool) *end {
	broken := a.rollback()
	switch {
	case errors.Is(err, lanes.ErrBlocked):
		err = handlers.Transient(lanes.ErrBlocked)
	case store.IsNotHeld(err): // or the transaction itself moved the call: a receipt in a transaction of its own tells which
		err = fmt.Errorf("%s failed: the call is not its own in its transaction", a.handler.Func)
	case errors.Is(err, lanes.ErrStatementOpen):
		err = fmt.Errorf("%s left the rows of a query open: read them to the end, or close them", a.handler.Func)
	case errors.Is(broken, lanes.ErrNoTransaction):
		err = fmt.Errorf("%s failed: %w", a.handler.Func, lanes.ErrNoTransaction)
	case errors.Is(err, lanes.ErrBroken):
		err = fmt.Errorf("%s %w: %w", a.handler.Func, lanes.ErrBroken, broken)
	case !written && store.IsRefusal(err):
		err = &unstorable{tool: a.tool.Name, err: err}
	case !written: // the receipt is not the handler's statement: Postgres has reasons of its own
		err = handlers.Transient(err)
	}
	return a.endOf(err, broken)
}

// failure turns the last error of an attempt into the outcome of its call.
func (a *attempt) failure(err error) receipts.Outcome {
	var (
		notConfigured *handlers.NotConfigured
		failed        *handlers.Failure
		unencodable   *handlers.OutputError
		unfit         *invalidOutput
		refused       *unstorable
		panicking     *panicked
	)
	switch {
	case errors.As(err, &notConfigured):
		return receipts.Unconfigured(notConfigured.Reason, notConfigured.RequiredEnv, notConfigured.NextSteps)
	case errors.As(err, &panicking):
		return receipts.Failure(receipts.Panic, fmt.Sprintf("%s panicked: %s", a.handler.Func, value.Shorten(panicking.Error(), 500)), nil)
	case errors.Is(a.cause, errDeadline):
		return a.pastDeadline()
	case errors.As(err, &failed) && failed.Code == string(receipts.OutcomeUnknown) && !a.mayRunAgain(): // more than that its time is over
		return receipts.Failure(receipts.OutcomeUnknown, failed.Message, failed.Details)
	case errors.Is(a.cause, context.DeadlineExceeded):
		details := map[string]int64{"timeout_ms": a.tool.Timeout.Milliseconds()}
		if spent := a.spent() + 1; spent > 1 {
			details["attempts"] = int64(spent)
		}
		return receipts.Failure(receipts.Timeout, fmt.Sprintf("%s took longer than its %s.", a.tool.Name, a.tool.Timeout), details)
	case errors.As(err, &unfit):
		return receipts.Failure(receipts.OutputInvalid, unfit.Error(), unfit.faults)
	case errors.As(err, &unencodable):
		return receipts.Failure(receipts.OutputInvalid,
			fmt.Sprintf("The output of %s cannot be encoded as JSON: %v", a.tool.Name, unencodable.Err), nil)
	case errors.As(err, &refused):
		return receipts.Failure(receipts.OutputInvalid, refused.Error(), nil)
	case errors.Is(err, lanes.ErrBroken):
		return receipts.Failure(receipts.ExecutionError, err.Error(), nil).Within(contextOf(err))
	case errors.As(err, &failed):
		code := receipts.Code(failed.Code)
		if code == "" {
			code = receipts.ExecutionError
		}
		return receipts.Failure(code, failed.Message, failed.Details).Within(contextOf(err))
	}
	if refusedBy(err) != nil {
		return a.failure(refusal(err, a.CallID))
	}
	var details any
	if spent := a.spent() + 1; spent > 1 {
		details = map[string]int{"attempts": spent}
	}
	return receipts.Failure(receipts.ExecutionError, publicMessage(err), details)
}

// contextOf returns the part of an error that only operators may read, or "".
func contextOf(err error) string {
	if failed := (*handlers.Failure)(nil); errors.As(err, &failed) {
		return failed.Context
	}
	return ""
}

// publicMessage is the text of a handler's error on a receipt. Errors of Postgres are hidden: see [refusal].
func publicMessage(err error) string {
	if isHidden(err) {
		return refusedMessage
	}
	return ownMessage(err)
}

// ownMessage is the text of an error of the worker's own statements. Connection errors are hidden: they name hosts and users.
func ownMessage(err error) string {
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		return "Postgres could not be reached."
	}
	return err.Error()
}

// isTransient reports whether the next attempt may succeed: the handler says so, or Postgres does.
func isTransient(err error) bool {
	var transient *handlers.TransientError
	switch {
	case errors.As(err, &transient):
		return true
	case errors.Is(err, lanes.ErrEnded) || errors.Is(err, lanes.ErrStatementOpen):
		return false
	}
	return store.IsTransient(err) || errors.Is(err, lanes.ErrConnectionLost)
}

// nothingSent reports whether the attempt had no effect, so that the call may run again in any mode of its tool.
func nothingSent(err error) bool {
	transient := (*handlers.TransientError)(nil)
	return errors.As(err, &transient) && transient.NothingSent
}

// pauseOf returns how long an error asks to wait at least before the next attempt.
func pauseOf(err error) time.Duration {
	if transient := (*handlers.TransientError)(nil); errors.As(err, &transient) {
		return transient.After
	}
	return 0
}

// maxKeyValue limits, in bytes, the value of a tool's key field.
const maxKeyValue = 1 << 10

// final is the receipt of an outcome, with the effects that the handler has recorded.
func (a *attempt) final(outcome receipts.Outcome) store.Final {
	var effects receipts.Effects
	var steps int
	if a.steps != nil {
		steps = a.steps.before()
		effects.Effects, effects.Durable = a.steps.effects(), a.steps.summary()
	}
	if a.call != nil && !a.handler.Durable {
		own := a.call.Effects()
		if a.handler.Transactional && !a.tx.Open() {
			own.DBWrites = nil // they went with the transaction
		}
		effects.Add(own)
	}
	if a.tool != nil {
		key := &effects.Idempotency
		decided := a.keyedBy()
		key.Mode, key.Hit, key.KeyField = string(decided.Mode), outcome.ReplayOf != "", decided.KeyField
		key.InputDiffers, key.KeyIgnored = a.inputDiffers, key.Mode != string(registry.SafeRetry) && a.ClientKey != ""
		if key.KeyField != "" {
			if value := a.field(key.KeyField); len(value) <= maxKeyValue {
				key.KeyValue = value
			}
		}
	}
	effects.Rules = a.ruling
	encoded, err := json.Marshal(effects)
	if err != nil { // it has strings, numbers, and JSON from the input: this cannot happen, and must not cost the receipt
		encoded = []byte("{}")
	}
	return store.Final{Attempt: a.Attempt, Outcome: outcome, Effects: receipts.CleanJSON(encoded),
		RegistryVersion: a.options.Registry.Version, Steps: steps}
}

// writeReceipt writes a receipt in a transaction of its own, and returns the end that it tells of. It goes on until it is written,
// whatever Postgres has against it: what ran must not run again for that. A receipt that Postgres cannot store is followed by one
// that says so, and that one by one without effects.
func (a *attempt) writeReceipt(e *end) (*end, error) {
	final, refusals := a.final(e.outcome), 0
	err := a.persist(context.Background(), "write the receipt", func(ctx context.Context) error {
		err := a.lanes.Write(ctx, final.Statement())
		switch {
		case store.IsGone(err): // the receipt that it was to repeat was pruned meanwhile: the call is decided again
			e = &end{how: released}
			return nil
		case !store.IsRefusal(err):
			return err
		}
		refusals++
		e = failed(receipts.OutputInvalid, (&unstorable{tool: a.Tool, err: err}).Error(), nil)
		final = a.final(e.outcome)
		if refusals > 1 {
			final.Effects = []byte("{}")
		}
		return errors.New(err.Error()) // which persist takes for an error that may pass
	})
	return e, err
}

// putBack puts the call back after a transient error, to run again at the time that it returns. It returns the zero time if
// its attempts are spent.
func (a *attempt) putBack(e *end) (again time.Time, err error) {
	failure := receipts.Failure(receipts.ExecutionError, publicMessage(e.reason), nil)
	if e.late {
		failure = a.failure(e.reason)
	}
	failure = failure.Within(contextOf(public(e.reason, a.CallID)))
	retry := a.retry()
	if nothingSent(e.reason) && a.tool.Idempotency.Mode == registry.None {
		retry.MaxAttempts = max(retry.MaxAttempts, registry.TriesToSend)
	}
	err = a.persist(context.Background(), "put the call back", func(ctx context.Context) error {
		again, err = store.Retry(ctx, a.options.Calls, a.Attempt, failure, retry, pauseOf(e.reason), a.notKept())
		return err
	})
	if err == nil && !again.IsZero() {
		a.wakeAt(again)
	}
	return again, err
}

// spentOn is the outcome of a call whose last attempt failed as e says.
func (a *attempt) spentOn(e *end) receipts.Outcome {
	if !e.late {
		a.cause = nil // its time may still be over
	}
	return a.failure(e.reason)
}

// wakeAt lets the loop look for calls when one that this attempt put back may run.
func (a *attempt) wakeAt(again time.Time) {
	time.AfterFunc(time.Until(again), func() { signal(a.wake) })
}

// persist runs a statement until Postgres has done or refused what it says: a connection may break, a server restart, or take
// no writes for a while. It gives up when ctx ends, and some time after the worker was told to stop.
func (a *attempt) persist(ctx context.Context, doing string, statement func(context.Context) error) error {
	pause := 50 * time.Millisecond
	for {
		try, cancel := context.WithTimeout(ctx, a.tryTimeout())
		err := statement(try)
		cancel()
		answered := err == nil || store.IsRefusal(err) || store.IsNotHeld(err)
		if answered || ctx.Err() != nil || a.givingUp() {
			return err
		}
		a.warn(err, doing+", trying again", a.fields(zap.Duration("pause", pause))...)
		sleep(ctx, jitter(pause))
		pause = min(pause*2, 2*time.Second)
	}
}

// ownReceipt checks whether an attempt that no longer holds its call has ended it itself: the answer to its commit may have been
// lost.
func (a *attempt) ownReceipt() *end {
	ctx, cancel := context.WithTimeout(context.Background(), a.tryTimeout())
	defer cancel()
	r, err := store.Receipt(ctx, a.options.Calls, a.CallID)
	if err != nil || r.Attempt != a.Number || r.WorkerID != a.WorkerID {
		return &end{how: notHeld}
	}
	failure, _ := r.Error()
	return ended(receipts.Outcome{Status: r.Status, Code: failure.Code, ReplayOf: r.ReplayOf})
}

// tell logs an end, and tells telemetry.
func (a *attempt) tell(e *end) {
	if a.span != nil {
		a.span.end(e)
		a.span.ruled(e, a.ruling)
	}
	if e.how == leftToRecovery {
		a.log.Error("the call is left to recovery", a.fields(zap.Error(e.reason))...)
		return
	}
	fields := a.fields(zap.String("outcome", e.name()), zap.Duration("duration", time.Since(a.started)))
	if e.outcome.Code != "" {
		fields = append(fields, zap.String("error_code", string(e.outcome.Code)))
	}
	if context := cmp.Or(e.outcome.Context, contextOf(e.reason)); context != "" {
		fields = append(fields, zap.String("context", context))
	}
	if e.outcome.ReplayOf != "" {
		fields = append(fields, zap.String("replay_of", e.outcome.ReplayOf))
	}
	switch e.how {
	case waiting:
		if a.key != "" {
			fields = append(fields, zap.String("key", a.key))
		}
	case waitingForCode:
		a.log.Warn("the program cannot go on with the call, which waits for one that can", append(fields, zap.String("name", e.misfit.Name),
			zap.String("error", e.misfit.Message))...)
		return
	case delayed:
		fields = append(fields, zap.Duration("again_in", time.Until(e.again)))
	case retried:
		reason := value.Shorten(publicMessage(e.reason), 500)
		fields = append(fields, zap.Duration("again_in", time.Until(e.again)), zap.String("error", reason))
	}
	a.log.Info("call ended", fields...)
}

// name is the status of the call, or refused or cancelled if it failed in that way, or how its attempt ended.
func (e *end) name() string {
	if e.how == receipted {
		return receipts.Ended(string(e.outcome.Status), e.outcome.Code)
	}
	return string(e.how)
}

// handOver gives back the calls that were claimed and have not begun, all at once, and returns how many there were.
func (w *Worker) handOver() int {
	w.mu.Lock()
	ready := w.ready
	w.ready = nil
	w.mu.Unlock()
	if len(ready) == 0 {
		return 0
	}
	attempts := make([]store.Attempt, len(ready))
	for i, c := range ready {
		attempts[i] = c.Attempt
	}
	w.at("before", string(released))
	e := &end{how: leftToRecovery}
	for e.how != released && !w.givingUp() {
		err := w.releaseAll(context.Background(), attempts)
		if err == nil {
			e.how = released
			break
		}
		w.warn(err, "hand over the calls that have not begun")
		sleep(context.Background(), 200*time.Millisecond)
	}
	w.at("after", string(released))
	for _, c := range ready {
		if w.telemetry != nil {
			_, span := w.telemetry.begin(c.ctx, c)
			span.end(e)
		}
		w.forget(c)
	}
	return len(ready)
}

// releaseAll gives back calls that did not run here.
func (w *Worker) releaseAll(ctx context.Context, attempts []store.Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, min(controlTimeout, w.tryTimeout()))
	defer cancel()
	return store.ReleaseAll(ctx, w.options.Control, w.id, attempts)
}

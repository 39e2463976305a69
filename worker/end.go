package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/lanes"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker/internal/plain"
	"go.uber.org/zap"
)

// end is the end of an attempt. The steps of run decide it, and write applies it.
type end struct {
	how     how
	outcome receipts.Outcome // of a receipt
	reason  error            // of a retry, and of a call that is left to recovery
	misfit  store.Misfit     // of a call that waits for code
	lacks   string           // the first operation that the journal of a replayed call lacks
	again   time.Time        // when a retried call may run again (set by write), or when a delayed call starts
	late    bool             // a retried call took longer than its tool's timeout
	sent    bool             // the call is requeued, and may have had effects
}

// how is the kind of an end. If the journal records it, it has the same name.
type how string

const (
	receipted      how = "receipt"          // the call gets its receipt
	retried        how = "retried"          // a transient error: the call runs again after a pause
	delayed        how = "delayed"          // a rule postpones the call until it may start
	released       how = "released"         // the worker stops: the call returns to the queue at once
	waiting        how = "waiting"          // another call holds its key, or its handler waits
	waitingForCode how = "waiting_for_code" // this program cannot continue the call: it waits for another
	leftToOthers   how = "left_to_others"   // other workers know its tool: the call returns to the queue for them
	notHeld        how = "not_held"         // another attempt holds the call, or the call has ended: nothing is written
	// the end could not be written: the call stays running until this worker has stopped
	leftToRecovery how = "left_to_recovery"
)

func ended(o receipts.Outcome) *end { return &end{how: receipted, outcome: o} }

func failed(code receipts.Code, message string, details any) *end {
	return ended(receipts.Failure(code, message, details))
}

// write applies an end and logs it. Every attempt ends here, with three exceptions: gem.hold_key parks a call whose key
// is taken, gem.gate parks a call that waits for people or for its start, and gem.leave_to leaves a call to workers
// that know its tool.
func (a *attempt) write(e *end) *end {
	if e.how == waitingForCode {
		e = a.mayWait(e)
	}
	if e.how == receipted && e.outcome.ReplayOf == "" {
		e = cmp.Or(a.readEffects(), e)
	}
	a.worker.at("before", string(e.how))
	var err error
	decided, marked := e, ""
	switch e.how {
	case receipted:
		if a.tx != nil && a.tx.Open() {
			final, receipt := a.final(e.outcome), ""
			written, err := a.tx.Finish(final.Statement(a.claim.Child(), &receipt, &marked))
			if err != nil {
				return a.write(a.endOfCommit(err, written))
			}
			a.remember(&final, receipt)
			break
		}
		if a.tx != nil {
			_ = a.tx.Rollback() // it wrote nothing
		}
		if e, err = a.writeReceipt(e, &marked); e.how == released {
			return a.write(e)
		}
	case retried:
		e.again, err = a.putBack(e)
		if err == nil && e.again.IsZero() { // the call's attempts are spent
			return a.write(ended(a.spentOn(e)))
		}
	case delayed:
		a.wakeAt(e.again)
	case released:
		err = a.persist(context.Background(), "release the call", func(ctx context.Context) error {
			return store.Release(ctx, a.worker.options.Calls, a.claim.Attempt, a.notKept(), a.outside(e))
		})
	case waitingForCode:
		err = a.persist(context.Background(), "park the call", func(ctx context.Context) error {
			return store.WaitForCode(ctx, a.worker.options.Calls, a.claim.Attempt, e.misfit, a.notKept(), a.deadline())
		})
	}
	switch {
	case err == nil:
		a.worker.at("after", string(e.how))
		if e.how == receipted && a.claim.Child() { // its parent may be back at an earlier place
			a.worker.lookBehind()
			if marked == "true" {
				signal(a.worker.due)
			}
		}
	case store.IsNotHeld(err):
		e = &end{how: notHeld}
	default:
		e = &end{how: leftToRecovery, reason: err}
	}
	if e.how == notHeld {
		if e = a.ownReceipt(decided); e.how == notHeld {
			a.worker.sweepSoon() // after a failover that set the database back, the call may still be this worker's
			a.refused(decided)
		}
	}
	if e.how == receipted && a.claim.Awaited {
		a.worker.ends.add(a.claim.CallID)
	}
	a.tell(e)
	return e
}

// endOf returns the end of an attempt after a step returned err. broken is the error that broke the handler's
// transaction, even if the handler ignored it, or nil. The transaction is already rolled back.
func (a *attempt) endOf(err, broken error) *end {
	switch {
	case store.IsNotHeld(err) || errors.Is(a.cause, errNotHeld):
		return &end{how: notHeld}
	case errors.Is(a.cause, errCancelled):
		while := " while it ran"
		if a.handler != nil && a.handler.Durable { // the attempt may have been waiting
			while = ""
		}
		var details any // from the handler's final error
		if failure := (*handlers.Failure)(nil); errors.As(err, &failure) {
			details = failure.Details
		}
		return failed(receipts.Cancelled, "The call was cancelled"+while+". "+a.mayHaveDone(), details)
	case errors.Is(a.cause, errStopping) && (a.mayRunAgain() || plain.NothingSent(err)):
		return &end{how: released, sent: !plain.NothingSent(err)}
	case errors.Is(a.cause, errStopping):
		return failed(receipts.OutcomeUnknown, fmt.Sprintf(
			"The worker stopped during the call, and %s must not run twice. "+
				"It is not known whether the call took effect.", a.tool.Name), nil)
	case errors.Is(broken, lanes.ErrNoConnection) && a.mayRunAgain():
		// the handler had not begun, even if its time is over
		return &end{how: retried, reason: lanes.ErrNoConnection}
	case errors.Is(a.cause, errDeadline):
	case plain.NothingSent(err):
		return &end{how: retried, reason: err}
	case errors.Is(a.cause, context.DeadlineExceeded) && a.tool.Idempotency.Mode != registry.None:
		return &end{how: retried, reason: err, late: true, sent: true}
	case errors.Is(a.cause, context.DeadlineExceeded):
	case (plain.IsTransient(err) || plain.IsTransient(broken)) && a.mayRunAgain():
		return &end{how: retried, reason: err, sent: true}
	}
	return ended(a.failure(err))
}

// endOfCommit rolls back a handler's transaction that could not be committed with its receipt, and returns the end of
// the attempt. written means that Postgres accepted the receipt and rejected the commit.
func (a *attempt) endOfCommit(err error, written bool) *end {
	broken := a.rollback()
	switch {
	case errors.Is(err, lanes.ErrBlocked):
		err = handlers.Transient(lanes.ErrBlocked)
	case store.IsNotHeld(err):
		// the transaction itself may have moved the call: writing a receipt separately will show that
		err = fmt.Errorf("%s failed: its transaction moved its own call", a.handler.Func)
	case errors.Is(err, lanes.ErrStatementOpen):
		err = fmt.Errorf("%s left the rows of a query open: read them to the end, or close them", a.handler.Func)
	case errors.Is(broken, lanes.ErrNoTransaction):
		err = fmt.Errorf("%s failed: %w", a.handler.Func, lanes.ErrNoTransaction)
	case errors.Is(err, lanes.ErrBroken):
		err = fmt.Errorf("%s %w: %w", a.handler.Func, lanes.ErrBroken, broken)
	case !written && store.IsRefusal(err):
		err = &unstorable{tool: a.tool.Name, err: err}
	case !written: // the receipt is not the handler's statement: Postgres refused it for other reasons
		err = handlers.Transient(err)
	}
	return a.endOf(err, broken)
}

// failure converts the last error of an attempt into the outcome of its call.
func (a *attempt) failure(err error) receipts.Outcome {
	var (
		notConfigured *handlers.NotConfigured
		failed        *handlers.Failure
		unencodable   *handlers.OutputError
		unfit         *invalidOutput
		refused       *unstorable
		panicking     *panicError
	)
	switch {
	case errors.As(err, &notConfigured):
		return receipts.Unconfigured(notConfigured.Reason, notConfigured.RequiredEnv, notConfigured.NextSteps)
	case errors.As(err, &panicking):
		return receipts.Failure(receipts.Panic, fmt.Sprintf("%s panicked: %s", a.handler.Func,
			receipts.Shorten(panicking.Error(), 500)), nil)
	case errors.Is(a.cause, errDeadline):
		return a.pastDeadline()
	case errors.As(err, &failed) && failed.Code == string(receipts.OutcomeUnknown) && !a.mayRunAgain():
		// more precise than reporting that its time is over
		return receipts.Failure(receipts.OutcomeUnknown, failed.Message, failed.Details)
	case errors.Is(a.cause, context.DeadlineExceeded):
		details := map[string]int64{"timeout_ms": a.tool.Timeout.Milliseconds()}
		if spent := a.spent() + 1; spent > 1 {
			details["attempts"] = int64(spent)
		}
		return receipts.Failure(receipts.Timeout, fmt.Sprintf("%s took longer than its %s.", a.tool.Name, a.tool.Timeout),
			details)
	case errors.As(err, &unfit):
		return receipts.Failure(receipts.OutputInvalid, unfit.Error(), unfit.faults)
	case errors.As(err, &unencodable):
		return receipts.Failure(receipts.OutputInvalid,
			fmt.Sprintf("The output of %s cannot be encoded as JSON: %v", a.tool.Name, unencodable.Err), nil)
	case errors.As(err, &refused):
		return receipts.Failure(receipts.OutputInvalid, refused.Error(), nil)
	case errors.Is(err, lanes.ErrBroken):
		return receipts.Failure(receipts.ExecutionError, err.Error(), nil).Within(plain.Context(err))
	case errors.As(err, &failed):
		code := receipts.Code(failed.Code)
		if code == "" {
			code = receipts.ExecutionError
		}
		return receipts.Failure(code, failed.Message, failed.Details).Within(plain.Context(err))
	}
	if plain.FromPostgres(err) != nil {
		return a.failure(plain.Refusal(err, a.claim.CallID))
	}
	var details any
	if spent := a.spent() + 1; spent > 1 {
		details = map[string]int{"attempts": spent}
	}
	return receipts.Failure(receipts.ExecutionError, plain.PublicMessage(err), details)
}

// maxKeyValue limits the value of a tool's key field, in bytes.
const maxKeyValue = 1 << 10

// final returns the receipt for an outcome, with the effects that the handler has recorded.
func (a *attempt) final(outcome receipts.Outcome) store.Final {
	var effects receipts.Effects
	var steps int
	if a.journal != nil {
		summary := a.summary()
		steps, effects.HandlerEffects, effects.Durable = summary.Steps, summary.Effects, summary.Durable
	}
	if a.call != nil && !a.handler.Durable {
		own := a.call.Effects()
		if a.handler.Transactional && !a.tx.Open() {
			own.DBWrites = nil // they were rolled back
		}
		effects.Add(own)
	}
	if a.tool != nil {
		key := &effects.Idempotency
		decided := a.keyedBy()
		key.Mode, key.Hit, key.KeyField = string(decided.Mode), outcome.ReplayOf != "", decided.KeyField
		key.InputDiffers, key.KeyIgnored = a.inputDiffers, key.Mode != string(registry.SafeRetry) && a.claim.ClientKey != ""
		if key.KeyField != "" {
			if value := a.field(key.KeyField); len(value) <= maxKeyValue {
				key.KeyValue = value
			}
		}
	}
	effects.Rules = a.ruling
	encoded, err := json.Marshal(effects)
	if err != nil { // impossible for strings, numbers and JSON from the input; it must not prevent the receipt
		encoded = []byte("{}")
	}
	return store.Final{Attempt: a.claim.Attempt, Outcome: outcome, Effects: receipts.CleanJSON(encoded),
		RegistryVersion: a.worker.options.Registry.Version, Steps: steps, Key: a.holds}
}

// writeReceipt writes a receipt in a separate transaction, and returns the end that it records. It continues until a
// receipt is written, because the handler must not run again. If Postgres cannot store the receipt, it writes one that
// reports this, and then one without effects. marked is as in [store.Final.Statement].
func (a *attempt) writeReceipt(e *end, marked *string) (*end, error) {
	final, refusals := a.final(e.outcome), 0
	err := a.persist(context.Background(), "write the receipt", func(ctx context.Context) error {
		var receipt, mark string // of this try: an earlier one may still be answered
		err := a.worker.lanes.Write(ctx, final.Statement(a.claim.Child(), &receipt, &mark))
		switch {
		case err == nil:
			*marked = mark
			a.remember(&final, receipt)
			return nil
		case store.IsGone(err) && e.outcome.ReplayOf != "": // the receipt to repeat was pruned: decide the call again
			e = &end{how: released}
			return nil
		case !store.IsRefusal(err):
			return err
		}
		refusals++
		e = failed(receipts.OutputInvalid, (&unstorable{tool: a.claim.Tool, err: err}).Error(), nil)
		final = a.final(e.outcome)
		if refusals > 1 {
			final.Effects = []byte("{}")
		}
		return errors.New(err.Error()) // hides the SQLSTATE, so that persist tries again
	})
	return e, err
}

// putBack requeues the call after a transient error, and returns the time of the next attempt. It returns the zero time
// if the call's attempts are spent.
func (a *attempt) putBack(e *end) (again time.Time, err error) {
	failure := receipts.Failure(receipts.ExecutionError, plain.PublicMessage(e.reason), nil)
	if e.late {
		failure = a.failure(e.reason)
	}
	failure = failure.Within(plain.Context(plain.Public(e.reason, a.claim.CallID)))
	retry := a.retry()
	if plain.NothingSent(e.reason) && a.tool.Idempotency.Mode == registry.None {
		retry.MaxAttempts = max(retry.MaxAttempts, registry.TriesToSend)
	}
	err = a.persist(context.Background(), "requeue the call", func(ctx context.Context) error {
		again, err = store.Retry(ctx, a.worker.options.Calls, a.claim.Attempt, failure, retry, plain.Pause(e.reason),
			a.notKept(),
			a.outside(e))
		return err
	})
	if err == nil && !again.IsZero() {
		a.wakeAt(again)
	}
	return again, err
}

// outside returns the mode under which the attempt may have had effects that neither a transaction nor a journal
// records, or "" if it had none.
func (a *attempt) outside(e *end) string {
	if !e.sent || a.call == nil || inside(a.handler) {
		return ""
	}
	return string(a.tool.Idempotency.Mode)
}

// spentOn returns the outcome of a call whose last attempt failed with e.
func (a *attempt) spentOn(e *end) receipts.Outcome {
	if !e.late {
		a.cause = nil // the call's deadline may also have passed
	}
	return a.failure(e.reason)
}

// wakeAt makes the loop claim at the time at which a call that this attempt requeued may run.
func (a *attempt) wakeAt(again time.Time) {
	time.AfterFunc(time.Until(again), func() { signal(a.worker.wake) })
}

// persist repeats a statement until Postgres has executed or rejected it, because a connection may break, and a server
// may restart or be read-only for a while. It stops when ctx ends, and some time after the worker was ordered to stop.
func (a *attempt) persist(ctx context.Context, doing string, statement func(context.Context) error) error {
	pause := 50 * time.Millisecond
	for {
		try, cancel := context.WithTimeout(ctx, a.worker.tryTimeout())
		err := statement(try)
		cancel()
		answered := err == nil || store.IsRefusal(err) || store.IsNotHeld(err)
		if answered || ctx.Err() != nil || a.worker.givingUp() {
			return err
		}
		a.worker.warn(err, doing+", trying again", a.fields(zap.Duration("pause", pause))...)
		sleep(ctx, jitter(pause))
		pause = min(pause*2, 2*time.Second)
	}
}

// ownReceipt checks whether an attempt that no longer holds its call has ended it itself: the answer to its commit may
// have been lost. decided is the end that was to be written.
func (a *attempt) ownReceipt(decided *end) *end {
	ctx, cancel := context.WithTimeout(context.Background(), a.worker.tryTimeout())
	defer cancel()
	r, err := store.Receipt(ctx, a.worker.options.Calls, a.claim.CallID)
	if err != nil || r.Attempt != a.claim.Number || r.WorkerID != a.claim.WorkerID {
		return &end{how: notHeld}
	}
	a.remember(a.finalOf(decided), r.ID)
	failure, _ := r.Error()
	return ended(receipts.Outcome{Status: r.Status, Code: failure.Code, ReplayOf: r.ReplayOf})
}

// tell logs an end, and reports it to telemetry.
func (a *attempt) tell(e *end) {
	if a.span != nil {
		a.span.end(e)
		a.span.ruled(e, a.ruling)
	}
	if e.how == leftToRecovery {
		a.worker.log.Error("the call is left to recovery", a.fields(zap.Error(e.reason))...)
		return
	}
	fields := a.fields(zap.String("outcome", e.name()), zap.Duration("duration", time.Since(a.started)))
	if e.outcome.Code != "" {
		fields = append(fields, zap.String("error_code", string(e.outcome.Code)))
	}
	if context := cmp.Or(e.outcome.Context, plain.Context(e.reason)); context != "" {
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
		a.worker.log.Warn("the program cannot continue the call, which waits for another program",
			append(fields, zap.String("name", e.misfit.Name),
				zap.String("error", e.misfit.Message))...)
		return
	case delayed:
		fields = append(fields, zap.Duration("again_in", time.Until(e.again)))
	case retried:
		reason := receipts.Shorten(plain.PublicMessage(e.reason), 500)
		fields = append(fields, zap.Duration("again_in", time.Until(e.again)), zap.String("error", reason))
	}
	if e.how == receipted {
		a.worker.log.Info("call ended", fields...)
	} else {
		a.worker.log.Info("attempt ended", fields...)
	}
}

// name returns the status of the call (refused or cancelled for such failures), or the kind of its attempt's end.
func (e *end) name() string {
	if e.how == receipted {
		return receipts.Ended(string(e.outcome.Status), e.outcome.Code)
	}
	return string(e.how)
}

// handOver releases the claimed calls that have not begun, in one statement, and returns their number.
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
		w.warn(err, "release the calls that have not begun")
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

// releaseAll releases calls that did not run here.
func (w *Worker) releaseAll(ctx context.Context, attempts []store.Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, min(controlTimeout, w.tryTimeout()))
	defer cancel()
	return store.ReleaseAll(ctx, w.options.Control, w.id, attempts)
}

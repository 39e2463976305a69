package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
)

// settle ends an attempt that gave an error: with a receipt, or by putting the call back. cause says why its context had
// ended by then, if it had; doomed is the error that broke the handler's transaction, if one did.
func (a *attempt) settle(err, cause, doomed error) {
	switch {
	case store.IsNotHeld(err) || errors.Is(cause, errNotHeld):
		a.lost()
	case errors.Is(cause, errCancelled):
		a.finish(receipts.Failure(receipts.Cancelled, "The call was cancelled while it ran. "+a.whatIsKnown(), nil))
	case errors.Is(cause, errStopping) && a.mayRunAgain():
		a.release()
	case errors.Is(cause, errStopping):
		a.finish(receipts.Failure(receipts.OutcomeUnknown, fmt.Sprintf(
			"The worker was stopped in the middle of the call, and %s may not run twice: whether it took effect is not known.", a.tool.Name), nil))
	case isTransient(err, doomed) && a.mayRunAgain() && !errors.Is(cause, context.DeadlineExceeded):
		a.retry(err)
	case errors.Is(doomed, errNoLane) && a.mayRunAgain():
		a.retry(errNoLane) // it ran out of time, and not of its own
	default:
		a.finish(a.failure(err, cause))
	}
}

// failure says on a receipt what went wrong.
func (a *attempt) failure(err, cause error) receipts.Outcome {
	var (
		notConfigured *handlers.NotConfigured
		failed        *handlers.Failure
		unencodable   *handlers.OutputError
		unfit         *invalidOutput
		unstorable    *refused
		panicking     *panicked
	)
	switch {
	case errors.As(err, &notConfigured):
		return receipts.Unconfigured(notConfigured.Reason, notConfigured.RequiredEnv, notConfigured.NextSteps)
	case errors.As(err, &panicking):
		return receipts.Failure(receipts.Panic, fmt.Sprintf("%s panicked: %s", a.handler.Func, cut(panicking.Error(), 500)), nil)
	case errors.Is(cause, context.DeadlineExceeded):
		return receipts.Failure(receipts.Timeout, fmt.Sprintf("%s took longer than its %s.", a.tool.Name, a.tool.Timeout),
			map[string]int64{"timeout_ms": a.tool.Timeout.Milliseconds()})
	case errors.As(err, &unfit):
		return receipts.Failure(receipts.OutputInvalid, unfit.Error(), unfit.faults)
	case errors.As(err, &unencodable):
		return receipts.Failure(receipts.OutputInvalid, fmt.Sprintf("The output of %s can not be written as JSON: %v", a.tool.Name, unencodable.Err), nil)
	case errors.As(err, &unstorable):
		return receipts.Failure(receipts.OutputInvalid, unstorable.message(a.tool.Name), nil)
	case errors.As(err, &failed):
		code := receipts.Code(failed.Code)
		if code == "" {
			code = receipts.ExecutionError
		}
		return receipts.Failure(code, failed.Message, failed.Details)
	}
	var details any
	if spent := a.spent() + 1; spent > 1 {
		details = map[string]int{"attempts": spent}
	}
	return receipts.Failure(receipts.ExecutionError, publicMessage(err), details)
}

// publicMessage is what a receipt says of an error. That of a connection is reduced to a sentence: it names hosts and users.
func publicMessage(err error) string {
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		return "Postgres could not be reached."
	}
	return err.Error()
}

// isTransient reports whether the error may be gone at the next attempt: the handler says so, or Postgres does.
func isTransient(err, doomed error) bool {
	var transient *handlers.TransientError
	if errors.As(err, &transient) {
		return true
	}
	var pgErr *pgconn.PgError
	for _, e := range []error{err, doomed} {
		switch {
		case e == nil || errors.Is(e, errEnded) || errors.Is(e, errOpen):
		case errors.As(e, &pgErr):
			if isTransientCode(pgErr.Code) {
				return true
			}
		case isConnectionError(e):
			return true
		}
	}
	return false
}

// isTransientCode knows serialization failures, deadlocks, lost connections, full servers, servers that go down, those that
// take no writes for now, the time limits that a server has of its own, and statements that are not prepared as they should be
// (see lanes).
func isTransientCode(code string) bool {
	switch code {
	case "40001", "40P01", "25006", "55P03", queryCanceled, notPrepared, preparedBefore:
		return true
	}
	return slices.Contains([]string{"08", "53", "58"}, code[:min(2, len(code))]) || strings.HasPrefix(code, "57P")
}

// isConnectionError reports whether err comes from the way to Postgres, and not from Postgres.
func isConnectionError(err error) bool {
	var connectErr *pgconn.ConnectError
	return errors.Is(err, errConnectionLost) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &connectErr) ||
		pgconn.SafeToRetry(err) || pgconn.Timeout(err)
}

// isRefusal reports whether Postgres will refuse the statement again for the values in it: what can not be stored, breaks a
// rule, or is too large. Whatever else Postgres says is about Postgres, and may be mended.
func isRefusal(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && slices.Contains([]string{"22", "23", "54"}, pgErr.Code[:min(2, len(pgErr.Code))])
}

// refused is the error of an outcome that Postgres will not store.
type refused struct{ err error }

func (e *refused) Error() string { return e.err.Error() }
func (e *refused) Unwrap() error { return e.err }
func (e *refused) message(tool string) string {
	return fmt.Sprintf("What %s returned can not be stored: %s", tool, publicMessage(e.err))
}

// maxKeyValue is the size in bytes up to which a key's value is repeated on the receipt; a longer one stands in the call's
// input alone.
const maxKeyValue = 1 << 10

// effects is what stands on the receipt.
type effects struct {
	handlers.Effects
	Idempotency receipts.Idempotency `json:"idempotency"`
}

func (a *attempt) final(outcome receipts.Outcome, did handlers.Effects) store.Final {
	on := effects{Effects: did}
	if a.tool != nil {
		on.Idempotency = receipts.Idempotency{Mode: string(a.tool.Idempotency.Mode), Hit: outcome.ReplayOf != "", KeyField: a.tool.Idempotency.KeyField}
		if on.Idempotency.KeyField != "" {
			if value := a.keyValue(); len(value) <= maxKeyValue {
				on.Idempotency.KeyValue = value
			}
		}
	}
	encoded, err := json.Marshal(on)
	if err != nil { // strings, numbers, and JSON from the input: can not happen, and must not cost the receipt
		encoded = []byte("{}")
	}
	return store.Final{Attempt: a.Attempt, Outcome: outcome, Effects: receipts.CleanJSON(encoded), RegistryVersion: a.Registry.Version}
}

// finish writes the receipt in a transaction of its own. What a transactional handler wrote is gone by now, and what it
// recorded as written with it.
func (a *attempt) finish(outcome receipts.Outcome) {
	var did handlers.Effects
	if a.call != nil {
		did = a.call.Effects()
		if a.handler.Transactional {
			did.DBWrites = nil
		}
	}
	write := func(o receipts.Outcome) error {
		return a.persist(context.Background(), "write the receipt", func(ctx context.Context) error {
			return a.lanes.receipt(ctx, a.final(o, did))
		})
	}
	a.at(BeforeReceipt)
	err := write(outcome)
	if isRefusal(err) {
		outcome = receipts.Failure(receipts.OutputInvalid, (&refused{err: err}).message(a.Tool), nil)
		err = write(outcome)
	}
	switch {
	case err == nil:
		a.at(AfterReceipt)
		a.endedWith(outcome)
	case store.IsNotHeld(err):
		a.lost()
	default:
		a.giveUp(err)
	}
}

// retry puts the call back, to run again after a pause; when its attempts are spent it fails.
func (a *attempt) retry(err error) {
	var again *time.Time
	reason := receipts.Failure(receipts.ExecutionError, publicMessage(err), nil)
	a.at(BeforePutBack)
	persistErr := a.persist(context.Background(), "put the call back", func(ctx context.Context) error {
		return a.calls.QueryRow(ctx, "select gem.retry($1, $2, $3, ($4::jsonb) -> 'error', $5, make_interval(secs => $6))",
			a.CallID, a.Number, a.WorkerID, string(reason.Result), a.tool.Retry.MaxAttempts, a.tool.Retry.Backoff.Seconds()).Scan(&again)
	})
	switch {
	case store.IsNotHeld(persistErr):
		a.lost()
	case persistErr != nil:
		a.giveUp(persistErr)
	case again == nil:
		a.finish(a.failure(err, nil))
	default:
		a.at(AfterPutBack)
		pause := time.Until(*again)
		time.AfterFunc(pause, a.nudge)
		a.ended(retried, zap.Duration("again_in", pause), zap.String("error", cut(publicMessage(err), 500)))
	}
}

// release hands the call over to another worker.
func (a *attempt) release() {
	a.at(BeforeHandOver)
	err := a.persist(context.Background(), "hand the call over", func(ctx context.Context) error {
		return release(ctx, a.calls, a.Attempt)
	})
	switch {
	case store.IsNotHeld(err):
		a.lost()
	case err != nil:
		a.giveUp(err)
	default:
		a.at(AfterHandOver)
		a.ended(released)
	}
}

func release(ctx context.Context, pool *pgxpool.Pool, a store.Attempt) error {
	_, err := pool.Exec(ctx, "select gem.release($1, $2, $3)", a.CallID, a.Number, a.WorkerID)
	return err
}

// persist runs a statement until Postgres has taken or refused what it says: a connection may break, a server restart, or take
// no writes for a while. Each try has a deadline. It gives up when ctx ends, and some time after the worker began to stop; the
// call is then another's to recover.
func (a *attempt) persist(ctx context.Context, doing string, statement func(context.Context) error) error {
	pause := 50 * time.Millisecond
	for {
		try, cancel := context.WithTimeout(ctx, a.tryTime())
		err := statement(try)
		cancel()
		answered := err == nil || isRefusal(err) || store.IsNotHeld(err)
		if answered || ctx.Err() != nil || a.givingUp() {
			return err
		}
		a.Log.Warn("could not "+doing+", trying again", a.named(zap.Error(err), zap.Duration("pause", pause))...)
		sleep(ctx, jitter(pause))
		pause = min(pause*2, 2*time.Second)
	}
}

// How an attempt ends that gives the call no receipt. The words are the journal's, where it has one.
const (
	waiting        = "waiting"          // for the call that runs with its key
	retried        = "retried"          // it will be, after a transient error
	released       = "released"         // handed over: the worker stops
	notHeld        = "not_held"         // the call is another's by now
	leftToRecovery = "left_to_recovery" // the database could not be reached
)

// endedWith tells of the end of a call.
func (a *attempt) endedWith(o receipts.Outcome) {
	a.seen.end(string(o.Status), o.Code, o.ReplayOf != "")
	fields := []zap.Field{}
	if o.Code != "" {
		fields = append(fields, zap.String("error_code", string(o.Code)))
	}
	if o.ReplayOf != "" {
		fields = append(fields, zap.String("replay_of", o.ReplayOf))
	}
	a.logEnd(string(o.Status), fields...)
}

// ended tells of the end of an attempt that gave the call no receipt.
func (a *attempt) ended(outcome string, fields ...zap.Field) {
	a.seen.end(outcome, "", false)
	a.logEnd(outcome, fields...)
}

func (a *attempt) logEnd(outcome string, fields ...zap.Field) {
	a.Log.Info("call ended", append(a.named(fields...), zap.String("outcome", outcome), zap.Duration("duration", time.Since(a.started)))...)
}

// lost ends an attempt that does not hold its call: it wrote the receipt itself, and the answer was lost on the way; or the
// call is another's by now, and nothing is written.
func (a *attempt) lost() {
	ctx, cancel := context.WithTimeout(context.Background(), a.tryTime())
	defer cancel()
	if r, err := store.Receipt(ctx, a.calls, a.CallID); err == nil && r.Attempt == a.Number && r.WorkerID == a.WorkerID {
		e, _ := r.Error()
		a.endedWith(receipts.Outcome{Status: r.Status, Code: e.Code, ReplayOf: r.ReplayOf})
		return
	}
	a.ended(notHeld)
}

// giveUp ends an attempt whose end could not be written. The call is recovered when this worker counts as dead.
func (a *attempt) giveUp(err error) {
	a.mu.Lock()
	a.left[a.Attempt] = struct{}{}
	a.mu.Unlock()
	a.seen.end(leftToRecovery, "", false)
	a.Log.Error("the call is left to recovery", a.named(zap.Error(err))...)
}

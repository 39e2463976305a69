package store

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Call is a call that a worker has claimed.
type Call struct {
	Attempt
	Tool         string
	Input        json.RawMessage
	ClientKey    string // the client's idempotency key; empty for none, like the three texts below
	SessionID    string
	CreatedBy    string
	Traceparent  string // the W3C trace context in which the frontend made the call
	Level        int    // the priority, or lower if its caller crowded
	RunAt        time.Time
	Waited       time.Duration // how long the call had been due when it was claimed, by Postgres's clock
	Retries      int           // attempts that ended with a transient error
	Losses       int           // attempts whose worker died
	Kills        int           // of those, the ones since it last waited
	Cancelled    bool          // someone asked to cancel it
	CancelledFor time.Duration // since then, when it was claimed
	Age          time.Duration // since it was to run, when it was claimed
	SignedIn     bool          // it was made with the token of a user
	Steps        int           // events of steps and waits in its journal
	Child        bool          // a handler made it, or the rules
	OfRules      bool          // the rules made it, to ask people about its parent
	Awaited      bool          // somebody wants a notification of its end: see [TellEnded]
	seq          int64
}

// Spent counts the attempts that are gone, of the tool's retry.max_attempts.
func (c *Call) Spent() int { return c.Retries + c.Losses }

// Suspect reports whether the call may be what killed its workers: it has lost two since it last waited.
func (c *Call) Suspect() bool { return c.Kills >= 2 }

// Background reports whether the call comes after all others, and only in some of a worker's slots.
func (c *Call) Background() bool { return c.Level <= -500 }

// Claim takes up to limit calls from the queue, at most background of them background calls, and returns them in the order in
// which they are to run. It takes a suspect call, and then only one, if suspect is true. from says where the queue begins, for
// each level that it names: calls with an earlier run_at are not found. The worker must have sent a heartbeat.
func Claim(ctx context.Context, db DB, workerID string, limit, background int, suspect bool, from map[int]time.Time) ([]Call, error) {
	cursor, err := json.Marshal(from)
	if err != nil || from == nil {
		cursor = []byte("{}")
	}
	rows, err := db.Query(ctx, `
		select id::text, attempt, tool_name, input, idempotency_key, session_id, created_by, traceparent, level, run_at, waited, retries,
		       losses, kills, cancelled_for, age, signed_in, steps, child, of_rules, awaited, seq
		from gem.claim($1, $2, $3, $4, $5)`, workerID, limit, suspect, string(cursor), background)
	if err != nil {
		return nil, err
	}
	// None is the worker's before the statement has ended without an error: the rows stream before that.
	calls, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Call, err error) {
		c.WorkerID = workerID
		var cancelled *time.Duration
		err = row.Scan(&c.CallID, &c.Number, &c.Tool, &c.Input, (*zeronull.Text)(&c.ClientKey), (*zeronull.Text)(&c.SessionID),
			(*zeronull.Text)(&c.CreatedBy), (*zeronull.Text)(&c.Traceparent), &c.Level, &c.RunAt, &c.Waited, &c.Retries, &c.Losses, &c.Kills,
			&cancelled, &c.Age, &c.SignedIn, &c.Steps, &c.Child, &c.OfRules, &c.Awaited, &c.seq)
		if cancelled != nil {
			c.Cancelled, c.CancelledFor = true, *cancelled
		}
		return c, err
	})
	slices.SortFunc(calls, func(a, b Call) int {
		return cmp.Or(b.Level-a.Level, a.RunAt.Compare(b.RunAt), cmp.Compare(a.seq, b.seq))
	})
	return calls, err
}

// Final is all that a receipt needs.
type Final struct {
	Attempt
	receipts.Outcome
	Effects         json.RawMessage
	RegistryVersion string
	Steps           int // that the attempt knows of: if the database has fewer, the attempt no longer holds the call
}

// FinishSQL ends a call: its status, its receipt and its last event in one statement, which returns the receipt's id. Where
// the handler has a transaction, it is that transaction's last statement.
const FinishSQL = "select gem.finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)::text"

// Statement writes the receipt. JSON goes as text: through a pooler Postgres must not have to guess.
func (f Final) Statement() Statement {
	return Statement{FinishSQL, []any{f.CallID, f.Number, f.WorkerID, string(f.Status), string(f.Result), string(f.Effects),
		f.RegistryVersion, zeronull.Text(f.ReplayOf), f.Steps, zeronull.Text(f.Context)}}
}

// Retry puts a call back after the transient error that reason describes, for pause at least, and returns when it may run again. It returns the
// zero time, and changes nothing, if the tool allows no further attempt.
func Retry(ctx context.Context, db DB, a Attempt, reason receipts.Outcome, retry registry.Retry, pause time.Duration,
	effects json.RawMessage) (time.Time, error) {
	var again time.Time
	err := db.QueryRow(ctx, `select gem.retry($1, $2, $3,
		(($4::jsonb) -> 'error') || case when $10::text is null then '{}' else jsonb_build_object('context', $10) end,
		$5, make_interval(secs => $6), $7, make_interval(secs => $8), make_interval(secs => $9))`,
		a.CallID, a.Number, a.WorkerID, string(reason.Result), retry.MaxAttempts, retry.Backoff.Seconds(), zeronull.Text(effects), pause.Seconds(),
		retry.Most.Seconds(), zeronull.Text(reason.Context)).Scan((*zeronull.Timestamptz)(&again))
	return again, err
}

// Release hands a call over to another worker. The attempt does not count as lost. effects are those of steps that were not kept.
func Release(ctx context.Context, db DB, a Attempt, effects json.RawMessage) error {
	_, err := db.Exec(ctx, "select gem.release($1, $2, $3, $4)", a.CallID, a.Number, a.WorkerID, zeronull.Text(effects))
	return err
}

// LeaveTo hands a call over to the workers that stated a capability, and reports whether one of them lives. If none does, the attempt
// still has the call.
func LeaveTo(ctx context.Context, db DB, a Attempt, capability string) (left bool, err error) {
	err = db.QueryRow(ctx, "select gem.leave_to($1, $2, $3, $4)", a.CallID, a.Number, a.WorkerID, capability).Scan(&left)
	return left, err
}

// ReleaseAll hands over calls of one worker in one statement. Those that the worker no longer has are passed over.
func ReleaseAll(ctx context.Context, db DB, workerID string, attempts []Attempt) error {
	ids, numbers := split(attempts)
	_, err := db.Exec(ctx, `select gem.release(a.call_id, a.attempt, $1) from unnest($2::uuid[], $3::integer[]) as a (call_id, attempt)`,
		workerID, ids, numbers)
	if !IsNotHeld(err) {
		return err
	}
	for _, a := range attempts {
		if err := Release(ctx, db, a, nil); err != nil && !IsNotHeld(err) {
			return err
		}
	}
	return nil
}

// KeyVerdict says what an attempt is to do with its idempotency key.
type KeyVerdict string

// The verdicts of [HoldKey].
const (
	KeyTaken KeyVerdict = "run"  // the attempt holds the key: no other call runs with it until this one ends
	KeyHit   KeyVerdict = "hit"  // the key succeeded before: repeat that receipt
	KeyBusy  KeyVerdict = "wait" // another call holds the key: this one waits for it, and is no longer the attempt's
	// KeyDeadlock means that the call which holds the key waits for this one, and never would end.
	KeyDeadlock KeyVerdict = "deadlock"
)

// Key is the answer of [HoldKey]. ReceiptID and Result are those of the earlier receipt if Verdict is [KeyHit].
type Key struct {
	Verdict   KeyVerdict
	ReceiptID string
	Result    json.RawMessage
	// InputDiffers says that the earlier call had another input; false if its input is not known any more. Where other inputs are
	// refused, it is also true for a signed-in user if the earlier call was another's.
	InputDiffers bool
}

// HoldKey asks for a key on behalf of an attempt. If another call holds it, the call is put to wait in the same statement.
// keyField is the field of the input that is the key; empty where the client gave the key.
func HoldKey(ctx context.Context, db DB, a Attempt, key, keyField string, refuse bool) (k Key, err error) {
	err = db.QueryRow(ctx, `select verdict, receipt_id::text, result::text,
		case when receipt_id is not null then coalesce(gem.input_differs($1, receipt_id, $5, $6), false) else false end
		from gem.hold_key($1, $2, $3, $4)`,
		a.CallID, a.Number, a.WorkerID, key, zeronull.Text(keyField), refuse).Scan(&k.Verdict, (*zeronull.Text)(&k.ReceiptID), &k.Result, &k.InputDiffers)
	return k, err
}

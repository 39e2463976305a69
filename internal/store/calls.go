package store

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
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
	Traceparent  string // the W3C trace context of the frontend
	Level        int    // the priority, or a lower value if the caller crowds the queue
	RunAt        time.Time
	Waited       time.Duration // how long the call had been due when it was claimed, on Postgres's clock
	Retries      int           // attempts that ended with a transient error
	Losses       int           // attempts whose worker died
	Kills        int           // workers lost since it last waited
	Cancelled    bool          // cancellation was requested
	CancelledFor time.Duration // the time from that request to the claim
	Age          time.Duration // the time from when the call was due to the claim
	SignedIn     bool          // it was made with the token of a user
	Steps        int           // number of steps and waits in its journal
	ParentID     string        // the call on whose behalf it was made; empty for none
	ParentStep   string        // the name under which a handler or the rules made it; empty for neither
	Awaited      bool          // waiters want to be notified of its end: see [TellEnded]
	Code         []byte        // proves that the attempt was given this call: see [Restore]; nil if it cannot be restored
	seq          int64
}

// Spent returns how many of the tool's retry.max_attempts are spent.
func (c *Call) Spent() int { return c.Retries + c.Losses }

// Child reports whether a handler or the rules made the call.
func (c *Call) Child() bool { return c.ParentStep != "" }

// OfRules reports whether the rules made the call, to ask people about its parent.
func (c *Call) OfRules() bool { return strings.HasPrefix(c.ParentStep, "##") }

// Suspect reports whether the call may have killed its workers: it has lost two since it last waited.
func (c *Call) Suspect() bool { return c.Kills >= 2 }

// Background reports whether the call comes after all others, and may use only some of a worker's slots.
func (c *Call) Background() bool { return c.Level <= -500 }

// Claim claims up to limit calls, at most background of them background calls, and returns them in the order in which
// they should run. If suspect is true, it may claim one suspect call. from has, for some levels, the run_at before
// which Claim finds no calls. The worker must have sent a heartbeat.
func Claim(ctx context.Context, db DB, workerID string, limit, background int, suspect bool,
	from map[int]time.Time) ([]Call, error) {
	cursor, err := json.Marshal(from)
	if err != nil || from == nil {
		cursor = []byte("{}")
	}
	rows, err := db.Query(ctx, `
		select id::text, attempt, tool_name, input, idempotency_key, session_id, created_by, traceparent, level, run_at,
			waited, retries,
		       losses, kills, cancelled_for, age, signed_in, steps, parent::text, parent_step, awaited, code, seq
		from gem.claim($1, $2, $3, $4, $5)`, workerID, limit, suspect, string(cursor), background)
	if err != nil {
		return nil, err
	}
	// The rows arrive before the statement ends. The worker holds the calls only after it has ended without an error.
	calls, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Call, err error) {
		c.WorkerID = workerID
		var cancelled *time.Duration
		err = row.Scan(&c.CallID, &c.Number, &c.Tool, &c.Input, (*zeronull.Text)(&c.ClientKey),
			(*zeronull.Text)(&c.SessionID),
			(*zeronull.Text)(&c.CreatedBy), (*zeronull.Text)(&c.Traceparent), &c.Level, &c.RunAt, &c.Waited, &c.Retries,
			&c.Losses, &c.Kills,
			&cancelled, &c.Age, &c.SignedIn, &c.Steps, (*zeronull.Text)(&c.ParentID),
			(*zeronull.Text)(&c.ParentStep), &c.Awaited, &c.Code, &c.seq)
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

// Final has all parts of a receipt.
type Final struct {
	Attempt
	receipts.Outcome
	Effects         json.RawMessage
	RegistryVersion string
	// number of steps that the attempt knows: if the database has fewer, the attempt no longer holds the call
	Steps int
	// Key is the idempotency key that the attempt took; empty for none. If the database does not have it, the attempt no
	// longer holds the call.
	Key string
}

// FinishSQL ends a call: it writes its status, its receipt and its last event in one statement, and returns the
// receipt's id. If the handler has a transaction, it is the transaction's last statement.
const FinishSQL = "select gem.finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, p_key => $11, p_child => false)::text"

// FinishChildSQL ends a call that another call made. It also returns whether timers must report the end to the other
// call, which was locked.
const FinishChildSQL = "select f.id::text, gem.is_marked($1)::text " +
	"from gem.finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, p_key => $11) f (id)"

// Statement returns the statement that writes the receipt. It sends JSON as text, because Postgres cannot infer types
// through a pooler. receipt gets the receipt's id, and marked whether its call is to be reported to its parent.
func (f Final) Statement(child bool, receipt, marked *string) Statement {
	sql := FinishSQL
	if child {
		sql = FinishChildSQL
	}
	return Statement{sql, []any{f.CallID, f.Number, f.WorkerID, string(f.Status), string(f.Result),
		string(f.Effects),
		f.RegistryVersion, zeronull.Text(f.ReplayOf), f.Steps, zeronull.Text(f.Context), zeronull.Text(f.Key)},
		[]*string{receipt, marked}}
}

// Retry requeues a call after the transient error reason, with at least the given pause, and returns when it may run
// again. It returns the zero time, and changes nothing, if the tool allows no further attempt. effects and outside are
// as in [Release].
func Retry(ctx context.Context, db DB, a Attempt, reason receipts.Outcome, retry registry.Retry, pause time.Duration,
	effects json.RawMessage, outside string) (time.Time, error) {
	var again time.Time
	err := db.QueryRow(ctx, `select gem.retry($1, $2, $3,
		(($4::jsonb) -> 'error') || case when $10::text is null then '{}'
			else pg_catalog.jsonb_build_object('context', $10) end,
		$5, pg_catalog.make_interval(secs => $6), $7, pg_catalog.make_interval(secs => $8),
			pg_catalog.make_interval(secs => $9), $11)`,
		a.CallID, a.Number, a.WorkerID, string(reason.Result), retry.MaxAttempts, retry.Backoff.Seconds(),
		zeronull.Text(effects), pause.Seconds(),
		retry.Most.Seconds(), zeronull.Text(reason.Context), zeronull.Text(outside)).Scan((*zeronull.Timestamptz)(&again))
	return again, err
}

// Release hands a call over to another worker. The attempt does not count as lost. effects are the effects of steps
// that were not kept. outside is the mode under which the attempt may have had effects outside of Postgres that no
// journal records; empty if it had none.
func Release(ctx context.Context, db DB, a Attempt, effects json.RawMessage, outside string) error {
	_, err := db.Exec(ctx, "select gem.release($1, $2, $3, $4, $5)", a.CallID, a.Number, a.WorkerID,
		zeronull.Text(effects), zeronull.Text(outside))
	return err
}

// LeaveTo requeues a call for the workers with a capability, and reports whether one of them is alive. If none is, the
// attempt still holds the call.
func LeaveTo(ctx context.Context, db DB, a Attempt, capability string) (left bool, err error) {
	err = db.QueryRow(ctx, "select gem.leave_to($1, $2, $3, $4)", a.CallID, a.Number, a.WorkerID, capability).Scan(&left)
	return left, err
}

// MustNotRepeat reports whether an earlier attempt of the call may have had an effect that must not happen twice. none
// and inside describe the tool now: its mode is none, and Postgres has everything that its handler does. key is the key
// that the call has now, empty if its input has none, or nil if the mode is not keyed.
func MustNotRepeat(ctx context.Context, db DB, a Attempt, none, inside bool, key *string) (must bool, err error) {
	err = db.QueryRow(ctx, "select gem.must_not_repeat($1, $2, $3, $4)", a.CallID, none, inside, key).Scan(&must)
	return must, err
}

// ReleaseAll requeues calls of one worker in one statement. It skips calls that the worker no longer holds.
func ReleaseAll(ctx context.Context, db DB, workerID string, attempts []Attempt) error {
	ids, numbers := split(attempts)
	_, err := db.Exec(ctx, `select gem.release(a.call_id, a.attempt, $1)
		from rows from (pg_catalog.unnest($2::uuid[]), pg_catalog.unnest($3::integer[])) as a (call_id, attempt)`,
		workerID, ids, numbers)
	if !IsNotHeld(err) {
		return err
	}
	for _, a := range attempts {
		if err := Release(ctx, db, a, nil, ""); err != nil && !IsNotHeld(err) {
			return err
		}
	}
	return nil
}

// KeyVerdict decides how an attempt continues with its idempotency key.
type KeyVerdict string

// The verdicts of [HoldKey].
const (
	KeyTaken KeyVerdict = "run" // the attempt holds the key: no other call runs with it until this one ends
	KeyHit   KeyVerdict = "hit" // the key has succeeded before: repeat that receipt
	// another call holds the key: this one waits for it, and the attempt no longer holds this one
	KeyBusy KeyVerdict = "wait"
	// KeyDeadlock means that the call that holds the key waits for this one.
	KeyDeadlock KeyVerdict = "deadlock"
)

// Key is the result of [HoldKey]. ReceiptID and Result belong to the earlier receipt if Verdict is [KeyHit].
type Key struct {
	Verdict   KeyVerdict
	ReceiptID string
	Result    json.RawMessage
	// InputDiffers reports whether the earlier call had another input; false if its input is unknown. If the tool refuses
	// other inputs, it is also true for a signed-in user if another user made the earlier call.
	InputDiffers bool
}

// HoldKey requests a key for an attempt. If another call holds it, the same statement parks this call. keyField is the
// input field that has the key; empty if the client gave the key.
func HoldKey(ctx context.Context, db DB, a Attempt, key, keyField string, refuse bool) (k Key, err error) {
	err = db.QueryRow(ctx, `select verdict, receipt_id::text, result::text,
		case when receipt_id is not null then coalesce(gem.input_differs($1, receipt_id, $5, $6), false) else false end
		from gem.hold_key($1, $2, $3, $4)`,
		a.CallID, a.Number, a.WorkerID, key, zeronull.Text(keyField), refuse).Scan(&k.Verdict, (*zeronull.Text)(&k.ReceiptID),
		&k.Result, &k.InputDiffers)
	return k, err
}

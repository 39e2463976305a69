package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Epoch is a Postgres server that the workers met: see functions/servers.sql.
type Epoch struct {
	Number int64
	// Why is the difference to the previous server: first, restart, promotion, restore or unknown.
	Why string
	// MayLackCommits reports whether the epoch's server may lack receipts that were written before it.
	MayLackCommits bool
	// Server is when the server started, which identifies it.
	Server time.Time
}

// MeetServer records that the worker has met the present server. knew is the server that it met last, which may be the
// same.
func MeetServer(ctx context.Context, db DB, workerID string, knew time.Time) (e Epoch, err error) {
	err = db.QueryRow(ctx, "select epoch, why, may_claim_at is not null, gem.server() from gem.meet_server($1, $2)",
		workerID, knew).Scan(&e.Number, &e.Why, &e.MayLackCommits, &e.Server)
	return e, err
}

// Durability returns what a commit survives, according to the settings of the server and of this connection: off
// (nothing for certain: a crash may lose the latest commits), local (a crash, but not the loss of the server), or
// replicated (the loss of the server too).
func Durability(ctx context.Context, db DB) (level string, err error) {
	err = db.QueryRow(ctx, `select case
		when 'off' in (pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('fsync')) then 'off'
		when pg_catalog.current_setting('synchronous_commit') = 'local'
			or pg_catalog.current_setting('synchronous_standby_names') = '' then 'local'
		else 'replicated' end`).Scan(&level)
	return level, err
}

// CompareEnds returns the attempts, all of one worker and ended by it, whose receipts the server lacks.
func CompareEnds(ctx context.Context, db DB, workerID string, ended []Attempt) (missing []Attempt, err error) {
	calls, numbers := split(ended)
	rows, err := db.Query(ctx, "select call_id::text, attempt from gem.compare_ends($1, $2::uuid[], $3)", workerID, calls,
		numbers)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Attempt, error) {
		a := Attempt{WorkerID: workerID}
		return a, row.Scan(&a.CallID, &a.Number)
	})
}

// Restored is the result of [Restore].
type Restored string

// The results of [Restore]. It is empty if the server lacks nothing.
const (
	RestoredEnd    Restored = "restored"  // the receipt is written, with the id that it had
	EndedAsUnknown Restored = "unknown"   // the call has ended as outcome_unknown
	RanTwice       Restored = "ran_twice" // another attempt has run meanwhile
	CallMissing    Restored = "missing"   // the server lacks the call, and the worker has forgotten its input
	ClaimedAgain   Restored = "claimed"   // the attempt still runs, and holds its call again
	// RestoreLater means that the attempt's key is held by another one, of a worker that may still restore its end.
	RestoreLater Restored = "later"
)

// Lost is an attempt that a server may lack.
type Lost struct {
	Attempt
	Tool string
	Code []byte // see [Call]
	// Call is what the worker claimed; nil if it has forgotten it.
	Call *Call
	// Key is the idempotency key that the attempt held; empty for none.
	Key string
	// Ended reports whether the attempt has ended. ReceiptID is empty if its receipt was not accepted. Final is nil if the
	// worker has forgotten the outcome.
	Ended     bool
	ReceiptID string
	Final     *Final
}

// Restore writes the claim of an attempt again, and its end if it has ended, if the server of an epoch lacks them.
// registryVersion is that of the receipt.
func Restore(ctx context.Context, db DB, epoch int64, l Lost, registryVersion string) (r Restored, err error) {
	call := map[string]any{"id": l.CallID, "tool_name": l.Tool}
	if c := l.Call; c != nil {
		call["input"], call["created_by"], call["session_id"] = c.Input, nullable(c.CreatedBy), nullable(c.SessionID)
		call["signed_in"], call["parent_call_id"], call["parent_step"] = c.SignedIn, nullable(c.ParentID),
			nullable(c.ParentStep)
		call["idempotency_key"] = nullable(c.ClientKey)
	}
	encodedCall, err := json.Marshal(call)
	if err != nil {
		return "", err
	}
	end, err := l.end(registryVersion)
	if err != nil {
		return "", err
	}
	err = db.QueryRow(ctx, "select gem.restore($1, $2, $3, $4, $5, $6, $7)", l.WorkerID, epoch, l.Number, l.Code,
		string(encodedCall), l.Ended, end).Scan((*zeronull.Text)(&r))
	return r, err
}

// BegunStep is a step that must not run twice and that an attempt has begun.
type BegunStep struct {
	Attempt
	Tool string
	Name string
	Key  string // that the attempt held; empty for none
}

// RestoreSteps writes the beginnings of steps, all of one worker, that the server of an epoch lacks. It lists the
// others, which it cannot write, and returns the number of steps that it wrote.
func RestoreSteps(ctx context.Context, db DB, workerID string, epoch int64, steps []BegunStep) (
	written int, err error) {
	attempts, names := make([]Attempt, len(steps)), make([]string, len(steps))
	keys, tools := make([]string, len(steps)), make([]string, len(steps))
	for i, s := range steps {
		attempts[i], names[i], keys[i], tools[i] = s.Attempt, s.Name, s.Key, s.Tool
	}
	calls, numbers := split(attempts)
	err = db.QueryRow(ctx, "select gem.restore_steps($1, $2, $3::uuid[], $4, $5, $6, $7)", workerID, epoch, calls,
		numbers, names, keys, tools).Scan(&written)
	return written, err
}

// nullable returns nil for an empty text.
func nullable(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// EndAgain ends a call whose end the database lost, and which the attempt still holds. If the worker has forgotten the
// outcome, or another call has the key, the call ends as outcome_unknown.
func EndAgain(ctx context.Context, db DB, l Lost, registryVersion string) (r Restored, err error) {
	end, err := l.end(registryVersion)
	if err != nil {
		return "", err
	}
	err = db.QueryRow(ctx, "select gem.end_again($1, $2, $3, $4)", l.CallID, l.Number, l.WorkerID, end).Scan(&r)
	return r, err
}

// end returns what gem.restore and gem.end_again need to know of the end, as JSON.
func (l Lost) end(registryVersion string) (string, error) {
	end := map[string]any{"key": nullable(l.Key)}
	if l.Ended {
		end["registry_version"], end["receipt_id"] = registryVersion, nullable(l.ReceiptID)
	}
	if f := l.Final; f != nil {
		end["status"], end["result"], end["effects"], end["context"] = f.Status, f.Result, f.Effects, nullable(f.Context)
	}
	encoded, err := json.Marshal(end)
	return string(encoded), err
}

// CountReran counts ended attempts of one worker whose calls run again without harm. If the server of an epoch lacks
// the call, it lists the call as missing.
func CountReran(ctx context.Context, db DB, workerID string, epoch int64, lost []Lost) error {
	attempts, tools := make([]Attempt, len(lost)), make([]string, len(lost))
	for i, l := range lost {
		attempts[i], tools[i] = l.Attempt, l.Tool
	}
	calls, numbers := split(attempts)
	_, err := db.Exec(ctx, "select gem.count_reran($1, $2, $3::uuid[], $4, $5)", workerID, epoch, calls, numbers, tools)
	return err
}

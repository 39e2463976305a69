// Package store calls the SQL functions of the state machine. It has a Go function for each gem function that a worker
// calls, and functions that read receipts and journals. All rules are in the SQL.
//
// A statement that moves a call names the attempt that moves it. If that attempt no longer holds the call, the
// statement changes nothing and returns an error for which [IsNotHeld] is true.
package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// DB runs statements: it is a pool, a connection or a transaction.
type DB = handlers.DB

// Attempt is one run of a call. It fences the call: only the attempt that claimed the call last can move it.
type Attempt struct {
	CallID   string
	Number   int // counts the claims of the call, from 1
	WorkerID string
}

// Statement is a statement that lanes send: it writes a receipt or a step. Each connection prepares all of them.
type Statement struct {
	SQL  string
	Args []any
	// Values get the first columns of what the statement returns, as text, if it was accepted.
	Values []*string
}

// split returns attempts as the two arrays that the gem functions take.
func split(attempts []Attempt) (ids []string, numbers []int) {
	ids, numbers = make([]string, len(attempts)), make([]int, len(attempts))
	for i, a := range attempts {
		ids[i], numbers[i] = a.CallID, a.Number
	}
	return ids, numbers
}

// Receipt returns the receipt of a call, or [receipts.ErrNone].
func Receipt(ctx context.Context, db DB, callID string) (*receipts.Receipt, error) {
	var r receipts.Receipt
	err := db.QueryRow(ctx, `
		select id::text, call_id::text, tool_name, status, coalesce(result, 'null')::text, coalesce(effects, '{}')::text,
			created_at, attempt,
		       worker_id, registry_version, idempotency_key, replay_of::text,
		       coalesce(extract(epoch from duration) * 1000.0, 0)::float8
		from public.core_tool_receipts where call_id = $1`, callID).
		Scan(&r.ID, &r.CallID, &r.ToolName, &r.Status, &r.Result, &r.Effects, &r.CreatedAt, &r.Attempt,
			(*zeronull.Text)(&r.WorkerID),
			(*zeronull.Text)(&r.RegistryVersion), (*zeronull.Text)(&r.IdempotencyKey), (*zeronull.Text)(&r.ReplayOf),
			&r.DurationMS)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, receipts.ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read the receipt of call %s: %w", callID, err)
	}
	return &r, nil
}

// Journal returns the events of a call in order, or none if the call does not exist.
func Journal(ctx context.Context, db DB, callID string) ([]receipts.Event, error) {
	rows, err := db.Query(ctx, `
		select seq, at, event, attempt, coalesce(worker_id, ''), data::text
		from public.core_tool_events where call_id = $1 order by seq`, callID)
	if err == nil {
		var events []receipts.Event
		if events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[receipts.Event]); err == nil {
			return events, nil
		}
	}
	return nil, fmt.Errorf("read the journal of call %s: %w", callID, err)
}

package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Receipt returns the receipt of a call, or [receipts.ErrNone].
func Receipt(ctx context.Context, db DB, callID string) (*receipts.Receipt, error) {
	var r receipts.Receipt
	err := db.QueryRow(ctx, `
		select id::text, call_id::text, tool_name, status, coalesce(result, 'null')::text, coalesce(effects, '{}')::text, created_at, attempt,
		       worker_id, registry_version, idempotency_key, replay_of::text,
		       coalesce(extract(epoch from duration) * 1000, 0)::float8
		from public.core_tool_receipts where call_id = $1`, callID).
		Scan(&r.ID, &r.CallID, &r.ToolName, &r.Status, &r.Result, &r.Effects, &r.CreatedAt, &r.Attempt, (*zeronull.Text)(&r.WorkerID),
			(*zeronull.Text)(&r.RegistryVersion), (*zeronull.Text)(&r.IdempotencyKey), (*zeronull.Text)(&r.ReplayOf), &r.DurationMS)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, receipts.ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read the receipt of call %s: %w", callID, err)
	}
	return &r, nil
}

// Journal returns what happened to a call, in order; none for a call that does not exist.
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

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// VisibleCall is the part of a call that a signed-in user may see.
type VisibleCall struct {
	ID, Tool string
	// Status is queued, running, waiting, succeeded, failed or not_configured; WaitsFor is as in [Call].
	Status, WaitsFor     string
	Attempt              int
	CreatedAt, UpdatedAt time.Time
	// Seq and Event are the last entry of the journal.
	Seq   int
	Event string
	// Receipt is nil before the end of the call. It does not name its worker.
	Receipt *receipts.Receipt
}

// GetVisible returns a call as its user may see it. With the DB that [As] passes to its function, it finds only that
// user's calls, whatever the rights of the connection.
func GetVisible(ctx context.Context, db DB, id string) (*VisibleCall, error) {
	var (
		s VisibleCall
		r receipts.Receipt
	)
	err := db.QueryRow(ctx, `
		select c.id::text, coalesce(c.tool_name, ''), c.status, coalesce(c.waits_for, ''), c.attempt, c.created_at,
			c.updated_at, e.seq, e.event,
		       coalesce(r.id::text, ''), coalesce(r.status, ''), coalesce(r.result, 'null')::text,
		         coalesce(r.effects, '{}')::text, r.created_at,
		       coalesce(r.attempt, 0), coalesce(r.registry_version, ''), coalesce(r.idempotency_key, ''),
		         coalesce(r.replay_of::text, ''),
		       coalesce(extract(epoch from r.duration) * 1000.0, 0)::float8
		from public.core_tool_calls c
		join lateral (select j.seq, j.event from public.core_tool_events j where j.call_id = c.id
			order by j.seq desc limit 1) e on true
		left join public.core_tool_receipts r on r.call_id = c.id
		where c.id = $1 and (c.created_by = (select public.gem_caller()) or (select public.gem_caller()) is null)`, id).
		Scan(&s.ID, &s.Tool, &s.Status, &s.WaitsFor, &s.Attempt, &s.CreatedAt, &s.UpdatedAt, &s.Seq, &s.Event,
			&r.ID, &r.Status, &r.Result, &r.Effects, (*zeronull.Timestamptz)(&r.CreatedAt),
			&r.Attempt, &r.RegistryVersion, &r.IdempotencyKey, &r.ReplayOf, &r.DurationMS)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, &NotFoundError{ID: id}
	case err != nil:
		return nil, fmt.Errorf("read call %s: %w", id, err)
	case r.ID != "":
		r.CallID, r.ToolName = s.ID, s.Tool
		s.Receipt = &r
	}
	return &s, nil
}

// VisibleJournal returns, in order, those events of a call that have a greater Seq than the one given. It returns them
// as the call's user may see them: without the names of workers, and without data, which could reveal other users'
// calls.
func VisibleJournal(ctx context.Context, db DB, id string, after int) ([]receipts.Event, error) {
	rows, err := db.Query(ctx, `
		select e.seq, e.at, e.event, e.attempt, '', null::jsonb
		from public.core_tool_calls c join public.core_tool_events e on e.call_id = c.id
		where c.id = $1 and e.seq > $2 and (c.created_by = (select public.gem_caller())
			or (select public.gem_caller()) is null) order by e.seq`, id, after)
	var events []receipts.Event
	if err == nil {
		events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[receipts.Event])
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the journal of call %s: %w", id, err)
	case len(events) == 0 && after == 0: // a call has at least the event of its insert
		return nil, &NotFoundError{ID: id}
	}
	return events, nil
}

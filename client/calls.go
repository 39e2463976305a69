package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Call is a row of core_tool_calls.
type Call struct {
	ID    string
	Tool  string
	Input json.RawMessage
	// Status is queued, running, waiting, succeeded, failed or not_configured.
	Status string
	// SessionID and IdempotencyKey come from the frontend, and CreatedBy from its token if it has one. Each may be
	// empty.
	SessionID, CreatedBy, IdempotencyKey string
	// Key is the computed key that the call holds, or waits for: see receipts.Key. It may be empty.
	Key string
	// WaitsFor says why a waiting call waits: key, call, answer, time, place or code. Otherwise it is empty. At WakeAt
	// the call continues even if nothing has arrived; zero means never.
	WaitsFor string
	WakeAt   time.Time
	// Needs is the capability that a worker must have to claim the call, such as `tool leads.create`; empty if any
	// worker can.
	Needs    string
	Priority int // -1000 to 1000; higher runs first
	// the priority, lowered to -500 or less if the caller's calls crowd the queue: such calls run last, and never occupy
	// all of a worker's slots
	Level int
	RunAt time.Time // the earliest time to run
	Seq   int64     // increases in the order of inserts
	// Attempt counts the claims so far, Retries the attempts that ended with a transient error, and Losses the
	// attempts whose worker died.
	Attempt, Retries, Losses int
	// Kills are the losses since the call last waited. A call with two is suspected of killing its workers.
	Kills int
	// WorkerID and ClaimedAt are those of the current attempt or, once the call has ended, of its last. They are zero
	// while the call is queued or waiting.
	WorkerID        string
	ClaimedAt       time.Time
	CancelRequested bool // someone asked to cancel it
	CreatedAt       time.Time
}

// Get returns the call with an id, or a [*NotFoundError].
func Get(ctx context.Context, db DB, id string) (*Call, error) {
	c, _, err := getAt(ctx, db, id)
	return c, err
}

// getAt also returns Postgres's clock.
func getAt(ctx context.Context, db DB, id string) (*Call, time.Time, error) {
	c, now, err := readCall(ctx, db, "id = $1", id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = notFound(ctx, db, id)
	case err != nil:
		err = fmt.Errorf("read call %s: %w", id, err)
	}
	return c, now, err
}

// readCall reads the one call that meets the condition, and Postgres's clock.
func readCall(ctx context.Context, db DB, where, value string) (c *Call, now time.Time, err error) {
	c = new(Call)
	err = db.QueryRow(ctx, `
		select id::text, coalesce(tool_name, ''), coalesce(input, '{}')::text, status, session_id, created_by,
			idempotency_key, computed_key,
		       waits_for, wake_at, needs, priority, level, run_at, seq, attempt, retries, losses, kills, claimed_by,
		         claimed_at, cancel_requested_at is not null, created_at,
		       clock_timestamp()
		from public.core_tool_calls where `+where, value).
		Scan(&c.ID, &c.Tool, &c.Input, &c.Status, (*zeronull.Text)(&c.SessionID), (*zeronull.Text)(&c.CreatedBy),
			(*zeronull.Text)(&c.IdempotencyKey), (*zeronull.Text)(&c.Key),
			(*zeronull.Text)(&c.WaitsFor), (*zeronull.Timestamptz)(&c.WakeAt), (*zeronull.Text)(&c.Needs), &c.Priority, &c.Level,
			&c.RunAt, &c.Seq, &c.Attempt, &c.Retries, &c.Losses, &c.Kills,
			(*zeronull.Text)(&c.WorkerID), (*zeronull.Timestamptz)(&c.ClaimedAt), &c.CancelRequested, &c.CreatedAt, &now)
	if err != nil {
		return nil, now, err
	}
	return c, now, nil
}

// LastDurable returns the ids of a tool's last durable calls whose journals have a step, a call or a wait, the newest
// first. It returns at most limit ids.
func LastDurable(ctx context.Context, db DB, tool string, limit int) ([]string, error) {
	rows, err := db.Query(ctx, "select id::text from public.core_tool_calls where tool_name = $1 and steps > 0 order by "+
		"id desc limit $2", tool, limit)
	if err == nil {
		var ids []string
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			return ids, nil
		}
	}
	return nil, fmt.Errorf("read the calls to %s: %w", tool, err)
}

// Child is a descendant of a call: a call that the call's handler made, or that the handler of another descendant made.
type Child struct {
	ID, Tool, Status string
	Name             string // under which its parent made it
	Depth            int    // 1 for a direct child
}

// Children returns the calls that the handler of a call made, each followed by its own children, up to a limit.
func Children(ctx context.Context, db DB, id string, limit int) ([]Child, error) {
	rows, err := db.Query(ctx, `
		with recursive below (id, tool, status, name, depth, place) as (
			select c.id, c.tool_name, c.status, c.parent_step, 1, array[c.seq] from public.core_tool_calls c
				where c.parent_call_id = $1 and c.parent_step is not null
			union all
			select c.id, c.tool_name, c.status, c.parent_step, b.depth + 1, pg_catalog.array_append(b.place, c.seq) from below b
			join public.core_tool_calls c on c.parent_call_id = b.id and c.parent_step is not null where b.depth < 20
		)
		select id::text, tool, status, name, depth from below order by place limit $2`, id, limit)
	if err == nil {
		var all []Child
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Child, err error) {
			return c, row.Scan(&c.ID, &c.Tool, &c.Status, &c.Name, &c.Depth)
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the calls below call %s: %w", id, err)
}

// Receipt returns the receipt of a call, or [ErrNoReceipt].
func Receipt(ctx context.Context, db DB, id string) (*receipts.Receipt, error) {
	r, err := store.Receipt(ctx, db, id)
	if errors.Is(err, ErrNoReceipt) {
		if _, err := Get(ctx, db, id); err != nil {
			return nil, err
		}
	}
	return r, err
}

// ErrNoReceipt means that the call has not ended.
var ErrNoReceipt = receipts.ErrNone

// Journal returns the events of a call, in order.
func Journal(ctx context.Context, db DB, id string) ([]receipts.Event, error) {
	events, err := store.Journal(ctx, db, id)
	if err == nil && len(events) == 0 {
		return nil, notFound(ctx, db, id) // a call has at least the event of its insert
	}
	return events, err
}

// NotFoundError means that the database has no call with that id, or none that this role may see.
type NotFoundError struct {
	ID string
	// If ID is the id of a receipt, which people confuse with a call's id, ReceiptOf is the id of that receipt's call.
	ReceiptOf string
}

func (e *NotFoundError) Error() string {
	if e.ReceiptOf != "" {
		return fmt.Sprintf("there is no call %s: it is the id of a receipt, and the receipt's call is %s", e.ID, e.ReceiptOf)
	}
	return fmt.Sprintf("there is no call %s in this database", e.ID)
}

func notFound(ctx context.Context, db DB, id string) error {
	call, err := callOfReceipt(ctx, db, id)
	// the failed statement broke the transaction
	if err != nil && !errors.Is(err, pgx.ErrNoRows) && !store.HasCode(err, "25P02") {
		return err
	}
	return &NotFoundError{ID: id, ReceiptOf: call}
}

func callOfReceipt(ctx context.Context, db DB, receiptID string) (callID string, err error) {
	err = db.QueryRow(ctx, "select call_id::text from public.core_tool_receipts where id = $1", receiptID).Scan(&callID)
	return callID, err
}

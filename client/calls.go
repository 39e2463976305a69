package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Call is a row of core_tool_calls.
type Call struct {
	ID             string
	Tool           string
	Input          json.RawMessage
	Status         string // queued, running, waiting, succeeded, failed or not_configured
	SessionID      string // empty for none, like the three texts below
	CreatedBy      string
	IdempotencyKey string    // the client's
	Key            string    // the computed one that the call holds while it runs, or waits for; its form is receipts.Key's
	Priority       int       // -1000 to 1000, higher first
	RunAt          time.Time // not before
	Seq            int64     // rises in the order of inserts
	Attempt        int       // claims so far
	Retries        int       // attempts that ended with a transient error
	Losses         int       // attempts whose worker died
	WorkerID       string    // of the current or last attempt; empty while it is queued or waiting
	ClaimedAt      time.Time // of that attempt; zero while it is queued or waiting
	CancelAsked    bool      // someone asked to cancel it
	CreatedAt      time.Time
}

// Get returns the call of an id.
func Get(ctx context.Context, db DB, id string) (*Call, error) {
	c, _, err := readCall(ctx, db, id)
	return c, err
}

// readCall also returns the time by Postgres's clock.
func readCall(ctx context.Context, db DB, id string) (*Call, time.Time, error) {
	return scanCall(ctx, db, id, "where id = $1", id)
}

// keyHolder returns the running call with a key; nil if there is none.
func keyHolder(ctx context.Context, db DB, key string) (*Call, error) {
	c, _, err := scanCall(ctx, db, "", "where status = 'running' and computed_key = $1", key)
	var none *NotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	return c, err
}

func scanCall(ctx context.Context, db DB, id, where string, args ...any) (*Call, time.Time, error) {
	var (
		c   Call
		now time.Time
	)
	err := db.QueryRow(ctx, `
		select id::text, coalesce(tool_name, ''), coalesce(input, '{}')::text, status, session_id, created_by, idempotency_key, computed_key,
		       priority, run_at, seq, attempt, retries, losses, claimed_by, claimed_at, cancel_requested_at is not null, created_at,
		       clock_timestamp()
		from public.core_tool_calls `+where, args...).
		Scan(&c.ID, &c.Tool, &c.Input, &c.Status, (*zeronull.Text)(&c.SessionID), (*zeronull.Text)(&c.CreatedBy),
			(*zeronull.Text)(&c.IdempotencyKey), (*zeronull.Text)(&c.Key), &c.Priority, &c.RunAt, &c.Seq, &c.Attempt, &c.Retries, &c.Losses,
			(*zeronull.Text)(&c.WorkerID), (*zeronull.Timestamptz)(&c.ClaimedAt), &c.CancelAsked, &c.CreatedAt, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, now, notFound(ctx, db, id)
	}
	if err != nil {
		return nil, now, fmt.Errorf("read call %s: %w", id, err)
	}
	return &c, now, nil
}

// insert names only the columns that the call has something to say about: frontends may have rights on few.
func insert(ctx context.Context, db DB, c NewCall, input string) (id string, err error) {
	columns, values := []string{"tool_name", "input"}, []string{"$1", "$2"}
	args := []any{c.Tool, input}
	set := func(given bool, column, value string, arg any) {
		if given {
			args = append(args, arg)
			columns, values = append(columns, column), append(values, fmt.Sprintf(value, len(args)))
		}
	}
	set(c.SessionID != "", "session_id", "$%d", c.SessionID)
	set(c.IdempotencyKey != "", "idempotency_key", "$%d", c.IdempotencyKey)
	set(c.CreatedBy != "", "created_by", "$%d", c.CreatedBy)
	set(c.Priority != 0, "priority", "$%d", c.Priority)
	set(!c.RunAt.IsZero(), "run_at", "$%d", c.RunAt)
	set(c.Delay != 0, "run_at", "clock_timestamp() + make_interval(secs => $%d)", c.Delay.Seconds())
	err = db.QueryRow(ctx, fmt.Sprintf("insert into public.core_tool_calls (%s) values (%s) returning id::text",
		strings.Join(columns, ", "), strings.Join(values, ", ")), args...).Scan(&id)
	return id, err
}

// callOfReceipt returns the id of a receipt's call, or pgx.ErrNoRows.
func callOfReceipt(ctx context.Context, db DB, receiptID string) (id string, err error) {
	err = db.QueryRow(ctx, `select call_id::text from public.core_tool_receipts where id = $1`, receiptID).Scan(&id)
	return id, err
}

// ahead counts the calls that are to be claimed before a queued one, up to one more than MaxAhead.
func ahead(ctx context.Context, db DB, c *Call) (n int, err error) {
	err = db.QueryRow(ctx, `
		select count(*) from (
			(select from public.core_tool_calls
			 where status = 'queued' and priority > $1 and run_at <= clock_timestamp() limit $4)
			union all
			(select from public.core_tool_calls
			 where status = 'queued' and priority = $1 and (run_at, seq) < ($2, $3) limit $4)
			limit $4
		) ahead`, c.Priority, c.RunAt, c.Seq, MaxAhead+1).Scan(&n)
	return n, err
}

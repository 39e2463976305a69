package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// What clients write and read. Reads of one row return pgx.ErrNoRows if there is none.

// Column is a column of a new call, with its value.
type Column struct {
	Name  string
	Value any
	// SQL is the value as an expression of the parameter %s; empty for the parameter itself.
	SQL string
}

// Insert inserts a call and returns its id. It names only the given columns: frontends may have rights on few.
func Insert(ctx context.Context, db DB, columns ...Column) (id string, err error) {
	var names, values []string
	var args []any
	for _, c := range columns {
		args = append(args, c.Value)
		value := fmt.Sprintf("$%d", len(args))
		if c.SQL != "" {
			value = fmt.Sprintf(c.SQL, value)
		}
		names, values = append(names, c.Name), append(values, value)
	}
	err = db.QueryRow(ctx, fmt.Sprintf("insert into public.core_tool_calls (%s) values (%s) returning id::text",
		strings.Join(names, ", "), strings.Join(values, ", ")), args...).Scan(&id)
	return id, err
}

// Cancel asks for the end of a call, and returns what that came to: see the SQL function.
func Cancel(ctx context.Context, db DB, callID string) (answer string, err error) {
	err = db.QueryRow(ctx, "select public.cancel_tool_call($1)", callID).Scan(&answer)
	return answer, err
}

// IsNoCall reports whether err is the one of [Cancel] for a call that does not exist.
func IsNoCall(err error) bool { return code(err) == noCall }

// CallRow is a call as clients see it. Its fields are those of client.Call.
type CallRow struct {
	ID, Tool                                  string
	Input                                     json.RawMessage
	Status                                    string
	SessionID, CreatedBy, IdempotencyKey, Key string
	Priority                                  int
	RunAt                                     time.Time
	Seq                                       int64
	Attempt, Retries, Losses                  int
	WorkerID                                  string
	ClaimedAt                                 time.Time
	CancelRequested                           bool
	CreatedAt                                 time.Time
}

// ReadCall reads a call, and Postgres's clock.
func ReadCall(ctx context.Context, db DB, callID string) (CallRow, time.Time, error) {
	return readCall(ctx, db, "id = $1", callID)
}

// KeyHolder reads the running call that holds a key.
func KeyHolder(ctx context.Context, db DB, key string) (CallRow, error) {
	c, _, err := readCall(ctx, db, "status = 'running' and computed_key = $1", key)
	return c, err
}

func readCall(ctx context.Context, db DB, where string, args ...any) (c CallRow, now time.Time, err error) {
	err = db.QueryRow(ctx, `
		select id::text, coalesce(tool_name, ''), coalesce(input, '{}')::text, status, session_id, created_by, idempotency_key, computed_key,
		       priority, run_at, seq, attempt, retries, losses, claimed_by, claimed_at, cancel_requested_at is not null, created_at,
		       clock_timestamp()
		from public.core_tool_calls where `+where, args...).
		Scan(&c.ID, &c.Tool, &c.Input, &c.Status, (*zeronull.Text)(&c.SessionID), (*zeronull.Text)(&c.CreatedBy),
			(*zeronull.Text)(&c.IdempotencyKey), (*zeronull.Text)(&c.Key), &c.Priority, &c.RunAt, &c.Seq, &c.Attempt, &c.Retries, &c.Losses,
			(*zeronull.Text)(&c.WorkerID), (*zeronull.Timestamptz)(&c.ClaimedAt), &c.CancelRequested, &c.CreatedAt, &now)
	return c, now, err
}

// CallOfReceipt returns the call that a receipt is of.
func CallOfReceipt(ctx context.Context, db DB, receiptID string) (callID string, err error) {
	err = db.QueryRow(ctx, `select call_id::text from public.core_tool_receipts where id = $1`, receiptID).Scan(&callID)
	return callID, err
}

// CallsAhead counts the queued calls that are to be claimed before one of this priority, run_at and seq, up to limit.
func CallsAhead(ctx context.Context, db DB, priority int, runAt time.Time, seq int64, limit int) (n int, err error) {
	err = db.QueryRow(ctx, `
		select count(*) from (
			(select from public.core_tool_calls
			 where status = 'queued' and priority > $1 and run_at <= clock_timestamp() limit $4)
			union all
			(select from public.core_tool_calls
			 where status = 'queued' and priority = $1 and (run_at, seq) < ($2, $3) limit $4)
			limit $4
		) ahead`, priority, runAt, seq, limit).Scan(&n)
	return n, err
}

// AnyOpen reports whether any call has not ended.
func AnyOpen(ctx context.Context, db DB) (open bool, err error) {
	err = db.QueryRow(ctx, `
		select exists (select from public.core_tool_calls where status = 'queued')
		    or exists (select from public.core_tool_calls where status = 'running')
		    or exists (select from public.core_tool_calls where status = 'waiting')`).Scan(&open)
	return open, err
}

// WorkerRow is a worker as clients see it. Its fields are those of client.Worker.
type WorkerRow struct {
	ID        string
	Alive     bool
	StoppedAt time.Time
	Silent    time.Duration
}

// alive is the condition on a row of core_workers whose process is alive: each heartbeat says until when it counts as alive.
const alive = `stopped_at is null and alive_until > clock_timestamp()`

// WorkerNamed reads the worker of a name, which is its id without the random end: one that is alive before others, then the
// one heard of last.
func WorkerNamed(ctx context.Context, db DB, name string) (w WorkerRow, err error) {
	err = db.QueryRow(ctx, `
		select worker_id, `+alive+`, stopped_at, clock_timestamp() - heartbeat_at
		from public.core_workers
		where left(worker_id, -9) = $1 and right(worker_id, 9) ~ '^-[0-9a-f]{8}$'
		order by 2 desc, heartbeat_at desc
		limit 1`, name).Scan(&w.ID, &w.Alive, (*zeronull.Timestamptz)(&w.StoppedAt), &w.Silent)
	return w, err
}

// WorkerOf reads a worker by its id, and the timeout that its registry gives a tool; 0 if it does not say.
func WorkerOf(ctx context.Context, db DB, workerID, tool string) (w WorkerRow, timeout time.Duration, err error) {
	err = db.QueryRow(ctx, `
		select worker_id, `+alive+`, stopped_at, clock_timestamp() - heartbeat_at,
		       coalesce((select (tool ->> 'timeout_ms')::float8 * interval '1 millisecond'
		        from public.core_registry_versions v, jsonb_array_elements(v.registry -> 'tools') tool
		        where v.version = w.registry_version and tool ->> 'name' = $2 limit 1), '0')
		from public.core_workers w where worker_id = $1`, workerID, tool).
		Scan(&w.ID, &w.Alive, (*zeronull.Timestamptz)(&w.StoppedAt), &w.Silent, &timeout)
	return w, timeout, err
}

// CountWorkers counts the workers that are alive, the calls that they may run at once, and those that they run.
func CountWorkers(ctx context.Context, db DB) (workers, slots, running int, err error) {
	err = db.QueryRow(ctx, `
		with alive as (select worker_id, concurrency from public.core_workers where `+alive+`)
		select (select count(*) from alive), (select coalesce(sum(concurrency), 0) from alive),
		       (select count(*) from public.core_tool_calls where status = 'running' and claimed_by in (select worker_id from alive))`).
		Scan(&workers, &slots, &running)
	return workers, slots, running, err
}

// LastWorker returns the worker that was heard of last, and when.
func LastWorker(ctx context.Context, db DB) (id string, at time.Time, err error) {
	err = db.QueryRow(ctx, `
		select worker_id, coalesce(stopped_at, heartbeat_at) from public.core_workers
		order by coalesce(stopped_at, heartbeat_at) desc limit 1`).Scan(&id, &at)
	return id, at, err
}

// ClockBack returns how far Postgres's clock went back, as its workers noticed; 0 once it has caught up.
func ClockBack(ctx context.Context, db DB) (back time.Duration, err error) {
	err = db.QueryRow(ctx, "select coalesce(max(clock_back), '0') from public.core_workers where clock_until > clock_timestamp()").Scan(&back)
	return back, err
}

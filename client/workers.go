package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Worker is a process, by its row of core_workers.
type Worker struct {
	ID        string        // its name, which may be shared by several, then '-' and eight random hexadecimal digits
	Alive     bool          // by Postgres's clock: its last heartbeat says so, and it has not stopped
	StoppedAt time.Time     // of an orderly stop; zero otherwise
	Silent    time.Duration // since its last heartbeat
}

// Workers sums up all workers of the database.
type Workers struct {
	Alive   int // processes
	Slots   int // calls that those alive run at once, at most
	Running int // calls that they run
	// Last is the worker that was heard of last, at LastAt, and is set only if none is alive; empty if there never was one.
	Last   string
	LastAt time.Time
}

// living is the condition on a row of core_workers whose process is alive: each heartbeat says until when it counts as alive.
const living = `stopped_at is null and alive_until > clock_timestamp()`

// ReadWorkers returns the sum of all workers. Several statements read it, so the figures may be a moment apart.
func ReadWorkers(ctx context.Context, db DB) (w Workers, err error) {
	err = db.QueryRow(ctx, `
		with alive as (select worker_id, concurrency from public.core_workers where `+living+`)
		select (select count(*) from alive), (select coalesce(sum(concurrency), 0) from alive),
		       (select count(*) from public.core_tool_calls where status = 'running' and claimed_by in (select worker_id from alive))`).
		Scan(&w.Alive, &w.Slots, &w.Running)
	if err == nil && w.Alive == 0 {
		err = db.QueryRow(ctx, `
			select worker_id, coalesce(stopped_at, heartbeat_at) from public.core_workers
			order by coalesce(stopped_at, heartbeat_at) desc limit 1`).Scan(&w.Last, &w.LastAt)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return w, fmt.Errorf("read the workers: %w", err)
	}
	return w, nil
}

// FindWorker returns a worker by the name that it was given (WORKER_ID): one that is alive before others, then the one heard
// of last. It returns nil when the database knows none of that name.
func FindWorker(ctx context.Context, db DB, name string) (*Worker, error) {
	var w Worker
	err := db.QueryRow(ctx, `
		select worker_id, `+living+`, stopped_at, clock_timestamp() - heartbeat_at
		from public.core_workers
		where left(worker_id, -9) = $1 and right(worker_id, 9) ~ '^-[0-9a-f]{8}$'
		order by 2 desc, heartbeat_at desc
		limit 1`, name).Scan(&w.ID, &w.Alive, (*zeronull.Timestamptz)(&w.StoppedAt), &w.Silent)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &w, err
}

// runningOn returns the worker of a running call, nil when it is unknown, and the timeout that the worker's registry gives the
// call's tool.
func runningOn(ctx context.Context, db DB, c *Call) (*Worker, time.Duration, error) {
	var (
		w       Worker
		timeout time.Duration
	)
	err := db.QueryRow(ctx, `
		select worker_id, `+living+`, stopped_at, clock_timestamp() - heartbeat_at,
		       coalesce((select (tool ->> 'timeout_ms')::float8 * interval '1 millisecond'
		        from public.core_registry_versions v, jsonb_array_elements(v.registry -> 'tools') tool
		        where v.version = w.registry_version and tool ->> 'name' = $2 limit 1), '0')
		from public.core_workers w where worker_id = $1`, c.WorkerID, c.Tool).
		Scan(&w.ID, &w.Alive, (*zeronull.Timestamptz)(&w.StoppedAt), &w.Silent, &timeout)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, 0, nil
	}
	return &w, timeout, err
}

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Worker is one worker process.
type Worker struct {
	ID        string        // its name (WORKER_ID), which several may share, then '-' and eight random hexadecimal digits
	Alive     bool          // not stopped, and its last heartbeat is recent enough by Postgres's clock
	StoppedAt time.Time     // of an orderly stop; zero otherwise
	Silent    time.Duration // the time since its last heartbeat
}

// Workers summarises the workers of a database.
type Workers struct {
	Alive   int // processes
	Slots   int // the number of calls that they can run at once
	Running int // the number of calls that they run now
	// If no worker is alive, Last is the id of the worker with the latest sign of life, at LastAt. Otherwise, and if
	// there has never been a worker, both are zero.
	Last   string
	LastAt time.Time
}

// alive is the condition for a living worker on a row of core_workers: each heartbeat sets the time until which it
// counts as alive.
const alive = "stopped_at is null and alive_until > clock_timestamp()"

// ReadWorkers summarises all workers.
func ReadWorkers(ctx context.Context, db DB) (w Workers, err error) {
	err = db.QueryRow(ctx, `
		with alive as (select worker_id, concurrency from public.core_workers where `+alive+`)
		select (select count(*) from alive), (select coalesce(sum(concurrency), 0) from alive),
		       (select count(*) from public.core_tool_calls where status = 'running'
		         and claimed_by in (select worker_id from alive))`).
		Scan(&w.Alive, &w.Slots, &w.Running)
	if err == nil && w.Alive == 0 {
		err = db.QueryRow(ctx, `
			select worker_id, coalesce(stopped_at, heartbeat_at) as last_at from public.core_workers
			order by last_at desc limit 1`).Scan(&w.Last, &w.LastAt)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return w, fmt.Errorf("read the workers: %w", err)
	}
	return w, nil
}

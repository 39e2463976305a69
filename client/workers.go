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
	Alive     bool          // by Postgres's clock: its last heartbeat says so, and it has not stopped
	StoppedAt time.Time     // of an orderly stop; zero otherwise
	Silent    time.Duration // since its last heartbeat
}

// Workers sums up the workers of a database.
type Workers struct {
	Alive   int // processes
	Slots   int // the calls that they run at once, at most
	Running int // the calls that they run now
	// Last is the id of the worker that was heard of last, at LastAt. Both are zero if some worker is alive, and if there never
	// was one.
	Last   string
	LastAt time.Time
}

// alive is the condition on a row of core_workers whose process is alive: each heartbeat says until when it counts as alive.
const alive = "stopped_at is null and alive_until > clock_timestamp()"

// ReadWorkers sums up all workers.
func ReadWorkers(ctx context.Context, db DB) (w Workers, err error) {
	err = db.QueryRow(ctx, `
		with alive as (select worker_id, concurrency from public.core_workers where `+alive+`)
		select (select count(*) from alive), (select coalesce(sum(concurrency), 0) from alive),
		       (select count(*) from public.core_tool_calls where status = 'running' and claimed_by in (select worker_id from alive))`).
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

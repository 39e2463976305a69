package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/store"
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

// ReadWorkers sums up all workers.
func ReadWorkers(ctx context.Context, db DB) (w Workers, err error) {
	w.Alive, w.Slots, w.Running, err = store.CountWorkers(ctx, db)
	if err == nil && w.Alive == 0 {
		w.Last, w.LastAt, err = store.LastWorker(ctx, db)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return w, fmt.Errorf("read the workers: %w", err)
	}
	return w, nil
}

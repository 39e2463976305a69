package client

import (
	"context"
	"errors"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
)

// WaitsFor names the one thing that a call needs next.
type WaitsFor string

const (
	// ForNothing means that the call has ended.
	ForNothing WaitsFor = ""
	// ForTime means that the call is queued and its RunAt has not come.
	ForTime WaitsFor = "time"
	// ForWorker means that no worker is alive.
	ForWorker WaitsFor = "worker"
	// ForSlot means that the call is queued and a worker claims it when it is next in line and a slot is free.
	ForSlot WaitsFor = "slot"
	// ForIdleWorker means that the call is queued and lost two workers or more, which it may have killed: a worker claims it only
	// while it runs no other such call.
	ForIdleWorker WaitsFor = "idle worker"
	// ForHandler means that a living worker has claimed the call.
	ForHandler WaitsFor = "handler"
	// ForRecovery means that the call runs on a dead worker while others are alive: one puts it back into the queue within seconds.
	ForRecovery WaitsFor = "recovery"
	// ForKey is said of a waiting call: another one runs with its key.
	ForKey WaitsFor = "key"
)

// Explanation says where a call stands, and why.
type Explanation struct {
	Call     Call
	At       time.Time // when this was read, by Postgres's clock
	WaitsFor WaitsFor

	// CameBack is the event that put a queued call back into the queue: retried, released, lost or woken. It is nil for one
	// that was never claimed.
	CameBack *receipts.Event
	// Ahead is the number of calls that come before one that waits for a slot; more than [MaxAhead] are not counted.
	Ahead int
	// ClockBack is how far Postgres's clock went back, if the call waits for a time and the clock has not caught up since; otherwise 0.
	ClockBack time.Duration
	// Workers says who could take the call. It is filled in where the call waits for a worker, a slot, an idle worker or its
	// recovery.
	Workers Workers
	// Worker is the one that runs a running call; nil when the database does not know it.
	Worker *Worker
	// Timeout is how long a running call may take, by the registry of its worker; 0 when that is not known.
	Timeout time.Duration
	// KeyHolder is the running call with the key that a waiting call waits for. It is nil if there is none any more: a worker
	// then takes the call within seconds.
	KeyHolder *Call
	// Receipt says how and why a call ended; nil before that.
	Receipt *receipts.Receipt
	// RepeatedCall is the call whose receipt this call's receipt repeats; empty if it repeats none.
	RepeatedCall string
}

// MaxAhead bounds [Explanation.Ahead].
const MaxAhead = 1000

// Explain finds out what a call waits for, or how it ended.
func Explain(ctx context.Context, db DB, id string) (*Explanation, error) {
	c, at, err := getAt(ctx, db, id)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Call: *c, At: at}
	switch c.Status {
	case "queued":
		return e, e.queued(ctx, db)
	case "running":
		return e, e.running(ctx, db)
	case "waiting":
		e.WaitsFor = ForKey
		holder, err := store.KeyHolder(ctx, db, c.Key)
		if errors.Is(err, pgx.ErrNoRows) {
			return e, nil
		}
		e.KeyHolder = (*Call)(&holder)
		return e, err
	}
	if e.Receipt, err = Receipt(ctx, db, id); err != nil {
		return nil, err
	}
	if e.Receipt.ReplayOf != "" {
		e.RepeatedCall, err = store.CallOfReceipt(ctx, db, e.Receipt.ReplayOf)
	}
	return e, err
}

func (e *Explanation) queued(ctx context.Context, db DB) error {
	journal, err := store.Journal(ctx, db, e.Call.ID)
	if err != nil {
		return err
	}
	if n := len(journal); n > 1 { // behind the first, which is queued or imported
		e.CameBack = &journal[n-1]
	}
	if e.Call.RunAt.After(e.At) {
		e.WaitsFor = ForTime
		e.ClockBack, err = store.ClockBack(ctx, db)
		return err
	}
	if e.Workers, err = ReadWorkers(ctx, db); err != nil {
		return err
	}
	switch {
	case e.Workers.Alive == 0:
		e.WaitsFor = ForWorker
	case e.Call.Losses >= 2: // as gem.claim has it
		e.WaitsFor = ForIdleWorker
	default:
		e.WaitsFor = ForSlot
		e.Ahead, err = store.CallsAhead(ctx, db, e.Call.Priority, e.Call.RunAt, e.Call.Seq, MaxAhead+1)
	}
	return err
}

func (e *Explanation) running(ctx context.Context, db DB) error {
	w, timeout, err := store.WorkerOf(ctx, db, e.Call.WorkerID, e.Call.Tool)
	switch {
	case err == nil:
		e.Worker, e.Timeout = (*Worker)(&w), timeout
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	if w.Alive {
		e.WaitsFor = ForHandler
		return nil
	}
	if e.Workers, err = ReadWorkers(ctx, db); err != nil {
		return err
	}
	e.WaitsFor = ForRecovery
	if e.Workers.Alive == 0 {
		e.WaitsFor = ForWorker
	}
	return nil
}

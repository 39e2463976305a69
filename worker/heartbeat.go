package worker

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// start makes the worker known. What it claims before would count as a dead worker's.
func (w *Worker) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementDeadline)
	defer cancel()
	_, err := w.control.Exec(ctx, "select gem.start_worker($1, $2, $3, $4, $5)", w.id, w.Concurrency, w.Version, w.Registry.Version, w.DeadAfter)
	if err != nil {
		return fmt.Errorf("register the worker: %w", err)
	}
	return nil
}

func (w *Worker) goodbye() error {
	ctx, cancel := context.WithTimeout(context.Background(), statementDeadline)
	defer cancel()
	_, err := w.control.Exec(ctx, "select gem.stop_worker($1)", w.id)
	return err
}

// heartbeats shows every HeartbeatInterval that the worker lives.
func (w *Worker) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(w.HeartbeatInterval)
	defer ticker.Stop()
	for {
		w.say(w.heartbeat(ctx), "send the heartbeat")
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-w.beatNow:
		}
	}
}

// heartbeat says that the worker lives, takes the calls of dead workers back into the queue, and ends what runs here and
// someone asked to cancel, or is no longer held: others thought this worker dead.
func (w *Worker) heartbeat(ctx context.Context) error {
	// What is claimed while the statement runs is not on its list.
	w.mu.Lock()
	running := maps.Clone(w.running)
	w.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, statementDeadline)
	defer cancel()
	rows, err := w.control.Query(ctx, "select call_id::text, attempt, cancel_requested from gem.heartbeat($1, $2)", w.id, w.DeadAfter)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	var cancelled []receipts.Attempt
	held, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (receipts.Attempt, error) {
		a := receipts.Attempt{WorkerID: w.id}
		var cancel bool
		err := row.Scan(&a.CallID, &a.Number, &cancel)
		if cancel {
			cancelled = append(cancelled, a)
		}
		return a, err
	})
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	for _, a := range cancelled {
		if s, ours := running[a]; ours {
			s.cancel(errCancelled)
		}
	}
	now, strays := time.Now(), map[receipts.Attempt]time.Time{}
	for _, a := range held {
		if _, ours := running[a]; ours {
			delete(running, a)
			continue
		}
		if strays[a] = now; !w.strays[a].IsZero() {
			strays[a] = w.strays[a]
		}
	}
	w.strays = strays
	w.releaseStrays(ctx, now)
	for a, s := range running {
		// One that is just ending is not held either, and does not mind.
		w.Log.Debug("a running call is no longer held", zap.String("call_id", a.CallID), zap.Int("attempt", a.Number))
		s.cancel(errNotHeld)
	}
	return nil
}

// releaseStrays gives back what this worker holds and does not run: the answer to its claim was lost on the way. It waits
// until no such answer can still be under way.
func (w *Worker) releaseStrays(ctx context.Context, now time.Time) {
	for a, since := range w.strays {
		if now.Sub(since) < statementDeadline+5*time.Second {
			continue
		}
		w.mu.Lock()
		_, ours := w.running[a]
		w.mu.Unlock()
		if ours {
			continue
		}
		w.Log.Warn("giving back a call whose claim was lost on the way", zap.String("call_id", a.CallID), zap.Int("attempt", a.Number))
		if err := release(ctx, w.control, a); err != nil && !receipts.IsNotHeld(err) {
			w.say(err, "give back a call")
		}
	}
}

// ignoreEnd drops the error of a statement that ended because the worker does.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() == context.Canceled {
		return nil
	}
	return err
}

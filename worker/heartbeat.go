package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/internal/store"
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
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTime)
	defer cancel()
	_, err := w.control.Exec(ctx, "select gem.stop_worker($1)", w.id)
	return err
}

// heartbeats shows every HeartbeatInterval that the worker lives.
func (w *Worker) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(w.HeartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-w.beatNow:
		}
		w.say(w.heartbeat(ctx), "send the heartbeat")
	}
}

// sweep says when a heartbeat looks over all running calls, and not only over those that the worker knows: from time to
// time, and for a while after an answer was lost.
type sweep struct {
	until atomic.Int64 // Unix nanoseconds
	last  time.Time
	// unknown are calls that this worker holds and does not know, since when. The answer to their claim was lost on the way,
	// or is still under way.
	unknown map[store.Attempt]time.Time
}

const (
	sweepEvery = 5 * time.Minute
	// answerLost is how long a claim's answer may take to arrive after it was seen in the database.
	answerLost = statementDeadline + 5*time.Second
)

// soon makes the next heartbeats sweep.
func (s *sweep) soon() { s.until.Store(time.Now().Add(2 * answerLost).UnixNano()) }

func (s *sweep) due(now time.Time) bool {
	if now.UnixNano() > s.until.Load() && now.Sub(s.last) < sweepEvery {
		return false
	}
	s.last = now
	return true
}

// heartbeat says that the worker lives, takes the calls of dead workers back into the queue, and ends what runs here and
// someone asked to cancel, or is no longer held: others thought this worker dead.
func (w *Worker) heartbeat(ctx context.Context) error {
	now := time.Now()
	sweeping := w.sweep.due(now)
	// What is claimed while the statement runs is not on its list.
	w.mu.Lock()
	held := maps.Clone(w.held)
	w.mu.Unlock()
	ids, numbers := split(slices.Collect(maps.Keys(held)))

	ctx, cancel := context.WithTimeout(ctx, controlDeadline)
	defer cancel()
	rows, err := w.control.Query(ctx, "select call_id::text, attempt, verdict from gem.heartbeat($1, $2, $3, $4, $5)",
		w.id, w.DeadAfter, ids, numbers, sweeping)
	if err != nil {
		w.sweep.soon()
		return ignoreEnd(ctx, err)
	}
	unknown := map[store.Attempt]time.Time{}
	a, verdict := store.Attempt{WorkerID: w.id}, ""
	_, err = pgx.ForEachRow(rows, []any{&a.CallID, &a.Number, &verdict}, func() error {
		switch h := held[a]; verdict {
		case "cancel":
			h.cancel(errCancelled)
		case "lost":
			// One that is just ending is not held either, and does not mind.
			w.Log.Debug("a running call is no longer held", zap.String("call_id", a.CallID), zap.Int("attempt", a.Number))
			h.cancel(errNotHeld)
		case "late":
			w.sweep.soon()
		case "unknown":
			unknown[a] = now
			if since, seen := w.sweep.unknown[a]; seen {
				unknown[a] = since
			}
		}
		return nil
	})
	if err != nil {
		w.sweep.soon()
		return ignoreEnd(ctx, err)
	}
	if sweeping {
		w.sweep.unknown = unknown
		w.releaseUnknown(ctx, now)
	}
	return nil
}

// releaseUnknown gives back what this worker holds and does not know, when no answer to its claim can still be under way. What
// did run here is not given back as if it had not: it is recovered when the worker is gone.
func (w *Worker) releaseUnknown(ctx context.Context, now time.Time) {
	if len(w.sweep.unknown) > 0 {
		w.sweep.soon()
	}
	var lost []store.Attempt
	for a, since := range w.sweep.unknown {
		w.mu.Lock()
		_, known := w.held[a]
		_, ran := w.left[a]
		w.mu.Unlock()
		if known || ran || now.Sub(since) < answerLost {
			continue
		}
		w.Log.Warn("giving back a call whose claim was lost on the way", zap.String("call_id", a.CallID), zap.Int("attempt", a.Number))
		lost = append(lost, a)
	}
	if len(lost) > 0 {
		w.say(w.release(ctx, lost), "give back calls")
	}
}

// ignoreEnd drops the error of a statement that ended because the worker does.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() == context.Canceled {
		return nil
	}
	return err
}

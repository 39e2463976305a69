package worker

import (
	"context"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/store"
)

// ends collects awaited calls that have receipts and whose waiters are not notified yet. A notification takes a
// database-wide lock at its commit, so one notification covers many calls, and none is sent in the transaction in which
// a call ends.
type ends struct {
	mu   sync.Mutex
	ids  []string
	more chan struct{} // carries at most one signal
}

const (
	tellEvery = 10 * time.Millisecond // the shortest time between two notifications
	mostEnds  = 10_000                // calls that wait for a notification; waiters find others by polling
)

// add records a call whose receipt is committed.
func (e *ends) add(id string) {
	e.mu.Lock()
	if len(e.ids) < mostEnds {
		e.ids = append(e.ids, id)
	}
	e.mu.Unlock()
	signal(e.more)
}

// next returns as many calls as one notification holds.
func (e *ends) next() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.ids), store.MostEnds)
	ids := e.ids[:n:n]
	if e.ids = e.ids[n:]; len(e.ids) == 0 {
		e.ids = nil
	} else {
		signal(e.more)
	}
	return ids
}

// tellEnds notifies waiters until ctx ends, and then sends the last notifications.
func (w *Worker) tellEnds(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-w.ends.more:
			w.tellEnded(controlTimeout)
			sleep(ctx, tellEvery)
		}
	}
	for w.tellEnded(stopTimeout) {
	}
}

// tellEnded sends one notification, if any call has ended, and reports whether there may be more.
func (w *Worker) tellEnded(limit time.Duration) (more bool) {
	ids := w.ends.next()
	if len(ids) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := store.TellEnded(ctx, w.options.Control, ids)
	w.warn(err, "notify waiters of ended calls, which they also poll")
	return err == nil
}

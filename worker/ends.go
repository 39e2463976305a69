package worker

import (
	"context"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/store"
)

// ends are the awaited calls that have their receipts, and of which those who wait have not been told. A notification takes a lock over the whole
// database at its commit, so one tells of many calls, and none is sent in the transaction in which a call ends.
type ends struct {
	mu   sync.Mutex
	ids  []string
	more chan struct{} // carries one signal at most
}

const (
	tellEvery = 10 * time.Millisecond // the shortest time between two notifications
	mostEnds  = 10_000                // that wait to be told; of the rest those who wait hear by asking
)

// add notes a call whose receipt is committed.
func (e *ends) add(id string) {
	e.mu.Lock()
	if len(e.ids) < mostEnds {
		e.ids = append(e.ids, id)
	}
	e.mu.Unlock()
	signal(e.more)
}

// next takes as many as one notification holds.
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

// tellEnds tells those who wait of ends until ctx ends, and then of the last.
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

// tellEnded sends one notification, if there is anything to tell, and reports whether there may be more.
func (w *Worker) tellEnded(limit time.Duration) (more bool) {
	ids := w.ends.next()
	if len(ids) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := store.TellEnded(ctx, w.options.Control, ids)
	w.warn(err, "tell those who wait of ends, of which they hear by asking")
	return err == nil
}

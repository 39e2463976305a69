package worker

import (
	"context"
	"time"

	"github.com/gemworker/gem/internal/store"
)

const (
	timersEvery = time.Second
	timersAtAll = 1000 // per statement
)

// timers wakes calls whose wake_at is reached, and notifies the parents of calls that ended without a worker, until ctx
// ends. It first wakes calls that may have waited for this program.
func (w *Worker) timers(ctx context.Context) {
	starting, cancel := context.WithTimeout(ctx, statementTimeout)
	w.warn(ignoreEnd(ctx, store.TryCode(starting, w.options.Control)), "look for calls that wait for code")
	cancel()
	for ctx.Err() == nil {
		running, cancel := context.WithTimeout(ctx, statementTimeout)
		n, err := store.RunTimers(running, w.options.Control, w.id, timersAtAll)
		cancel()
		w.warn(ignoreEnd(ctx, err), "look after timers")
		if n > 0 {
			w.lookBehind()
		}
		if n < timersAtAll {
			wait(ctx, w.due, jitter(timersEvery))
		}
	}
}

package worker

import (
	"context"
	"time"

	"github.com/gemworker/gem/internal/store"
)

const (
	timersEvery    = time.Second
	timersAtAll    = 1000 // per statement
	oneSchedule    = 3 * time.Second
	schedulesApart = 20 * time.Second // for the schedules that run one by one
)

// timers wakes calls whose wake_at is reached, and notifies the parents of calls that ended without a worker, until ctx
// ends. It first wakes calls that may have waited for this program.
func (w *Worker) timers(ctx context.Context) {
	starting, cancel := context.WithTimeout(ctx, statementTimeout)
	w.warn(ignoreEnd(ctx, store.TryCode(starting, w.options.Control)), "look for calls that wait for code")
	cancel()
	apart := false // schedules and timers, because a schedule may be why the last look failed
	for ctx.Err() == nil {
		running, cancel := context.WithTimeout(ctx, statementTimeout)
		n, err := store.RunTimers(running, w.options.Control, w.id, timersAtAll, !apart)
		cancel()
		w.warn(ignoreEnd(ctx, err), "look after timers")
		if apart {
			w.runSchedulesApart(ctx)
		}
		apart = err != nil && !apart
		if n > 0 {
			w.lookBehind()
		}
		if n < timersAtAll {
			wait(ctx, w.due, jitter(timersEvery))
		}
	}
}

// runSchedulesApart runs each due schedule in a statement of its own, and puts off one that fails. So a schedule cannot
// hold up the others. An insert can take long, for example in a trigger of the project.
func (w *Worker) runSchedulesApart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, schedulesApart)
	defer cancel()
	due, err := store.DueSchedules(ctx, w.options.Control)
	w.warn(ignoreEnd(ctx, err), "look for schedules")
	for _, id := range due {
		one, cancel := context.WithTimeout(ctx, oneSchedule)
		err := store.RunSchedule(one, w.options.Control, id)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.warn(err, "run the schedule "+id)
			w.warn(ignoreEnd(ctx, store.PostponeSchedule(ctx, w.options.Control, id)), "put off the schedule "+id)
		}
	}
}

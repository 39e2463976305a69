package worker

import (
	"context"
	"sync"
)

// Within runs a function as a worker runs handlers and validations, and reports whether it returned in time.
func Within(ctx context.Context, f func()) bool {
	w := &Worker{handed: make(chan func())}
	defer close(w.handed)
	return w.within(ctx, f)
}

// SetHook makes a worker with these options call at with the name of each point that a call passes, such as "before
// claim".
func SetHook(o *Options, at func(point string)) {
	o.hook = func(when, what string) { at(when + " " + what) }
}

// SweepSoon makes the worker's next heartbeats look over all running calls.
func SweepSoon(w *Worker) { w.sweepSoon() }

// TakeTurn waits until this process makes no expensive check, and keeps it from making one until giveBack is called.
func TakeTurn() (giveBack func()) {
	alone <- struct{}{}
	return sync.OnceFunc(func() { <-alone })
}

// Told returns the ids of each notification after these calls ended.
func Told(ids []string) (told [][]string) {
	e := ends{more: make(chan struct{}, 1)}
	for _, id := range ids {
		e.add(id)
	}
	for next := e.next(); len(next) > 0; next = e.next() {
		told = append(told, next)
	}
	return told
}

// ForgetPayloads makes a worker remember of its ends only that they were.
func ForgetPayloads(w *Worker) {
	w.memory.mu.Lock()
	defer w.memory.mu.Unlock()
	w.memory.room = 0
}

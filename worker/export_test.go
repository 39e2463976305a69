package worker

// SetHook makes a worker with these options call at with the name of each point that a call passes, such as "before claim".
func SetHook(o *Options, at func(point string)) {
	o.hook = func(when, what string) { at(when + " " + what) }
}

// SweepSoon makes the worker's next heartbeats look over all running calls.
func SweepSoon(w *Worker) { w.sweepSoon() }

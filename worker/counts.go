package worker

import (
	"context"
	"time"
)

const (
	// countEvery is how often what has ended is counted for the view gem.outcomes, which reads the rest itself.
	countEvery = 15 * time.Second
	// countAtOnce is how many receipts a statement counts: some 50 ms.
	countAtOnce = 10_000
)

// counts keeps the totals behind gem.outcomes. Of several workers one counts at a time, and none has to.
func (w *Worker) counts(ctx context.Context) {
	for ctx.Err() == nil {
		more, err := w.count(ctx)
		w.say(ignoreEnd(ctx, err), "count outcomes")
		if err != nil || !more {
			sleep(ctx, jitter(countEvery))
		}
	}
}

// count reports whether there is more to count.
func (w *Worker) count(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementDeadline)
	defer cancel()
	var counted *int // null while another worker counts
	err = w.control.QueryRow(ctx, "select gem.count_outcomes($1)", countAtOnce).Scan(&counted)
	return err == nil && counted != nil && *counted == countAtOnce, err
}

package worker

import (
	"context"
	"os"
	"time"

	"go.uber.org/zap"
)

// watch calls OnStall when the loop has not turned for StallLimit. Every statement has a deadline, so this is for what
// nobody thought of; a worker on a platform without health checks would otherwise hang unseen.
func (w *Worker) watch(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, w.StallLimit/4)
		standing := time.Since(time.Unix(0, w.turned.Load()))
		if ctx.Err() == nil && standing > w.StallLimit {
			w.OnStall(standing)
			return
		}
	}
}

// endProcess ends the process with a last line that says why. Its calls are recovered like those of any lost worker.
func endProcess(log *zap.Logger) func(time.Duration) {
	return func(standing time.Duration) {
		log.Error("the worker's loop stands still: ending the process, so that it is started again", zap.Duration("standing", standing))
		_ = log.Sync()
		os.Exit(70)
	}
}

package worker

import (
	"context"
	"os"
	"time"

	"go.uber.org/zap"
)

// watch calls OnStall if the loop has not completed a round for StallLimit. All statements have a deadline, so this
// catches unforeseen faults: on a platform without health checks, a hanging worker would go unnoticed.
func (w *Worker) watch(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, w.options.StallLimit/4)
		hung := time.Since(time.Unix(0, w.loopedAt.Load()))
		if ctx.Err() == nil && hung > w.options.StallLimit {
			w.options.OnStall(hung)
			return
		}
	}
}

// endProcess ends the process after a last log line with the reason. Its calls are recovered like those of any lost
// worker.
func endProcess(log *zap.Logger) func(time.Duration) {
	return func(hung time.Duration) {
		log.Error("the worker's loop hangs: ending the process, so that it is started again", zap.Duration("hung", hung))
		_ = log.Sync()
		os.Exit(70)
	}
}

package worker

import (
	"context"
	"time"

	"github.com/gemworker/gem/internal/postgres/listen"
	"github.com/gemworker/gem/internal/store"
	"go.uber.org/zap"
)

// wantWake sets whether inserts notify this worker, and reports whether that changed.
func (w *Worker) wantWake(ctx context.Context, wanted bool) (changed bool) {
	if w.registered.Swap(false) {
		w.wakeWanted = false
	}
	if w.wakeWanted == wanted {
		return false
	}
	asking, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err := store.WantWake(asking, w.options.Control, w.id, wanted)
	w.warn(ignoreEnd(ctx, err), "ask for notifications")
	if err == nil {
		w.wakeWanted = wanted
	}
	return err == nil
}

// listen receives notifications. The worker polls until the first has arrived, and while the connection is broken.
func (w *Worker) listen(ctx context.Context) {
	listener := listen.Listener{
		URL: w.options.ListenURL, Channel: store.Channel, Token: w.id, By: w.options.Control,
		Up: func() {
			w.listening.Store(true)
			w.log.Debug("notifications arrive")
			signal(w.wake)
			signal(w.beat) // cancellations may have been requested in the meantime
		},
		Received: func(payload string) {
			switch payload {
			case store.PayloadCancel:
				signal(w.beat)
				return
			case store.PayloadTimers:
				signal(w.due)
				return
			case store.PayloadAgain:
				w.rewind.Store(true)
			}
			signal(w.wake)
		},
		Down: func(err error, pause time.Duration) {
			w.listening.Store(false)
			w.sweepSoon() // after a failover, the server may lack the last ends of calls
			signal(w.wake)
			if ctx.Err() == nil {
				w.warn(err, "get notifications: polling until they are back", zap.Duration("next_try", pause))
			}
		},
	}
	listener.Run(ctx)
}

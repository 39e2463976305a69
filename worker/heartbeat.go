package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/store"
	"go.uber.org/zap"
)

// heartbeats sends a heartbeat every HeartbeatInterval, and when one is requested.
func (w *Worker) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(w.options.HeartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-w.beat:
		}
		w.warn(w.heartbeat(ctx), "send the heartbeat")
	}
}

// heartbeat sends a heartbeat, which also requeues the calls of dead workers. It ends the contexts of running calls
// whose cancellation was requested, and of calls that another worker holds because this worker was declared dead.
func (w *Worker) heartbeat(ctx context.Context) error {
	full := w.sweepDue(time.Now())
	w.mu.Lock()
	running := maps.Clone(w.running)
	w.mu.Unlock()

	beating, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	notices, err := store.Heartbeat(beating, w.options.Control, w.id, w.options.DeadAfter,
		slices.Collect(maps.Keys(running)), full)
	if store.IsNotRegistered(err) {
		w.log.Warn("this worker was silent for so long that others removed it: registering again")
		w.beginMeeting() // a failover may have lost the row
		err = w.register(ctx)
	}
	if err != nil {
		w.sweepSoon()
		return ignoreEnd(ctx, err)
	}
	w.memory.beat(time.Now(), w.options.HeartbeatInterval)
	moved := func(n store.Notice) bool { return n.Verdict == store.NoticeMoved }
	if w.meeting != nil || slices.ContainsFunc(notices, moved) {
		return ignoreEnd(ctx, w.meet(ctx)) // the next heartbeat decides about the running calls
	}
	var unknown []store.Attempt
	for _, n := range notices {
		switch n.Verdict {
		case store.NoticeCancel:
			running[n.Attempt].cancel(errCancelled)
		case store.NoticeLost: // or the call is just ending, and its context does not matter
			w.log.Debug("another worker holds a running call", zap.String("call_id", n.CallID), zap.Int("attempt", n.Number))
			running[n.Attempt].end(errNotHeld)
		case store.NoticeUnknown:
			unknown = append(unknown, n.Attempt)
		case store.NoticeLate:
			w.sweepSoon()
		}
	}
	w.giveBack(ctx, unknown)
	return nil
}

// giveBack releases calls that the database assigns to this worker and that were not in running when it asked. The
// answer to their claim was lost or has not arrived yet, or they have ended since.
func (w *Worker) giveBack(ctx context.Context, unknown []store.Attempt) {
	if len(unknown) == 0 {
		return
	}
	w.sweepSoon()
	// A claim in progress will add its calls.
	if w.givingUp() || !w.claiming.TryLock() {
		return
	}
	defer w.claiming.Unlock()
	w.mu.Lock()
	lost := slices.DeleteFunc(unknown, func(a store.Attempt) bool { return w.running[a] != nil })
	w.mu.Unlock()
	lost = w.endAgain(ctx, lost)
	if len(lost) > 0 {
		w.log.Warn("releasing calls whose claim never arrived", zap.Int("calls", len(lost)),
			zap.String("first_call_id", lost[0].CallID))
		w.warn(w.releaseAll(ctx, lost), "release calls")
	}
}

const (
	// A full sweep checks all running calls, and not only those of workers that died in the last minutes. It happens every
	// five minutes, and for half a minute after an answer was lost, because the lost statement may still be executed.
	sweepEvery     = 5 * time.Minute
	sweepAfterLoss = 30 * time.Second
)

// sweepSoon makes the next heartbeats full sweeps.
func (w *Worker) sweepSoon() { w.sweepUntil.Store(time.Now().Add(sweepAfterLoss).UnixNano()) }

func (w *Worker) sweepDue(now time.Time) bool {
	if now.UnixNano() > w.sweepUntil.Load() && now.Sub(w.lastSweep) < sweepEvery {
		return false
	}
	w.lastSweep = now
	return true
}

const (
	countEvery  = 15 * time.Second
	countAtOnce = 10_000 // receipts, which takes about 50 ms
)

// countOutcomes updates the totals behind the view gem.outcomes, which reads newer receipts itself. Only one worker
// counts at a time.
func (w *Worker) countOutcomes(ctx context.Context) {
	for ; ctx.Err() == nil; sleep(ctx, jitter(countEvery)) {
		for more := true; more; {
			counting, cancel := context.WithTimeout(ctx, statementTimeout)
			counted, err := store.CountOutcomes(counting, w.options.Control, countAtOnce)
			cancel()
			w.warn(ignoreEnd(ctx, err), "count outcomes")
			more = err == nil && counted == countAtOnce
		}
	}
}

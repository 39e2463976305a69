package worker

import (
	"context"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/store"
)

// claimedCall is a call that this worker has claimed and that has not ended.
type claimedCall struct {
	store.Call
	claimedAt time.Time
	life      context.Context // ends when this attempt is to end: the worker stops, or no longer holds the call
	end       context.CancelCauseFunc
	ctx       context.Context // ends with life, and when someone asks for the call's end
	cancel    context.CancelCauseFunc
}

// loop claims calls for the free slots, and somewhat ahead of them, until ctx ends.
func (w *Worker) loop(ctx context.Context) {
	pause := pollPause{shortest: 20 * time.Millisecond, longest: w.options.PollInterval}
	longest := w.options.StallLimit / 4 // an idle loop goes round, to show that it does not hang
	for ctx.Err() == nil {
		w.loopedAt.Store(time.Now().UnixNano())
		room := w.room()
		if room == 0 {
			wait(ctx, w.freed, longest)
			continue
		}
		claimed, err := w.claim(ctx, room)
		switch {
		case err != nil:
			w.warn(ignoreEnd(ctx, err), "claim calls")
			sleep(ctx, min(jitter(w.options.PollInterval), longest))
		case claimed == room: // there may be more
			w.wantWake(ctx, false)
		case w.listening.Load() && w.wantWake(ctx, true): // a call may have come before the wish was known
		default:
			if claimed > 0 {
				pause.reset()
			}
			interval := w.options.PollInterval
			if !w.listening.Load() {
				interval = pause.next()
			}
			wait(ctx, w.wake, min(jitter(interval), longest))
		}
	}
}

// pollPause grows from shortest to longest while no call comes, for a worker without notifications.
type pollPause struct{ shortest, longest, last time.Duration }

func (p *pollPause) reset() { p.last = 0 }

func (p *pollPause) next() time.Duration {
	p.last = min(max(p.shortest, p.last*5/4), p.longest)
	return p.last
}

// room is how many calls to claim now: 0 while enough wait for a slot.
func (w *Worker) room() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	ahead := w.rate.ahead(time.Now())
	w.refillAt = ahead / 2
	if len(w.ready) > w.refillAt {
		return 0
	}
	return max(0, w.options.Concurrency+ahead-w.busy-len(w.ready))
}

// lookBehind makes the next claim look behind its cursors, soon: a call may be back at its earlier place in the queue. With notifications
// it is told so where it has free slots.
func (w *Worker) lookBehind() {
	if !w.listening.Load() {
		w.rewind.Store(true)
		signal(w.wake)
	}
}

// claimRate says how many calls to claim ahead of the free slots: as many as end within claimAhead, so that a claim costs
// little a call and no slot waits for one. Where calls take long that is none, and they stay for workers that have room.
type claimRate struct {
	ended int // calls since
	since time.Time
	last  int // calls that ended within claimAhead, when it was last measured
}

const (
	claimAhead    = 40 * time.Millisecond
	maxClaimAhead = 400
)

func (r *claimRate) ahead(now time.Time) int {
	if passed := now.Sub(r.since); passed >= claimAhead {
		r.last = int(float64(r.ended) * float64(claimAhead) / float64(passed))
		r.ended, r.since = 0, now
	}
	return min(r.last, maxClaimAhead)
}

// backgroundShare is how many eighths of the slots background calls may have. A caller that crowds has those, and a quarter of all
// slots for what it asked first; the rest is free for others.
const backgroundShare = 5

// claim claims up to limit calls, and starts those for which there are slots.
func (w *Worker) claim(ctx context.Context, limit int) (int, error) {
	w.claiming.Lock()
	defer w.claiming.Unlock()
	if w.rewind.Swap(false) {
		w.cursor.rewind()
	}
	w.mu.Lock()
	suspect, background := w.suspects == 0, max(0, max(1, w.options.Concurrency*backgroundShare/8)-w.background)
	w.mu.Unlock()
	began := time.Now()
	from := w.cursor.next(began)
	w.at("before", "claim")
	// The order to stop does not end a claim: its answer could be lost, and the calls in it would count as run.
	claiming, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlTimeout)
	defer cancel()
	calls, err := store.Claim(claiming, w.options.Control, w.id, limit, background, suspect, from)
	if w.telemetry != nil {
		w.telemetry.claim(began, len(calls), err)
	}
	if err != nil {
		if !store.IsWithoutRules(err) {
			w.sweepSoon() // the calls may have been claimed all the same
		}
		return 0, err
	}
	w.cursor.advance(calls, from == nil, time.Since(began))
	if len(calls) > 0 {
		w.at("after", "claim")
	}
	w.admit(ctx, calls)
	return len(calls), nil
}

// claimCursor remembers, for each level, where the queue begins. A claim that begins there does not walk the index entries
// of calls that were claimed before, which stay as long as any old snapshot does.
type claimCursor struct {
	from      map[int]time.Time // run_at by level
	lastFull  time.Time
	lastTook  time.Duration // of the last full claim
	fullEvery time.Duration
	behind    bool // something lies behind the cursor
}

const (
	// A transaction that inserts before others and commits after them inserts behind the cursor, which keeps this distance.
	cursorDistance = time.Second
	// A full claim finds what lies behind the cursor all the same: every two seconds, or so seldom that full claims take a
	// fortieth of the time, if an old snapshot makes them slow.
	fullClaimEvery = 2 * time.Second
	fullClaimShare = 40
	rewindShare    = 8
)

// next returns where the next claim begins; nil for a full claim.
func (c *claimCursor) next(now time.Time) map[int]time.Time {
	passed := now.Sub(c.lastFull)
	if passed >= max(c.fullEvery, fullClaimEvery) || c.behind && passed >= c.fullEvery*rewindShare/fullClaimShare {
		c.lastFull, c.behind = now, false
		return nil
	}
	return c.from
}

// rewind makes the next claim a full one, or a later one, so that full claims take an eighth of the time at most.
func (c *claimCursor) rewind() { c.behind = true }

// advance moves the cursor behind the calls that a claim returned.
func (c *claimCursor) advance(calls []store.Call, full bool, took time.Duration) {
	if full { // one that was slow may have waited for something else
		c.fullEvery, c.lastTook = min(took, c.lastTook)*fullClaimShare, took
	}
	if c.from == nil {
		c.from = map[int]time.Time{}
	}
	for _, call := range calls {
		switch at := call.RunAt.Add(-cursorDistance); {
		case at.After(c.from[call.Level]):
			c.from[call.Level] = at
		case call.RunAt.Before(c.from[call.Level]):
			c.rewind() // this one had come back, and there may be others where it was
		}
	}
}

// admit takes in claimed calls, and starts slots for them.
func (w *Worker) admit(ctx context.Context, calls []store.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, call := range calls {
		c := &claimedCall{Call: call, claimedAt: now}
		// A call is not ended by the order to stop, but by the end of the grace time.
		c.life, c.end = context.WithCancelCause(context.WithoutCancel(ctx))
		c.ctx, c.cancel = context.WithCancelCause(c.life)
		w.running[c.Attempt] = c
		w.ready = append(w.ready, c)
		if c.Suspect() {
			w.suspects++
		}
		if c.Background() {
			w.background++
		}
	}
	if ctx.Err() != nil {
		return // they are handed over
	}
	for range min(w.options.Concurrency-w.busy, len(w.ready)) {
		w.busy++
		w.slots.Go(w.slot)
	}
}

// slot runs one call after another while any is ready.
func (w *Worker) slot() {
	for {
		w.mu.Lock()
		if len(w.ready) == 0 {
			w.busy--
			w.mu.Unlock()
			signal(w.freed)
			return
		}
		c := w.ready[0]
		w.ready = slices.Delete(w.ready, 0, 1)
		few := len(w.ready) <= w.refillAt
		w.mu.Unlock()
		if few {
			signal(w.freed)
		}
		if w.run(c).how != leftToRecovery { // such a call stays in running, so that no sweep gives it back as if it had not run
			w.forget(c)
		}
	}
}

// forget drops a call that has ended here.
func (w *Worker) forget(c *claimedCall) {
	c.end(nil)
	w.mu.Lock()
	if w.running[c.Attempt] == c { // a failover may have set the database back, and this worker has claimed the call again
		delete(w.running, c.Attempt)
	}
	w.rate.ended++
	if c.Suspect() {
		w.suspects--
		signal(w.wake) // the next one may be claimed now
	}
	if c.Background() {
		w.background--
		signal(w.wake)
	}
	w.mu.Unlock()
}

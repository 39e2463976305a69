package worker

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/internal/store"
	"go.uber.org/zap"
)

// claimedCall is a call that this worker has claimed and that has not ended.
type claimedCall struct {
	store.Call
	claimedAt time.Time
	life      context.Context // ends when this attempt must end: the worker stops, or no longer holds the call
	end       context.CancelCauseFunc
	ctx       context.Context // ends with life, or when the call's cancellation is requested
	cancel    context.CancelCauseFunc
	start     atomic.Pointer[start] // nil until the handler begins, or can no longer begin
}

// start is how an attempt's handler has begun. An attempt that begins no more has &start{}.
type start struct {
	key     string // that the attempt holds, or ""
	outside bool   // the handler may have effects outside of Postgres
}

// uncancelled returns a context with the values of ctx. It ends with the attempt, and not when the call's cancellation
// is requested.
func (c *claimedCall) uncancelled(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(c.life, func() { end(context.Cause(c.life)) })
	return life, end
}

// loop claims calls for the free slots, and some calls in advance, until ctx ends.
func (w *Worker) loop(ctx context.Context) {
	pause := pollPause{shortest: 20 * time.Millisecond, longest: w.options.PollInterval}
	longest := w.options.StallLimit / 4 // an idle loop repeats, so that the watchdog sees that it does not hang
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
		case w.listening.Load() && w.wantWake(ctx, true): // a call may have arrived before the setting was committed
		default:
			if claimed > 0 {
				pause.reset()
			}
			interval := w.options.PollInterval
			if !w.listening.Load() {
				interval = pause.next()
			}
			wait(ctx, w.wake, min(jitter(interval), longest, w.untilBehind()))
		}
	}
}

// pollPause grows from shortest to longest while no call arrives, for a worker without notifications.
type pollPause struct{ shortest, longest, last time.Duration }

func (p *pollPause) reset() { p.last = 0 }

func (p *pollPause) next() time.Duration {
	p.last = min(max(p.shortest, p.last*5/4), p.longest)
	return p.last
}

// room returns how many calls to claim now: 0 while enough calls wait for a slot.
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

// lookBehind makes one of the next claims ignore its cursors: a call may have returned to its earlier place in the
// queue. A worker with notifications is notified of such calls while it has free slots.
func (w *Worker) lookBehind() {
	if !w.listening.Load() {
		w.rewind.Store(true)
		signal(w.wake)
	}
}

// claimRate determines how many calls to claim in advance: as many as end within claimAhead, so that claims cost little
// per call and no slot waits for a claim. If calls take long, the number is 0, and calls remain for workers with free
// slots.
type claimRate struct {
	ended int // calls since then
	since time.Time
	last  int // calls that ended within claimAhead, at the last measurement
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

// backgroundShare is the number of eighths of the slots that background calls may use. A caller that crowds the queue
// can use these, and a quarter of all slots with its first calls. The remaining slots are for other callers.
const backgroundShare = 5

// claim claims up to limit calls, and starts calls for the free slots.
func (w *Worker) claim(ctx context.Context, limit int) (int, error) {
	w.claiming.Lock()
	defer w.claiming.Unlock()
	if w.meeting != nil {
		return 0, nil
	}
	if w.rewind.Swap(false) {
		w.cursor.rewind()
	}
	w.mu.Lock()
	suspect, background := w.suspects == 0, max(0, max(1, w.options.Concurrency*backgroundShare/8)-w.background)
	w.mu.Unlock()
	began := time.Now()
	from := w.cursor.next(began)
	w.at("before", "claim")
	// An order to stop does not interrupt a claim: if its answer were lost, its calls would count as run.
	claiming, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlTimeout)
	defer cancel()
	calls, err := store.Claim(claiming, w.options.Control, w.id, limit, background, suspect, from)
	if w.telemetry != nil {
		w.telemetry.claim(began, len(calls), err)
	}
	if store.IsMoved(err) {
		signal(w.beat) // the heartbeat meets the server
		return 0, nil
	}
	if err != nil {
		if !store.IsWithoutRules(err) {
			w.sweepSoon() // the claim may have succeeded nevertheless
		}
		return 0, err
	}
	w.cursor.advance(calls, from == nil, time.Since(began))
	if len(calls) > 0 {
		w.at("after", "claim")
	}
	w.accept(ctx, calls)
	return len(calls), nil
}

// untilBehind returns the time until the next claim may look for calls before the cursor.
func (w *Worker) untilBehind() time.Duration {
	w.claiming.Lock()
	defer w.claiming.Unlock()
	return w.cursor.untilBehind(time.Now())
}

// claimCursor stores, for each level, the run_at at which the queue begins. A claim from there does not read the index
// entries of calls that were claimed before. These entries remain as long as any old snapshot exists.
type claimCursor struct {
	from      map[int]time.Time // run_at by level
	lastFull  time.Time
	lastTook  time.Duration // of the last full claim
	fullEvery time.Duration
	behind    bool // there are calls before the cursor
}

const (
	// A transaction that inserts before others and commits after them inserts before the cursor. The cursor keeps this
	// distance for it.
	cursorDistance = time.Second
	// A full claim finds calls before the cursor. It happens every two seconds. If an old snapshot makes full claims slow,
	// they happen less often, so that they take at most a fortieth of the time.
	fullClaimEvery = 2 * time.Second
	fullClaimShare = 40
	rewindShare    = 8
)

// next returns the cursors of the next claim, or nil for a full claim.
func (c *claimCursor) next(now time.Time) map[int]time.Time {
	if now.Sub(c.lastFull) >= max(c.fullEvery, fullClaimEvery) || c.untilBehind(now) <= 0 {
		c.lastFull, c.behind = now, false
		return nil
	}
	return c.from
}

// untilBehind returns the time until a claim may look for calls before the cursor. If no call is known to be there, the
// time is infinite.
func (c *claimCursor) untilBehind(now time.Time) time.Duration {
	if !c.behind {
		return math.MaxInt64
	}
	return c.fullEvery*rewindShare/fullClaimShare - now.Sub(c.lastFull)
}

// rewind makes one of the next claims a full one. Full claims take at most an eighth of the time.
func (c *claimCursor) rewind() { c.behind = true }

// advance moves the cursor past the calls that a claim returned.
func (c *claimCursor) advance(calls []store.Call, full bool, took time.Duration) {
	if full { // a slow claim may have waited for something else
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
			c.rewind() // this call had returned to its place, and there may be others
		}
	}
}

// accept adds claimed calls to running, and starts slots for them. If this worker still runs an attempt with the
// number of a new claim, the database has lost the earlier claim, and accept releases the call: two runs with one
// number would each take what the other writes for its own.
func (w *Worker) accept(ctx context.Context, calls []store.Call) {
	var twice []store.Attempt
	defer func() {
		if len(twice) > 0 {
			w.log.Warn("the database lost claims of running calls: releasing the calls", zap.Int("calls", len(twice)),
				zap.String("first_call_id", twice[0].CallID))
			w.sweepSoon()
			w.warn(w.releaseAll(ctx, twice), "release calls")
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, call := range calls {
		if w.running[call.Attempt] != nil {
			twice = append(twice, call.Attempt)
			continue
		}
		c := &claimedCall{Call: call, claimedAt: now}
		// The end of the grace time ends a call, not the order to stop.
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
		return // stop hands them over
	}
	for range min(w.options.Concurrency-w.busy, len(w.ready)) {
		w.busy++
		w.slots.Go(w.slot)
	}
}

// slot runs ready calls one by one until none is left.
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
		// Such a call stays in running. A sweep would otherwise release it as if it had not run.
		if w.run(c).how != leftToRecovery {
			w.forget(c)
		}
	}
}

// forget removes a call that has ended here.
func (w *Worker) forget(c *claimedCall) {
	c.end(nil)
	w.mu.Lock()
	delete(w.running, c.Attempt)
	w.rate.ended++
	if c.Suspect() {
		w.suspects--
		signal(w.wake) // the next suspect may be claimed now
	}
	if c.Background() {
		w.background--
		signal(w.wake)
	}
	w.mu.Unlock()
}

package worker

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/store"
)

// pace measures how many calls end a second, so that as many are claimed ahead of the free slots as are begun within
// aheadFor: a claim then costs little a call, and slots need not wait for one. Where calls take long nothing is claimed
// ahead, and they stay for workers that have room.
type pace struct {
	ended     int // calls since the last look; guarded by Worker.mu
	looked    time.Time
	perSecond float64
}

const (
	aheadFor = 40 * time.Millisecond
	maxAhead = 400
	// paceMemory is over what time the pace is averaged.
	paceMemory = 100 * time.Millisecond
)

// ahead is how many calls may wait for a slot.
func (p *pace) ahead(now time.Time) int {
	if since := now.Sub(p.looked); since > time.Millisecond {
		weight := 1 - math.Exp(-float64(since)/float64(paceMemory))
		p.perSecond += weight * (float64(p.ended)/since.Seconds() - p.perSecond)
		p.ended, p.looked = 0, now
	}
	return min(int(p.perSecond*aheadFor.Seconds()), maxAhead)
}

// room is how many calls to claim now: 0 while enough wait for a slot.
func (w *Worker) room() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	ahead := w.pace.ahead(time.Now())
	w.refillAt = ahead / 2
	if len(w.ready) > w.refillAt {
		return 0
	}
	return max(0, w.Concurrency+ahead-w.busy-len(w.ready))
}

// hold takes in what was claimed, and begins what there are slots for.
func (w *Worker) hold(ctx context.Context, calls []claimed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range calls {
		h := &holding{claimed: c}
		// What runs is not ended by the order to stop, but by the end of the grace time.
		h.ctx, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		w.held[c.Attempt] = h
		w.ready = append(w.ready, h)
	}
	if ctx.Err() != nil {
		return // they are handed over
	}
	for range min(w.Concurrency-w.busy, len(w.ready)) {
		w.busy++
		w.done.Go(w.slot)
	}
}

// slot runs one call after the other while any is ready.
func (w *Worker) slot() {
	hands := &hands{}
	defer hands.leave()
	for {
		w.mu.Lock()
		if len(w.ready) == 0 {
			w.busy--
			w.mu.Unlock()
			signal(w.freed)
			return
		}
		h := w.ready[0]
		w.ready = slices.Delete(w.ready, 0, 1)
		few := len(w.ready) <= w.refillAt
		w.mu.Unlock()
		if few {
			signal(w.freed)
		}
		w.run(h.ctx, h.claimed, hands)
		w.letGo(h)
	}
}

// hands are a goroutine that runs one handler after the other.
type hands struct{ jobs chan func() }

// do begins a job, when the one before has ended.
func (h *hands) do(job func()) {
	if h.jobs == nil {
		h.jobs = make(chan func())
		go func(jobs <-chan func()) {
			for job := range jobs {
				job()
			}
		}(h.jobs)
	}
	h.jobs <- job
}

// leave leaves the goroutine to end with its job; the next job gets a new one.
func (h *hands) leave() {
	if h.jobs != nil {
		close(h.jobs)
		h.jobs = nil
	}
}

// letGo forgets a call that has ended here.
func (w *Worker) letGo(h *holding) {
	h.cancel(nil)
	w.mu.Lock()
	delete(w.held, h.Attempt)
	w.pace.ended++
	w.mu.Unlock()
	if h.suspect() {
		w.nudge() // the next one may be claimed now
	}
}

// handOverReady gives back what was claimed and has not begun, and returns how many calls that were.
func (w *Worker) handOverReady() int {
	w.mu.Lock()
	ready := w.ready
	w.ready = nil
	w.mu.Unlock()
	if len(ready) == 0 {
		return 0
	}
	attempts := make([]store.Attempt, len(ready))
	for i, h := range ready {
		attempts[i] = h.Attempt
	}
	w.at(BeforeHandOver)
	outcome := leftToRecovery
	for !w.givingUp() { // what is not handed over is recovered, and counts as lost
		ctx, cancel := context.WithTimeout(context.Background(), min(controlDeadline, w.tryTime()))
		err := w.release(ctx, attempts)
		cancel()
		if err == nil {
			outcome = released
			break
		}
		w.say(err, "hand over what has not begun")
		sleep(context.Background(), 200*time.Millisecond)
	}
	w.at(AfterHandOver)
	for _, h := range ready {
		_, s := w.telemetry.begin(h.ctx, &h.claimed)
		s.end(outcome, "", false)
		w.letGo(h)
	}
	return len(ready)
}

// release gives back calls that this worker holds, all at once; where one is not held any more, one by one.
func (w *Worker) release(ctx context.Context, attempts []store.Attempt) error {
	ids, numbers := split(attempts)
	_, err := w.control.Exec(ctx, `select gem.release(a.call_id, a.attempt, $1) from unnest($2::uuid[], $3::integer[]) as a (call_id, attempt)`,
		w.id, ids, numbers)
	if !store.IsNotHeld(err) {
		return err
	}
	for _, a := range attempts {
		if err := release(ctx, w.control, a); err != nil && !store.IsNotHeld(err) {
			return err
		}
	}
	return nil
}

// split returns the ids and the numbers of attempts, as the arrays that Postgres gets.
func split(attempts []store.Attempt) (ids []string, numbers []int) {
	ids, numbers = make([]string, len(attempts)), make([]int, len(attempts))
	for i, a := range attempts {
		ids[i], numbers[i] = a.CallID, a.Number
	}
	return ids, numbers
}

func (w *Worker) holdsSuspect() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		if h.suspect() {
			return true
		}
	}
	return false
}

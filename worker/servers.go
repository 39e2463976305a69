package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gemworker/gem/internal/store"
	"go.uber.org/zap"
)

const maxCompared = 1000 // remembered ends and steps per batch

// remember keeps the end of an attempt, and returns what a restore needs. receiptID is empty if Postgres did not accept
// the receipt because the attempt no longer holds its call. If the handler has no effects outside of Postgres,
// the memory has neither input nor result, and the call runs again.
func (a *attempt) remember(final *store.Final, receiptID string) store.Lost {
	outside := a.call != nil && !inside(a.handler)
	lost := store.Lost{Attempt: a.claim.Attempt, Tool: a.claim.Tool, Code: a.claim.Code, Ended: true, ReceiptID: receiptID}
	if outside && lost.Code != nil && final != nil {
		lost.Call, lost.Final, lost.Key = &a.claim.Call, final, a.holds
	}
	a.worker.memory.add(lost, outside, "")
	return lost
}

// rememberStep keeps the name of a step that must not run twice and that has begun.
func (a *attempt) rememberStep(name string) {
	a.worker.memory.add(store.Lost{Attempt: a.claim.Attempt, Tool: a.claim.Tool, Key: a.holds}, false, name)
}

// endAgain ends the calls that this worker holds and has ended before: the database has lost their ends, for example in
// a crash with asynchronous commits. It returns the attempts that may be released.
func (w *Worker) endAgain(ctx context.Context, held []store.Attempt) (release []store.Attempt) {
	for _, attempt := range held {
		lost, known := w.memory.find(attempt)
		if !known {
			release = append(release, attempt)
			continue
		}
		w.log.Warn("the database lost the end of a call: writing it again", zap.String("call_id", attempt.CallID),
			zap.Int("attempt", attempt.Number))
		_, err := store.EndAgain(ctx, w.options.Control, lost, w.options.Registry.Version)
		w.warn(err, "write the end of a call again")
	}
	return release
}

// meeting is the work after another server was met: what it lacked so far.
type meeting struct {
	counts map[store.Restored]int
	steps  int
	reran  []store.Lost
}

// beginMeeting makes the worker claim no calls until w.meet has ended: a call whose end the server lacks must not run
// again before the end is restored. A claim that is on its way has ended when it returns.
func (w *Worker) beginMeeting() {
	if w.meeting == nil {
		w.setMeeting(&meeting{counts: map[store.Restored]int{}})
	}
}

func (w *Worker) setMeeting(m *meeting) {
	w.claiming.Lock()
	defer w.claiming.Unlock()
	w.meeting = m
}

// meet records that this worker has met another server, and restores what the server lacks: the claims of running
// calls, ends, and the beginnings of steps. It ends within a heartbeat's interval, so that the worker stays alive. If
// something is left, the next heartbeat continues.
func (w *Worker) meet(ctx context.Context) error {
	w.beginMeeting()
	limited, cancel := context.WithTimeout(ctx, w.options.HeartbeatInterval)
	defer cancel()
	w.at("before", "meet")
	epoch, err := store.MeetServer(limited, w.options.Control, w.id, w.knew)
	if err != nil {
		return err
	}
	w.at("after", "meet")
	w.knew = epoch.Server
	w.epoch.Store(&metServer{epoch, time.Now()})
	w.sweepSoon()
	if epoch.MayLackCommits {
		err := w.restore(limited, epoch.Number)
		switch {
		case store.IsForbidden(err): // it is too late
			w.log.Error("could not restore what the server lacks", zap.Int64("epoch", epoch.Number), zap.Error(err))
		case err != nil:
			return err
		}
		found := w.meeting
		w.log.Warn("Postgres is another server, which may lack the last commits", zap.Int64("epoch", epoch.Number),
			zap.String("why", epoch.Why), zap.Int("restored", found.counts[store.RestoredEnd]),
			zap.Int("outcome_unknown", found.counts[store.EndedAsUnknown]), zap.Int("ran_twice", found.counts[store.RanTwice]),
			zap.Int("missing", found.counts[store.CallMissing]), zap.Int("claimed_again", found.counts[store.ClaimedAgain]),
			zap.Int("steps", found.steps), zap.Int("run_again", len(found.reran)))
	}
	w.setMeeting(nil)
	w.at("after", "meeting")
	return nil
}

// restore restores what an epoch's server lacks, and ends the attempts whose handlers have not begun. It may be
// repeated.
func (w *Worker) restore(ctx context.Context, epoch int64) error {
	w.meeting.reran = nil
	w.mu.Lock()
	running := slices.Collect(maps.Values(w.running))
	w.mu.Unlock()
	var lost []store.Lost
	for _, c := range running {
		if c.start.CompareAndSwap(nil, &start{}) {
			// If the claim is lost, this worker may soon claim the call again, under the same number.
			c.end(errNotHeld)
		} else if s := c.start.Load(); s.outside && c.Code != nil {
			lost = append(lost, store.Lost{Attempt: c.Attempt, Tool: c.Tool, Code: c.Code, Call: &c.Call, Key: s.key})
		}
	}
	var outside []store.Lost
	for batch := range slices.Chunk(w.memory.all(), maxCompared) {
		var steps []store.BegunStep
		var ends []store.Attempt
		byAttempt := map[store.Attempt]*remembered{}
		for i := range batch {
			r := &batch[i]
			attempt := r.of(w.id)
			if r.step {
				name, key := r.begun()
				steps = append(steps, store.BegunStep{Attempt: attempt, Tool: r.tool, Name: name, Key: key})
			} else {
				ends, byAttempt[attempt] = append(ends, attempt), r
			}
		}
		written, err := store.RestoreSteps(ctx, w.options.Control, w.id, epoch, steps)
		if err != nil {
			return err
		}
		w.meeting.steps += written
		missing, err := store.CompareEnds(ctx, w.options.Control, w.id, ends)
		if err != nil {
			return err
		}
		for _, attempt := range missing {
			if r := byAttempt[attempt]; r.outside {
				outside = append(outside, r.lost(w.id))
			} else {
				w.meeting.reran = append(w.meeting.reran, r.lost(w.id))
			}
		}
	}
	for lost = append(lost, parentsFirst(outside)...); len(lost) > 0; {
		var later []store.Lost
		for _, l := range lost {
			wait, err := w.restoreOne(ctx, epoch, l)
			if err != nil {
				return err
			}
			if wait {
				later = append(later, l)
			}
		}
		if lost = later; len(lost) > 0 {
			sleep(ctx, restorePause)
		}
	}
	if len(w.meeting.reran) == 0 {
		return nil
	}
	return store.CountReran(ctx, w.options.Control, w.id, epoch, w.meeting.reran)
}

// parentsFirst returns the ends with each call after its parent.
func parentsFirst(ends []store.Lost) []store.Lost {
	parents := map[string]string{}
	for _, l := range ends {
		parents[l.CallID] = ""
		if l.Call != nil {
			parents[l.CallID] = l.Call.ParentID
		}
	}
	depth := func(l store.Lost) (n int) {
		for parent := parents[l.CallID]; parent != "" && n < len(parents); parent = parents[parent] {
			n++
		}
		return n
	}
	slices.SortStableFunc(ends, func(a, b store.Lost) int { return depth(a) - depth(b) })
	return ends
}

// restoreOne restores an attempt. It reports whether that must wait for another worker.
func (w *Worker) restoreOne(ctx context.Context, epoch int64, lost store.Lost) (later bool, err error) {
	w.at("before", "restore")
	what, err := store.Restore(ctx, w.options.Control, epoch, lost, w.options.Registry.Version)
	if store.IsRefusal(err) { // the others can be restored nevertheless
		w.log.Error("could not restore an attempt", zap.String("call_id", lost.CallID), zap.Int("attempt", lost.Number),
			zap.Error(err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	w.at("after", "restore")
	w.meeting.counts[what]++
	return what == store.RestoreLater, nil
}

// restorePause is the time between two tries to restore what must wait for another worker.
const restorePause = 200 * time.Millisecond

// restoreWithin is how long after a failover the functions in servers.sql restore ends.
const restoreWithin = 15 * time.Minute

// metServer is the server that a worker has met.
type metServer struct {
	store.Epoch
	at time.Time
}

// refused restores the end of an attempt that no longer holds its call, if a failover may be the reason.
func (a *attempt) refused(decided *end) {
	if a.call == nil || inside(a.handler) || a.claim.Code == nil {
		return
	}
	lost := a.remember(a.finalOf(decided), "")
	epoch := a.worker.epoch.Load()
	if epoch == nil || !epoch.MayLackCommits || time.Since(epoch.at) > restoreWithin {
		return // if the failover has not been noticed yet, meet restores the end
	}
	w, what := a.worker, store.RestoreLater
	for what == store.RestoreLater && !w.givingUp() { // for at most fifteen seconds: see gem.key_may_become_free
		ctx, cancel := context.WithTimeout(context.Background(), controlTimeout)
		var err error
		what, err = store.Restore(ctx, w.options.Control, epoch.Number, lost, w.options.Registry.Version)
		w.warn(err, "restore the end of a call")
		if what == store.RestoreLater {
			sleep(ctx, restorePause)
		}
		cancel()
	}
}

// finalOf returns what an end writes, or nil if it is not the outcome of a handler.
func (a *attempt) finalOf(e *end) *store.Final {
	if e.how != receipted || e.outcome.ReplayOf != "" {
		return nil
	}
	return new(a.final(e.outcome))
}

package main

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// throughputRun is one run of a contestant over a backlog.
type throughputRun struct {
	calls     int
	withRow   bool
	roundTrip time.Duration // added to each
	conns     int
	slots     int
}

type throughputResult struct {
	perSecond      float64
	allocations    float64 // a call, of the bench's own process, in which every contestant works
	allocatedBytes float64
}

// throughput measures from the start of the worker to the last commit, by the clock that the server and the bench share.
func throughput(ctx context.Context, l *lab, c contestant, run throughputRun) (r throughputResult, err error) {
	s, err := l.stage(ctx, c)
	if err != nil {
		return r, err
	}
	defer s.drop()
	if err := c.Backlog(ctx, s.db, run.calls, run.withRow); err != nil {
		return r, fmt.Errorf("fill the queue: %w", err)
	}
	if err := s.settle(ctx); err != nil {
		return r, err
	}
	url := s.url
	if run.roundTrip > 0 {
		through, stop, err := delayed(ctx, s.url, run.roundTrip)
		if err != nil {
			return r, err
		}
		defer stop()
		url = through
	}

	var handled atomic.Int64
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	began := time.Now()
	stop, err := c.Start(ctx, work{URL: url, Conns: run.conns, Slots: run.slots, Handled: &handled, Fail: fail})
	if err != nil {
		return r, fmt.Errorf("start: %w", err)
	}
	defer stop()
	limit := began.Add(throughputLimit)
	for int(handled.Load()) < run.calls { // nothing is asked of the database meanwhile
		if time.Now().After(limit) {
			return r, fmt.Errorf("%d of %d calls were handled in %v", handled.Load(), run.calls, throughputLimit)
		}
		if err := sleepUntil(ctx, time.Now().Add(5*time.Millisecond)); err != nil {
			return r, err
		}
	}
	if err := s.waitEnded(ctx, c, run.calls); err != nil {
		return r, err
	}
	runtime.ReadMemStats(&after)
	var last time.Time
	if err := s.db.QueryRow(ctx, "select max(at) from ("+c.Ended()+") e (id, at)").Scan(&last); err != nil {
		return r, err
	}
	calls := float64(run.calls)
	return throughputResult{
		perSecond:      calls / last.Sub(began).Seconds(),
		allocations:    float64(after.Mallocs-before.Mallocs) / calls,
		allocatedBytes: float64(after.TotalAlloc-before.TotalAlloc) / calls,
	}, nil
}

// throughputLimit is how long a backlog may take.
const throughputLimit = 10 * time.Minute

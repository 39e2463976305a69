package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
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
	allocations    float64 // per call, of the bench's own process, which runs every contestant
	allocatedBytes float64
	cpu            *callCPU // nil if it cannot be measured
}

// callCPU is the user and system time per call in µs.
type callCPU struct{ postgres, worker float64 }

// figures returns all figures of a run. Their names end with suffix. Not every name is a measure.
func (r throughputResult) figures(suffix string) []figure {
	figures := []figure{
		{measure: "throughput" + suffix, unit: "calls/s", value: r.perSecond},
		{measure: "allocations" + suffix, unit: "allocs/call", value: r.allocations},
		{measure: "allocated-bytes" + suffix, unit: "B/call", value: r.allocatedBytes},
	}
	if r.cpu != nil {
		figures = append(figures,
			figure{measure: "cpu" + suffix, unit: "µs/call", value: r.cpu.postgres + r.cpu.worker},
			figure{measure: "cpu-postgres" + suffix, unit: "µs/call", value: r.cpu.postgres},
			figure{measure: "cpu-worker" + suffix, unit: "µs/call", value: r.cpu.worker})
	}
	return figures
}

// throughput measures the time from the start of the worker to the last commit. The server and the bench share a clock.
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

	measureCPU, err := s.startCPU(ctx)
	if err != nil && !errors.Is(err, errNoProc) {
		return r, err
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
	stop = sync.OnceFunc(stop)
	defer stop()
	limit := began.Add(throughputLimit)
	for int(handled.Load()) < run.calls { // without queries to the database
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
	if measureCPU == nil {
		say("the CPU of a call is not measured: %v", errNoProc)
	} else {
		stop()
		if r.cpu, err = measureCPU(run.calls); err != nil {
			return r, err
		}
	}
	var last time.Time
	if err := s.db.QueryRow(ctx, "select max(at) from ("+c.Ended()+") e (id, at)").Scan(&last); err != nil {
		return r, err
	}
	calls := float64(run.calls)
	r.perSecond = calls / last.Sub(began).Seconds()
	r.allocations = float64(after.Mallocs-before.Mallocs) / calls
	r.allocatedBytes = float64(after.TotalAlloc-before.TotalAlloc) / calls
	return r, nil
}

// startCPU begins to measure CPU time. The returned function divides the CPU time since then by a number of calls. The
// worker's part is that of the bench's own process, which runs every contestant.
func (s *stage) startCPU(ctx context.Context) (perCall func(calls int) (*callCPU, error), err error) {
	postmaster, err := s.postmaster(ctx)
	if err != nil {
		return nil, err
	}
	used := func() (postgres, worker time.Duration, err error) {
		if postgres, err = cpuTimeOfServer(postmaster); err == nil {
			worker, err = cpuTime(os.Getpid())
		}
		return postgres, worker, err
	}
	postgresBefore, workerBefore, err := used()
	if err != nil {
		return nil, err
	}
	return func(calls int) (*callCPU, error) {
		postgres, worker, err := used()
		part := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(calls) }
		return &callCPU{postgres: part(postgres - postgresBefore), worker: part(worker - workerBefore)}, err
	}, nil
}

// throughputLimit limits the time for a backlog.
const throughputLimit = 10 * time.Minute

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
	perSecond     float64
	allocations   float64 // a call, of the bench's own process, in which every contestant works
	allocatedByte float64
}

// throughput measures from the start of the worker to the last receipt.
func throughput(ctx context.Context, l *lab, c contestant, run throughputRun) (r throughputResult, err error) {
	s, err := l.stage(ctx, c)
	if err != nil {
		return r, err
	}
	defer s.drop()
	if err := c.Backlog(ctx, s.db, run.calls, run.withRow); err != nil {
		return r, fmt.Errorf("%s: fill the queue: %w", c.Name(), err)
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
	own0, busy0, idle0 := cpuTimes()
	began := time.Now()
	stop, err := c.Start(ctx, work{URL: url, Conns: run.conns, Slots: run.slots, Handled: &handled})
	if err != nil {
		return r, fmt.Errorf("%s: start: %w", c.Name(), err)
	}
	defer stop()
	limit := time.After(5 * time.Minute)
	for ended := 0; ended < run.calls; {
		select {
		case <-limit:
			return r, fmt.Errorf("%s: %d of %d calls had ended after 5 minutes", c.Name(), ended, run.calls)
		case <-time.After(5 * time.Millisecond):
		}
		if int(handled.Load()) < run.calls {
			continue // nothing is asked of the database meanwhile
		}
		if ended, err = s.ended(ctx, c); err != nil {
			return r, err
		}
	}
	took := time.Since(began)
	own1, busy1, idle1 := cpuTimes()
	fmt.Printf("own %v busy %v idle %v\n", (own1-own0)/time.Duration(run.calls), (busy1-busy0)/time.Duration(run.calls), (idle1-idle0)/time.Duration(run.calls))
	runtime.ReadMemStats(&after)
	return throughputResult{
		perSecond:     float64(run.calls) / took.Seconds(),
		allocations:   float64(after.Mallocs-before.Mallocs) / float64(run.calls),
		allocatedByte: float64(after.TotalAlloc-before.TotalAlloc) / float64(run.calls),
	}, nil
}

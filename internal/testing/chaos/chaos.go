//go:build !windows

// Package chaos shows that GEM keeps its promises while everything around it fails. Real worker processes on a real
// Postgres are killed, paused and stopped, Postgres is restarted, and connections break or go silent, while frontends
// insert and cancel calls. At the end each call must have exactly one receipt, and each effect must have happened as
// often as the receipt states.
//
// [Run] reads top to bottom. The participants are: lab.go, the tools that the workers run; plan.go and frontend.go, the
// calls; outside.go, a server that counts the requests that it receives; models.go, providers of models that fail;
// process.go, the workers; proxy.go, their connections to Postgres; server.go, Postgres itself; trouble.go, the
// failures. The results are in checks.go, recovery.go and report.go, which prints them.
//
// Everything listens only on 127.0.0.1. When the program that called Run ends for any reason, nothing is left behind:
// see minder.go.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Options of a run. A zero field has its default.
type Options struct {
	// Duration is the time during which calls are inserted and failures happen. After that everything may finish. The
	// default is 15 s.
	Duration time.Duration
	// Calls is the number of calls to insert, spread evenly over the duration. The default is 400.
	Calls int
	// Workers is the number of workers that run at once. The default is 3.
	Workers int
	// Seed determines the calls, the failures and their order. The time of the failures also depends on the machine.
	Seed uint64
	// Pace is the mean time between two failures. The default is 2 s.
	Pace time.Duration
	// Longest limits how long a worker is paused or cut off. The default is 15 s, which is longer than any deadline of
	// GEM.
	Longest time.Duration
	// RecoveryLimit limits the time from a kill -9 until the calls of the dead worker run elsewhere. A longer time is a
	// fault. With 0 the time is measured but not judged.
	RecoveryLimit time.Duration
	// Rules makes the workers judge calls by rules.json. The decisions are recomputed at the end.
	Rules bool
	// Logs is a folder for the logs of the workers. By default they are discarded.
	Logs string
	// Say is called with progress reports. By default there are none.
	Say func(line string)
}

func (o Options) withDefaults() Options {
	def(&o.Duration, 15*time.Second)
	def(&o.Calls, 400)
	def(&o.Workers, 3)
	def(&o.Pace, 2*time.Second)
	def(&o.Longest, 15*time.Second)
	if o.Say == nil {
		o.Say = func(string) {}
	}
	return o
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// patience is how long calls may make no progress after the failures before they count as stuck.
const patience = 90 * time.Second

// Run runs chaos and returns a report. It returns an error if the run itself failed. Faults of GEM are in
// Report.Faults.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	h, err := open(ctx, o.withDefaults())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()

	watching, stopWatching := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stopWatching()
	beside.Go(func() { h.recovery.watch(watching, h.server) })
	beside.Go(func() { h.tell(watching) })
	beside.Go(func() { h.answer(watching) })

	working, stopWorking := context.WithCancel(ctx)
	var staff sync.WaitGroup
	for slot := range h.Workers {
		staff.Go(func() { h.keepWorking(working, slot) })
	}
	began := time.Now()
	raging, calm := context.WithTimeout(ctx, h.Duration)
	var troubles sync.WaitGroup
	troubles.Go(func() { h.makeTrouble(raging) })
	inserted := h.insert(ctx)
	<-raging.Done()
	calm()
	troubles.Wait()
	settled := h.settle(ctx)
	h.settled = time.Since(began) - h.Duration

	stopWorking()
	staff.Wait()
	if err := errors.Join(inserted, settled); err != nil {
		return nil, err
	}
	return h.report(ctx)
}

// harness is the state of a run.
type harness struct {
	Options
	plan     []call
	minder   *minder
	server   *server
	outside  *outside
	models   *models
	recovery recovery
	settled  time.Duration // time of the calls that were open when the failures ended

	mu      sync.Mutex
	workers []*process     // by slot; nil while no worker runs there
	counts  map[string]int // failures by name
	faults  []string
}

// open starts everything except the workers.
func open(ctx context.Context, o Options) (_ *harness, err error) {
	h := &harness{Options: o, plan: plan(o.Seed, o.Calls), workers: make([]*process, o.Workers), counts: map[string]int{}}
	h.recovery.beats = map[string][]time.Time{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if h.minder, err = startMinder(ctx); err != nil {
		return nil, err
	}
	if h.server, err = startServer(ctx, h.minder.folder); err != nil {
		return nil, err
	}
	if h.outside, err = startOutside(ctx); err != nil {
		return nil, err
	}
	h.models = startModels(o.Seed, true)
	return h, nil
}

// close stops everything that is left. The workers have ended by then.
func (h *harness) close() error {
	var errs []error
	if h.models != nil {
		h.models.server.Close()
	}
	if h.outside != nil {
		errs = append(errs, h.outside.close())
	}
	if h.server != nil {
		errs = append(errs, h.server.close())
	}
	if h.minder != nil {
		errs = append(errs, h.minder.close())
	}
	return errors.Join(errs...)
}

// settle waits until every call has ended, or until nothing has moved for some time. The checks find the calls that are
// stuck.
func (h *harness) settle(ctx context.Context) error {
	h.Say("calm again: waiting for the calls that are left")
	last, since := -1, time.Now()
	for time.Since(since) < patience {
		var open, events int
		err := h.server.pool.QueryRow(ctx, `
			select count(*) filter (where status in ('queued', 'running', 'waiting')), coalesce(sum(events), 0)
				from core_tool_calls`).Scan(&open, &events)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && open == 0:
			return nil
		case err == nil && events != last:
			last, since = events, time.Now()
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return nil
}

// tell reports the progress every half minute.
func (h *harness) tell(ctx context.Context) {
	began := time.Now()
	for sleep(ctx, 30*time.Second) {
		var inserted, open int
		err := h.server.pool.QueryRow(ctx,
			"select count(*), count(*) filter (where status in ('queued', 'running', 'waiting')) from core_tool_calls").
			Scan(&inserted, &open)
		if err == nil {
			h.Say(fmt.Sprintf("%s: %d calls inserted, %d of them open", time.Since(began).Round(time.Second), inserted, open))
		}
	}
}

func (h *harness) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what]++
}

func (h *harness) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// The parts of a run have their own random streams, so that none depends on how often another draws.
const (
	planStream = iota
	insertStream
	troubleStream
	answerStream
	workerStream // and one for each slot
)

func stream(seed, of uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, of)) }

// between draws a random duration.
func between(r *rand.Rand, shortest, longest time.Duration) time.Duration {
	return shortest + time.Duration(r.Float64()*float64(max(0, longest-shortest)))
}

//go:build !windows

// Package chaos shows what GEM promises while everything around it breaks: real worker processes on a real Postgres are
// killed, paused and stopped, Postgres is restarted, connections are cut or go silent, while frontends insert and
// cancel calls. When it is over, each call must have its one receipt and each effect must have happened as often as the
// receipt says.
//
// [Run] reads top to bottom. What takes part: lab.go, the tools that the workers run; plan.go and frontend.go, the
// calls; outside.go, a server that counts what reaches it, and models.go, providers of models that fail; process.go,
// the workers; proxy.go, their way to Postgres; server.go, Postgres itself; trouble.go, what goes wrong. What comes
// out: checks.go and recovery.go, and report.go, which prints it.
//
// All of it listens on 127.0.0.1 alone. When the program that called Run ends, however it ends, nothing is left: see
// minder.go.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Options of a run. The zero value of a field that names a default is that default.
type Options struct {
	// Duration is how long calls are inserted and things go wrong; then everything may come to its end. Default: 15 s.
	Duration time.Duration
	// Calls is how many are inserted, evenly over the duration. Default: 400.
	Calls int
	// Workers is how many run at once. Default: 3.
	Workers int
	// Seed decides what is inserted, what goes wrong and in which order. When it goes wrong depends on the machine too.
	Seed uint64
	// Pace is the mean time between two troubles. Default: 2 s.
	Pace time.Duration
	// Longest bounds how long a worker is paused or cut off: 15 s by default, which is longer than any deadline of GEM.
	Longest time.Duration
	// RecoveryLimit is what a kill -9 may take until the calls of the dead worker run elsewhere; longer is a fault.
	// 0: it is measured and not judged.
	RecoveryLimit time.Duration
	// Rules says that the workers judge calls by rules.json. What they decided is computed again at the end.
	Rules bool
	// Logs is a folder for the logs of the workers. Default: they are dropped.
	Logs string
	// Say gets reports of the progress. Default: none.
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

// patience is how long calls may stand still, after the troubles are over, before they count as stuck.
const patience = 90 * time.Second

// Run makes a run and reports it. The error says that the run itself could not be made; what GEM did wrong is in
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

// harness is a run under way.
type harness struct {
	Options
	plan     []call
	minder   *minder
	server   *server
	outside  *outside
	models   *models
	recovery recovery
	settled  time.Duration // what the calls took that were left when the troubles were over

	mu      sync.Mutex
	workers []*process     // by slot; nil while none runs there
	counts  map[string]int // what went wrong, by name
	faults  []string
}

// open starts everything but the workers.
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

// close ends what is left. The workers have ended by then.
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

// settle waits until every call has ended, or until nothing has moved for some time: that is found by the checks.
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

// tell says every half minute how it goes.
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

// sleep reports whether d has passed before ctx ended.
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

// The parts of a run draw from streams of their own, so that none depends on how often another has drawn.
const (
	planStream = iota
	insertStream
	troubleStream
	answerStream
	workerStream // and one for each slot
)

func stream(seed, of uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, of)) }

// between draws a duration.
func between(r *rand.Rand, shortest, longest time.Duration) time.Duration {
	return shortest + time.Duration(r.Float64()*float64(max(0, longest-shortest)))
}

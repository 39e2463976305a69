//go:build !windows

package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The failures, by their names in the report.
const (
	kill9     = "kill -9"
	vanish    = "machine vanishes" // kill -9 unknown to Postgres: the connections stay open
	terminate = "SIGTERM"
	pause     = "SIGSTOP"
	cut       = "connections cut"
	backends  = "backends terminated"
	silence   = "packets swallowed"
	blackout  = "packets held"
	slowness  = "packets slow"
	fastStop  = "Postgres, fast"
	crash     = "Postgres, immediate"
)

var troubles = []share{
	{kill9, 36}, {vanish, 8}, {terminate, 16}, {pause, 18}, {cut, 8}, {backends, 8}, {silence, 10}, {blackout, 6},
	{slowness, 6}, {fastStop, 4}, {crash, 4},
}

// makeTrouble makes failures until ctx ends, several at a time. First it makes one of each kind, the lasting ones
// first, and then random ones.
func (h *harness) makeTrouble(ctx context.Context) {
	r := stream(h.Seed, troubleStream)
	var under sync.WaitGroup
	defer under.Wait()
	deck := []string{pause, silence, blackout, slowness, vanish, fastStop, kill9, terminate, crash, cut, backends}
	r.Shuffle(4, func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	rest := deck[4:]
	r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })

	var mu sync.Mutex
	for sleep(ctx, between(r, h.Pace/2, h.Pace*3/2)) {
		kind, first := weighted(r, troubles), false
		mu.Lock()
		if first = len(deck) > 0; first {
			kind, deck = deck[0], deck[1:]
		}
		mu.Unlock()
		victim := h.workerAt(r.IntN(h.Workers))
		// The random numbers are drawn here, so that they do not depend on the order of the goroutines.
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		under.Go(func() {
			switch {
			case h.make(ctx, kind, victim, own):
				h.count(kind)
			case first: // try it again later
				mu.Lock()
				deck = append(deck, kind)
				mu.Unlock()
			}
		})
	}
}

func (h *harness) workerAt(slot int) *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.workers[slot]
}

// make makes one failure and reports whether it happened.
func (h *harness) make(ctx context.Context, kind string, victim *process, r *rand.Rand) bool {
	if victim == nil && kind != fastStop && kind != crash && kind != backends {
		return false // the worker is being replaced
	}
	lasts := between(r, time.Second, min(12*time.Second, h.Longest))
	longer := between(r, 2*time.Second, h.Longest)
	switch kind {
	case kill9:
		return h.kill(victim)
	case vanish:
		victim.proxy.set(swallowed, 0)
		if !h.kill(victim) {
			victim.proxy.set(fair, 0)
			return false
		}
		victim.proxy.during(ctx, swallowed, longer, 0)
	case terminate:
		return victim.stop()
	case pause:
		return victim.pause(ctx, lasts)
	case cut:
		victim.proxy.cut()
	case backends:
		return h.terminateBackends(ctx, 1+r.IntN(5))
	case silence:
		victim.proxy.during(ctx, swallowed, longer, 0)
	case blackout:
		victim.proxy.during(ctx, held, longer, 0)
	case slowness:
		victim.proxy.during(ctx, slow, lasts, between(r, 10*time.Millisecond, 200*time.Millisecond))
	case fastStop, crash:
		done, err := h.server.restart(ctx, kind == crash, between(r, 0, time.Second))
		if err != nil {
			h.fault("restart Postgres: %v", err)
		}
		return done
	}
	return true
}

func (h *harness) kill(victim *process) bool {
	at := time.Now()
	if !victim.kill() {
		return false
	}
	h.recovery.killed(victim.name, at)
	return true
}

// terminateBackends ends some of the workers' connections, as an administrator does.
func (h *harness) terminateBackends(ctx context.Context, most int) bool {
	var ended int
	err := h.server.pool.QueryRow(ctx, `
		select count(pg_terminate_backend(pid)) from (
			select pid from pg_stat_activity where application_name like 'gem%' order by random() limit $1) chosen`,
		most).Scan(&ended)
	return err == nil && ended > 0
}

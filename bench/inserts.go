package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	insertClients = 32
	insertSlices  = 10
	withoutWake   = `create or replace function gem.wake_workers(p_hint text default '') returns void language sql
		set search_path = '' as ''`
)

// insertKinds has the conditions under which inserts are measured.
var insertKinds = []insertKind{
	{measure: "inserts-wake", busyWorker: true},
	{measure: "inserts-nowake", change: withoutWake, busyWorker: true},
	{measure: "inserts-noworker"},
}

type insertKind struct {
	measure    string
	change     string // to the database
	busyWorker bool   // a worker runs, and all of its slots are taken
}

// inserts measures the inserts per second of all clients. Each client inserts one call after another, each in a
// transaction of its own. The kinds run in turns, in slices of the time, each in its own database.
func inserts(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var into []inserter
	for _, kind := range insertKinds {
		insert, stop, err := startInserting(ctx, b.lab, c, kind, fail)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.measure, err)
		}
		defer stop()
		into = append(into, insert)
	}
	done, took := make([]int, len(into)), make([]time.Duration, len(into))
	for range insertSlices {
		for i, insert := range into {
			began := time.Now()
			n, err := insertAll(ctx, insert, func(int) bool { return time.Since(began) >= b.sizes.inserts/insertSlices })
			if err != nil {
				return nil, err
			}
			done[i] += n
			took[i] += time.Since(began)
		}
	}
	for i, kind := range insertKinds {
		figures = append(figures, figure{measure: kind.measure, unit: "inserts/s",
			value: float64(done[i]) / took[i].Seconds()})
	}
	return figures, nil
}

// startInserting prepares the database of a kind, and opens a connection for each client.
func startInserting(ctx context.Context, l *lab, c contestant, kind insertKind, fail func(error)) (insert inserter,
	stop func(), err error) {
	s, err := l.stage(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	stop = s.drop
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if _, err := s.db.Exec(ctx, kind.change); err != nil {
		return nil, nil, fmt.Errorf("change the trigger: %w", err)
	}
	if kind.busyWorker {
		stopWorker, err := s.busyWorker(ctx, fail)
		if err != nil {
			return nil, nil, err
		}
		stop = func() { stopWorker(); s.drop() }
	}
	if err := s.settle(ctx); err != nil {
		return nil, nil, err
	}
	clients, err := s.connect(ctx, insertClients)
	if err != nil {
		return nil, nil, err
	}
	stopBefore := stop
	stop = func() { clients.Close(); stopBefore() }
	if insert, err = c.Inserter(clients, false); err != nil {
		return nil, nil, err
	}
	_, err = insertAll(ctx, insert, func(done int) bool { return done >= 5 })
	return insert, stop, err
}

// insertAll lets each client insert until enough returns true for its number of inserts. It returns the total number of
// inserts.
func insertAll(ctx context.Context, insert inserter, enough func(done int) bool) (int, error) {
	var total atomic.Int64
	var clients sync.WaitGroup
	errs := make([]error, insertClients)
	for i := range insertClients {
		clients.Go(func() {
			done := 0
			for ; !enough(done); done++ {
				if _, errs[i] = insert(ctx); errs[i] != nil {
					break
				}
			}
			total.Add(int64(done))
		})
	}
	clients.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("insert: %w", err)
	}
	return int(total.Load()), context.Cause(ctx)
}

// busyWorker starts a worker whose slots are all taken by calls that last until it stops.
func (s *stage) busyWorker(ctx context.Context, fail func(error)) (stop func(), err error) {
	const slots = 10
	if _, err := s.db.Exec(ctx, `insert into core_tool_calls (tool_name, input) select 'bench.wait', $1::jsonb
		from generate_series(1, $2::int)`,
		jsonOf(newPayload(0, false)), slots); err != nil {
		return nil, err
	}
	var waiting atomic.Int64
	stop, err = gem.Start(ctx, work{URL: s.url, Conns: slots, Slots: slots, Handled: &waiting, Fail: fail})
	if err != nil {
		return nil, err
	}
	limit := time.Now().Add(endLimit)
	for {
		// Wait until the worker wants no notifications. Otherwise its earlier requests would be measured.
		var wanted bool
		if err := s.db.QueryRow(ctx, "select coalesce(bool_or(wants_wake), false) from core_workers").
			Scan(&wanted); err != nil {
			stop()
			return nil, err
		}
		if waiting.Load() == slots && !wanted {
			return stop, nil
		}
		if time.Now().After(limit) {
			stop()
			return nil, errors.New("the worker did not fill its slots within a minute")
		}
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			stop()
			return nil, err
		}
	}
}

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// gemFive is GEM with a rule that lets five calls of bench.nap run at the same time.
var gemFive = gemWorker{rules: `{"name": "five", "tools": ["bench.nap"], "action": "wait", "running": {"max": 5},
	"at_most": "24h"}`}

// insertCalls inserts n calls of a tool at once.
func insertCalls(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, tool string, input payload, n int) error {
	_, err := db.Exec(ctx, "insert into core_tool_calls (tool_name, input) select $1, $2 "+
		"from generate_series(1, $3::int)", tool, jsonOf(input), n)
	return err
}

// placesAtOnce measures a long queue for the places of a rule: how often its calls are claimed, and what it leaves to
// other tools.
func placesAtOnce(ctx context.Context, b *bench, _ contestant) ([]figure, error) {
	s, err := b.lab.stage(ctx, gemFive)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	rest := make(chan struct{})
	wake := sync.OnceFunc(func() { close(rest) })
	defer wake()
	var handled atomic.Int64
	stop, err := gemFive.Start(ctx, work{URL: s.url, Conns: 20, Slots: 100, Handled: &handled, Fail: fail, Rest: rest})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	defer stop()
	// after does something, and returns when n more calls were handled. It does not query the database.
	after := func(n int, do func() error) error {
		want := handled.Load() + int64(n)
		if err := do(); err != nil {
			return err
		}
		for handled.Load() < want {
			if err := sleepUntil(ctx, time.Now().Add(time.Millisecond)); err != nil {
				return err
			}
		}
		return nil
	}
	others := func() (perSecond float64, err error) {
		began, n := time.Now(), b.sizes.others
		err = after(n, func() error { return insertCalls(ctx, s.db, "bench.answer", newPayload(0, false), n) })
		return float64(n) / time.Since(began).Seconds(), err
	}
	if _, err := others(); err != nil { // the caches are filled
		return nil, err
	}
	var before, during []float64
	measure := func(into *[]float64) error {
		for range 5 {
			perSecond, err := others()
			if err != nil {
				return err
			}
			*into = append(*into, perSecond)
		}
		return nil
	}
	if err := measure(&before); err != nil {
		return nil, err
	}
	if err := insertCalls(ctx, s.db, "bench.nap", newPayload(0, false), b.sizes.forPlaces); err != nil {
		return nil, err
	}
	for parked := 0; parked < b.sizes.forPlaces-5; {
		if err := sleepUntil(ctx, time.Now().Add(time.Second)); err != nil {
			return nil, err
		}
		if err := s.db.QueryRow(ctx, "select count(*) from core_tool_calls where status = 'waiting'").
			Scan(&parked); err != nil {
			return nil, err
		}
	}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	if err := measure(&during); err != nil {
		return nil, err
	}
	if err := after(b.sizes.forPlaces, func() error { wake(); return nil }); err != nil {
		return nil, err
	}
	var claims int
	err = s.db.QueryRow(ctx, `select max(n) from (select count(*)::int as n from core_tool_events where event = 'claimed'
		group by call_id) each`).Scan(&claims)
	return []figure{
		{measure: "places-claims", unit: "claims", value: float64(claims)},
		{measure: "places-others", unit: "ratio", value: median(during) / median(before), singles: during},
	}, err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// underSnapshot measures throughput while another session holds a snapshot, so that no dead rows of the worker can be
// removed. Autovacuum still tries every minute and uses CPU in vain. The measure snapshot-novacuum runs without it.
func underSnapshot(measure string, autovacuum bool) experiment {
	return experiment{
		measures:    []string{measure},
		contestants: []contestant{gem, gemRunning, riverReceipt},
		run: func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
			series, err := snapshotSeries(ctx, b, c, autovacuum)
			if err != nil {
				return nil, err
			}
			return []figure{{measure: measure, unit: "last/first", value: lastToFirst(series), series: series}}, nil
		},
	}
}

// snapshotSeries returns the calls in each second.
func snapshotSeries(ctx context.Context, b *bench, c contestant, autovacuum bool) (series []float64, err error) {
	contender, ok := c.(claimer)
	if !ok {
		return nil, errors.New("its queue can not be filled")
	}
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	other, err := s.filled(ctx, contender, filling{queued: b.sizes.snapshotBacklog})
	if err != nil {
		return nil, err
	}
	defer other.Close()
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	if !autovacuum {
		if err := leaveUnvacuumed(ctx, other); err != nil {
			return nil, err
		}
	}
	letGo, err := holdSnapshot(ctx, other)
	if err != nil {
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	defer letGo()

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var handled atomic.Int64
	stop, err := c.Start(ctx, work{URL: s.url, Conns: 20, Slots: 100, Handled: &handled, Fail: fail})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	defer stop()
	began, before := time.Now(), int64(0)
	for range int(b.sizes.snapshot / time.Second) {
		if err := sleepUntil(ctx, began.Add(time.Duration(len(series)+1)*time.Second)); err != nil {
			return nil, err
		}
		now := handled.Load()
		series = append(series, float64(now-before))
		before = now
	}
	if before > int64(b.sizes.snapshotBacklog)*95/100 {
		return nil, fmt.Errorf("the backlog of %d calls was used up before the end", b.sizes.snapshotBacklog)
	}
	return series, nil
}

// leaveUnvacuumed disables autovacuum for all tables of a stage.
func leaveUnvacuumed(ctx context.Context, db *pgxpool.Pool) error {
	_, err := db.Exec(ctx, `do $$
		declare t regclass;
		begin
			for t in select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'r'
				and n.nspname in ('public', 'gem') loop
				execute format('alter table %s set (autovacuum_enabled = off)', t);
			end loop;
		end $$`)
	return err
}

// lastToFirst divides the last ten seconds by the first ten, or the last third by the first in a shorter series. It
// leaves out the first second, which belongs to the start.
func lastToFirst(series []float64) float64 {
	running := series[1:]
	part := max(1, min(10, len(running)/3))
	var first, last float64
	for i := range part {
		first += running[i]
		last += running[len(running)-1-i]
	}
	return last / first
}

func holdSnapshot(ctx context.Context, db *pgxpool.Pool) (letGo func(), err error) {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	letGo = func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), "rollback")
		conn.Release()
	}
	for _, statement := range []string{"begin isolation level repeatable read", "select count(*) from bench_rows"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			letGo()
			return nil, err
		}
	}
	return letGo, nil
}

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// addSchedules adds n schedules that are due once a year. They are copies, because saving takes longer than the rest.
func addSchedules(ctx context.Context, db *pgxpool.Pool, n int) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select gem.save_schedule('bench', '@yearly', 'bench.answer',
			'{"customer": "c", "note": "{due_at}"}', p_options => '{"overlap": "allow"}')`); err != nil {
			return fmt.Errorf("save a schedule: %w", err)
		}
		_, err := tx.Exec(ctx, `insert into gem.schedules select (jsonb_populate_record(s, jsonb_build_object(
			'id', gen_random_uuid(), 'name', 'bench' || n))).* from gem.schedules s, generate_series(2, $1::int) n`, n)
		return err
	})
}

// lateness adds n schedules that are due in two seconds, and returns how late the worker made their calls, in seconds.
func lateness(ctx context.Context, db *pgxpool.Pool, n int) (late []float64, err error) {
	if _, err := db.Exec(ctx, "delete from gem.schedules"); err != nil {
		return nil, err
	}
	if err := addSchedules(ctx, db, n); err != nil {
		return nil, err
	}
	if _, err := db.Exec(ctx, "update gem.schedules set next_at = now() + interval '2 seconds', "+
		"look_at = now() + interval '2 seconds'"); err != nil {
		return nil, err
	}
	for len(late) < n {
		if err := sleepUntil(ctx, time.Now().Add(time.Second)); err != nil {
			return nil, err
		}
		rows, err := db.Query(ctx, `select extract(epoch from o.at - o.due_at)::float8
			from gem.occurrences o join gem.schedules s on s.id = o.schedule_id where o.call_id is not null`)
		if err != nil {
			return nil, err
		}
		if late, err = pgx.CollectRows(rows, pgx.RowTo[float64]); err != nil {
			return nil, err
		}
	}
	return late, nil
}

// runSchedules measures the look at schedules that are not due, and how late the calls of many and of few are.
func runSchedules(ctx context.Context, on *stage, s sizes) ([]figure, error) {
	db, n := on.db, s.schedules
	if err := addSchedules(ctx, db, n); err != nil {
		return nil, err
	}
	looks := make([]float64, 200)
	for i := range looks {
		began := time.Now()
		if _, err := db.Exec(ctx, "select gem.run_schedules(1000)"); err != nil {
			return nil, err
		}
		looks[i] = milliseconds(time.Since(began))
	}
	many, err := lateness(ctx, db, n)
	if err != nil {
		return nil, err
	}
	few, err := lateness(ctx, db, max(n/100, 10))
	if err != nil {
		return nil, err
	}
	return []figure{
		{measure: "schedules-look", unit: "ms", value: median(looks), singles: looks},
		{measure: "schedules-due", unit: "s", value: slices.Max(many)},
		{measure: "schedules-late-p99", unit: "s", value: worstPercent(few)},
	}, nil
}

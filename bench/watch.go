package main

import (
	"context"
	"time"
)

// watched maps each measure to the query of a view in the schema gem.
var watched = map[string]string{
	"watch-queue":    "select * from gem.queue",
	"watch-outcomes": "select * from gem.outcomes",
	"watch-hits":     "select * from gem.key_hits",
	"watch-failures": "select * from gem.recent_failures",
	"watch-workers":  "select * from gem.workers",
}

// fillToWatch creates n calls that ended in the last forty days, with counted outcomes, and n that wait. They have
// twenty tools and durations of all sizes. A twentieth failed, and a tenth of the rest are hits.
func fillToWatch(n int) []fillStatement {
	id := func(at string) string {
		return "(left(gem.first_id_at(" + at + ")::text, 15) || right(gen_random_uuid()::text, 21))::uuid"
	}
	return []fillStatement{
		{1, `insert into gem.levels select generate_series(0, 2 * $1::int) on conflict do nothing`},
		{n, `insert into core_tool_calls (id, tool_name, status, attempt, claimed_by, claimed_at, run_at, created_at,
			updated_at, events, created_by)
			select ` + id("at") +
			`, 'bench.t' || i % 20, case when i % 20 = 3 then 'failed' else 'succeeded' end, 1, 'before', at, at, at, at, 3,
				'caller ' || i % 500
			from (select i, now() - interval '40 days' * random() as at from generate_series(1, $1::int) i) s`},
		{n, `insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id,
			replay_of, duration)
			select ` + id("created_at") +
			`, id, tool_name, status, case status when 'failed' then '{"error": {"error_code": "execution_error", "message": "it failed"}}' else '` + floorResult + `' end::jsonb,
				'` + floorEffects + `', created_at, 1, 'before', case when seq % 10 = 0 and status = 'succeeded' then id end, interval '0.1 ms' * exp(11 * random())
			from core_tool_calls limit $1::int`},
		{n, `insert into core_tool_calls (id, run_at, created_at, updated_at, tool_name, level, created_by)
			select gen_random_uuid(), now(), now(), now(), 'bench.t' || i % 20, i % 3, 'caller ' || i % 500
				from generate_series(1, $1::int) i`},
		{n / 10, `insert into core_tool_calls (id, created_at, updated_at, tool_name, run_at)
			select gen_random_uuid(), now(), now(), 'bench.t' || i % 20, now() + interval '1 day' * random()
				from generate_series(1, $1::int) i`},
		{50, `insert into core_tool_calls (id, run_at, created_at, updated_at, tool_name, status, attempt, claimed_by,
			claimed_at)
			select gen_random_uuid(), now(), now(), now(), 'bench.t1', 'running', 1, 'bench', now()
				from generate_series(1, $1::int) i`},
		{1, `update gem.outcomes_counted set upto = gem.first_id_at(now() - interval '41 days') where $1::int = 1`},
	}
}

// watchViews queries each view in turn.
func watchViews(ctx context.Context, b *bench, c contestant) ([]figure, error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	if _, err := s.db.Exec(ctx, "select gem.start_worker('bench', 50, 'bench', '1.0.0', '1 day')"); err != nil {
		return nil, err
	}
	if err := fillWith(ctx, s.db, fillToWatch(b.sizes.watched)); err != nil {
		return nil, err
	}
	for counted := 1; counted > 0; {
		if err := s.db.QueryRow(ctx, "select gem.count_outcomes(10000)").Scan(&counted); err != nil {
			return nil, err
		}
	}
	if _, err := s.db.Exec(ctx, "vacuum (analyze)"); err != nil {
		return nil, err
	}
	took := map[string][]float64{}
	for range 20 {
		for measure, sql := range watched {
			began := time.Now()
			if _, err := s.db.Exec(ctx, sql); err != nil {
				return nil, err
			}
			took[measure] = append(took[measure], milliseconds(time.Since(began)))
		}
	}
	var figures []figure
	for measure, singles := range took {
		figures = append(figures, figure{measure: measure, unit: "ms", value: median(singles), singles: singles})
	}
	return figures, nil
}

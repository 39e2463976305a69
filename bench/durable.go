package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// durable has the sizes for the measures of durable calls.
type durable struct {
	calls, steps int // for steps: the number of concurrent calls, and of steps in each
	children     int // of one call, started at once
	parked       int // calls that wait for a child, and calls that ask a question, one after another
	replayed     int // steps that a call has when it is resumed
}

// ofJournal has the measures that SQL computes from the journals of a tool's calls.
var ofJournal = []struct{ measure, unit, tool, sql string }{
	{"steps", "steps/s", "bench.steps", `select count(*) filter (where event = 'step') / extract(epoch
		from max(at) filter (where event = 'step') - min(at) filter (where event = 'claimed')) from event`},
	{"fan-out", "ends/s", "bench.family", `select count(*) filter (where event = 'returned') / extract(epoch
		from max(at) filter (where event = 'woken') - min(at) filter (where event = 'called')) from event`},
	{"park-resume", "ms", "bench.parent", `select percentile_cont(0.5) within group (order by took) from (
		select extract(epoch from (max(at) filter (where event = 'claimed')) - max(at) filter (where event = 'waiting')) *
			1000 as took from event group by call_id) calls`},
	{"park-resume-p99", "ms", "bench.parent", `select percentile_cont(0.99) within group (order by took) from (
		select extract(epoch from (max(at) filter (where event = 'claimed')) - max(at) filter (where event = 'waiting')) *
			1000 as took from event group by call_id) calls`},
	{"answer", "ms", "bench.ask", answered("0.5")},
	{"answer-p99", "ms", "bench.ask", answered("0.99")},
	{"replay", "ms", "bench.replay", `select extract(epoch
		from (max(at) filter (where event = 'succeeded')) - max(at) filter (where event = 'claimed')) * 1000 from event`},
}

// answered returns SQL for the time from an answer to the next claim of the call that asked.
func answered(part string) string {
	return `select percentile_cont(` + part + `) within group (order by took) from (
		select extract(epoch from (select max(e.at) from event e where e.call_id = q.parent_call_id
			and e.event = 'claimed') - a.at) * 1000 as took
		from core_tool_events a join core_tool_calls q on q.id = a.call_id where a.event = 'answered') calls`
}

// whileWorking starts a contestant on its own database, and measures while its worker runs.
func whileWorking(measure func(context.Context, *stage, sizes) ([]figure, error)) func(
	context.Context, *bench, contestant) ([]figure, error) {
	return func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
		s, err := b.lab.stage(ctx, c)
		if err != nil {
			return nil, err
		}
		defer s.drop()
		ctx, fail := context.WithCancelCause(ctx)
		defer fail(nil)
		var handled atomic.Int64
		stop, err := c.Start(ctx, work{URL: s.url, Conns: 20, Slots: 100, Handled: &handled, Fail: fail})
		if err != nil {
			return nil, fmt.Errorf("start: %w", err)
		}
		defer stop()
		return measure(ctx, s, b.sizes)
	}
}

// durableCalls runs the durable calls and computes the times from their journals, on Postgres's clock.
func durableCalls(ctx context.Context, on *stage, s sizes) (figures []figure, err error) {
	db, d := on.db, s.durable
	measureCPU, err := on.startCPU(ctx) // of the first part
	if err != nil && !errors.Is(err, errNoProc) {
		return nil, err
	}
	for _, part := range []struct {
		tool           string
		amount, before int // of each call; calls, one after another
		together       int
	}{{"bench.steps", d.steps, 1, d.calls}, {"bench.family", d.children, 1, 1}, {"bench.parent", 1, d.parked, 1},
		{"bench.ask", 1, d.parked, 1}, {"bench.replay", d.replayed, 1, 1}} {
		for range part.before {
			if _, err := db.Exec(ctx, `insert into core_tool_calls (tool_name, input) select $1,
				jsonb_build_object('customer', 'c', 'note', $2::text)
				from generate_series(1, $3::int)`, part.tool, fmt.Sprint(part.amount), part.together); err != nil {
				return nil, err
			}
			for open := 1; open > 0; {
				if err := sleepUntil(ctx, time.Now().Add(5*time.Millisecond)); err != nil {
					return nil, err
				}
				if _, err := db.Exec(ctx, `select answer_tool_call(id, '"yes"') from open_questions`); err != nil {
					return nil, err
				}
				if err := db.QueryRow(ctx, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting')").
					Scan(&open); err != nil {
					return nil, err
				}
			}
		}
		if part.tool == "bench.steps" && measureCPU != nil {
			cpu, err := measureCPU(d.calls * d.steps)
			if err != nil {
				return nil, err
			}
			figures = append(figures, figure{measure: "steps-cpu", unit: "µs", value: cpu.postgres + cpu.worker})
		}
	}
	for _, m := range ofJournal {
		var value float64
		if err := db.QueryRow(ctx, `with event as (
			select e.* from core_tool_events e join core_tool_calls c on c.id = e.call_id where c.tool_name = $1
				and c.status = 'succeeded') select (`+m.sql+`)::float8`, m.tool).Scan(&value); err != nil {
			return nil, fmt.Errorf("%s: %w", m.measure, err)
		}
		figures = append(figures, figure{measure: m.measure, unit: m.unit, value: value})
	}
	return figures, nil
}

// chainsOfJobs measures River's steps: each step is a job that inserts the next one in the transaction of its
// completion.
func chainsOfJobs(ctx context.Context, on *stage, s sizes) ([]figure, error) {
	db, d := on.db, s.durable
	client, err := river.NewClient(riverpgxv5.New(db), &river.Config{})
	if err != nil {
		return nil, err
	}
	jobs := make([]river.InsertManyParams, d.calls)
	for i := range jobs {
		jobs[i].Args = riverArgs{newPayload(i, false), d.steps - 1}
	}
	if _, err := client.InsertManyFast(ctx, jobs); err != nil {
		return nil, err
	}
	for ended := 0; ended < d.calls*d.steps; {
		if err := sleepUntil(ctx, time.Now().Add(50*time.Millisecond)); err != nil {
			return nil, err
		}
		if err := db.QueryRow(ctx, "select count(*) from river_receipts").Scan(&ended); err != nil {
			return nil, err
		}
	}
	var value float64
	err = db.QueryRow(ctx, "select (count(*) / extract(epoch from max(created_at) - min(created_at)))::float8 from "+
		"river_receipts").Scan(&value)
	return []figure{{measure: "steps", unit: "steps/s", value: value}}, err
}

package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// crowd is a database after a month of use: ended calls, spread evenly over 31 days, and open calls.
type crowd struct{ ended, queued, later, waiting int }

// The ids that the pages request.
const (
	crowdCall    = "0190a000-0000-7005-8000-000000000000" // a parent with a thousand children
	crowdSession = "session 7"
)

// fillCrowd creates fifty tools, a thousand callers, sessions of twenty calls, and requests to models. A twentieth of
// the calls failed, with ten kinds of errors, and a tenth are hits. Open calls wait for everything that a call can wait
// for.
func fillCrowd(ctx context.Context, db *pgxpool.Pool, c crowd) error {
	id := func(at string, kind int) string { // a version 7 UUID, ordered by time
		return fmt.Sprintf("(lpad(to_hex((extract(epoch from %s) * 1000)::bigint), 12, '0') || '700%d8000' || "+
			"lpad(to_hex(i), 12, '0'))::uuid", at, kind)
	}
	const each = `select i, current_setting('bench.now')::timestamptz - interval '31 days' * (1 - i / $1::float8) as at,
		'bench.t' || i % 50 as tool,
		case when i % 20 = 3 then 'failed' when i % 500 = 4 then 'not_configured' else 'succeeded' end as status
			from generate_series(1, $1::int) i`
	const failure = `jsonb_build_object('error', jsonb_build_object('error_code', (array['execution_error', 'validation_error', 'timeout', 'outcome_unknown'])[1 + i / 20 % 4],
		'message', 'order ' || i || ' was refused by shelf ' || i / 20 % 10, 'details', '{}'::jsonb))`
	result := `case status when 'failed' then ` + failure + ` else '` + floorResult + `'::jsonb end`
	input := `jsonb_build_object('customer', 'customer ' || i, 'note', repeat('wants an offer ', 10))`
	open := func(kind int, tool, input, status, runAt, waits string) string {
		return fmt.Sprintf(`insert into core_tool_calls (id, tool_name, input, status, run_at, created_at, updated_at, events,
			created_by, session_id, waits_for, waits, need, wake_at, attempt, steps, computed_key)
			select %s, %s, %s, '%s', %s, now() - interval '1 hour', now(), 1, 'caller ' || i %% 1000, 'open ' || i / 20, %s
				from generate_series(1, $1::int) i`,
			id("now() - interval '1 hour'", kind), tool, input, status, runAt, waits)
	}
	return fillWith(ctx, db, []fillStatement{
		{1, `select set_config('bench.now', now()::text, false) where $1::int = 1`}, // the same time for all statements
		{1, `insert into gem.levels select 0 where $1::int = 1 on conflict do nothing`},
		{c.ended, `insert into core_tool_calls (id, tool_name, input, status, attempt, claimed_by, claimed_at, run_at,
			created_at, updated_at, events, created_by, session_id, computed_key, error)
			select ` + id("at", 1) + `, tool, ` + input +
			`, status, 1, 'before', at, at, at, at + interval '1 s', 3, 'caller ' || i % 1000, 'session ' || i / 20,
				case when i % 7 = 0 then tool || '/customer/' || i end, case status when 'failed' then ` + failure + ` -> 'error' end from (` + each + `) s`},
		{c.ended, `insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt,
			worker_id, registry_version, idempotency_key, replay_of, duration)
			select ` + id("at + interval '1 s'", 2) + `, ` + id("at", 1) + `, tool, status, ` + result + `, '` + floorEffects +
			`', at + interval '1 s', 1, 'before', '1.0.0',
				case when i % 7 = 0 then tool || '/customer/' || i end, case when i % 10 = 1 and status = 'succeeded' then ` + id("at + interval '1 s'", 2) + ` end, interval '0.1 ms' * exp(11 * random()) from (` + each + `) s`},
		{c.ended, `insert into core_tool_events (call_id, seq, at, event, attempt, worker_id)
			select ` + id("at", 1) +
			`, seq, at, case seq when 3 then status else event end, least(seq - 1, 1), 'before' from (` + each +
			`) s, (values (1, 'queued'), (2, 'claimed'), (3, '')) step (seq, event)`},
		{c.ended / 10, `insert into core_llm_requests (call_id, attempt, n, label, tool_name, route, target, provider, model,
			routes_version, status, at, ended_at, reserved, cost,
				estimated_input, input_tokens, output_tokens, ms, spends)
			select ` + id("at", 1) +
			`, 1, 1, 'main', tool, 'main', 'target', 'provider', 'model ' || i % 3, '1.0.0', 'done', at, at, 1000000, 700000 + i % 1000, 900, 800, 200, 1500, '{}' from (` + each + `) s`},
		{c.queued, open(3, `'bench.t' || i % 50`, input, "queued", "now() - interval '1 hour' + i * interval '1 ms'",
			"null, null, null, null, 0, 0, null")},
		{c.later, open(4, `'bench.t' || i % 50`, input, "queued", "now() + interval '1 hour' + i * interval '1 ms'",
			"null, null, null, null, 0, 0, null")},
		{1, `insert into core_tool_calls (id, tool_name, status, run_at, created_at, updated_at, events, waits_for, waits,
			need, attempt, steps)
			select '` + crowdCall +
			`', 'bench.parent', 'waiting', now(), now(), now(), 1, 'call', '{child}', 1000, 1, 1 where $1::int = 1`},
		{c.waiting / 2, open(6, `'bench.parent'`, input, "waiting", "now()",
			`case when i % 2 = 0 then 'call' else 'time' end, '{child}', 1, case when i % 2 = 1 then now() + interval '1 day' end, 1, 2, null`)},
		{c.waiting / 4, open(7, `'wait.answer'`, `jsonb_build_object('text', 'Which of them, of customer ' || i || '?')`,
			"waiting", "now()", `'answer', '{#answer}', 1, null, 1, 1, null`)},
		{c.waiting / 8,
			open(8, `'wait.approval'`,
				`jsonb_build_object('text', 'May it run?', 'by', jsonb_build_array('role:ops'), 'tool', 'bench.t1', 'input', `+
					input+`)`, "waiting", "now()",
				`'answer', '{#answer}', 1, null, 1, 1, null`)},
		{c.waiting / 8, open(9, `'bench.t' || i % 50`, input, "waiting", "now()",
			`'key', null, null, null, 1, 0, 'key ' || i / 10`)},
		{1000, `update core_tool_calls c set parent_call_id = '` + crowdCall + `', parent_step = 'child#' || n
			from (select id, row_number() over () as n from (select id from core_tool_calls
				where status = 'queued' limit $1::int) few) child where c.id = child.id`},
		{1, `insert into core_tool_events (call_id, seq, at, event, attempt) select id, 1, created_at, 'queued', 0
			from core_tool_calls where status in ('queued', 'waiting') and $1::int = 1`},
		{1, `update gem.outcomes_counted set upto = gem.first_id_at(now() - interval '32 days') where $1::int = 1`},
	})
}

package chromium

import "context"

// agrees compares the JSON of each list with the views, read with the login of a viewer.
func (d *day) agrees(origin string) {
	d.t.Helper()
	monitor := d.pool(d.monitor)
	const calls = `select string_agg(concat_ws(' ', c->>'id', c->>'tool', c->>'status', c->>'error_code', c->>'receipt_id',
		c->>'session_id', c->>'attempt', c->>'events'), E'\n' order by n)
		from jsonb_array_elements($1::jsonb->'calls') with ordinality a (c, n)`
	view := func(condition, order string) string {
		return `select string_agg(concat_ws(' ', id, tool_name, status, error_code, receipt_id, session_id, attempt, events), E'\n' order by ` + order + `) from (
			select * from gem.calls where ` + condition + ` order by ` + order + ` limit 50) c`
	}
	for _, of := range []struct{ path, json, view string }{
		{"/overview.json", `select concat_ws(' ', j#>>'{queue,ready}', j#>>'{queue,scheduled}', j#>>'{queue,waiting}',
			j#>>'{queue,running}', j#>>'{queue,waiting_for,answer}',
				j#>>'{workers,alive}', j#>>'{workers,slots}', j#>>'{workers,running}', j->>'questions',
				j#>>'{day,succeeded}', j#>>'{day,failed}', j#>>'{day,refused}', j#>>'{day,cancelled}', j#>>'{day,not_configured}',
					j#>>'{day,hits}') from (select $1::jsonb) o (j)`,
			`select concat_ws(' ', (select concat_ws(' ', sum(ready), sum(scheduled),
				sum(waiting) - (select count(*) from gem.questions where status = 'waiting' and of_handler),
					-- a call and its question count once
				sum(running), sum((waiting_for->>'answer')::int)) from gem.queue),
				(select concat_ws(' ', count(*), sum(concurrency), sum(holds)) from gem.workers where state = 'alive'),
					(select count(*) from gem.questions where status = 'waiting'),
				(select concat_ws(' ', sum(succeeded), sum(failed), sum(refused), sum(cancelled), sum(not_configured), sum(hits))
					from gem.throughput where tool_name = ''))`},
		{"/overview.json", `select string_agg(concat_ws(' ', t->>'tool', t->>'ready', t->>'scheduled', t->>'waiting',
			t->>'running'), E'\n' order by t->>'tool') from jsonb_array_elements($1::jsonb->'tools') t`,
			`select string_agg(concat_ws(' ', tool_name, ready, scheduled, waiting, running), E'\n' order by tool_name)
				from gem.queue where tool_name not like 'wait.%'`},
		{"/calls.json", calls, view("true", "created_at desc, id desc")},
		{"/calls.json?state=failed", calls, view("outcome = 'failed'", "ended_at desc, id desc")},
		{"/calls.json?state=cancelled", calls, view("outcome = 'cancelled'", "ended_at desc, id desc")},
		{"/calls.json?state=failed&tool=shop.charge", calls,
			view("outcome = 'failed' and tool_name = 'shop.charge'", "ended_at desc, id desc")},
		{"/calls.json?state=waiting", calls, view("status = 'waiting'", "created_at desc, id desc")},
		{"/calls.json?state=scheduled", calls, view("status = 'queued' and run_at > gem.now()", "run_at, seq")},
		{"/calls.json?code=card_declined", calls, view("error_code = 'card_declined'", "ended_at desc, id desc")},
		{"/calls.json?session=s-agent", calls, view("session_id = 's-agent'", "created_at desc, id desc")},
		{"/calls.json?key=note-1", calls, view("idempotency_key = 'note-1'", "created_at desc, id desc")},
		{"/failures.json", `select string_agg(concat_ws(' ', tool, code, calls), E'\n' order by tool, code) from (
				select f->>'tool' as tool, f->>'code' as code, sum((f->>'count')::int) as calls
					from jsonb_array_elements($1::jsonb->'failures') f group by 1, 2) f`,
			`select string_agg(concat_ws(' ', tool, code, calls), E'\n' order by tool, code) from (
				select tool_name as tool, coalesce(error_code, status) as code, count(*) as calls from gem.recent_failures
					group by 1, 2) f`},
		{"/questions.json", `select string_agg(concat_ws(' ', q->>'call_id', q->>'tool', q->'by', q->>'others',
			q->>'parent_id'), E'\n' order by q->>'call_id') from jsonb_array_elements($1::jsonb->'open') q`,
			`select string_agg(concat_ws(' ', call_id, tool_name, to_jsonb(by), others::text, parent_call_id), E'\n'
				order by call_id::text) from gem.questions where status = 'waiting'`},
		{"/tools.json", `select string_agg(concat_ws(' ', t->>'name', t->>'registered', t->>'frontends',
			t#>>'{month,succeeded}', t#>>'{month,failed}', t#>>'{month,not_configured}', t#>>'{month,hits}'), E'\n'
				order by t->>'name') from jsonb_array_elements($1::jsonb) t`,
			`select string_agg(concat_ws(' ', coalesce(name, tool_name), (name is not null)::text,
				coalesce(frontends, false)::text, coalesce(succeeded, 0), coalesce(failed, 0), coalesce(not_configured, 0),
					coalesce(hits, 0)), E'\n'
				order by coalesce(name, tool_name)) from gem.tools full join gem.outcome_totals on tool_name = name`},
		{"/workers.json", `select string_agg(concat_ws(' ', w->>'id', w->>'state', w->>'slots', w->>'holds',
			w->>'registry_version', w->>'rules_version'), E'\n' order by w->>'id') from jsonb_array_elements($1::jsonb) w`,
			`select string_agg(concat_ws(' ', worker_id, state, concurrency, holds, registry_version, rules_version), E'\n'
				order by worker_id) from gem.workers`},
		{"/sessions.json", `select string_agg(concat_ws(' ', s->>'id', s->>'calls'), E'\n' order by s->>'id')
			from jsonb_array_elements($1::jsonb->'sessions') s`,
			`select string_agg(concat_ws(' ', session_id, calls), E'\n' order by session_id)
				from (select session_id, count(*) as calls from gem.calls where session_id is not null group by 1) s`},
		{"/sessions.json?id=s-agent", `select concat_ws(' ', j->>'total', j->>'open', j->>'failed', j#>>'{usage,requests}',
			j#>>'{usage,cost}', (select string_agg(c->>'id', ' ' order by c->>'id') from jsonb_array_elements(j->'calls') c))
				from (select $1::jsonb) o (j)`,
			`select concat_ws(' ', count(*), count(*) filter (where receipt_id is null),
				count(*) filter (where outcome = 'failed'),
				(select concat_ws(' ', count(*), sum(coalesce(cost, reserved))) from gem.model_requests
					where session_id = 's-agent'), string_agg(id::text, ' ' order by id::text))
				from gem.calls where session_id = 's-agent'`},
		{"/calls/" + d.fulfil + ".json", `select concat_ws(' ', j#>>'{call,status}', j#>>'{call,waits_for}',
			(select string_agg(e->>'event', ' ' order by n) from jsonb_array_elements(j->'journal') with ordinality a (e, n)),
				(select count(*) from jsonb_array_elements(j->'children'))) from (select $1::jsonb) o (j)`,
			`select concat_ws(' ', status, waits_for, (select string_agg(event, ' ' order by seq) from gem.journal
				where call_id = id), (select count(*) from gem.calls k where k.parent_call_id = c.id))
				from gem.calls c where id = '` + d.fulfil + `'`},
	} {
		status, text := fetch(d.t, origin+of.path)
		var page, rows string
		err := monitor.QueryRow(context.Background(), "select coalesce(("+of.json+"), '')", text).Scan(&page)
		if err == nil {
			err = monitor.QueryRow(context.Background(), "select coalesce(("+of.view+"), '')").Scan(&rows)
		}
		if status != 200 || err != nil || rows == "" || page != rows {
			d.t.Errorf("%s is answered with %d (%v), and shows\n%s\nThe views have\n%s", of.path, status, err, page, rows)
		}
	}
}

package supabase_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/supabase"
)

// granted has the queries that a signed-in user may make, in this order, and their results.
var granted = []struct{ query, outcome, data string }{
	// The two ways to insert a call.
	{`from('core_tool_calls').insert({tool_name: 'a.b', input: {n: 1}})`, "201", `null`},
	{`from('core_tool_calls').insert({tool_name: 'a.b', status: 'queued'}).select('status, created_by').single()`, "201",
		`{"status":"queued","created_by":"ada"}`},
	{`from('core_tool_calls').insert({id: 'NEW_CALL', tool_name: 'a.b', input: {n: 1}, idempotency_key: 'k',
		session_id: 's',
		parent_call_id: 'ADAS_CALL', priority: -5, run_at: '2020-01-01T00:00:00Z',
			traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'})
		.select('id, session_id, parent_call_id, priority, attempt')`, "201",
		`[{"id":"NEW_CALL","session_id":"s","parent_call_id":"ADAS_CALL","priority":-5,"attempt":0}]`},
	{`rpc('enqueue_tool_call', {tool_name: 'a.b', input: {n: 1}, idempotency_key: 'k', id: 'NEW_CALL', awaited: true, traceparent: null})`, "200", `"NEW_CALL"`},
	// Rows with different keys: PostgREST sends null for the missing fields of a row.
	{`from('core_tool_calls').insert([{tool_name: 'a.b'}, {tool_name: 'c.d', input: {n: 2}, priority: -3, id: null}])
		.select('tool_name, input, priority, status, created_by')`, "201",
		`[{"tool_name":"a.b","input":{},"priority":0,"status":"queued","created_by":"ada"},{"tool_name":"c.d","input":{"n":2},"priority":-3,"status":"queued","created_by":"ada"}]`},
	{`from('core_tool_calls').insert([{tool_name: 'a.b'}, {tool_name: 'c.d', priority: -3}],
		{defaultToNull: false}).select('priority')`, "201",
		`[{"priority":0},{"priority":-3}]`},
	// Repeating the insert creates no second call and changes nothing.
	{`from('core_tool_calls').upsert({id: 'NEW_CALL', tool_name: 'z.z'}, {onConflict: 'id', ignoreDuplicates: true})`,
		"201", `null`},
	{`from('core_tool_calls').select('tool_name').eq('id', 'NEW_CALL').single()`, "200", `{"tool_name":"a.b"}`},
	// Ada's own rows.
	{`from('core_tool_calls').select('id', {count: 'exact'}).then(r => ({...r, data: r.count}))`, "200", `9`},
	{`from('core_tool_calls').select('status, signed_in').eq('id', 'ADAS_CALL').single()`, "200",
		`{"status":"queued","signed_in":false}`},
	{`from('core_tool_calls').select('signed_in').eq('id', 'NEW_CALL').single()`, "200", `{"signed_in":true}`},
	{`from('core_tool_receipts').select('status, attempt').eq('call_id', 'ADAS_ENDED').single()`, "200",
		`{"status":"failed","attempt":0}`},
	{`from('core_tool_events').select('seq, event').eq('call_id', 'ADAS_ENDED')`, "200",
		`[{"seq":1,"event":"queued"},{"seq":2,"event":"failed"}]`},
	{`from('core_tool_receipts').select('call_id, status')`, "200", `[{"call_id":"ADAS_ENDED","status":"failed"}]`},
	{`from('core_tool_events').select('event').eq('call_id', 'ADAS_ENDED').order('seq')`, "200",
		`[{"event":"queued"},{"event":"failed"}]`},
	{`from('core_tool_progress').select('call_id, attempt, seq, kind, data').gt('seq', 0).order('seq')`, "200",
		`[{"call_id":"ADAS_CALL","attempt":1,"seq":1,"kind":"text","data":{"text":"hers"}}]`},
	{`rpc('get_receipt', {call_id: 'ADAS_ENDED'}).then(r => ({...r, data: r.data?.result.error.error_code}))`, "200",
		`"cancelled"`},
	{`rpc('get_receipt', {call_id: 'ADAS_CALL'})`, "200", `null`},
	{`rpc('get_receipt', {call_id: 'ADAS_CALL'}, {get: true})`, "200", `null`},
	{`rpc('cancel_tool_call', {id: 'ADAS_CALL'})`, "200", `"cancelled"`},
	{`rpc('cancel_tool_call', {id: 'ADAS_CALL'})`, "200", `"failed"`},
}

func TestASignedInUserMayDoThisAndAVisitorNothing(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]bool{"newer project": false, "older project": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, supabase.Options{OlderProject: older})
			for _, c := range granted {
				d.unchanged("a visitor", func() { d.must("visitor", c.query, "401 42501") })
				a := d.must("ada", c.query, c.outcome)
				if want := ids.Replace(c.data); want != "" && string(a.Data) != want {
					t.Errorf("%s: got %s, want %s", c.query, a.Data, want)
				}
			}
		})
	}
}

// withheld has the queries that a signed-in user may not make, and their outcomes. The server gets the same outcome
// unless the third column has another one.
var withheld = []struct{ query, outcome, server string }{
	// Columns that a frontend may not set.
	{`from('core_tool_calls').insert({tool_name: 'a.b', created_by: 'grace'})`, "403 42501", "201"},
	{`from('core_tool_calls').insert({tool_name: 'a.b', status: 'succeeded'})`, "400 23514", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', status: 'running'})`, "400 23514", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', attempt: 1})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', claimed_by: 'me'})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', claimed_at: '2020-01-01'})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', error: {error_code: 'x'}})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', cancel_requested_at: '2020-01-01'})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', computed_key: 'a.b:phone:1'})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', created_at: '2020-01-01'})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', updated_at: '2020-01-01'})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', retries: -9})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', losses: -9})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', events: 9})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', signed_in: false})`, "403 42501", ""},
	{`from('core_tool_calls').insert({tool_name: 'a.b', seq: 0})`, "400 428C9", ""},
	// all or nothing
	{`from('core_tool_calls').insert([{tool_name: 'a.b'}, {tool_name: 'a.b', claimed_by: 'me'}])`, "403 42501", ""},
	// Existing rows cannot be changed.
	{`from('core_tool_calls').update({status: 'succeeded'}).eq('id', 'ADAS_CALL')`, "403 42501", ""},
	{`from('core_tool_calls').update({input: {}}).eq('id', 'ADAS_CALL')`, "403 42501", ""},
	{`from('core_tool_calls').update({created_by: 'ada'}).eq('id', 'GRACES_CALL')`, "403 42501", ""},
	{`from('core_tool_calls').upsert({id: 'ADAS_CALL', tool_name: 'c.d'})`, "403 42501", ""},
	{`from('core_tool_calls').upsert({id: 'GRACES_CALL', tool_name: 'c.d'})`, "403 42501", ""},
	{`from('core_tool_calls').upsert([{id: 'NEW_CALL', tool_name: 'a.b'}, {id: 'GRACES_CALL', tool_name: 'c.d'}], {onConflict: 'id'})`, "403 42501", ""},
	{`from('core_tool_calls').upsert({tool_name: 'a.b', created_by: 'ada'}, {onConflict: 'created_by'})`, "400 42P10", ""},
	{`from('core_tool_calls').insert({id: 'ADAS_CALL', tool_name: 'c.d'})`, "409 23505", ""},
	{`from('core_tool_calls').insert({id: 'GRACES_CALL', tool_name: 'c.d'})`, "409 23505", ""},
	{`from('core_tool_calls').delete().eq('id', 'ADAS_CALL')`, "403 42501", ""},
	{`from('core_tool_calls').delete().neq('id', 'NO_CALL')`, "403 42501", ""},
	// Receipts and the journal have one writer.
	{`from('core_tool_receipts').insert({call_id: 'ADAS_CALL', tool_name: 'a.b', status: 'succeeded', result: {}, attempt: 0})`, "403 42501", ""},
	{`from('core_tool_receipts').upsert({call_id: 'ADAS_ENDED', status: 'succeeded'}, {onConflict: 'call_id'})`,
		"403 42501", ""},
	{`from('core_tool_receipts').update({status: 'succeeded'}).eq('call_id', 'ADAS_ENDED')`, "403 42501", ""},
	{`from('core_tool_receipts').delete().eq('call_id', 'ADAS_ENDED')`, "403 42501", ""},
	{`from('core_tool_events').insert({call_id: 'ADAS_CALL', seq: 2, at: '2020-01-01', event: 'claimed', attempt: 1})`,
		"403 42501", ""},
	{`from('core_tool_events').update({event: 'succeeded'}).eq('call_id', 'ADAS_ENDED')`, "403 42501", ""},
	{`from('core_tool_events').delete().eq('call_id', 'ADAS_ENDED')`, "403 42501", ""},
	{`from('core_tool_progress').insert({call_id: 'ADAS_CALL', attempt: 1, seq: 2, at: '2020-01-01', kind: 'text', data: {}})`, "403 42501", ""},
	{`from('core_tool_progress').update({data: {}}).eq('call_id', 'ADAS_CALL')`, "403 42501", ""},
	{`from('core_tool_progress').delete().eq('call_id', 'ADAS_CALL')`, "403 42501", ""},
	{`rpc('progress', {p_streams: []})`, "404 PGRST202", ""},
	// Views and functions about workers, call numbers, and calls of others.
	{`from('core_tool_calls').select()`, "403 42501", "200"},
	{`from('core_tool_calls').select('id, seq')`, "403 42501", "200"},
	{`from('core_tool_calls').select('id').order('seq')`, "403 42501", "200"},
	{`from('core_tool_calls').select('id').lt('seq', 9)`, "403 42501", "200"},
	{`from('core_tool_calls').select('claimed_by')`, "403 42501", "200"},
	{`from('core_tool_calls').select('core_tool_receipts(worker_id)')`, "403 42501", "200"},
	{`from('core_tool_receipts').select('worker_id')`, "403 42501", "200"},
	{`from('core_tool_events').select('worker_id')`, "403 42501", "200"},
	{`from('core_tool_events').select('event').not('data->>lost_worker', 'is', null)`, "403 42501", "200"},
	// Objects that frontends must not use.
	{`from('core_workers').select('worker_id')`, "403 42501", ""},
	{`from('core_workers').delete().neq('worker_id', '')`, "403 42501", ""},
	{`from('core_registry_versions').select('version')`, "403 42501", ""},
	{`from('core_rules_versions').select('version')`, "403 42501", ""},
	{`from('core_rules_versions').update({rules: {}}).neq('version', '')`, "403 42501", ""},
	{`from('core_rules_versions').delete().neq('version', '')`, "403 42501", ""},
	{`from('core_hook_events').select('path')`, "403 42501", ""},
	{`from('core_hook_events').delete().neq('path', '')`, "403 42501", ""},
	{`from('core_llm_requests').select('cost')`, "403 42501", ""},
	{`from('core_llm_requests').update({cost: 0}).neq('id', 0)`, "403 42501", ""},
	{`from('core_llm_versions').select('routes')`, "403 42501", ""},
	{`schema('gem').from('llm_spend').update({spent: 0}).neq('id', 0)`, "406 PGRST106", ""},
	{`rpc('llm_begin', {p_call: 'ADAS_CALL', p_attempt: 1, p_label: 'x', p_route: 'x', p_version: '1', p_max_cost: null, p_targets: []})`, "404 PGRST202", ""},
	{`schema('gem').from('rule_runs').select()`, "406 PGRST106", ""},
	{`schema('gem').from('rule_runs').delete().neq('counter', '')`, "406 PGRST106", ""},
	{`from('rule_runs').select()`, "404 42P01", ""},
	{`rpc('record_rules', {p_version: '2', p_sha256: 'a', p_rules: {}, p_longest: '1 hour'})`, "404 PGRST202", ""},
	{`rpc('prune_rule_runs', {p_limit: 9})`, "404 PGRST202", ""},
	{`rpc('gate', {p_call: 'ADAS_CALL', p_attempt: 1, p_worker: 'w', p_key: null, p_checks: [], p_version: '1', p_again: false, p_deadline: null})`, "404 PGRST202", ""},
	{`from('core_tool_receipts').select('warnings')`, "403 42501", "200"}, // a whole row contains the worker's name
	{`schema('gem').from('limits').select()`, "406 PGRST106", ""},
	{`schema('gem').from('limits').update({max_open_calls: 9}).eq('only_row', true)`, "406 PGRST106", ""},
	{`schema('gem').rpc('claim', {p_worker: 'w', p_limit: 9, p_suspect: true})`, "406 PGRST106", ""},
	{`from('limits').select()`, "404 42P01", ""},
	{`from('pg_roles').select()`, "404 42P01", ""},
	{`rpc('claim', {p_worker: 'w', p_limit: 9, p_suspect: true})`, "404 PGRST202", ""},
	{`rpc('finish', {p_call: 'ADAS_CALL', p_attempt: 1, p_worker: 'w', p_status: 'succeeded', p_result: {}, p_effects: {}})`, "404 PGRST202", ""},
	{`rpc('wake_workers')`, "404 PGRST202", ""},
	{`rpc('before_insert_call')`, "404 PGRST202", ""},
	{`rpc('set_config', {setting_name: 'request.jwt.claims', new_value: '{}', is_local: true})`, "404 PGRST202", ""},
	{`rpc('pg_notify', {channel: 'gem_calls', payload: ''})`, "404 PGRST202", ""},
	{`rpc('enqueue_tool_call', {tool_name: 'a.b', created_by: 'grace'})`, "404 PGRST202", ""},
	{`rpc('enqueue_tool_call', {tool_name: 'a.b', status: 'succeeded'})`, "404 PGRST202", ""},
	{`rpc('core_tool_receipts', {call: {id: 'GRACES_ENDED', created_by: 'ada'}})`, "403 42501", "200"},
	{`rpc('core_tool_events', {call: {id: 'GRACES_ENDED', created_by: 'ada'}})`, "403 42501", "200"},
	// A call of another user. The server may end any call.
	{`rpc('enqueue_tool_call', {tool_name: 'a.b', id: 'GRACES_CALL'})`, "409 23505", ""},
	{`rpc('enqueue_tool_call', {tool_name: 'a.b', id: 'ADAS_CALL'})`, "409 23505", ""}, // her own call, with another tool
	{`rpc('cancel_tool_call', {id: 'NO_CALL'})`, "404 PT404", ""},
	{`rpc('get_receipt', {call_id: 'NO_CALL'})`, "404 PT404", ""},
	{`rpc('get_receipt', {call_id: 'GRACES_ENDED'})`, "404 PT404", "200"},
	{`rpc('get_receipt', {call_id: 'GRACES_CALL'})`, "404 PT404", "200"},
	{`rpc('get_receipt', {call_id: 'NOBODYS_CALL'})`, "404 PT404", "200"},
	{`from('core_tool_calls').insert({tool_name: 'a.b', parent_call_id: 'GRACES_CALL'})`, "409 23503", "201"},
	{`rpc('enqueue_tool_call', {tool_name: 'a.b', parent_call_id: 'GRACES_CALL'})`, "409 23503", "200"},
	{`rpc('cancel_tool_call', {id: 'GRACES_CALL'})`, "404 PT404", "200"},
	{`rpc('cancel_tool_call', {id: 'NOBODYS_CALL'})`, "404 PT404", "200"},
}

func TestNobodyMayDoThisAndNothingChanges(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]bool{"newer project": false, "older project": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, supabase.Options{OlderProject: older})
			for _, c := range withheld {
				// A visitor is refused earlier, and never succeeds.
				d.unchanged("a visitor's "+c.query, func() {
					if a := d.ask("visitor", c.query); a.Status != 401 && a.Outcome() != c.outcome {
						t.Errorf("visitor: %s: %s (%s)", c.query, a.Outcome(), a.Message)
					}
				})
				d.unchanged(c.query, func() { d.must("ada", c.query, c.outcome) })
				switch c.server {
				case "":
					d.unchanged("the server's "+c.query, func() { d.must("server", c.query, c.outcome) })
				default:
					d.must("server", c.query, c.server)
				}
			}
		})
	}
}

func TestWhatOthersHaveIsNotThere(t *testing.T) {
	t.Parallel()
	d := newDesk(t, supabase.Options{})
	for _, c := range []struct{ query, data string }{
		{`from('core_tool_calls').select('id').order('id')`, `[{"id":"ADAS_CALL"},{"id":"ADAS_ENDED"}]`},
		{`from('core_tool_calls').select('id').eq('id', 'GRACES_CALL')`, `[]`},
		{`from('core_tool_calls').select('id').in('id', ['GRACES_CALL', 'ADAS_CALL'])`, `[{"id":"ADAS_CALL"}]`},
		{`from('core_tool_calls').select('id').neq('created_by', 'ada')`, `[]`},
		{`from('core_tool_calls').select('id').is('created_by', null)`, `[]`},
		{`from('core_tool_calls').select('id').or('created_by.eq.grace,created_by.is.null,id.eq.GRACES_CALL')`, `[]`},
		{`from('core_tool_calls').select('id').eq('session_id', 'morning')`, `[{"id":"ADAS_CALL"}]`},
		{`from('core_tool_calls').select('id').contains('input', {title: 'hers'})`, `[{"id":"ADAS_CALL"}]`},
		{`from('core_tool_calls').select('id', {count: 'exact'}).eq('tool_name', 'os.create_note').then(r => ({...r, data: r.count}))`, `2`},
		{`from('core_tool_calls').select('id', {count: 'exact'}).eq('created_by', 'grace').then(r => ({...r, data: r.count}))`, `0`},
		{`from('core_tool_receipts').select('call_id')`, `[{"call_id":"ADAS_ENDED"}]`},
		{`from('core_tool_receipts').select('call_id').eq('call_id', 'GRACES_ENDED')`, `[]`},
		{`from('core_tool_receipts').select('call_id', {count: 'exact'}).neq('call_id', 'NO_CALL').then(r => ({...r, data: r.count}))`, `1`},
		{`from('core_tool_events').select('event').eq('call_id', 'GRACES_ENDED')`, `[]`},
		{`from('core_tool_progress').select('data').eq('call_id', 'GRACES_CALL')`, `[]`},
		{`from('core_tool_progress').select('seq', {count: 'exact'}).then(r => ({...r, data: r.count}))`, `1`},
		{`from('core_tool_events').select('call_id').not('call_id', 'in', '(ADAS_CALL,ADAS_ENDED)')`, `[]`},
	} {
		a := d.must("ada", c.query, "200")
		if want := ids.Replace(c.data); string(a.Data) != want {
			t.Errorf("%s: got %s, want %s", c.query, a.Data, want)
		}
		d.must("visitor", c.query, "401 42501")
	}
	if a := d.must("server", `from('core_tool_calls').select('id', {count: 'exact'}).then(r => ({...r, data: r.count}))`,
		"200"); string(a.Data) != "5" {
		t.Errorf("the server sees %s calls, want all 5", a.Data)
	}
}

func TestTheTablesOfTheDomainsAreClosedUntilAPolicyOpensThem(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]bool{"newer project": false, "older project": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, supabase.Options{OlderProject: older})
			for _, table := range strings.Fields(`notes tasks reminders state_snapshots leads lead_sources lead_photo_links lead_stage_changes
				entities interactions comms_log`) {
				d.Exec("insert into " + table + " default values")
				for _, query := range []string{".select('*')", ".insert({})", ".update({call_id: null}).neq('id', 'NO_CALL')",
					".delete().neq('id', 'NO_CALL')"} {
					for _, who := range []string{"ada", "visitor"} {
						query := "from('" + table + "')" + query
						d.unchanged(query, func() {
							// In an older project the grants exist, but row level security returns no row.
							a := d.ask(who, query)
							if a.Code != "42501" && (!older || a.Code != "" || len(a.Data) > len("null")) {
								t.Errorf("%s: %s: %s with %s", who, query, a.Outcome(), a.Data)
							}
						})
					}
				}
			}
			d.Exec(`grant select on notes to authenticated;
				create policy own_notes on notes for select to authenticated using (created_by = (select gem_caller()))`)
			d.Exec(ids.Replace("insert into notes (title, call_id) values ('adas', 'ADAS_CALL'), ('graces', 'GRACES_CALL')"))
			if a := d.must("ada", "from('notes').select('title')", "200"); string(a.Data) != `[{"title":"adas"}]` {
				t.Errorf("with a policy ada reads %s", a.Data)
			}
		})
	}
}

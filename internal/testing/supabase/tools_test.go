package supabase_test

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestEachIsToldTheToolsThatItMayCall(t *testing.T) {
	testdb.Long(t, "TestTheLifeOfACallAsItsFrontendSeesIt")
	t.Parallel()
	d := newDesk(t, supabase.Options{OlderProject: true})
	d.must("visitor", `rpc('list_tools')`, "401 42501")
	const keep = `rpc('keep_tool_step', {step: {token: 'x', before: 0, name: 'x'}, result: 1})`
	d.must("visitor", keep, "401 42501")
	d.must("ada", keep, "403 42501")
	d.must("server", keep, "409 PT409")
	is := func(who, query, want string) {
		t.Helper()
		if got := d.must(who, query, "200").Data; string(got) != want {
			t.Errorf("%s: %s: got %s, want %s", who, query, got, want)
		}
	}
	is("server", `rpc('list_tools')`, `[]`) // no worker has run yet
	d.Exec(`select gem.record_registry('1', repeat('a', 64), '{"version": "1", "tools": [
			{"name": "b.mails", "permissions": ["send:email"], "input_schema": true, "output_schema": {},
				"idempotency": {"mode": "none"}, "timeout_ms": 1},
			{"name": "a.reads", "description": "Reads.", "permissions": ["read:db"], "input_schema": {"type": "object"},
				"output_schema": {"type": "string"},
			 "idempotency": {"mode": "keyed", "key_field": "k"}, "timeout_ms": 1, "hints": {"title": "Read it",
			   "destructive": false}, "x-note": "unsaid"}]}');
		select gem.start_worker('one', 1, '', '1', '1 hour')`)
	const reads = `{"name":"a.reads","description":"Reads.","input_schema":{"type":"object"},"output_schema":{"type":"string"},` +
		`"hints":{"title":"Read it","destructive":false},"idempotency":{"mode":"keyed","key_field":"k"}}`
	const mails = `{"name":"b.mails","description":"","input_schema":true,"output_schema":{},"hints":{},"idempotency":{"mode":"none"}}`
	is("ada", `rpc('list_tools')`, "["+reads+"]")
	is("server", `rpc('list_tools')`, "["+reads+","+mails+"]")
	is("server", `rpc('list_tools', {}, {get: true}).like('name', 'b.%').select('name')`, `[{"name":"b.mails"}]`)
	d.must("visitor", `rpc('list_tools')`, "401 42501")

	// A tool that another registry opens, and a changed schema, are listed as soon as a worker runs with that registry.
	d.Exec(`select gem.record_registry('2', repeat('b', 64), '{"version": "2", "tools": [
			{"name": "b.mails", "permissions": ["send:email"], "frontends": true, "input_schema": false, "output_schema": {},
				"idempotency": {"mode": "none"}, "timeout_ms": 1}]}');
		update core_registry_versions set recorded_at = recorded_at - interval '1 hour' where version = '1';
		select gem.start_worker('two', 1, '', '2', '1 hour')`)
	is("ada", `rpc('list_tools').select('name, input_schema')`,
		`[{"name":"a.reads","input_schema":{"type":"object"}},{"name":"b.mails","input_schema":false}]`)
	d.Exec(`select gem.stop_worker('two')`)
	is("ada", `rpc('list_tools').select('name')`, `[{"name":"a.reads"}]`)
}

package migrations_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// The registry in force is that of living workers, else the last that was recorded.
func TestTheToolsOfTheRegistryInForceAreKnown(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, `
		select gem.record_registry('1', repeat('a', 64), '{"tools": [
			{"name": "a.reads", "permissions": ["read:db", "write:db"]}, {"name": "a.mails",
				"permissions": ["write:db", "send:email"]},
			{"name": "a.opened", "permissions": ["net:http"], "frontends": true}, {"name": "a.closed",
				"permissions": ["read:db"], "frontends": false},
			{"name": "a.plain"}]}');
		select gem.record_registry('2', repeat('b', 64),
			'{"tools": [{"name": "a.mails", "permissions": ["send:email"], "frontends": true}, {"name": "b.b"}]}')`)
	testdb.Exec(t, db, "update core_registry_versions set recorded_at = recorded_at - interval '1 hour' where version = "+
		"'1'")
	const known = "select coalesce(string_agg(name || case when frontends then '' else ' closed' end, ', ' order by " +
		"name), '') from gem.tools"
	for _, step := range []struct{ sql, want string }{
		{"select 1", ""},
		{"select gem.start_worker('one', 1, '', '1', '1 hour')",
			"a.closed closed, a.mails closed, a.opened, a.plain, a.reads"},
		{"select gem.start_worker('two', 1, '', '2', '1 hour')", "a.closed closed, a.mails, a.opened, a.plain, a.reads, b.b"},
		{"update core_workers set alive_until = now() - interval '1 second' where worker_id = 'two'; select " +
			"gem.recover('one', null)",
			"a.closed closed, a.mails closed, a.opened, a.plain, a.reads"},
		{"select gem.stop_worker('one')", "a.mails, b.b"},
	} {
		testdb.Exec(t, db, step.sql)
		if got := testdb.Value[string](t, db, known); got != step.want {
			t.Errorf("after %s: %s, want %s", step.sql, got, step.want)
		}
	}
}

func TestASignedInUserCannotInsertACallToAClosedTool(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "grant insert (tool_name) on core_tool_calls to anon; create policy open on core_tool_calls for "+
		"insert to anon with check (true)")
	call := func(role, tool string) error {
		_, err := request(t, db, role, map[string]string{"authenticated": "ada"}[role],
			"insert into core_tool_calls (tool_name) values ('"+tool+"')")
		return err
	}
	if err := call("authenticated", "a.mails"); err != nil {
		t.Errorf("before a registry is known: %v", err)
	}
	testdb.Exec(t, db, `select gem.record_registry('1', repeat('a', 64),
		'{"tools": [{"name": "a.mails", "permissions": ["send:email"]}, {"name": "a.reads"}]}')`)
	testdb.Exec(t, db, "select gem.start_worker('one', 1, '', '1', '1 hour')")
	for _, role := range []string{"authenticated", "anon"} {
		if err := call(role, "a.mails"); err == nil || !strings.Contains(err.Error(),
			"a.mails is closed to signed-in users") || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", role, err)
		}
		for _, tool := range []string{"a.reads", "unknown.tool"} {
			if err := call(role, tool); err != nil {
				t.Errorf("%s: %s: %v", role, tool, err)
			}
		}
	}
	if _, err := request(t, db, "authenticated", "ada", "select enqueue_tool_call('a.mails')"); err == nil ||
		!strings.Contains(err.Error(), "42501") {
		t.Errorf("through the function: %v", err)
	}
	if err := call("service_role", "a.mails"); err != nil {
		t.Errorf("a server: %v", err)
	}
	// the trigger knows better
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, signed_in) values ('a.mails', true)")
	got := testdb.Value[string](t, db,
		"select string_agg(distinct coalesce(created_by, '-') || ' ' || tool_name || ' ' || "+
			"signed_in, ', ' order by coalesce(created_by, '-') || ' ' || tool_name || ' ' || signed_in) from core_tool_calls")
	if want := "- a.mails false, - a.reads true, - unknown.tool true, ada a.mails true, ada a.reads true, ada " +
		"unknown.tool true"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, err := request(t, db, "authenticated", "ada",
		"insert into core_tool_calls (tool_name, signed_in) values ('a.reads', false)"); err == nil {
		t.Error("a frontend says that nobody signed in")
	}
}

// A signed-in user learns nothing of workers, of how many calls others make, nor whose calls were in the way.
func TestWhatASignedInUserMayRead(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('a.b', 'ada')")
	finished(t, db)
	hidden := map[string][]string{
		"core_tool_calls": {"seq", "claimed_by", "needs", "level", "steps", "waits", "need", "kills", "awaited",
			"placed"},
		"core_tool_receipts": {"worker_id"}, "core_tool_events": {"worker_id", "data"},
	}
	for table, columns := range hidden {
		got := testdb.Value[string](t, db,
			`select string_agg(attname, ' ' order by attname) from pg_attribute where attrelid = '`+table+
				`'::regclass
			and attnum > 0 and not attisdropped and not has_column_privilege('authenticated', attrelid, attnum, 'select')`)
		want := testdb.Value[string](t, db, "select string_agg(c, ' ' order by c) from unnest('{"+strings.Join(columns, ",")+
			"}'::text[]) c")
		if got != want {
			t.Errorf("of %s a user cannot read %s, want %s", table, got, want)
		}
		for _, column := range append(columns, "*", table) {
			for _, sql := range []string{"select " + column + " from " + table,
				"select 1 from " + table + " order by (" + column + ")"} {
				if column == "*" && strings.Contains(sql, "order by") {
					continue
				}
				if _, err := request(t, db, "authenticated", "ada", sql); err == nil ||
					!strings.Contains(err.Error(), "permission denied") {
					t.Errorf("%s: %v", sql, err)
				}
				if _, err := request(t, db, "service_role", "", sql); err != nil {
					t.Errorf("a server: %s: %v", sql, err)
				}
			}
		}
	}
	if rows, err := request(t, db, "authenticated", "ada", "select 1 from core_tool_calls c, get_receipt(c.id) r where "+
		"r ? 'status' and not r ? 'worker_id'"); err != nil || rows != 1 {
		t.Errorf("the receipt: %d rows, %v", rows, err)
	}
}

// A user who names a parent learns only whether the parent is their own.
func TestAForeignParentIsLikeAMissingOne(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into core_tool_calls (id, tool_name, created_by) values "+
		"('00000000-0000-7000-8000-0000000000b1', 'a.b', 'grace')")
	for _, sql := range []string{
		"insert into core_tool_calls (tool_name, parent_call_id) values ('a.b', 'ID')",
		"select enqueue_tool_call('a.b', parent_call_id => 'ID')",
		"select enqueue_tool_call('a.b', parent_call_id => 'ID', id => 'ffffffff-0000-7000-8000-000000000000')",
		"insert into core_tool_calls (tool_name, parent_call_id) select 'a.b', 'ID'::uuid from generate_series(1, 3)",
	} {
		answers := map[string]bool{}
		for _, id := range []string{"00000000-0000-7000-8000-0000000000b1", "00000000-0000-7000-8000-0000000000b2"} {
			_, err := request(t, db, "authenticated", "mallory", strings.ReplaceAll(sql, "ID", id))
			if err == nil {
				t.Fatalf("%s was not refused", sql)
			}
			answers[strings.ReplaceAll(err.Error(), id, "ID")] = true
		}
		if len(answers) != 1 {
			t.Errorf("%s: %v", sql, answers)
		}
	}
}

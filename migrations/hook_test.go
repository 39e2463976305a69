package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// A hook gets the last events of its session, and all events about the files in question.
func TestAHookIsToldWhatItsSessionDid(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.hook_record('x', 's', 'a', 'PostToolUse',
			'[{"kind": "read", "path": "/a"}, {"kind": "edit", "path": "/a"}]');
		select gem.hook_record('x', 's', 'a', 'PostToolUse', '[{"kind": "read", "path": "/told twice"}]');
		select gem.hook_record('x', 's', 'b', 'PostToolUse', '[{"kind": "read", "path": "/b"}]');
		select gem.hook_record('x', 's', '', 'PostToolUse', '[{"kind": "read", "path": "/a"}]');
		select gem.hook_record('x', 's', '', 'PostToolUse', '[{"kind": "change"}]');
		select gem.hook_record('x', 's', 'c', 'PostToolUseFailure',
			'[{"kind": "test", "path": "/", "command": "go test", "outcome": "fail", "failed": ["A", "B"]}]');
		select gem.hook_record('x', 'another', 'a', 'PostToolUse', '[{"kind": "edit", "path": "/c"}]');
		select gem.hook_record('another', 's', 'a', 'PostToolUse', '[{"kind": "edit", "path": "/d"}]')`)
	for paths, want := range map[string]string{
		"{}":      "edit /a, change, test / go test fail A B",
		"{/a,/z}": "read /a, edit /a, change, test / go test fail A B",
		"{/b}":    "edit /a, read /b, change, test / go test fail A B",
	} {
		got := testdb.Value[string](t, db, `select string_agg(concat_ws(' ', f ->> 'kind', f ->> 'path', f ->> 'command', f ->> 'outcome',
			(select string_agg(name, ' ') from jsonb_array_elements_text(f -> 'failed') name)), ', ' order by n)
			from jsonb_array_elements(gem.hook_facts('x', 's', '`+paths+`')) with ordinality e (f, n)`)
		if got != want {
			t.Errorf("%s: got %s, want %s", paths, got, want)
		}
	}
	if got := testdb.Value[string](t, db, "select gem.hook_facts('x', 'none', '{/a}')::text"); got != "[]" {
		t.Errorf("of an unknown session: %s", got)
	}
	// What was done long ago with a file is not forgotten, however much came after it.
	testdb.Exec(t, db, `select gem.hook_record('x', 's', 'later ' || n, 'PostToolUse', '[{"kind": "edit", "path": "/e"}]')
		from generate_series(1, 2100) n`)
	if got := testdb.Value[string](t, db, `select count(*) || ' ' || count(*) filter (where f ->> 'path' = '/a')
		from jsonb_array_elements(gem.hook_facts('x', 's', '{/a}')) f`); got != "2005 2" {
		t.Errorf("after many edits: %s", got)
	}
	// Nor does a fact of one kind displace those of another, and a kind that is cut is named.
	if got := testdb.Value[string](t, db, `select string_agg(concat_ws(' ', f ->> 'kind', f ->> 'path', f ->> 'command'), ', ')
		from jsonb_array_elements(gem.hook_facts('x', 's', '{}')) f
		where f ->> 'kind' <> 'edit'`); got != "cut edit, change, test / go test" {
		t.Errorf("after many edits: %s", got)
	}
}

// A session may have hundreds of thousands of facts: a question reads the last of each kind, and the first of each kind
// for each file.
func TestAQuestionOfALongSessionReadsFewOfItsFacts(t *testing.T) {
	t.Parallel()
	for name, analyze := range map[string]string{"without statistics": "select 1",
		"with statistics": "analyze core_hook_events"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, "alter table core_hook_events set (autovacuum_enabled = off)")
			for _, facts := range []struct{ n, kind, path string }{
				{"9000", "'edit'", "'/a'"}, {"9000", "'write'", "'/a'"},
				{"1500", "case when n % 2 = 0 then 'change' else 'edit' end", "'/' || n"},
				{fmt.Sprint(many(300_000)), "'read'", "case when n % 3 = 0 then '/a' else '/' || n end"},
			} {
				testdb.Exec(t, db, `insert into core_hook_events (source, session_id, event, part, kind, path, at)
					select 'x', 's', 'PostToolUse', 0, `+facts.kind+`, `+facts.path+`, now() from generate_series(1, `+facts.n+`) n`)
			}
			testdb.Exec(t, db, analyze)
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			for what, most := range map[string]int{
				"select jsonb_array_length(gem.hook_facts('x', 's', '{}'))::text where $1 <> ''":               10500,
				"select jsonb_array_length(gem.hook_facts('x', 's', '{/a,/7,/8,/none}'))::text where $1 <> ''": 10700,
				`select gem.hook_record('x', 's', 'act', 'PostToolUse', '[{"kind": "edit", "path": "/b"}]')::text
					where $1 <> ''`: 400,
			} {
				read := 0
				for range 7 {
					read = readsOf(t, conn.Conn(), "core_hook_events", what, "select 'x'")
				}
				if read > most {
					t.Errorf("%s read %d rows and index entries, want at most %d", what, read, most)
				}
			}
			got := testdb.Value[string](t, db, `select string_agg(concat_ws(' ', f ->> 'kind', f ->> 'path'), ', ' order by f ->> 'kind',
				f ->> 'path') from (
				select f from jsonb_array_elements(gem.hook_facts('x', 's', '{/a,/7,/none}')) f
					where f ->> 'path' in ('/a', '/7', '/none')
				group by f) facts`)
			if got != "edit /7, edit /a, read /7, read /a, write /a" {
				t.Errorf("it reads %s", got)
			}
		})
	}
}

func TestFactsOfHooksLeaveAfter30Days(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.hook_record('x', 's', 'old ' || n, 'PostToolUse', '[{"kind": "edit", "path": "/a"}]')
			from generate_series(1, 30) n;
		update core_hook_events set at = gem.now() - interval '30 days 1 second';
		select gem.hook_record('x', 's', 'new', 'PostToolUse', '[{"kind": "edit", "path": "/b"}]')`)
	if n := number(t, db, "select count(*) from core_hook_events"); n != 11 {
		t.Errorf("%v rows are left after one fact, want 10 old ones and it", n)
	}
	if got := testdb.Value[string](t, db,
		"select gem.prune_hook_events(100) || ' ' || gem.prune_hook_events(100)"); got != "10 0" {
		t.Errorf("prune removed %s", got)
	}
}

// The history of sessions is the hook's: others neither read nor write it.
func TestFactsOfHooksAreClosed(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, `select gem.hook_record('x', 's', 'a', 'PostToolUse', '[{"kind": "edit", "path": "/a"}]')`)
	for what, sql := range map[string]string{
		"the facts": "select * from core_hook_events",
		"a fact": "insert into core_hook_events (source, session_id, event, part, kind, at) values ('x', 's', " +
			"'PostToolUse', 0, 'change', now())",
		"another fact":     "update core_hook_events set path = '/b'",
		"no facts":         "delete from core_hook_events",
		"room for others":  "select gem.prune_hook_events(1)",
		"facts by a hook":  "select gem.hook_facts('x', 's', '{}')",
		"a fact by a hook": "select gem.hook_record('x', 's', 'b', 'PostToolUse', '[]')",
	} {
		for _, role := range []string{"anon", "authenticated", "service_role", "gem_worker", "gem_monitor"} {
			_, err := request(t, db, role, "mallory", sql)
			if role == "gem_worker" && strings.HasSuffix(what, "by a hook") {
				if err != nil {
					t.Errorf("%s: %s: %v", role, what, err)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s: %s: %v", role, what, err)
			}
		}
	}
}

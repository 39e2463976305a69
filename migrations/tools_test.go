package migrations_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
)

// The schema of tools in SQL: its owner creates functions, a worker executes them, whatever others may do by default,
// and frontends see nothing.
func TestToolsInSQLAreTheOwnersAndTheWorkers(t *testing.T) {
	t.Parallel()
	db := supabaseWith(t, `alter default privileges grant all on schemas to public, anon, authenticated, service_role;
		alter default privileges revoke execute on functions from public`)
	testdb.Exec(t, db, "create function tools.shop_order(jsonb) returns jsonb language sql as 'select $1'")
	for role, want := range map[string]string{
		"gem_worker": "uses, executes", "gem_monitor": "", "gem_frontend": "", "gem_mcp": "", "anon": "",
		"authenticated": "", "service_role": "",
	} {
		got := testdb.Value[string](t, db, `select concat_ws(', ', case when has_schema_privilege('`+role+
			`', 'tools', 'usage') then 'uses' end,
			case when has_schema_privilege('`+role+`', 'tools', 'create') then 'creates' end,
			case when has_function_privilege('`+role+`', 'tools.shop_order(jsonb)', 'execute') then 'executes' end)`)
		if got != want {
			t.Errorf("%s %s, want %s", role, got, want)
		}
		_, err := request(t, db, role, "", "select tools.shop_order('{}')")
		if refused := err != nil && strings.Contains(err.Error(), "permission denied"); refused != (want == "") {
			t.Errorf("%s calls it: %v", role, err)
		}
	}
	for _, sql := range []string{"select gem.wrote('a', 'insert', 1)", "select gem.run_tool('shop_order', '{}', null)"} {
		if _, err := request(t, db, "authenticated", "ada", sql); err == nil ||
			!strings.Contains(err.Error(), "permission denied") {
			t.Errorf("a user runs %s: %v", sql, err)
		}
	}
}

// In a database that was restored under other owners, the functions of the schema are not the owner's. A worker looks
// for no tools in it.
func TestAnothersSchemaIsNoPlaceOfTools(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, "do $$ begin create role gem_test_other_tools nologin; exception when duplicate_object then "+
		"null; end "+
		"$$")
	dropAtEnd(t, url, "drop schema tools; drop role gem_test_other_tools")
	testdb.Exec(t, db, "drop schema tools; create schema tools authorization gem_test_other_tools; grant usage, create "+
		"on "+
		"schema tools to public; "+
		"update gem.migrations set version = 0 where source = 'functions'")
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	if got := testdb.Value[string](t, db,
		"select nspowner::regrole || ' ' || nspacl::text from pg_namespace where nspname = 'tools'"); got !=
		"gem_test_other_tools {gem_test_other_tools=UC/gem_test_other_tools,=UC/gem_test_other_tools}" {
		t.Error(got)
	}
}

// A function in the middle of a transaction may note effects, roll some back, and be its owner's.
func TestEffectsAreThoseOfTheTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		create function inner_one() returns void language plpgsql security definer set search_path = '' as $$ begin
			perform gem.wrote('a', 'insert', 1); end $$;
		create function tools.lab(jsonb) returns jsonb language plpgsql as $$ begin
			perform inner_one();
			begin perform gem.wrote('b', 'insert', 2), gem.read('b', 3); raise exception 'no'; exception
				when others then null; end;
			perform gem.read('c', 4);
			return '{}';
		end $$`)
	for range 2 { // the second does not have those of the first
		got := testdb.Value[string](t, db, "select effects from gem.run_tool('lab', '{}', null)")
		if want := `{"db_writes": [{"id": "1", "table": "a", "action": "insert"}], "db_reads": [{"count": 4, "table": "c"}]}`; got != want {
			t.Error(got)
		}
	}
}

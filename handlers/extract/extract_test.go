package extract_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// ended is a call to extract.run that succeeded with that result.
func ended(t *testing.T, db *pgxpool.Pool, createdBy, result string) (call string) {
	t.Helper()
	call = testdb.Value[string](t, db, "insert into core_tool_calls (tool_name, created_by) values ('extract.run', $1) "+
		"returning id::text", createdBy)
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour') where not exists (select from core_workers)")
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	testdb.Exec(t, db, "select gem.finish($1, 1, 'w', 'succeeded', $2, '{}', '1')", call, result)
	return call
}

func TestExtractionsAreRowsThatTheirCallersRead(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	const result = `{"document": {"sha256": "5f", "length": 20, "offsets": "utf16", "document_id": "` + adas +
		`"}, "extractions": [
		{"class": "total", "quote": "12 USD", "start": 3, "end": 9, "line": 1, "match": "exact", "attributes": {"amount": "12"}, "inferred": false, "shard": 0},
		{"class": "seller", "quote": "Ada", "start": 14, "end": 17, "line": 2, "match": "caseless", "attributes": {}, "inferred": true, "shard": 1}]}`
	call := ended(t, db, "ada", result)
	ended(t, db, "grace", result)
	ended(t, db, "ada", `{"extractions": []}`)
	ended(t, db, "ada", `{}`) // of a program's own tool of that name
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('extract.run', 'ada'), ('os.other', "+
		"'ada')")
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	testdb.Exec(t, db, `select gem.finish(id, 1, 'w', 'failed',
		'{"error": {"error_code": "x", "message": "y"}, "extractions": [{"class": "z"}]}', '{}', '1') from core_tool_calls
		where status = 'running' and tool_name = 'extract.run'`)
	testdb.Exec(t, db, `select gem.finish(id, 1, 'w', 'succeeded', '{"extractions": [{"class": "z"}]}', '{}', '1')
		from core_tool_calls where status = 'running'`)

	got := testdb.Value[string](t, db, `select json_agg(row_to_json(e)::jsonb - 'created_at' - 'call_id' order by e.n)::text
		from gem.extractions e where call_id = $1`, call)
	want := `[{"n": 1, "end": 9, "line": 1, "class": "total", "match": "exact", "quote": "12 USD", "shard": 0, "start": 3, "offsets": "utf16", "inferred": false, "attributes": {"amount": "12"}, "document_id": "` + adas + `", "document_sha256": "5f"}, ` +
		`{"n": 2, "end": 17, "line": 2, "class": "seller", "match": "caseless", "quote": "Ada", "shard": 1, "start": 14, "offsets": "utf16", "inferred": true, "attributes": {}, "document_id": "` + adas + `", "document_sha256": "5f"}]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, c := range []struct {
		role, sub string
		rows      int64
	}{{"authenticated", "ada", 2}, {"authenticated", "grace", 2}, {"authenticated", "mallory", 0},
		{"service_role", "", 4}} {
		if rows, err := as(t, db, c.role, c.sub,
			"select class, quote, attributes ->> 'amount' from gem.extractions"); err != nil || rows != c.rows {
			t.Errorf("%s %s: %d rows, want %d, %v", c.role, c.sub, rows, c.rows, err)
		}
	}
	for role, sql := range map[string]string{"anon": "select * from gem.extractions",
		"gem_worker": "select * from gem.extractions", "authenticated": "insert into gem.extractions (call_id) values (null)",
		"service_role": "select * from gem.limits"} {
		if _, err := as(t, db, role, "ada", sql); err == nil || !strings.Contains(err.Error(), "permission denied") &&
			!strings.Contains(err.Error(), "cannot insert") {
			t.Errorf("%s: %s: %v", role, sql, err)
		}
	}
}

// The schema gem is open for the view, and for nothing else in it.
func TestNothingElseOfTheSchemaIsOpenedByTheView(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	for _, role := range []string{"anon", "authenticated", "service_role"} {
		open := testdb.Value[[]string](t, db, `select coalesce(array_agg(what order by what), '{}') from (
			select c.relname::text from pg_class c where c.relnamespace = 'gem'::regnamespace
				and c.relkind in ('r', 'v', 'm', 'S')
				and (has_table_privilege($1, c.oid, 'select, insert, update, delete')
					or has_any_column_privilege($1, c.oid, 'select, insert, update'))
			union all
			select p.proname::text from pg_proc p where p.pronamespace = 'gem'::regnamespace
				and has_function_privilege($1, p.oid, 'execute')) open (what)`, role)
		want := map[string]string{"anon": "[]"}
		if got := fmt.Sprint(open); got != cmp.Or(want[role],
			"[answer_schema extractions open_questions part_of schedules_of_caller]") {
			t.Errorf("%s: %s", role, got)
		}
	}
}

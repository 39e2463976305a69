package migrations_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// askOnce begins a request of the call of that id, and ends it.
const askOnce = `gem.llm_end((gem.llm_begin($1::text::uuid, 1, 'main', 'default', '1', 900, '[
	{"target": "x", "provider": "p", "model": "m", "max_concurrent": 3, "reserve": 2, "priced": true, "estimated_input": 9,
		"budgets": [{"name": "all", "period": "month", "limit": 1000}, {"name": "user", "subject": "u7", "period": "hour", "limit": 1000}]},
	{"target": "y", "provider": "p", "model": "m", "reserve": 1, "priced": true, "estimated_input": 9, "budgets": []}]')).id,
	'done', null, 200, 'req', 'm', 1, 1, 0, 0, 0, 'provider', 1, null, 1, 2, 0, null, false)`

// A request reads what it needs, with many others in the ledger, many budgets, and whatever Postgres believes of them.
func TestARequestToAModelReadsAFewRowsWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	old := fmt.Sprintf(`
		insert into core_llm_requests (call_id, attempt, n, label, tool_name, route, target, provider, model, routes_version,
			created_by, status, at, ended_at,
			reserved, cost, estimated_input, spends)
		select gen_random_uuid(), 1, 1, 'main', 'llm.chat', 'default', 'x', 'p', 'm', '1', 'u7', 'done',
			now() - i * interval '1 s', now(), 1, 1, 1, '{1}'
		from generate_series(1, %d) i;
		insert into gem.llm_spend (budget, subject, period, starts) select 'user', 'u' || i, 'hour',
			gem.llm_starts('hour', now()) from generate_series(1, %d) i;
		insert into gem.llm_targets (target) select 'a' || i from generate_series(1, 1000) i`, many(100_000), many(20_000))
	for name, statistics := range map[string][]string{"never taken": {old},
		"taken when the tables were empty": {"analyze", old}, "taken when all was there": {old, "analyze"}} {
		t.Run(name, func(t *testing.T) {
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, `alter table core_llm_requests set (autovacuum_enabled = off); alter table gem.llm_spend
				set (autovacuum_enabled = off);
				alter table gem.llm_targets set (autovacuum_enabled = off)`)
			testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour')")
			testdb.Exec(t, db, "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 99)")
			for _, sql := range statistics {
				testdb.Exec(t, db, sql)
			}
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			for _, table := range []string{"core_llm_requests", "gem.llm_spend", "gem.llm_targets", "core_tool_calls"} {
				read := 0
				for range 7 { // often enough for the plan that a connection keeps
					read = readsOf(t, conn.Conn(), table, "select "+askOnce, "select id::text from gem.claim('w', 1, true)")
				}
				if read > 60 {
					t.Errorf("a request read %d rows and index entries of %s", read, table)
				}
			}
		})
	}
}

// BenchmarkARequestToAModel begins and ends requests, with a million others in the ledger.
func BenchmarkARequestToAModel(b *testing.B) {
	db := testdb.Pool(b, testdb.New(b))
	for _, sql := range []string{`
		insert into core_llm_requests (call_id, attempt, n, label, tool_name, route, target, provider, model, routes_version,
			created_by, status, at, ended_at,
			reserved, cost, estimated_input, spends)
		select gen_random_uuid(), 1, 1, 'main', 'llm.chat', 'default', 'x', 'p', 'm', '1', 'u' || i % 1000, 'done',
			now() - i * interval '1 s', now(), 1, 1, 1, '{1}'
		from generate_series(1, 1000000) i`, "analyze", "select gem.start_worker('w', 9, '', '', '1 hour')"} {
		if _, err := db.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	var call string
	n := 0
	for b.Loop() {
		if n%900 == 0 { // a call makes 1,000 requests at most
			b.StopTimer()
			if err := db.QueryRow(b.Context(), `insert into core_tool_calls (tool_name, created_by) values ('llm.chat', 'u7')
				returning id::text`).Scan(&call); err != nil {
				b.Fatal(err)
			}
			if _, err := db.Exec(b.Context(), "select gem.claim('w', 1, true)"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		n++
		var id int64
		if err := db.QueryRow(b.Context(), beginOne, call).Scan(&id); err != nil {
			b.Fatal(err)
		}
		if _, err := db.Exec(b.Context(), "select gem.llm_end($1, 'done', null, 200, 'req', 'm', 1, 1, 0, 0, 0, "+
			"'provider', 1, null, 1, 2, 0, null, false)", id); err != nil {
			b.Fatal(err)
		}
	}
}

const beginOne = `select id from gem.llm_begin($1::text::uuid, 1, 'main', 'default', '1', 900000000000, '[
	{"target": "x", "provider": "p", "model": "m", "max_concurrent": 3, "reserve": 2, "priced": true, "estimated_input": 9,
		"budgets": [{"name": "all", "period": "month", "limit": 1000000000000}, {"name": "user", "subject": "u7",
			"period": "hour", "limit": 1000000000000}]},
	{"target": "y", "provider": "p", "model": "m", "reserve": 1, "priced": true, "estimated_input": 9, "budgets": []}]')`

// The ledger is the owner's: workers have functions to write it, and frontends have nothing.
func TestTheLedgerOfModelsIsClosed(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into core_tool_calls (id, tool_name) values ('00000000-0000-7000-8000-0000000000b1', "+
		"'llm.chat')")
	testdb.Exec(t, db, "select gem.start_worker('one', 9, '', '', '1 hour')")
	testdb.Exec(t, db, "select gem.claim('one', 1, true)")
	testdb.Exec(t, db, strings.ReplaceAll("select "+askOnce, "$1::text::uuid", "'00000000-0000-7000-8000-0000000000b1'"))
	for what, sql := range map[string]string{
		"a cost of nothing":                 "update core_llm_requests set cost = 0",
		"no requests":                       "delete from core_llm_requests",
		"a request by hand":                 "insert into core_llm_requests (call_id) values (gen_random_uuid())",
		"the budgets":                       "select * from gem.llm_spend",
		"a budget set back":                 "update gem.llm_spend set spent = 0",
		"a target that is not cooling down": "update gem.llm_targets set cooldown_until = null",
		"other routes":                      "update core_llm_versions set routes = '{}'",
		"the routes":                        "select * from core_llm_versions",
		"a lost request":                    "select gem.llm_lose('{1}', now())",
		"a budget cut short":                "select gem.prune_llm_spend(1)",
		"requests pruned":                   "select gem.llm_prune('{}')",
	} {
		for _, role := range []string{"anon", "authenticated", "service_role", "gem_worker"} {
			if _, err := request(t, db, role, "mallory", sql); err == nil ||
				!strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s: %s: %v", role, what, err)
			}
		}
	}
	for _, role := range []string{"anon", "authenticated", "service_role"} {
		for _, sql := range []string{"select * from core_llm_requests",
			"select gem.record_routes('2', repeat('a', 64), '{}')", "select * from gem.llm_target_states('{x}')",
			"select gem.llm_begin(gen_random_uuid(), 1, '', '', '', null, '[]')"} {
			if _, err := request(t, db, role, "mallory", sql); err == nil {
				t.Errorf("%s: %s", role, sql)
			}
		}
	}
	if rows, err := request(t, db, "gem_worker", "", "select * from core_llm_requests"); err != nil || rows != 1 {
		t.Errorf("a worker sees %d requests, %v", rows, err)
	}
}

// The rows of a call leave with it, and what it cost stays counted.
func TestRequestsLeaveWithTheirCall(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, `select gem.start_worker('w', 9, '', '', '1 year');
		insert into core_tool_calls (tool_name) values ('llm.chat'), ('os.other')`)
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	call := texts(t, db, "select id::text from core_tool_calls where tool_name = 'llm.chat'")[0]
	begun := strings.ReplaceAll(beginOne, "$1::text::uuid", "'"+call+"'")
	for range 2 {
		testdb.Exec(t, db, strings.ReplaceAll("select "+askOnce, "$1::text::uuid", "'"+call+"'"))
	}
	testdb.Exec(t, db, begun) // never ended
	testdb.Exec(t, db, "select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls")
	const spends = "select string_agg(format('%s %s/%s, %s/%s, %s', budget, pruned, spent, pruned_requests, requests, " +
		"reserved), '; ' order by budget) from gem.llm_spend"
	if got, want := testdb.Value[string](t, db, spends), "all 0/2, 0/3, 2; user 0/2, 0/3, 2"; got != want {
		t.Errorf("before: got %s, want %s", got, want)
	}
	lines := texts(t, db, "select coalesce((line::jsonb -> 'llm_requests' ->> 2)::jsonb ->> 'status', 'none') from "+
		"gem.prune(array(select id from core_tool_calls)) order by 1")
	if got := fmt.Sprint(lines); got != "[lost none]" {
		t.Errorf("the archive has %s", got)
	}
	if got, want := testdb.Value[string](t, db, spends), "all 4/4, 3/3, 0; user 4/4, 3/3, 0"; got != want {
		t.Errorf("after: got %s, want %s", got, want)
	}
	if n := number(t, db, "select (select count(*) from core_llm_requests)"); n != 0 {
		t.Errorf("%v rows are left", n)
	}
	for _, step := range []struct{ days, left int }{{300, 2}, {380, 1}, {440, 0}} {
		setClock(t, db, step.days*24*3600*1000)
		testdb.Exec(t, db, "select gem.prune_llm_spend(100)")
		if step.days != 380 { // the month may have ended, or not
			if n := number(t, db, "select count(*) from gem.llm_spend"); n != float64(step.left) {
				t.Errorf("after %d days %v budgets are left", step.days, n)
			}
		}
	}
}

// A table's comment explains how long its rows stay.
func TestEveryTableSaysHowLongItsRowsStay(t *testing.T) {
	t.Parallel()
	table := regexp.MustCompile(`((?:--[^\n]*\n)*)create table if not exists ([a-z_.]+)`)
	says := regexp.MustCompile(`(?i)\b(leaves?|stays?|remains?|remove[ds]?|one row)\b`)
	seen := 0
	files, err := filepath.Glob("tables/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	// of a domain's own tables, those in which rows do not stay
	files = append(files, "../handlers/extract/00001_extract.sql")
	for _, file := range files {
		sql, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range table.FindAllStringSubmatch(string(sql), -1) {
			seen++
			if !says.MatchString(m[1]) {
				t.Errorf("the comment of %s does not say when its rows leave:\n%s", m[2], m[1])
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d tables", seen)
	}
}

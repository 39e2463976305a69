package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// show writes a row of progress for the first attempt at each call that runs, or for the one of that id.
const show = `select gem.progress(jsonb_agg(jsonb_build_object('call', id, 'attempt', 1, 'rows',
	'[{"kind": "text", "data": {"text": "a"}}]'::jsonb))) from core_tool_calls where status = 'running'`

func TestProgressLeavesTenMinutesAfterTheReceipt(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 year')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('llm.ends'), ('llm.runs')")
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	testdb.Exec(t, db, show)
	const minute = 60_000
	setClock(t, db, 30*minute) // the answer took so long
	testdb.Exec(t, db, "select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls where "+
		"tool_name = "+
		"'llm.ends'")
	sweep := func(after, want int) {
		t.Helper()
		setClock(t, db, after)
		testdb.Exec(t, db, "select gem.recover('w', gem.now())")
		if n := number(t, db, "select count(*) from core_tool_progress"); n != float64(want) {
			t.Errorf("after %d ms: %v rows, want %d", after, n, want)
		}
	}
	sweep(39*minute, 2)
	sweep(40*minute+1, 1)
	sweep(400*minute, 1) // of a call that runs
	testdb.Exec(t, db, "insert into core_tool_progress values (gen_random_uuid(), 1, 1, gem.now() - interval '1 hour', "+
		"'text', '{}')")
	sweep(401*minute, 1) // the rows of no call
}

// A sweep takes a bounded part, and leaves of a call that it does not finish what the next one finds it by.
func TestProgressLeavesInBoundedSteps(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '', '1 year')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) select 'llm.chat' from generate_series(1, 10)")
	testdb.Exec(t, db, "select gem.claim('w', 99, true)")
	testdb.Exec(t, db, "insert into core_tool_progress select c.id, 1, i, now() - interval '1 day', 'text', '{}' from "+
		"core_tool_calls c, generate_series(1, 1200) i")
	testdb.Exec(t, db, "select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls")
	testdb.Exec(t, db, "create or replace function gem.now() returns timestamptz language sql volatile as $$select "+
		"clock_timestamp() + interval '11 minutes'$$")
	for _, want := range []float64{7_000, 2_000, 0} {
		testdb.Exec(t, db, "select gem.forget_progress()")
		if n := number(t, db, "select count(*) from core_tool_progress"); n != want {
			t.Errorf("%v rows, want %v", n, want)
		}
		if n := number(t, db,
			"select count(distinct call_id) - count(*) filter (where seq = 1) from core_tool_progress"); n != 0 {
			t.Errorf("%v calls cannot be found", n)
		}
	}
}

func TestProgressLeavesWithItsCall(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 year'); insert into core_tool_calls (tool_name) "+
		"values "+
		"('llm.chat'), ('llm.runs')")
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	testdb.Exec(t, db, show)
	testdb.Exec(t, db, "select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls where "+
		"tool_name = "+
		"'llm.chat'")
	if lines := texts(t, db, "select line from gem.prune(array(select id from core_tool_calls))"); len(lines) != 1 ||
		strings.Contains(lines[0], "progress") {
		t.Errorf("pruned: %s", lines)
	}
	if n := number(t, db,
		"select count(*) from core_tool_progress p join core_tool_calls c on c.id = p.call_id"); n != 1 ||
		number(t, db, "select count(*) from core_tool_progress") != 1 {
		t.Errorf("%v rows of calls that are there", n)
	}
}

func TestAUserReadsTheProgressOfItsOwnCalls(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, created_by) values ('llm.chat', 'ada'), ('llm.chat', 'grace'),
		('llm.chat', null)`)
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour')")
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	testdb.Exec(t, db, show)
	for _, c := range []struct {
		role, sub string
		rows      int64 // -1: refused
	}{{"authenticated", "ada", 1}, {"authenticated", "grace", 1}, {"authenticated", "mallory", 0},
		{"authenticated", "", 0}, {"service_role", "", 3}, {"anon", "", -1}, {"gem_worker", "", -1}} {
		rows, err := request(t, db, c.role, c.sub, "select * from core_tool_progress")
		if refused := err != nil; refused != (c.rows < 0) || !refused && rows != c.rows {
			t.Errorf("%s %s reads %d rows, %v", c.role, c.sub, rows, err)
		}
	}
	for what, sql := range map[string]string{
		"a row":          "insert into core_tool_progress select id, 1, 9, now(), 'text', '{}' from core_tool_calls",
		"another text":   "update core_tool_progress set data = '{}'",
		"no rows":        "delete from core_tool_progress",
		"an empty table": "truncate core_tool_progress",
		"a sweep":        "select gem.forget_progress()",
	} {
		for _, role := range []string{"anon", "authenticated", "service_role", "gem_worker"} {
			if _, err := request(t, db, role, "ada", sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s: %s: %v", role, what, err)
			}
		}
	}
	for _, role := range []string{"anon", "authenticated", "service_role"} {
		if _, err := request(t, db, role, "ada", "select gem.progress('[]')"); err == nil {
			t.Errorf("%s writes progress", role)
		}
	}
	if n := number(t, db, "select count(*) from pg_publication_tables where tablename = 'core_tool_progress'"); n != 0 {
		t.Error("it is in a publication")
	}
}

// A statement reads what it writes, with 1,500 rows of each call and many of others there, and whatever Postgres
// believes of them.
func TestProgressReadsAFewRowsWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	old := fmt.Sprintf(`insert into core_tool_progress select gen_random_uuid(), 1, i %% 200 + 1, now() - interval '1 day',
		'text', '{}' from generate_series(1, %d) i on conflict do nothing;
		insert into core_tool_progress select id, 1, i, now(), 'text', '{}' from core_tool_calls, generate_series(1, 1500) i;
		insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 5000)`, many(100_000))
	for name, statistics := range map[string][]string{"never taken": {old},
		"taken when the tables were empty": {"analyze", old}, "taken when all was there": {old, "analyze"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, "alter table core_tool_progress set (autovacuum_enabled = off); alter table core_tool_calls set "+
				"(autovacuum_enabled = off)")
			testdb.Exec(t, db, "insert into core_tool_calls (tool_name) select 'llm.chat' from generate_series(1, 10)")
			testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '', '1 hour')")
			testdb.Exec(t, db, "select gem.claim('w', 10, true)")
			for _, sql := range statistics {
				testdb.Exec(t, db, sql)
			}
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			for _, table := range []string{"core_tool_calls", "core_tool_progress"} {
				read := 0
				for range 7 { // often enough for the plan that a connection keeps
					read = readsOf(t, conn.Conn(), table, "select count(*)::text from gem.progress($1::text::jsonb)",
						`select jsonb_agg(jsonb_build_object(
						'call', id, 'attempt', 1, 'after', 1500, 'rows',
							'[{"kind": "text", "data": {}}, {"kind": "text", "data": {}}]'::jsonb))::text
						from core_tool_calls where status = 'running'`)
				}
				if read > 150 {
					t.Errorf("progress of ten calls read %d rows and index entries of %s", read, table)
				}
			}
		})
	}
}

// What is sent again is not written again, and two writers of a call are one after the other.
func TestTheRowsOfACallAreNumberedOverItsAttempts(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('llm.chat')")
	send := func(attempt int, after string, rows int, want string) {
		t.Helper()
		got := testdb.Value[string](t, db, fmt.Sprintf(`select concat_ws(' ', p.state, p.seq) from core_tool_calls c,
			gem.progress(jsonb_build_array(jsonb_build_object('call', c.id, 'attempt', %d, 'after', %s,
			'rows', (select jsonb_agg('{"kind": "text", "data": {}}'::jsonb) from generate_series(1, %d))))) p`, attempt, after,
			rows))
		if got != want {
			t.Errorf("attempt %d after %s: got %q, want %q", attempt, after, got, want)
		}
	}
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	send(1, "null", 2, "written 2")
	send(1, "null", 2, "written 2") // again
	send(1, "2", 3, "written 5")
	send(1, "2", 3, "written 5") // again
	testdb.Exec(t, db, "select gem.release(id, 1, 'w') from core_tool_calls")
	send(1, "5", 1, "gone 6")
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	send(1, "5", 1, "gone 6")
	send(2, "null", 1, "written 6")
	send(2, "6", 3000, "full 2000")
	send(2, "2000", 1, "full 2000")
	if n := number(t, db, "select count(*) from core_tool_progress where attempt = 1"); n != 5 {
		t.Errorf("%v rows of the first attempt", n)
	}
}

package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// inChain returns the SQL that inserts a call of the session named after n, below the one before it.
func inChain(n int) string {
	return fmt.Sprintf(`select enqueue_tool_call('a.b', session_id => 's%d',
		parent_call_id => (select id from core_tool_calls where session_id = 's%d'))`, n, n-1)
}

// A user's call has at most eight calls above it, made by frontends or handlers. The error names what to do. A server's
// call may have more.
func TestAUserNamesParentsEightCallsDeep(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	for n := range 9 {
		if _, err := request(t, db, "authenticated", "ada", inChain(n)); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
	}
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, created_by, signed_in, parent_call_id, parent_step, session_id, run_at,
			created_at, updated_at)
			select gen_random_uuid(), 'a.b', 'ada', true, id, 'x', 's100', now(), now(), now() from core_tool_calls
				where session_id = 's8';
		set session_replication_role = origin`)
	const below = "insert into core_tool_calls (tool_name, parent_call_id) select 'a.b', id from core_tool_calls where " +
		"session_id = 's%d'"
	const chain = `insert into core_tool_calls (id, tool_name, parent_call_id)
		select ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 'a.b',
			case when i > 0 then ('00000000-0000-7000-8000-' || lpad((i - 1)::text, 12, '0'))::uuid end
		from generate_series(0, %d) i`
	for what, sql := range map[string]string{
		"a call below the eighth": fmt.Sprintf(below, 8),
		"by the function":         inChain(9),
		"below a handler's call":  fmt.Sprintf(below, 100),
		"in one request":          fmt.Sprintf(chain, 9),
	} {
		_, err := request(t, db, "authenticated", "ada", sql)
		if code(err) != "23514" || !strings.Contains(err.Error(), " has 8 or more calls above it, and may not be a parent") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, sql := range map[string]string{
		"a call below the seventh": fmt.Sprintf(below, 7),
		"in one request":           fmt.Sprintf(chain, 8),
	} {
		if _, err := request(t, db, "authenticated", "ada", sql); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := request(t, db, "service_role", "", inChain(9)); err != nil {
		t.Errorf("a server: %v", err)
	}
	if _, err := db.Exec(t.Context(), `do $$ declare hint text; begin
		perform set_config('request.jwt.claims', '{"role": "authenticated", "sub": "ada"}', true);
		insert into core_tool_calls (tool_name, parent_call_id) select 'a.b', id from core_tool_calls where session_id = 's8';
		exception when check_violation then
			get stacked diagnostics hint = pg_exception_hint;
			if hint <> 'Name one of the calls above it as the parent, or leave parent_call_id out. '
				'To group calls, give them the same session_id.' then
				raise exception 'the hint is %', hint;
			end if;
		end $$`); err != nil {
		t.Error(err)
	}
	if _, err := request(t, db, "authenticated", "eve", fmt.Sprintf(
		"select enqueue_tool_call('a.b', parent_call_id => '%s')",
		testdb.Value[string](t, db, "select id::text from core_tool_calls where session_id = 's8'"))); code(err) != "23503" {
		t.Errorf("another user's call, however deep: %v", err)
	}
}

// A connection keeps the plan that it made while the table was small. Even so, the calls above a parent are read by
// their ids.
func TestTheCallsAboveAParentAreReadByTheirIDs(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
	for n := range 8 {
		if _, err := request(t, db, "authenticated", "ada", inChain(n)); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	below := func(session string) (read int) {
		parent := testdb.Value[string](t, db, "select id::text from core_tool_calls where session_id = '"+session+"'")
		for range 7 {
			read = readsOf(t, conn.Conn(), "core_tool_calls", "insert into core_tool_calls (tool_name, parent_call_id) "+
				"values ($1::text, '"+parent+"') returning id::text",
				`select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "ada"}', true)`)
		}
		return read
	}
	below("s7")
	testdb.Exec(t, db, fmt.Sprintf(`set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, status, attempt, events, run_at, created_at, updated_at)
			select gen_random_uuid(), 'a.b', 'failed', 1, 3, now(), now(), now() from generate_series(1, %d);
		set session_replication_role = origin`, many(20_000)))
	if top, deep := below("s0"), below("s7"); deep > top+50 {
		t.Errorf("below a parent with seven calls above it, an insert read %d rows and index entries, and %d below one "+
			"without", deep, top)
	}
}

// deepest makes the longest chain of calls that a user can cause: calls that name one another as parents, and below the
// last of them handlers that make calls. It returns the last call.
func deepest(t *testing.T, db *pgxpool.Pool) (last string) {
	t.Helper()
	for n := range 101 {
		if _, err := request(t, db, "authenticated", "ada", inChain(n)); code(err) == "23514" {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 999, '', '', '1 hour', '{steps}')")
	last = testdb.Value[string](t, db, "select id::text from core_tool_calls order by seq desc limit 1")
	for range 9 {
		testdb.Exec(t, db, "select gem.claim('w', 999, true)")
		child := testdb.Value[string](t, db, "select gen_random_uuid()::text")
		err := tryInsert(t, db, fmt.Sprintf(`select gem.wait('%s', 1, 'w', '[{"id": "%s", "name": "x", "tool": "a.b",
			"input": {}}]', 'call', '{x}', 1, '{}', null)`, last, child))
		if code(err) == "GM003" {
			return last
		} else if err != nil {
			t.Fatal(err)
		}
		last = child
	}
	t.Fatal("handlers make calls without end")
	return ""
}

// A list of questions reads the callers of all calls above each question. A user cannot make it read many.
func TestAListReadsFewCallsAboveEachQuestion(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss')")
	last := deepest(t, db)
	const questions = 100
	testdb.Exec(t, db, fmt.Sprintf(`set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, answer_by, answer_others, answer_until, created_by, asked_for,
			parent_call_id, parent_step, signed_in, status, attempt, events, steps, run_at, created_at, updated_at, waits_for,
				waits, need)
			select gen_random_uuid(), 'wait.approval', '{role:boss}', true, '2200-01-01', 'ada', 'rule', '%s', '##' || i, true,
				'waiting', 1, 3, 1, now(), now(), now(), 'answer', '{#answer}', 1
			from generate_series(1, %d) i;
		set session_replication_role = origin`, last, questions))
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for table, most := range map[string]int{"core_tool_calls": 100, "core_tool_events": 20} {
		read := 0
		for range 7 {
			read = readsOf(t, conn.Conn(), table, "select count(*)::text from open_questions where $1 <> 'x'",
				`select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "bob"}', true)`)
		}
		if read > most*questions {
			t.Errorf("%d rows and index entries of %s were read for %d questions", read, table, questions)
		}
	}
	if n, err := request(t, db, "authenticated", "bob", "select from open_questions"); err != nil || n != questions {
		t.Errorf("bob sees %d questions, %v", n, err)
	}
}

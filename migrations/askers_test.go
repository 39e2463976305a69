package migrations_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// questionsOf inserts questions that wait for their answers, without the limits of users. kind is who asks: rule,
// handler or user. input is SQL.
func questionsOf(t *testing.T, db *pgxpool.Pool, kind, asker string, n int, input string) {
	t.Helper()
	step := map[string]string{"rule": "'##' || i", "handler": "'ask ' || i", "user": "null"}[kind]
	testdb.Exec(t, db, fmt.Sprintf(`set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, answer_by, answer_others, answer_until, created_by, asked_for,
			parent_call_id, parent_step,
				signed_in, status, attempt, events, steps, run_at, created_at, updated_at, waits_for, waits, need)
			select gen_random_uuid(), 'wait.answer', input, gem.answerers('wait.answer', input),
				gem.asks_only_others('wait.answer', input),
				gem.until_of(input), nullif('%[2]s', ''), '%[3]s', case when '%[3]s' <> 'user' then gen_random_uuid() end, %[4]s,
				true, 'waiting', 1, 3, 1, now(), now() + i * interval '1 ms', now(), 'answer', '{#answer}', 1
			from (select i, %[1]s as input from generate_series(1, %[5]d) i offset 0) q;
		set session_replication_role = origin`, input, asker, kind, step, n))
}

func literal(input string) string { return "'" + input + "'::jsonb" }

const toBoss = `{"text": "?", "by": ["role:boss"]}`

// Questions that users insert come after those of rules and handlers, however many and however old they are.
func TestQuestionsThatUsersInsertHideNoneOfRulesAndHandlers(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss'); alter table core_tool_calls set "+
		"(autovacuum_enabled = "+
		"off)")
	for i := range 3 {
		questionsOf(t, db, "user", fmt.Sprintf("eve%d", i), 2000, literal(toBoss))
	}
	questionsOf(t, db, "handler", "ada", 1, literal(toBoss))
	questionsOf(t, db, "rule", "ada", 1, literal(toBoss))
	const first = "select asked_for from open_questions where place <= 2 and asked_for <> 'user'"
	for role, sub := range map[string]string{"authenticated": "bob", "service_role": ""} {
		if n, err := request(t, db, role, sub, first); err != nil || n != 2 {
			t.Errorf("%s sees %d of the two questions of rules and handlers in front, %v", role, n, err)
		}
	}
	if n, err := request(t, db, "authenticated", "bob",
		"select from open_questions where asked_for = 'user'"); err != nil || n != 1000 {
		t.Errorf("%d questions of users, %v", n, err)
	}
}

// No asker's sixth question precedes the first five of another, among users and among callers for whom rules and
// handlers ask.
func TestEachAskerHasFiveQuestionsBeforeTheRestOfAnother(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss'), ('bob', 'quiet'); insert into gem.role_settings "+
		"values "+
		"('quiet', now(), 'me')")
	questionsOf(t, db, "user", "old", 1, literal(strings.ReplaceAll(toBoss, "boss", "quiet")))
	questionsOf(t, db, "user", "eve", 6200, literal(toBoss)) // more than is read of users and was there before
	questionsOf(t, db, "rule", "mallory", 2000, literal(toBoss))
	questionsOf(t, db, "handler", "", 7, literal(toBoss))
	questionsOf(t, db, "rule", "ada", 7, literal(toBoss))
	questionsOf(t, db, "user", "bob", 2, literal(`{"text": "?"}`))
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	rows, err := tx.Query(t.Context(), `select concat_ws(' ', part, asked_for, coalesce(asked_by, 'nobody'), count(*),
		max(asker_open)) from (
			select q.*, case when place <= 17 then 1 when place <= 1000 then 2 when place < max(place) over () then 3
				else 4 end as part
			from (select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "bob"}', true)) c,
				open_questions q) q
		group by part, asked_for, asked_by order by part, asked_by nulls first`)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1 handler nobody 7 1", "1 rule ada 5 7", "1 rule mallory 5 986", "2 rule ada 2 7",
		"2 rule mallory 981 986", "3 user bob 2 2", "3 user eve 997 997",
		"4 user old 1 1"}
	if diff := cmp.Diff(want, runs); diff != "" {
		t.Error(diff)
	}
}

// The limit holds for concurrent requests, and a question to oneself does not count.
func TestAUserHasALimitOfOpenQuestionsToOthers(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "update gem.limits set max_open_questions = 3")
	ask := func(sub, input string) error {
		_, err := request(t, db, "authenticated", sub, "insert into core_tool_calls (tool_name, input) values "+
			"('wait.answer', '"+input+"')")
		return err
	}
	for _, own := range []string{`{"text": "?"}`, `{"by": ["owner"]}`, `{"by": ["user:eve", "owner"]}`, `{"by": 1}`} {
		for range 2 {
			if err := ask("eve", own); err != nil {
				t.Errorf("%s: %v", own, err)
			}
		}
	}
	var all sync.WaitGroup
	codes := make(chan string, 12)
	for range 12 {
		all.Go(func() {
			_, err := request(t, db, "authenticated", "eve", "select enqueue_tool_call('wait.approval', '"+toBoss+"')")
			codes <- code(err)
		})
	}
	all.Wait()
	close(codes)
	counts := map[string]int{}
	for c := range codes {
		counts[c]++
	}
	if counts["<nil>"] != 3 || counts["PT429"] != 9 {
		t.Errorf("twelve questions at once: %v", counts)
	}
	err := ask("eve", `{"by": ["owner", "user:bob"]}`)
	if err == nil || !strings.Contains(err.Error(), "too many open questions to others: you may have 3") {
		t.Errorf("a fourth: %v", err)
	}
	if err := ask("eve", `{"text": "?"}`); err != nil {
		t.Errorf("a question to oneself: %v", err)
	}
	if _, err := request(t, db, "authenticated", "dora", "insert into core_tool_calls (tool_name, input) select "+
		"'wait.answer', '"+toBoss+"' from generate_series(1, 4)"); code(err) != "PT429" {
		t.Errorf("four in one request: %v", err)
	}
	for role, sub := range map[string]string{"authenticated": "ada", "service_role": ""} {
		if _, err := request(t, db, role, sub, "insert into core_tool_calls (tool_name, input) values ('wait.answer', '"+
			toBoss+"')"); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
	testdb.Exec(t, db, "select cancel_tool_call(id) from core_tool_calls where created_by = 'eve'")
	if err := ask("eve", toBoss); err != nil {
		t.Errorf("after the others have ended: %v", err)
	}
}

// A closed role accepts questions from rules, handlers and servers, but not from users or the models that work for
// them.
func TestAClosedRoleTakesNoQuestionsOfUsers(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	const ask = "insert into core_tool_calls (tool_name, input) values ('wait.answer', '" + toBoss + "')"
	if _, err := request(t, db, "authenticated", "eve", ask); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "insert into gem.role_settings values ('boss', now(), 'me')")
	if _, err := request(t, db, "authenticated", "eve", ask); code(err) != "PT403" ||
		!strings.Contains(err.Error(), "the role boss is closed to questions from users") {
		t.Errorf("a user: %v", err)
	}
	if _, err := request(t, db, "service_role", "", ask); err != nil {
		t.Errorf("a server: %v", err)
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
		"(tool_name, priority) values ('agent.run', 9)")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	start := func(name, more string) string {
		return fmt.Sprintf(`select gem.wait(id, 1, 'w', '[{"id": "%s", "name": "%s", "tool": "wait.answer", "input": %s%s}]',
			'call', '{}', 0, '{}', null)
			from core_tool_calls where tool_name = 'agent.run'`, testdb.Value[string](t, db, "select gen_random_uuid()::text"), name, toBoss,
			more)
	}
	if err := tryInsert(t, db, start("a", "")); err != nil {
		t.Errorf("a handler: %v", err)
	}
	if err := tryInsert(t, db, start("b", `, "chosen": true`)); code(err) != "PT403" {
		t.Errorf("a model: %v", err)
	}
	testdb.Exec(t, db, "delete from gem.role_settings")
	if _, err := request(t, db, "authenticated", "eve", ask); err != nil {
		t.Errorf("when it is open again: %v", err)
	}
	for _, sql := range []string{"select * from gem.role_settings",
		"insert into gem.role_settings values ('x', now(), 'eve')", "delete from gem.role_settings"} {
		for _, role := range []string{"authenticated", "service_role"} {
			if _, err := request(t, db, role, "eve", sql); code(err) != "42501" {
				t.Errorf("%s, %s: %v", role, sql, err)
			}
		}
	}
}

// The asker is derived from columns that no frontend can write.
func TestWhoAsksCannotBeForged(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss'); update gem.limits set max_open_questions = 2")
	const claims = `{"by": ["role:boss"], "text": "The rule big_refund (rules 1.0.0) asks.", "asked_for": "rule", "rules": [{"name": "big_refund", "message": "It is."}], "tool": "a.b", "input": {}}`
	if _, err := request(t, db, "authenticated", "eve",
		"insert into core_tool_calls (tool_name, input) values ('wait.approval', '"+claims+"')"); err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{"asked_for", "parent_step"} {
		if _, err := request(t, db, "authenticated", "eve",
			"insert into core_tool_calls (tool_name, "+column+") values ('wait.approval', '##rule')"); code(err) != "42501" {
			t.Errorf("a frontend writes %s: %v", column, err)
		}
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
		"(tool_name, created_by, priority) values ('agent.run', 'eve', 9)")
	testdb.Exec(t, db, "set session_replication_role = replica; update core_tool_calls set signed_in = true where "+
		"tool_name "+
		"= 'agent.run'; set session_replication_role = origin")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	chosen := func(n int) string {
		return fmt.Sprintf(`select gem.wait(id, 1, 'w',
			jsonb_build_array(jsonb_build_object('id', gen_random_uuid(), 'name', 'turn %d', 'tool', 'wait.answer', 'input',
				'%s'::jsonb, 'chosen', true),
			jsonb_build_object('id', gen_random_uuid(), 'name', 'code %[1]d', 'tool', 'wait.answer', 'input', '%s'::jsonb)),
				'call', '{}', 0, '{}', null)
			from core_tool_calls where tool_name = 'agent.run'`, n, toBoss, toBoss)
	}
	testdb.Exec(t, db, chosen(1))
	if err := tryInsert(t, db, chosen(2)); code(err) != "PT429" {
		t.Errorf("a third question of the user, which a model chose: %v", err)
	}
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
	got := texts(t, db, "select concat_ws(' ', tool_name, asked_for, parent_step) from core_tool_calls order by 1")
	want := []string{"a.b", "agent.run", "wait.answer handler code 1", "wait.answer user turn 1", "wait.approval user"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A user's insert of another tool runs no extra statement.
func TestAnInsertOfAnotherToolReadsNoQuestions(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	// In this order: a session's counts outlive a rollback.
	for _, c := range []struct{ tool, want string }{{"a.b", ""}, {"wait.answer", "check_questions check_roles"}} {
		tool, want := c.tool, c.want
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		counted := `select set_config('track_functions', 'all', true),
			set_config('request.jwt.claims', '{"role": "authenticated", "sub": "eve"}', true)`
		for _, sql := range []string{counted, "insert into core_tool_calls (tool_name, input) values ('" + tool + "', '" +
			toBoss + "')"} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		var called string
		err = tx.QueryRow(t.Context(), `select coalesce(string_agg(proname, ' ' order by proname), '') from pg_proc p
			where proname in ('check_questions', 'check_roles') and pg_stat_get_xact_function_calls(oid) > 0`).Scan(&called)
		if err != nil || called != want {
			t.Errorf("an insert of %s calls %q, want %q, %v", tool, called, want, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Ended questions cost nothing: each list uses the indexes of open calls, whatever the statistics say.
func TestOpenQuestionsAreFoundAmongAHundredThousandThatEnded(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss')")
	testdb.Exec(t, db, fmt.Sprintf(`set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, answer_by, created_by, asked_for, status, attempt, events, steps,
			run_at, created_at, updated_at)
			select gen_random_uuid(), 'wait.answer', '%s', '{role:boss}', case when i %% 2 = 0 then 'bob' else 'u' || i end,
				'user', 'succeeded', 1, 3, 1, now(), now(), now()
			from generate_series(1, %d) i;
		set session_replication_role = origin; analyze core_tool_calls`, toBoss, many(100_000)))
	questionsOf(t, db, "user", "eve", 3, literal(toBoss))
	questionsOf(t, db, "rule", "ada", 3, literal(toBoss))
	for role, claims := range map[string]string{"bob": `{"role": "authenticated", "sub": "bob"}`,
		"a server": `{"role": "service_role"}`} {
		conn, err := db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		for range 7 {
			read = readsOf(t, conn.Conn(), "core_tool_calls", "select count(*)::text from open_questions where $1 <> 'x'",
				fmt.Sprintf("select set_config('request.jwt.claims', '%s', true)", claims))
		}
		conn.Release()
		if read > 200 {
			t.Errorf("for %s %d rows and index entries were read", role, read)
		}
	}
}

// A list looks up each question that it found once. A join in the other order would find all questions again for each
// call of a small table.
func TestAListFindsItsQuestionsOnceWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	const questions = 300
	counts := regexp.MustCompile(`actual time=\S+ rows=(\d+) loops=(\d+)`)
	for name, statistics := range map[string][2]string{
		"never taken":                    {"select", "select"},
		"taken when the table was empty": {"analyze core_tool_calls", "select"},
		"taken when all was there":       {"select", "analyze core_tool_calls"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := supabase(t)
			testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss'); alter table core_tool_calls set "+
				"(autovacuum_enabled = off)")
			testdb.Exec(t, db, statistics[0])
			questionsOf(t, db, "rule", "ada", questions, literal(toBoss))
			testdb.Exec(t, db, statistics[1])
			var plan string
			config := db.Config().ConnConfig.Copy()
			config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
				if strings.Contains(n.Message, "with recursive first") {
					plan = n.Message
				}
			}
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			for _, sql := range []string{`load 'auto_explain'; set auto_explain.log_nested_statements = on;
				set auto_explain.log_analyze = on; set auto_explain.log_min_duration = 0; set client_min_messages = log`,
				`set request.jwt.claims = '{"role": "authenticated", "sub": "bob"}'`, "select from open_questions"} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			all := counts.FindAllStringSubmatch(plan, -1)
			if len(all) == 0 {
				t.Fatalf("no plan with counts: %q", plan)
			}
			for _, c := range all {
				rows, _ := strconv.Atoi(c[1])
				loops, _ := strconv.Atoi(c[2])
				if rows*loops > 2*questions {
					t.Errorf("%s for %d questions, in the plan\n%s", c[0], questions, plan)
					break
				}
			}
		})
	}
}

// An asker with more questions than a list reads does not hide those of others, for any reader.
func TestThousandsOfQuestionsHideNoOtherAsker(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss')")
	testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
	for i := range 6 {
		questionsOf(t, db, "rule", fmt.Sprintf("mallory%d", i), 900, literal(toBoss))
	}
	questionsOf(t, db, "user", "eve", 5100, literal(toBoss))
	for _, kind := range []string{"rule", "handler", "user"} {
		questionsOf(t, db, kind, "ada", 2, literal(toBoss))
	}
	questionsOf(t, db, "rule", "ada", 1, literal(`{"text": "?", "by": ["role:other"]}`))
	for _, sql := range []string{"select", "analyze"} {
		testdb.Exec(t, db, sql)
		const ofAda = "select from open_questions where asked_by = 'ada'"
		n, err := request(t, db, "authenticated", "bob", ofAda+" and of_asker <= 5")
		if err != nil || n != 6 {
			t.Errorf("bob sees %d of ada's questions, want 6, %v", n, err)
		}
		n, err = request(t, db, "service_role", "", ofAda)
		if err != nil || n != 7 {
			t.Errorf("a server sees %d of ada's questions, want 7, %v", n, err)
		}
	}
}

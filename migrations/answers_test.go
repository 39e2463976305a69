package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// asked makes calls that wait for an answer. Each is created by ada, and its name is its session.
func asked(t *testing.T, db *pgxpool.Pool, calls map[string]string) {
	t.Helper()
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '', '1 hour', '{steps}')")
	for name, call := range calls {
		tool, input, _ := strings.Cut(call, " ")
		testdb.Exec(t, db, fmt.Sprintf(
			"insert into core_tool_calls (tool_name, input, created_by, session_id) values ('%s', "+
				"'%s', 'ada', '%s')", tool, input, name))
	}
	testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w', '[]', 'answer', '{#answer}', 1, '{}', null)
		from gem.claim('w', 99, true) c`)
}

func answerSQL(session, answer string) string {
	return fmt.Sprintf("select answer_tool_call(id, '%s') from all_calls where session_id = '%s'", answer, session)
}

// everyone lets every role find a call by its session.
const everyone = "create view all_calls as select id, session_id from core_tool_calls; grant select on all_calls to " +
	"anon, authenticated, service_role"

func code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return fmt.Sprint(err)
}

// The question names the people who may answer, and only the database decides.
func TestQuestionsAreAnsweredByWhomTheyName(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, everyone+"; insert into gem.roles values ('bob', 'boss'), ('ada', 'boss'), ('service_role', "+
		"'robot'), "+
		"('user:eve', 'boss')")
	calls := map[string]string{
		"plain":    `wait.answer {"text": "?"}`,
		"named":    `wait.answer {"text": "?", "by": ["user:bob"]}`,
		"role":     `wait.answer {"text": "?", "by": ["role:boss"]}`,
		"others":   `wait.answer {"text": "?", "by": ["owner", "role:boss"], "others": true}`,
		"event":    `wait.event {}`,
		"approval": `wait.approval {"by": ["role:boss", "owner", "service"], "tool": "a.b", "input": {}}`,
		"own":      `wait.approval {"by": ["role:boss"], "others": false, "tool": "a.b", "input": {}}`,
		"robot":    `wait.approval {"by": ["role:robot"], "tool": "a.b", "input": {}}`,
		"garbage":  `wait.answer {"by": {"owner": 1}, "others": [1]}`,
		"other":    `a.b {}`,
	}
	asked(t, db, calls)
	who := [][2]string{{"authenticated", "ada"}, {"authenticated", "bob"}, {"authenticated", "eve"},
		{"authenticated", "service_role"}, {"authenticated", ""}, {"service_role", ""}}
	want := map[string]string{
		"plain": "ada service", "named": "bob service", "role": "ada bob service", "others": "bob service",
		"event": "service", "approval": "bob", "own": "ada bob",
		"robot": "service", "garbage": "service", "other": "ada service",
	}
	for name, expected := range want {
		var may []string
		answer := `"x"`
		if strings.HasPrefix(calls[name], "wait.approval") {
			answer = `{"approved": true}`
		}
		for _, w := range who {
			// Undone, so that each answer is the first.
			_, err := request(t, db, w[0], w[1], answerSQL(name, answer)+"; select 1 / 0")
			switch {
			case code(err) == "22012":
				if w[1] == "" {
					w[1] = strings.TrimSuffix(w[0], "_role")
				}
				may = append(may, w[1])
			case code(err) != "PT404":
				t.Errorf("%s, %v: %v", name, w, err)
			}
			open, err := request(t, db, w[0], w[1], "select from open_questions q join all_calls c using (id) where "+
				"c.session_id = '"+name+"'")
			if name == "other" {
				open = map[bool]int64{true: 1}[len(may) > 0 && (w[1] == may[len(may)-1] || w[0] == "service_role")]
			}
			sees := len(may) > 0 && (may[len(may)-1] == w[1] || may[len(may)-1] == strings.TrimSuffix(w[0], "_role"))
			if err != nil || (open == 1) != sees {
				t.Errorf("%s, %v: sees %d, may answer %t, %v", name, w, open, sees, err)
			}
		}
		if got := strings.Join(may, " "); got != expected {
			t.Errorf("%s may be answered by %q, want %q", name, got, expected)
		}
	}
	for _, sql := range []string{answerSQL("plain", `"x"`), "select from open_questions"} {
		if _, err := request(t, db, "anon", "", sql); code(err) != "42501" {
			t.Errorf("anon, %s: %v", sql, err)
		}
	}
	for _, sql := range []string{
		"insert into gem.roles values ('eve', 'boss')", "select * from gem.roles", "select gem.open_questions(null)",
		"select gem.resume(gen_random_uuid())",
		"select gem.came(gen_random_uuid(), 'answered', array['{}'::jsonb], null)",
		"insert into core_tool_events (call_id, seq, at, event, attempt) values (gen_random_uuid(), 1, now(), 'answered', 0)",
	} {
		for _, role := range []string{"authenticated", "service_role"} {
			if _, err := request(t, db, role, "eve", sql); code(err) != "42501" {
				t.Errorf("%s, %s: %v", role, sql, err)
			}
		}
	}
}

// A call made on behalf of another one is that user's too.
func TestNobodyApprovesWhatWasAskedOnTheirBehalf(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, everyone+"; insert into gem.roles values ('ada', 'boss'), ('bob', 'boss')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('top', 'ada')")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by, parent_call_id) select 'middle', 'server', "+
		"id "+
		"from core_tool_calls")
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, input, parent_call_id, session_id) select 'wait.approval',
		'{"by": ["role:boss"]}', id, 'q' from core_tool_calls where tool_name = 'middle'`)
	if _, err := request(t, db, "authenticated", "ada", answerSQL("q", `{"approved": true}`)); code(err) != "PT404" {
		t.Errorf("ada: %v", err)
	}
	if _, err := request(t, db, "authenticated", "bob", answerSQL("q", `{"approved": true}`)); err != nil {
		t.Errorf("bob: %v", err)
	}
}

func TestOnlyATimeWithItsZoneEndsAQuestion(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	for until, want := range map[string]string{
		`"2027-01-31T15:04:05Z"`:                "2027-01-31 15:04:05+00",
		`"2027-01-31T15:04:05.123456789+02:00"`: "2027-01-31 13:04:05.123457+00",
		`"9999-12-30T23:59:59Z"`:                "9999-12-30 23:59:59+00", `"9999-12-31T23:59:59-14:00"`: "",
		`"infinity"`:  "",
		`"-infinity"`: "", `"tomorrow"`: "", `"now"`: "", `"2027-01-31"`: "", `"2027-02-31T15:04:05Z"`: "", `1`: "",
		`null`: "",
	} {
		var got string
		err := db.QueryRow(t.Context(), `select coalesce((gem.until_of(jsonb_build_object('until',
			$1::text::jsonb)) at time zone 'UTC')::text || '+00', '')`,
			until).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", until, got, err, want)
		}
	}
}

func TestAnswersAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, everyone)
	asked(t, db, map[string]string{
		"text":     `wait.answer {"schema": {"type": "string", "minLength": 2, "maxLength": 3}}`,
		"enum":     `wait.answer {"schema": {"type": "string", "enum": ["a", "b"]}}`,
		"whole":    `wait.answer {"schema": {"type": "integer", "minimum": 1, "maximum": 9}}`,
		"number":   `wait.answer {"schema": {"type": "number"}}`,
		"yes":      `wait.answer {"schema": {"type": "boolean"}}`,
		"form":     `wait.answer {"schema": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]}}`,
		"approval": `wait.approval {"by": ["user:ada"], "others": false}`,
		"event":    `wait.event {"by": ["owner"]}`,
		"over":     `wait.answer {"until": "2020-01-01T00:00:00Z"}`,
		// Nobody has checked these inputs.
		"length":     `wait.answer {"schema": {"type": "string", "minLength": "x"}}`,
		"list":       `wait.answer {"schema": {"type": "number", "maximum": [1]}}`,
		"required":   `wait.answer {"schema": {"type": "object", "required": {"a": 1}}}`,
		"properties": `wait.answer {"schema": {"type": "object", "properties": [1]}}`,
	})
	for _, c := range []struct{ session, answer, code, says string }{
		{"text", `1`, "PT422", "the answer must be of type string, and is 1"},
		{"text", `"a"`, "PT422", "the answer has 1 characters, and must have 2 to 3"},
		{"text", `"abcd"`, "PT422", "must have 2 to 3"},
		{"text", `null`, "PT422", "must be of type string"},
		{"enum", `"c"`, "PT422", "the answer must be one of a, b, and is c"},
		{"whole", `1.5`, "PT422", "must be of type integer"},
		{"whole", `3.0`, "PT422", "must be of type integer, and is 3.0"},
		{"whole", `0`, "PT422", "is 0, and must be at least 1"},
		{"whole", `10`, "PT422", "at most 9"},
		{"number", `"1"`, "PT422", "must be of type number"},
		{"number", `1e131071`, "23514", "beyond 1.7976931348623157e308"},
		{"number", `-1e399`, "23514", "beyond 1.7976931348623157e308"},
		{"yes", `"true"`, "PT422", "must be of type boolean"},
		{"form", `{}`, "PT422", "needs the field n"},
		{"form", `{"n": 1, "m": 2}`, "PT422", "has a field m, and takes only n, s"},
		{"form", `{"n": "1"}`, "PT422", "/n must be of type integer"},
		{"form", `[]`, "PT422", "must be of type object"},
		{"approval", `true`, "PT422", "must be of type object"},
		{"approval", `{"approved": "yes"}`, "PT422", "/approved must be of type boolean"},
		{"approval", `{"approved": true, "reason": "` + strings.Repeat("x", 1001) + `"}`, "PT422",
			"/reason has 1001 characters"},
		{"event", `"` + strings.Repeat("x", 65536) + `"`, "23514",
			"the answer takes 65538 bytes as JSON, and may take 65536"},
		{"over", `"late"`, "PT410", "the time for this answer"},
		{"length", `"a"`, "PT422", "the schema of call"},
		{"list", `1`, "PT422", "cannot be used"},
		{"required", `{}`, "PT422", "cannot be used"},
		{"properties", `{"a": 1}`, "PT422", "cannot be used"},
		{"event", strings.Repeat("[", 101) + strings.Repeat("]", 101), "PT422", "nested deeper than 100 levels"},
	} {
		_, err := request(t, db, "authenticated", "ada", answerSQL(c.session, c.answer))
		if code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %.50s: %v", c.session, c.answer, err)
		}
	}
	for session, answer := range map[string]string{
		"text": `"äöü"`, "enum": `"b"`, "whole": `3`, "number": `-1.5`, "yes": `false`, "form": `{"n": 1}`,
		"approval": `{"approved": false, "reason": "no"}`, "event": `{"any": [1]}`,
	} {
		for range 2 { // the answer may have been lost
			if _, err := request(t, db, "authenticated", "ada", answerSQL(session, answer)); err != nil {
				t.Errorf("%s: %v", session, err)
			}
		}
	}
	for what, c := range map[string][3]string{
		"another answer":      {"authenticated", "ada", answerSQL("enum", `"a"`)},
		"the same by another": {"service_role", "", answerSQL("enum", `"b"`)},
		"one to a call that ended": {"authenticated", "ada", strings.Repeat("select cancel_tool_call(id) from all_calls "+
			"where session_id = 'over'; ", 2) + answerSQL("over", `"x"`)},
	} {
		if _, err := request(t, db, c[0], c[1], c[2]); code(err) != "PT409" {
			t.Errorf("%s: %v", what, err)
		}
	}
	testdb.Exec(t, db, "select cancel_tool_call(id) from all_calls where session_id = 'text'")
	if _, err := request(t, db, "authenticated", "ada", answerSQL("text", `"äöü"`)); err != nil {
		t.Errorf("the same answer after the end: %v", err)
	}
	// such a call takes one answer
	for _, name := range []string{"", "a#b", "#answer", "a#0", strings.Repeat("x", 201), "other"} {
		if _, err := request(t, db, "authenticated", "ada",
			"select answer_tool_call(id, '1', '"+name+"') from all_calls where session_id = 'event'"); code(err) != "PT422" {
			t.Errorf("the name %.20q: %v", name, err)
		}
	}
	if n := number(t, db, "select count(*) from core_tool_events where event = 'answered'"); n != 8 {
		t.Errorf("%v answers", n)
	}
}

// Answers are in the journal for good, and a user's limits count them.
func TestAUserSendsSoManyAnswersInAnHour(t *testing.T) {
	t.Parallel()
	for limit, sql := range map[string]string{"answers": "update gem.limits set max_calls_per_hour = 4",
		"bytes": "update gem.limits set max_bytes_per_hour = 8000"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			db := supabase(t)
			testdb.Exec(t, db, everyone+"; insert into core_tool_calls (tool_name, created_by, session_id) select 'a.b', "+
				"'ada', "+
				"'s' || i from generate_series(1, 3) i; "+sql)
			taken := 0
			for i := range 9 {
				_, err := request(t, db, "authenticated", "ada", fmt.Sprintf(`select answer_tool_call(id,
					(select to_jsonb(string_agg(md5(%d || 'x' || g), '')) from generate_series(1, 62) g), 'n%d') from all_calls
						where session_id = 's%d'`, i, i, i%3+1))
				switch {
				case err == nil:
					taken++
				case code(err) != "PT429":
					t.Fatal(err)
				}
			}
			if limit == "answers" && taken != 4 || taken == 0 || taken == 9 {
				t.Errorf("%d were taken", taken)
			}
			// the owner of the database has no limit
			testdb.Exec(t, db, "select answer_tool_call(id, '1', 'more') from core_tool_calls limit 1")
			testdb.Exec(t, db, "update gem.answers set at = at - interval '61 minutes'; select gem.recover('w', null)")
			if n := number(t, db, "select count(*) from gem.answers"); n != 0 {
				t.Errorf("%v answers of more than an hour ago are still counted", n)
			}
		})
	}
}

func TestACallTakesAHundredAnswers(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b'); select answer_tool_call(c.id, '1', 'n' "+
		"|| i) "+
		"from core_tool_calls c, generate_series(1, 100) i")
	if _, err := db.Exec(t.Context(), "select answer_tool_call(id, '1', 'one more') from core_tool_calls"); code(
		err) != "PT429" {
		t.Error(err)
	}
}

// One of two answers at the same moment stands, and the call is woken once.
func TestAnswersAtTheSameMoment(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	asked(t, db, map[string]string{"q": `wait.answer {}`})
	done := make(chan string, 8)
	for i := range 8 {
		go func() {
			_, err := db.Exec(context.Background(), fmt.Sprintf(`select answer_tool_call(id, '"%d"') from core_tool_calls`, i))
			done <- code(err)
		}()
	}
	counts := map[string]int{}
	for range 8 {
		counts[<-done]++
	}
	if counts["<nil>"] != 1 || counts["PT409"] != 7 {
		t.Errorf("%v", counts)
	}
	if n := number(t, db, "select count(*) from core_tool_events where event in ('answered', 'woken')"); n != 2 {
		t.Errorf("%v events", n)
	}
}

// A user's questions are found without a look at those of others.
func TestOpenQuestionsAreFoundAmongMany(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, everyone+`; insert into gem.roles
		values ('bob', 'boss'); alter table core_tool_calls set (autovacuum_enabled = off)`)
	asked(t, db, map[string]string{"mine": `wait.answer {}`, "boss": `wait.answer {"by": ["role:boss"]}`,
		"bob": `wait.answer {"by": ["user:bob"]}`})
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, created_by, status, attempt, events, steps, run_at, created_at,
			updated_at, waits_for, waits, need, asked_for,
				answer_by, answer_others)
			select gen_random_uuid(), 'wait.answer', '{}', 'u' || i, 'waiting', 1, 3, 1, now(), now(), now(),
				'answer', '{#answer}', 1, 'user', array[case when i % 2 = 0 then 'user:someone' else 'owner' end], false
					from generate_series(1, 20000) i;
		set session_replication_role = origin`)
	testdb.Exec(t, db, "vacuum core_tool_calls")
	for sub, want := range map[string]int64{"ada": 1, "bob": 2, "eve": 0} {
		conn, err := db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		read := 0
		for range 7 {
			read = readsOf(t, conn.Conn(), "core_tool_calls", fmt.Sprintf(`select count(*)::text from open_questions,
				(select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "%s"}', true) where $1 <> 'x') c`, sub),
				"select 'y'")
		}
		conn.Release()
		if read > 150 {
			t.Errorf("%s: %d rows and index entries were read", sub, read)
		}
		if n, err := request(t, db, "authenticated", sub, "select from open_questions"); err != nil || n != want {
			t.Errorf("%s sees %d, %v", sub, n, err)
		}
	}
}

// The owner sees the questions, however many handlers wait for answers and however many approvals wait for others.
func TestTheOwnerFindsQuestionsBesideWhatElseWaitsForAnswers(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, status, attempt, events, steps, run_at, created_at, updated_at,
			waits_for, waits, need, computed_key, level, asked_for,
				answer_by)
			select gen_random_uuid(), case when i % 3 = 0 then 'wait.approval' else 'agent.chat' end, '{}', 'waiting', 1, 3, 1,
				now(), now(), now(),
				'answer', '{#answer}', 1, case when i % 3 = 1 then 'k' || i end, i % 2, case when i % 3 = 0 then 'user' end,
					'{user:nobody}'
				from generate_series(1, 6000) i;
		set session_replication_role = origin`)
	asked(t, db, map[string]string{"q": `wait.answer {}`, "e": `wait.event {}`})
	if n := number(t, db, "select count(*) from open_questions where tool in ('wait.answer', 'wait.event')"); n != 2 {
		t.Errorf("the owner sees %v questions", n)
	}
	if n := number(t, db, "select count(*) from open_questions"); n != 2 {
		t.Errorf("the owner sees %v", n)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	read := 0
	for range 7 {
		read = readsOf(t, conn.Conn(), "core_tool_calls", "select count(*)::text from open_questions where $1 <> 'x'",
			"select 'y'")
	}
	if read > 150 {
		t.Errorf("%d rows and index entries were read", read)
	}
}

// A caller that gets `answered` does not send the answer again, so it must be written. Building an index locks the
// journal like this.
func TestAnAnswerThatCannotBeWrittenIsNotAccepted(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	asked(t, db, map[string]string{"q": `wait.answer {}`})
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "lock table core_tool_events in share mode"); err != nil {
		t.Fatal(err)
	}
	const answer = `select answer_tool_call(id, '"x"') from core_tool_calls`
	if _, err := db.Exec(t.Context(), "set local lock_timeout = '50ms'; "+answer); code(err) != "55P03" {
		t.Errorf("%v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, answer)
	if n := number(t, db, "select count(*) from core_tool_events where event in ('answered', 'woken')"); n != 2 {
		t.Errorf("%v events", n)
	}
}

// What was withdrawn cannot be approved.
func TestAQuestionWhoseEndSomeoneAskedForTakesNoAnswer(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	asked(t, db, map[string]string{"q": `wait.answer {}`})
	testdb.Exec(t, db, "select cancel_tool_call(id) from core_tool_calls")
	if _, err := db.Exec(t.Context(), `select answer_tool_call(id, '"x"') from core_tool_calls`); code(err) != "PT409" {
		t.Errorf("%v", err)
	}
}

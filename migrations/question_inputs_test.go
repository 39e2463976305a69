package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// inputs of questions that Postgres stores outside of their rows, in two parts each.
const large = `jsonb_build_object('text', '?', 'by', array['role:boss'], 'until', '2200-01-01T00:00:00Z', 'input', ` +
	`(select string_agg(md5(i || '.' || n), '') from generate_series(1, 100) n))`

// partsRead returns how many stored parts of inputs a statement of a role reads, once Postgres keeps its plan.
func partsRead(t *testing.T, db *pgxpool.Pool, role, sub, sql string) (read int) {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var parts string
	const stored = "select reltoastrelid::regclass::text from pg_class where oid = 'core_tool_calls'::regclass"
	if err := conn.QueryRow(t.Context(), stored).Scan(&parts); err != nil {
		t.Fatal(err)
	}
	claims := fmt.Sprintf(`select set_config('request.jwt.claims', '{"role": "%s", "sub": "%s"}', true)`, role, sub)
	for range 7 {
		read = readsOf(t, conn.Conn(), parts, sql, claims)
	}
	return read
}

// A caller whose calls have large inputs makes no list slow: a list reads the inputs that it shows, and no others.
func TestListsOfQuestionsReadNoInputsThatTheyDoNotShow(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss')")
	testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
	questionsOf(t, db, "rule", "mallory", 1000, large)
	questionsOf(t, db, "rule", "ada", 1, large)
	questionsOf(t, db, "user", "eve", 500, large)
	const inputs = "(length(text) + length(schema::text))"
	for sql, most := range map[string]int{
		"select count(id) from open_questions":                                                                  0,
		"select max(by::text || until) from open_questions":                                                     0,
		"select sum(" + inputs + ") from open_questions where of_asker <= 5":                                    200,
		"select sum(n) from (select " + inputs + " as n from open_questions order by place limit 10) q":         200,
		"select max(by::text || until || others) from gem.questions where status = 'waiting'":                   0,
		"select count(*) from core_tool_calls c where gem.may_answer(c.id, c.tool_name, c.answer_by, true, '')": 0,
	} {
		read := partsRead(t, db, "authenticated", "bob", "select coalesce(("+sql+")::text, '') where $1 <> 'x'")
		if read > most {
			t.Errorf("%s reads %d parts of inputs, want at most %d", sql, read, most)
		}
	}
	n, err := request(t, db, "authenticated", "bob", "select * from open_questions where asked_by = 'ada'")
	if err != nil || n != 1 {
		t.Errorf("bob sees %d questions of ada, %v", n, err)
	}
}

// The limit of open questions does not read the inputs of the caller's other questions.
func TestTheLimitOfOpenQuestionsReadsNoInputs(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	questionsOf(t, db, "user", "eve", 15, large)
	read := partsRead(t, db, "authenticated", "eve", "select gem.check_questions('eve')::text where $1 <> 'x'")
	if read > 0 {
		t.Errorf("%d parts of inputs are read", read)
	}
	const six = "insert into core_tool_calls (tool_name, input) select 'wait.answer', '" + toBoss +
		"' from generate_series(1, 6)"
	if _, err := request(t, db, "authenticated", "eve", six); code(err) != "PT429" {
		t.Errorf("a 21st question: %v", err)
	}
}

// A question is found by its id, however many come before it in the list.
func TestAQuestionIsFoundByItsIDBehindThousands(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into gem.roles values ('bob', 'boss')")
	testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
	questionsOf(t, db, "rule", "mallory", 1500, literal(toBoss))
	const last = "(select array[id] from core_tool_calls order by created_at desc limit 1)"
	ids := testdb.Value[string](t, db, "select "+last+"::text")
	n, err := request(t, db, "authenticated", "bob", "select from open_questions where id = any ('"+ids+"')")
	if err != nil || n != 0 {
		t.Fatalf("the list has it, %d, %v", n, err)
	}
	find := "select * from find_open_questions('" + ids + "') where asked_by = 'mallory' and text = '?' and of_asker = 1"
	for sub, want := range map[string]int64{"bob": 1, "eve": 0} {
		if n, err := request(t, db, "authenticated", sub, find); err != nil || n != want {
			t.Errorf("%s finds %d, want %d, %v", sub, n, want, err)
		}
	}
	if _, err := request(t, db, "anon", "", find); code(err) != "42501" {
		t.Errorf("anon: %v", err)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	read := 0
	for range 7 {
		read = readsOf(t, conn.Conn(), "core_tool_calls",
			"select count(*)::text from find_open_questions('"+ids+"') where $1 <> 'x'",
			`select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "bob"}', true)`)
	}
	if read > 20 {
		t.Errorf("%d rows and index entries were read", read)
	}
	const many = "select from find_open_questions(array(select gen_random_uuid() from generate_series(1, 1001)))"
	if _, err := request(t, db, "authenticated", "bob", many); code(err) != "23514" {
		t.Errorf("1001 ids: %v", err)
	}
}

// The columns have what the input says, and stay small whatever it says.
func TestTheColumnsOfAQuestionStaySmall(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name) values ('a.flow')`)
	for input, want := range map[string]string{
		`{}`: `{owner} f -`,
		`{"by": ["role:boss"], "others": true, "until": "2200-01-01T02:00:00.5+02:00"}`: `{role:boss} t 2200-01-01 00:00:00.5`,
		`{"by": ["owner", 7, "user:` + strings.Repeat("x", 260) + `", ["role:boss"]]}`:  `{owner} f -`,
		`{"by": [` + strings.Repeat(`"service",`, 99) + `"owner"]}`: `{` + strings.Repeat("service,", 19) +
			`service} f -`,
		`{"by": "role:boss", "others": 1, "until": "tomorrow"}`: `{owner} t -`,
		`{"until": "2200-02-31T00:00:00Z"}`:                     `{owner} f -`,
	} {
		got := testdb.Value[string](t, db, `with q as (
				insert into core_tool_calls (tool_name, input, parent_call_id, parent_step)
				select 'wait.answer', '`+input+`', id, 'ask '||gen_random_uuid() from core_tool_calls where tool_name = 'a.flow'
				returning *)
			select concat_ws(' ', answer_by, answer_others, coalesce((answer_until at time zone 'UTC')::text, '-')) from q`)
		if got != want {
			t.Errorf("%.60s: got %s, want %s", input, got, want)
		}
	}
	if n := number(t, db, `select num_nonnulls(answer_by, answer_others, answer_until) from core_tool_calls
		where tool_name = 'a.flow'`); n != 0 {
		t.Errorf("a call to another tool has %v of the columns", n)
	}
}

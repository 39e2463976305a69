package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ask is request for a statement that gives one value, which is empty for null.
func ask(t *testing.T, db *pgxpool.Pool, role, sub, sql string) (value string, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		claims := fmt.Sprintf(`{"role": %q, "sub": %q}`, role, sub)
		if _, err := tx.Exec(t.Context(), "select set_config('request.jwt.claims', $1, true), set_config('role', $2, true)",
			claims, role); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), "select coalesce(("+sql+")::text, '')").Scan(&value)
	})
	return value, err
}

// refusedWith checks the SQLSTATE and the words of a refusal.
func refusedWith(t *testing.T, what string, err error, code, words string) {
	t.Helper()
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != code || !strings.Contains(pgErr.Message, words) {
		t.Errorf("%s: got %v, want %s with %q", what, err, code, words)
	}
}

func TestARequestToEnqueueMayBeSentAgain(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	const id = "11111111-1111-4111-8111-111111111111"
	send := func(sub, arguments string) (string, error) {
		return ask(t, db, "authenticated", sub, "enqueue_tool_call("+arguments+")")
	}
	for range 2 {
		if got, err := send("ada", "'a.b', '{\"n\": 1}', idempotency_key => 'k', id => '"+id+"'"); err != nil || got != id {
			t.Errorf("got %s, %v", got, err)
		}
	}
	for what, arguments := range map[string]string{
		"another tool":  "'a.c', '{\"n\": 1}', idempotency_key => 'k', id => '" + id + "'",
		"another input": "'a.b', '{\"n\": 2}', idempotency_key => 'k', id => '" + id + "'",
		"another key":   "'a.b', '{\"n\": 1}', id => '" + id + "'",
	} {
		_, err := send("ada", arguments)
		refusedWith(t, what, err, "23505", "there is another call with the id")
	}
	_, err := send("grace", "'a.b', '{\"n\": 1}', idempotency_key => 'k', id => '"+id+"'")
	refusedWith(t, "another's call", err, "23505", "there is another call with the id")
	first, err := send("ada", "'a.b'")
	if err != nil {
		t.Error(err)
	}
	if second, err := send("ada", "'a.b'"); err != nil || second == first {
		t.Errorf("two calls without an id: %s and %s, %v", first, second, err)
	}
	if first[14] != '7' {
		t.Errorf("%s does not begin with the time", first)
	}
}

func TestAWrongArgumentIsNamed(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into core_tool_calls (id, tool_name, created_by) values "+
		"('22222222-2222-4222-8222-222222222222', 'a.b', 'grace')")
	for _, c := range []struct{ arguments, code, words string }{
		{"null", "23514", "tool_name must be the name of a tool"},
		{"''", "23514", "tool_name must be the name of a tool"},
		{"repeat('x', 201)", "23514", "tool_name must be the name of a tool"},
		{"'a.b', '[1]'", "23514", "input must be a JSON object but is an array"},
		{"'a.b', jsonb_build_object('x', repeat('x', 262144))", "23514",
			"input takes 262153 bytes as JSON, and may take 262144"},
		{"'a.b', idempotency_key => repeat('x', 256)", "23514", "idempotency_key may have at most 255"},
		{"'a.b', session_id => repeat('x', 256)", "23514", "session_id may have at most 255"},
		{"'a.b', priority => 1001", "23514", "priority is 1001, and must be from -1000 to 1000"},
		// the check that costs less comes first
		{"'a.b', '{\"x\": 1e131071}', priority => 1001", "23514", "priority is 1001"},
		{"'a.b', priority => 11", "23514", "priority is 11, and must be from -10 to 0"},
		{"'a.b', '{\"deep\": [{\"n\": 1e401}]}'", "23514", "input has a number beyond 1.7976931348623157e308"},
		{"'a.b', '[-1e131071]'", "23514", "must be a JSON object"},
		{"'a.b', '{\"n\": -1e131071}'", "23514", "input has a number beyond 1.7976931348623157e308"},
		{"'a.b', '{\"n\": 1e-401}'", "23514", "or nearer to 0 than 1e-400"},
		{"'a.b', '{\"n\": [1, {\"m\": 0e-16383}]}'", "23514", "or nearer to 0 than 1e-400"},
		{"'a.b', run_at => now() + '367 days'", "23514", "may be at most 366 days ahead"},
		{"'a.b', parent_call_id => '33333333-3333-4333-8333-333333333333'", "23503",
			"parent_call_id is 33333333-3333-4333-8333-333333333333, which is no call of yours"},
		{"'a.b', parent_call_id => '22222222-2222-4222-8222-222222222222'", "23503", "which is no call of yours"},
	} {
		_, err := ask(t, db, "authenticated", "ada", "enqueue_tool_call("+c.arguments+")")
		refusedWith(t, c.arguments, err, c.code, c.words)
	}
}

func TestAReceiptCanBePolled(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	id, err := ask(t, db, "authenticated", "ada", "enqueue_tool_call('a.b')")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, db, "authenticated", "ada", "get_receipt('"+id+"')"); err != nil || got != "" {
		t.Errorf("before the end: %s, %v", got, err)
	}
	if came, err := ask(t, db, "authenticated", "ada", "cancel_tool_call('"+id+"')"); err != nil || came != "cancelled" {
		t.Errorf("got %s, %v", came, err)
	}
	if got, err := ask(t, db, "authenticated", "ada", "get_receipt('"+id+"') ->> 'status'"); err != nil ||
		got != "failed" {
		t.Errorf("after the end: %s, %v", got, err)
	}
	for _, c := range []struct{ who, id string }{{"ada", "33333333-3333-4333-8333-333333333333"}, {"grace", id}} {
		_, err := ask(t, db, "authenticated", c.who, "get_receipt('"+c.id+"')")
		refusedWith(t, c.who+"'s "+c.id, err, "PT404", "call "+c.id+" does not exist, or you may not see it")
		_, err = ask(t, db, "authenticated", c.who, "cancel_tool_call('"+c.id+"')")
		refusedWith(t, c.who+"'s "+c.id, err, "PT404", "call "+c.id+" does not exist, or you may not cancel it")
	}
	if got, err := ask(t, db, "service_role", "", "get_receipt('"+id+"') ->> 'status'"); err != nil || got != "failed" {
		t.Errorf("service_role: %s, %v", got, err)
	}
}

func TestACallComesWithItsReceiptAndItsJournal(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	id := finished(t, db)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('c.d')")
	for sql, want := range map[string]string{
		"select count(r.id)::text from core_tool_calls c, core_tool_receipts(c) r where c.id = '" + id +
			"'": "1",
		"select string_agg(e.event, ' ' order by e.seq) from core_tool_calls c, core_tool_events(c) e where c.id = '" + id +
			"'": "queued claimed succeeded",
		"select count(r.id)::text from core_tool_calls c left join lateral core_tool_receipts(c) r on true where " +
			"c.tool_name = 'c.d'": "0",
	} {
		if got, err := ask(t, db, "service_role", "", sql); err != nil || got != want {
			t.Errorf("%s: %q, want %q, %v", sql, got, want, err)
		}
		if got, err := ask(t, db, "authenticated", "mallory", sql); err == nil ||
			!strings.Contains(err.Error(), "permission denied") {
			t.Errorf("mallory: %s: %q, %v", sql, got, err)
		}
	}
}

func TestACallerMayHaveSoManyOpenCalls(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "update gem.limits set max_open_calls = 5")
	const bulk = "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, %d)"
	_, err := request(t, db, "authenticated", "ada", fmt.Sprintf(bulk, 600))
	refusedWith(t, "600 at once", err, "PT429", "too many open calls: you may have 5 that have not ended")
	if n := number(t, db, "select last_value from core_tool_calls_seq_seq"); n > 6 {
		t.Errorf("the request was refused at its row %v", n)
	}

	// Together they are twelve, in requests that do not see one another's calls.
	var together sync.WaitGroup
	for range 6 {
		together.Go(func() {
			_, err := request(t, db, "authenticated", "ada", fmt.Sprintf(bulk, 2))
			if err != nil {
				refusedWith(t, "side by side", err, "PT429", "too many open calls")
			}
		})
	}
	together.Wait()
	if open, err := ask(t, db, "authenticated", "ada", "select count(*) from core_tool_calls"); err != nil || open != "4" {
		t.Errorf("%s are open, %v", open, err)
	}
	for _, c := range []struct{ role, sub, sql string }{
		{"authenticated", "grace", fmt.Sprintf(bulk, 5)},
		{"service_role", "", fmt.Sprintf(bulk, 20)},
		{"service_role", "", "insert into core_tool_calls (tool_name, created_by) select 'a.b', 'ada' from " +
			"generate_series(1, 20)"},
	} {
		if _, err := request(t, db, c.role, c.sub, c.sql); err != nil {
			t.Errorf("%s %s: %v", c.role, c.sub, err)
		}
	}
	if _, err := request(t, db, "authenticated", "grace", "select cancel_tool_call(id) from (select id from "+
		"core_tool_calls where status = 'queued' limit 1) one"); err != nil {
		t.Error(err)
	}
	if _, err := request(t, db, "authenticated", "grace", fmt.Sprintf(bulk, 1)); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

func TestACallerMaySendSoMuchInAnHour(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "update gem.limits set max_calls_per_hour = 5, max_bytes_per_hour = 1000")
	const bulk = "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, %d)"
	const large = "insert into core_tool_calls (tool_name, input) values ('a.b', jsonb_build_object('x', repeat('a', " +
		"600)))"
	must := func(role, sub, sql string) {
		t.Helper()
		if _, err := request(t, db, role, sub, sql); err != nil {
			t.Errorf("%s %s: %s: %v", role, sub, sql, err)
		}
	}
	refused := func(sub, sql, words, hint string) {
		t.Helper()
		_, err := request(t, db, "authenticated", sub, sql)
		refusedWith(t, sql, err, "PT429", words)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && !strings.HasPrefix(pgErr.Hint, hint) {
			t.Errorf("%s: the hint is %q, want %q", sql, pgErr.Hint, hint)
		}
	}

	refused("ada", fmt.Sprintf(bulk, 6), "too many calls in an hour: you may make 5", "Send less in one request.")
	must("authenticated", "ada", fmt.Sprintf(bulk, 3))
	must("authenticated", "ada", "select cancel_tool_call(id) from core_tool_calls") // they count all the same
	testdb.Exec(t, db, "update core_tool_calls set created_at = created_at - interval '20 minutes'")
	must("authenticated", "ada", fmt.Sprintf(bulk, 2))
	at := texts(t, db, `select to_char((min(created_at) + interval '1 hour') at time zone 'UTC',
		'YYYY-MM-DD"T"HH24:MI:SS"Z"') from core_tool_calls`)
	refused("ada", fmt.Sprintf(bulk, 1), "too many calls in an hour", "Try again at "+at[0])
	must("service_role", "", fmt.Sprintf(bulk, 6))
	must("authenticated", "grace", large)
	refused("grace", large, "too much input in an hour: you may send 1000 bytes", "Try again at ")
	must("authenticated", "grace", fmt.Sprintf(bulk, 1))

	testdb.Exec(t, db, "update core_tool_calls set created_at = created_at - interval '1 hour'")
	must("authenticated", "ada", fmt.Sprintf(bulk, 5))
	must("authenticated", "grace", large)
}

// Each of these inputs also has a number that is refused when the contents are read.
func TestTheSizeOfAnInputIsLookedAtBeforeItsContents(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	const many = "insert into core_tool_calls (tool_name, input) select 'a.b', jsonb_build_object('n', jsonb_agg(1), " +
		"'odd', 1e500) from generate_series(1, %d)"
	for _, c := range []struct {
		role  string
		n     int
		words string
	}{
		{"service_role", 400_000, "input takes more than 1048576 bytes"},
		{"authenticated", 100_000, "input takes more than 262144 bytes"},
		{"authenticated", 10, "input has a number beyond 1.7976931348623157e308"},
	} {
		_, err := request(t, db, c.role, "ada", fmt.Sprintf(many, c.n))
		refusedWith(t, fmt.Sprint(c.role, c.n), err, "23514", c.words)
	}
	// A table keeps 5 MB of the same letter in some 60 KB.
	testdb.Exec(t, db, "create table kept (input jsonb); insert into kept values (jsonb_build_object('x', repeat('a', "+
		"5000000), 'odd', 1e500))")
	err := tryInsert(t, db, "insert into core_tool_calls (tool_name, input) select 'a.b', input from kept")
	refusedWith(t, "a compressed one", err, "23514", "input takes more than 1048576 bytes")
}

// An input that takes the most bytes for its length as text passes up to the limit.
func TestNoInputWithinTheLimitIsTakenForLarger(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "update gem.limits set max_input_bytes = 10500")
	for what, input := range map[string]string{
		"digits":          `{"n": [` + strings.Repeat("1, ", 3490) + `1]}`,
		"zeros":           `{"n": [` + strings.Repeat("0, ", 3490) + `0]}`,
		"lists of one":    `{"n": [` + strings.Repeat("[0], ", 2090) + `0]}`,
		"nested lists":    `{"n": [` + strings.Repeat(strings.Repeat("[", 1000)+strings.Repeat("]", 1000)+", ", 5) + `0]}`,
		"empty texts":     `{"n": [` + strings.Repeat(`"", `, 2620) + `0]}`,
		"letters, digits": `{"n": [` + strings.Repeat(`"a", 1, `, 1300) + `0]}`,
		"objects":         `{"n": [` + strings.Repeat(`{"": 0}, `, 1150) + `0]}`,
	} {
		if n := len(input); n > 10_500 || n < 10_000 {
			t.Errorf("%s: %d bytes", what, n)
		}
		if _, err := request(t, db, "authenticated", "ada",
			"insert into core_tool_calls (tool_name, input) values ('a.b', '"+input+"')"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestTheNumbersOfAnInputAreKept(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	numbers := `[0, -0.5, 0.000, 1.10, 1e-400, -1e308, ` + strings.Repeat("9", 308) + `, 0.` + strings.Repeat("1", 5000) +
		`]`
	id, err := ask(t, db, "authenticated", "ada", "enqueue_tool_call('a.b', '{\"n\": "+numbers+"}')")
	if err != nil {
		t.Fatal(err)
	}
	if got := texts(t, db, "select (input -> 'n' = '"+numbers+"')::text from core_tool_calls where id = '"+id+
		"'"); got[0] != "true" {
		t.Error("they are others now")
	}
}

func TestLimitsCanBeSet(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "update gem.limits set max_input_bytes = 20, max_run_ahead = '1 hour', min_priority = -1, "+
		"max_priority = 0")
	for arguments, words := range map[string]string{
		"'a.b', '{\"n\": \"123456789012345\"}'": "input takes 24 bytes as JSON, and may take 20",
		"'a.b', run_at => now() + '61 minutes'": "may be at most 01:00:00 ahead",
		"'a.b', priority => 1":                  "priority is 1, and must be from -1 to 0",
		"'a.b', priority => -2":                 "priority is -2, and must be from -1 to 0",
	} {
		_, err := ask(t, db, "authenticated", "ada", "enqueue_tool_call("+arguments+")")
		refusedWith(t, arguments, err, "23514", words)
		if _, err := ask(t, db, "service_role", "", "enqueue_tool_call("+arguments+")"); err != nil {
			t.Errorf("service_role: %s: %v", arguments, err)
		}
	}
	for _, sql := range []string{"select * from gem.limits", "update gem.limits set max_open_calls = 9"} {
		for _, role := range []string{"anon", "authenticated", "service_role"} {
			_, err := request(t, db, role, "mallory", sql)
			refusedWith(t, role+": "+sql, err, "42501", "permission denied")
		}
	}
	if err := tryInsert(t, db, "insert into gem.limits (only_row) values (false)"); err == nil {
		t.Error("there are two rows of limits")
	}
}

func TestACallCarriesTheTraceOfItsRequest(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	const of, own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-11111111111111111111111111111111-2222222222222222-00"
	for _, c := range []struct{ header, column, want string }{
		{of, "null", of},
		{of, "'" + own + "'", own},
		{"01-" + of[3:] + "-more", "null", ""},
		{"", "null", ""},
	} {
		var got string
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "ada"}',
				true),
				set_config('request.headers', $1, true), set_config('role', 'authenticated', true)`,
				fmt.Sprintf(`{"traceparent": %q}`, c.header)); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "insert into core_tool_calls (tool_name, traceparent) values ('a.b', "+c.column+
				") returning coalesce(traceparent, '')").Scan(&got)
		})
		if err != nil || got != c.want {
			t.Errorf("header %q, column %s: %q, want %q, %v", c.header, c.column, got, c.want, err)
		}
	}
	refusedWith(t, "a wrong column", tryInsert(t, db, "insert into core_tool_calls (tool_name, traceparent) values "+
		"('a.b', 'x')"), "23514", "traceparent must be a W3C trace context")
}

func TestReceiptsJoinRealtime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ publication, want string }{
		"none":           {"", "0"},
		"empty":          {"create publication supabase_realtime", "1"},
		"for all tables": {"create publication supabase_realtime for all tables", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := supabaseWith(t, c.publication)
			var joined string
			if err := db.QueryRow(t.Context(), "select count(*)::text from pg_publication_tables where tablename = "+
				"'core_tool_receipts'").Scan(&joined); err != nil || joined != c.want {
				t.Errorf("%s, want %s, %v", joined, c.want, err)
			}
			testdb.Exec(t, db, printed(t)) // again
		})
	}
}

func tryInsert(t *testing.T, db *pgxpool.Pool, sql string) error {
	t.Helper()
	_, err := db.Exec(t.Context(), sql)
	return err
}

package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// apiRoles creates Supabase's roles if they are not there. Another test may create them at the same time.
const apiRoles = `do $$ begin
	create role anon nologin; create role authenticated nologin; create role service_role nologin;
	exception when duplicate_object or unique_violation then null; end $$`

// apiDefaults gives them what older projects have by default.
const apiDefaults = `
	grant usage on schema public to anon, authenticated, service_role;
	alter default privileges in schema public grant all on tables to anon, authenticated, service_role;
	alter default privileges in schema public grant all on functions to anon, authenticated, service_role`

// supabase is a migrated database with the roles of Supabase's API, and with what older projects grant them by default.
func supabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return testdb.Pool(t, testdb.NewLike(t, "supabase", func(url string) error {
		conn, err := pgx.Connect(context.Background(), url)
		if err != nil {
			return err
		}
		var sql strings.Builder
		err = migrations.Print(&sql, "", migrations.Options{})
		for _, one := range []string{apiRoles, apiDefaults, sql.String()} {
			if err == nil {
				_, err = conn.Exec(context.Background(), one)
			}
		}
		return errors.Join(err, conn.Close(context.Background()))
	}))
}

// supabaseWith runs a statement before the migrations.
func supabaseWith(t *testing.T, before string) *pgxpool.Pool {
	t.Helper()
	db := testdb.Pool(t, testdb.NewEmpty(t))
	supabaseRoles(t, db)
	testdb.Exec(t, db, before)
	testdb.Exec(t, db, printed(t))
	return db
}

// createAPIRoles makes the roles of Supabase's API, which belong to the server of all tests.
func createAPIRoles(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	testdb.Exec(t, db, apiRoles)
}

// supabaseRoles makes the roles of Supabase's API, and gives them what older projects have by default.
func supabaseRoles(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	createAPIRoles(t, db)
	testdb.Exec(t, db, apiDefaults)
}

// request runs a statement as one request of the API does: a transaction as the role, with the token's claims.
func request(t *testing.T, db *pgxpool.Pool, role, sub, sql string) (rows int64, err error) {
	t.Helper()
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		claims := fmt.Sprintf(`{"role": %q, "sub": %q}`, role, sub)
		if sub == "" {
			claims = fmt.Sprintf(`{"role": %q}`, role)
		}
		if _, err := tx.Exec(t.Context(), "select set_config('request.jwt.claims', $1, true), set_config('role', $2, true)",
			claims, role); err != nil {
			return err
		}
		tag, err := tx.Exec(t.Context(), sql)
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}

func TestASignedInUserCallsToolsAndSeesItsOwn(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	for _, c := range []struct {
		role, sub, sql string
		rows           int64
	}{
		{"authenticated", "ada", "insert into core_tool_calls (tool_name, input) values ('a.b', '{}') returning id, " +
			"status, signed_in", 1},
		{"authenticated", "ada", "insert into core_tool_calls (tool_name, input, status) values ('a.b', '{}', 'queued')", 1},
		{"authenticated", "grace", "insert into core_tool_calls (tool_name) values ('a.b')", 1},
		{"authenticated", "ada", "select id from core_tool_calls where created_by = 'ada'", 2},
		{"authenticated", "ada", "select id from core_tool_calls", 2},
		{"authenticated", "ada", "select event from core_tool_events", 2},
		{"service_role", "", "insert into core_tool_calls (tool_name, created_by) values ('a.b', 'ada')", 1},
		{"service_role", "", "select * from core_tool_calls", 4},
		{"authenticated", "ada", "select cancel_tool_call(id) from core_tool_calls", 3},
		{"authenticated", "ada", "select result from core_tool_receipts", 3},
		{"authenticated", "grace", "select result from core_tool_receipts", 0},
	} {
		if rows, err := request(t, db, c.role, c.sub, c.sql); err != nil || rows != c.rows {
			t.Errorf("%s %s: %s: %d rows, want %d, %v", c.role, c.sub, c.sql, rows, c.rows, err)
		}
	}
}

func TestFrontendsCanDoNothingElse(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('a.b', 'ada')")
	id := finished(t, db)
	for what, sql := range map[string]string{
		"a status":       "insert into core_tool_calls (tool_name, status) values ('a.b', 'succeeded')",
		"an owner":       "insert into core_tool_calls (tool_name, created_by) values ('a.b', 'grace')",
		"an attempt":     "insert into core_tool_calls (tool_name, attempt) values ('a.b', 3)",
		"a holder":       "insert into core_tool_calls (tool_name, claimed_by) values ('a.b', 'me')",
		"a changed call": "update core_tool_calls set tool_name = 'c.d'",
		"an upsert": "insert into core_tool_calls (id, tool_name) values ('" + id +
			"', 'c.d') on conflict (id) do update set tool_name = 'c.d'",
		"a deleted call":   "delete from core_tool_calls",
		"an emptied table": "truncate core_tool_calls cascade",
		"a receipt": "insert into core_tool_receipts (call_id, tool_name, status, result, attempt) values ('" +
			id + "', 'a.b', 'succeeded', '{}', 1)",
		"a changed receipt": "update core_tool_receipts set result = '{}'",
		"a deleted receipt": "delete from core_tool_receipts",
		"an event": "insert into core_tool_events (call_id, seq, at, event, attempt) values ('" + id +
			"', 9, now(), 'claimed', 1)",
		"a deleted event":          "delete from core_tool_events",
		"the workers":              "select * from core_workers",
		"the registries":           "select * from core_registry_versions",
		"a claim":                  "select gem.claim('w', 1, true)",
		"an end":                   "select gem.finish('" + id + "', 1, 'w', 'succeeded', '{}', '{}', '1')",
		"another's call's end":     "select cancel_tool_call('" + id + "')",
		"a notification's trigger": "select gem.wake_workers()",
	} {
		for _, role := range []string{"anon", "authenticated", "gem_frontend", "service_role"} {
			if role == "service_role" && (what == "an owner" || what == "another's call's end") {
				continue // it acts for anyone
			}
			if _, err := request(t, db, role, "mallory", sql); err == nil {
				t.Errorf("%s: %s was not refused", role, what)
			}
		}
	}
	for _, sql := range []string{"insert into core_tool_calls (tool_name) values ('a.b')", "select * from core_tool_calls",
		"select * from core_tool_receipts"} {
		if _, err := request(t, db, "anon", "", sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("anon: %s: %v", sql, err)
		}
	}
	if rows, err := request(t, db, "authenticated", "mallory", "select id from core_tool_calls"); err != nil || rows != 0 {
		t.Errorf("another's calls: %d rows, %v", rows, err)
	}
}

// PostgREST answers Prefer: count=planned with the planner's estimate, whose statistics are of the rows of all users.
func TestAnEstimateTellsNothingOfOthers(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name, session_id, idempotency_key, created_by)
		select 'a.b', 'conversation', '+61 400 000 ' || i, 'grace' from generate_series(100, 600) i;
		set session_replication_role = replica; -- these receipts end nothing
		insert into core_tool_receipts (id, created_at, call_id, tool_name, status, result, attempt, idempotency_key)
		select gen_random_uuid(), now(), id, 'a.b', 'succeeded', '{}', 1, idempotency_key from core_tool_calls;
		set session_replication_role = origin;
		analyze core_tool_calls, core_tool_receipts, core_tool_events`)
	estimate := func(where string) string {
		t.Helper()
		var plan string
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(),
				`set local role authenticated; set local request.jwt.claims = '{"role": "authenticated", "sub": "mallory"}'`); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "explain (format json) select 1 from "+where).Scan(&plan)
		})
		rows := regexp.MustCompile(`"Plan Rows": (\d+)`).FindStringSubmatch(plan)
		if err != nil || rows == nil {
			t.Fatalf("%s: %v: %s", where, err, plan)
		}
		return rows[1]
	}
	for _, table := range []string{"core_tool_calls", "core_tool_receipts", "core_tool_events"} {
		for column, kind := range columnsOf(t, db, table) {
			values := probes[kind]
			if values == nil {
				t.Fatalf("%s.%s is of a type without probes: %s", table, column, kind)
			}
			for _, operator := range []string{"=", "<", ">", "<>"} {
				estimates := map[string]bool{}
				for _, value := range append(values, testdb.Value[string](t, db,
					"select coalesce(max("+column+"::text), '"+values[0]+"') from "+table)) {
					estimates[estimate(fmt.Sprintf("%s where %s %s '%s'", table, column, operator, value))] = true
				}
				if len(estimates) != 1 {
					t.Errorf("%s.%s %s: the estimate depends on the value: %v", table, column, operator, estimates)
				}
			}
		}
	}
}

// probes lists values of each type that sort before, among and after the stored ones.
var probes = map[string][]string{
	"text":   {"a.b", "a", "conversation", "+61 400 000 300", "grace", "queued", "zzz"},
	"text[]": {"{}", "{owner}", "{user:grace,role:boss}", "{zzz}"},
	"uuid": {"00000000-0000-0000-0000-000000000000", "7fffffff-0000-4000-8000-000000000000",
		"ffffffff-ffff-ffff-ffff-ffffffffffff"},
	"timestamp with time zone": {"2000-01-01", "now", "2100-01-01"},
	"integer":                  {"-1", "0", "1", "300", "2000000000"},
	"bigint":                   {"-1", "0", "1", "300", "2000000000"},
	"interval":                 {"-1 s", "0", "1 s", "1 day"},
	"boolean":                  {"f", "t"},
	"jsonb":                    {"{}", `{"a": 1}`, "[1]"},
}

func columnsOf(t *testing.T, db *pgxpool.Pool, table string) map[string]string {
	t.Helper()
	rows, err := db.Query(t.Context(), `select attname::text, format_type(atttypid, atttypmod) from pg_attribute
		where attrelid = $1::text::regclass and attnum > 0
			and has_column_privilege('authenticated', attrelid, attnum, 'select')`, table)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	var name, kind string
	if _, err := pgx.ForEachRow(rows, []any{&name, &kind}, func() error { found[name] = kind; return nil }); err != nil ||
		len(found) < 5 {
		t.Fatalf("the columns of %s: %v, %v", table, found, err)
	}
	return found
}

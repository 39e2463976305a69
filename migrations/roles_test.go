package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// as is a pool on the same database as a new role that is a member of gem_worker.
func as(t *testing.T, owner *pgxpool.Pool, databaseURL string) *pgxpool.Pool {
	t.Helper()
	return asMember(t, owner, databaseURL, "gem_worker")
}

func asMember(t *testing.T, owner *pgxpool.Pool, databaseURL, of string) *pgxpool.Pool {
	t.Helper()
	role := "gem_test_" + strings.ToLower(strings.NewReplacer("/", "_").Replace(t.Name()))
	role = role[:min(len(role), 60)]
	testdb.Exec(t, owner, fmt.Sprintf("create role %s login password 'worker' in role %s", role, of))
	dropAtEnd(t, databaseURL, "drop role "+role)
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "worker")
	return testdb.Pool(t, u.String())
}

// dropAtEnd runs a statement when the test's own pools that are opened after it are closed. Roles belong to the whole
// server.
func dropAtEnd(t *testing.T, databaseURL, sql string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.Background() // the test's own has ended
		conn, err := pgx.Connect(ctx, databaseURL)
		if err == nil {
			_, err = conn.Exec(ctx, sql)
			_ = conn.Close(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

func TestTheWorkersRoleCanDoWhatAWorkerDoes(t *testing.T) {
	t.Parallel()
	u := testdb.New(t, migrations.Sources(leads.Domain())...)
	owner := testdb.Pool(t, u)
	db := as(t, owner, u)
	testdb.Exec(t, owner, "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 4)")
	for _, sql := range []string{
		"select max(version) from gem.migrations",
		"select * from gem.record_registry('1', repeat('a', 64), '{}')",
		"select * from gem.record_rules('1', repeat('a', 64), '{}', '1 hour')",
		"select * from gem.record_domains('1', repeat('a', 64), '{}')",
		"select * from gem.record_routes('1', repeat('a', 64), '{}')",
		"select gem.start_worker('w', 5, '', '1', '1 hour', '{}', '1')",
		"select gem.want_wake('w', true)", "select gem.count_outcomes(10)",
		"select * from gem.claim('w', 4, true)",
		"select * from gem.heartbeat('w', '1 hour', '{}', '{}', true)",
		"select (gem.hold_key(id, 1, 'w', 'k')).verdict from (select id from core_tool_calls order by seq limit 1) c",
		`select gem.llm_end(b.id, 'done', null, 200, null, null, 1, 1, 0, 0, 0, 'provider', 1, null, 1, 1, 0, null, false)
			from (select c.id from core_tool_calls c order by seq limit 1) c,
			gem.llm_begin(c.id, 1, 'main', 'default', '1', null,
				'[{"target": "x", "provider": "p", "model": "m", "reserve": 1, "priced": true, "estimated_input": 1,
				"budgets": [{"name": "all", "period": "day", "limit": 9}]}]') b`,
		"select * from core_llm_requests", "select * from gem.llm_target_states('{x}')",
		"select gem.progress('[]')",
		"select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from (select id from core_tool_calls order by seq " +
			"limit 1) c",
		"select gem.retry(id, 1, 'w', '{}', 3, '1 s') from (select id from core_tool_calls order by seq offset 1 limit 1) c",
		"select gem.release(id, 1, 'w') from (select id from core_tool_calls order by seq offset 2 limit 1) c",
		"select * from core_tool_receipts",
		"select * from core_tool_events",
		"insert into leads (name) values ('Ada')",
		"update leads set name = 'Grace'",
		"select gem.stop_worker('w')",
	} {
		testdb.Exec(t, db, sql)
	}
	var n int
	if err := db.QueryRow(t.Context(), "select count(*) from core_tool_events where event = 'claimed'").
		Scan(&n); err != nil || n != 4 {
		t.Errorf("sees %d events, %v", n, err)
	}
	if err := db.QueryRow(t.Context(), "select count(*) from leads where name = 'Grace'").Scan(&n); err != nil || n != 1 {
		t.Errorf("sees %d leads, %v", n, err)
	}
}

func TestTheWorkersRoleCanDoNoMore(t *testing.T) {
	t.Parallel()
	u := testdb.New(t, migrations.Sources(leads.Domain())...)
	owner := testdb.Pool(t, u)
	finished(t, owner)
	testdb.Exec(t, owner, "insert into core_tool_calls (tool_name) values ('a.b')")
	testdb.Exec(t, owner, "select gem.claim('w', 1, true)")
	db := as(t, owner, u)
	for what, sql := range map[string]string{
		"a second receipt": "insert into core_tool_receipts (id, created_at, call_id, tool_name, status, " +
			"result, attempt) select gen_random_uuid(), now(), id, 'a.b', 'succeeded', '{}', 1 from core_tool_calls",
		"a final status without a receipt": "update core_tool_calls set status = 'succeeded'",
		"a forged attempt":                 "update core_tool_calls set attempt = 7",
		"another attempt's end": "select gem.finish(id, 2, 'w', 'succeeded', '{}', '{}', '1') from " +
			"core_tool_calls where status = 'running'",
		"another worker's call": "select gem.finish(id, 1, 'v', 'succeeded', '{}', '{}', '1') from " +
			"core_tool_calls where status = 'running'",
		"a changed receipt": "update core_tool_receipts set result = '{}'",
		"a deleted receipt": "delete from core_tool_receipts",
		"no receipts":       "truncate core_tool_receipts",
		"a changed event":   "update core_tool_events set event = 'queued'",
		"a forged event": "insert into core_tool_events (call_id, seq, at, event, attempt) select id, 9, " +
			"now(), 'claimed', 1 from core_tool_calls",
		"a deleted call":               "delete from core_tool_calls",
		"a new call":                   "insert into core_tool_calls (tool_name) values ('a.b')",
		"a heartbeat by hand":          "update core_workers set alive_until = now() + interval '1 year'",
		"a rewritten registry":         "update core_registry_versions set sha256 = repeat('b', 64)",
		"recovery without a heartbeat": "select gem.recover('w', null)",
		"a woken call":                 "select gem.wake_waiting('k', 1, 'w')",
		"a deleted lead":               "delete from leads",
		"a disabled guard":             "alter table core_tool_receipts disable trigger all",
		"a replica":                    "set session_replication_role = replica",
		"a table":                      "create table gem.mine ()",
	} {
		_, err := db.Exec(t.Context(), sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || (pgErr.Code != "42501" && pgErr.Code != "GM001") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// With its own rights gem mcp can only ask which calls have ended. It does the rest as the user whose request it
// serves.
func TestGEMMCPCanDoNothingItself(t *testing.T) {
	t.Parallel()
	u := testdb.New(t, migrations.Sources(leads.Domain())...)
	owner := testdb.Pool(t, u)
	id := finished(t, owner)
	db := asMember(t, owner, u, "gem_mcp")
	if got := testdb.Value[string](t, db, "select gem.ended(array['"+id+"', gen_random_uuid()]::uuid[])"); got != id {
		t.Errorf("of the two, %s has ended, want %s", got, id)
	}
	if got := testdb.Value[string](t, db,
		"select count(*) from gem.parked(array['"+id+"', gen_random_uuid()]::uuid[])"); got != "0" {
		t.Errorf("of a call that has ended and one that does not exist, %s wait", got)
	}
	testdb.Exec(t, db, "listen gem_receipts; unlisten *")
	for what, sql := range map[string]string{
		"calls":                    "select id from core_tool_calls",
		"receipts":                 "select id from core_tool_receipts",
		"a call":                   "insert into core_tool_calls (tool_name) values ('a.b')",
		"a call by the function":   "select enqueue_tool_call('a.b')",
		"an end":                   "select cancel_tool_call('" + id + "')",
		"a receipt by its call":    "select get_receipt('" + id + "')",
		"questions":                "select * from open_questions",
		"progress":                 "select * from core_tool_progress",
		"a claim":                  "select gem.claim('w', 1, true)",
		"a notification":           "select gem.tell_ended('{}')",
		"the rows of a domain":     "select * from leads",
		"a table":                  "create table public.mine ()",
		"a table of GEM":           "create table gem.mine ()",
		"the worker's role":        "set role gem_worker",
		"the monitor's role":       "set role gem_monitor",
		"the owner's role":         "set role " + testdb.Value[string](t, owner, "select quote_ident(current_user)"),
		"more calls than it needs": "select gem.ended(array_fill(gen_random_uuid(), '{1001}'))",
		"more that may wait":       "select gem.parked(array_fill(gen_random_uuid(), '{1001}'))",
	} {
		_, err := db.Exec(t.Context(), sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "42501" && pgErr.Code != "23514" {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Claims that nobody signed make no server of it.
	testdb.Exec(t, db, `set role gem_frontend; set request.jwt.claims = '{"role": "service_role", "sub": "eve"}';
		insert into core_tool_calls (tool_name, priority) values ('a.c', -7); reset role; reset request.jwt.claims`)
	got := testdb.Value[string](t, owner,
		"select concat_ws(' ', created_by, signed_in) from core_tool_calls where priority = -7")
	if got != "eve t" {
		t.Errorf("a call of a login of gem_mcp that claims to be a server is %q", got)
	}
	const request = "set role gem_frontend; set request.jwt.claims = '{\"role\": \"gem_frontend\", \"sub\": \"ada\"}'; "
	testdb.Exec(t, db, request+"insert into core_tool_calls (tool_name, awaited) values ('a.b', true); reset role; reset "+
		"request.jwt.claims")
	if got := testdb.Value[string](t, owner,
		"select created_by || ' ' || signed_in from core_tool_calls where tool_name = 'a.b' and "+
			"created_by is not null"); got != "ada true" {
		t.Errorf("the call is %s", got)
	}
}

// authenticated and gem_frontend are two names for one set of rights.
func TestSignedInUsersHaveTheSameRightsByBothRoles(t *testing.T) {
	t.Parallel()
	u := testdb.NewEmpty(t)
	db := testdb.Pool(t, u)
	supabaseRoles(t, db)
	testdb.Exec(t, db, "alter default privileges in schema public revoke all on tables from authenticated; alter default "+
		"privileges in schema public revoke all on functions from authenticated")
	if err := migrations.Up(t.Context(), u,
		migrations.Sources(leads.Domain(), extract.Domain(handlers.Domain{}))...); err != nil {
		t.Fatal(err)
	}
	rights := func(role string) string {
		return testdb.Value[string](t, db, `select string_agg(r, E'\n' order by r) from (
			select format('%s.%s %s', c.oid::regclass, a.attname, p) as r from pg_class c
				join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped,
				unnest('{select,insert,update,references}'::text[]) p
				where c.relnamespace in ('gem'::regnamespace, 'public'::regnamespace) and c.relkind in ('r', 'v')
					and has_column_privilege('`+role+`', c.oid, a.attnum, p)
			union all
			select format('%s %s', c.oid::regclass, p) from pg_class c, unnest('{delete,truncate,trigger}'::text[]) p
				where c.relnamespace in ('gem'::regnamespace, 'public'::regnamespace) and c.relkind in ('r', 'v')
					and has_table_privilege('`+role+`', c.oid, p)
			union all
			select oid::regprocedure::text from pg_proc where pronamespace in ('gem'::regnamespace, 'public'::regnamespace)
				and has_function_privilege('`+role+`', oid, 'execute')
			union all
			select format('%s %s', nspname, p) from pg_namespace, unnest('{usage,create}'::text[]) p where has_schema_privilege('`+role+`', oid, p)
			union all
			select format('%s %s %s', tablename, policyname, cmd) from pg_policies where '`+role+
			`' = any (roles) or 'public' = any (roles)) r`)
	}
	got, want := rights("gem_frontend"), rights("authenticated")
	if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(got, "enqueue_tool_call") ||
		!strings.Contains(got, "core_tool_calls.awaited insert") {
		t.Errorf("authenticated (-) and gem_frontend (+) differ: %s", diff)
	}
}

// Without the right to create roles, the migrations work all the same, and workers connect as the owner.
func TestMigrationsNeedNoRightToCreateRoles(t *testing.T) {
	t.Parallel()
	u := testdb.NewEmpty(t)
	db := testdb.Pool(t, u)
	testdb.Exec(t, db, "create role gem_test_owner login password 'owner'")
	var name string
	if err := db.QueryRow(t.Context(), "select current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	dropAtEnd(t, u, fmt.Sprintf("alter database %q owner to current_user; drop owned by gem_test_owner cascade; drop "+
		"role gem_test_owner", name))
	testdb.Exec(t, db, fmt.Sprintf("alter database %q owner to gem_test_owner", name))
	testdb.Exec(t, db, "grant all on schema public to gem_test_owner")
	parsed, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword("gem_test_owner", "owner")
	mine := testdb.Pool(t, parsed.String())
	testdb.Exec(t, mine, printed(t))
	finished(t, mine)
}

// On a server of its own, since the roles belong to the server, and are there on that of the other tests.
func TestRolesThatComeLaterGetTheirRights(t *testing.T) {
	testdb.Long(t, "TestDatabasesOfOneServerShareGEMsRoles")
	t.Parallel()
	server := serverOf(t)
	admin := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, admin, "create role migrator login password 'm'")
	testdb.Exec(t, admin, "create database gem owner migrator")
	u, err := url.Parse(server.URL("gem"))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("migrator", "m")
	done, err := migrations.Apply(t.Context(), u.String(), migrations.Options{})
	if notes := strings.Join(done.Notes, "; "); err != nil || !strings.Contains(notes, "gem_worker was not created") ||
		!strings.Contains(notes, "gem_monitor was not created") ||
		!strings.Contains(notes, "gem_mcp was not created") {
		t.Fatalf("%v, with these notes: %s", err, notes)
	}
	all := strings.Fields("gem_worker gem_monitor gem_operator gem_frontend gem_mcp gem_scheduler gem_handler")
	testdb.Exec(t, admin, "create role gem_worker nologin; create role gem_monitor nologin; create role gem_operator "+
		"nologin; create role gem_frontend nologin; create role gem_mcp nologin noinherit; "+
		"create role gem_scheduler nologin; create role gem_handler nologin noinherit; grant "+strings.Join(all, ", ")+" to migrator with admin option")
	mine := testdb.Pool(t, u.String())
	if _, err := mine.Exec(t.Context(), printed(t)); err == nil ||
		!strings.Contains(err.Error(), "role gem_worker: GEM would have to") {
		t.Errorf("the printed SQL takes roles that GEM did not make: %v", err)
	}
	var theirs *migrations.TakenError
	if err := migrations.Up(t.Context(), u.String()); !errors.As(err, &theirs) ||
		!strings.Contains(err.Error(), "--adopt-role "+strings.Join(slices.Sorted(slices.Values(all)), ",")) {
		t.Errorf("it takes roles that GEM did not make: %v", err)
	}
	done, err = migrations.Apply(t.Context(), u.String(),
		migrations.Options{AdoptRoles: all})
	if err == nil {
		t.Error("a role that may not comment on roles adopted them")
	}
	for _, role := range all {
		_, statement, ok := strings.Cut(err.Error(), "An administrator of the server can run: ")
		if !ok {
			t.Fatal(err)
		}
		testdb.Exec(t, admin, strings.ReplaceAll(statement, "gem_worker", role))
	}
	if done, err = migrations.Apply(t.Context(), u.String(), migrations.Options{}); err != nil || len(done.Applied) != 2 {
		t.Fatalf("with roles that are marked: %+v, %v", done.Applied, err)
	}
	for _, sql := range []string{
		"set role gem_worker; select gem.start_worker('w', 1, '', '', '1 hour'); select gem.claim('w', 1, true); select " +
			"gem.heartbeat('w', '1 hour', '{}', '{}', true)",
		"set role gem_monitor; select * from gem.queue; select * from gem.workers",
		"set role gem_operator; select * from gem.queue; select * from core_tool_calls; select * from " +
			"gem.operator_cancel('{}', 'ada')",
		"set role gem_mcp; select gem.ended('{}'); set role gem_frontend; select enqueue_tool_call('a.b') where false",
	} {
		testdb.Exec(t, mine, sql)
	}
}

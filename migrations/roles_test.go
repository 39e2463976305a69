package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/internal/pgserver"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// as is a pool on the same database as a new role that is a member of gem_worker.
func as(t *testing.T, owner *pgxpool.Pool, databaseURL string) *pgxpool.Pool {
	t.Helper()
	role := "gem_test_" + strings.ToLower(strings.NewReplacer("/", "_").Replace(t.Name()))
	role = role[:min(len(role), 60)]
	insert(t, owner, fmt.Sprintf("create role %s login password 'worker' in role gem_worker", role))
	dropAtEnd(t, databaseURL, "drop role "+role)
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "worker")
	return testdb.Pool(t, u.String())
}

// dropAtEnd runs a statement when the test's own pools that are opened after it are closed. Roles belong to the whole server.
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
	insert(t, owner, "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 4)")
	for _, sql := range []string{
		"select max(version) from gem.migrations",
		"select * from gem.record_registry('1', repeat('a', 64), '{}')",
		"select * from gem.record_rules('1', repeat('a', 64), '{}', '1 hour')",
		"select * from gem.record_routes('1', repeat('a', 64), '{}')",
		"select gem.start_worker('w', 5, '', '1', '1 hour', '{}', '1')",
		"select gem.want_wake('w', true)", "select gem.count_outcomes(10)",
		"select * from gem.claim('w', 4, true)",
		"select * from gem.heartbeat('w', '1 hour', '{}', '{}', true)",
		"select (gem.hold_key(id, 1, 'w', 'k')).verdict from (select id from core_tool_calls order by seq limit 1) c",
		`select gem.llm_end(b.id, 'done', null, 200, null, null, 1, 1, 0, 0, 0, 'provider', 1, null, 1, 1, 0, null, false) from (select c.id from core_tool_calls c order by seq limit 1) c,
			gem.llm_begin(c.id, 1, 'main', 'default', '1', null, '[{"arm": "x", "provider": "p", "model": "m", "reserve": 1, "priced": true, "estimated_input": 1,
				"budgets": [{"name": "all", "period": "day", "limit": 9}]}]') b`,
		"select * from core_llm_requests", "select * from gem.llm_arm_states('{x}')",
		"select gem.progress('[]')",
		"select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from (select id from core_tool_calls order by seq limit 1) c",
		"select gem.retry(id, 1, 'w', '{}', 3, '1 s') from (select id from core_tool_calls order by seq offset 1 limit 1) c",
		"select gem.release(id, 1, 'w') from (select id from core_tool_calls order by seq offset 2 limit 1) c",
		"select * from core_tool_receipts",
		"select * from core_tool_events",
		"insert into leads (name) values ('Ada')",
		"update leads set name = 'Grace'",
		"select gem.stop_worker('w')",
	} {
		insert(t, db, sql)
	}
	var n int
	if err := db.QueryRow(t.Context(), "select count(*) from core_tool_events where event = 'claimed'").Scan(&n); err != nil || n != 4 {
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
	insert(t, owner, "insert into core_tool_calls (tool_name) values ('a.b')")
	insert(t, owner, "select gem.claim('w', 1, true)")
	db := as(t, owner, u)
	for what, sql := range map[string]string{
		"a second receipt":                 "insert into core_tool_receipts (id, created_at, call_id, tool_name, status, result, attempt) select gen_random_uuid(), now(), id, 'a.b', 'succeeded', '{}', 1 from core_tool_calls",
		"a final status without a receipt": "update core_tool_calls set status = 'succeeded'",
		"a forged attempt":                 "update core_tool_calls set attempt = 7",
		"another attempt's end":            "select gem.finish(id, 2, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls where status = 'running'",
		"another worker's call":            "select gem.finish(id, 1, 'v', 'succeeded', '{}', '{}', '1') from core_tool_calls where status = 'running'",
		"a changed receipt":                "update core_tool_receipts set result = '{}'",
		"a deleted receipt":                "delete from core_tool_receipts",
		"no receipts":                      "truncate core_tool_receipts",
		"a changed event":                  "update core_tool_events set event = 'queued'",
		"a forged event":                   "insert into core_tool_events (call_id, seq, at, event, attempt) select id, 9, now(), 'claimed', 1 from core_tool_calls",
		"a deleted call":                   "delete from core_tool_calls",
		"a new call":                       "insert into core_tool_calls (tool_name) values ('a.b')",
		"a heartbeat by hand":              "update core_workers set alive_until = now() + interval '1 year'",
		"a rewritten registry":             "update core_registry_versions set sha256 = repeat('b', 64)",
		"recovery without a heartbeat":     "select gem.recover('w', null)",
		"a woken call":                     "select gem.wake_waiting('k', 1, 'w')",
		"a deleted lead":                   "delete from leads",
		"a disabled guard":                 "alter table core_tool_receipts disable trigger all",
		"a replica":                        "set session_replication_role = replica",
		"a table":                          "create table gem.mine ()",
	} {
		_, err := db.Exec(t.Context(), sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || (pgErr.Code != "42501" && pgErr.Code != "GM001") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Without the right to create roles, the migrations work all the same, and workers connect as the owner.
func TestMigrationsNeedNoRightToCreateRoles(t *testing.T) {
	t.Parallel()
	u := testdb.NewEmpty(t)
	db := testdb.Pool(t, u)
	insert(t, db, "create role gem_test_owner login password 'owner'")
	var name string
	if err := db.QueryRow(t.Context(), "select current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	dropAtEnd(t, u, fmt.Sprintf("alter database %q owner to current_user; drop owned by gem_test_owner cascade; drop role gem_test_owner", name))
	insert(t, db, fmt.Sprintf("alter database %q owner to gem_test_owner", name))
	insert(t, db, "grant all on schema public to gem_test_owner")
	parsed, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword("gem_test_owner", "owner")
	mine := testdb.Pool(t, parsed.String())
	insert(t, mine, printed(t))
	finished(t, mine)
}

// On a server of its own, since the roles belong to the server, and are there on that of the other tests.
func TestRolesThatComeLaterGetTheirRights(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin := testdb.Pool(t, server.URL("postgres"))
	insert(t, admin, "create role migrator login password 'm'")
	insert(t, admin, "create database gem owner migrator")
	u, err := url.Parse(server.URL("gem"))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("migrator", "m")
	done, err := migrations.Apply(t.Context(), u.String())
	if notes := strings.Join(done.Notes, "; "); err != nil || !strings.Contains(notes, "gem_worker was not created") || !strings.Contains(notes, "gem_monitor was not created") {
		t.Fatalf("%v, with these notes: %s", err, notes)
	}
	insert(t, admin, "create role gem_worker nologin; create role gem_monitor nologin; grant gem_worker, gem_monitor to migrator")
	mine := testdb.Pool(t, u.String())
	insert(t, mine, printed(t))
	for _, sql := range []string{
		"set role gem_worker; select gem.start_worker('w', 1, '', '', '1 hour'); select gem.claim('w', 1, true); select gem.heartbeat('w', '1 hour', '{}', '{}', true)",
		"set role gem_monitor; select * from gem.queue; select * from gem.workers",
	} {
		insert(t, mine, sql)
	}
}

package deploy_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/pgserver"
	"github.com/jackc/pgx/v5"
)

// sqlOfOperations are the blocks of SQL of docs/operations.md: those with alerts, and the others.
func sqlOfOperations(t *testing.T) (alerts, others []string) {
	t.Helper()
	for _, found := range regexp.MustCompile("(?s)\n *```sql\n(.*?)\n *```").FindAllStringSubmatch(readFile(t, "docs/operations.md"), -1) {
		if strings.HasPrefix(found[1], "--") {
			for query := range strings.SplitSeq(strings.TrimSuffix(found[1], ";"), ";\n") {
				alerts = append(alerts, query)
			}
		} else {
			others = append(others, found[1])
		}
	}
	if len(alerts) < 7 || len(others) < 6 {
		t.Fatalf("docs/operations.md has %d alerts and %d other blocks of SQL", len(alerts), len(others))
	}
	return alerts, others
}

// migrated is a connection to the database of a server of its own, as the owner.
func migrated(t *testing.T) *pgx.Conn {
	t.Helper()
	server := startServer(t, pgserver.Options{})
	if code, out := gem(t, []string{"DATABASE_URL=" + server.URL("postgres")}, "migrate"); code != 0 {
		t.Fatal(out)
	}
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestTheSQLOfOperationsRuns(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	_, blocks := sqlOfOperations(t)
	for _, block := range blocks {
		if _, err := conn.Exec(t.Context(), block); err != nil {
			t.Errorf("%v:\n%s", err, block)
		}
	}
}

// In one transaction, whose time is one moment, so that no day can end in between.
func TestAlertsAreSilentUntilSomethingIsWrong(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	alerts, _ := sqlOfOperations(t)
	clock := func(time string) string {
		return "create or replace function gem.now() returns timestamptz language sql volatile as 'select " + time + "'"
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%v:\n%s", err, sql)
		}
	}
	// raised returns which alerts have rows, for a dashboard.
	raised := func() (on []string) {
		t.Helper()
		exec("set local role gem_monitor")
		for _, alert := range alerts {
			rows, err := conn.Query(t.Context(), alert)
			if err != nil {
				t.Fatal(err)
			}
			has := rows.Next()
			rows.Close()
			if rows.Err() != nil {
				t.Fatalf("%v:\n%s", rows.Err(), alert)
			}
			if has {
				on = append(on, alert)
			}
		}
		exec("reset role")
		return on
	}

	exec("begin")
	exec(clock("pg_catalog.now()"))
	exec(`select gem.record_registry('1', repeat('a', 64), '{"tools": [{"name": "a.b", "timeout_ms": 30000}]}')`)
	exec("select gem.start_worker('w', 50, '', '1', '1 min')")
	exec("insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 30)")
	exec("select gem.claim('w', 26, true)")
	exec(`select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from (select id from core_tool_calls where status = 'running' limit 20) c`)
	if on := raised(); len(on) > 0 {
		t.Errorf("with a worker that lives, and calls that end, these have rows:\n%s", strings.Join(on, "\n\n"))
	}

	exec(`select gem.finish(id, 1, 'w', 'failed', '{"error": {"error_code": "outcome_unknown", "message": "m"}}', '{}', '1')
		from (select id from core_tool_calls where status = 'running' limit 3) c`)
	exec(`select gem.finish(id, 1, 'w', 'not_configured', '{"status": "not_configured", "reason": "r", "required_env": [], "next_steps": []}', '{}', '1')
		from (select id from core_tool_calls where status = 'running' limit 1) c`)
	exec(`select gem.finish(id, 1, 'w', 'failed', '{"error": {"error_code": "rule_error", "message": "m"}}', '{}', '1')
		from (select id from core_tool_calls where status = 'running' limit 1) c`)
	exec(clock("pg_catalog.now() + interval ''10 minutes''"))
	if on := raised(); len(on) != len(alerts) {
		t.Errorf("%d of %d alerts have rows:\n%s", len(on), len(alerts), strings.Join(on, "\n\n"))
	}
}

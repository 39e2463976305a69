package deploy_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

// sqlOfOperations returns the SQL blocks of docs/operations.md: those with alerts, and the others.
func sqlOfOperations(t *testing.T) (alerts, others []string) {
	t.Helper()
	for _, found := range regexp.MustCompile("(?s)\n *```sql\n(.*?)\n *```").
		FindAllStringSubmatch(readFile(t, "docs/operations.md"), -1) {
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

// migrated returns a connection to the database of a private server, as the owner.
func migrated(t *testing.T) *pgx.Conn {
	t.Helper()
	server := testdb.Private(t, pgserver.Options{})
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

// One transaction has one time, so no day can end in between.
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
	// raised returns the alerts that have rows, as a dashboard would.
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
	exec(`select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1')
		from (select id from core_tool_calls where status = 'running' limit 20) c`)
	if on := raised(); len(on) > 0 {
		t.Errorf("with a worker that lives, and calls that end, these have rows:\n%s", strings.Join(on, "\n\n"))
	}

	exec(`select gem.finish(id, 1, 'w', 'failed', '{"error": {"error_code": "outcome_unknown", "message": "m"}}', '{}',
		'1')
		from (select id from core_tool_calls where status = 'running' limit 3) c`)
	exec(`select gem.finish(id, 1, 'w', 'not_configured',
		'{"status": "not_configured", "reason": "r", "required_env": [], "next_steps": []}', '{}', '1')
		from (select id from core_tool_calls where status = 'running' limit 1) c`)
	exec(`select gem.finish(id, 1, 'w', 'failed', '{"error": {"error_code": "rule_error", "message": "m"}}', '{}', '1')
		from (select id from core_tool_calls where status = 'running' limit 1) c`)
	exec(`insert into gem.epoch_calls select epoch, gen_random_uuid(), 1, 'w', 'a.b', 'ran_twice', null, 'succeeded', null, at
		from gem.epochs`)
	exec(clock("pg_catalog.now() + interval ''10 minutes''"))
	if on := raised(); len(on) != len(alerts) {
		t.Errorf("%d of %d alerts have rows:\n%s", len(on), len(alerts), strings.Join(on, "\n\n"))
	}
}

// The statement that ends many calls ends only the calls that it describes, in batches.
func TestTheStatementOfOperationsEndsManyCalls(t *testing.T) {
	t.Parallel()
	conn := migrated(t)
	_, blocks := sqlOfOperations(t)
	found := slices.IndexFunc(blocks, func(b string) bool { return strings.Contains(b, "the campaign was stopped") })
	if found < 0 {
		t.Fatal("docs/operations.md has no statement that ends many calls")
	}
	if _, err := conn.Exec(t.Context(), `
		select gem.start_worker('w', 9, '', '', '1 hour');
		insert into core_tool_calls (tool_name) select 'comms.send_email' from generate_series(1, 3);
		select gem.claim('w', 3, true);
		insert into core_tool_calls (tool_name) select 'comms.send_email' from generate_series(1, 600);
		insert into core_tool_calls (tool_name) select 'leads.create' from generate_series(1, 5);
		set session_replication_role = replica;
		update core_tool_calls set created_at = created_at - interval '2 hours';
		set session_replication_role = origin;
		insert into core_tool_calls (tool_name) select 'comms.send_email' from generate_series(1, 7)`); err != nil {
		t.Fatal(err)
	}
	for run, want := range []string{"cancelled 497, requested 3", "cancelled 103", ""} {
		rows, err := conn.Query(t.Context(), strings.TrimSuffix(blocks[found], ";"))
		if err != nil {
			t.Fatal(err)
		}
		outcomes, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (said string, err error) {
			var outcome string
			var n int
			err = row.Scan(&outcome, &n)
			return fmt.Sprintf("%s %d", outcome, n), err
		})
		if got := strings.Join(outcomes, ", "); err != nil || got != want {
			t.Errorf("run %d: %s (%v), want %s", run+1, got, err, want)
		}
	}
	var left string
	if err := conn.QueryRow(t.Context(), `select string_agg(said, ', ' order by said) from (
		select concat_ws(' ', tool_name, status, count(*), case
			when bool_and(cancel_requested_at is not null) then 'asked' end) as said
		from core_tool_calls where status <> 'failed' group by tool_name, status) c`).Scan(&left); err != nil ||
		left != "comms.send_email queued 7, comms.send_email running 3 asked, leads.create queued 5" {
		t.Errorf("what is left: %s (%v)", left, err)
	}
}

package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// spoken is what the worker of a schema version says to the database, word for word, in the life of a few calls. During a
// deploy the workers of the version before go on while the next migration is applied and afterwards, so no migration may
// change what these statements do. A list is never changed once its version was released; a worker that speaks otherwise
// gets a new one, under the schema version that it needs.
//
// {call} stands for the id of the call that was claimed last.
var spoken = map[int64][]string{
	2: {
		"select sha256, registry::text from gem.record_registry('1', repeat('a', 64), '{}')",
		"select gem.start_worker('old', 10, 'dev', '1', '5 s')",
		"select gem.want_wake('old', true)",
		claimed, "select verdict, receipt_id::text, result::text from gem.hold_key('{call}', 1, 'old', 'k')",
		"select gem.finish('{call}', 1, 'old', 'succeeded', '{}', '{}', '1', null)::text",
		claimed, "select gem.retry('{call}', 1, 'old', ('{\"error\": {}}'::jsonb) -> 'error', 3, make_interval(secs => 60.0))",
		claimed, "select gem.release('{call}', 1, 'old')",
		"select id::text, call_id::text, tool_name, status, coalesce(result, 'null')::text, coalesce(effects, '{}')::text, created_at, attempt, " +
			"worker_id, registry_version, idempotency_key, replay_of::text, coalesce(extract(epoch from duration) * 1000, 0)::float8 " +
			"from public.core_tool_receipts where call_id = '{call}'",
		"select call_id::text, attempt, cancel_requested from gem.heartbeat('old', '5 s')",
		"select gem.stop_worker('old')",
	},
	7: {
		"select sha256, registry::text from gem.record_registry('1', repeat('a', 64), '{}')",
		"select gem.start_worker('old', 10, 'dev', '1', '5 s')",
		"select call_id::text, attempt, verdict from gem.heartbeat('old', '5 s', '{}', '{}', true)",
		"select gem.want_wake('old', true)",
		claimed, "select verdict, receipt_id::text, result::text from gem.hold_key('{call}', 1, 'old', 'k')",
		"select gem.finish('{call}', 1, 'old', 'succeeded', '{}', '{}', '1', null)::text",
		claimed, "select gem.retry('{call}', 1, 'old', ('{\"error\": {}}'::jsonb) -> 'error', 3, make_interval(secs => 60.0))",
		claimed, "select call_id::text, attempt, verdict from gem.heartbeat('old', '5 s', '{{call}}', '{1}', false)",
		"select gem.release(a.call_id, a.attempt, 'old') from unnest('{{call}}'::uuid[], '{1}'::integer[]) as a (call_id, attempt)",
		"select gem.stop_worker('old')",
	},
	9: {
		"select sha256, registry::text from gem.record_registry('1', repeat('a', 64), '{}')",
		"select gem.start_worker('old', 10, 'dev', '1', '5 s')",
		"select call_id::text, attempt, verdict from gem.heartbeat('old', '5 s', '{}', '{}', true)",
		"select gem.want_wake('old', true)",
		"select gem.count_outcomes(10000)",
		claimedTraced, "select verdict, receipt_id::text, result::text from gem.hold_key('{call}', 1, 'old', 'k')",
		"select gem.finish('{call}', 1, 'old', 'succeeded', '{}', '{}', '1', null)::text",
		claimedTraced, "select gem.retry('{call}', 1, 'old', ('{\"error\": {}}'::jsonb) -> 'error', 3, make_interval(secs => 60.0))",
		claimedTraced, "select call_id::text, attempt, verdict from gem.heartbeat('old', '5 s', '{{call}}', '{1}', false)",
		"select gem.release(a.call_id, a.attempt, 'old') from unnest('{{call}}'::uuid[], '{1}'::integer[]) as a (call_id, attempt)",
		"select gem.stop_worker('old')",
	},
}

const claimed = `select id::text, attempt, tool_name, input, idempotency_key, session_id, created_by, priority, run_at, seq, retries, losses, cancel_requested
	from gem.claim('old', 1, true, '{}')`

const claimedTraced = `select id::text, attempt, tool_name, input, idempotency_key, session_id, created_by, priority, run_at, seq, retries, losses, cancel_requested,
	traceparent, waited from gem.claim('old', 1, true, '{}')`

func TestAWorkerOfAnEarlierVersionGoesOn(t *testing.T) {
	t.Parallel()
	newest, err := migrations.Newest()
	if err != nil {
		t.Fatal(err)
	}
	for version, statements := range spoken {
		t.Run(fmt.Sprint("the worker of version ", version), func(t *testing.T) {
			t.Parallel()
			// Before each statement in turn, the newer migrations are applied to the database that the worker works on.
			for upgrade := range len(statements) + 1 {
				db := testdb.Pool(t, testdb.NewEmpty(t))
				all := files(t)
				for _, sql := range all[:version] {
					insert(t, db, sql)
				}
				insert(t, db, "insert into core_tool_calls (tool_name) values ('a.b'), ('a.b'), ('a.b')")
				speak(t, db, statements, upgrade, all[version:newest])
				var moved int
				err := db.QueryRow(t.Context(), `select count(*) from core_tool_events where event in ('succeeded', 'retried', 'released')`).Scan(&moved)
				if err != nil || moved != 3 {
					t.Errorf("upgraded before statement %d, %d calls were moved: %v", upgrade, moved, err)
				}
			}
		})
	}
}

// speak runs the statements on one connection, which has prepared them before, as a worker's has.
func speak(t *testing.T, db *pgxpool.Pool, statements []string, upgrade int, newer []string) {
	t.Helper()
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	call := ""
	for i, sql := range statements {
		if i == upgrade {
			for _, migration := range newer {
				insert(t, db, migration)
			}
		}
		rows, err := conn.Query(t.Context(), strings.ReplaceAll(sql, "{call}", call))
		if err == nil {
			var first []any
			first, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
			if strings.Contains(sql, "gem.claim") && err == nil {
				call = first[0].(string)
			}
			if strings.Contains(sql, "gem.heartbeat") || strings.Contains(sql, "core_tool_receipts") {
				err = nil // it may hold nothing
			}
		}
		if err != nil {
			t.Fatalf("upgraded before statement %d, statement %d, %s: %v", upgrade, i, sql, err)
		}
	}
}

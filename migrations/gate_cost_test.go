package migrations_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// What a gate reads does not grow with what its counters, or the session, have behind them, whatever Postgres believes
// of the tables.
func TestAGateReadsAFewRowsHoweverLongItsCountersAre(t *testing.T) {
	t.Parallel()
	behind := many(100_000)
	const (
		runs = `insert into gem.rule_runs (counter, n, at, call_id, amount, total, rules_version)
			select c, n, now() - (%d - n) * interval '1 ms', gen_random_uuid(), 1, n, '1' from generate_series(1, %[1]d) n,
				unnest(array['counted', 'summed']) c`
		past = `set session_replication_role = replica;
			insert into core_tool_calls (id, tool_name, status, attempt, claimed_by, claimed_at, events, run_at, created_at,
				updated_at, session_id, created_by)
				select gen_random_uuid(), 'a.b', 'succeeded', 1, 'w', now(), 2, now(), now(), now() - (i || ' ms')::interval, 's',
					'ada' from generate_series(1, %d) i;
			set session_replication_role = origin`
		queued = `insert into core_tool_calls (tool_name, session_id, created_by) select 'a.b', 's', 'ada'
			from generate_series(1, 200)`
	)
	full, half := fmt.Sprintf(runs, behind), strconv.Itoa(behind/2)
	ended := fmt.Sprintf(past, many(20_000))
	checks := map[string]struct {
		check string
		rows  int // of the counter: the last, the oldest of the window, and what a receipt needs
	}{
		"a limit that is full": {`{"kind": "count", "action": "block", "counter": "counted", "max": "` + half +
			`", "within_ms": 86400000}`, 10},
		"a limit with room": {`{"kind": "count", "action": "block", "counter": "counted", "max": "` + half +
			`", "within_ms": 1}`, 10},
		"a sum": {`{"kind": "sum", "action": "block", "counter": "summed", "max": "` + half +
			`", "within_ms": 86400000, "add": "1"}`, 200},
		"what is required": {`{"kind": "requires", "action": "block", "tools": ["a.b"], "within_ms": 86400000}`,
			10},
		"what is required, not there": {`{"kind": "requires", "action": "block", "tools": ["a.c"], "within_ms": 86400000}`,
			10},
		"what must not be before": {`{"kind": "after", "action": "block", "tools": ["a.b"], "ended": ["failed", "approval_denied"]}`, 10},
	}
	for name, statistics := range map[string][]string{
		"never taken":                      {full, ended, queued},
		"taken when the tables were empty": {"analyze", full, ended, queued},
		"taken when all was there":         {full, ended, queued, "analyze"},
		"taken when no call was queued":    {full, ended, "analyze", queued},
		"taken when nothing was counted":   {ended, queued, "analyze", full},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off); alter table gem.rule_runs set "+
				"(autovacuum_enabled = off)")
			testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour')")
			for _, sql := range statistics {
				testdb.Exec(t, db, sql)
			}
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			for what, test := range checks {
				gate := "select gem.gate($1::text::uuid, 1, 'w', null, '[" + test.check + "]', '1', false, null)::text"
				for table, most := range map[string]int{"gem.rule_runs": test.rows, "core_tool_calls": 150} {
					read := 0
					for range 7 { // often enough for the plan that a connection keeps
						read = readsOf(t, conn.Conn(), table, gate, "select id::text from gem.claim('w', 1, true)")
					}
					if read > most {
						t.Errorf("%s read %d rows and index entries of %s", what, read, table)
					}
				}
			}
		})
	}
}

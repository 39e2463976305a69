package migrations_test

import (
	"context"
	"testing"

	"github.com/gemworker/gem/internal/testdb"
)

// What moves calls does not see those that wait for calls and times, however many there are.
func TestCallsThatWaitAreInNobodysWay(t *testing.T) {
	t.Parallel()
	const waiting = `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, status, attempt, events, steps, run_at, created_at, updated_at, waits_for, waits, need, wake_at, computed_key)
			select gen_random_uuid(), 'a.b', 'waiting', 1, 3, 1, now(), now(), now() - interval '1 hour', case when i % 2 = 0 then 'call' else 'time' end,
				'{x}', 1, case when i % 2 = 1 then now() + interval '1 day' end, 'k' || i from generate_series(1, 20000) i;
		set session_replication_role = origin`
	statements := map[string]string{
		"a claim":           "select count(*)::text from gem.claim('w', 10, true) where $1 <> ''",
		"a heartbeat":       "select count(*)::text from gem.heartbeat('w', '1 hour', array[$1::text::uuid], '{1}', false)",
		"a full heartbeat":  "select count(*)::text from gem.heartbeat('w', '1 hour', array[$1::text::uuid], '{1}', true)",
		"a look at timers":  "select gem.run_timers('w', 1000)::text where $1 <> ''",
		"a key":             "select gem.hold_key($1::text::uuid, 1, 'w', 'k')::text",
		"the end of a call": "select gem.finish($1::text::uuid, 1, 'w', 'succeeded', '{}', '{}', '1')::text",
		"a wait":            "select gem.wait($1::text::uuid, 1, 'w', '[]', 'time', '{nap}', 1, '{\"nap\": 1000}', null)::text",
		"a step":            "select gem.step($1::text::uuid, 1, 'w', 'step', '{\"name\": \"x\"}', 0, false)::text",
	}
	for name, order := range map[string][]string{
		"with statistics":        {waiting, "analyze"},
		"with those from before": {"analyze", waiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			insert(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
			insert(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}'); insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 100)")
			for _, sql := range order {
				insert(t, db, sql)
			}
			conn, err := db.Acquire(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			for what, sql := range statements {
				read := 0
				for range 7 {
					read = reads(t, conn.Conn(), sql)
				}
				if read > 150 {
					t.Errorf("%s read %d rows and index entries", what, read)
				}
			}
		})
	}
}

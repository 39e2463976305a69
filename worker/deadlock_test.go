package worker_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/worker"
)

// Two workers admit and end calls of the same counters, keys and parents, 480 and 10,080 in the long form.
func TestTwoWorkersWithTheSameCountersKeysAndParentsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	families := 4
	if os.Getenv("GEM_TEST_LONG") != "" {
		families = 84
	}
	const children, keyed, most = 60, 60, 100 // of each family, with it, and calls to lab.write that may run
	env := startRuled(t, func(o *worker.Options) {
		o.Concurrency = 10
		ruledBy(t,
			fmt.Sprintf(`{"name": "writes", "tools": ["lab.write"], "action": "block", "limit": {"max": %d, "within": "1h"}}`,
				most),
			`{"name": "all", "tools": ["lab.*"], "action": "block", "limit": {"max": 1000000, "within": "1h"}}`)(o)
	})
	first, second := env.StartWorker(), env.StartWorker()
	var script, names strings.Builder
	for i := range children {
		fmt.Fprintf(&script, "start c%d lab.write;", i)
		fmt.Fprintf(&names, " c%d", i)
	}
	var ids []string
	for family := range families {
		ids = append(ids, env.Insert(handlertest.Call{Tool: "tree.run",
			Input: task(Task{Text: script.String() + "all" + names.String()}), CreatedBy: fmt.Sprint("caller ", family)}))
		for i := range keyed {
			ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.nothing", CreatedBy: fmt.Sprint("caller ", i%7),
				Input: task(Task{Text: "x", Key: fmt.Sprint("key ", i%3)})}))
		}
	}
	for _, id := range ids {
		env.Await(id)
	}
	env.Until("all children to end", func() bool {
		return number(t, env, "select count(*) from core_tool_receipts where tool_name = 'lab.write'") == families*children
	})
	first.Stop()
	second.Stop() // so that Postgres has counted what their connections met
	for what, check := range map[string]struct {
		sql  string
		want int
	}{
		"deadlocks": {"select deadlocks from pg_stat_database where datname = current_database()", 0},
		"writes":    {"select count(*) from core_tool_receipts where tool_name = 'lab.write' and status = 'succeeded'", most},
		"limits reached": {"select count(*) from core_tool_receipts where result #>> '{error,error_code}' = 'limit_reached'",
			families*children - most},
		"runs of a key": {"select count(*) from core_tool_receipts where tool_name = 'lab.nothing' and replay_of is null", 3},
		"ends reported": {"select count(*) from core_tool_events where event = 'returned'", families * children},
	} {
		if n := number(t, env, check.sql); n != check.want {
			t.Errorf("%d %s, want %d", n, what, check.want)
		}
	}
	sound(t, env)
}

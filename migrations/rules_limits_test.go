package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/rules"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// running makes calls that run, and returns their attempts.
func running(t *testing.T, db *pgxpool.Pool, calls int) (attempts []store.Attempt) {
	t.Helper()
	testdb.Exec(t, db, fmt.Sprintf(`insert into core_tool_calls (tool_name) select 't.a' from generate_series(1, %d);
		update core_tool_calls set status = 'running', attempt = 1, claimed_by = 'w', claimed_at = gem.now()
			where status = 'queued'`, calls))
	for _, id := range texts(t, db, "select id::text from core_tool_calls where status = 'running'") {
		attempts = append(attempts, store.Attempt{CallID: id, Number: 1, WorkerID: "w"})
	}
	return attempts
}

// gateAll brings calls to the gate, so many at once, and counts what they come to.
func gateAll(t *testing.T, url string, attempts []store.Attempt, atOnce int,
	checks func(i int) []rules.Check) map[rules.Outcome]int {
	t.Helper()
	var pools []*pgxpool.Pool
	for range atOnce {
		pools = append(pools, testdb.Pool(t, url))
	}
	outcomes := make([]rules.Outcome, len(attempts))
	var g errgroup.Group
	for lane := range atOnce {
		g.Go(func() error {
			for i := lane; i < len(attempts); i += atOnce {
				_, answer, err := store.Gate{Checks: checks(i), Version: "1"}.Do(context.Background(), pools[lane], attempts[i])
				if err != nil {
					return err
				}
				outcomes[i] = answer.Outcome
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	count := map[rules.Outcome]int{}
	for _, o := range outcomes {
		count[o]++
	}
	return count
}

func TestALimitHoldsForCallsThatComeAtOnce(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	sum := rules.Check{Rule: "s", Action: rules.Block, Kind: rules.Sum, Counter: "s/sum:/n", Max: "7.5",
		WithinMS: 3_600_000, Add: "0.5"}
	count := rules.Check{Rule: "c", Action: rules.Block, Kind: rules.Count, Counter: "c/calls", Max: "5",
		WithinMS: 3_600_000}
	other := sum
	other.Rule, other.Counter, other.Max = "o", "o/sum:/n", "100"
	got := gateAll(t, url, running(t, db, 200), 8, func(i int) []rules.Check {
		if i < 100 {
			return []rules.Check{sum}
		}
		return []rules.Check{other, count} // what count stops is not in the sum
	})
	if got[rules.Passed] != 15+5 || got[rules.Stopped] != 180 {
		t.Errorf("got %v", got)
	}
	for counter, want := range map[string]string{"c/calls": "1 2 3 4 5", "o/sum:/n": "1 2 3 4 5",
		"s/sum:/n": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"} {
		if n := texts(t, db, fmt.Sprintf("select r.n::text from gem.rule_runs r where r.counter = '%s' order by r.n",
			counter)); strings.Join(n, " ") != want {
			t.Errorf("%s has the rows %v", counter, n)
		}
	}
	if total := number(t, db, "select max(total) from gem.rule_runs"); total != 7.5 {
		t.Errorf("a sum is %v", total)
	}
}

// No second has more than its calls, and each call has one turn.
func TestCallsThatComeAtOnceGetTurns(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	pace := []rules.Check{{Rule: "p", Action: rules.Wait, Kind: rules.Count, Counter: "p/starts", Max: "5",
		WithinMS: 3_600_000}}
	got := gateAll(t, url, running(t, db, 60), 8, func(int) []rules.Check { return pace })
	if got[rules.Passed] != 5 || got[rules.Delayed] != 55 {
		t.Errorf("got %v", got)
	}
	if n := number(t, db, `select count(*) from gem.rule_runs r join gem.rule_runs before on before.counter = r.counter
		and before.n = r.n - 5
		where r.at - before.at < '1 hour'`); n != 0 {
		t.Errorf("%v turns come too early", n)
	}
	if n := number(t, db, `select count(*) from core_tool_calls c join gem.rule_runs r on r.call_id = c.id
		where c.status = 'queued' and c.run_at = r.at`); n != 55 {
		t.Errorf("%v calls are in the queue for their turn", n)
	}
}

// The counters of a call are asked in an order of their own, and not in that of the rules.
func TestCallsOfManyCountersDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	random := rand.New(rand.NewPCG(1, 2))
	var checks [][]rules.Check
	for range 400 {
		var of []rules.Check
		for _, i := range random.Perm(8)[:1+random.IntN(6)] {
			of = append(of, rules.Check{Rule: fmt.Sprint("r", i), Action: []rules.Action{rules.Warn, rules.Wait}[i%2],
				Kind:    rules.Count,
				Counter: fmt.Sprintf("r%d/calls", i), Max: json.Number(fmt.Sprint(1 + i)), WithinMS: 5})
		}
		checks = append(checks, of)
	}
	gateAll(t, url, running(t, db, len(checks)), 16, func(i int) []rules.Check { return checks[i] })
	if n := number(t, db, "select count(distinct call_id) from gem.rule_runs"); n != 400 {
		t.Errorf("%v calls were counted", n)
	}
	if n := number(t, db, "select count(*) from (select at < lag(at) over (partition by counter order by n) as falls "+
		"from gem.rule_runs) r where r.falls"); n != 0 {
		t.Errorf("the time of counters fell %v times", n)
	}
}

package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"
)

// toBegin is a request of some call, for either side.
type toBegin struct {
	call          int
	label         string
	maxCost       *provider.Money
	targets       []ledger.Target
	locked, stale bool // its call is locked by another transaction, or no longer held
}

// Requests that begin together get the same targets, reasons and rows as one by one in the same order.
func TestRequestsBeginTogetherAsOneByOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	histories := 0
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		histories++
		requests := drawRequests(rt)
		alone := b.beginAll(rt, fmt.Sprintf("alone%d-", histories), requests, false)
		together := b.beginAll(rt, fmt.Sprintf("together%d-", histories), requests, true)
		if diff := cmp.Diff(alone, together); diff != "" {
			rt.Fatalf("-alone +together:\n%s", diff)
		}
		for _, a := range alone {
			for _, why := range []string{"cooldown", "busy", "max_cost", `"budget"`, "unpriced", "not held"} {
				if strings.Contains(a, why) {
					seen[why]++
				}
			}
		}
	})
	b.addsUp()
	t.Log(seen)
	for _, why := range []string{"busy", "max_cost", `"budget"`, "unpriced", "not held"} {
		if seen[why] == 0 {
			t.Errorf("no request was refused for: %s", why)
		}
	}
}

func drawRequests(rt *rapid.T) (all []toBegin) {
	calls := rapid.IntRange(1, 4).Draw(rt, "calls")
	locked := rapid.IntRange(0, 2*calls).Draw(rt, "locked") // a higher number is none
	stale := rapid.IntRange(0, 2*calls).Draw(rt, "stale")
	for range rapid.IntRange(2, 8).Draw(rt, "requests") {
		r := toBegin{call: rapid.IntRange(0, calls-1).Draw(rt, "call"), label: rapid.SampledFrom([]string{"main",
			"judge"}).Draw(rt, "label")}
		r.stale = r.call == stale
		r.locked = !r.stale && r.call == locked
		if rapid.IntRange(0, 3).Draw(rt, "limited") == 0 {
			r.maxCost = new(provider.Money(rapid.IntRange(0, 12).Draw(rt, "max cost")))
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 1, 3, rapid.ID).Draw(rt,
			"targets") {
			of := target(name, provider.Money(rapid.IntRange(1, 6).Draw(rt, "reserve")))
			of.Priced = rapid.IntRange(0, 5).Draw(rt, "priced") > 0
			of.MaxConcurrent = rapid.IntRange(0, 2).Draw(rt, "most at once")
			for _, budget := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"all", "user", "none"}), 0, 2,
				rapid.ID).Draw(rt, "budgets") {
				of.Budgets = append(of.Budgets, ledger.Budget{Name: budget, Period: ledger.Day, Limit: map[string]provider.Money{
					"all": 25, "user": 9, "none": 0}[budget]})
			}
			r.targets = append(r.targets, of)
		}
		all = append(all, r)
	}
	return all
}

// beginAll begins the requests of one side, with its own calls, targets and budgets, and returns the answers and
// the rows. Those of locked calls come last, since they wait.
func (b *bench) beginAll(rt *rapid.T, side string, requests []toBegin, together bool) (told []string) {
	ctx := context.Background()
	ids := map[int]string{}
	begins := make([]ledger.Begin, len(requests))
	for i, r := range requests {
		if ids[r.call] == "" {
			ids[r.call] = b.running()
			if r.stale {
				b.run("select gem.release($1, 1, 'w')", ids[r.call])
			}
		}
		begins[i] = ledger.Begin{CallID: ids[r.call], Attempt: 1, Label: r.label, Route: "default", RoutesVersion: "1",
			MaxCost: r.maxCost}
		for _, of := range r.targets {
			of.Target = side + of.Target
			of.Budgets = append([]ledger.Budget(nil), of.Budgets...)
			for j := range of.Budgets {
				of.Budgets[j].Name = side + of.Budgets[j].Name
			}
			begins[i].Targets = append(begins[i].Targets, of)
		}
	}
	begun := make([]*ledger.Begun, len(requests))
	if together {
		tx, err := b.db.Begin(ctx)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }()
		items := make([]string, len(begins))
		for i, r := range begins {
			if items[i], err = r.Item(); err != nil || items[i] == "" {
				rt.Fatalf("no item: %v", err)
			}
			if requests[i].locked {
				if _, err := tx.Exec(ctx, "select from core_tool_calls where id = $1 for update", r.CallID); err != nil {
					rt.Fatal(err)
				}
			}
		}
		if begun, err = ledger.SendAll(ctx, b.db, items); err != nil {
			rt.Fatal(err)
		}
		if err := tx.Rollback(ctx); err != nil {
			rt.Fatal(err)
		}
	}
	told = make([]string, len(requests))
	for _, locked := range []bool{false, true} {
		for i, r := range begins {
			if requests[i].locked != locked {
				continue
			}
			if begun[i] != nil && (requests[i].locked || requests[i].stale) {
				rt.Errorf("request %d was begun, whose call was locked or not held", i)
			}
			if begun[i] == nil {
				if together && !requests[i].locked && !requests[i].stale {
					rt.Errorf("request %d was not begun with the others", i)
				}
				one, err := r.Send(ctx, b.db)
				if err != nil {
					told[i] = "not held: " + strings.ReplaceAll(err.Error(), r.CallID, "the call")
					continue
				}
				begun[i] = &one
			}
			begun[i].ID = 0
			text, err := json.Marshal(begun[i])
			if err != nil {
				rt.Fatal(err)
			}
			told[i] = strings.ReplaceAll(string(text), side, "")
		}
	}
	rows, err := b.db.Query(ctx, `select format('%s %s %s %s %s %s', array_position($2::uuid[], r.call_id), r.n, r.label,
		r.target, r.reserved, (select array_agg(s.budget order by s.budget) from gem.llm_spend s where s.id = any (r.spends)))
		from core_llm_requests r where starts_with(r.target, $1)
		union all select format('%s spent %s reserved %s of %s', budget, spent, reserved, requests) from gem.llm_spend
		where starts_with(budget, $1)
		union all select format('target %s %s', target, backoff) from gem.llm_targets where starts_with(target, $1)`,
		side, inOrder(ids))
	if err != nil {
		rt.Fatal(err)
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		rt.Fatal(err)
	}
	for i := range left {
		left[i] = strings.ReplaceAll(left[i], side, "")
	}
	slices.Sort(left)
	return append(told, left...)
}

func inOrder(ids map[int]string) (all []string) {
	for call := range 4 {
		if id := ids[call]; id != "" {
			all = append(all, id)
		}
	}
	return all
}

// The worker sends a request alone if an earlier attempt may have left others, which it closes first.
func TestOnlyRequestsOfFirstAttemptsBeginTogether(t *testing.T) {
	t.Parallel()
	if item, err := begin("c", 2, target("x", 1)).Item(); item != "" || err != nil {
		t.Errorf("%s %v", item, err)
	}
	b := newBench(t)
	call := b.running()
	testdb.Exec(t, b.db, "select gem.release($1, 1, 'w')", call)
	b.claim()
	item, err := begin(call, 1, target("x", 1)).Item()
	if err != nil {
		t.Fatal(err)
	}
	if begun, err := ledger.SendAll(t.Context(), b.db, []string{item}); err != nil || begun[0] != nil {
		t.Errorf("a request of an attempt that is over has begun: %+v %v", begun[0], err)
	}
}

// Workers that begin and end requests under the same budgets and to the same targets never wait for each other in a
// circle.
func TestRequestsOfTwoWorkersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	of := func(name string, budgets ...string) ledger.Target {
		to := target(name, 1)
		to.MaxConcurrent = 1000
		for _, budget := range budgets {
			to.Budgets = append(to.Budgets, ledger.Budget{Name: budget, Period: ledger.Day, Limit: 1000})
		}
		return to
	}
	targets := [][]ledger.Target{{of("x", "a", "b"), of("y", "c")}, {of("y", "c", "a")}, {of("z", "b"), of("x", "c")}}
	var group errgroup.Group
	for worker := range 4 {
		db := testdb.Pool(t, b.url)
		var calls []string
		for range 10 {
			calls = append(calls, b.running())
		}
		group.Go(func() error {
			for round := range 25 {
				items := make([]string, len(calls))
				for i, call := range calls {
					items[i], _ = begin(call, 1, targets[(worker+round+i)%3]...).Item()
				}
				all, err := ledger.SendAll(context.Background(), db, items)
				if err != nil {
					return err
				}
				for _, begun := range all {
					if begun == nil || begun.ID == 0 {
						return fmt.Errorf("a request was not begun: %+v", begun)
					}
					if _, err := done(begun.ID, 1).Settle(context.Background(), db); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil { // a deadlock is an error too
		t.Error(err)
	}
	b.addsUp()
	if got := b.value("select count(*) from core_llm_requests where status = 'done'"); got != "1000" {
		t.Errorf("%s requests", got)
	}
}

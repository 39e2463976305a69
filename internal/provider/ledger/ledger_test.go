package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// bench is a database whose clock stands still until it is set.
type bench struct {
	testing.TB
	url string
	db  *pgxpool.Pool
}

func newBench(t testing.TB) *bench {
	url := testdb.New(t)
	b := &bench{t, url, testdb.Pool(t, url)}
	b.run(`create table public.clock as select timestamptz '2030-01-15 10:30:00Z' as at`)
	b.run(`create or replace function gem.now() returns timestamptz
		language sql volatile as 'select at from public.clock'`)
	b.run("select gem.start_worker('w', 1000, '', '', '1 year')")
	return b
}

func (b *bench) run(sql string, args ...any) {
	b.Helper()
	if _, err := b.db.Exec(context.Background(), sql, args...); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// pass lets time pass.
func (b *bench) pass(d time.Duration) {
	b.Helper()
	b.run("update public.clock set at = at + $1", d)
}

// value is what a statement returns, as text.
func (b *bench) value(sql string, args ...any) (got string) {
	b.Helper()
	if err := b.db.QueryRow(context.Background(), "select coalesce(("+sql+")::text, 'null')",
		args...).Scan(&got); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return got
}

// running is a call that runs in its first attempt.
func (b *bench) running() string {
	b.Helper()
	var id string
	err := b.db.QueryRow(context.Background(), `insert into core_tool_calls (tool_name, created_by, session_id)
		values ('llm.chat', 'ada', 's') returning id::text`).Scan(&id)
	if err != nil {
		b.Fatal(err)
	}
	b.claim()
	return id
}

func (b *bench) claim() { b.Helper(); b.run("select gem.claim('w', 100, true)") }

// target is one with a price and no budget.
func target(name string, reserve provider.Money, budgets ...ledger.Budget) ledger.Target {
	return ledger.Target{Target: name, Provider: "p", Model: name + "-1", Reserve: reserve, Priced: true,
		EstimatedInput: 100,
		Budgets:        budgets}
}

func begin(call string, attempt int, targets ...ledger.Target) ledger.Begin {
	return ledger.Begin{CallID: call, Attempt: attempt, Label: "main", Route: "default", RoutesVersion: "1",
		Targets: targets}
}

// send begins a request, and says which target it got, or why none.
func (b *bench) send(r ledger.Begin) (ledger.Begun, string) {
	b.Helper()
	begun, err := r.Send(context.Background(), b.db)
	if err != nil {
		b.Fatal(err)
	}
	said := []string{begun.Target}
	for _, s := range begun.Skipped {
		said = append(said, strings.TrimSpace(fmt.Sprintf("%s %s %s", s.Target, s.Why, s.Reason)))
	}
	return begun, strings.Join(said, ", ")
}

func (b *bench) end(e ledger.End) bool {
	b.Helper()
	settled, err := e.Settle(context.Background(), b.db)
	if err != nil {
		b.Fatal(err)
	}
	return settled
}

func done(id int64, cost provider.Money) ledger.End {
	return ledger.End{ID: id, Status: ledger.Done, HTTPStatus: 200,
		Usage: provider.Usage{Input: 90, Output: 20, Known: true}, Cost: &cost,
		FirstContent: 200 * time.Millisecond, Took: 1200 * time.Millisecond}
}

func failed(id int64, kind provider.ErrorKind) ledger.End {
	return ledger.End{ID: id, Status: ledger.Failed, Kind: kind, Cost: new(provider.Money), Took: time.Second}
}

// spends are the rows of gem.llm_spend, and whether they add up.
func (b *bench) spends() string {
	b.Helper()
	return b.value("select string_agg(format('%s/%s/%s spent %s reserved %s requests %s', budget, subject, period, " +
		"spent, reserved, requests), '; ' order by budget, subject, period, starts) from gem.llm_spend")
}

// addsUp fails where the budgets are not the sum of their requests.
func (b *bench) addsUp() {
	b.Helper()
	if got := b.value(`select count(*) from gem.llm_spend s left join lateral (
		select coalesce(sum(coalesce(r.cost, r.reserved)) filter (where r.status <> 'sent'), 0) as spent,
			coalesce(sum(r.reserved) filter (where r.status = 'sent'), 0) as reserved, count(*) as requests
		from core_llm_requests r where s.id = any (r.spends)) sums on true
		where (s.spent, s.reserved, s.requests) is distinct
			from (sums.spent + s.pruned + (select coalesce(sum(k.amount), 0) from gem.llm_corrections k where k.spend = s.id),
				sums.reserved, sums.requests + s.pruned_requests)`); got != "0" {
		b.Errorf("%s budgets are not the sum of their requests: %s", got, b.spends())
	}
}

var today = ledger.Budget{Name: "all", Period: ledger.Day, Limit: 7 * provider.USD}

func TestARequestIsARowBeforeItIsSentAndIsSettledOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	month := ledger.Budget{Name: "user", Subject: "ada", Period: ledger.Month, Limit: 9 * provider.USD}
	begun, got := b.send(begin(call, 1, target("x", 2*provider.USD, today, month)))
	if got != "x" || begun.N != 1 || begun.ID == 0 {
		t.Fatalf("%s: %+v", got, begun)
	}
	if got, want := b.spends(), "all//day spent 0 reserved 2000000000 requests 1; user/ada/month spent 0 reserved "+
		"2000000000 requests 1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	e := done(begun.ID, provider.USD/2)
	e.RequestID, e.Model, e.ProviderCost = "req_1", "x-1-2030", new(provider.Money(3))
	b.pass(3 * time.Second)
	if !b.end(e) {
		t.Error("the first end was none")
	}
	e.Status, e.Cost = ledger.Failed, new(9*provider.USD)
	if b.end(e) {
		t.Error("the second end counted")
	}
	if got, want := b.spends(), "all//day spent 500000000 reserved 0 requests 1; user/ada/month spent 500000000 "+
		"reserved 0 requests 1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	rows, err := ledger.Requests(t.Context(), b.db, call)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	r := rows[0]
	if r.At.IsZero() || !r.EndedAt.Equal(r.At.Add(3*time.Second)) {
		t.Errorf("from %s to %s", r.At, r.EndedAt)
	}
	r.At, r.EndedAt = time.Time{}, time.Time{}
	if *r.Cost != provider.USD/2 || *r.ProviderCost != 3 {
		t.Errorf("it cost %s, and %s by its provider", r.Cost, r.ProviderCost)
	}
	r.Cost, r.ProviderCost = nil, nil
	want := ledger.Request{ID: begun.ID, CallID: call, Attempt: 1, N: 1, Label: "main", Tool: "llm.chat", Route: "default",
		RoutesVersion: "1", Target: "x", Provider: "p", Model: "x-1",
		CreatedBy: "ada", SessionID: "s", Status: ledger.Done, Reserved: 2 * provider.USD,
		Usage: provider.Usage{Input: 90, Output: 20, Known: true}, HTTPStatus: 200,
		RequestID: "req_1", Answered: "x-1-2030", FirstContent: 200 * time.Millisecond, Took: 1200 * time.Millisecond}
	if r != want {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
	b.addsUp()
}

// An end commits with the transaction of its caller, or not at all.
func TestAnEndIsPartOfItsTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	begun, _ := b.send(begin(call, 1, target("x", provider.USD, today)))
	for _, commit := range []bool{false, true} {
		tx, err := b.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if settled, err := done(begun.ID, 5).Settle(t.Context(), tx); err != nil || !settled {
			t.Fatal(settled, err)
		}
		var idle string // a worker that is frozen now must not hold its call for long
		if err := tx.QueryRow(t.Context(), "show idle_in_transaction_session_timeout").Scan(&idle); err != nil ||
			idle != "10s" {
			t.Error(idle, err)
		}
		if _, err := tx.Exec(t.Context(), `select gem.step($1, 1, 'w', 'step', '{"name": "main", "kind": "tx", "result": 1}',
			0, false)`, call); err != nil {
			t.Fatal(err)
		}
		want := "sent 0"
		if commit {
			want = "done 1"
			err = tx.Commit(t.Context())
		} else {
			err = tx.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := b.value("select r.status || ' ' || c.steps from core_llm_requests r join core_tool_calls c on c.id = " +
			"r.call_id"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	b.addsUp()
}

func TestABudgetHoldsForRequestsThatComeAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 50 {
		b.queue()
	}
	b.claim()
	calls := b.calls()
	if len(calls) != 50 {
		t.Fatalf("%d calls run", len(calls))
	}
	var began, over atomic.Int32
	ids := make([]int64, 50)
	atOnce(t, b.url, 16, 50, func(db *pgxpool.Pool, i int) error {
		begun, err := begin(calls[i], 1, target("x", provider.USD, today)).Send(context.Background(), db)
		if ids[i] = begun.ID; begun.ID != 0 {
			began.Add(1)
		} else if len(begun.Exceeded) == 1 && begun.Exceeded[0] == (ledger.Exceeded{Budget: "all",
			Limit: 7 * provider.USD, Reserved: 7 * provider.USD, ResetsAt: time.Date(2030, 1, 16, 0, 0, 0, 0, time.UTC)}) {
			over.Add(1)
		} else {
			t.Errorf("%+v, %v", begun, err)
		}
		return err
	})
	if began.Load() != 7 || over.Load() != 43 {
		t.Errorf("%d began and %d were over the budget", began.Load(), over.Load())
	}
	b.addsUp()
	// Two cost half: there is money for one more.
	for _, id := range ids {
		if id != 0 && over.Add(1) <= 45 {
			b.end(done(id, provider.USD/2))
		}
	}
	for _, want := range []string{"x", ", x budget"} {
		if _, got := b.send(begin(calls[0], 1, target("x", provider.USD, today))); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	b.pass(24 * time.Hour)
	if _, got := b.send(begin(calls[0], 1, target("x", provider.USD, today))); got != "x" {
		t.Errorf("on the next day: %q", got)
	}
	b.addsUp()
}

// queue inserts a call that waits to be claimed.
func (b *bench) queue() {
	b.Helper()
	b.run("insert into core_tool_calls (tool_name) values ('llm.chat')")
}

// calls are the calls that run.
func (b *bench) calls() (ids []string) {
	b.Helper()
	rows, _ := b.db.Query(context.Background(), "select id::text from core_tool_calls where status = 'running' order by "+
		"seq")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.Fatal(err)
	}
	return ids
}

// atOnce does something n times, on so many connections.
func atOnce(t *testing.T, url string, lanes, n int, do func(db *pgxpool.Pool, i int) error) {
	t.Helper()
	var pools []*pgxpool.Pool
	for range (lanes + 7) / 8 {
		pools = append(pools, testdb.Pool(t, url)) // of 8 connections
	}
	var g errgroup.Group
	for lane := range lanes {
		g.Go(func() error {
			for i := lane; i < n; i += lanes {
				if err := do(pools[lane%len(pools)], i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// Whatever begins, ends, is lost or is rolled back at once: nothing waits in a circle, and the sums are right.
func TestSumsAreRightAfterRandomRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const calls = 24
	for range calls {
		b.queue()
	}
	b.claim()
	ids := b.calls()
	budgets := []ledger.Budget{{Name: "all", Period: ledger.Day, Limit: 200 * provider.USD},
		{Name: "user", Subject: "a", Period: ledger.Hour, Limit: 120 * provider.USD},
		{Name: "user", Subject: "b", Period: ledger.Hour, Limit: 120 * provider.USD},
		{Name: "route", Subject: "default", Period: ledger.Month, Limit: 240 * provider.USD},
		{Name: "all", Period: ledger.Month, Limit: 400 * provider.USD}}
	var begun atomic.Int32
	atOnce(t, b.url, 16, 600, func(db *pgxpool.Pool, i int) error {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		var targets []ledger.Target
		for _, n := range random.Perm(4)[:1+random.IntN(3)] {
			a := target(fmt.Sprint("target", n), provider.Money(random.IntN(int(provider.USD))))
			for _, k := range random.Perm(len(budgets))[:random.IntN(4)] {
				a.Budgets = append(a.Budgets, budgets[k])
			}
			a.MaxConcurrent = random.IntN(9)
			targets = append(targets, a)
		}
		call := ids[random.IntN(calls)]
		request := begin(call, 1+random.IntN(2), targets...)
		if i%40 == 7 { // as the sweep does
			_, err := db.Exec(context.Background(), "select gem.llm_lose_now(array(select id from core_llm_requests where "+
				"status = 'sent' order by id desc limit 3))")
			return err
		}
		if random.IntN(20) == 0 { // its worker is lost
			if _, err := db.Exec(context.Background(), `update core_tool_calls set attempt = 2 where id = $1`,
				call); err != nil {
				return err
			}
		}
		got, err := request.Send(context.Background(), db)
		if errors.Is(err, ledger.ErrNotHeld) || errors.Is(err, ledger.ErrTooMany) {
			return nil
		}
		if err != nil || got.ID == 0 || random.IntN(8) == 0 { // never ended
			return err
		}
		begun.Add(1)
		end := done(got.ID, provider.Money(random.IntN(int(provider.USD))))
		switch random.IntN(4) {
		case 0:
			end.Status, end.Cost, end.Kind = ledger.Cut, nil, provider.Cut
		case 1:
			end = failed(got.ID, provider.Unavailable)
		}
		if random.IntN(2) == 0 {
			_, err = end.Settle(context.Background(), db)
			return err
		}
		return pgx.BeginFunc(context.Background(), db, func(tx pgx.Tx) error {
			if _, err := end.Settle(context.Background(), tx); err != nil {
				return err
			}
			_, err := tx.Exec(context.Background(), "update core_tool_calls set steps = steps + 1 where id = $1", call)
			return err
		})
	})
	if begun.Load() < 25 {
		t.Errorf("only %d requests were begun and ended", begun.Load())
	}
	b.addsUp()
	// The remaining requests are lost while calls are pruned.
	b.run(`select case when i % 2 = 0 then gem.release(id, attempt, 'w')::text
		else gem.finish(id, attempt, 'w', 'succeeded', '{}', '{}', '1')::text end
		from (select *, row_number() over () as i from core_tool_calls) c`)
	ended := b.value("select count(*) from core_tool_receipts")
	atOnce(t, b.url, 8, 40, func(db *pgxpool.Pool, i int) error {
		if i%4 == 0 {
			_, err := db.Exec(context.Background(), "select gem.prune(array(select call_id from core_tool_receipts order by "+
				"random() limit 2))")
			return err
		}
		_, err := db.Exec(context.Background(), "select gem.llm_lose_now(array(select id from core_llm_requests where "+
			"status = 'sent' order by random() limit 3))")
		return err
	})
	b.run("select gem.prune(array(select call_id from core_tool_receipts))")
	if n := b.value("select count(*) from core_tool_receipts"); ended == "0" || n != "0" {
		t.Errorf("of %s calls that ended %s were not pruned", ended, n)
	}
	b.addsUp()
	b.pass(61 * time.Minute)
	b.run("select gem.recover('w', null)")
	if n := b.value("select count(*) from core_llm_requests where status = 'sent'"); n != "0" {
		t.Errorf("%s are still sent", n)
	}
	b.addsUp()
}

func TestAStalledWorkerBeginsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	begun, _ := b.send(begin(call, 1, target("x", provider.USD, today)))
	b.run("select gem.release($1, 1, 'w')", call)
	stalled := func(when string) {
		t.Helper()
		if _, err := begin(call, 1, target("x", provider.USD, today)).Send(t.Context(), b.db); !errors.Is(err,
			ledger.ErrNotHeld) {
			t.Errorf("%s: %v", when, err)
		}
	}
	stalled("the call is queued")
	b.claim()
	stalled("another attempt holds it")
	if got := b.value("select count(*) from core_llm_requests"); got != "1" {
		t.Errorf("%s rows", got)
	}
	// What it ends is lost, and costs its reserve.
	if b.end(done(begun.ID, 1)) {
		t.Error("it ended its request")
	}
	if got, want := b.spends(), "all//day spent 1000000000 reserved 0 requests 1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.addsUp()
}

func TestTheReserveOfALostAttemptStaysSpent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	first, _ := b.send(begin(call, 1, target("x", 5*provider.USD, today)))
	b.run("select gem.release($1, 1, 'w')", call)
	b.claim()
	if _, got := b.send(begin(call, 2, target("x", 3*provider.USD, today),
		target("y", provider.USD, today))); got != "y, x budget" {
		t.Errorf("the next attempt: %s", got)
	}
	if b.end(done(first.ID, 1)) {
		t.Error("a late end counted")
	}
	if got, want := b.spends(), "all//day spent 5000000000 reserved 1000000000 requests 2"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	rows, err := ledger.Requests(t.Context(), b.db, call)
	if err != nil || len(rows) != 2 || rows[0].Status != ledger.Lost || rows[0].Cost != nil || rows[1].N != 2 ||
		rows[1].Attempt != 2 {
		t.Errorf("%+v, %v", rows, err)
	}
	if none := ledger.Sum(nil); none.Cost == nil || *none.Cost != 0 {
		t.Errorf("no requests cost %v", none.Cost)
	}
	if total := ledger.Sum(rows); total.Requests != 2 || total.Unknown != 2 || total.Cost != nil {
		t.Errorf("%+v", total)
	}
	b.addsUp()
}

func TestWhatACallMayCostIsBoundedOverAllItsRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	request := begin(call, 1, target("x", 4*provider.USD), target("y", provider.USD))
	request.MaxCost = new(6 * provider.USD)
	for i, want := range []string{"x", "y, x max_cost", "y, x max_cost", ", x max_cost, y max_cost"} {
		begun, got := b.send(request)
		if got != want {
			t.Errorf("request %d: got %q, want %q", i+1, got, want)
		}
		if i == 1 {
			b.end(done(begun.ID, provider.USD))
		}
	}
	free := target("free", 0)
	free.Priced = false
	request.Targets = []ledger.Target{free}
	if _, got := b.send(request); got != ", free unpriced" {
		t.Error(got)
	}
	request.MaxCost = nil
	if _, got := b.send(request); got != "free" {
		t.Error(got)
	}
	b.addsUp()
}

func TestTheRequestsOfACallAreLimited(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	b.send(begin(call, 1, target("x", 1)))
	b.run("update core_llm_requests set n = $1", ledger.MaxRequests-1)
	b.send(begin(call, 1, target("x", 1)))
	if _, err := begin(call, 1, target("x", 1)).Send(t.Context(), b.db); !errors.Is(err, ledger.ErrTooMany) {
		t.Error(err)
	}
	if got := b.value("select max(n) || ' ' || count(*) from core_llm_requests"); got != "1000 2" {
		t.Error(got)
	}
}

func TestATargetTakesSoManyRequestsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	few := target("few", 1)
	few.MaxConcurrent = 2
	call := b.running()
	first, _ := b.send(begin(call, 1, few))
	lost := b.running()
	b.send(begin(lost, 1, few))
	if _, got := b.send(begin(call, 1, few, target("y", 1))); got != "y, few busy" {
		t.Error(got)
	}
	b.end(done(first.ID, 1))
	if _, got := b.send(begin(call, 1, few)); got != "few" {
		t.Error(got)
	}
	if _, got := b.send(begin(call, 1, few)); got != ", few busy" {
		t.Error(got)
	}
	// A request whose worker was lost takes no place, also before it is closed.
	b.run("select gem.release($1, 1, 'w')", lost)
	if _, got := b.send(begin(call, 1, few)); got != "few" {
		t.Error(got)
	}
	b.addsUp()
}

func TestTheLongestCooldownWins(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	var ids []int64
	for range 3 {
		begun, _ := b.send(begin(call, 1, target("x", 1)))
		ids = append(ids, begun.ID)
	}
	limited := func(id int64, d time.Duration, why string) {
		e := failed(id, provider.RateLimited)
		e.Cooldown, e.CooldownWhy = d, why
		b.end(e)
	}
	limited(ids[0], 7*time.Second, "first")
	limited(ids[1], 40*time.Second, "longest")
	b.pass(time.Second)
	limited(ids[2], 5*time.Second, "shorter")
	begun, got := b.send(begin(call, 1, target("x", 1), target("y", 1)))
	if want := "y, x cooldown longest"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b.end(done(begun.ID, 1))
	b.pass(38*time.Second + 500*time.Millisecond)
	if begun, got = b.send(begin(call, 1, target("x", 1))); got != ", x cooldown longest" ||
		begun.Wait != 500*time.Millisecond {
		t.Errorf("%s for %s", got, begun.Wait)
	}
	states, err := ledger.Targets(t.Context(), b.db, "y", "x", "unknown")
	if err != nil || len(states) != 3 || states[1].CooldownUntil.IsZero() || states[1].Why != "longest" ||
		!states[0].CooldownUntil.IsZero() || states[2].InputRatio != 1 {
		t.Errorf("%+v, %v", states, err)
	}
	b.pass(500 * time.Millisecond)
	if _, got = b.send(begin(call, 1, target("x", 1))); got != "x" {
		t.Errorf("after the cooldown: %s", got)
	}
	b.addsUp()
}

// A target that is cooling down and is too dear as well does not keep a call waiting: it ends at once, since there is
// no money for it.
func TestNobodyWaitsForATargetThatThereIsNoMoneyFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	little := ledger.Budget{Name: "little", Period: ledger.Day, Limit: 9}
	begun, _ := b.send(begin(call, 1, target("x", 1, little)))
	e := failed(begun.ID, provider.NotFound)
	e.Cooldown, e.CooldownWhy = time.Minute, "not_found"
	b.end(e)
	free := target("x", 0)
	free.Priced = false
	capped := begin(call, 1, target("x", 10), free)
	capped.MaxCost = new(provider.Money(9))
	for want, r := range map[string]ledger.Begin{
		", x budget, y budget":             begin(call, 1, target("x", 10, little), target("y", 10, little)),
		", x max_cost, x unpriced":         capped,
		", x cooldown not_found":           begin(call, 1, target("x", 9, little)),
		", x cooldown not_found, y budget": begin(call, 1, target("x", 9, little), target("y", 10, little)),
	} {
		begun, got := b.send(r)
		if got != want || (begun.Wait > 0) != strings.Contains(want, "cooldown") ||
			(len(begun.Exceeded) == 1) != strings.Contains(want, "budget") {
			t.Errorf("got %s for %s, and %+v; want %s", got, begun.Wait, begun.Exceeded, want)
		}
	}
	b.addsUp()
}

// After a cooldown that failures caused, one request of all workers is let through; the cooldown doubles if it fails.
func TestOneRequestProbesATargetThatFailed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	x := func() (ledger.Begun, string) {
		t.Helper()
		if b.value("select count(*) from core_llm_requests where call_id = $1", call) > "5" {
			call = b.running()
		}
		return b.send(begin(call, 1, target("x", 1)))
	}
	expect := func(want string) ledger.Begun {
		t.Helper()
		begun, got := x()
		if got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		return begun
	}
	const coolsDown = ", x cooldown unavailable"
	slow := expect("x") // which ends after the cooldown
	for range 2 {
		b.end(failed(expect("x").ID, provider.Unavailable))
	}
	b.pass(61 * time.Second) // and those are forgotten
	b.end(failed(expect("x").ID, provider.BadRequest))
	for range 3 {
		b.end(failed(expect("x").ID, provider.Unavailable))
	}
	if begun := expect(coolsDown); begun.Wait != 30*time.Second {
		t.Errorf("it cools down for %s", begun.Wait)
	}
	for _, cooldown := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute,
		5 * time.Minute,
		5 * time.Minute} {
		if begun := expect(coolsDown); begun.Wait != cooldown {
			t.Errorf("it cools down for %s, and not for %s", begun.Wait, cooldown)
		}
		b.pass(cooldown + 10*time.Second) // its own requests failed there, so that others may be first
		probe := expect("x")
		if begun := expect(coolsDown); begun.Wait != time.Minute {
			t.Errorf("while it is probed others wait for %s", begun.Wait)
		}
		b.end(failed(probe.ID, provider.Unavailable))
	}
	b.end(done(slow.ID, 1)) // which says nothing of what came after it
	b.pass(5*time.Minute + 10*time.Second)
	probe := expect("x")
	expect(coolsDown)
	e := failed(probe.ID, "")
	e.Status = ledger.Cancelled
	b.end(e) // says nothing
	first := expect("x")
	expect(coolsDown)
	b.pass(time.Minute)
	second := expect("x") // since the first says nothing for so long
	expect(coolsDown)
	b.end(failed(first.ID, provider.Unavailable))
	expect(coolsDown)
	b.end(done(second.ID, 1))
	for range 3 {
		expect("x")
	}
	b.addsUp()
}

func TestOneOfManyAtOnceProbes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	for range 3 {
		begun, _ := b.send(begin(call, 1, target("x", 1)))
		b.end(failed(begun.ID, provider.Unreachable))
	}
	b.pass(30 * time.Second)
	for range 30 {
		b.queue()
	}
	b.claim()
	calls := b.calls()
	var probes atomic.Int32
	atOnce(t, b.url, 16, 30, func(db *pgxpool.Pool, i int) error {
		begun, err := begin(calls[i], 1, target("x", 1)).Send(context.Background(), db)
		if begun.ID != 0 {
			probes.Add(1)
		}
		return err
	})
	if probes.Load() != 1 {
		t.Errorf("%d requests probed", probes.Load())
	}
	// Its worker is lost: the next may go when that is known.
	b.run("select gem.release(r.call_id, 1, 'w') from core_llm_requests r where r.status = 'sent'")
	b.claim()
	holder := b.value("select call_id from core_llm_requests where status = 'sent'")
	if _, got := b.send(begin(holder, 2, target("x", 1))); got != "x" {
		t.Errorf("after a lost probe: %s", got)
	}
	b.addsUp()
}

func TestFiguresOfATarget(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	call := b.running()
	for i, u := range []provider.Usage{{Input: 50, Output: 100, Known: true}, {Input: 150, Output: 300, Known: true},
		{Input: 999, Output: 999}} {
		begun, _ := b.send(begin(call, 1, target("x", 1)))
		e := done(begun.ID, 1)
		e.Usage, e.Estimated = u, !u.Known
		e.FirstContent, e.Took = time.Duration(100+100*min(i, 1))*time.Millisecond,
			time.Duration(1100+100*min(i, 1))*time.Millisecond
		b.end(e)
	}
	states, err := ledger.Targets(t.Context(), b.db, "x")
	if err != nil || len(states) != 1 {
		t.Fatal(states, err)
	}
	s := states[0]
	begun, _ := b.send(begin(call, 1, target("whole", 1)))
	e := done(begun.ID, 1)
	e.Usage, e.FirstContent, e.Took = provider.Usage{Input: 5, Output: 100, Known: true}, 40*time.Millisecond,
		40*time.Millisecond
	b.end(e)
	if states, err = ledger.Targets(t.Context(), b.db, "whole"); err != nil || states[0].TokensPerSec != 100_000 {
		t.Errorf("an answer in one piece: %+v, %v", states, err)
	}
	if s.Samples != 2 || s.MeanOutput != 200 || s.InputRatio != 1 || s.TokensPerSec != 160 ||
		s.FirstContent != 151*time.Millisecond {
		t.Errorf("%+v", s)
	}
}

// An answer's transaction may take long. Others of the same target do not follow it commit by commit.
func TestRequestsOfATargetThatIsWellDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.run("alter database " + strings.ReplaceAll(b.value("current_database()"), `"`, "") + " set lock_timeout = '5s'")
	one, two := b.running(), b.running()
	first, _ := b.send(begin(one, 1, target("x", 1)))
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if settled, err := done(first.ID, 1).Settle(t.Context(), tx); err != nil || !settled {
		t.Fatal(settled, err)
	}
	b.db.Reset() // connections with the timeout
	for range 3 {
		begun, said := b.send(begin(two, 1, target("x", 1)))
		if said != "x" || !b.end(done(begun.ID, 1)) {
			t.Fatalf("beside an open transaction: %s", said)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.value("select samples from gem.llm_targets where target = 'x'"); got != "1" {
		t.Errorf("%s samples of the one that had the target's row", got)
	}
	if got := b.value("select count(*) from core_llm_requests where status = 'done'"); got != "4" {
		t.Errorf("%s answers", got)
	}
}

func TestUsageByDayRouteAndTarget(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, day := range []int{0, 1} {
		b.run("update public.clock set at = timestamptz '2030-01-15 23:59:00Z' + $1 * interval '1 day'", day)
		for _, a := range []string{"x", "y"} {
			begun, _ := b.send(begin(b.running(), 1, target(a, 5)))
			e := done(begun.ID, 7)
			if a == "y" && day == 1 {
				e.Cost, e.Status = nil, ledger.Cut
			}
			b.end(e)
		}
	}
	ask := func(f ledger.Filter) string {
		t.Helper()
		all, err := ledger.UsageByDay(t.Context(), b.db, f)
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		for _, u := range all {
			cost := "unknown"
			if u.Cost != nil {
				cost = u.Cost.String()
			}
			said = append(said, fmt.Sprint(u.Day, " ", u.Route, " ", u.Target, " ", u.Requests, " ", cost, " ", u.Unknown, " ",
				u.Input))
		}
		return strings.Join(said, "; ")
	}
	from, to := time.Date(2030, 1, 15, 12, 0, 0, 0, time.UTC), time.Date(2030, 1, 16, 0, 0, 0, 0, time.UTC)
	all := "2030-01-16 default x 1 0.000000007 0 90; 2030-01-16 default y 1 unknown 1 90; 2030-01-15 default x 1 " +
		"0.000000007 0 90; 2030-01-15 default y 1 0.000000007 0 90"
	if got := ask(ledger.Filter{From: from, To: to}); got != all {
		t.Errorf("got  %s\nwant %s", got, all)
	}
	if got := ask(ledger.Filter{CreatedBy: new("ada"), From: to, To: to}); !strings.HasPrefix(all,
		got+"; 2030-01-15 default x") {
		t.Errorf("of ada: %s", got)
	}
	if got := ask(ledger.Filter{CreatedBy: new("mallory"), From: from, To: to}); got != "" {
		t.Errorf("of mallory: %s", got)
	}
}

func TestOtherRoutesUnderARecordedVersionAreFound(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i, c := range []struct{ sha, routes, others string }{{"a", "1", ""}, {"a", "2", ""}, {"b", "3", `"1"`}} {
		others, err := ledger.RecordVersion(t.Context(), b.db, "1", strings.Repeat(c.sha, 64), []byte(`"`+c.routes+`"`))
		if err != nil || string(others) != c.others {
			t.Errorf("%d: %s, %v", i, others, err)
		}
	}
}

// The routes file changed the period of a budget from a day to a month, and back.
func TestABudgetIsCorrectedInThePeriodOfItsLastRequest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, period := range []ledger.Period{ledger.Day, ledger.Month, ledger.Day} {
		begun, _ := b.send(begin(b.running(), 1, target("x", 2*provider.USD,
			ledger.Budget{Name: "all", Period: period, Limit: 9 * provider.USD})))
		b.end(done(begun.ID, provider.USD))
		b.pass(time.Second)
		is, err := ledger.Correction{Budget: "all", Amount: provider.USD, Reason: "the invoice says more"}.Make(t.Context(),
			b.db)
		if err != nil || is.Period != period {
			t.Errorf("after a request in a %s: %+v, %v", period, is, err)
		}
	}
	b.addsUp()
}

// A correction applies to the current period at once, never changes, and is part of the audit's sums.
func TestABudgetIsCorrected(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	user := ledger.Budget{Name: "user", Subject: "ada", Period: ledger.Month, Limit: 9 * provider.USD}
	call := b.running()
	begun, _ := b.send(begin(call, 1, target("x", 2*provider.USD, today, user)))
	b.end(done(begun.ID, provider.USD))
	correct := func(budget, subject string, amount provider.Money, reason string) (ledger.Corrected, error) {
		return ledger.Correction{Budget: budget, Subject: subject, Amount: amount, Reason: reason}.Make(t.Context(), b.db)
	}
	is, err := correct("all", "", 5*provider.USD, "the invoice says more")
	if err != nil || is.Spent != 6*provider.USD || is.Period != ledger.Day || is.ResetsAt.Sub(is.Starts) != 24*time.Hour {
		t.Errorf("%+v, %v", is, err)
	}
	if _, got := b.send(begin(b.running(), 1, target("x", 2*provider.USD, today))); got != ", x budget" {
		t.Errorf("beyond the corrected budget: %s", got)
	}
	if is, err = correct("all", "", -6*provider.USD, "refunded"); err != nil || is.Spent != 0 {
		t.Errorf("%+v, %v", is, err)
	}
	if is, err = correct("user", "ada", -provider.USD/2, "a gift"); err != nil || is.Spent != provider.USD/2 {
		t.Errorf("%+v, %v", is, err)
	}
	for what, wrong := range map[string]func() (ledger.Corrected, error){
		"more than was spent": func() (ledger.Corrected, error) { return correct("all", "", -1, "x") },
		"nothing":             func() (ledger.Corrected, error) { return correct("all", "", 0, "x") },
		"no reason":           func() (ledger.Corrected, error) { return correct("all", "", 1, " ") },
		"no such budget":      func() (ledger.Corrected, error) { return correct("al", "", 1, "x") },
		"another subject":     func() (ledger.Corrected, error) { return correct("user", "", 1, "x") },
		"beyond all sums":     func() (ledger.Corrected, error) { return correct("all", "", 1<<62, "x") },
	} {
		if is, err := wrong(); err == nil {
			t.Errorf("%s: %+v", what, is)
		}
	}
	b.addsUp()
	if got := b.value("select string_agg(amount || ' ' || (by = session_user) || ' ' || reason, ', ' order by id) from " +
		"gem.llm_corrections"); got !=
		"5000000000 true the invoice says more, -6000000000 true refunded, -500000000 true a gift" {
		t.Error(got)
	}
	for _, sql := range []string{"update gem.llm_corrections set amount = 1", "delete from gem.llm_corrections",
		"truncate gem.llm_corrections"} {
		if _, err := b.db.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s was done", sql)
		}
	}
	// The day's end is not the month's.
	b.pass(24 * time.Hour)
	if _, err := correct("all", "", 1, "late"); err == nil {
		t.Error("a budget was corrected after its period, before the next one had a request")
	}
	// Corrections leave with their budgets.
	b.run("delete from core_llm_requests; update gem.llm_spend set requests = 0, pruned_requests = 0")
	b.pass(2 * 366 * 24 * time.Hour)
	b.run("select gem.prune_llm_spend(10)")
	if got := b.value(
		"select (select count(*) from gem.llm_spend) || ' ' || (select count(*) from gem.llm_corrections)"); got != "0 0" {
		t.Errorf("after gem prune: %s", got)
	}
}

func TestOnlyOperatorsCorrectBudgets(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if got := b.value(`select string_agg(r, ' ' order by r)
		from unnest(array['gem_worker', 'gem_monitor', 'gem_operator', 'gem_mcp', 'gem_frontend', 'public']) r
		where has_function_privilege(r, 'gem.llm_correct(text, text, bigint, text, text)', 'execute')
			or has_table_privilege(r, 'gem.llm_corrections', 'select, insert, update, delete, truncate, references, trigger')`); got != "gem_operator" {
		t.Errorf("budgets are corrected by %s", got)
	}
}

// A failover loses the row of a request that is under way, and the id is given again.
func TestARequestThatAFailoverLostSettlesNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	budget := ledger.Budget{Name: "all", Period: ledger.Day, Limit: 10 * provider.USD}
	x, y := b.running(), b.running()
	lost, _ := b.send(begin(x, 1, target("t", provider.USD, budget)))
	b.run("update gem.llm_spend set reserved = 0, requests = 0")
	b.run("delete from core_llm_requests")
	b.run("select setval(pg_get_serial_sequence('public.core_llm_requests', 'id'), 1, false)")
	b.pass(time.Second)
	later, _ := b.send(begin(y, 1, target("t", 9*provider.USD, budget)))
	if later.ID != lost.ID {
		t.Fatalf("the ids are %d and %d", lost.ID, later.ID)
	}
	end := done(lost.ID, 1000)
	if end.Began = lost.At; b.end(end) {
		t.Error("the lost request was settled")
	}
	end = done(later.ID, 9*provider.USD)
	if end.Began = later.At; !b.end(end) {
		t.Error("the later request was not settled")
	}
	b.addsUp()
}

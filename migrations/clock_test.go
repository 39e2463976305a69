package migrations_test

import (
	"fmt"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ownClock is SQL that stops GEM's clock at the time of the transaction, until [setClock] moves it.
const ownClock = `create table public.clock as select now() as began, now() as at;
	create or replace function gem.now() returns timestamptz language sql volatile as 'select at from public.clock';`

// setClock sets the clock to so many milliseconds after its beginning.
func setClock(t *testing.T, db *pgxpool.Pool, after int) {
	t.Helper()
	testdb.Exec(t, db, fmt.Sprintf("update public.clock set at = began + %d * interval '1 ms'", after))
}

// beatAt sets the clock, and sends a heartbeat of the worker w.
func beatAt(t *testing.T, db *pgxpool.Pool, after int) {
	t.Helper()
	setClock(t, db, after)
	testdb.Exec(t, db, "select gem.heartbeat('w', '5 s', '{}', '{}', false)")
}

// Postgres's clock may be set back, by a person or by a host that was moved. What was due stays due from the next
// heartbeat on, what is asked for at a later time waits for it, and dead workers are not taken for living ones until
// the clock has caught up.
func TestAClockThatGoesBackHoldsNoCalls(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	claimed := func() string {
		return fmt.Sprint(texts(t, db, "select tool_name from gem.claim('w', 9, true) order by tool_name"))
	}
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, `
		select gem.start_worker('w', 10, '', '', '5 s'), gem.start_worker('dies', 10, '', '', '5 s');
		insert into core_tool_calls (tool_name) values ('lost')`)
	testdb.Exec(t, db, "select gem.claim('dies', 1, true)")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('retried')")
	testdb.Exec(t, db, "select gem.retry(c.id, c.attempt, 'w', '{}', 9, '1 s') from gem.claim('w', 1, true) c")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, run_at) values ('due', null), ('scheduled', gem.now() + "+
		"interval '30 s')")

	beatAt(t, db, -105_000)
	if got := claimed(); got != "[due]" {
		t.Errorf("after the next heartbeat, %s were claimed", got)
	}
	if n := number(t, db, "select extract(epoch from clock_back) from core_workers where worker_id = 'dies'"); n != 105 {
		t.Errorf("the clock went back by %v s", n)
	}
	testdb.Exec(t, db, "select gem.start_worker('starts', 10, '', '', '1 s')")
	if n := number(t, db,
		"select count(*) from core_workers where worker_id = 'starts' and clock_back > '104 s'"); n != 1 {
		t.Error("a worker that starts now does not know that the clock is late")
	}
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('new')")
	if got := claimed(); got != "[new]" {
		t.Errorf("of those that came later, %s were claimed", got)
	}

	// Six seconds on, the pause of the retry is over, and the worker that sent no heartbeat is dead.
	for back := 104; back >= 97; back-- {
		beatAt(t, db, -back*1000)
	}
	if got := claimed(); got != "[lost retried]" {
		t.Errorf("eight seconds later, %s were claimed", got)
	}

	// When the clock has caught up, all is as before.
	beatAt(t, db, 40_000)
	if got := claimed(); got != "[scheduled]" {
		t.Errorf("when the clock has caught up, %s were claimed", got)
	}
	if n := number(t, db, "select count(*) from core_workers where worker_id = 'w' and clock_back is null"); n != 1 {
		t.Error("the worker still takes the clock for late")
	}
}

// If no worker runs when the clock goes back, the next that starts sees by the others' rows that it has.
func TestAWorkerThatStartsSeesThatTheClockWentBack(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.start_worker('killed', 10, '', '', '5 s');
		insert into core_tool_calls (tool_name) values ('lost')`)
	testdb.Exec(t, db, "select gem.claim('killed', 1, true)")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('due')")
	testdb.Exec(t, db, "create or replace function gem.now() returns timestamptz language sql volatile as 'select "+
		"pg_catalog.clock_timestamp() - interval ''1 hour'''")
	testdb.Exec(t, db, "select gem.start_worker('w', 10, '', '', '5 s')")
	if got := fmt.Sprint(
		texts(t, db, "select tool_name from gem.claim('w', 9, true) order by tool_name")); got != "[due]" {
		t.Errorf("%s were claimed", got)
	}
	if n := number(t, db, "select count(*) from core_workers where worker_id = 'killed' and alive_until < gem.now() + "+
		"interval '1 minute'"); n != 1 {
		t.Error("the worker that was killed would be taken for a living one for an hour")
	}
}

// Frontends insert calls while no worker runs: a clock that is set back then holds none of those either.
func TestCallsThatCameWhileNoWorkerRanAreDueWhenTheClockWentBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before bool // a worker ran before
		back   int  // minutes
	}{
		"behind the last heartbeat": {true, 120},
		"after the last heartbeat":  {true, 30},
		"no worker was ever there":  {false, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, ownClock)
			if c.before {
				testdb.Exec(t, db, "select gem.start_worker('before', 10, '', '', '5 s'), gem.stop_worker('before')")
			}
			setClock(t, db, 60*60_000)
			testdb.Exec(t, db, "insert into core_tool_calls (tool_name, run_at) values ('due', null), ('scheduled', gem.now() "+
				"+ "+
				"interval '1 hour')")
			setClock(t, db, (60-c.back)*60_000)
			testdb.Exec(t, db, "select gem.start_worker('w', 10, '', '', '5 s')")
			if got := fmt.Sprint(texts(t, db, "select tool_name from gem.claim('w', 9, true)")); got != "[due]" {
				t.Errorf("%s were claimed", got)
			}
			if n := number(t, db,
				"select extract(epoch from clock_back) / 60 from core_workers where worker_id = 'w'"); n != float64(c.back) {
				t.Errorf("the clock went back by %v minutes", n)
			}
		})
	}
}

// A second, smaller step back does not make the first one forgotten.
func TestAClockMayGoBackTwice(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, "select gem.start_worker('w', 10, '', '', '5 s'); insert into core_tool_calls (tool_name) values "+
		"('due')")
	for _, back := range []int{-600_000, -603_000, -602_000, -590_000} {
		beatAt(t, db, back)
	}
	testdb.Exec(t, db, "select gem.start_worker('starts', 10, '', '', '5 s')")
	if got := fmt.Sprint(texts(t, db, "select tool_name from gem.claim('starts', 9, true)")); got != "[due]" {
		t.Errorf("%s were claimed", got)
	}
}

// A call that waits for a key which nobody holds is woken by a heartbeat, even if its wait began in the future.
func TestAClockThatGoesBackLeavesNoCallWaiting(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, "select gem.start_worker('w', 10, '', '', '5 s'); insert into core_tool_calls (tool_name) select "+
		"'a.b' from generate_series(1, 3)")
	testdb.Exec(t, db, "select gem.hold_key(c.id, c.attempt, 'w', 'k') from gem.claim('w', 3, true) c")
	beatAt(t, db, -3_600_000)
	testdb.Exec(t, db, `select gem.finish(id, attempt, 'w', 'failed',
		'{"error": {"error_code": "x", "message": "y", "details": null}}', '{}', '') from core_tool_calls
			where status = 'running'`)
	// the one that was to take the key next
	testdb.Exec(t, db, "select cancel_tool_call(id) from core_tool_calls where status = 'queued'")
	for back := -3_599_000; back <= -3_596_000; back += 1000 {
		beatAt(t, db, back)
	}
	if n := number(t, db, "select count(*) from core_tool_calls where status = 'waiting'"); n != 0 {
		t.Errorf("%v calls wait for a key that nobody holds", n)
	}
}

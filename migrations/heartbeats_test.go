package migrations_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// held is a database in which the worker b, which is silent, holds a call, and the worker a lives.
func held(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name) values ('a.b');
		select gem.start_worker('b', 1, '', '', '5 s'); select gem.claim('b', 1, true);
		update core_workers set alive_until = gem.now();
		select gem.start_worker('a', 1, '', '', '5 s')`)
	return db
}

const (
	beat   = "select gem.heartbeat('a', '5 s', '{}', '{}', true)"
	isHeld = "select count(*) from core_tool_calls where claimed_by = 'b'"
	isBack = "select count(*) from core_tool_calls where status = 'queued' and losses = 1"
)

func TestAWorkerThatBeatInTimeJudgesTheSilent(t *testing.T) {
	t.Parallel()
	db := held(t)
	testdb.Exec(t, db, beat)
	if number(t, db, isBack) != 1 {
		t.Error("the call of the silent worker is not back")
	}
}

func TestAWorkerWhoseOwnHeartbeatIsLateJudgesNobodyAtFirst(t *testing.T) {
	t.Parallel()
	db := held(t)
	testdb.Exec(t, db, "update core_workers set heartbeat_at = gem.now() - interval '4 s' where worker_id = 'a'")
	for _, what := range []string{"a late heartbeat", "the next one"} {
		if told := texts(t, db, "select verdict from gem.heartbeat('a', '5 s', '{}', '{}', true)"); len(told) != 1 ||
			told[0] != "late" {
			t.Errorf("%s was told %q", what, told)
		}
		if number(t, db, isHeld) != 1 {
			t.Errorf("%s took the call", what)
		}
	}
	testdb.Exec(t, db, "update core_workers set steady_since = gem.now() - interval '3 s' where worker_id = 'a'")
	testdb.Exec(t, db, beat)
	if number(t, db, isBack) != 1 {
		t.Error("steady heartbeats do not bring the call back")
	}
}

// A sweep requeues a thousand calls. The row of a dead worker has the modes under which its other calls ran.
func TestTheRowOfADeadWorkerStaysUntilAllItsCallsAreBack(t *testing.T) {
	t.Parallel()
	db := held(t)
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 1099);
		update core_workers set alive_until = gem.now() + interval '5 s' where worker_id = 'b';
		select count(*) from gem.claim('b', 2000, true);
		update core_workers set outside = '{"a.b": "none"}', alive_until = gem.now() - interval '2 hours' where worker_id = 'b'`)
	const (
		told    = "select verdict from gem.heartbeat('a', '5 s', '{}', '{}', true)"
		ofB     = "select count(*) from core_workers where worker_id = 'b'"
		unknown = "select count(*) from core_tool_events where event = 'lost' and data ->> 'outside' <> 'none'"
	)
	if notices := texts(t, db, told); len(notices) != 1 || notices[0] != "late" || number(t, db, ofB) != 1 {
		t.Errorf("after the first sweep %v calls are back, the worker has %v rows, and the notices are %q",
			number(t, db, isBack), number(t, db, ofB), notices)
	}
	if notices := texts(t, db, told); len(notices) != 0 || number(t, db, isBack) != 1100 {
		t.Errorf("after the second sweep %v calls are back, and the notices are %q", number(t, db, isBack), notices)
	}
	testdb.Exec(t, db, told)
	if number(t, db, ofB) != 0 || number(t, db, unknown) != 0 {
		t.Errorf("at the end the worker has %v rows, and %v calls were lost under an unknown mode", number(t, db, ofB),
			number(t, db, unknown))
	}
}

// A lock on the calls keeps a heartbeat waiting that has begun in time.
func TestAfterASlowHeartbeatNobodyIsJudged(t *testing.T) {
	t.Parallel()
	db := held(t)
	// lives while it begins
	testdb.Exec(t, db, "update core_workers set alive_until = gem.now() + interval '300 ms' where worker_id = 'b'")
	beatBehindLock(t, db, "core_tool_calls", 600)
	testdb.Exec(t, db, beat)
	if number(t, db, isHeld) != 1 {
		t.Error("the heartbeat after a slow one took the call")
	}
}

// A lock that kept one heartbeat waiting kept the others too.
func TestAHeartbeatThatWaitedForALockJudgesNobody(t *testing.T) {
	t.Parallel()
	db := held(t)
	testdb.Exec(t, db, "update core_workers set alive_until = gem.now() + interval '1 s', heartbeat_at = gem.now() where "+
		"worker_id = 'a'")
	beatBehindLock(t, db, "core_workers", 1100) // a's own time is over, too
	if number(t, db, isHeld) != 1 {
		t.Error("the call was taken")
	}
}

// beatBehindLock sends a's heartbeat while a lock on the table keeps it waiting, until so many milliseconds have
// passed.
func beatBehindLock(t *testing.T, db *pgxpool.Pool, table string, ms int) {
	t.Helper()
	lock, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "lock table "+table); err != nil {
		t.Fatal(err)
	}
	beaten := make(chan error, 1)
	go func() {
		_, err := db.Exec(t.Context(), beat)
		beaten <- err
	}()
	for number(t, db, "select count(*) from pg_locks where not granted and relation = '"+table+
		"'::regclass and database = (select oid from pg_database where datname = current_database())") == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	setClock(t, db, ms)
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-beaten; err != nil {
		t.Fatal(err)
	}
}

// Workers that were started and killed again and again leave rows, which leave within the hour, and which nothing that
// an insert or a heartbeat asks has to read.
func TestRowsOfDeadWorkersLeaveAndKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		insert into core_workers (worker_id, started_at, heartbeat_at, alive_until, wants_wake, concurrency, gem_version,
			registry_version)
			select 'old ' || i, now() - interval '2 hours', now() - interval '2 hours', now() - interval '2 hours', true, 1, '',
				'' from generate_series(1, 2500) i;
		insert into core_workers (worker_id, started_at, heartbeat_at, alive_until, wants_wake, concurrency, gem_version,
			registry_version)
			select 'new ' || i, now() - interval '20 minutes', now(), now() - interval '20 minutes', true, 1, '', ''
				from generate_series(1, 2500) i;
		select gem.start_worker('w', 1, '', '', '1 hour'), gem.want_wake('w', true)`)
	testdb.Exec(t, db, "analyze core_workers")
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for what, sql := range map[string]string{
		"an insert": "with i as (insert into core_tool_calls (tool_name) values ($1::text) returning 1) select " +
			"count(*)::text from i",
		"a claim": "select count(*)::text from gem.claim('w', 10, true) where $1 <> ''",
	} {
		if read := readsOf(t, conn.Conn(), "core_workers", sql, "select 'a.b'"); read > 10 {
			t.Errorf("%s read %d rows and index entries of the workers", what, read)
		}
	}
	for _, left := range []float64{1500, 500, 0} {
		testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', false)")
		if n := number(t, db, "select count(*) from core_workers where worker_id like 'old%'"); n != left {
			t.Errorf("%v old rows are left, not %v", n, left)
		}
	}
	if n := number(t, db, "select count(*) from core_workers"); n != 2501 {
		t.Errorf("%v rows are left", n)
	}
}

// A call that was left to workers that never come back is not left forever: any worker may say that it does not know
// the tool.
func TestACallThatIsLeftToNobodyGoesToAny(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.start_worker('knows', 10, '', '', '1 hour', '{tool c.d}'), gem.start_worker('w', 10, '', '', '1 hour');
		insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 50);
		insert into core_tool_calls (tool_name, priority) select 'c.d', p from unnest(array[0, -5, 0]) p`)
	testdb.Exec(t, db, "select gem.leave_to(c.id, c.attempt, 'w', 'tool c.d') from gem.claim('w', 99, true) c where "+
		"c.tool_name = 'c.d'")
	claimed := func() string {
		testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', true)")
		return fmt.Sprint(texts(t, db, "select tool_name from gem.claim('w', 9, true)"))
	}
	if got := claimed(); got != "[]" {
		t.Errorf("a worker lives that knows the tool, and %s were claimed by another", got)
	}
	testdb.Exec(t, db, "select gem.stop_worker('knows')")
	if got := claimed(); got != "[]" {
		t.Errorf("such a worker may be about to start again, and %s were claimed by another", got)
	}
	testdb.Exec(t, db, "update core_workers set alive_until = alive_until - interval '5 minutes' where worker_id = "+
		"'knows'")
	if got := claimed(); got != "[c.d c.d c.d]" {
		t.Errorf("no such worker has lived for five minutes, and %s were claimed", got)
	}
}

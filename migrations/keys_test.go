package migrations_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// crowd is a database in which the worker w runs a call that holds the key k, behind which so many others wait.
func crowd(t *testing.T, waiting int) *pgxpool.Pool {
	t.Helper()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name) values ('a.b');
		select gem.start_worker('w', 1000, '', '', '1 hour');
		select gem.hold_key(c.id, c.attempt, 'w', 'k') from gem.claim('w', 1, true) c`)
	testdb.Exec(t, db, fmt.Sprintf(`
		insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, %d);
		select gem.hold_key(c.id, c.attempt, 'w', 'k') from gem.claim('w', 1000, true) c`, waiting))
	return db
}

const (
	succeedHolder = `select gem.finish(id, attempt, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls
		where status = 'running' and computed_key = 'k'`
	stillWaiting = "select count(*) from core_tool_calls where status = 'waiting'"
	// The next woken call runs, and is a hit.
	repeatOne = `select gem.finish(c.id, c.attempt, 'w', 'succeeded', h.result, '{}', '1', h.receipt_id)
		from gem.claim('w', 1, true) c, gem.hold_key(c.id, c.attempt, 'w', 'k') h`
)

func TestASuccessWakesThoseThatWaitForItsKeyAHundredAtATime(t *testing.T) {
	t.Parallel()
	db := crowd(t, 350)
	if n := number(t, db, stillWaiting); n != 350 {
		t.Fatalf("%v wait", n)
	}
	for want := 250; want >= 0; want -= 100 {
		if want == 250 {
			testdb.Exec(t, db, succeedHolder)
		} else {
			testdb.Exec(t, db, repeatOne)
		}
		if n := number(t, db, stillWaiting); n != float64(want) {
			t.Fatalf("%v wait, not %d", n, want)
		}
	}
	testdb.Exec(t, db, repeatOne)
	if n := number(t, db, stillWaiting); n != 0 {
		t.Errorf("%v wait forever", n)
	}
	if n := number(t, db,
		"select count(*) from core_tool_receipts where idempotency_key = 'k' and replay_of is not null"); n != 3 {
		t.Errorf("%v receipts repeat the first", n)
	}
}

// Calls that repeat a receipt need not wait for one another.
func TestSeveralCallsRepeatAReceiptAtOnce(t *testing.T) {
	t.Parallel()
	db := crowd(t, 5)
	testdb.Exec(t, db, succeedHolder)
	verdicts := texts(t, db, "select h.verdict from gem.claim('w', 9, true) c, gem.hold_key(c.id, c.attempt, 'w', 'k') h")
	if fmt.Sprint(verdicts) != "[hit hit hit hit hit]" {
		t.Errorf("%v", verdicts)
	}
	testdb.Exec(t, db, `select gem.finish(c.id, c.attempt, 'w', 'succeeded', '{}', '{}', '1',
		(select id from core_tool_receipts where replay_of is null))
		from core_tool_calls c where status = 'running'`)
	if n := number(t, db,
		"select count(*) from core_tool_receipts where idempotency_key = 'k' and replay_of is not null"); n != 5 {
		t.Errorf("%v receipts have the key and repeat the first", n)
	}
}

// A hit writes nothing to its call: each write would be one more entry of the key in the index over running keys,
// through which the next hit must go while vacuum cannot remove it.
func TestAHitDoesNotTakeItsKey(t *testing.T) {
	t.Parallel()
	db := crowd(t, 5)
	testdb.Exec(t, db, succeedHolder)
	testdb.Exec(t, db, "select gem.hold_key(c.id, c.attempt, 'w', 'k') from gem.claim('w', 5, true) c")
	if n := number(t, db,
		"select count(*) from core_tool_calls where status = 'running' and computed_key is null"); n != 5 {
		t.Errorf("%v of five hits did not take the key", n)
	}
}

// A tool may refuse a key that comes with another input. The calls that wait behind such a call are woken anyway.
func TestAHitThatIsRefusedWakesThoseThatWait(t *testing.T) {
	t.Parallel()
	db := crowd(t, 150)
	testdb.Exec(t, db, succeedHolder)
	testdb.Exec(t, db, `select gem.finish(c.id, c.attempt, 'w', 'failed',
		'{"error": {"error_code": "key_reused", "message": "x"}}', '{}', '1')
		from gem.claim('w', 1, true) c, gem.hold_key(c.id, c.attempt, 'w', 'k') h where h.verdict = 'hit'`)
	if n := number(t, db, stillWaiting); n != 0 {
		t.Errorf("%v wait forever", n)
	}
}

// Its worker has not heard yet that the call is to end, and would have it wait for long.
func TestACallThatIsToEndNeitherPausesNorWaits(t *testing.T) {
	t.Parallel()
	db := crowd(t, 0)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('retried'), ('waiting')")
	testdb.Exec(t, db, "select gem.claim('w', 2, true)")
	testdb.Exec(t, db, "select cancel_tool_call(id) from core_tool_calls where status = 'running' and tool_name <> 'a.b'")
	testdb.Exec(t, db, "select gem.retry(id, attempt, 'w', '{}', 9, '10 minutes') from core_tool_calls where tool_name = "+
		"'retried'")
	testdb.Exec(t, db, "select gem.hold_key(id, attempt, 'w', 'k') from core_tool_calls where tool_name = 'waiting'")
	if got := fmt.Sprint(texts(t, db, "select tool_name || ' ' || (cancelled_for is not null) from gem.claim('w', 9, "+
		"true) order by 1")); got != "[retried true waiting true]" {
		t.Errorf("%s were claimed again", got)
	}
}

// An end does not wait for a lock on a call that it would wake: the lock's holder may be waiting for the end.
func TestAnEndWaitsForNoneOfThoseThatItWakes(t *testing.T) {
	t.Parallel()
	db := crowd(t, 3)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "select from core_tool_calls where status = 'waiting' order by seq limit 1 for "+
		"update"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "set lock_timeout = '5 s'; "+succeedHolder+"; reset lock_timeout")
	if n := number(t, db, stillWaiting); n != 1 {
		t.Fatalf("%v wait", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, repeatOne)
	if n := number(t, db, stillWaiting); n != 0 {
		t.Errorf("the one that was locked waits forever")
	}
}

// Where nobody is left that would wake the rest, a heartbeat does. It reads few rows for it, however many wait.
func TestAHeartbeatWakesThoseWhoseKeyNobodyHolds(t *testing.T) {
	t.Parallel()
	db := crowd(t, 3)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 2000)")
	testdb.Exec(t, db, "select gem.hold_key(c.id, c.attempt, 'w', 'k') from gem.claim('w', 2000, true) c")
	testdb.Exec(t, db, succeedHolder)
	testdb.Exec(t, db, "update core_tool_calls set run_at = 'infinity' where status = 'queued'")
	testdb.Exec(t, db, "update core_tool_calls set updated_at = now() - interval '10 s' where status = 'waiting'; "+
		"analyze "+
		"core_tool_calls")
	left := number(t, db, stillWaiting)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read := readsOf(t, conn.Conn(), "core_tool_calls",
		"select count(*)::text from gem.heartbeat('w', '1 hour', '{}', '{}', false) where $1 <> ''", "select 'x'")
	conn.Release()
	testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', false)")
	if n := number(t, db, stillWaiting); n != left-1 || left < 1900 {
		t.Errorf("%v wait of %v", n, left)
	}
	if read > 500 { // some are entries of calls that were woken before
		t.Errorf("the heartbeat read %d rows and index entries", read)
	}
}

// untilLocked returns once a connection waits for a lock, or what should wait has ended.
func untilLocked(t *testing.T, db *pgxpool.Pool, ended func() bool) {
	t.Helper()
	for !ended() && number(t, db, "select count(*) from pg_stat_activity where datname = current_database() and "+
		"wait_event_type = 'Lock'") == 0 {
		runtime.Gosched()
	}
}

// A frontend may keep a transaction open for as long as it likes.
func TestACallDoesNotStayInItsSlotForALockOnTheOneThatHasItsKey(t *testing.T) {
	t.Parallel()
	for what, lock := range map[string]string{
		"cancelled": "select cancel_tool_call(id) from core_tool_calls where computed_key = 'k'",
		"given a child": "insert into core_tool_calls (tool_name, parent_call_id) select 'a.b', id from core_tool_calls " +
			"where computed_key = 'k'",
		"changed": "update core_tool_calls set session_id = 's' where computed_key = 'k'",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := crowd(t, 0)
			testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('a.b')")
			testdb.Exec(t, db, "select gem.claim('w', 1, true)")
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			if _, err := tx.Exec(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			asked := "select h.verdict from core_tool_calls c, gem.hold_key(c.id, c.attempt, 'w', 'k') h where c.status = " +
				"'running' and c.computed_key is null"
			if got := fmt.Sprint(texts(t, db, asked)); got != "[wait]" {
				t.Errorf("the verdict is %s", got)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			testdb.Exec(t, db, succeedHolder)
			if n := number(t, db, stillWaiting); n != 0 {
				t.Error("it waits forever")
			}
		})
	}
}

// A frontend may lock the row of a call that asks for a key. The key's holder can end all the same.
func TestALockOnACallThatAsksForAKeyDoesNotKeepItsHolderFromEnding(t *testing.T) {
	t.Parallel()
	db := crowd(t, 0)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('asks')")
	testdb.Exec(t, db, "select gem.claim('w', 1, true)")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(),
		"select cancel_tool_call(id) from core_tool_calls where tool_name = 'asks'"); err != nil {
		t.Fatal(err)
	}
	verdict := make(chan string, 1)
	go func() {
		verdict <- testdb.Value[string](t, db,
			"select h.verdict from core_tool_calls c, gem.hold_key(c.id, c.attempt, 'w', 'k') h "+
				"where c.tool_name = 'asks'")
	}()
	untilLocked(t, db, func() bool { return len(verdict) > 0 })
	testdb.Exec(t, db, "set lock_timeout = '100 ms'; "+succeedHolder+"; reset lock_timeout") // while the other waits
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-verdict; got != "hit" {
		t.Errorf("the verdict is %s", got)
	}
}

// A key may be used between the moment when a bulk admission looks at it and the moment when it takes it.
func TestACallThatIsAdmittedInBulkDoesNotRunIfItsKeyWasUsedMeanwhile(t *testing.T) {
	t.Parallel()
	db := crowd(t, 0)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('first'), ('second')")
	testdb.Exec(t, db, "select gem.claim('w', 2, true)")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	for _, sql := range []string{
		"select gem.hold_key(id, 1, 'w', 'n') from core_tool_calls where tool_name = 'first'",
		"select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '') from core_tool_calls where tool_name = 'first'",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	admitted := make(chan int, 1)
	go func() {
		admitted <- testdb.Value[int](t, db, "select count(*) from gem.admit('w', (select jsonb_agg(jsonb_build_object("+
			"'call', id, 'key', 'n')) from core_tool_calls where tool_name = 'second'), '') a where a.verdict = 'run'")
	}()
	untilLocked(t, db, func() bool { return len(admitted) > 0 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-admitted; n != 0 {
		t.Error("it may run")
	}
	verdict := testdb.Value[string](t, db,
		"select h.verdict from core_tool_calls c, gem.hold_key(c.id, 1, 'w', 'n') h where c.tool_name = 'second'")
	if verdict != "hit" {
		t.Errorf("its verdict is then %s", verdict)
	}
}

// A child's insert keeps its parent from being pruned, and from nothing else.
func TestAnOpenInsertOfAChildHoldsItsParentInNoState(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour'), gem.start_worker('dead', 9, '', '', '1 "+
		"hour'); "+
		"insert into core_tool_calls (tool_name) values ('a.b')")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "insert into core_tool_calls (tool_name, parent_call_id) select 'a.child', id "+
		"from core_tool_calls"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, sql, status string }{
		{"a claim", "select gem.claim('w', 1, true)", "running"},
		{"handing over", "select gem.release(id, attempt, 'w') from core_tool_calls", "queued"},
		{"a retry", "select gem.retry(c.id, c.attempt, 'w', '{}', 9, '0') from gem.claim('w', 1, true) c", "queued"},
		{"recovery", "select gem.claim('dead', 1, true); update core_workers set alive_until = now() - interval '1 s' " +
			"where worker_id = 'dead'; select gem.recover('w', null)", "queued"},
		{"a key", "select gem.hold_key(c.id, c.attempt, 'w', 'k') from gem.claim('w', 1, true) c", "running"},
		{"a request to cancel", "select cancel_tool_call(id) from core_tool_calls", "running"},
		{"an end", "select gem.finish(id, attempt, 'w', 'failed', '{\"error\": {\"error_code\": \"x\", \"message\": " +
			"\"x\"}}', '{}', '1') from core_tool_calls", "failed"},
	} {
		testdb.Exec(t, db, "set lock_timeout = '1s'; "+c.sql+"; reset lock_timeout")
		if got := testdb.Value[string](t, db, "select status from core_tool_calls"); got != c.status {
			t.Fatalf("after %s it is %s", c.what, got)
		}
	}
}

// The call that was woken for a key may have to wait for a slot: otherwise each of the rest would be claimed, only to
// wait again.
func TestAHeartbeatWakesTheNextOfAKeyFiveSecondsLater(t *testing.T) {
	t.Parallel()
	db := crowd(t, 5)
	// wakes the first
	testdb.Exec(t, db, "select gem.release(id, attempt, 'w') from core_tool_calls where status = 'running'")
	testdb.Exec(t, db, "update core_tool_calls set updated_at = now() - interval '1 minute' where status = 'waiting'")
	for range 3 {
		testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', false)")
	}
	if n := number(t, db, stillWaiting); n != 3 {
		t.Errorf("%v wait", n)
	}
}

// Calls that others have locked keep a heartbeat from none of the rest.
func TestAHeartbeatPassesOverKeysWhoseCallsAreLocked(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 999, '', '', '1 hour'); insert into core_tool_calls (tool_name) "+
		"select "+
		"'a.b' from generate_series(1, 150)")
	testdb.Exec(t, db, `
		set session_replication_role = replica;
		update core_tool_calls set status = 'waiting', waits_for = 'key', computed_key = to_char(seq, '000'),
			updated_at = now() - interval '1 minute';
		set session_replication_role = origin`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "select from core_tool_calls where seq <= 120 for update"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', false)")
	if n := number(t, db, stillWaiting); n != 120 {
		t.Errorf("%v wait", n)
	}
}

// The rest of the queue must not wait for it, however many keys there are.
func TestAHeartbeatWakesThoseOfTwoHundredKeysAtMost(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 999, '', '', '1 hour'); insert into core_tool_calls (tool_name) "+
		"select "+
		"'a.b' from generate_series(1, 500)")
	testdb.Exec(t, db, `
		set session_replication_role = replica;
		update core_tool_calls set status = 'waiting', waits_for = 'key', computed_key = seq::text,
			updated_at = now() - interval '1 minute';
		set session_replication_role = origin`)
	for _, want := range []float64{300, 100, 0} {
		testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', false)")
		if n := number(t, db, stillWaiting); n != want {
			t.Fatalf("%v wait, not %v", n, want)
		}
	}
}

// Keys that calls hold do not delay heartbeats, however many there are, and hide no free key behind them.
func TestAHeartbeatLooksAtTwoHundredKeysAndThenAtTheNext(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 999, '', '', '1 hour'); insert into core_tool_calls (tool_name) "+
		"select "+
		"'a.b' from generate_series(1, 1000)")
	testdb.Exec(t, db, `
		set session_replication_role = replica;
		update core_tool_calls set status = 'waiting', waits_for = case when seq % 2 = 0 then 'key' else 'answer' end,
			computed_key = to_char((seq + 1) / 2, '0000'), updated_at = now() - interval '1 minute';
		update core_tool_calls set computed_key = null where computed_key = ' 0450' and waits_for = 'answer';
		set session_replication_role = origin`)
	for _, want := range []string{" 0200,500", " 0400,500", ",499", " 0200,499"} {
		testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', false)")
		if got := texts(t, db, `select coalesce(keys_from, '') || ',' || (select count(*) from core_tool_calls
			where waits_for = 'key') from core_workers`); got[0] != want {
			t.Fatalf("the last key and the number of waiting calls are %q, not %q", got[0], want)
		}
	}
}

// What a frontend does in a transaction that stays open keeps no call of others from being woken or cancelled.
func TestACancelledCallLocksNoOther(t *testing.T) {
	t.Parallel()
	db := crowd(t, 2)
	testdb.Exec(t, db, "select gem.release(id, attempt, 'w') from core_tool_calls where status = 'running'")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(),
		"select cancel_tool_call(id) from core_tool_calls where status = 'queued'"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "set lock_timeout = '100 ms'; select cancel_tool_call(id) from core_tool_calls where status = "+
		"'waiting'; reset lock_timeout")
	if n := number(t, db, stillWaiting); n != 0 {
		t.Errorf("%v wait", n)
	}
}

// Their key may have changed with the registry, or someone cancels them. Each wakes the next, and no heartbeat is
// needed.
func TestACallThatWasWokenAndEndsWithoutItsKeyWakesTheNext(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]string{
		"ended": "select gem.finish(id, attempt, 'w', 'failed', '{\"error\": {\"error_code\": \"x\", \"message\": " +
			"\"x\"}}', '{}', '1') from gem.claim('w', 1, true)",
		"cancelled while it runs": `select cancel_tool_call(id) from gem.claim('w', 1, true);
			select gem.finish(id, attempt, 'w', 'failed', '{"error": {"error_code": "cancelled", "message": "x"}}', '{}', '1')
				from core_tool_calls where status = 'running'`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := crowd(t, 5)
			testdb.Exec(t, db, "select gem.finish(id, attempt, 'w', 'failed', '{\"error\": {\"error_code\": \"x\", "+
				"\"message\": "+
				"\"x\"}}', '{}', '1') from core_tool_calls where computed_key = 'k' and status = 'running'")
			for want := 4.0; want >= 0; want-- {
				if n := number(t, db, stillWaiting); n != want {
					t.Fatalf("%v wait, not %v", n, want)
				}
				testdb.Exec(t, db, end)
			}
		})
	}
}

// By guessing, a signed-in user could otherwise learn what another sent.
func TestAHitTellsAUserNothingOfAnothersInput(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.start_worker('w', 9, '', '', '1 hour');
		insert into core_tool_calls (tool_name, created_by, input) values ('a.b', 'ada', '{"k": "x", "n": 1}')`)
	testdb.Exec(t, db, "select gem.hold_key(c.id, c.attempt, 'w', 'k') from gem.claim('w', 1, true) c")
	testdb.Exec(t, db, succeedHolder)
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name, created_by, input) values ('a.b', 'ada', '{"k": "x", "n": 1}'),
			('a.b', 'ada', '{"k": "x", "n": 2}'),
			('a.b', 'bob', '{"k": "x", "n": 1}'), ('a.b', 'bob', '{"k": "x", "n": 2}');
		update core_tool_calls set signed_in = true where status = 'queued'`)
	for refuse, want := range map[bool]string{
		false: "[false true unknown unknown]",
		true:  "[false true true true]", // a tool that refuses other inputs does not tell bob that his call succeeded
	} {
		got := fmt.Sprint(texts(t, db, fmt.Sprintf(`select coalesce(gem.input_differs(c.id, r.id, 'k', %t)::text, 'unknown')
			from core_tool_calls c, core_tool_receipts r where c.status = 'queued' order by c.seq`, refuse)))
		if got != want {
			t.Errorf("refuse %t: to ada and bob it says %s, want %s", refuse, got, want)
		}
	}
}

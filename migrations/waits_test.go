package migrations_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Claims and heartbeats do not read calls that wait for calls and times, however many there are.
func TestCallsThatWaitAreInNobodysWay(t *testing.T) {
	t.Parallel()
	calls := 20_000
	if os.Getenv("GEM_TEST_LONG") != "" {
		calls = 1_000_000
	}
	waiting := fmt.Sprintf(`set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, status, attempt, events, steps, run_at, created_at, updated_at, waits_for,
			waits, need, wake_at, computed_key)
			select gen_random_uuid(), 'a.b', 'waiting', 1, 3, 1, now(), now(), now() - interval '1 hour', case
				when i %% 2 = 0 then 'call' else 'time' end,
				'{x}', 1, case when i %% 2 = 1 then now() + interval '1 day' end, 'k' || i from generate_series(1, %d) i;
		set session_replication_role = origin`, calls)
	statements := map[string]string{
		"a claim":           "select count(*)::text from gem.claim('w', 10, true) where $1 <> ''",
		"a heartbeat":       "select count(*)::text from gem.heartbeat('w', '1 hour', array[$1::text::uuid], '{1}', false)",
		"a full heartbeat":  "select count(*)::text from gem.heartbeat('w', '1 hour', array[$1::text::uuid], '{1}', true)",
		"a look at timers":  "select gem.run_timers('w', 1000)::text where $1 <> ''",
		"a key":             "select gem.hold_key($1::text::uuid, 1, 'w', 'k')::text",
		"the end of a call": "select gem.finish($1::text::uuid, 1, 'w', 'succeeded', '{}', '{}', '1')::text",
		"a wait": "select gem.wait($1::text::uuid, 1, 'w', '[]', 'time', '{nap}', 1, '{\"nap\": 1000}', " +
			"null)::text",
		"a step": "select gem.step($1::text::uuid, 1, 'w', 'step', '{\"name\": \"x\"}', 0, false)::text",
	}
	for name, order := range map[string][]string{
		"with statistics":        {waiting, "analyze"},
		"with those from before": {"analyze", waiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
			testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
				"(tool_name) select 'a.b' from generate_series(1, 100)")
			for _, sql := range order {
				testdb.Exec(t, db, sql)
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
				if read > 600 { // a full heartbeat looks at the first of the queue, and at what earlier runs left dead
					t.Errorf("%s read %d rows and index entries", what, read)
				}
			}
		})
	}
}

// parked is a database in which the worker w ran a call of `parent` that made children of these names and waits for
// them.
func parked(t *testing.T, children string) *pgxpool.Pool {
	t.Helper()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
		"(tool_name) values ('parent')")
	testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w',
		(select jsonb_agg(jsonb_build_object('id', gen_random_uuid(), 'name', n, 'tool', n, 'input', '{}'::jsonb))
		from unnest('`+children+`'::text[]) n), 'call', '`+children+`', array_length('`+children+
		`'::text[], 1), '{}', null) from gem.claim('w', 1, true) c`)
	return db
}

// endParent ends the parent, which made progress, at once: it is asked for twice, while nobody runs it.
const endParent = "select cancel_tool_call(id) from core_tool_calls where tool_name = 'parent'; select " +
	"cancel_tool_call(id) from core_tool_calls where tool_name = 'parent'"

const succeed = "select gem.finish(c.id, c.attempt, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls c where " +
	"c.tool_name = "

// The parent's end asks for that of a child whose own time has come.
func TestTimersOfOneFamilyComeAtTheSameTime(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a}")
	testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w', '[]', 'time', '{nap}', 1, '{"nap": 5}', null)
		from gem.claim('w', 1, true) c`)
	testdb.Exec(t, db, endParent+"; select pg_sleep(0.02)")
	testdb.Exec(t, db, "select gem.run_timers('w', 99)")
	if got := texts(t, db, "select tool_name || ' ' || status || ' ' || (cancel_requested_at is not null) from "+
		"core_tool_calls order by 1"); strings.Join(got, ", ") != "a queued true, parent failed true" {
		t.Errorf("%v", got)
	}
}

// lockParent locks the row of the parent until unlock or the end of the test.
func lockParent(t *testing.T, db *pgxpool.Pool) (unlock func()) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err == nil {
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		_, err = tx.Exec(t.Context(), "select from core_tool_calls where tool_name = 'parent' for no key update")
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Each end is a commit of its own, but their parent is written once for all.
func TestChildrenThatEndAtTheSameTimeAreReportedTogether(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a,b,c,d}")
	testdb.Exec(t, db, "select gem.claim('w', 4, true)")
	unlock := lockParent(t, db)
	for _, child := range []string{"c", "a", "b", "d"} {
		if marked := testdb.Value[bool](t, db, `select gem.is_marked(c.id) from core_tool_calls c,
			gem.finish(c.id, c.attempt, 'w', 'succeeded', '{}', '{}', '1') where c.tool_name = $1`, child); !marked {
			t.Errorf("%s is not marked", child)
		}
	}
	unlock()
	testdb.Exec(t, db, `create table writes (); create function written() returns trigger language plpgsql as
		'begin insert into public.writes default values; return null; end';
		create trigger written after update on core_tool_calls for each row when (new.tool_name = 'parent')
			execute function written()`)
	testdb.Exec(t, db, "select gem.run_timers('w', 99)")
	const journal = `select string_agg(event || coalesce(' ' || (data ->> 'name'), ''), ', ' order by seq)
		from core_tool_events e where call_id = (select id from core_tool_calls where tool_name = 'parent') and seq > %d`
	before := number(t, db, "select count(*) from core_tool_events e join core_tool_calls c on c.id = e.call_id where "+
		"c.tool_name = 'parent' and e.event not in ('returned', 'woken')")
	if got := texts(t, db, fmt.Sprintf(journal, int(before))); got[0] !=
		"returned c, returned a, returned b, returned d, woken" {
		t.Errorf("%v", got)
	}
	if n := number(t, db, "select count(*) from writes"); n != 2 { // with the ends, and when it is woken
		t.Errorf("the parent was written %v times", n)
	}
	if n := number(t, db,
		"select count(*) from core_tool_calls where waits_for = 'parent' or wake_at is not null"); n != 0 {
		t.Errorf("%v are still marked", n)
	}
}

// A parent often writes its own wait while its children end. The end of one child waits until the parent is unlocked.
// The ends of further children do not wait meanwhile: they are reported later.
func TestTheEndOfAChildWaitsForItsLockedParent(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a,b}")
	testdb.Exec(t, db, "alter function gem.lock_soon(uuid) set lock_timeout = '1 min'; select gem.claim('w', 2, true)")
	unlock := lockParent(t, db)
	ended := make(chan error, 1)
	go func() {
		_, err := db.Exec(t.Context(), succeed+"'a'")
		ended <- err
	}()
	testdb.Eventually(t, "the end of a to wait", func() bool {
		return number(t, db, "select count(*) from pg_stat_activity where datname = current_database() and "+
			"wait_event_type = 'Lock'") > 0
	})
	testdb.Exec(t, db, succeed+"'b'")
	unlock()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := texts(t, db, "select tool_name || ' ' || coalesce(waits_for, 'is reported') from core_tool_calls where "+
		"tool_name in ('a', 'b') order by 1"); strings.Join(got, ", ") != "a is reported, b parent" {
		t.Errorf("%v", got)
	}
}

// The timer of a child is reached in the run in which its parent's end cancels it.
func TestAChildThatItsParentsEndCancelsIsReportedInTheSameRun(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a}")
	testdb.Exec(t, db, endParent+"; update core_tool_calls set wake_at = now() - interval '1 s' where tool_name = 'a'")
	testdb.Exec(t, db, "select gem.run_timers('w', 99)")
	if got := texts(t, db, "select status || ' ' || coalesce(waits_for, 'reported') from core_tool_calls where "+
		"tool_name = 'a'"); got[0] != "failed reported" {
		t.Errorf("%v", got)
	}
}

// A frontend may keep the parent's row locked for as long as it likes.
func TestALockedParentIsToldLater(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a,b}")
	testdb.Exec(t, db, "select gem.claim('w', 2, true)")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(),
		"select cancel_tool_call(id) from core_tool_calls where tool_name = 'parent'"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, succeed+"'a'")
	testdb.Exec(t, db, "select gem.run_timers('w', 99)")
	returned := "select count(*) from core_tool_events where event = 'returned'"
	if n := number(t, db, returned); n != 0 {
		t.Fatalf("%v returned", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, succeed+"'b'")
	testdb.Exec(t, db, "update core_tool_calls set wake_at = now() - interval '1 s' where waits_for = 'parent'; select "+
		"gem.run_timers('w', 99)")
	if n := number(t, db, returned); n != 2 {
		t.Errorf("%v returned", n)
	}
	if n := number(t, db,
		"select count(*) from core_tool_calls where tool_name = 'parent' and status = 'queued'"); n != 1 {
		t.Error("the parent was not woken")
	}
}

// What a frontend does in a transaction that stays open keeps no call of the family from ending.
func TestACancelledChildLocksNotItsParent(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a,b}")
	testdb.Exec(t, db, "select gem.claim('w', 2, true); select gem.release(id, attempt, 'w') from core_tool_calls where "+
		"tool_name = 'a'")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(),
		"select cancel_tool_call(id) from core_tool_calls where tool_name = 'a'"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, succeed+"'b'")
	if n := number(t, db, "select count(*) from core_tool_events where event = 'returned'"); n != 1 {
		t.Errorf("%v returned", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "select gem.run_timers('w', 99)")
	if n := number(t, db,
		"select count(*) from core_tool_calls where tool_name = 'parent' and status = 'queued'"); n != 1 {
		t.Error("the parent was not woken")
	}
}

// A call that was tried again before it waited is due when it is woken.
func TestAWokenCallIsDueThoughTheClockWentBack(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a}")
	testdb.Exec(t, db, "update core_tool_calls set run_at = now() + interval '1 hour' where tool_name = 'parent'; select "+
		"gem.claim('w', 1, true)")
	testdb.Exec(t, db, succeed+"'a'")
	if got := texts(t, db, "select tool_name from gem.claim('w', 9, true)"); len(got) != 1 {
		t.Errorf("%v was claimed", got)
	}
}

// So is one that comes back in any other way.
func TestACallThatComesBackIsDueThoughTheClockWentBack(t *testing.T) {
	t.Parallel()
	for what, back := range map[string]string{
		"released": "select gem.release(id, attempt, 'w') from core_tool_calls where tool_name = 'b'",
		"lost":     "update core_tool_calls set claimed_by = 'gone' where tool_name = 'b'; select gem.recover('w', null)",
		"woken": "select gem.hold_key(id, attempt, 'w', 'k') from core_tool_calls where tool_name in ('a', 'b') order " +
			"by seq; select gem.release(id, attempt, 'w') from core_tool_calls where tool_name = 'a'",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, "select gem.start_worker('w', 99, '', '', '1 hour'); insert into core_tool_calls (tool_name) "+
				"values "+
				"('a'), ('b')")
			testdb.Exec(t, db, "select gem.claim('w', 9, true); update core_tool_calls set run_at = now() + interval '1 hour' "+
				"where tool_name = 'b'")
			testdb.Exec(t, db, back)
			if n := number(t, db, "select count(*) from gem.claim('w', 9, true) where tool_name = 'b'"); n != 1 {
				t.Error("it was not claimed")
			}
		})
	}
}

// A worker of a program before children would judge a child as if a frontend had made it.
func TestAChildIsGivenOnlyToWorkersThatKnowSteps(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a}")
	testdb.Exec(t, db, "select gem.start_worker('before', 9, '', '', '1 hour')")
	if n := number(t, db, "select count(*) from gem.claim('before', 9, true)"); n != 0 {
		t.Errorf("it got %v", n)
	}
	if n := number(t, db, "select count(*) from gem.claim('w', 9, true)"); n != 1 {
		t.Errorf("the other got %v", n)
	}
}

// A call that waits for another, or for a time, has no slot.
func TestWhoSleepsDoesNotCrowd(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "select gem.start_worker('w', 8, '', '', '1 hour', '{steps}')")
	for range 3 {
		if _, err := request(t, db, "authenticated", "ada",
			"insert into core_tool_calls (tool_name) values ('a.b')"); err != nil {
			t.Fatal(err)
		}
		testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w', '[]', 'time', '{nap}', 1, '{"nap": 5000000}', null)
			from gem.claim('w', 1, true) c`)
	}
	if n := number(t, db, "select count(*) from core_tool_calls where level < 0"); n != 0 {
		t.Errorf("%v are background", n)
	}
}

// That a caller's calls waited gives them no slots that others need.
func TestAWokenCallOfACallerThatCrowdsIsBackground(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 8, '', '', '1 hour', '{steps}')")
	for range 5 { // one after another, since none needs a slot while it waits
		testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by, priority) values ('nap', 'ada', 3)")
		testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w', '[]', 'time', '{nap}', 1, '{"nap": 5}', null)
			from gem.claim('w', 1, true) c`)
	}
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('quick', 'grace')")
	testdb.Exec(t, db, "select pg_sleep(0.02); select gem.run_timers('w', 99)")
	if got := texts(t, db, "select tool_name from gem.claim('w', 3, true) c order by c.level desc, c.seq"); strings.Join(
		got, " ") != "nap nap quick" {
		t.Errorf("%v were claimed first", got)
	}
	if got := texts(t, db, "select tool_name from gem.claim('w', 9, true)"); len(got) != 3 {
		t.Errorf("%v came after them", got)
	}
}

// It may kill its worker at each step. Its progress spends no attempts, and says nothing about the workers.
func TestACallThatMakesProgressAndLosesItsWorkersIsSuspected(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('leak'), ('other')")
	for i := range 2 {
		w := fmt.Sprintf("w%d", i)
		testdb.Exec(t, db, "select gem.start_worker('"+w+"', 9, '', '', '1 hour', '{steps}')")
		testdb.Exec(t, db, fmt.Sprintf(`select gem.step(c.id, c.attempt, '%s', 'step', '{"name": "s%d"}', %d, false)
			from gem.claim('%[1]s', 1, true) c`, w, i, i))
		testdb.Exec(t, db, "update core_workers set alive_until = now(); select gem.recover('x', null)")
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}')")
	if got := texts(t, db,
		"select tool_name || losses || kills from core_tool_calls where tool_name = 'leak'"); got[0] != "leak12" {
		t.Errorf("its losses and kills: %v", got)
	}
	if got := texts(t, db, "select tool_name from gem.claim('w', 9, false)"); len(got) != 1 || got[0] != "other" {
		t.Errorf("a worker with a suspect took %v", got)
	}
	testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w', '[]', 'time', '{nap}', 1, '{"nap": 5}', null)
		from gem.claim('w', 1, true) c`)
	testdb.Exec(t, db, "select pg_sleep(0.02); select gem.run_timers('w', 99)")
	if got := texts(t, db, "select tool_name from gem.claim('w', 9, false)"); len(got) != 1 {
		t.Error("it waited, and is suspected still")
	}
}

// What a call that has ended leaves to be done is due whatever the clock says.
func TestFamiliesEndThoughTheClockWentBack(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a,b}")
	testdb.Exec(t, db, "select gem.claim('w', 1, true); select cancel_tool_call(id) from core_tool_calls where "+
		"tool_name = 'b'")
	testdb.Exec(t, db, `create or replace function gem.now() returns timestamptz
		language sql volatile as 'select pg_catalog.clock_timestamp() - interval ''10 minutes'''`)
	testdb.Exec(t, db, "select gem.run_timers('w', 99)")
	if n := number(t, db, "select count(*) from core_tool_events where event = 'returned'"); n != 1 {
		t.Error("the parent does not know of the cancelled child")
	}
	testdb.Exec(t, db, endParent+"; select gem.run_timers('w', 99)")
	if n := number(t, db, "select count(*) from core_tool_calls where tool_name = 'a' and cancel_requested_at is not "+
		"null"); n != 1 {
		t.Error("the child that runs was not asked to end")
	}
}

// What came is not waited for again, so that nothing but the rest wakes the call.
func TestACallWaitsForWhatHasNotCome(t *testing.T) {
	t.Parallel()
	db := parked(t, "{a,b,c}")
	testdb.Exec(t, db, "update core_tool_calls set need = 1 where tool_name = 'parent'; select gem.claim('w', 3, true)")
	testdb.Exec(t, db, succeed+"'a'")
	testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w', '[]', 'call', '{a,b,c}', 3, '{}', null)
		from gem.claim('w', 1, true) c`)
	if got := texts(t, db,
		"select waits::text || need from core_tool_calls where tool_name = 'parent'"); got[0] != "{b,c}2" {
		t.Errorf("it waits for %v", got)
	}
}

// The first call of a level in a transaction that stays open keeps no timer and no child waiting.
func TestACallIsWokenWhileItsLevelIsBeingAdded(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 4, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
		"(tool_name, created_by, priority) values ('nap', 'ada', -7), ('nap', 'grace', 0)")
	testdb.Exec(t, db, `select gem.wait(c.id, c.attempt, 'w', '[]', 'time', '{nap}', 1, '{"nap": 5}', null)
		from gem.claim('w', 9, true) c`)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by, priority, run_at) values ('later', 'ada', "+
		"-7, "+
		"now() + interval '1 hour')")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "insert into core_tool_calls (tool_name, created_by, priority) values ('x', "+
		"'ada', -7)"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "select pg_sleep(0.02); set statement_timeout = '5s'; select gem.run_timers('w', 99); reset "+
		"statement_timeout")
	if got := texts(t, db, "select created_by || level from core_tool_calls where status = 'queued' and tool_name = "+
		"'nap' order by 1"); strings.Join(got, " ") != "ada-500 grace0" {
		t.Errorf("%v", got)
	}
}

// Progress resets the count of attempts, and the call does not wait for the end of an earlier pause.
func TestACallThatMadeProgressIsDueThoughTheClockWentBack(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
		"(tool_name) values ('a'), ('b')")
	testdb.Exec(t, db, "select gem.retry(c.id, c.attempt, 'w', '{}', 9, '1 ms') from gem.claim('w', 9, true) c; select "+
		"pg_sleep(0.02)")
	testdb.Exec(t, db, "select gem.claim('w', 9, true)")
	testdb.Exec(t, db, "select gem.wait(id, 2, 'w', '[]', 'answer', '{#answer}', 1, '{}', null), answer_tool_call(id, "+
		"'1') "+
		"from core_tool_calls where tool_name = 'a'")
	testdb.Exec(t, db, `select gem.step(id, 2, 'w', 'step', '{"name": "x"}', 0, false), gem.release(id, 2, 'w')
		from core_tool_calls where tool_name = 'b'`)
	testdb.Exec(t, db, `create or replace function gem.now() returns timestamptz
		language sql volatile as 'select pg_catalog.clock_timestamp() - interval ''1 hour'''`)
	testdb.Exec(t, db, "select gem.heartbeat('w', '1 hour', '{}', '{}', true)")
	if got := texts(t, db, "select tool_name from gem.claim('w', 9, true)"); len(got) != 2 {
		t.Errorf("%v were claimed", got)
	}
}

// Cleaning up has pauses, as all else has.
func TestACallThatCleansUpPausesBetweenItsAttempts(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
		"(tool_name) values ('a')")
	testdb.Exec(t, db, `select gem.step(c.id, 1, 'w', 'step', '{"name": "x"}', 0, false), cancel_tool_call(c.id)
		from gem.claim('w', 9, true) c`)
	for _, want := range []string{"1", "0"} { // at once, to begin with it
		testdb.Exec(t, db, "select gem.retry(id, attempt, 'w', '{}', 9, '1 hour') from core_tool_calls where status = "+
			"'running'")
		if got := texts(t, db, "select count(*)::text from gem.claim('w', 9, true)"); got[0] != want {
			t.Errorf("%v were claimed, want %s", got, want)
		}
	}
}

// A call that has nothing to clean up ends at once, however many attempts it has had.
func TestACancelledCallWithoutProgressDoesNotPause(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour', '{steps}'); insert into core_tool_calls "+
		"(tool_name) values ('a')")
	testdb.Exec(t, db, "select gem.retry(c.id, 1, 'w', '{}', 9, '1 ms') from gem.claim('w', 9, true) c; select "+
		"pg_sleep(0.02)")
	testdb.Exec(t, db, "select cancel_tool_call(c.id), gem.retry(c.id, 2, 'w', '{}', 9, '1 hour') from gem.claim('w', 9, "+
		"true) c")
	if got := texts(t, db, "select tool_name from gem.claim('w', 9, true)"); len(got) != 1 {
		t.Errorf("%v were claimed", got)
	}
}

// An answered question ends with its answer, so a request for its end changes nothing: a hundred of them must not keep
// others from being asked, or have the parent looked at forever.
func TestAnsweredQuestionsDoNotKeepOtherChildrenFromEnding(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `select gem.start_worker('w', 99, '', '', '1 hour', '{steps}');
		insert into core_tool_calls (tool_name) values ('parent')`)
	testdb.Exec(t, db, `with child as (
			select n, case when n <= 100 then 'wait.answer' else 'other' end as tool from generate_series(1, 102) n)
		select gem.wait(c.id, c.attempt, 'w', (select jsonb_agg(jsonb_build_object('id', gen_random_uuid(),
			'name', to_char(n, 'FM000'), 'tool', tool, 'input', '{"text": "?"}'::jsonb)) from child),
			'call', '{001}', 1, '{}', null) from gem.claim('w', 1, true) c`)
	testdb.Exec(t, db, `select answer_tool_call(id, '"x"') from core_tool_calls where tool_name = 'wait.answer'`)
	testdb.Exec(t, db, endParent)
	testdb.Exec(t, db, "select gem.run_timers('w', 1)")
	if n := number(t, db, "select count(*) from core_tool_calls where tool_name = 'other' and status = 'queued'"); n != 0 {
		t.Errorf("%v children have not ended", n)
	}
	if n := number(t, db,
		"select count(*) from core_tool_calls where tool_name = 'parent' and wake_at is not null"); n != 0 {
		t.Error("the parent is to be looked at again")
	}
	if n := number(t, db,
		"select count(*) from core_tool_calls where tool_name = 'wait.answer' and status = 'queued'"); n != 100 {
		t.Errorf("%v answered questions are open", n)
	}
	testdb.Exec(t, db, "select gem.run_timers('w', 9)") // they tell it of their ends
	testdb.Exec(t, db, "update core_tool_calls set updated_at = updated_at - interval '2 minutes'")
	report, err := audit.Database(t.Context(), db, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range report.Checks {
		if check.Check == "wake-due" && check.Found > 0 {
			t.Errorf("audit: %+v", check)
		}
	}
}

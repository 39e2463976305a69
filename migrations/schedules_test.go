package migrations_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// schedule saves a schedule of a.b, and returns its database.
func schedule(t *testing.T, cron, options string) *pgxpool.Pool {
	t.Helper()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "select gem.save_schedule('s', $1, 'a.b', '{\"at\": \"{due_at}\"}', 'UTC', $2)", cron, options)
	return db
}

// since makes a schedule look as if it had been saved some time ago, and as if no worker had run since. It ends with
// this minute, so a test does not see the next one.
func since(t *testing.T, db *pgxpool.Pool, ago string) {
	t.Helper()
	testdb.Exec(t, db, `update gem.schedules set since = date_trunc('minute', now()) - $1::text::interval,
		next_at = gem.cron_next(cron, zone, date_trunc('minute', now()) - $1::text::interval),
		look_at = case when paused is null then now() end, ends_at = date_trunc('minute', now())`, ago)
}

func tick(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	testdb.Exec(t, db, "update gem.schedules set look_at = now() where held_at is not null")
	testdb.Exec(t, db, "select gem.run_timers('w', 1000)")
}

// occurrences returns the outcomes of the instants, in order, such as "call, 3 missed, overlap".
func occurrences(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	return testdb.Value[string](t, db, `select coalesce(string_agg(concat_ws(' ',
		case when count is null then 'many' when count > 1 then count::text end, case when backfilled then 'again' end,
		coalesce(skipped, 'call')), ', ' order by due_at, backfilled), '') from gem.occurrences`)
}

func TestAnInstantOfAScheduleBecomesOneCall(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", `{"session_id": "daily", "priority": 3}`)
	tick(t, db)
	if got := occurrences(t, db); got != "" {
		t.Fatal("before the instant:", got)
	}
	since(t, db, "1 minute")
	tick(t, db)
	tick(t, db)
	if got := occurrences(t, db); got != "call" {
		t.Fatal(got)
	}
	if got := testdb.Value[string](t, db, `select concat_ws(' ', c.tool_name, c.session_id, c.priority, c.signed_in,
		c.created_by, (c.input ->> 'at')::timestamptz = o.due_at, s.next_at is null)
		from gem.occurrences o join core_tool_calls c on c.id = o.call_id, gem.schedules s`); got != "a.b daily 3 f t t" {
		t.Error(got)
	}
}

// After a failover, the server may lack the occurrence whose call a worker restores.
func TestACallOfAnInstantThatWasRestoredIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", "{}")
	since(t, db, "1 minute")
	testdb.Exec(t, db, "insert into core_tool_calls (id, tool_name) select gem.receipt_id(gem.receipt_id(id, next_at), "+
		"next_at), 'a.b' from gem.schedules")
	tick(t, db)
	if got := occurrences(t, db); got != "call" || testdb.Value[int](t, db, "select count(*) from core_tool_calls") != 1 {
		t.Error(got)
	}
}

func TestMissedInstants(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]string{
		`{"missed": "skip"}`: "58 missed, call",
		`{}`:                 "57 missed, call, overlap",
		`{"missed": "one", "missed_within": "30 seconds"}`:                      "58 missed, call",
		`{"missed": "all", "overlap": "allow", "missed_within": "230 seconds"}`: "55 missed, call, call, call, call",
		`{"missed": "all"}`: "call" + strings.Repeat(", overlap", 58),
	} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			db := schedule(t, "* * * * *", options)
			// the numbers hold until the next minute begins
			for testdb.Value[float64](t, db, "select extract(second from clock_timestamp())") > 45 {
				time.Sleep(time.Second)
			}
			since(t, db, "59 minutes")
			tick(t, db)
			if got := occurrences(t, db); got != want {
				t.Errorf("%s: %s", options, got)
			}
		})
	}
}

func TestALongOutageIsOneRow(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", `{"missed": "skip"}`)
	since(t, db, "300 days")
	tick(t, db)
	if got := occurrences(t, db); got != "many missed, call" {
		t.Error(got)
	}
}

func TestOfManyLateInstantsTheFirstThousandRun(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", `{"missed": "all", "overlap": "allow", "missed_within": "31 days"}`)
	since(t, db, "20 hours")
	for testdb.Value[bool](t, db, "select coalesce(next_at <= now(), false) from gem.schedules") {
		tick(t, db)
	}
	// a machine that makes a thousand calls in more than four seconds needs several looks, and each begins to count
	if got := occurrences(t, db); !strings.HasPrefix(got, strings.Repeat("call, ", 1000)) {
		t.Error(got[:200])
	} else if rest := got[6000:]; !strings.HasPrefix(rest, "199 missed, call") && !strings.HasPrefix(rest, "call, ") {
		t.Error(rest)
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	for overlap, want := range map[string]struct{ open, ended string }{
		"skip":   {"call, overlap, overlap", "call, overlap, overlap, call"},
		"queue":  {"call, overlap", "call, call, overlap, call"}, // the second waits, and comes before the next instant
		"cancel": {"call, call, call", "call, call, call, call"},
		"allow":  {"call, call, call", "call, call, call, call"},
	} {
		t.Run(overlap, func(t *testing.T) {
			t.Parallel()
			db := schedule(t, "0 0 1 1 *", `{"overlap": "`+overlap+`"}`)
			due := func(at string) {
				testdb.Exec(t, db, "update gem.schedules set cron = '* * * * *', next_at = $1::text::timestamptz, "+
					"look_at = now(), since = $1::text::timestamptz - interval '1 minute', ends_at = $1::text::timestamptz", at)
				tick(t, db)
			}
			minutes := testdb.Value[[]string](t, db, `
				select array_agg((date_trunc('minute', now()) - n * interval '1 second')::text)
				from generate_series(3, 0, -1) n`)
			for _, at := range minutes[:3] {
				due(at)
			}
			if got := occurrences(t, db); got != want.open {
				t.Errorf("while the call is open: %s", got)
			}
			if cancelled := testdb.Value[int](t, db,
				"select count(*) from core_tool_calls where status = 'failed'"); (cancelled == 2) != (overlap == "cancel") {
				t.Errorf("%d calls were cancelled", cancelled)
			}
			testdb.Exec(t, db, "select gem.cancel(id) from core_tool_calls where status = 'queued'")
			tick(t, db)
			testdb.Exec(t, db, "select gem.cancel(id) from core_tool_calls where status = 'queued'")
			due(minutes[3])
			if got := occurrences(t, db); got != want.ended {
				t.Errorf("after its end: %s", got)
			}
		})
	}
}

func TestAPauseRecordsItsInstants(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", "{}")
	testdb.Exec(t, db, "select gem.pause_schedule('s', null, 'ann', 'holiday')")
	since(t, db, "5 minutes")
	tick(t, db)
	if got := occurrences(t, db); got != "" {
		t.Fatal("during the pause:", got)
	}
	testdb.Exec(t, db, "select gem.resume_schedule('s', null, 'ann')")
	tick(t, db)
	if got := occurrences(t, db); got != "5 paused" {
		t.Error(got)
	}
	if got := testdb.Value[string](t, db, "select detail from gem.occurrences"); got != "ann: holiday" {
		t.Error(got)
	}
}

func TestChangesDuringAPauseLoseNoInstant(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"gem.save_schedule('s', '@daily', 'a.b')", "gem.remove_schedule('s')"} {
		db := schedule(t, "* * * * *", "{}")
		testdb.Exec(t, db, "select gem.pause_schedule('s', null, 'ann')")
		since(t, db, "5 minutes")
		testdb.Exec(t, db, "select "+change)
		if got := occurrences(t, db); got != "5 paused" {
			t.Errorf("%s: %s", change, got)
		}
	}
}

// A worker that failed at a schedule looks at it again a minute later.
func TestAChangeBeforeTheNextLookLosesNoInstant(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"gem.save_schedule('s', '@yearly', 'a.b')", "gem.remove_schedule('s')",
		"gem.pause_schedule('s')"} {
		db := schedule(t, "* * * * *", "{}")
		since(t, db, "1 minute")
		testdb.Exec(t, db, "update gem.schedules set look_at = now() + interval '1 minute'")
		testdb.Exec(t, db, "select "+change)
		if got := occurrences(t, db); got != "call" {
			t.Errorf("%s: %s", change, got)
		}
	}
}

func TestACallThatCannotBeCancelledForTheNextOneIsWaitedFor(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", `{"overlap": "cancel"}`)
	since(t, db, "1 minute")
	tick(t, db)
	tx, err := db.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "select from core_tool_calls for update"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "update gem.schedules set since = due_at, next_at = due_at + interval '1 second', "+
		"ends_at = due_at + interval '1 second', look_at = now() from gem.occurrences")
	testdb.Exec(t, db, "select gem.run_timers('w', 1000)")
	var refused *pgconn.PgError
	_, err = db.Exec(context.Background(), "select gem.remove_schedule('s')")
	if !errors.As(err, &refused) || refused.Code != "PT409" || occurrences(t, db) != "call" {
		t.Errorf("%v, %s", err, occurrences(t, db))
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "select gem.remove_schedule('s')")
	if got := occurrences(t, db); got != "call, call" {
		t.Error(got)
	}
}

func TestSavingAScheduleLosesNoInstant(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", "{}")
	since(t, db, "1 minute")
	next := "select gem.save_schedule('s', $1, 'a.b', '{}', 'UTC', '{}')"
	testdb.Exec(t, db, next, "0 0 1 1 *")
	if got := occurrences(t, db); got != "call" {
		t.Fatal("the due instant of the old expression:", got)
	}
	at := "select next_at from gem.schedules"
	before := testdb.Value[time.Time](t, db, at)
	testdb.Exec(t, db, "update gem.schedules set next_at = next_at + interval '1 hour'") // as by rules of another year
	testdb.Exec(t, db, next, "0 0 1 1 *")
	if got := testdb.Value[time.Time](t, db, at); !got.Equal(before.Add(time.Hour)) {
		t.Errorf("the same expression has moved the next instant to %s", got)
	}
	testdb.Exec(t, db, "select gem.remove_schedule('s', p_by => 'ann')")
	testdb.Exec(t, db, next, "@daily")
	if got := testdb.Value[int](t, db, "select count(*) from gem.schedules"); got != 2 {
		t.Errorf("there are %d schedules", got)
	}
}

func TestAnInstantThatIsRefusedIsRecorded(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", "{}")
	testdb.Exec(t, db, "select gem.save_schedule('other', '* * * * *', 'a.b')")
	testdb.Exec(t, db, `create function refuse() returns trigger language plpgsql as
		$$ begin if new.input ? 'at' then raise 'no %', chr(10); end if; return new; end $$;
		create trigger refuse before insert on core_tool_calls for each row execute function refuse()`)
	since(t, db, "1 minute")
	tick(t, db)
	if got := testdb.Value[string](t, db, "select string_agg(coalesce(o.skipped || ' ' || o.detail, 'call'), ', ' "+
		"order by s.name) from gem.occurrences o join gem.schedules s on s.id = o.schedule_id"); got != "call, refused no ?" {
		t.Error(got)
	}
}

func TestBackfillMakesTheCallsThatAreMissing(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", `{"missed": "skip"}`)
	since(t, db, "5 minutes")
	tick(t, db)
	fill := "select gem.backfill_schedule('s', now() - interval '1 hour', now() + interval '1 hour')"
	if got := testdb.Value[int](t, db, fill); got < 59 || got > 60 {
		t.Errorf("%d calls were made", got)
	}
	if got := testdb.Value[int](t, db, fill); got != 0 {
		t.Errorf("%d calls were made again", got)
	}
	if twice := testdb.Value[int](t, db, "select count(*) - count(distinct due_at) from gem.occurrences "+
		"where call_id is not null"); twice != 0 {
		t.Errorf("%d instants have two calls", twice)
	}
	for what, set := range map[string]string{
		"more than 1000 instants": "tool_name = tool_name",
		"tool_name must be":       "tool_name = ''", // a call that is refused
		"has removed the record":  "pruned_upto = now() - interval '1 hour'",
	} {
		testdb.Exec(t, db, "update gem.schedules set pruned_upto = null, tool_name = 'a.b'")
		testdb.Exec(t, db, "update gem.schedules set "+set)
		_, err := db.Exec(context.Background(), "select gem.backfill_schedule('s', now() - interval '1 day', now())")
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("no %q: %v", what, err)
		}
	}
	testdb.Exec(t, db, "update gem.schedules set pruned_upto = null, tool_name = 'a.b', "+
		"ends_at = now() - interval '30 days'")
	if got := testdb.Value[int](t, db, "select gem.backfill_schedule('s', now() - interval '1 day', now())"); got != 0 {
		t.Errorf("%d calls were made after the schedule's end", got)
	}
}

func TestManyWorkersMakeOneCallOfEachInstant(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `select gem.save_schedule('s' || n, '* * * * *', 'a.b', '{}', 'UTC',
		'{"overlap": "allow", "missed": "all", "jitter": "1 minute"}') from generate_series(1, 150) n`)
	since(t, db, "5 minutes")
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() { tick(t, db) })
	}
	workers.Wait()
	for testdb.Value[int](t, db, "select gem.run_timers('w', 1000)") >= 1000 {
		continue
	}
	if got := testdb.Value[string](t, db, `select concat_ws(' ', (select count(*) from core_tool_calls),
		count(distinct (schedule_id, due_at)), count(call_id)) from gem.occurrences`); got != "750 750 750" {
		t.Error(got)
	}
	if at := testdb.Value[int](t, db, "select count(distinct run_at - created_at) from core_tool_calls"); at < 100 {
		t.Errorf("the calls begin at %d different times", at)
	}
}

func TestAScheduleThatCannotBeSavedIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "insert into gem.tools values ('a.b', true, '{}')")
	for arguments, want := range map[string]string{
		"'a b', '@daily', 'a.b'":                                                "the name \"a b\" is not possible",
		"'s', '@daily', 'a.c'":                                                  "the registry has no tool a.c",
		"'s', '@daily', 'a.b', '[]'":                                            "the input must be a JSON object",
		"'s', '@daily', 'a.b', '{}', 'Europe/Berlim'":                           "the time zone Europe/Berlim is unknown",
		"'s', '@daily', 'a.b', '{}', 'Europe/Berlin3'":                          "the time zone Europe/Berlin3 is unknown",
		"'s', '@daily', 'a.b', '{}', 'Etc/GMT+15'":                              "the time zone Etc/GMT+15 is unknown",
		"'s', '@daily', 'a.b', '{}', 'UTC', '[]'":                               "the options must be a JSON object",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"starts_at\": \"infinity\"}'":    "starts_at is infinity",
		"'s', '@daily', 'a.b', '{}', 'CEST'":                                    "the time zone CEST is unknown",
		"'s', '@daily', 'a.b', '{}', null":                                      "the time zone null is unknown",
		"'s', '@daily', 'a.b', '{}', 'CEST-2'":                                  "the time zone CEST-2 is unknown",
		"'s', '0 0 31 2 *', 'a.b'":                                              "has no instant in eight years",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"x\": 1}'":                       "schedules do not have the option x",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"missed\": \"x\"}'":              "missed is x, and can be",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"overlap\": \"x\"}'":             "overlap is x, and can be",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"jitter\": \"2h\"}'":             "jitter is 02:00:00, and can be",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"jitter\": \"x\"}'":              "the options cannot be read",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"priority\": 2000}'":             "priority is 2000, and can be",
		"'s', '@daily', 'a.b', '{}', 'UTC', '{\"missed_within\": \"32 days\"}'": "missed_within is",
		"'s', '@yearly', 'a.b', '{}', 'UTC', '{\"ends_at\": \"2026-12-01\"}'":   "the schedule would never run",
	} {
		_, err := db.Exec(context.Background(), "select gem.save_schedule("+arguments+")")
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "PT422" || !strings.Contains(refused.Message, want) {
			t.Errorf("%s: %v, and not %s", arguments, err, want)
		}
	}
	for _, sql := range []string{"gem.pause_schedule('x')", "gem.resume_schedule('x')", "gem.remove_schedule('x')",
		"gem.run_schedule_now('x')", "gem.backfill_schedule('x', now(), now())"} {
		_, err := db.Exec(context.Background(), "select "+sql)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "PT404" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := testdb.Value[int](t, db, "select count(*) from gem.schedules"); n != 0 {
		t.Errorf("%d schedules were saved", n)
	}
}

func TestTheTimesOfAnInputAreFilledIn(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	got := testdb.Value[string](t, db, `select gem.fill_times('{"{due_at}": ["from {previous_at} to {due_at}", 7, null, "",
		"{{due_at}, {x} and }}"]}', '2026-11-29 10:00+00', '2026-11-28 10:00+00')::text`)
	want := `{"2026-11-29T10:00:00Z": ["from 2026-11-28T10:00:00Z to 2026-11-29T10:00:00Z", 7, null, "", "{due_at}, {x} and }}"]}`
	if got != want {
		t.Error(got)
	}
}

func TestPruneKeepsTheLastOccurrenceAndWhatFollowsAnother(t *testing.T) {
	t.Parallel()
	db := schedule(t, "* * * * *", `{"missed": "all", "overlap": "allow"}`)
	since(t, db, "4 minutes")
	tick(t, db)
	count := func() int { return testdb.Value[int](t, db, "select count(*) from gem.occurrences") }
	before := count()
	prune := "select gem.prune_occurrences(10, $1::text::timestamptz)"
	testdb.Exec(t, db, prune, "2020-01-01")
	if n := count(); n != before {
		t.Errorf("%d of %d young rows are left", n, before)
	}
	if n := testdb.Value[int](t, db, prune, "2100-01-01"); n != 1 || count() != 1 {
		t.Errorf("%d schedules were pruned, and %d rows are left", n, count())
	}
	if n := testdb.Value[int](t, db, prune, "2100-01-01"); n != 0 {
		t.Errorf("%d schedules were pruned again", n)
	}
	if got := testdb.Value[string](t, db, "select (s.pruned_upto < o.due_at)::text from gem.schedules s, "+
		"gem.occurrences o"); got != "true" {
		t.Error("the schedule does not know up to when it was pruned")
	}
	testdb.Exec(t, db, "insert into gem.occurrences (schedule_id, due_at, upto, count, skipped, at) select schedule_id, "+
		"due_at + n * interval '1 second', due_at + n * interval '1 second', 1, 'overlap', at from gem.occurrences, "+
		"generate_series(1, 3) n")
	testdb.Exec(t, db, prune, "2100-01-01")
	if n := count(); n != 4 {
		t.Errorf("of the last call and the three instants since, %d rows are left", n)
	}
	testdb.Exec(t, db, "select gem.remove_schedule('s')")
	testdb.Exec(t, db, prune, "2100-01-01")
	if n := testdb.Value[int](t, db, "select count(*) from gem.schedules"); n != 0 || count() != 0 {
		t.Errorf("%d schedules and %d rows are left of a removed one", n, count())
	}
}

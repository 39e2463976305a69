package migrations_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ended is SQL that inserts n receipts of a tool as they would have been written in the last hour, with durations from
// a tenth of a millisecond to some minutes; every tenth failed, was refused or was cancelled in turn, and every fifth
// repeats another.
func ended(tool string, n int) string {
	return fmt.Sprintf(`
		set session_replication_role = replica; -- no calls stand behind them
		insert into core_tool_receipts (id, call_id, tool_name, status, result, attempt, created_at, duration, replay_of)
		select (left(gem.first_id_at(at)::text, 15) || right(gen_random_uuid()::text, 21))::uuid, gen_random_uuid(), '%s',
			case when i %% 10 = 0 then 'failed' else 'succeeded' end,
			jsonb_build_object('error', jsonb_build_object('message', 'no', 'error_code',
				(array['execution_error', 'limit_reached', 'cancelled'])[i / 10 %% 3 + 1])), 1, at,
					interval '0.1 ms' * exp(i %% 1000 / 70.0),
			case when i %% 5 = 1 then gen_random_uuid() end
		from (select i, now() - interval '1 hour' * (1 - i / %d.0) as at from generate_series(1, %[2]d) i) moments;
		set session_replication_role = origin`, tool, n)
}

func number(t *testing.T, db *pgxpool.Pool, sql string) (value float64) {
	t.Helper()
	if err := db.QueryRow(t.Context(), "select ("+sql+")::float8").Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func TestOutcomesAreTheSameHoweverFarTheyAreCounted(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "update gem.outcomes_counted set upto = gem.first_id_at(now() - interval '2 hours')")
	testdb.Exec(t, db, ended("a.b", 3000)+"; "+ended("a.c", 10)+"; "+ownClock) // all of one moment
	seen := func() string {
		var all string
		if err := db.QueryRow(t.Context(), "select json_agg(o order by day, tool_name) from gem.outcomes o").
			Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := seen()
	// The last fifteen seconds are not counted yet: thirteen receipts of a.b, one every 1.2 s, and the last of a.c.
	const counted = 3010 - 13 - 1
	for step, want := range []float64{700, 700, 700, 700, counted - 2800, 0} {
		if got := number(t, db, "select gem.count_outcomes(700)"); got != want {
			t.Errorf("step %d counted %v, not %v", step, got, want)
		}
		if now := seen(); now != before {
			t.Fatalf("after step %d: %s\nbefore: %s", step, now, before)
		}
		if differ := number(t, db, `select count(*) from (
				select tool_name, sum(succeeded), sum(failed), sum(refused), sum(cancelled), sum(not_configured), sum(hits)
					from gem.outcomes group by 1) days
			full join gem.outcome_totals t on row(days.*) = row(t.*) where days is null or t is null`); differ != 0 {
			t.Fatalf("after step %d the totals of %v tools are not the sums of their days", step, differ)
		}
	}
	if got := number(t, db, "select sum(succeeded + failed + refused + cancelled + not_configured) from "+
		"gem.outcome_counts"); got != counted {
		t.Errorf("%v are counted", got)
	}
	for column, want := range map[string]float64{"calls": 3000, "succeeded": 2700, "failed": 100, "refused": 100,
		"cancelled": 100, "not_configured": 0, "hits": 600} {
		if got := number(t, db, "select sum("+column+") from gem.outcomes where tool_name = 'a.b'"); got != want {
			t.Errorf("%s is %v, want %v", column, got, want)
		}
	}
	if got := number(t, db, "select sum(hits) from gem.key_hits where tool_name = 'a.b'"); got != 600 {
		t.Errorf("%v hits", got)
	}
}

func TestDurationsAreTrueWithinAnEighth(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ended("a.b", 3000))
	testdb.Exec(t, db, "update gem.outcomes_counted set upto = gem.first_id_at(now() - interval '2 hours')")
	for column, quantile := range map[string]string{"p50_ms": "0.5", "p95_ms": "0.95"} {
		// The hour may have begun yesterday.
		day := "(select max(day) from gem.outcomes)"
		exact := number(t, db, `select extract(epoch from percentile_disc(`+quantile+
			`) within group (order by duration)) * 1000
			from core_tool_receipts where replay_of is null and (created_at at time zone 'UTC')::date = `+day)
		told := number(t, db, "select "+column+" from gem.outcomes where day = "+day)
		if ratio := told / exact; math.Abs(math.Log(ratio)) > math.Log(1.125) {
			t.Errorf("%s is %v, and %v exactly", column, told, exact)
		}
	}
}

func TestMinutesAreTheSameHoweverTheyAreCounted(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ended("a.b", 3000)+"; "+ended("a.c", 10)+"; "+ownClock)
	var first string
	for _, limit := range []int{100_000, 700, 1000} {
		testdb.Exec(t, db, "delete from gem.outcome_minutes; update gem.outcomes_counted set upto = "+
			"gem.first_id_at(gem.now() - "+
			"interval '2 hours')")
		for number(t, db, fmt.Sprintf("select gem.count_outcomes(%d)", limit)) > 0 {
		}
		var all string
		if err := db.QueryRow(t.Context(), "select json_agg(m order by minute, tool_name) from gem.throughput m").
			Scan(&all); err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = all
		}
		if all != first {
			t.Fatalf("counted %d at a time: %s\nall at once: %s", limit, all, first)
		}
	}
	for what, want := range map[string]float64{
		"select sum(succeeded + failed + refused + cancelled + not_configured) from gem.throughput where tool_name = ''":    3010 - 13 - 1,
		"select sum(succeeded + failed + refused + cancelled + not_configured) from gem.throughput where tool_name = 'a.c'": 9,
		"select sum(hits) from gem.throughput where tool_name = 'a.b'":                                                      number(t, db, "select sum(hits) from gem.throughput where tool_name = ''") - 2,
		"select count(*) from gem.throughput m where tool_name <> '' and not exists (select from gem.throughput o where " +
			"o.tool_name = '' and o.minute = m.minute)": 0,
	} {
		if got := number(t, db, what); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for column, quantile := range map[string]string{"p50_ms": "0.5", "p95_ms": "0.95"} {
		minute := "(select min(minute) + interval '30 minutes' from gem.throughput)"
		exact := number(t, db, `select extract(epoch from percentile_disc(`+quantile+
			`) within group (order by duration)) * 1000
			from core_tool_receipts where replay_of is null and tool_name = 'a.b' and date_bin('1 minute', created_at, '2000-01-01Z') = `+minute)
		told := number(t, db, "select "+column+" from gem.throughput where tool_name = 'a.b' and minute = "+minute)
		if ratio := told / exact; math.Abs(math.Log(ratio)) > math.Log(1.125) {
			t.Errorf("%s is %v, and %v exactly", column, told, exact)
		}
	}
}

func TestHitsThatAreCountedAloneAddNoDurations(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "update gem.outcomes_counted set upto = gem.first_id_at(now() - interval '2 hours')")
	// six minutes lie between two of them; the first and the sixth are hits
	testdb.Exec(t, db, ended("a.b", 10)+"; "+ownClock)
	for number(t, db, "select gem.count_outcomes(1)") > 0 {
	}
	for what, want := range map[string]float64{
		// of the tool and of all
		"select count(*) from gem.throughput where hits = 1 and durations = '{}' and p50_ms is null":              4,
		"select count(*) from gem.throughput where hits = 0 and array_length(durations, 1) = 2 and p50_ms = 0.11": 14,
	} {
		if got := number(t, db, what); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}

func TestMinutesSayHowLongCallsHadBeenDue(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, "select gem.start_worker('w', 10, '1', '1', '1 hour'); insert into core_tool_calls (tool_name, "+
		"run_at) select 'a.b', gem.now() + interval '10 s' from generate_series(1, 5)")
	setClock(t, db, 12_000)
	testdb.Exec(t, db, "select gem.claim('w', 5, true)")
	setClock(t, db, 13_000)
	testdb.Exec(t, db, "select gem.finish(id, 1, 'w', 'succeeded', '{}', '{}', '1') from core_tool_calls")
	setClock(t, db, 60_000)
	testdb.Exec(t, db, "insert into gem.outcome_minutes select gem.now() - interval '73 hours', 'a.b', 1, 0, 0, 0, 0, 0, "+
		"'{}', '{}'")
	testdb.Exec(t, db, "select gem.count_outcomes(10)")
	for what, want := range map[string]float64{
		"select count(*) from gem.throughput where tool_name = 'a.b' and queue_p50_ms between 1780 and 2240": 1,
		"select count(*) from gem.throughput where tool_name = '' and p50_ms between 890 and 1120":           1,
		"select count(*) from gem.throughput": 2, // and none that is older than 72 h
	} {
		if got := number(t, db, what); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

func TestOneWorkerCountsAtATime(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "select gem.count_outcomes(10) from gem.outcomes_counted for update"); err != nil {
		t.Fatal(err)
	}
	var counted *int
	if err := db.QueryRow(t.Context(), "select gem.count_outcomes(10)").Scan(&counted); err != nil || counted != nil {
		t.Errorf("got %v, %v", counted, err)
	}
}

func TestReceiptsThatAreOlderThanTheViewsAreCounted(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "delete from gem.outcomes_counted")
	testdb.Exec(t, db, `insert into core_tool_receipts (id, call_id, tool_name, status, result, attempt, created_at, duration)
		select gen_random_uuid(), gen_random_uuid(), 'a.b', 'succeeded', '{}', 1, now() - i * interval '7 days', '1 s'
			from generate_series(1, 10) i`)
	for range 2 { // the second time it counts nothing
		testdb.Exec(t, db, printed(t))
		if total, shown := number(t, db, "select sum(succeeded) from gem.outcome_counts"),
			number(t, db, "select sum(calls) from gem.outcomes"); total != 10 || shown != 4 {
			t.Errorf("%v were counted, and %v are of the last 31 days", total, shown)
		}
		if total, shown := number(t, db, "select sum(succeeded) from gem.outcome_days"),
			number(t, db, "select sum(succeeded) from gem.outcome_totals"); total != 10 || shown != 4 {
			t.Errorf("by day %v were counted, and %v are of the last 31 days", total, shown)
		}
	}
}

func TestTheQueueIsCountedByState(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name, priority) select 'a.b', i % 3 from generate_series(1, 7) i;
		insert into core_tool_calls (tool_name, run_at) values ('a.b', now() + interval '1 hour'),
			('a.c', now() + interval '2 hours');
		set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, status, waits_for, need, run_at, created_at, updated_at)
			select gen_random_uuid(), 'a.c', 'waiting', kind, 1, now(), now(), now()
				from unnest(array['call', 'answer', 'answer', 'time', 'code']) kind;
		set session_replication_role = origin;
		select gem.start_worker('w', 5, '1', '1', '1 hour');
		select gem.claim('w', 2, true)`)
	testdb.Exec(t, db, `
		set session_replication_role = replica;
		update core_tool_calls set run_at = now() - interval '5 hours' where status = 'queued' and tool_name = 'a.b'
			and run_at < now();
		update core_tool_calls set status = 'waiting', waits_for = 'key', computed_key = 'k'
			where id = (select id from core_tool_calls where status = 'queued' and run_at < now() limit 1);
		set session_replication_role = origin`)
	for what, want := range map[string]float64{
		"select count(*) from gem.queue":                          2,
		"select ready from gem.queue where tool_name = 'a.b'":     4,
		"select scheduled from gem.queue where tool_name = 'a.b'": 1,
		"select waiting from gem.queue where tool_name = 'a.b'":   1,
		"select running from gem.queue where tool_name = 'a.b'":   2,
		"select waiting from gem.queue where tool_name = 'a.c'":   5,
		`select count(*) from gem.queue where tool_name = 'a.c'
			and waiting_for = '{"call": 1, "answer": 2, "time": 1, "code": 1}'`: 1,
		`select count(*) from gem.queue where tool_name = 'a.b'
			and waiting_for = '{"key": 1}'`: 1,
		"select count(*) from gem.queue where at_least":                                  0,
		"select round(extract(epoch from oldest_ready) / 3600) from gem.queue limit 1":   5,
		"select ceil(extract(epoch from next_scheduled) / 3600) from gem.queue offset 1": 2,
		"select holds from gem.workers where worker_id = 'w' and state = 'alive'":        2,
	} {
		if got := number(t, db, what); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, run_at, created_at, updated_at) select gen_random_uuid(), 'a.d', now(),
			now(), now() from generate_series(1, 10000) i; set session_replication_role = origin`)
	if got := number(t, db, "select count(*) from gem.queue where at_least"); got == 0 {
		t.Error("the bound of what is counted is not told")
	}
}

func TestFailuresComeNewestFirst(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, created_by) select 'a.b', 'ada' from generate_series(1, 110);
		select gem.start_worker('w', 200, '1', '1', '1 hour');
		select count(*) from gem.claim('w', 110, true)`)
	for i, id := range texts(t, db, "select id::text from core_tool_calls order by seq") {
		code := "timeout"
		if i >= 102 { // the last eight are not failures
			code = []string{"rule_blocked", "limit_reached", "approval_denied", "approval_expired", "rule_error", "not_allowed",
				"key_reused", "cancelled"}[i-102]
		}
		testdb.Exec(t, db, fmt.Sprintf(`select gem.finish('%s', 1, 'w', 'failed',
			'{"error": {"error_code": "%s", "message": "The end"}}', '{}', '1')`, id, code))
	}
	for what, want := range map[string]float64{
		"select count(*) from gem.recent_failures": 100,
		"select count(*) from gem.recent_failures where error_code = 'timeout' and created_by = 'ada' and message like " +
			"'The%'": 100,
		"select count(*) from gem.receipts where outcome = 'refused'":                                              7,
		"select count(*) from gem.calls where outcome = 'cancelled' and status = 'failed'":                         1,
		"select count(*) from (select at >= lead(at) over () as later from gem.recent_failures) f where not later": 0,
	} {
		if got := number(t, db, what); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}

// A caller whose calls fail all the time hides no failure of another.
func TestACallersFailuresHideNoOthers(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, created_by)
			select 'a.b', case when i <= 4 then 'ada' when i <= 6 then null else 'mallory' end from generate_series(1, 160) i;
		select gem.start_worker('w', 200, '1', '1', '1 hour');
		select count(*) from gem.claim('w', 160, true)`)
	for _, id := range texts(t, db, "select id::text from core_tool_calls order by seq") {
		testdb.Exec(t, db, fmt.Sprintf(`select gem.finish('%s', 1, 'w', 'failed',
			'{"error": {"error_code": "timeout", "message": "The end"}}', '{}', '1')`, id))
	}
	for what, want := range map[string]float64{
		"select count(*) from gem.recent_failures":                                                                 100,
		"select count(*) from gem.recent_failures where created_by = 'ada' and message = 'The end'":                4,
		"select count(*) from gem.recent_failures where created_by is null":                                        2,
		"select count(*) from (select at >= lead(at) over () as later from gem.recent_failures) f where not later": 0,
		"select count(distinct call_id) from gem.recent_failures":                                                  100,
	} {
		if got := number(t, db, what); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}

// Refused and cancelled calls do not count as failures, however many one caller has.
func TestRefusedAndCancelledCallsHideNoFailures(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt)
		select gen_random_uuid(), gen_random_uuid(), 'a.b', case when i = 2 then 'not_configured' else 'failed' end,
			case when i = 2 then '{"reason": "no key"}' else jsonb_build_object('error', jsonb_build_object('message', 'The end',
				'error_code', case when i = 1 then 'timeout' when i % 2 = 0 then 'limit_reached' else 'cancelled' end)) end,
			'{}', now() + i * interval '1 ms', 1
		from generate_series(1, 25000) i;
		set session_replication_role = origin`)
	got := texts(t, db, "select coalesce(error_code, status) from gem.recent_failures")
	if !slices.Equal(got, []string{"not_configured", "timeout"}) {
		t.Errorf("got %v", got)
	}
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const all = "select count(*)::text from gem.recent_failures where $1 <> ''"
	if read := readsOf(t, conn.Conn(), "core_tool_receipts", all, "select 'x'"); read > 100 {
		t.Errorf("it read %d rows and index entries", read)
	}
}

func TestWorkersAreAliveDeadStoppedOrUnknown(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name) values ('a.b'), ('a.b');
		select gem.start_worker('alive', 5, '1', '1', '1 hour'), gem.start_worker('stopped', 5, '1', '1', '1 hour'),
			gem.start_worker('dead', 5, '1', '1', '1 hour'), gem.start_worker('gone', 5, '1', '1', '1 hour');
		select gem.claim('gone', 1, true), gem.claim('dead', 1, true);
		select gem.stop_worker('stopped');
		update core_workers set alive_until = now() where worker_id = 'dead';
		delete from core_workers where worker_id = 'gone'`)
	got := texts(t, db, "select worker_id || ' ' || state || ' ' || holds from gem.workers")
	want := []string{"alive alive 0", "dead dead 1", "gone unknown 1", "stopped stopped 0"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Frontends choose names, and what is counted stays forever.
func TestANameThatNoWorkerKnewIsNotCounted(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name) select 'made.up_' || i from generate_series(1, 5) i;
		select cancel_tool_call(id) from core_tool_calls;
		insert into core_tool_calls (tool_name, priority) values ('made.up_6', 2), ('known.tool', 1),
			('known.parent', 1);
		select gem.start_worker('w', 5, '1', '1', '1 hour');
		select gem.claim('w', 5, true)`)
	for tool, end := range map[string][2]string{
		"made.up_6": {"unknown_tool", "{}"}, "known.tool": {"execution_error", "{}"},
		"known.parent": {"unknown_tool", `{"durable": {}}`}, // the error of a call that its handler made
	} {
		testdb.Exec(t, db, fmt.Sprintf(`select gem.finish(id, 1, 'w', 'failed',
			'{"error": {"error_code": "%s", "message": "no", "details": {}}}', '%s', '1')
			from core_tool_calls where tool_name = '%s'`, end[0], end[1], tool))
	}
	got := texts(t, db, "select tool_name || ' ' || calls from gem.outcomes order by 1")
	if want := []string{"(unknown) 6", "known.parent 1", "known.tool 1"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheMonitorsRoleReadsTheViewsAndNothingElse(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	finished(t, db)
	for _, view := range []string{"queue", "outcomes", "throughput", "key_hits", "recent_failures", "workers", "overdue",
		"calls", "receipts", "journal", "model_requests",
		"registries", "tools", "levels"} {
		if _, err := request(t, db, "gem_monitor", "", "select * from gem."+view); err != nil {
			t.Errorf("%s: %v", view, err)
		}
		for _, role := range []string{"anon", "authenticated", "service_role"} {
			_, err := request(t, db, role, "", "select * from gem."+view)
			refusedWith(t, role+": "+view, err, "42501", "permission denied")
		}
	}
	for _, sql := range []string{"select * from core_tool_calls", "select * from core_tool_receipts",
		"select * from gem.outcome_counts", "select * from gem.outcome_minutes", "select * from gem.limits",
		"select gem.count_outcomes(1)", "select gem.claim('w', 1, true)", "update gem.limits set max_priority = 1",
		"select cancel_tool_call(null)"} {
		_, err := request(t, db, "gem_monitor", "", sql)
		refusedWith(t, sql, err, "42501", "permission denied")
	}
}

// A condition of the reader's own sees the rows of the view alone, whatever order Postgres would like.
func TestAViewShowsItsConditionsNoMoreThanItsRows(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, `
		insert into core_tool_calls (tool_name, created_by) values ('a.b', '7');
		select gem.start_worker('w', 5, '1', '1', '1 hour');
		select gem.finish(id, 1, 'w', 'failed', '{"error": {"error_code": "timeout", "message": "It took too long"}}', '{}',
			'1')
			from gem.claim('w', 1, true);
		insert into core_tool_calls (tool_name, created_by) values ('a.b', 'ada')`)
	rows, err := request(t, db, "gem_monitor", "", "set local enable_nestloop = off; select * from gem.recent_failures "+
		"where created_by::int > 0")
	if err != nil || rows != 1 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

func texts(t *testing.T, db *pgxpool.Pool, sql string) (all []string) {
	t.Helper()
	if err := db.QueryRow(t.Context(), "select coalesce(array_agg(s), '{}') from ("+sql+") rows (s)").
		Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

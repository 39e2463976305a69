package migrations_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// allowed returns a database in which each signed-in user may have some schedules.
func allowed(t *testing.T, schedules string) *pgxpool.Pool {
	t.Helper()
	db := supabase(t)
	testdb.Exec(t, db, "update gem.limits set max_schedules = "+schedules)
	return db
}

const hourly = "schedule_tool_call('s', '@hourly', 'a.b', '{\"at\": \"{due_at}\"}')"

// scheduled is allowed, and ada has the schedule s.
func scheduled(t *testing.T, schedules string) *pgxpool.Pool {
	t.Helper()
	db := allowed(t, schedules)
	if _, err := ask(t, db, "authenticated", "ada", hourly); err != nil {
		t.Fatal(err)
	}
	return db
}

func TestAScheduleOfASignedInUserMakesCallsWithTheirRights(t *testing.T) {
	t.Parallel()
	db := allowed(t, "1")
	got, err := ask(t, db, "authenticated", "ada", hourly)
	if err != nil || !strings.Contains(got, `"paused": false`) || !strings.Contains(got, `"next": "20`) {
		t.Fatal(got, err)
	}
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_calls"); n != 0 {
		t.Error("saving it left", n, "calls")
	}
	since(t, db, "1 hour")
	tick(t, db)
	const outcome = `select concat_ws(' ', o.skipped, o.detail, c.created_by, c.signed_in, c.status)
		from gem.occurrences o left join core_tool_calls c on c.id = o.call_id order by o.due_at desc limit 1`
	if got := testdb.Value[string](t, db, outcome); got != "ada t queued" {
		t.Error(got)
	}
	// the policies of the project hold
	testdb.Exec(t, db, `create policy none on core_tool_calls as restrictive for insert to authenticated
		with check (tool_name <> 'a.b'); update core_tool_calls set status = 'queued'`)
	_, err = ask(t, db, "authenticated", "ada", hourly)
	refusedWith(t, "a policy when it is saved", err, "42501", "row-level security")
	testdb.Exec(t, db, "select cancel_tool_call(id) from core_tool_calls")
	since(t, db, "0 hours")
	testdb.Exec(t, db, "update gem.schedules set cron = '* * * * *', next_at = date_trunc('minute', now()), "+
		"ends_at = null, since = date_trunc('minute', now()) - interval '1 minute'")
	tick(t, db)
	if got := testdb.Value[string](t, db, outcome); !strings.HasPrefix(got, "refused new row violates row-level") {
		t.Error(got)
	}
	if got, _ := ask(t, db, "authenticated", "ada", "select concat_ws(' ', name, last_skipped, created_by) from "+
		"tool_schedules"); got != "s refused ada" {
		t.Error("the view:", got)
	}
}

func TestTheTokenOfARequestDoesNotReachTheCallsOfASchedule(t *testing.T) {
	t.Parallel()
	db := allowed(t, "5")
	const due = "update gem.schedules set since = now() - interval '2 hours', next_at = date_trunc('hour', now()), " +
		"look_at = now()"
	if _, err := ask(t, db, "authenticated", "ada", hourly); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "select gem.save_schedule('s', '@hourly', 'a.b', p_of => 'bob')")
	testdb.Exec(t, db, due)
	for _, pause := range []struct{ role, sub, sql string }{
		{"authenticated", "ada", "pause_tool_schedule('s', 'holidays')"},
		{"service_role", "server", "pause_tool_schedule('s', created_by => 'bob')"},
	} {
		if _, err := request(t, db, pause.role, pause.sub, "set local request.headers = "+
			`'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'; select `+pause.sql+
			`; do $$ begin if current_setting('request.jwt.claims')::jsonb ->> 'role' <> '`+pause.role+
			"' then raise exception 'another token'; end if; end $$"); err != nil {
			t.Error(pause.sub, err)
		}
	}
	if got := testdb.Value[string](t, db, "select string_agg(concat_ws(' ', created_by, signed_in, traceparent), ', ' "+
		"order by created_by) from core_tool_calls"); got != "ada t, bob f" {
		t.Error(got)
	}
	if got := testdb.Value[string](t, db, "select string_agg(concat_ws(' ', created_by, paused ->> 'by', "+
		"paused ->> 'reason'), ', ' order by created_by) from gem.schedules"); got !=
		"ada ada holidays, bob service_role" {
		t.Error(got)
	}
}

func TestTheSchedulesOfASignedInUserAreLimited(t *testing.T) {
	t.Parallel()
	db := allowed(t, "0")
	save := func(sub, arguments string) error {
		_, err := ask(t, db, "authenticated", sub, "schedule_tool_call("+arguments+")")
		return err
	}
	refusedWith(t, "no schedules", save("ada", "'s', '@hourly', 'a.b'"), "PT403", "may not have schedules")
	testdb.Exec(t, db, "update gem.limits set max_schedules = 1")
	testdb.Exec(t, db, `select gem.record_registry('1', repeat('a', 64),
		'{"tools": [{"name": "a.mails", "permissions": ["send:email"]}, {"name": "a.b"}]}')`)
	testdb.Exec(t, db, "select gem.start_worker('one', 1, '', '1', '1 hour')")
	for arguments, want := range map[string][2]string{
		"'s', '*/2 * * * *', 'a.b'":                                           {"PT422", "00:02:00 apart"},
		"'s', '0,58 * * * *', 'a.b'":                                          {"PT422", "00:02:00 apart"},
		"'s', '@hourly', 'a.mails'":                                           {"42501", "closed to signed-in users"},
		"'s', '@hourly', 'a.c'":                                               {"PT422", "no tool a.c"},
		"'s', '@hourly', 'a.b', options => '{\"priority\": 5}'":               {"23514", "priority"},
		"'s', '@hourly', 'a.b', created_by => 'bob'":                          {"PT403", "another user"},
		"'s', '@hourly', 'a.b', zone => 'Europe/Nowhere'":                     {"PT422", "time zone"},
		"'s', '@hourly', 'a.b', jsonb_build_object('a', repeat('a', 300000))": {"23514", "bytes as JSON"},
	} {
		refusedWith(t, arguments, save("ada", arguments), want[0], want[1])
	}
	if err := save("ada", "'s', '*/5 * * * *', 'a.b'"); err != nil {
		t.Fatal(err)
	}
	if err := save("ada", "'s', '*/10 * * * *', 'a.b'"); err != nil {
		t.Error("again:", err)
	}
	if err := save("bob", "'s', '@daily', 'a.b'"); err != nil {
		t.Error("another user:", err)
	}
	refusedWith(t, "too many", save("ada", "'other', '@hourly', 'a.b'"), "PT429", "you may have 1")
	refusedWith(t, "no subject", save("", "'other', '@hourly', 'a.b'"), "PT403", "no subject")
	if got, _ := ask(t, db, "authenticated", "ada", "select string_agg(concat(created_by, ' ', cron), ', ') from "+
		"tool_schedules"); got != "ada */10 * * * *" {
		t.Error("ada sees", got)
	}
	for _, act := range []string{"pause_tool_schedule('s')", "resume_tool_schedule('s')", "remove_tool_schedule('s')"} {
		_, err := ask(t, db, "authenticated", "eve", act)
		refusedWith(t, act, err, "PT404", "the schedule s does not exist")
		_, err = ask(t, db, "authenticated", "ada", act)
		if err != nil {
			t.Error(act, err)
		}
		_, err = ask(t, db, "anon", "ada", act)
		refusedWith(t, act+" by anon", err, "42501", "permission denied")
	}
	if err := save("ada", "'other', '@hourly', 'a.b'"); err != nil {
		t.Error("after one was removed:", err)
	}
	if got, err := ask(t, db, "service_role", "", "select string_agg(concat_ws(' ', created_by, name), ', ' order by "+
		"created_by) from tool_schedules"); got != "ada other, bob s" {
		t.Error("service_role sees", got, err)
	}
	if _, err := ask(t, db, "service_role", "",
		"schedule_tool_call('s', '* * * * *', 'a.mails', created_by => 'bob')"); err != nil {
		t.Error("a server:", err)
	}
}

func TestAScheduleThatItsUserForgotPauses(t *testing.T) {
	t.Parallel()
	db := scheduled(t, "1")
	testdb.Exec(t, db, "select gem.save_schedule('s', '@hourly', 'a.b')")
	testdb.Exec(t, db, "update gem.schedules set changed = changed || jsonb_build_object('at', "+
		"gem.rfc3339(now() - interval '91 days'))")
	since(t, db, "1 hour")
	tick(t, db)
	const paused = "select string_agg(concat_ws(' ', coalesce(created_by, 'operator'), paused ->> 'reason'), ', ' " +
		"order by created_by) from gem.schedules"
	if got := testdb.Value[string](t, db, paused); got !=
		"ada nobody has saved or resumed it for 90 days, operator" {
		t.Fatal(got)
	}
	if _, err := ask(t, db, "authenticated", "ada", "resume_tool_schedule('s')"); err != nil {
		t.Error(err)
	}
	testdb.Exec(t, db, "update gem.schedules set look_at = now(), next_at = now() - interval '1 second'")
	tick(t, db)
	if got := testdb.Value[string](t, db, paused); got != "ada, operator" {
		t.Error("after it was resumed:", got)
	}
}

func TestAllSchedulesOfAnAccountPause(t *testing.T) {
	t.Parallel()
	db := allowed(t, "2")
	for _, of := range []string{"ada", "ada", "bob"} {
		if _, err := ask(t, db, "authenticated", of, "schedule_tool_call('s' || (select count(*) from tool_schedules), "+
			"'@hourly', 'a.b')"); err != nil {
			t.Fatal(err)
		}
	}
	if n := testdb.Value[int](t, db, "select gem.pause_schedules_of('ada', 'boss', 'left')"); n != 2 {
		t.Error(n)
	}
	if got := testdb.Value[string](t, db, "select string_agg(concat_ws(' ', created_by, name, paused ->> 'reason'), ', ' "+
		"order by created_by, name) from gem.schedules"); got != "ada s0 left, ada s1 left, bob s0" {
		t.Error(got)
	}
}

// A schedule takes the lock of its user without waiting, so that two workers do not wait for each other.
func TestAScheduleWhoseUserSendsCallsIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	db := scheduled(t, "1")
	since(t, db, "1 hour")
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select pg_advisory_xact_lock(hashtextextended('gem.limits ada', 0))"); err != nil {
		t.Fatal(err)
	}
	tick(t, db)
	if got := occurrences(t, db); got != "" {
		t.Error(got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "update gem.schedules set look_at = now()")
	tick(t, db)
	if got := occurrences(t, db); got != "call" {
		t.Error(got)
	}
}

// Without a token, only the owner acts for anyone.
func TestALoginOfAFrontendWithoutATokenHasNoSchedules(t *testing.T) {
	t.Parallel()
	db := allowed(t, "1")
	testdb.Exec(t, db, "select gem.save_schedule('s', '@hourly', 'a.b')")
	login := asMember(t, db, db.Config().ConnString(), "authenticated")
	for _, sql := range []string{hourly, "remove_tool_schedule('s')"} {
		_, err := login.Exec(t.Context(), "select "+sql)
		refusedWith(t, sql, err, "PT403", "no subject")
	}
	if n := testdb.Value[int](t, login, "select count(*) from tool_schedules"); n != 0 {
		t.Error("it sees", n)
	}
}

// A token with other rights than a schedule's calls would get has no schedules.
func TestOnlyATokenWithTheRightsOfASchedulesCallsHasSchedules(t *testing.T) {
	t.Parallel()
	db := allowed(t, "1")
	for _, claims := range []string{`{"role": "authenticated", "sub": "ada", "is_anonymous": true}`,
		`{"role": "agent", "sub": "ada"}`} {
		_, err := request(t, db, "authenticated", "ada", "set local request.jwt.claims = '"+claims+"'; select "+hourly)
		refusedWith(t, claims, err, "PT403", "only users with the role authenticated")
	}
}

func TestAUserDoesNotChangeWhatAnOperatorDecided(t *testing.T) {
	t.Parallel()
	db := allowed(t, "2")
	testdb.Exec(t, db, "select gem.save_schedule('mail', '@hourly', 'a.mails', p_of => 'ada')")
	if _, err := ask(t, db, "authenticated", "ada", hourly); err != nil {
		t.Fatal(err)
	}
	for _, act := range []string{"pause_tool_schedule('mail')", "resume_tool_schedule('mail')",
		"remove_tool_schedule('mail')", "schedule_tool_call('mail', '@daily', 'a.b')"} {
		_, err := ask(t, db, "authenticated", "ada", act)
		refusedWith(t, act, err, "PT403", "an operator made the schedule mail")
	}
	testdb.Exec(t, db, "select gem.pause_schedules_of('ada', 'boss', 'left')")
	_, err := ask(t, db, "authenticated", "ada", "resume_tool_schedule('s')")
	refusedWith(t, "resume", err, "PT403", "an operator paused the schedule s")
	testdb.Exec(t, db, "select gem.resume_schedule('s', 'ada')")
	_, err = ask(t, db, "authenticated", "ada", hourly)
	refusedWith(t, "save", err, "PT403", "an operator has paused your schedules")
	testdb.Exec(t, db, "select gem.resume_schedule('mail', 'ada')")
	for _, act := range []string{"pause_tool_schedule('s')", "resume_tool_schedule('s')"} {
		if _, err := ask(t, db, "authenticated", "ada", act); err != nil {
			t.Error(act, err)
		}
	}
}

// A frontend chooses the ids of its calls, and may know those of a schedule.
func TestACallOfAnotherDoesNotReplaceTheCallOfAnInstant(t *testing.T) {
	t.Parallel()
	db := allowed(t, "1")
	testdb.Exec(t, db, "select gem.save_schedule('s', '* * * * *', 'a.b')")
	since(t, db, "1 minute")
	id := testdb.Value[string](t, db,
		"select gem.receipt_id(gem.receipt_id(id, next_at), next_at)::text from gem.schedules")
	if _, err := ask(t, db, "authenticated", "eve", "enqueue_tool_call('a.b', id => '"+id+"')"); err != nil {
		t.Fatal(err)
	}
	tick(t, db)
	if got := testdb.Value[string](t, db, "select concat_ws(' ', c.created_by, c.signed_in, c.id::text = '"+id+"') from "+
		"gem.occurrences o join core_tool_calls c on c.id = o.call_id"); got != "f f" {
		t.Error(got)
	}
}

func TestAnOperatorAndARequestOfTheUserDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := scheduled(t, "1")
	for _, act := range []string{"gem.run_schedule_now('s', 'ada')", "gem.pause_schedule('s', 'ada')",
		"gem.save_schedule('s', '@daily', 'a.b', p_of => 'ada', p_signed_in => true)"} {
		done := make(chan error, 1)
		if _, err := request(t, db, "authenticated", "ada", "select enqueue_tool_call('a.b')"); err != nil {
			t.Fatal(err)
		}
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `set local request.jwt.claims = '{"role": "authenticated", "sub": "ada"}';
				set local role authenticated; select enqueue_tool_call('a.b')`); err != nil {
				return err
			}
			go func() {
				_, err := db.Exec(context.WithoutCancel(t.Context()), "select "+act)
				done <- err
			}()
			for testdb.Value[int](t, db, "select count(*) from pg_locks where not granted and locktype = 'advisory' and "+
				"database = (select oid from pg_database where datname = current_database())") == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			_, err := tx.Exec(t.Context(), "select pause_tool_schedule('s')")
			return err
		})
		if other := <-done; err != nil || other != nil {
			t.Errorf("%s: %v, and the request: %v", act, other, err)
		}
	}
}

func TestTheOperatorsOfAScheduleCannotApproveItsCalls(t *testing.T) {
	t.Parallel()
	t.Run("of operators", func(t *testing.T) {
		t.Parallel()
		theOperatorsCannotApprove(t, "null", "false")
	})
	t.Run("of a signed-in user", func(t *testing.T) {
		t.Parallel()
		theOperatorsCannotApprove(t, "'ada'", "true")
	})
}

func theOperatorsCannotApprove(t *testing.T, of, signedIn string) {
	t.Helper()
	db := allowed(t, "1")
	testdb.Exec(t, db, `select gem.save_schedule('pay', '@yearly', 'wait.approval',
		'{"text": "Pay?", "by": ["user:ann", "user:boss", "user:carol"]}', p_by => 'ann',
		p_of => `+of+`, p_signed_in => `+signedIn+`)`)
	call := testdb.Value[string](t, db, "select gem.run_schedule_now('pay', "+of+", 'boss', 'now')::text")
	if got := testdb.Value[string](t, db, "select concat_ws(' ', e.data ->> 'by', e.data ->> 'reason', "+
		"e.data ->> 'schedule') from core_tool_events e where e.call_id = $1", call); got != "boss now pay" {
		t.Errorf("the journal has %q", got)
	}
	testdb.Exec(t, db, "select gem.pause_schedule('pay', "+of+", 'dan'), gem.resume_schedule('pay', "+of+", 'dan')")
	testdb.Exec(t, db, "update gem.schedules set look_at = now(), next_at = now(), since = now() - interval '1 day'")
	tick(t, db)
	due := testdb.Value[string](t, db, "select call_id::text from gem.occurrences")
	for who, may := range map[string][]string{"ann": {"false", "false"}, "boss": {"false", "true"},
		"carol": {"true", "true"}} {
		for i, id := range []string{call, due} {
			got, err := ask(t, db, "postgres", who, `select gem.may_answer(id, tool_name, answer_by, true, created_by)
				from core_tool_calls where id = '`+id+`'`)
			if err != nil || got != may[i] {
				t.Errorf("%s may approve call %d: %s, %v", who, i, got, err)
			}
		}
	}
}

func TestAUserCannotUndoAnOperatorsPause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][]string{
		"of a schedule that was paused": {"pause_tool_schedule('s')", "gem.pause_schedule('s', 'ada', 'boss')"},
		"of all":                        {"gem.pause_schedules_of('ada', 'boss')"},
		"of all that were paused":       {"pause_tool_schedule('s')", "gem.pause_schedules_of('ada', 'boss')"},
		"by somebody named gem":         {"gem.pause_schedules_of('ada', 'gem')"},
		"by somebody of the same name":  {"gem.pause_schedule('s', 'ada', 'ada')"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := scheduled(t, "5")
			for _, act := range c {
				if strings.HasPrefix(act, "gem.") {
					testdb.Exec(t, db, "select "+act)
				} else if _, err := ask(t, db, "authenticated", "ada", act); err != nil {
					t.Fatal(err)
				}
			}
			for _, act := range []string{"resume_tool_schedule('s')", "remove_tool_schedule('s')"} {
				_, err := ask(t, db, "authenticated", "ada", act)
				refusedWith(t, act, err, "PT403", "an operator paused the schedule s")
			}
			if strings.Contains(name, "all") {
				_, err := ask(t, db, "authenticated", "ada", "schedule_tool_call('t', '@hourly', 'a.b')")
				refusedWith(t, "another", err, "PT403", "an operator has paused your schedules")
			}
		})
	}
}

func TestOptionsThatNoCalendarHoldsAreRefused(t *testing.T) {
	t.Parallel()
	db := allowed(t, "5")
	for options, words := range map[string]string{
		`{"ends_at": "infinity"}`:                            "ends_at is infinity",
		`{"starts_at": "-infinity"}`:                         "starts_at is -infinity",
		`{"ends_at": "20000-01-01"}`:                         `ends_at is "20000`,
		`{"starts_at": "0044-01-01 BC"}`:                     `starts_at is "0044`,
		`{"missed_within": "2000000 years -720000000 days"}`: "missed_within is",
		`{"jitter": "100 years -36000 days"}`:                "jitter is",
	} {
		_, err := ask(t, db, "authenticated", "ada", "schedule_tool_call('s', '@hourly', 'a.b', options => '"+options+"')")
		refusedWith(t, options, err, "PT422", words)
	}
	if _, err := ask(t, db, "authenticated", "ada", `schedule_tool_call('s', '@hourly', 'a.b',
		options => '{"missed_within": "24 hours", "jitter": "1 hour"}')`); err != nil {
		t.Fatal(err)
	}
	if got := testdb.Value[string](t, db, "select concat(missed_within, ' ', jitter) from gem.schedules"); got !=
		"1 day 01:00:00" {
		t.Error(got)
	}
	for call, words := range map[string]string{
		"schedule_tool_call('s', '@hourly', 'a.b', '{}', 'right/Europe/Berlin')": "the time zone",
		"schedule_tool_call('s', null, 'a.b')":                                   "needs a cron expression",
	} {
		_, err := ask(t, db, "authenticated", "ada", call)
		refusedWith(t, call, err, "PT422", words)
	}
	if _, err := ask(t, db, "authenticated", "ada", "schedule_tool_call('s', '@hourly', 'a.b', '{}', null)"); err != nil {
		t.Error(err)
	}
	many := strings.Repeat("0-59/5,", 40) + "1"
	_, err := ask(t, db, "authenticated", "ada", "schedule_tool_call('s', '"+many+" * * * *', 'a.b')")
	refusedWith(t, "a long expression", err, "PT422", "at most 200 characters")
}

// What a user removes takes no room.
func TestARemovedScheduleLeavesNoInput(t *testing.T) {
	t.Parallel()
	db := scheduled(t, "1")
	remove := func() {
		t.Helper()
		if _, err := ask(t, db, "authenticated", "ada", "remove_tool_schedule('s')"); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	if n := testdb.Value[int](t, db, "select count(*) from gem.schedules"); n != 0 {
		t.Errorf("%d schedules that made no calls are left", n)
	}
	if _, err := ask(t, db, "authenticated", "ada", hourly); err != nil {
		t.Fatal(err)
	}
	since(t, db, "1 hour")
	tick(t, db)
	remove()
	if got := testdb.Value[string](t, db, "select input::text from gem.schedules where removed is not null"); got != "{}" {
		t.Error(got)
	}
}

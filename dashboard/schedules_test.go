package dashboard_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// scheduled makes the schedule s of notes.find, with a call and a range of skipped times.
func scheduled(t *testing.T, db *pgxpool.Pool) (callID string) {
	t.Helper()
	testdb.Exec(t, db, `select gem.save_schedule('s', '0 9 * * 1-5', 'notes.find', '{"text": "<b>"}',
		'Europe/Berlin', '{}')`)
	callID = testdb.Value[string](t, db, "select gem.run_schedule_now('s')::text")
	testdb.Exec(t, db, `insert into gem.occurrences
			(schedule_id, due_at, upto, count, backfilled, call_id, skipped, detail, at)
		select id, '2026-11-23 08:00Z'::timestamptz, '2026-11-23 08:00Z'::timestamptz, 1, false, '`+callID+`'::uuid,
			null, null, now() from gem.schedules
		union all
		select id, '2026-11-24 08:00Z', '2026-11-26 08:00Z', 3, false, null, 'missed', 'no worker ran <i>', now()
		from gem.schedules`)
	return callID
}

func TestASchedulesPageShowsItsTimesAndActs(t *testing.T) {
	t.Parallel()
	server, db := with(t, operator)
	if _, page := get(t, server, "/schedules"); !strings.Contains(page, "gem schedules add") {
		t.Errorf("without schedules: %s", page)
	}
	call := scheduled(t, db)
	_, list := get(t, server, "/schedules")
	says(t, list, `href="/schedules/s"`, "0 9 * * 1-5", "Europe/Berlin", "notes.find")
	_, page := get(t, server, "/schedules/s")
	says(t, page, call, "skipped: missed, no worker ran <i>", "(3 times)", "<b>", "next call", "the last one within")

	act := func(do, reason string) string {
		form := fill(t, server, "/schedules/s", "/schedules/s", "do", do, "reason", reason)
		status, at, body := send(t, server, "/schedules/s", form)
		if status != 200 {
			t.Fatalf("%s: %d %s", do, status, body)
		}
		return at.Path + " " + body
	}
	says(t, act("pause", "<u>holidays"), "The schedule is paused.", "paused by ada", "<u>holidays", "Resume")
	says(t, act("resume", ""), "The schedule continues.", "Pause")
	says(t, act("run", ""), "/calls/", "This is the call that the schedule made now")
	if n := testdb.Value[int](t, db, "select count(*) from core_tool_calls where tool_name = 'notes.find'"); n != 2 {
		t.Errorf("there are %d calls", n)
	}
	status, _, body := send(t, server, "/schedules/s", fill(t, server, "/schedules/s", "/schedules/s", "do", "nonsense"))
	if status != 400 {
		t.Errorf("an unknown action: %d %s", status, body)
	}
	says(t, act("remove", "no longer needed"), "/schedules ", "The schedule was removed: s")
	by := testdb.Value[string](t, db, "select concat(removed ->> 'by', ': ', removed ->> 'reason') from gem.schedules")
	if by != "ada: no longer needed" {
		t.Errorf("it was removed by %s", by)
	}
	for _, path := range []string{"/schedules/s", "/schedules/x%2Fy"} {
		if status, _ := get(t, server, path); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
}

func TestOnlyOperatorsSeeSchedules(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	scheduled(t, db)
	for _, path := range []string{"/schedules", "/schedules/s"} {
		if status, body := get(t, server, path); status != 403 || strings.Contains(body, "Berlin") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if _, body := get(t, server, "/"); strings.Contains(body, `href="/schedules"`) {
		t.Error("the pages of others lead to schedules")
	}
}

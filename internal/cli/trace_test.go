package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

func TestTraceShowsTheWholeSummary(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	for _, w := range []string{"w-1", "w-2", "w-3"} {
		s.worker(w, 4)
	}
	holder := s.insert()
	id := testdb.Value[string](t, s.db, "insert into core_tool_calls (tool_name, priority) values ('leads.create', -1) "+
		"returning id::text")
	s.claim("w-1")
	s.claim("w-1")
	testdb.Exec(t, s.db, "select gem.hold_key($1, 1, 'w-1', 'K')", holder)
	testdb.Exec(t, s.db, "select gem.hold_key($1, 1, 'w-1', 'K')", id) // waits
	s.finish(holder, "w-1", "failed", `{"error": {"error_code": "timeout", "message": "late"}}`)
	s.claim("w-2") // the second attempt
	testdb.Exec(t, s.db, "select gem.release($1, 2, 'w-2')", id)
	s.claim("w-3")
	s.silence("w-3")
	testdb.Exec(t, s.db, "select gem.recover('w-1', null)")
	s.claim("w-1")
	testdb.Exec(t, s.db, `select gem.retry($1, 4, 'w-1',
		'{"error_code": "execution_error", "message": "the service answered 503"}', 9, '1 millisecond')`, id)
	testdb.Exec(t, s.db, "select pg_sleep(0.02)") // longer than the pause of the retry
	s.claim("w-1")
	testdb.Exec(t, s.db, "select cancel_tool_call($1)", id)
	testdb.Exec(t, s.db, `select gem.finish($1, 5, 'w-1', 'succeeded', '{"lead_id": "L-1"}', '{}', '7')`, id)

	env := []string{"DATABASE_URL=" + url}
	got := gemWith(t, env, "trace", id)
	got.wantCode(t, 0)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	for i, want := range []string{
		"call " + id + ": leads.create",
		"",
		"TIME (UTC)",
		"queued inserted, priority -1",
		"claimed 1 w-1 the worker claimed it",
		"waiting 1 w-1 another call runs with the same key, so it waits for that call: " + holder,
		"woken 1 back in the queue",
		"claimed 2 w-2",
		"released 2 w-2 the worker stops and hands it over",
		"claimed 3 w-3",
		"lost 3 w-1 the worker w-3 died",
		"claimed 4 w-1",
		"retried 4 w-1 a transient error; the next attempt is in",
		"claimed 5 w-1",
		"cancel_requested 5 postgres asked to cancel it; its worker will end it",
		"succeeded 5 w-1 the receipt was written",
		"",
		"receipt ",
	} {
		if i >= len(lines) || !strings.Contains(strings.Join(strings.Fields(lines[i]), " "), want) {
			t.Fatalf("line %d should have %q:\n%s", i, want, got.stdout)
		}
	}
	wants(t, got.stdout, "+0.000 s", "the service answered 503", ": succeeded in ", "lead_id L-1\n")

	events := gemWith(t, env, "trace", id, "--json")
	events.wantCode(t, 0)
	var journal []receipts.Event
	if err := json.Unmarshal([]byte(events.stdout), &journal); err != nil {
		t.Fatal(err)
	}
	if len(journal) != 13 || journal[0].Event != "queued" || journal[12].Event != "succeeded" {
		t.Errorf("gem trace --json: got %d events, want 13 from queued to succeeded:\n%s", len(journal), events.stdout)
	}
}

func TestTraceOfACallThatHasNotEnded(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	id := testdb.Value[string](t, testdb.Pool(t, url),
		"insert into core_tool_calls (tool_name, run_at) values ('x.y', now() + "+
			"'1 hour') returning id::text")
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "trace", id)
	got.wantCode(t, 0)
	wants(t, got.stdout, "to run no earlier than 2", "no receipt yet: the call is queued")
}

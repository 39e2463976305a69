package cli

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestCancelSaysWhatItCameTo(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	env := []string{"DATABASE_URL=" + url}
	ended := s.ended("succeeded", `{"lead_id": "L-1"}`)
	failed := s.ended("failed", `{"error": {"error_code": "timeout", "message": "too long", "details": null}}`)
	running := s.insert()
	s.claim("w-1")
	queued := s.insert()
	for _, c := range []struct{ id, want string }{
		{queued, "cancelled: the call has ended"},
		{queued, "the call was already cancelled: gem receipt " + queued},
		{running, "requested: a worker ends the call; its handler may clean up first if it has steps or calls"},
		{running, "requested: "},
		{ended, "not cancelled: the call had already ended as succeeded"},
		{failed, "not cancelled: the call had already ended as failed"},
	} {
		got := gemWith(t, env, "cancel", c.id)
		got.wantCode(t, exitDone)
		wants(t, got.stdout, c.want, "gem receipt "+c.id+"\n")
	}
	if status := testdb.Value[string](t, s.db,
		"select status || ' ' || (cancel_requested_at is not null) from core_tool_calls "+
			"where id = $1", running); status != "running true" {
		t.Errorf("the running call is %s", status)
	}

	none := gemWith(t, env, "cancel", "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55")
	none.wantCode(t, exitFailed)
	wants(t, none.stderr, "there is no call 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55 in this database")
	receipt := testdb.Value[string](t, s.db, "select id::text from core_tool_receipts where call_id = $1", ended)
	wants(t, gemWith(t, env, "cancel", receipt).stderr, "it is the id of a receipt, and the receipt's call is "+ended)

	wrong := gemWith(t, env, "cancel", "42")
	wrong.wantCode(t, exitUsage)
	wants(t, wrong.stderr, `"42" is not a call id`)
}

func TestAnOperatorCancels(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := scene{t, testdb.Pool(t, url)}
	operator, monitor := loginOf(t, s.db, url, "gem_operator"), loginOf(t, s.db, url, "gem_monitor")
	ended := s.ended("succeeded", "{}")
	running := s.insert()
	s.claim("w-1")
	testdb.Exec(t, s.db, "update core_tool_calls set steps = 1, events = events + 1 where id = $1", running)
	queued := s.insert()
	env := []string{"DATABASE_URL=" + operator}
	for _, c := range []struct{ id, want string }{
		{queued, "cancelled: the call has ended"},
		{queued, "the call was already cancelled: gem receipt " + queued},
		{running, "requested: "},
		{running, "requested: "},
		{ended, "not cancelled: the call had already ended as succeeded"},
	} {
		got := gemWith(t, env, "cancel", c.id)
		got.wantCode(t, exitDone)
		wants(t, got.stdout, c.want)
	}
	testdb.Exec(t, s.db, "select gem.release(id, attempt, claimed_by) from core_tool_calls where id = $1", running)
	// nobody runs it, and its end was asked for before
	wants(t, gemWith(t, env, "cancel", running).stdout, "cancelled: the call has ended")
	if n := testdb.Value[int](t, s.db,
		"select count(*)::int from core_tool_events where data ->> 'by' like 'gem_test_%'"); n != 3 {
		t.Errorf("%d events name the operator", n)
	}
	none := gemWith(t, env, "cancel", exampleID)
	none.wantCode(t, exitFailed)
	wants(t, none.stderr, "there is no call "+exampleID)
	refused := gemWith(t, []string{"DATABASE_URL=" + monitor}, "cancel", ended)
	refused.wantCode(t, exitFailed)
	wants(t, refused.stderr, "only members of gem_operator and the owner of the tables may")
}

func TestCancelEndsARunningCall(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	startWorker(t, url)
	env := []string{"DATABASE_URL=" + url}
	db := testdb.Pool(t, url)
	// A call that is claimed and held by a lock until it is cancelled.
	lock, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "lock table notes in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	id := testdb.Value[string](t, db, `insert into core_tool_calls (tool_name, input)
		values ('os.create_note', '{"title": "a", "content": "b", "domain": "both"}') returning id::text`)
	for testdb.Value[string](t, db, "select status from core_tool_calls where id = $1", id) == "queued" {
	}
	gemWith(t, env, "cancel", id).wantCode(t, exitDone)
	for testdb.Value[string](t, db, "select status from core_tool_calls where id = $1", id) == "running" {
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := gemWith(t, env, "receipt", id)
	got.wantCode(t, exitDone)
	wants(t, got.stdout, `"error_code": "cancelled"`, "It had no effect")
}

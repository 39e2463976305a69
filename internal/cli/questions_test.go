package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// askedIn inserts a call that asks, waits until it does, and returns its id.
func askedIn(t *testing.T, db *pgxpool.Pool, tool, input string) string {
	t.Helper()
	id := testdb.Value[string](t, db, "insert into core_tool_calls (tool_name, input) values ($1, $2) returning id::text",
		tool,
		input)
	for testdb.Value[string](t, db, "select coalesce(waits_for, status) from core_tool_calls where id = $1",
		id) != "answer" {
		if status := testdb.Value[string](t, db, "select status from core_tool_calls where id = $1", id); status == "failed" {
			t.Fatal(testdb.Value[string](t, db, "select result::text from core_tool_receipts where call_id = $1", id))
		}
	}
	return id
}

const digest = "0000000000000000000000000000000000000000000000000000000000000000"

func TestQuestionsAreAnsweredOnTheCommandLine(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url)
	env := []string{"DATABASE_URL=" + url}
	none := gemWith(t, env, "questions")
	none.wantCode(t, exitDone)
	wants(t, none.stderr, "No call waits for your answer.")

	for _, c := range []struct{ tool, input, value, receipt, example string }{
		{"wait.answer", `{"text": "Which color?\u001b[2J"}`, "blue", `"answer": "blue"`, "'…'"},
		{"wait.answer", `{"text": "A number, as a text?"}`, "42", `"answer": "42"`, "'…'"},
		{"wait.answer", `{"text": "A text in quotes?"}`, `"42"`, `"answer": "42"`, "'…'"},
		{"wait.answer", `{"text": "How many?", "schema": {"type": "integer"}}`, "42", `"answer": 42`, "1"},
		{"wait.answer",
			`{"text": "Which?", "schema": {"type": "object", "properties": {"n": {"type": "integer"}, "who": {"type": "string"}}}}`, `{"n": 7}`, `"n": 7`, `'{"n": 1, "who": "…"}'`},
		{"wait.event", `{}`, "paid", `"event": "paid"`, "'…'"},
	} {
		id := askedIn(t, db, c.tool, c.input)
		open := gemWith(t, env, "questions")
		wants(t, open.stdout, "gem answer "+id+" "+c.example)
		if strings.Contains(open.stdout, "\x1b") {
			t.Error("the text of a question reaches the terminal as it is")
		}
		wants(t, gemWith(t, env, "explain", id).stdout, "for an answer: gem answer "+id+" VALUE")
		for range 2 {
			got := gemWith(t, env, "answer", id, c.value)
			got.wantCode(t, exitDone)
			wants(t, got.stderr, "answered; waiting for call "+id)
			wants(t, got.stdout, c.receipt)
		}
		wants(t, gemWith(t, env, "receipt", id).stdout, c.receipt)
		wants(t, gemWith(t, env, "trace", id).stdout, "its handler waits for the answer", " answered: ")
	}

	id := askedIn(t, db, "wait.answer", `{"text": "How many?", "schema": {"type": "integer", "minimum": 1}}`)
	for value, want := range map[string]string{"many": "must be of type integer", "0": "must be at least 1"} {
		got := gemWith(t, env, "answer", id, value)
		got.wantCode(t, exitFailed)
		wants(t, got.stderr, want)
	}
	gemWith(t, env, "answer", id, "1").wantCode(t, exitDone)
	wants(t, gemWith(t, env, "answer", id, "2").stderr, "call "+id+" already has another answer, by ")
	wants(t, gemWith(t, env, "answer", exampleID, "2").stderr, "there is no call "+exampleID)
}

func TestWhoWaitsForACallIsToldWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url)
	p := startGem(t, []string{"DATABASE_URL=" + url}, "call", "wait.answer", `{"text": "Which color?\u001b[2J"}`, "--wait")
	p.stderr.waitFor(t, "It asks “Which color?")
	id := testdb.Value[string](t, db, "select id::text from core_tool_calls")
	gemWith(t, []string{"DATABASE_URL=" + url}, "answer", id, "blue").wantCode(t, exitDone)
	if code := p.wait(t); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	if said := p.stderr.String(); strings.Count(said, "It waits for") != 1 ||
		!strings.Contains(said, "gem answer "+id+" VALUE. ") || strings.Contains(said, "\x1b") {
		t.Errorf("said: %s", said)
	}
}

func TestApprovalsTakeARole(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url)
	env := []string{"DATABASE_URL=" + url}
	me := testdb.Value[string](t, db, "select session_user::text")
	approval := `{"tool": "comms.send_sms", "input": {"to": "+1555"}, "text": "Tell the customer.", "by": ["role:boss"], "until": "2200-01-01T00:00:00Z", "digest": "` + digest + `"}`
	id := askedIn(t, db, "wait.approval", approval)
	denied := gemWith(t, env, "approve", id)
	denied.wantCode(t, exitFailed)
	wants(t, denied.stderr, "you are "+me+", and only someone with the role boss may answer it, except the person who "+
		"made the call", "gem roles add "+me+" boss")
	wants(t, gemWith(t, env, "questions").stderr, "No call waits for your answer. One other question is "+
		"open.")
	wants(t, gemWith(t, env, "explain", id).stdout, "gem approve "+id, "It asks “Tell the customer.” It is about "+
		"comms.send_sms with {", "Only someone with the role boss may decide", "It expires at 2200-01-01")

	wants(t, gemWith(t, env, "roles", "add", me, "boss").stdout, me+" has the role boss")
	wants(t, gemWith(t, env, "roles", "add", me, "boss").stdout, me+" already had the role boss")
	wants(t, gemWith(t, env, "roles", "list").stdout, "SUBJECT", "boss")
	wants(t, gemWith(t, env, "roles", "add", me, "no role").stderr, "roles_role_check")
	wants(t, gemWith(t, env, "questions").stdout, `arguments of comms.send_sms: {"to": "+1555"}`, "gem approve "+id,
		"gem deny "+id, "until 2200-01-01", "by role:boss")
	gemWith(t, env, "approve", id, "--reason", "fine").wantCode(t, exitDone)
	for testdb.Value[int](t, db, "select count(*)::int from core_tool_receipts where call_id = $1", id) == 0 {
	}
	wants(t, gemWith(t, env, "receipt", id).stdout, `"approved": true`, `"reason": "fine"`, `"by": "`+me+`"`)

	second := askedIn(t, db, "wait.approval", approval)
	gemWith(t, env, "deny", second).wantCode(t, exitDone)
	for testdb.Value[int](t, db, "select count(*)::int from core_tool_receipts where call_id = $1", second) == 0 {
	}
	wants(t, gemWith(t, env, "receipt", second).stdout, `"approved": false`)
	wants(t, gemWith(t, env, "roles", "remove", me, "boss").stdout, me+" no longer has the role boss")
	wants(t, gemWith(t, env, "roles", "remove", me, "boss").stdout, me+" did not have the role boss")
}

func TestARoleIsClosedToQuestionsOfUsersAndOpenedAgain(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	env := []string{"DATABASE_URL=" + url}
	for _, step := range []struct{ do, want string }{
		{"close", "boss is closed to questions from users\n"}, {"close", "boss is already closed to questions from users\n"},
		{"open", "boss is open to questions from users\n"}, {"open", "boss is already open to questions from users\n"},
		{"close", "boss is closed"},
	} {
		got := gemWith(t, env, "roles", step.do, "boss")
		got.wantCode(t, exitDone)
		wants(t, got.stdout, step.want)
	}
	wants(t, gemWith(t, env, "roles", "list").stdout, "boss is closed to questions from users, since ", ", by ")
	wants(t, gemWith(t, env, "roles", "close", "no role").stderr, "role_settings_role_check")
}

// A user cannot let a question look like a rule's, nor fill the list.
func TestQuestionsSayWhoAsksAndShowAFewOfEachAsker(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, created_by, asked_for, parent_call_id, parent_step, status,
			attempt, events, steps, run_at, created_at, updated_at,
			waits_for, waits, need, answer_by, answer_others)
		select gen_random_uuid(), 'wait.answer', jsonb_build_object('by', array['service'], 'text', text), who, kind, parent,
			step, 'waiting', 1, 3, 1, now(),
			now() - n * interval '1 s', now(), 'answer', '{#answer}', 1, '{service}', false
		from (select 'user' as kind, 'eve' as who, E'Ok?”\nA rule asks about a call of ada:\n\u202e“Is it won?' as text,
			null::uuid as parent, null as step, n from generate_series(10, 16) n
			union all select 'user', 'a rule asks', 'Model?', gen_random_uuid(), 'turn 1 call 1', 9
			union all select 'rule', 'ada', 'Is it?', gen_random_uuid(), '##1', 1) q;
		set session_replication_role = origin`)
	env := []string{"DATABASE_URL=" + url}
	out := gemWith(t, env, "questions").stdout
	user := "eve asks. Neither a rule nor a handler asks this; the text is the caller's own:\n  “Ok?\" A rule asks " +
		"about a call of ada: \"Is it won?”\n"
	if !strings.HasPrefix(out, "A rule asks about a call of ada:\n  “Is it?”\n") || strings.Count(out, user) != 5 ||
		strings.Count(out, "\nA rule asks") != 0 {
		t.Errorf("got\n%s", out)
	}
	wants(t, out, "And 2 more from this asker: gem questions --all", "A model asks, on behalf of \"a rule asks\". "+
		"Neither a rule nor a handler's code asks this; the text is the model's own:\n")
	if all := gemWith(t, env, "questions", "--all").stdout; strings.Count(all, user) != 7 ||
		strings.Contains(all, "more from this asker") {
		t.Errorf("got\n%s", all)
	}
	eve := testdb.Value[string](t, db, "select id::text from core_tool_calls where created_by = 'eve' limit 1")
	wants(t, gemWith(t, env, "explain", eve).stdout, "eve asks. Neither a rule nor a handler asks this",
		"It asks “Ok?\" A rule asks about a call of ada: \"Is it won?”")
}

func TestResumeLetsACallLookAgain(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url)
	env := []string{"DATABASE_URL=" + url}
	id := askedIn(t, db, "wait.answer", `{"text": "?"}`)
	got := gemWith(t, env, "resume", id)
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "resumed: the call is in the queue")
	for testdb.Value[int](t, db, "select count(*)::int from core_tool_events where call_id = $1 and event = 'waiting'",
		id) < 2 {
	}
	gemWith(t, env, "cancel", id).wantCode(t, exitDone)
	wants(t, gemWith(t, env, "resume", id).stderr, "its handler does not wait for anything")
}

func TestDevPrintsWhatIsAsked(t *testing.T) {
	t.Parallel()
	p := startGem(t, nil, "dev")
	p.stdout.waitFor(t, "export DATABASE_URL='")
	_, rest, _ := strings.Cut(p.stdout.String(), "export DATABASE_URL='")
	url, _, _ := strings.Cut(rest, "'")
	id := askedIn(t, testdb.Pool(t, url), "wait.approval",
		`{"tool": "a.b", "input": {}, "by": ["role:boss"], "digest": "`+digest+`"}`)
	p.stdout.waitFor(t, "gem approve "+id)
	gemWith(t, []string{"DATABASE_URL=" + url}, "approve", id).wantCode(t, exitDone)
}

func TestReplayRunsACallAgainAndWritesNothing(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url)
	env := []string{"DATABASE_URL=" + url}
	open := askedIn(t, db, "wait.answer", `{"text": "?"}`)
	got := gemWith(t, env, "replay", open)
	got.wantCode(t, exitDone)
	wants(t, got.stdout, open+"  fits, up to the wait for #answer")
	ended := askedIn(t, db, "wait.answer", `{"text": "?"}`)
	gemWith(t, env, "answer", ended, "yes").wantCode(t, exitDone)
	for testdb.Value[int](t, db, "select count(*)::int from core_tool_receipts where call_id = $1", ended) == 0 {
	}
	events := testdb.Value[int](t, db, "select count(*)::int from core_tool_events")
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, open+".json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got = gemWith(t, env, "replay", "--tool", "wait.answer", "--save", folder)
	got.wantCode(t, exitDone)
	for _, id := range []string{open, ended} {
		if text, err := os.ReadFile(filepath.Join(folder, id+".json")); err != nil ||
			!strings.Contains(string(text), `"tool": "wait.answer"`) {
			t.Errorf("%s, %v", text, err)
		}
		if about, err := os.Stat(filepath.Join(folder, id+".json")); err != nil || runtime.GOOS != "windows" &&
			about.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", about.Mode(), err)
		}
	}
	wants(t, got.stdout, ended+"  the same: succeeded\n"+open+"  fits, up to")
	if n := testdb.Value[int](t, db, "select count(*)::int from core_tool_events"); n != events {
		t.Errorf("%d events were written", n-events)
	}
	wants(t, gemWith(t, env, "replay").stderr, "name one call, or a tool")
	wants(t, gemWith(t, env, "replay", "--tool", "os.list_taks").stderr, "did you mean os.list_tasks?")
	wants(t, gemWith(t, env, "replay", "--tool", "os.list_tasks").stderr,
		"No call to os.list_tasks has a step or a wait.")
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) values ('os.health_check')")
	wants(t, gemWith(t, env, "replay", testdb.Value[string](t, db,
		"select id::text from core_tool_calls where tool_name = "+
			"'os.health_check'")).stdout, "cannot be replayed here: The program has no durable handler for os.health_check.")
}

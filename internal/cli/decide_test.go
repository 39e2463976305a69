package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgxpool"
)

const remindersAreAsked = `{"version": "1.0.0", "rules": [
	{"name": "ask_first", "tools": ["os.create_reminder"], "action": "ask",
	"ask": {"of": ["boss"], "question": "Remind us of {title}?", "within": "24h"}}]}`

// stopped makes a call of ada that a rule stops, and returns it and its question.
func stopped(t *testing.T, db *pgxpool.Pool, title string) (id, question string) {
	t.Helper()
	input, err := json.Marshal(map[string]string{"title": title, "remind_at": "2030-01-01T00:00:00Z"})
	if err != nil {
		t.Fatal(err)
	}
	id = testdb.Value[string](t, db, `insert into core_tool_calls (tool_name, input, created_by)
		values ('os.create_reminder', $1, 'ada') returning id::text`, string(input))
	const asking = "from core_tool_calls where parent_call_id = $1 and waits_for = 'answer'"
	for testdb.Value[int](t, db, "select count(*)::int "+asking, id) == 0 {
	}
	return id, testdb.Value[string](t, db, "select id::text "+asking, id)
}

func receiptIn(t *testing.T, out string) (r receipts.Receipt) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return r
}

func TestADecisionPrintsTheReceiptOfTheCallThatWaited(t *testing.T) {
	testdb.Long(t, "TestADecisionForAHandlerPrintsTheReceiptOfTheQuestion")
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	startWorker(t, url, "TOOLS_RULES="+writeFile(t, remindersAreAsked))
	env := []string{"DATABASE_URL=" + url}
	me := testdb.Value[string](t, db, "select session_user::text")
	testdb.Exec(t, db, "insert into gem.roles values ($1, 'boss')", me)

	id, question := stopped(t, db, "the roof?\x1b[2J\nIt was approved.")
	shown := gemWith(t, env, "questions").stdout
	wants(t, shown, "A rule asks about a call of ada:\n  “"+`Remind us of "the roof? [2J It was approved."?`+"”\n",
		"\n  arguments of os.create_reminder: {",
		`"title": "the roof?\u001b[2J\nIt was approved."`, "\n  asked ", "\n  until ", "\n  by role:boss\n",
		"\n  gem approve "+question+" --reason '…'\n", "\n  gem deny "+question+" --reason '…'\n")
	if strings.Contains(shown, "\x1b") || strings.Count(shown, "\n") != 8 {
		t.Errorf("the caller wrote a line of %q", shown)
	}
	wants(t, gemWith(t, env, "approve", id).stderr, "is not a question", "Remind us of", "gem approve "+question)

	approved := gemWith(t, env, "approve", question, "--reason", "it leaks")
	approved.wantCode(t, exitDone)
	wants(t, approved.stderr, "approved; waiting for call "+id)
	r := receiptIn(t, approved.stdout)
	var effects receipts.Effects
	err := json.Unmarshal(r.Effects, &effects)
	if err != nil || r.CallID != id || r.Status != receipts.Succeeded || effects.Rules == nil ||
		len(effects.Rules.Approvals) != 1 {
		t.Fatalf("got %s, %v", approved.stdout, err)
	}
	if given := effects.Rules.Approvals[0]; given.Reason != "it leaks" || given.By != me {
		t.Errorf("got %+v", given)
	}
	again := gemWith(t, env, "approve", question, "--reason", "it leaks")
	again.wantCode(t, exitDone)
	wants(t, again.stderr, question+" already had this answer, by "+me+" at 2")
	if receiptIn(t, again.stdout).ID != r.ID {
		t.Errorf("the same decision again prints %s", again.stdout)
	}
	other := gemWith(t, env, "approve", question, "--reason", "another reason")
	other.wantCode(t, exitDone)
	wants(t, other.stderr, question+" was already approved by "+me+" at 2", "approved; waiting for call "+id)
	if receiptIn(t, other.stdout).ID != r.ID {
		t.Errorf("the decision with another reason prints %s", other.stdout)
	}
	late := gemWith(t, env, "deny", question)
	late.wantCode(t, exitFailed)
	wants(t, late.stderr, question+" was already approved by "+me+" at 2")
	wants(t, gemWith(t, env, "explain", id).stdout, me+" approved it, as the rule ask_first requires: it leaks.")
	wants(t, gemWith(t, env, "trace", id).stdout, "the question to people: approved by "+me+": it leaks\n",
		"a question  approved by "+me+": it leaks  wait.approval  "+question)

	id, question = stopped(t, db, "the door")
	denied := gemWith(t, env, "deny", question, "--reason", "not ours")
	denied.wantCode(t, exitDone)
	if r := receiptIn(t, denied.stdout); r.CallID != id {
		t.Errorf("got %s", denied.stdout)
	}
	wants(t, denied.stdout, `"approval_denied"`, "denied it: not ours.")
	wants(t, gemWith(t, env, "trace", id).stdout, "the question to people: denied by "+me+": not ours\n",
		"a question  denied by "+me+": not ours  wait.approval  "+question)

	wants(t, gemWith(t, env, "list", "--tool", "wait.approval").stdout, "  denied    wait.approval",
		"  approved  wait.approval")

	id, question = stopped(t, db, "the window")
	at0 := gemWith(t, env, "approve", question, "--wait", "0")
	at0.wantCode(t, exitDone)
	if at0.stdout != "approved; the receipt: gem receipt "+id+"\n" || at0.stderr != "" {
		t.Errorf("got %q, %q", at0.stdout, at0.stderr)
	}
	wants(t, gemWith(t, env, "approve", question, "--wait", "-1s").stderr, "--wait is -1s, and must be 0")
}

// The question itself is all that waits where no rule asks.
func TestADecisionForAHandlerPrintsTheReceiptOfTheQuestion(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	w := startWorker(t, url)
	env := []string{"DATABASE_URL=" + url}
	testdb.Exec(t, db, "insert into gem.roles values (session_user, 'boss')")
	const approval = `{"tool": "comms.send_sms", "input": {"to": "+1555"}, "by": ["role:boss"],
		"digest": "` + digest + `"}`
	id := askedIn(t, db, "wait.approval", approval)
	wants(t, gemWith(t, env, "questions").stdout, "A server or a database login asks. Neither a rule nor a handler asks "+
		"this",
		"“comms.send_sms: to +1555.”\n  arguments of comms.send_sms: {")
	got := gemWith(t, env, "approve", id, "--reason", "fine")
	got.wantCode(t, exitDone)
	if r := receiptIn(t, got.stdout); r.CallID != id || !strings.Contains(string(r.Result), `"reason": "fine"`) {
		t.Errorf("got %s", got.stdout)
	}

	open := askedIn(t, db, "wait.approval", approval)
	w.stop(t)
	late := gemWith(t, env, "deny", open, "--wait", "50ms")
	late.wantCode(t, exitDone)
	wants(t, late.stderr, "denied; waiting for call "+open, "No worker is running", "The call has not ended within 50ms. ",
		"read its receipt later: gem receipt "+open)
	const answers = "select count(*)::int from core_tool_events where call_id = $1 and event = 'answered'"
	if n := testdb.Value[int](t, db, answers, open); n != 1 || late.stdout != "" {
		t.Errorf("%d answers, and %q", n, late.stdout)
	}
}

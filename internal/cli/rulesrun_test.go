package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// From a file to a receipt, as an operator sees it.
func TestAWorkerKeepsToItsRulesAndSaysSo(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	file := filepath.Join(t.TempDir(), "rules.json")
	if err := os.WriteFile(file, []byte(`{"version": "1.2.0", "rules": [
		{"name": "few_notes", "tools": ["os.create_note"], "action": "block", "limit": {"max": 1, "within": "24h"}, "say": "Change the note that is there."},
		{"name": "mind_tasks", "tools": ["os.create_task"], "action": "warn", "say": "Is it needed?"},
		{"name": "ask_first", "tools": ["os.create_reminder"], "action": "ask", "ask": {"of": ["boss"]}},
		{"name": "pace", "tools": ["os.list_tasks"], "action": "wait", "limit": {"max": 1, "within": "1s"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"DATABASE_URL=" + url}
	gemWith(t, env, "rules", "require").wantCode(t, exitDone)
	w := startWorker(t, url, "TOOLS_RULES="+file)
	call := func(tool, input string) string {
		return testdb.Value[string](t, db,
			"insert into core_tool_calls (tool_name, input) values ($1, $2) returning id::text", tool,
			input)
	}
	explained := func(id string) string {
		for testdb.Value[int](t, db, "select count(*)::int from core_tool_receipts where call_id = $1", id) == 0 {
		}
		got := gemWith(t, env, "explain", id)
		got.wantCode(t, exitDone)
		return got.stdout
	}
	const note = `{"title": "Roof", "domain": "both", "content": "Two tiles"}`
	wants(t, explained(call("os.create_note", note)), "It succeeded")
	wants(t, explained(call("os.create_note", note)), "the rule few_notes (rules 1.2.0) blocks this call to "+
		"os.create_note", "Change the note that is there.", " until then.")
	wants(t, explained(call("os.create_task", `{"title": "Call", "domain": "both"}`)), "It succeeded", "A warning: ",
		"the rule mind_tasks (rules 1.2.0)", "Is it needed?")
	first, second := call("os.list_tasks", "{}"), call("os.list_tasks", "{}")
	wants(t, explained(first), "It succeeded")
	wants(t, explained(second), "It succeeded")
	if delayed := testdb.Value[int](t, db,
		"select count(*)::int from core_tool_events where event = 'delayed'"); delayed != 1 {
		t.Errorf("%d calls were delayed", delayed)
	}

	id := call("os.create_reminder", `{"title": "Roof", "remind_at": "2030-01-01T00:00:00Z"}`)
	for testdb.Value[int](t, db,
		"select count(*)::int from core_tool_calls where parent_call_id = $1 and waits_for = 'answer'",
		id) == 0 {
	}
	question := testdb.Value[string](t, db, "select id::text from core_tool_calls where parent_call_id = $1", id)
	wants(t, gemWith(t, env, "explain", id).stdout, "as the rule ask_first (rules 1.2.0) requires",
		"Only someone with the role boss may approve it, until ", "gem approve "+question)
	gemWith(t, env, "approve", question).wantCode(t, exitFailed)
	me := testdb.Value[string](t, db, "select session_user::text")
	gemWith(t, env, "roles", "add", me, "boss").wantCode(t, exitDone)
	wants(t, gemWith(t, env, "questions").stdout, "arguments of os.create_reminder: {", "gem approve "+question)
	gemWith(t, env, "approve", question).wantCode(t, exitDone)
	wants(t, explained(id), "It succeeded", me+" approved it, as the rule ask_first requires.")
	wants(t, gemWith(t, env, "trace", id).stdout, "an approval is required by the rule ask_first",
		"the question to people: "+question)

	audited := gemWith(t, env, "audit")
	audited.wantCode(t, exitDone)
	wants(t, audited.stdout, "rule-window                 3 counted calls   ok", "No fault was found")
	w.stop(t)

	without := startWorker(t, url, "TOOLS_POLL_INTERVAL_MS=50")
	without.stderr.waitFor(t, "this database requires them: set TOOLS_RULES")
	waiting := call("os.list_tasks", "{}")
	gemWith(t, env, "rules", "require", "--off").wantCode(t, exitDone)
	wants(t, explained(waiting), "It succeeded")
}

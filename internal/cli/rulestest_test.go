package cli

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestRulesTestPlaysSequences(t *testing.T) {
	t.Parallel()
	const rule = `{"rules": {"version": "1", "rules": [{"name": "once", "tools": ["demo.echo"], "action": "block", "limit": {"max": 1, "within": "1m"}}]}, "sequences": [`
	const call = `"call": {"tool": "demo.echo"}`
	registry := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	good := writeFile(t, rule+`{"name": "first", "steps": [{`+call+`, "expect": "run"}, {"at": "59s", `+call+
		`, "expect": "block once"}]}]}`)
	got := gemWith(t, registry, "rules", "test", good)
	got.wantCode(t, 0)
	if got.stdout != "ok: first\n" {
		t.Errorf("got %q", got.stdout)
	}

	bad := writeFile(t, rule+`{"name": "second", "steps": [{`+call+`}, {"at": "59s", `+call+`, "expect": "run"}]}]}`)
	got = gemWith(t, registry, "rules", "test", good, bad)
	got.wantCode(t, exitFailed)
	wants(t, got.stdout, "ok: "+good+": first\n", "differs: "+bad+": second: step 2 (demo.echo): want run, got block "+
		"once\n  This is a policy of the operator, not an error: the rule once (rules 1) ")

	wrong := writeFile(t,
		`{"rules": {"version": "1", "rules": [{"name": "a", "tools": ["demo.ecko"], "action": "block"}]}, "sequences": []}`)
	got = gemWith(t, registry, "rules", "test", wrong, good)
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, wrong+": the rules do not fit the registry:\n", "did you mean demo.echo?")
	wants(t, got.stdout, "ok: "+good+": first\n")
	gemWith(t, nil, "rules", "test").wantCode(t, exitUsage)
}

func TestAMistakeInAnEventOfASequenceIsNamed(t *testing.T) {
	testdb.Long(t, "TestRulesTestPlaysSequences")
	t.Parallel()
	const edit = `"hook": {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Edit", "tool_input": {"file_path": "a.go"}`
	for step, want := range map[string]string{
		`{` + edit + `}, "expect": "run", "then": "run"}`: "a step with hook or files can also " +
			"have expect",
		`{` + edit + `}, "call": {"tool": "demo.echo"}}`: "a step with hook or files can also " +
			"have expect",
		`{"files": {"a.go": ""}, "expect": "run"}`: "a step with hook or files can also " +
			"have expect",
		`{"files": {"../a.go": ""}}`:                                   `the file "../a.go" is not in the folder`,
		`{` + edit + `, "cwd": "/home/dev"}}`:                          "leave it out",
		`{` + strings.Replace(edit, "a.go", "/etc/passwd", 1) + `}}`:   `the event is about "/etc/passwd"`,
		`{` + strings.Replace(edit, "session_id", "session", 1) + `}}`: "session_id is missing",
		`{"hook": "not json"}`:                                         "expect error if that is meant",
		`{` + edit + `}, "expects": "run"}`:                            "unknown field",
		`{"files": {"a.go": ""}}, {` + edit + `}, "expect": "block scope_check"}`: ": one: step 2: want block scope_check, " +
			"got warn no_edit_unread\n  A policy of the project's rules.json warns:\n  - no_edit_unread (warn): a.go was not " +
			"read",
	} {
		file := writeFile(t,
			`{"rules": {"version": "1", "rules": [], "coding": {"no_edit_unread": "warn"}}, "sequences": [{"name": "one", "steps": [`+step+`]}]}`)
		got := gemWith(t, nil, "rules", "test", file)
		got.wantCode(t, exitFailed)
		wants(t, got.stdout+got.stderr, want)
	}
}

func TestRulesTestNamesTheToolAndTheApproval(t *testing.T) {
	t.Parallel()
	registry := []string{"TOOLS_REGISTRY=" + writeFile(t, oneTool)}
	const set = `{"rules": {"version": "1", "rules": [{"name": "big", "tools": ["demo.echo"], "action": "ask", "ask": {"of": ["finance", "boss"]},
		"when": {"caller": {"created_by": {"const": "ada"}}}}]}, "sequences": [{"name": "a big one", "steps": [{"call": {"tool": "demo.echo", "caller": "`
	for step, want := range map[string]string{
		`bob"}, "expect": "ask big"`: "step 1 (demo.echo): want ask big (approval by " +
			"boss or finance), got run\n",
		`ada"}, "expect": "run"`: "step 1 (demo.echo): want run, got ask big " +
			"(approval by boss or finance)\n",
		`ada"}, "expect": "ask big", "question": "Really?"`: `step 1 (demo.echo): want the question "Really?", got "`,
		`ada"}, "expect": "ask big", "answer": "denied", "then": "run"`: "step 1 (demo.echo): want run in the end, got " +
			"denied big\n",
	} {
		file := writeFile(t, set+step+`}]}]}`)
		got := gemWith(t, registry, "rules", "test", file)
		got.wantCode(t, exitFailed)
		wants(t, got.stdout, "differs: "+file+": a big one: "+want)
	}
}

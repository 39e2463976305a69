package hook

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/rules"
	"github.com/google/go-cmp/cmp"
)

// told returns the act of an event with these fields, in a folder.
func told(t *testing.T, dir string, fields map[string]any) *act {
	t.Helper()
	all := map[string]any{"session_id": "s", "hook_event_name": "PostToolUse", "cwd": dir, "tool_use_id": "toolu_1"}
	for name, value := range fields {
		all[name] = value
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	a, err := read(strings.NewReader(string(data)), "/")
	if err != nil || a == nil {
		t.Fatalf("%s: %v", data, err)
	}
	return a
}

type object = map[string]any

// workDir returns a folder whose path has no symbolic links.
func workDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWhatAnActLeaves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		told object
		want []fact
	}{
		"Read": {object{"tool_name": "Read", "tool_input": object{"file_path": "/w/a.go"}},
			[]fact{{Kind: "read", Path: "/w/a.go"}}},
		"a relative path": {object{"tool_name": "Edit", "tool_input": object{"path": "x/../a.go"}},
			[]fact{{Kind: "edit", Path: "/w/a.go"}}},
		"Write": {object{"tool_name": "Write",
			"tool_input": object{"file_path": "/w/a.go", "content": "secret"}}, []fact{{Kind: "edit", Path: "/w/a.go"}}},
		"MultiEdit": {object{"tool_name": "MultiEdit",
			"tool_input": object{"file_path": "/w/a.go", "edits": []any{}}}, []fact{{Kind: "edit", Path: "/w/a.go"}}},
		"NotebookEdit": {object{"tool_name": "NotebookEdit", "tool_input": object{"notebook_path": "/w/a.ipynb"}},
			[]fact{{Kind: "edit", Path: "/w/a.ipynb"}}},
		"an MCP server's": {object{"tool_name": "mcp__files__edit_file", "tool_input": object{"path": "/w/a.go"}},
			[]fact{{Kind: "edit", Path: "/w/a.go"}}},
		"view": {object{"tool_name": "str_replace_based_edit_tool",
			"tool_input": object{"command": "view", "path": "/w/a.go"}}, []fact{{Kind: "read", Path: "/w/a.go"}}},
		"str_replace": {object{"tool_name": "str_replace_editor",
			"tool_input": object{"command": "str_replace", "path": "/w/a.go"}}, []fact{{Kind: "edit", Path: "/w/a.go"}}},
		"apply_patch": {object{"tool_name": "apply_patch", "tool_input": object{"input": "*** Begin Patch\n*** " +
			"Update File: a.go\n@@\n-x\n+y\n*** Add File: b.go\n+z\n*** End Patch"}},
			[]fact{{Kind: "edit", Path: "/w/a.go"}, {Kind: "edit", Path: "/w/b.go"}}},
		"a patch by shell": {object{"tool_name": "shell",
			"tool_input": object{"command": []string{"bash", "-lc", "apply_patch <<'EOF'\n*** Update File: a.go\nEOF"}}},
			[]fact{{Kind: "edit", Path: "/w/a.go"}}},
		"Grep": {object{"tool_name": "Grep", "tool_input": object{"path": "/w"}}, nil},
		"a failed Edit": {object{"hook_event_name": "PostToolUseFailure", "tool_name": "Edit",
			"tool_input": object{"file_path": "/w/a.go"}, "error": "String to replace not found"}, nil},
		"a failed Read": {object{"hook_event_name": "PostToolUseFailure", "tool_name": "Read",
			"tool_input": object{"file_path": "/w/a.go"}, "error": "File does not exist."}, nil},
		"an Edit without": {object{"tool_name": "Edit", "tool_input": object{}}, nil},
		"ls":              {object{"tool_name": "Bash", "tool_input": object{"command": "ls -la && git status"}}, nil},
		"cat": {object{"tool_name": "Bash", "tool_input": object{"command": "cd x && cat a.go"}},
			[]fact{{Kind: "read", Path: "/w/x/a.go"}}},
		"sed -i": {object{"tool_name": "Bash", "tool_input": object{"command": "sed -i s/a/b/ a.go"}},
			[]fact{{Kind: "change"}}},
		"a here-document": {object{"tool_name": "Bash", "tool_input": object{"command": "cat > a.go <<EOF\ngit " +
			"commit\nEOF"}}, []fact{{Kind: "write", Path: "/w/a.go"}, {Kind: "change"}}},
		"tests pass": {object{"tool_name": "Bash", "tool_input": object{"command": "TOKEN=x go test ./..."},
			"tool_response": object{"stdout": "ok", "stderr": "", "interrupted": false}},
			[]fact{{Kind: "test", Path: "/w", Command: "go test ./...", Outcome: "pass"}}},
		"tests fail": {object{"hook_event_name": "PostToolUseFailure", "tool_name": "Bash",
			"tool_input": object{"command": "cd m && go test ./..."}, "error": "Exit code 1\n--- FAIL: TestA (0.00s)\r\nFAIL",
			"is_interrupt": false}, []fact{{Kind: "test", Path: "/w/m", Command: "go test ./...", Outcome: "fail",
			Failed: []string{"TestA"}}}},
		"tests are stopped": {object{"hook_event_name": "PostToolUseFailure", "tool_name": "Bash",
			"tool_input": object{"command": "go test ./..."}, "error": "", "is_interrupt": true},
			[]fact{{Kind: "test", Path: "/w", Command: "go test ./...", Outcome: "unknown"}}},
		"in the background": {object{"tool_name": "Bash",
			"tool_input": object{"command": "go test", "run_in_background": true}},
			[]fact{{Kind: "test", Path: "/w", Command: "go test", Outcome: "unknown"}}},
		"an exit code": {object{"tool_name": "bash", "tool_input": object{"cmd": "pytest"}, "tool_output": "E",
			"tool_exit_code": 1}, []fact{{Kind: "test", Path: "/w", Command: "pytest", Outcome: "fail"}}},
		"another exit code": {object{"tool_name": "Bash", "tool_input": object{"command": "pytest"},
			"tool_response": object{"exit_code": 1, "output": "FAILED a.py::t - x"}},
			[]fact{{Kind: "test", Path: "/w", Command: "pytest", Outcome: "fail", Failed: []string{"a.py::t"}}}},
		"an exit code inside": {object{"tool_name": "Bash", "tool_input": object{"command": "pytest"},
			"tool_response": "Process exited with code 2\nx"},
			[]fact{{Kind: "test", Path: "/w", Command: "pytest", Outcome: "fail"}}},
		"no such command": {object{"hook_event_name": "PostToolUseFailure", "tool_name": "Bash",
			"tool_input": object{"command": "pytest"}, "error": "Exit code 127\nbash: pytest: command not found"},
			[]fact{{Kind: "test", Path: "/w", Command: "pytest", Outcome: "unknown"}}},
		"a list of texts": {object{"tool_name": "Bash", "tool_input": object{"command": "pytest | tail"},
			"tool_response": object{"content": []any{object{"type": "text", "text": "FAILED a.py::t - x"}}}},
			[]fact{{Kind: "test", Path: "/w", Command: "pytest", Outcome: "fail", Failed: []string{"a.py::t"}}}},
		"a NUL": {object{"tool_name": "Read", "tool_input": object{"file_path": "/w/a\x00b"}}, nil},
		"an endless path": {object{"tool_name": "Read",
			"tool_input": object{"file_path": "/" + strings.Repeat("a", 5000)}}, nil},
		"a path of numbers": {object{"tool_name": "Read", "tool_input": object{"file_path": 5}}, nil},
	} {
		if diff := cmp.Diff(c.want, told(t, "/w", c.told).facts()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		c.told["hook_event_name"] = "PreToolUse"
		if facts := told(t, "/w", c.told).facts(); facts != nil {
			t.Errorf("%s: before the act it leaves %v", name, facts)
		}
	}
}

// A part that the hook cannot read may contain a commit or a test run.
func TestAShellTextThatCannotBeReadIsSaid(t *testing.T) {
	t.Parallel()
	long := "echo\n#" + strings.Repeat("x", maxShellText) + "\n"
	run := func(h past, event, text string, action rules.Action) answer {
		a := told(t, "/w", object{"hook_event_name": event, "tool_use_id": text, "tool_name": "Bash",
			"tool_input": object{"command": text}})
		coding := rules.Coding{rules.NoCommitFailing: {Action: rules.Block, Unknown: action}}
		says, _ := Options{}.answer(t.Context(), h, a, coding)
		return says
	}
	fails, passes := past{}, past{}
	run(fails, "PostToolUseFailure", "go test ./...", rules.Off)
	run(passes, "PostToolUse", "go test ./...", rules.Off)
	const unread = "gem hook cannot judge by no_commit_failing: a part of the shell command cannot be read"
	if says := run(fails, "PreToolUse", long+"git commit", rules.Off); !strings.HasPrefix(says.Message, unread) {
		t.Errorf("a commit that may be there: %+v", says)
	}
	says := run(fails, "PreToolUse", long+"git commit", rules.Ask)
	if says.Specific == nil || says.Specific.Decision != "ask" {
		t.Errorf("one that is asked about: %+v", says)
	}
	says = run(fails, "PreToolUse", "git commit\n"+long, rules.Off)
	if says.Specific == nil || says.Specific.Decision != "deny" {
		t.Errorf("a commit before the rest: %+v", says)
	}
	if says := run(passes, "PreToolUse", long+"git commit", rules.Off); says != (answer{}) {
		t.Errorf("no test fails: %+v", says)
	}
	says = run(passes, "PostToolUse", long+"go test", rules.Off)
	if !strings.Contains(says.Message, "could not read all") {
		t.Errorf("a test run that may be there: %+v", says)
	}
	if all := passes["s"].all; len(all) != 2 || all[1].Kind != changed {
		t.Errorf("it left %+v", all)
	}
}

// Different paths of one file are the same file.
func TestPathsAreResolved(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{
		"link/a.go": "real/a.go", "./real//a.go": "real/a.go", dir + "/link/../real/a.go": "real/a.go",
		"link/new/b.go": "real/new/b.go",
	} {
		a := told(t, dir, object{"tool_name": "Read", "tool_input": object{"file_path": given}})
		if want := filepath.Join(dir, want); len(a.reads) != 1 || a.reads[0] != want {
			t.Errorf("%s: got %v, want %s", given, a.reads, want)
		}
	}
}

func TestWhichRulesAreAskedOfAnAct(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	if err := os.WriteFile(filepath.Join(dir, "there.go"), []byte("package a\n\nimport (\n\t\"fmt\"\n\tx \"m/auth\"\n)\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	coding := rules.Coding{}
	for _, name := range rules.CodingNames {
		coding[name] = rules.CodingRule{Action: rules.Warn}
	}
	for _, c := range []struct {
		tool  string
		input object
		want  string
	}{
		{"Edit", object{"file_path": "there.go"}, "no_edit_unread test_after_edits fix_regressions_first no_thrashing " +
			"scope_check"},
		{"Write", object{"file_path": "new.go"}, "test_after_edits fix_regressions_first no_thrashing"},
		{"str_replace_editor", object{"command": "view", "path": "there.go"}, ""},
		{"Read", object{"file_path": "there.go"}, ""},
		{"Edit", object{}, ""},
		{"Bash", object{"command": "ls"}, ""},
		{"Bash", object{"command": "git -C x commit"}, "no_commit_failing"},
		{"Bash", object{"command": "go test && git commit"}, "no_commit_failing no_pointless_rerun"},
		{"Bash", object{"command": `echo "git commit"`}, ""},
	} {
		a := told(t, dir, object{"hook_event_name": "PreToolUse", "tool_name": c.tool, "tool_input": c.input})
		q := a.question(coding)
		if got := strings.Join(q.applying(coding), " "); got != c.want {
			t.Errorf("%s %v: got %q, want %q", c.tool, c.input, got, c.want)
		}
		if len(q.edits) > 0 && q.edits[0].there && strings.Join(q.edits[0].imports, " ") != "import fmt x m auth" {
			t.Errorf("it imports %v", q.edits[0].imports)
		}
	}
}

func TestAWrongEventIsSaidAndStopsNobody(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "not the JSON", "not json": "not the JSON", "\x00\x01\xff": "not the JSON", "[]": "not the JSON",
		"null": "hook_event_name is missing", `{"something": 1}`: "hook_event_name is missing",
		`{"hook_event_name": "PreToolUse"}`:                                       "tool_name is missing",
		`{"hook_event_name": "PreToolUse", "tool_name": "Edit"}`:                  "session_id is missing",
		`{"hook_event_name": "PreToolUse", "tool_name": "Edit", "session_id": 5}`: "not the JSON",
		strings.Repeat("[", 1<<20):                                                "not the JSON",
		`{"hook_event_name": "SessionStart", "session_id": "s"}`:                  "",
	} {
		a, err := read(strings.NewReader(text), "/")
		if a != nil || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got %v, %v", text, a, err)
		}
	}
	if _, err := read(strings.NewReader(strings.Repeat(" ", maxInput+1)), "/"); err == nil ||
		!strings.Contains(err.Error(), "8 MiB") {
		t.Errorf("got %v", err)
	}
}

// For any input the hook prints nothing or one object.
func FuzzRun(f *testing.F) {
	for _, text := range []string{
		"", "{}", "\x00",
		`{"hook_event_name": "PreToolUse", "tool_name": "Edit", "session_id": "s", "tool_input": {"file_path": "/etc/hosts"}}`,
		`{"hook_event_name": "PostToolUse", "tool_name": "Bash", "session_id": "s", "tool_input": {"command": "go test | tail"}, "tool_response": {"stdout": "FAIL"}}`,
		`{"hook_event_name": "PostToolUseFailure", "tool_name": "Bash", "session_id": "s", "tool_input": {"command": ["sh", "-c", "git commit"]}, "error": {"a": 1}}`,
		`{"hook_event_name": "PreToolUse", "tool_name": "apply_patch", "session_id": "s", "tool_input": {"input": "*** Add File: x\n"}}`,
		`{"hook_event_name": "PreToolUse", "tool_name": "Bash", "session_id": "s", "tool_input": {"command": "go test"}}`,
	} {
		f.Add(text)
	}
	coding := rules.Coding{}
	for _, name := range rules.CodingNames {
		coding[name] = rules.CodingRule{Action: rules.Warn, Threshold: 3}
	}
	f.Fuzz(func(t *testing.T, text string) {
		printed, err := Run(t.Context(), Options{Source: "fuzz", Coding: func() (rules.Coding, error) { return coding, nil },
			Dir: "/"}, strings.NewReader(text))
		if err != nil && strings.Contains(err.Error(), "a fault of gem hook") {
			t.Error(err)
		}
		var one answer
		if len(printed) > 0 && (json.Unmarshal(printed, &one) != nil || one == answer{}) {
			t.Errorf("it prints %s", printed)
		}
	})
}

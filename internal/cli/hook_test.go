package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
)

// agent is a coding agent's session in a project, whose hooks run as its processes.
type agent struct {
	*testing.T
	env     []string
	dir     string
	session string
	acts    int
}

// newAgent starts a session under rules: the contents of coding in rules.json.
func newAgent(t *testing.T, url, coding string) *agent {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"auth.go", "pay.go"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rulesFile := filepath.Join(dir, "rules.json")
	if err := os.WriteFile(rulesFile, []byte(`{"version": "1", "rules": [], "coding": `+coding+`}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return &agent{t, []string{"DATABASE_URL=" + url, "CLAUDE_PROJECT_DIR=" + dir, "GEM_HOOK_TIMEOUT=1m"}, dir,
		"5e8cb9a9-6d7e-4f83-9d30-17cb1ae27a0b", 0}
}

// event is one as Claude Code sends it.
func (a *agent) event(name, tool string, input map[string]any, more map[string]any) string {
	a.Helper()
	a.acts++
	fields := map[string]any{
		"session_id": a.session, "transcript_path": "/home/dev/.claude/projects/x/" + a.session + ".jsonl", "cwd": a.dir,
		"permission_mode": "default",
		"hook_event_name": name, "tool_name": tool, "tool_input": input, "tool_use_id": fmt.Sprintf("toolu_01%022d", a.acts),
	}
	for k, v := range more {
		fields[k] = v
	}
	text, err := json.Marshal(fields)
	if err != nil {
		a.Fatal(err)
	}
	return string(text)
}

// hook runs a hook, and checks that the exit code is 0, and that stdout has at most one object.
func (a *agent) hook(event string) (said map[string]any) {
	a.Helper()
	got := gemReading(a.T, a.env, event, "hook")
	got.wantCode(a.T, 0)
	if got.stdout != "" {
		if err := json.Unmarshal([]byte(got.stdout), &said); err != nil {
			a.Errorf("stdout is %q: %v", got.stdout, err)
		}
	}
	return said
}

// may asks before an act, and returns the decision, or warn, or nothing, and the words.
func (a *agent) may(tool string, input map[string]any) (decision, words string) {
	a.Helper()
	said := a.hook(a.event("PreToolUse", tool, input, nil))
	if message, ok := said["systemMessage"].(string); ok {
		return "message", message
	}
	specific, _ := said["hookSpecificOutput"].(map[string]any)
	if specific == nil {
		return "", ""
	}
	if specific["hookEventName"] != "PreToolUse" || said["decision"] != nil {
		a.Errorf("it says %v", said)
	}
	if context, ok := specific["additionalContext"].(string); ok {
		if specific["permissionDecision"] != nil {
			a.Errorf("a warning decides: %v", said)
		}
		return "warn", context
	}
	return specific["permissionDecision"].(string), specific["permissionDecisionReason"].(string)
}

func (a *agent) did(tool string, input, response map[string]any) {
	a.Helper()
	if said := a.hook(a.event("PostToolUse", tool, input,
		map[string]any{"tool_response": response, "duration_ms": 12})); said != nil {
		a.Errorf("after %s: %v", tool, said)
	}
}

func (a *agent) read(file string) {
	a.Helper()
	path := filepath.Join(a.dir, file)
	a.did("Read", fields("file_path", path), map[string]any{"type": "text",
		"file": map[string]any{"filePath": path, "content": "package x\n", "numLines": 1}})
}

func (a *agent) edit(file string) {
	a.Helper()
	path := filepath.Join(a.dir, file)
	a.did("Edit", fields("file_path", path, "old_string", "a", "new_string", "password=hunter2"),
		map[string]any{"filePath": path, "userModified": false})
}

func (a *agent) passes(command string) {
	a.Helper()
	a.did("Bash", fields("command", command, "description", "Run it"),
		map[string]any{"stdout": "ok  \tx\t0.01s", "stderr": "", "interrupted": false, "isImage": false})
}

func (a *agent) fails(command, output string) {
	a.Helper()
	event := a.event("PostToolUseFailure", "Bash", fields("command", command),
		map[string]any{"error": "Exit code 1\n" + output, "is_interrupt": false})
	if said := a.hook(event); said != nil {
		a.Errorf("after %s: %v", command, said)
	}
}

func (a *agent) mayEdit(file string) (decision, words string) {
	a.Helper()
	return a.may("Edit", fields("file_path", filepath.Join(a.dir, file), "old_string", "a", "new_string", "b"))
}

func (a *agent) mayRun(command string) (decision, words string) {
	a.Helper()
	return a.may("Bash", fields("command", command))
}

func (a *agent) want(decision, words, wantDecision string, wantWords ...string) {
	a.Helper()
	if decision != wantDecision {
		a.Errorf("it says %q: %s; want %q", decision, words, wantDecision)
	}
	wants(a.T, words, wantWords...)
}

func fields(pairs ...string) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

const goFailure = "--- FAIL: TestA (0.00s)\n    a_test.go:5: no\nFAIL\nFAIL\tx\t0.003s\nFAIL"

func TestHookKnowsWhatASessionRead(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"no_edit_unread": "block"}`)
	decision, words := a.mayEdit("auth.go")
	a.want(decision, words, "deny", "no_edit_unread (block)", "auth.go was not read", "policy")
	a.read("auth.go")
	decision, words = a.mayEdit("auth.go")
	a.want(decision, words, "")
	a.session = "another"
	decision, words = a.mayEdit("auth.go")
	a.want(decision, words, "deny")
}

// A new file may be created, and the session may edit the files that it wrote. A relative path names the same file.
func TestHookLetsASessionEditItsOwnFiles(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"no_edit_unread": "block"}`)
	path := filepath.Join(a.dir, "new.go")
	write := fields("file_path", path, "content", "package x\n")
	decision, words := a.may("Write", write)
	a.want(decision, words, "")
	if err := os.WriteFile(path, []byte("package x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.did("Write", write, map[string]any{"type": "create", "filePath": path})
	decision, words = a.may("MultiEdit", fields("file_path", "./new.go"))
	a.want(decision, words, "")
	decision, words = a.may("MultiEdit", fields("file_path", "./pay.go"))
	a.want(decision, words, "deny", "pay.go")
}

func TestHookCountsEditsUntilATestRun(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"test_after_edits": ["warn", {"threshold": 2}]}`)
	a.edit("auth.go")
	decision, words := a.mayEdit("pay.go")
	a.want(decision, words, "")
	a.edit("pay.go")
	decision, words = a.mayEdit("pay.go")
	a.want(decision, words, "warn", "test_after_edits (warn): 2 edits were made")
	a.fails("go test ./...", goFailure)
	decision, words = a.mayEdit("pay.go")
	a.want(decision, words, "")
}

// go test prints no passes: a run replaces what its command reported before.
func TestHookLetsACommitThroughOnceTheTestsPass(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"no_commit_failing": "block"}`)
	decision, words := a.mayRun("git commit -m x")
	a.want(decision, words, "")
	a.fails("go test ./...", goFailure)
	for _, command := range []string{"git commit -m x", "cd y && git -C d commit", "jj describe -m x"} {
		decision, words = a.mayRun(command)
		a.want(decision, words, "deny", "TestA failed when `go test ./...`")
	}
	for _, command := range []string{"git push", `echo "git commit"`, "git commit-graph write"} {
		decision, words = a.mayRun(command)
		a.want(decision, words, "")
	}
	a.edit("auth.go")
	a.passes("go test ./... 2>&1 | tail -20")
	decision, words = a.mayRun("git commit -m x")
	a.want(decision, words, "")
}

func TestHookAsksForRegressionsToBeMended(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"fix_regressions_first": "ask"}`)
	a.passes("go test ./...")
	a.edit("auth.go")
	a.fails("go test ./...", goFailure)
	decision, words := a.mayEdit("pay.go")
	a.want(decision, words, "ask", "fix_regressions_first (ask)", "TestA (since the edit of "+a.dir+"/auth.go)")
	decision, words = a.mayEdit("auth.go")
	a.want(decision, words, "")
}

func TestHookSeesThrashing(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"no_thrashing": ["block", {"threshold": 2}]}`)
	for range 2 {
		decision, words := a.mayEdit("auth.go")
		a.want(decision, words, "")
		a.edit("auth.go")
		a.fails("go test ./...", goFailure)
	}
	decision, words := a.mayEdit("auth.go")
	a.want(decision, words, "deny", "edited 2 times")
	a.passes("go test ./...")
	decision, words = a.mayEdit("auth.go")
	a.want(decision, words, "")
}

func TestHookSeesPointlessReruns(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"no_pointless_rerun": "warn"}`)
	a.passes("go test ./a")
	decision, words := a.mayRun("go test ./a")
	a.want(decision, words, "warn", "no_pointless_rerun", "nothing was changed")
	decision, words = a.mayRun("go test ./b")
	a.want(decision, words, "")
	a.did("Bash", fields("command", "sed -i s/a/b/ auth.go"),
		map[string]any{"stdout": "", "stderr": "", "interrupted": false})
	decision, words = a.mayRun("go test ./a")
	a.want(decision, words, "")
}

func TestHookKnowsTheScopeOfASession(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"scope_check": "warn"}`)
	decision, words := a.mayEdit("auth.go")
	a.want(decision, words, "warn", "scope_check", "auth.go")
	a.read("auth.go")
	a.edit("auth.go")
	decision, words = a.mayEdit("pay.go") // of the same package
	a.want(decision, words, "")
}

func TestHookNamesAllRulesThatMeetAnAct(t *testing.T) {
	t.Parallel()
	a := newAgent(t, testdb.New(t), `{"no_edit_unread": "block", "test_after_edits": ["warn", {"threshold": 1}]}`)
	a.edit("auth.go")
	decision, words := a.mayEdit("pay.go")
	a.want(decision, words, "deny", "no_edit_unread (block)", "test_after_edits (warn)")
}

func TestHookKeepsFactsAndNoContents(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db := testdb.Pool(t, url)
	a := newAgent(t, url, `{"no_edit_unread": "warn"}`)
	a.read("auth.go")
	a.edit("auth.go")
	a.fails("TOKEN=hunter2 go test ./...", goFailure)
	a.passes("curl -H 'Authorization: hunter2' example.com > out.txt")
	a.passes("ls")
	got := testdb.Value[[]string](t, db, `select array_agg(concat_ws(' ', source, event, part, kind, replace(path, $1, ''),
		command, outcome, nullif(failed, '{}')) order by seq) from core_hook_events`, a.dir)
	want := []string{
		"claude-code PostToolUse 0 read /auth.go", "claude-code PostToolUse 0 edit /auth.go",
		"claude-code PostToolUseFailure 0 test  go test ./... fail {TestA}",
		"claude-code PostToolUse 0 write /out.txt", "claude-code PostToolUse 1 change",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := testdb.Value[int](t, db,
		"select count(*)::int from core_hook_events e where e::text like '%hunter2%'"); n != 0 {
		t.Errorf("%d rows hold a secret", n)
	}
}

// An event that is sent twice is recorded once; other kinds of agents have separate sessions.
func TestHookRecordsAnEventOnce(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	a := newAgent(t, url, `{"test_after_edits": ["warn", {"threshold": 2}]}`)
	event := a.event("PostToolUse", "Edit", fields("file_path", "auth.go"),
		map[string]any{"tool_response": map[string]any{}})
	a.hook(event)
	a.hook(event)
	decision, words := a.mayEdit("pay.go")
	a.want(decision, words, "")
	other := gemReading(t, a.env, event, "hook", "--source", "codex")
	other.wantCode(t, 0)
	if n := testdb.Value[int](t, testdb.Pool(t, url), "select count(*)::int from core_hook_events"); n != 2 {
		t.Errorf("%d rows, want one for each kind of agent", n)
	}
}

func TestHooksOfOneSessionAtOnceLoseNoFact(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	a := newAgent(t, url, `{"test_after_edits": ["block", {"threshold": 20}]}`)
	var events []string
	for i := range 20 {
		events = append(events, a.event("PostToolUse", "Edit", fields("file_path", fmt.Sprintf("f%d.go", i)),
			map[string]any{"tool_response": map[string]any{}}))
	}
	var all sync.WaitGroup
	for _, event := range events {
		all.Go(func() {
			if got := gemReading(t, a.env, event, "hook"); got.code != 0 || got.stdout != "" {
				t.Errorf("%+v", got)
			}
		})
	}
	all.Wait()
	if n := testdb.Value[int](t, testdb.Pool(t, url), "select count(distinct path)::int from core_hook_events"); n != 20 {
		t.Errorf("%d facts of 20 are there", n)
	}
	decision, words := a.mayEdit("auth.go")
	a.want(decision, words, "deny", "20 edits")
}

func TestHookPassesOverWhatItCannotRead(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "postgres://nobody@127.0.0.1:1/none", `{"no_edit_unread": "block"}`)
	for _, text := range []string{"", "not json", `{"something":1}`, "\x00\x01\xff", "[]",
		`{"hook_event_name": "PreToolUse", "tool_name": 5}`} {
		got := gemReading(t, a.env, text, "hook")
		got.wantCode(t, 0)
		if got.stdout != "" || !strings.HasPrefix(got.stderr, "gem hook: ") {
			t.Errorf("%q: %+v", text, got)
		}
	}
	for _, event := range []string{"SessionStart", "Stop", "UserPromptSubmit"} {
		if said := a.hook(a.event(event, "", nil, nil)); said != nil {
			t.Errorf("%s: %v", event, said)
		}
	}
}

// The exit code 2 would block the agent.
func TestHookIsNeverWrongUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"hook", "--wat"}, {"hook", "now"}} {
		got := gemWith(t, nil, args...)
		got.wantCode(t, 0)
		if got.stdout != "" || got.stderr == "" {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestHookWithoutRulesSaysAndDoesNothing(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "postgres://nobody@127.0.0.1:1/none", `{"no_edit_unread": "off"}`)
	for _, env := range [][]string{a.env, {"DATABASE_URL=postgres://nobody@127.0.0.1:1/none"}} {
		a.env = env
		decision, words := a.mayEdit("auth.go")
		a.want(decision, words, "")
		a.edit("auth.go")
	}
}

// A rules file with a defect is in force for nothing, and says so.
func TestHookSaysThatTheRulesAreWrong(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", `{"no_edit_unred": "block"}`)
	decision, words := a.mayEdit("auth.go")
	a.want(decision, words, "message", "judges nothing", "no_edit_unred", "did you mean no_edit_unread?")
	a.env = append(a.env,
		"TOOLS_RULES="+`{"version": "1", "rules": [], "coding": {"no_edit_unread": ["block", {"unknown": "ask"}]}}`)
	decision, words = a.mayEdit("auth.go")
	a.want(decision, words, "ask", "cannot judge by no_edit_unread: DATABASE_URL is not set")
}

func TestHookWithoutItsHistoryLetsAnActThroughOrAsks(t *testing.T) {
	testdb.Long(t, "TestHookLetsACommitThroughOnceTheTestsPass")
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	locked := testdb.New(t)
	tx, err := testdb.Pool(t, locked).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table core_hook_events in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	db := testdb.Pool(t, locked)
	full := fmt.Sprintf("gem_test_full_%d", os.Getpid())
	if _, err := db.Exec(t.Context(), "create role "+full+" login password 'full' connection limit 0"); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = db.Exec(context.Background(), "drop role "+full) }()
	crowded, err := url.Parse(locked)
	if err != nil {
		t.Fatal(err)
	}
	crowded.User = url.UserPassword(full, "full")
	for name, c := range map[string]struct{ url, timeout, want string }{
		"full": {crowded.String(), "1m", "too many connections"},
		"away": {"postgres://nobody@127.0.0.1:1/none", "1m", "cannot be reached"},
		"silent": {"postgres://nobody@" + silent.Addr().String() + "/none?sslmode=disable", "50ms",
			"did not answer within 50ms"},
		"slow":           {locked, "300ms", "did not answer within 300ms"},
		"without tables": {testdb.NewEmpty(t), "1m", "run `gem migrate`"},
		"no URL":         {"postgres://u:hunter2@[", "1m", "not a connection string"},
	} {
		t.Run(name, func(t *testing.T) {
			for rule, want := range map[string]string{`"block"`: "message", `["block", {"unknown": "ask"}]`: "ask"} {
				a := newAgent(t, c.url, `{"no_edit_unread": `+rule+`}`)
				a.env = append(a.env, "GEM_HOOK_TIMEOUT="+c.timeout)
				decision, words := a.mayEdit("auth.go")
				a.want(decision, words, want, c.want)
				if strings.Contains(words, "hunter2") {
					t.Errorf("it says the password: %s", words)
				}
				event := a.event("PostToolUse", "Edit", fields("file_path", "auth.go"), nil)
				if said, _ := a.hook(event)["systemMessage"].(string); !strings.Contains(said, "did not record") {
					t.Errorf("after the act it says %q", said)
				}
			}
		})
	}
}

// How long a hook takes from start to exit. It asserts nothing: run it on a quiet machine.
func TestHookFromStartToExit(t *testing.T) {
	if os.Getenv("GEM_TEST_LONG") == "" {
		t.Skip("GEM_TEST_LONG is not set")
	}
	a := newAgent(t, testdb.New(t), `{"no_edit_unread": "block", "test_after_edits": "warn"}`)
	for _, what := range []string{"PreToolUse", "PostToolUse"} {
		var took []time.Duration
		for range 100 {
			event := a.event(what, "Edit", fields("file_path", "auth.go"), nil)
			began := time.Now()
			a.hook(event)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("%s: p50 %v, p99 %v", what, took[49], took[98])
	}
}

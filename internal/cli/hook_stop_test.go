package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// An agent that waited long enough tells its hook to end. The hook ends, also while it reads an input that never comes.
func TestAHookThatReadsEndsWithASignal(t *testing.T) {
	t.Parallel()
	never, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = never.Close(), held.Close() })
	p := prepare(t, []string{"GEM_HOOK_TIMEOUT=0"}, "hook")
	p.cmd.Stdin = never
	p.start(t)
	p.stderr.waitFor(t, "GEM_HOOK_TIMEOUT is") // it has begun, and warns about the variable
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 || !strings.Contains(p.stderr.String(), "stopped by a signal") ||
		p.stdout.String() != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &p.stdout, &p.stderr)
	}
}

// Rules without an end would take all memory: the hook would end with the exit code 2, which stops the agent.
func TestRulesThatAreNotAFileDoNotStopTheAgent(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	event := `{"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": {"file_path": "a.go"}}`
	for _, target := range []string{pipe, "/dev/zero"} {
		p := prepare(t, nil, "hook")
		if err := os.Symlink(target, filepath.Join(p.cmd.Dir, "rules.json")); err != nil {
			t.Fatal(err)
		}
		p.cmd.Stdin = strings.NewReader(event)
		p.start(t)
		if code := p.wait(t); code != 0 {
			t.Errorf("%s: exit code %d", target, code)
		}
		wants(t, p.stdout.String(), "rules.json is not a regular file")
	}
}

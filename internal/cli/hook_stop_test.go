package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// An agent that waited long enough tells its hook to end. The hook ends, also while it reads what never comes.
func TestAHookThatReadsEndsWithASignal(t *testing.T) {
	t.Parallel()
	never, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = never.Close(), held.Close() })
	pipe := filepath.Join(t.TempDir(), "rules.json")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	event := `{"session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Edit", "tool_input": {"file_path": "a.go"}}`
	for what, set := range map[string]func(*process){
		"stdin": func(p *process) { p.cmd.Stdin = never },
		"rules": func(p *process) { p.cmd.Stdin = strings.NewReader(event) },
	} {
		p := prepare(t, []string{"TOOLS_RULES=" + pipe, "GEM_HOOK_TIMEOUT=0"}, "hook")
		set(p)
		p.start(t)
		p.stderr.waitFor(t, "GEM_HOOK_TIMEOUT is") // it has begun, and says what it thinks of that
		p.signal(t, syscall.SIGTERM)
		if code := p.wait(t); code != 0 || !strings.Contains(p.stderr.String(), "stopped by a signal") || p.stdout.String() != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", what, code, &p.stdout, &p.stderr)
		}
	}
}

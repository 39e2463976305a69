package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// sequences are the tests of the rules for coding agents.
func sequences(t *testing.T) (files []string) {
	t.Helper()
	files, err := filepath.Glob(fromRoot(t, "docs/examples/coding/*.test.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	return files
}

// They need no database and no registry.
func TestSequencesOfCodingAgentsComeAsTheySay(t *testing.T) {
	t.Parallel()
	got := gemWith(t, nil, append([]string{"rules", "test"}, sequences(t)...)...)
	got.wantCode(t, 0)
	if n := strings.Count(got.stdout, "\n"); n < 50 || strings.Count(got.stdout, "ok: ") != n {
		t.Error(got.stdout)
	}
}

// The hook's process returns the results of gem rules test for a sequence, with its history in Postgres: for the
// first three of each file, and for all in the long form.
func TestSequencesComeTheSameThroughTheProcessOfTheHook(t *testing.T) {
	t.Parallel()
	for _, file := range sequences(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var of struct {
				Rules     json.RawMessage
				Sequences []struct {
					Name  string
					Steps []struct {
						Files  map[string]string
						Hook   any
						Expect string
					}
				}
			}
			if err := json.Unmarshal(data, &of); err != nil {
				t.Fatal(err)
			}
			url := testdb.New(t)
			if os.Getenv("GEM_TEST_LONG") == "" {
				of.Sequences = of.Sequences[:min(3, len(of.Sequences))]
			}
			for i, sequence := range of.Sequences {
				dir := t.TempDir()
				env := []string{"DATABASE_URL=" + url, "TOOLS_RULES=" + string(of.Rules), "GEM_HOOK_TIMEOUT=1m"}
				for n, step := range sequence.Steps {
					for name, contents := range step.Files {
						path := filepath.Join(dir, name)
						if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
							t.Fatal(err)
						}
						if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					if step.Hook == nil {
						continue
					}
					got := gemReading(t, env, stdinOf(t, step.Hook, dir), "hook", "--source", fmt.Sprint("sequence ", i))
					if came := cameTo(t, got); step.Expect != "" && came != step.Expect || step.Expect == "" && came != "run" {
						t.Errorf("%s: step %d: it came to %q, want %q: %s", sequence.Name, n+1, came, step.Expect, got.stdout+got.stderr)
					}
				}
			}
		})
	}
}

// stdinOf is what an agent that works in a folder writes to its hook.
func stdinOf(t *testing.T, hook any, dir string) string {
	t.Helper()
	if text, is := hook.(string); is {
		return text
	}
	hook.(map[string]any)["cwd"] = dir
	text, err := json.Marshal(hook)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cameTo returns the hook's result in the words of gem rules test.
func cameTo(t *testing.T, got commandResult) string {
	t.Helper()
	got.wantCode(t, 0)
	switch {
	case got.stdout == "" && got.stderr == "":
		return "run"
	case got.stdout == "":
		return "error"
	}
	var said struct {
		Specific struct {
			Decision string `json:"permissionDecision"`
			Reason   string `json:"permissionDecisionReason"`
			Context  string `json:"additionalContext"`
		} `json:"hookSpecificOutput"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &said); err != nil {
		t.Errorf("stdout is %q: %v", got.stdout, err)
	}
	came := map[string]string{"deny": "block", "ask": "ask", "": "warn"}[said.Specific.Decision]
	action := came
	for line := range strings.Lines(said.Specific.Reason + said.Specific.Context) {
		if rule, _, of := strings.Cut(strings.TrimPrefix(line, "- "), " ("+action+"): "); of {
			came += " " + rule
		}
	}
	return came
}

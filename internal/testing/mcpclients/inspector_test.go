package mcpclients_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/testdb"
)

var goodName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func TestTheInspectorListsTheSameToolsInEachEra(t *testing.T) {
	t.Parallel()
	p := start(t)
	want, url, stdio := p.offered(), p.http().URL, p.stdio()
	command := []string{stdio.Command, "mcp"}
	for name, value := range stdio.Env {
		command = append(command, "-e", name+"="+value)
	}
	ways := map[string][]string{"modern": {url, "--protocol-era", "modern"}}
	if long() {
		ways["legacy"], ways["auto"], ways["stdio"] = []string{url, "--protocol-era", "legacy"},
			[]string{url, "--protocol-era", "auto"}, command
	}
	for name, args := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got struct {
				Result struct{ Tools []struct{ Name string } }
			}
			out := inspect(t, &got, append(args, "--method", "tools/list", "--strict")...)
			if strings.Contains(out.Stderr, "Warning") {
				t.Errorf("it warns:\n%s", out.Stderr)
			}
			names := make([]string, len(got.Result.Tools))
			for i, tool := range got.Result.Tools {
				names[i] = tool.Name
				if !goodName.MatchString(tool.Name) {
					t.Errorf("the name %s is not for every model", tool.Name)
				}
			}
			if !slices.Equal(names, want) {
				t.Errorf("got %q\nwant %q", names, want)
			}
		})
	}
}

func TestTheInspectorWaitsForATask(t *testing.T) {
	testdb.Long(t, "TestTheInspectorCallsATool")
	t.Parallel()
	p := start(t)
	url := p.http("--task-after", "100ms", "--wait", "1s").URL // without tasks the answer is pending
	var got struct {
		Result struct {
			StructuredContent json.RawMessage
			Meta              map[string]any `json:"_meta"`
		}
	}
	inspect(t, &got, url, "--protocol-era", "modern", "--method", "tools/call", "--tool-name", "lab_steps", "--tool-arg",
		"seconds=4")
	if string(got.Result.StructuredContent) != `{"text":"done"}` {
		t.Errorf("got %s, want the result", got.Result.StructuredContent)
	}
	p.count(t, "select count(*) from core_tool_calls where tool_name = 'lab.steps' and status = 'succeeded'", 1)
}

func TestTheInspectorCallsATool(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("other clients call tools in the short form. Set GEM_TEST_LONG=1")
	}
	p := start(t)
	var got struct {
		Result struct {
			StructuredContent struct {
				NoteID string `json:"note_id"`
			}
		}
	}
	inspect(t, &got, p.http().URL, "--protocol-era", "modern", "--method", "tools/call", "--tool-name", "os_create_note",
		"--tool-arg", "domain=business", "title=Roof", "content=x")
	if got.Result.StructuredContent.NoteID == "" {
		t.Errorf("got %+v", got)
	}
	p.count(t, "select count(*) from core_tool_calls where tool_name = 'os.create_note' and created_by = 'ada' and "+
		"signed_in", 1)
	p.count(t, "select count(*) from core_tool_receipts where status = 'succeeded'", 1)
}

// inspect runs the Inspector, which must succeed, and parses its output.
func inspect(t *testing.T, into any, args ...string) mcpclients.ProgramResult {
	t.Helper()
	out := mcpclients.Run(t, nil, "mcp-inspector", append([]string{"--cli", "--format", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out.Stdout), into); err != nil || out.Code != 0 {
		t.Fatalf("exit code %d, %v\n%s\n%s", out.Code, err, out.Stdout, out.Stderr)
	}
	return out
}

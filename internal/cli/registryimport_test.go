package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gemworker/gem/registry"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// issues is an MCP server with these tools, as domains.json names it for a domain.
func issues(t *testing.T, domain string, tools ...string) (env string) {
	t.Helper()
	server := sdk.NewServer(&sdk.Implementation{Name: "issues"}, nil)
	for _, name := range tools {
		server.AddTool(&sdk.Tool{Name: name, Description: "It is " + name + ".",
			InputSchema: json.RawMessage(`{"type": "object"}`)},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}, nil
			})
	}
	h := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(h.Close)
	return fmt.Sprintf(
		`GEM_DOMAINS={"version": "1", %q: {"mcp": {"url": %q}}, "crm": {"http": {"url": "https://example.com", "secret_env": "CRM_SECRET"}}}`, domain, h.URL)
}

func TestRegistryImportWritesTheToolsOfAServer(t *testing.T) {
	t.Parallel()
	domains := issues(t, "github", "create-issue", "list_issues")
	file := writeFile(t, oneTool)
	env := []string{domains, "TOOLS_REGISTRY=" + file}

	tried := gemWith(t, env, "registry", "import", "github", "--dry-run")
	tried.wantCode(t, 0)
	wants(t, tried.stdout, "version 1.0.0 becomes 1.1.0; would be written to "+file,
		"github.create_issue was added: none, 1 min, write:github, closed to signed-in users\n",
		"github.list_issues was added")
	if text, err := os.ReadFile(file); err != nil || string(text) != oneTool {
		t.Errorf("a dry run wrote %s, %v", text, err)
	}
	got := gemWith(t, env, "registry", "import", "github", "--frontends")
	got.wantCode(t, 0)
	wants(t, got.stdout, "; written to "+file, "github.create_issue was added: none, 1 min, write:github\n")
	r, err := registry.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if tools := r.Tools(); len(tools) != 5 || tools[2].Name != "github.list_issues" || r.Version != "1.1.0" {
		t.Fatalf("version %s with %d tools", r.Version, len(tools))
	}
	again := gemWith(t, env, "registry", "import", "github")
	again.wantCode(t, 0)
	wants(t, again.stdout, "github has 2 tools; no change in "+file+", version 1.1.0")
	listed := gemWith(t, env, "registry", "list")
	wants(t, listed.stdout, "MCP github create_issue")
}

func TestRegistryImportMayBeginAFileOfItsOwn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tools.registry.json")
	got := gemWith(t, []string{issues(t, "github", "create-issue")}, "registry", "import", "github", "--file", file)
	got.wantCode(t, 0)
	r, err := registry.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := r.Tool("leads.create"); !ok {
		t.Error("it has lost the tools of the program")
	}
}

func TestRegistryImportKeepsWhatTheFileIncludes(t *testing.T) {
	t.Parallel()
	file := writeFile(t, strings.Replace(oneTool, `"tools"`, `"include": ["wait"], "tools"`, 1))
	env := []string{issues(t, "github", "create-issue"), "TOOLS_REGISTRY=" + file}
	other := filepath.Join(t.TempDir(), "other.json")
	for _, into := range []string{other, file} {
		got := gemWith(t, env, "registry", "import", "github", "--file", into)
		got.wantCode(t, 0)
		wants(t, got.stdout, "version 1.0.0 becomes 1.1.0; written to "+into)
		text, err := os.ReadFile(into)
		if err != nil {
			t.Fatal(err)
		}
		wants(t, string(text), `"version": "1.1.0", "include": ["wait"], "tools"`, `"github.create_issue"`)
	}
}

func TestRegistryImportSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	domains := issues(t, "github", "create-issue")
	file := "TOOLS_REGISTRY=" + writeFile(t, oneTool)
	for name, c := range map[string]struct {
		env    []string
		domain string
		code   int
		want   string
	}{
		"no domains": {[]string{file}, "github", exitUsage,
			`no domains.json defines the MCP server github: write {"version": "1.0.0", "github": {"mcp": {"command": "npx"`},
		"another domain": {[]string{domains, file}, "gitlab", exitUsage,
			"the JSON of GEM_DOMAINS has no domain gitlab; its domains are crm, github"},
		"HTTP":              {[]string{domains, file}, "crm", exitUsage, "has crm behind HTTP"},
		"a registry inside": {[]string{domains}, "github", exitUsage, "--file tools.registry.json"},
		"a registry in a text": {[]string{domains, "TOOLS_REGISTRY=" + oneTool}, "github", exitUsage,
			"--file tools.registry.json"},
		"no such registry": {[]string{domains, "TOOLS_REGISTRY=/no/such/file"}, "github", exitUsage,
			"there is no registry at /no/such/file"},
		"no such server": {[]string{`GEM_DOMAINS={"version": "1", "github": {"mcp": {"url": "http://127.0.0.1:1"}}}`, file},
			"github", exitFailed,
			"github: the MCP server github could not be connected"},
		"no such program": {[]string{`GEM_DOMAINS={"version": "1", "github": {"mcp": {"command": "no-such-program"}}}`, file},
			"github", exitFailed, "The program no-such-program"},
		"a variable": {[]string{`GEM_DOMAINS={"version": "1", "github": {"mcp": {"url": "http://127.0.0.1:1", "header_env": {"Authorization": "GITHUB_TOKEN"}}}}`, file}, "github", exitFailed,
			"github: The MCP server github needs GITHUB_TOKEN"},
		"a place too many": {[]string{issues(t, "os", "create-note"), file}, "os", exitFailed,
			"os.create_note is defined twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, c.env, "registry", "import", c.domain)
			got.wantCode(t, c.code)
			wants(t, got.stderr, c.want)
			if strings.Contains(got.stdout, "written to") {
				t.Errorf("%s", got.stdout)
			}
		})
	}
}

// An agent, gem mcp, a worker, and the MCP server that has the tool.
func TestAnAgentCallsTheToolsOfAServerThroughGEM(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	file := writeFile(t, oneTool)
	env := []string{"DATABASE_URL=" + url, "TOOLS_REGISTRY=" + file, issues(t, "github", "create-issue", "close-issue")}
	gemWith(t, env, "registry", "import", "github", "--frontends").wantCode(t, 0)
	rules := `TOOLS_RULES={"version": "1.0.0", "rules": [{"name": "stays_open", "tools": ["github.close_issue"], "action": "block"}]}`
	startWorker(t, url, append(env, rules)...)

	agent := startMCP(t, env)
	wants(t, agent.ask("list", "tools/list", `{}`), `"github_create_issue"`, "It is create-issue.")
	first := agent.ask("call", "tools/call",
		`{"name": "github_create_issue", "arguments": {}, "_meta": {"io.github.gemworker/key": "k"}}`)
	wants(t, first, `"structuredContent":{"text":"done"}`)
	again := agent.ask("again", "tools/call",
		`{"name": "github_create_issue", "arguments": {}, "_meta": {"io.github.gemworker/key": "k"}}`)
	if strings.Replace(again, `"again"`, `"call"`, 1) != first {
		t.Errorf("asked again it answered\n%s, after\n%s", again, first)
	}
	wants(t, agent.ask("close", "tools/call", `{"name": "github_close_issue", "arguments": {}}`), "rule_blocked",
		"stays_open")
}

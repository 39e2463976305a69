package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// server is gem mcp, spoken to as an agent does over its stdin and stdout.
type server struct {
	*process
	stdin io.WriteCloser
	t     *testing.T
}

func startMCP(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	p := prepare(t, env, append([]string{"mcp"}, args...)...)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.start(t)
	s := &server{p, stdin, t}
	s.send(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	s.stdout.waitFor(t, `"id":"hello"`)
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return s
}

func (s *server) send(message string) {
	s.t.Helper()
	if _, err := io.WriteString(s.stdin, message+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// ask sends a request under an id, and returns the line of its answer.
func (s *server) ask(id, method, params string) string {
	s.t.Helper()
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":%s}`, id, method, params))
	s.stdout.waitFor(s.t, fmt.Sprintf(`"id":%q`, id))
	for {
		for line := range strings.Lines(s.stdout.String()) {
			if strings.Contains(line, fmt.Sprintf(`"id":%q`, id)) && strings.HasSuffix(line, "\n") {
				return line
			}
		}
		time.Sleep(time.Millisecond) // the line is being written
	}
}

// isJSONRPC fails the test for a line that is not a message.
func (s *server) isJSONRPC() {
	s.t.Helper()
	for line := range strings.Lines(s.stdout.String()) {
		var message struct{ JSONRPC string }
		if err := json.Unmarshal([]byte(line), &message); err != nil || message.JSONRPC != "2.0" {
			s.t.Errorf("on stdout: %s: %v", line, err)
		}
	}
}

const aNote = `{"name":"os_create_note","arguments":{"domain":"business","title":"Roof","content":"x"},"_meta":{"io.github.gemworker/key":"k"}}`

func TestMCPNeedsNoDatabaseToStartAndToList(t *testing.T) {
	t.Parallel()
	s := startMCP(t, nil)
	wants(t, s.ask("list", "tools/list", `{}`), `"leads_create"`, `"gem_result"`)
	wants(t, s.ask("call", "tools/call", aNote), `"code":-32603`, "DATABASE_URL is not set")
	wants(t, s.stderr.String(), "not offered", `"frontends": true`, "comms.send_sms needs the permission send:sms")
	s.stdin.Close()
	if code := s.wait(t); code != 0 {
		t.Errorf("exit code %d after the end of stdin", code)
	}
	s.isJSONRPC()
}

func TestMCPOptionsAreFlagsOrVariables(t *testing.T) {
	t.Parallel()
	s := startMCP(t, []string{"GEM_MCP_TOOLS=os.*", "GEM_MCP_NAMES=dot"}, "--tools", "leads.*", "--read-only")
	list := s.ask("list", "tools/list", `{}`)
	wants(t, list, `"name":"leads.list_by_stage"`)
	for _, other := range []string{`"name":"os.`, `"name":"leads.create"`} {
		if strings.Contains(list, other) {
			t.Errorf("%s is offered", other)
		}
	}
	for want, args := range map[string][]string{
		`--names is "both"; it may be underscore or dot`:                       {"--names", "both"},
		`GEM_MCP_WAIT is "1d"; it may be a duration`:                           nil,
		`the registry has no tool "os.list_task": did you mean os.list_tasks?`: {"--tools", "os.list_task"},
		`--on-cancel is "drop"`:                                                {"--on-cancel=drop"},
	} {
		var env []string
		if args == nil {
			env = []string{"GEM_MCP_WAIT=1d"}
		}
		e := gemWith(t, env, append([]string{"mcp"}, args...)...)
		e.wantCode(t, exitUsage)
		wants(t, e.stderr, want)
	}
}

func TestMCPRefusesNamesThatNoAgentCouldTell(t *testing.T) {
	t.Parallel()
	entry := func(name string) string {
		return fmt.Sprintf(
			`{"name":%q,"description":"","input_schema":{},"output_schema":{},"permissions":[],"idempotency":{"mode":"none"},"timeout_ms":1000,"receipt_fields":[]}`, name)
	}
	for want, names := range map[string][]string{
		"shop.re.fund and shop.re_fund are both called shop_re_fund by agents": {"shop.re.fund", "shop.re_fund"},
		"is too long: its length is 65":                                        {"shop." + strings.Repeat("x", 60)},
		"the domain gem is for tools of GEM's own":                             {"gem.result"},
	} {
		var entries []string
		for _, name := range names {
			entries = append(entries, entry(name))
		}
		e := gemWith(t, []string{`TOOLS_REGISTRY={"version":"1","tools":[` + strings.Join(entries, ",") + `]}`}, "mcp")
		e.wantCode(t, exitUsage)
		wants(t, e.stderr, want)
	}
}

func TestACallSurvivesThatMCPIsKilledAndIsTheSameWhenAskedAgain(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	env := []string{"DATABASE_URL=" + url, "LOG_LEVEL=debug"}
	killed := startMCP(t, env, "--as", "ada")
	killed.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + aNote + `}`)
	for testdb.Value[int](t, db, "select count(*) from core_tool_calls") == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	killed.signal(t, syscall.SIGKILL)
	killed.wait(t)

	startWorker(t, url)
	s := startMCP(t, env, "--as", "ada")
	first, again := s.ask("first", "tools/call", aNote), s.ask("again", "tools/call", aNote)
	receipt := testdb.Value[string](t, db, "select id::text from core_tool_receipts")
	wants(t, first, `"io.github.gemworker/receiptId":"`+receipt+`"`, `"structuredContent":{`)
	if strings.ReplaceAll(again, "again", "first") != first {
		t.Errorf("asked again:\n%s\nwant\n%s", again, first)
	}
	if n := testdb.Value[int](t, db,
		"select count(*) from core_tool_calls where created_by = 'ada' and signed_in and attempt "+
			"= 1"); n != 1 {
		t.Errorf("%d calls, want one", n)
	}
	if n := testdb.Value[int](t, db, "select count(*) from notes"); n != 1 {
		t.Errorf("%d notes, want one", n)
	}
	s.isJSONRPC()
	s.stop(t)
}

func TestMCPEndsWithItsClientAndItsCallGoesOn(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	s := startMCP(t, []string{"DATABASE_URL=" + url, "LOG_LEVEL=debug"})
	s.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + aNote + `}`)
	for testdb.Value[int](t, db, "select count(*) from core_tool_calls") == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	s.stdin.Close()
	if code := s.wait(t); code != 0 {
		t.Errorf("exit code %d after the end of stdin", code)
	}
	s.isJSONRPC()
	startWorker(t, url)
	for testdb.Value[string](t, db, "select status from core_tool_calls") != "succeeded" {
		time.Sleep(5 * time.Millisecond)
	}
}

func TestMCPEndsInOrderWhenNobodyReadsItsAnswers(t *testing.T) {
	t.Parallel()
	p := prepare(t, nil, "mcp")
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = writes
	p.start(t)
	writes.Close()
	reads.Close()
	if _, err := io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestARequestThatIsCancelledEndsAQueuedCall(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testdb.Pool(t, url)
	s := startMCP(t, []string{"DATABASE_URL=" + url})
	s.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + aNote + `}`)
	for testdb.Value[int](t, db, "select count(*) from core_tool_calls") == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	for testdb.Value[string](t, db, "select coalesce(error ->> 'error_code', '') from core_tool_calls") != "cancelled" {
		time.Sleep(5 * time.Millisecond)
	}
	s.stop(t)
}

// The servers that docs/mcp.md has clients start do start, and list the tools.
func TestTheGuideToMCPHasServersThatStart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	for _, block := range blocks {
		var file map[string]map[string]struct {
			Command string
			Args    []string
			Env     map[string]string
		}
		if err := json.Unmarshal([]byte(block[1]), &file); err != nil {
			t.Fatalf("%s: %v", block[1], err)
		}
		for _, servers := range file {
			server := servers["gem"]
			if server.Command != "gem" || len(server.Args) == 0 || server.Args[0] != "mcp" || server.Env["DATABASE_URL"] == "" {
				t.Fatalf("got %+v of %s", server, block[1])
			}
			s := startMCP(t, []string{"DATABASE_URL=" + server.Env["DATABASE_URL"]}, server.Args[1:]...)
			wants(t, s.ask("list", "tools/list", `{}`), `"leads_create"`)
			s.stop(t)
		}
	}
	if len(blocks) < 2 {
		t.Errorf("%d examples", len(blocks))
	}
}

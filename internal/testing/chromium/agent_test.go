package chromium

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/login"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
)

// agent talks to gem mcp over stdin and stdout, as a client of the newest protocol that supports tasks and opens links.
type agent struct {
	*process
	stdin io.Writer
	asked int
}

func startAgent(t *testing.T, env []string, args ...string) *agent {
	t.Helper()
	p := newProcess(t, env, append([]string{"mcp"}, args...)...)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.start()
	return &agent{process: p, stdin: stdin}
}

// task has the parts of an answer that the tests read.
type task struct {
	TaskID, Status string
	InputRequests  map[string]struct {
		Params struct{ Mode, URL, Message string }
	}
	Result struct{ StructuredContent json.RawMessage }
}

// ask sends a request and returns its answer.
func (a *agent) ask(method, params string) (answer task) {
	a.t.Helper()
	a.asked++
	const meta = `"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "agent", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}}}`
	request := fmt.Sprintf(`{"jsonrpc": "2.0", "id": "ask-%d", "method": %q, "params": {%s, %s}}`, a.asked, method, params,
		meta)
	if _, err := io.WriteString(a.stdin, strings.ReplaceAll(request, "\n", "")+"\n"); err != nil {
		a.t.Fatal(err)
	}
	line := a.writes(fmt.Sprintf(`(?m)^(\{.*"id":"ask-%d".*\})$`, a.asked))[1]
	var message struct {
		Result *task
		Error  json.RawMessage
	}
	if err := json.Unmarshal([]byte(line), &message); err != nil || message.Result == nil {
		a.t.Fatalf("%s is answered with %s (%v)", request, line, err)
	}
	return *message.Result
}

// until polls a task until a condition holds.
func (a *agent) until(id, what string, holds func(task) bool) (answer task) {
	a.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if answer = a.ask("tasks/get", fmt.Sprintf(`"taskId": %q`, id)); holds(answer) {
			return answer
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("the task still waits for %s: %+v", what, answer)
		}
	}
}

// link waits until a task requests something with a link that is not in before.
func (a *agent) link(id string, before ...string) (url string) {
	a.t.Helper()
	a.until(id, "a link", func(answer task) bool {
		for _, r := range answer.InputRequests {
			url = r.Params.URL
			if r.Params.Mode != "url" {
				a.t.Fatalf("an approval is asked for by %+v", r)
			}
		}
		return answer.Status == "input_required" && len(answer.InputRequests) == 1 &&
			!strings.Contains(strings.Join(before, " "), url)
	})
	return url
}

// named signs in a user in the way of a proxy that names its users.
func named(user string) func(*tab) {
	return func(b *tab) {
		call(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"X-User": user}})
	}
}

// Scenario 19: from an agent's call to the receipt, with people named by a proxy.
func TestAnAgentsCallGoesOnOnceItsLinkWasOpenedByTheRightPerson(t *testing.T) {
	t.Parallel()
	s := newScene(t, withoutWorker)
	s.exec("insert into gem.roles values ('hugo', 'boss'), ('ada', 'boss')")
	roles, err := login.ParseRoles("operator=ada,grace,hugo viewer=walter")
	if err != nil {
		t.Fatal(err)
	}
	auth, err := login.New(login.Options{Auth: "header", UserHeader: "X-User",
		Proxies: login.Proxies{netip.MustParsePrefix("127.0.0.1/32")}, Roles: roles,
		IsRole: func(context.Context, string) (bool, error) { return false, nil }})
	if err != nil {
		t.Fatal(err)
	}
	origin := s.serve(ada, func(o *dashboard.Options) { o.User = auth.User })
	a := startAgent(t, []string{"DATABASE_URL=" + s.URL, "GEM_DASHBOARD_URL=" + origin, "GEM_MCP_TASK_AFTER=0s",
		"TOOLS_REGISTRY=" + string(shopRegistry())}, "--as", "ada")
	id := a.ask("tools/call", `"name": "shop_settle", "arguments": {"order": "A-1", "cents": 12000}`).TaskID
	first := s.StartWorker() // not earlier: a question that exists at once would be the answer instead of a task

	// The durable handler asks. A user who may not approve sees no form and is refused.
	asked := a.link(id)
	for who, refused := range map[string]int{"": 401, "mallory": 403, "walter": 403, "ada": 403} {
		b := openTab(t, origin, func(b *tab) {
			if who != "" {
				named(who)(b)
			}
		})
		b.expects("status of 4")
		b.visit(asked)
		if n := b.count("main form button"); n > 0 {
			t.Errorf("a form is shown to %q:\n%s", who, b.text("main"))
		}
		if seen := strings.Contains(b.text("body"), "A-1"); seen != (who == "ada") {
			t.Errorf("the arguments are shown to %q: %t", who, seen)
		}
		status := eval[int](b,
			`fetch(location.href, {method: "POST", body: new URLSearchParams({form: "a".repeat(26), decision: "approve"})}).then(r => r.status)`)
		if status != refused {
			t.Errorf("an approval by %q is answered with %d, want %d", who, status, refused)
		}
	}
	grace, hugo := openTab(t, origin, named("grace")), openTab(t, origin, named("hugo"), scriptless)
	hugo.expects("status of 409")
	grace.visit(asked)
	grace.has("Is the complaint about A-1 justified?", "shop.refund", "12000")
	grace.follow("main form button[value=approve]")

	// Then a rule asks about the call that the handler makes. The registry changes after the question was shown. The shown
	// question becomes void, and the rule asks again.
	ruled := a.link(id, asked)
	for _, b := range []*tab{grace, hugo} {
		b.visit(ruled)
		b.has("large_refunds", "12000")
	}
	first.Stop()
	s.StartWorker(func(o *worker.Options) {
		if o.Registry, err = registry.Parse(shopRegistryOf("shop-2", "send:money")); err != nil {
			t.Fatal(err)
		}
	})
	refund := s.value("select id from core_tool_calls where tool_name = 'shop.refund'")
	s.exec("select gem.resume($1)", refund) // it checks again, as it does after a while
	anew := a.link(id, asked, ruled)
	hugo.follow("main form button[value=approve]")
	hugo.has("Your answer was not accepted", "Ended without an answer")

	// It is approved once, and the agent's task continues.
	for _, b := range []*tab{grace, hugo} {
		b.visit(anew)
	}
	grace.follow("main form button[value=approve]")
	result := a.until(id, "its end", func(answer task) bool { return answer.Status == "completed" })
	if got := string(result.Result.StructuredContent); !strings.Contains(got, "refunded A-1") {
		t.Errorf("the agent is told %s", got)
	}
	hugo.follow("main form button[value=approve]")
	hugo.has("Your answer was not accepted", "grace")
	if got := s.value(`select string_agg(coalesce(r.result ->> 'by', c.error ->> 'error_code'), ', ' order by c.seq)
		from core_tool_calls c join core_tool_receipts r on r.call_id = c.id
		where c.tool_name = 'wait.approval'`); got != "grace, cancelled, grace" {
		t.Errorf("the approvals came to %s", got)
	}
	if got := s.value(
		"select count(*) from core_tool_calls where tool_name = 'shop.refund' and status = 'succeeded'"); got != "1" {
		t.Errorf("%s refunds", got)
	}
}

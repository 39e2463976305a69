package mcpclients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/cli"
	"github.com/gemworker/gem/internal/testing/mcpclients"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
)

// playProgram is the environment variable that makes the test binary the gem program, with the registry in its value.
const playProgram = "GEM_TEST_PLAY_PROGRAM"

func TestMain(m *testing.M) {
	if registry := os.Getenv(playProgram); registry != "" {
		cli.Main(cli.Program{Domains: domains(), Registry: []byte(registry)})
		return
	}
	testdb.Main(m)
}

// lab has tools that take long, fail and ask.
type lab struct{}

type labInput struct {
	Seconds float64  `json:"seconds"`
	By      []string `json:"by"`
}

type labOutput struct {
	Text string `json:"text"`
}

// Steps takes the given time, in which its journal grows.
func (lab) Steps(ctx context.Context, call *handlers.Durable, in labInput) (out labOutput, err error) {
	for i := range 3 {
		if err := handlers.Sleep(ctx, call, fmt.Sprint("pause ", i),
			time.Duration(in.Seconds*float64(time.Second)/3)); err != nil {
			return out, err
		}
	}
	return labOutput{"done"}, nil
}

// Fail always fails.
func (lab) Fail(context.Context, *handlers.Call, labInput) (labOutput, error) {
	return labOutput{}, handlers.Fail("lab", "The lab is closed.")
}

// Ask asks for a number.
func (lab) Ask(ctx context.Context, call *handlers.Durable, in labInput) (out labOutput, err error) {
	n, err := handlers.Ask[int](call, "number", handlers.Question{Text: "How many?", By: in.By}).Wait(ctx)
	return labOutput{fmt.Sprint(n)}, err
}

// Approve asks for the approval of a call.
func (lab) Approve(ctx context.Context, call *handlers.Durable, in labInput) (out labOutput, err error) {
	decision, err := handlers.Approve(call, "approval",
		handlers.Approval{Tool: "lab.fail", Input: map[string]int{}, By: in.By, OwnerToo: true}).Wait(ctx)
	return labOutput{fmt.Sprint(decision.Approved)}, err
}

func domains() []any { return append(builtin.Domains(), lab{}) }

// tools returns the built-in registry with the lab's tools and the tools that ask.
func tools(t testing.TB) []byte {
	t.Helper()
	var all struct {
		Version string            `json:"version"`
		Include []string          `json:"include"`
		Tools   []json.RawMessage `json:"tools"`
	}
	text, err := os.ReadFile("../../../tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lab.steps", "lab.fail", "lab.ask", "lab.approve"} {
		all.Tools = append(all.Tools, json.RawMessage(fmt.Sprintf(
			`{"name": %q, "description": "A tool of the lab.", "permissions": ["read:db"],
			"input_schema": {"type": "object", "properties": {"seconds": {"type": "number"}, "by": {"type": "array", "items": {"type": "string"}}}},
			"output_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
			"idempotency": {"mode": "none"}, "timeout_ms": 100000, "calls": ["wait.answer", "wait.approval", "lab.fail"], "receipt_fields": []}`, name)))
	}
	all.Version = "lab"
	text, err = json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// program is a database with a worker, and the gem program for it.
type program struct {
	*handlertest.Env
	t        testing.TB
	registry []byte
}

func start(t testing.TB) *program {
	t.Helper()
	mcpclients.Node(t) // skips the test if there is nothing to test
	text := tools(t)
	return &program{handlertest.Start(t, handlertest.Options{Domains: domains(), Registry: text}), t, text}
}

// server describes a server in the form that clients.mjs expects.
type server struct {
	URL     string            `json:"url,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// stdio returns `gem mcp`, which each client starts.
func (p *program) stdio(flags ...string) server {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	return server{Command: self, Args: append([]string{"mcp"}, flags...), Env: map[string]string{
		playProgram: string(p.registry), "DATABASE_URL": p.URL, "GEM_MCP_SUBJECT": "ada", "PATH": os.Getenv("PATH"),
		"HOME": p.t.TempDir()}}
}

// http starts `gem mcp --http` until the end of the test.
func (p *program) http(flags ...string) server {
	p.t.Helper()
	s, _ := p.served(flags...)
	return s
}

// served is http, and also returns a function that kills the server.
func (p *program) served(flags ...string) (_ server, kill func()) {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	s := p.stdio(append(flags, "--http", address)...)
	cmd := exec.Command(s.Command, s.Args...)
	for name, value := range s.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var log strings.Builder
	cmd.Stderr, cmd.Dir, cmd.WaitDelay = &log, p.t.TempDir(), time.Minute
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			p.t.Errorf("gem mcp --http: %v\n%s", err, &log)
		}
	})
	p.t.Cleanup(func() { end() })
	p.Until("gem mcp --http serves", func() bool {
		r, err := http.Get("http://" + address + "/healthz")
		if err == nil {
			_ = r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
	http.DefaultClient.CloseIdleConnections()
	return server{URL: "http://" + address + "/mcp"}, func() {
		end = func() {}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// step is an action of a client.
type step struct {
	List      bool           `json:"list,omitempty"`
	Call      string         `json:"call,omitempty"`
	Arguments map[string]any `json:"arguments,omitempty"`
	Key       string         `json:"key,omitempty"`
	Progress  bool           `json:"progress,omitempty"`
}

// job is a job for clients.mjs.
type job struct {
	Client  string `json:"client"`
	Server  server `json:"server"`
	Version string `json:"version,omitempty"`
	Answer  any    `json:"answer,omitempty"`
	Links   bool   `json:"links,omitempty"`
	Do      []step `json:"do"`
}

// outcome is the result of a step.
type outcome struct {
	Names       []string
	Text        string
	Structured  json.RawMessage
	IsError     bool
	Meta        map[string]any
	Progress    []float64
	Threw, Kind string
}

// run runs a job. It returns the result of each step, and the questions that the user was asked.
func (p *program) run(t *testing.T, j job) (results []outcome, asked []json.RawMessage) {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	out := mcpclients.Run(t, nil, "clients.mjs", string(text))
	var came struct {
		Results []outcome
		Asked   []json.RawMessage
	}
	if err := json.Unmarshal([]byte(out.Stdout), &came); err != nil || len(came.Results) != len(j.Do) {
		t.Fatalf("%s: exit code %d, %v\n%s\n%s", j.Client, out.Code, err, out.Stdout, out.Stderr)
	}
	return came.Results, came.Asked
}

// count fails the test unless a query returns the expected count.
func (p *program) count(t *testing.T, query string, want int) {
	t.Helper()
	var got int
	if err := p.DB.QueryRow(context.WithoutCancel(t.Context()), query).Scan(&got); err != nil || got != want {
		t.Errorf("%s: got %d, %v; want %d", query, got, err, want)
	}
}

// long reports whether the long form is requested, in which every client uses every transport.
func long() bool { return os.Getenv("GEM_TEST_LONG") != "" }

// offered returns the tool names that a user should see.
func (p *program) offered() (names []string) {
	p.t.Helper()
	r, err := registry.Parse(p.registry)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, tool := range r.Tools() {
		if tool.Frontends && !strings.HasPrefix(tool.Name, "wait.") {
			names = append(names, strings.ReplaceAll(tool.Name, ".", "_"))
		}
	}
	names = append(names, "gem_result", "gem_cancel")
	slices.Sort(names)
	return names
}

package sdks

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/webhook"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// languages are the services under test, by name, with the commands that start them.
var languages = map[string][]string{
	"TypeScript": {"node", "service.mjs"},
	"Python":     {"python3", "service.py"},
}

// service is a running service.
type service struct {
	t       *testing.T
	command []string
	port    int

	mu      sync.Mutex
	process *exec.Cmd
}

// start starts a service on its port, or on a free one.
func (s *service) start() {
	s.t.Helper()
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Env = append(os.Environ(), "SDK_SECRET="+secret, fmt.Sprint("SDK_PORT=", s.port))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &s.port)
	}
	if err != nil {
		s.t.Fatalf("%v printed %q: %v", s.command, line, err)
	}
	s.mu.Lock()
	s.process = cmd
	s.mu.Unlock()
}

// kill ends the service in the middle of everything.
func (s *service) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

func (s *service) url() string {
	return fmt.Sprintf("http://%s", net.JoinHostPort("127.0.0.1", fmt.Sprint(s.port)))
}

// serve starts a service in a language until the test ends.
func serve(t *testing.T, language string) *service {
	t.Helper()
	s := &service{t: t, command: languages[language]}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// registryText is the registry of the tests.
var registryText = func() []byte {
	entry := func(name, more string) string {
		return fmt.Sprintf(`{"name": %q, "description": "", "input_schema": {"type": "object"}, "permissions": [],
			"output_schema": {}, "idempotency": {"mode": "none"}, "timeout_ms": 20000, "receipt_fields": [],
			"retry": {"max_attempts": 4, "backoff_ms": 1}%s}`, name, more)
	}
	calls := `, "deadline_ms": 600000, "calls": ["go.echo", "remote.pay"]`
	return fmt.Appendf(nil, `{"version": "1", "tools": [%s]}`, strings.Join([]string{entry("go.echo", ""),
		entry("go.play", calls), entry("remote.play", calls), entry("remote.refund", calls), entry("remote.pay", ""),
		entry("remote.forge", calls), entry("remote.unknown", calls)}, ", "))
}()

// durables are the durable tools of the services.
var durables = []string{"play", "refund", "forge", "unknown"}

// begin starts a worker whose domain remote is at a URL.
func begin(t *testing.T, url string) *handlertest.Env {
	t.Helper()
	env := prepare(t, url)
	env.StartWorker()
	return env
}

func prepare(t *testing.T, url string) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, handlertest.Options{Domains: []any{Go{}}, Registry: registryText, NoWorker: true,
		Worker: func(o *worker.Options) {
			o.Handlers.Add(webhook.New(o.Registry, map[string]backends.Service{"remote": {URL: url, SecretEnv: "S",
				Durable: durables}}, func(string) string { return secret }))
		}})
}

// Go is the domain of the tools in Go.
type Go struct{}

// Echo returns its input.
func (Go) Echo(_ context.Context, _ *handlers.Call, in struct {
	Value json.RawMessage `json:"value"`
}) (map[string]json.RawMessage, error) {
	return map[string]json.RawMessage{"value": in.Value}, nil
}

// told describes a receipt: its status, and its result or its error.
func told(r *receipts.Receipt) string { return fmt.Sprintf("%s %s", r.Status, r.Result) }

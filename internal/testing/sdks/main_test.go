package sdks

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
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
	t        *testing.T
	command  []string
	port     int
	database string   // URL of the database for its own transactions
	more     []string // more variables of its environment

	mu      sync.Mutex
	process *exec.Cmd
}

// start starts a service on its port, or on a free one.
func (s *service) start() {
	s.t.Helper()
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Env = append(os.Environ(), "SDK_SECRET="+secret, "SDK_DATABASE="+s.database, fmt.Sprint("SDK_PORT=", s.port))
	cmd.Env = append(cmd.Env, s.more...)
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

// serve starts a service in a language, which runs until the test ends. more adds variables to its environment.
func serve(t *testing.T, language, database string, more ...string) *service {
	t.Helper()
	return runService(t, languages[language], database, more...)
}

// runService starts a service with a command. Otherwise it is like serve.
func runService(t *testing.T, command []string, database string, more ...string) *service {
	t.Helper()
	s := &service{t: t, command: command, database: database, more: more}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// registryText is the registry of the tests.
var registryText = func() []byte {
	again := strings.NewReplacer(`"none"`, `"safe-retry"`, `"backoff_ms": 20`, `"backoff_ms": 200`).Replace
	entry := func(name, more string) string {
		return fmt.Sprintf(`{"name": %q, "description": "", "input_schema": {"type": "object"}, "permissions": [],
			"output_schema": {}, "idempotency": {"mode": "none"}, "timeout_ms": 20000, "receipt_fields": [],
			"retry": {"max_attempts": 20, "backoff_ms": 20}%s}`, name, more)
	}
	calls := `, "deadline_ms": 864000000, "calls": ["go.echo", "remote.pay"]`
	acts := `, "deadline_ms": 864000000, "calls": ["remote.act", "remote.unset", "remote.unlisted"]`
	// a long time limit: tests delay the steps of these tools, and none may time out on a slow machine
	patient := func(entry string) string { return strings.Replace(entry, "20000", "600000", 1) }
	return fmt.Appendf(nil, `{"version": "1", "tools": [%s]}`, strings.Join([]string{again(entry("go.echo", "")),
		entry("go.play", calls), entry("remote.play", calls), entry("remote.refund", calls), entry("remote.pay", ""),
		entry("remote.forge", calls), entry("remote.book", calls), entry("remote.case", calls),
		entry("remote.unknown", calls), patient(entry("remote.agent", acts)), patient(entry("remote.act", "")),
		entry("remote.unset", ""), again(entry("remote.mortal", calls)), entry("remote.plain", calls),
		entry("remote.gone", "")}, ", "))
}()

// durables are the durable tools of the services.
var durables = []string{"play", "refund", "forge", "unknown", "book", "case", "agent", "mortal", "plain"}

// begin starts a service in a language, and a worker that calls it. The service has a database login for its stepTx.
func begin(t *testing.T, language string) (*handlertest.Env, *service) {
	t.Helper()
	database := testdb.New(t)
	s := serve(t, language, loginOf(t, database))
	return beginAt(t, database, s.url()), s
}

// beginAt starts a worker on a database. The service at the URL handles the tools of the domain remote.
func beginAt(t *testing.T, database, url string) *handlertest.Env {
	t.Helper()
	return handlertest.Start(t, optionsAt(database, url))
}

// optionsAt returns the options of a worker on a database. The service at the URL handles the tools of the domain
// remote.
func optionsAt(database, url string) handlertest.Options {
	return handlertest.Options{Domains: []any{Go{}}, Registry: registryText, Database: database,
		Worker: func(o *worker.Options) {
			o.Handlers.Add(webhook.New(o.Registry, map[string]backends.Service{"remote": {URL: url, SecretEnv: "S",
				Durable: durables, SQL: true}}, func(string) string { return secret }))
		}}
}

// loginOf makes the table things and a login for the service, and returns its URL.
func loginOf(t *testing.T, database string) string {
	t.Helper()
	db := testdb.Pool(t, database)
	role := strings.ToLower("gem_test_sdk_" + rand.Text())
	testdb.Exec(t, db, fmt.Sprintf(`create table things (call_id text); create role %[1]s login password 'x' in role
		gem_handler; grant insert on things to %[1]s; alter table things enable row level security;
		create policy all_rows on things using (true)`, role))
	t.Cleanup(func() {
		_, err := db.Exec(context.Background(), fmt.Sprintf("drop owned by %[1]s; drop role %[1]s", role))
		if err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "x")
	return u.String()
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

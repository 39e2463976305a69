package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/testing/pgbouncer"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

const ada = `{"name": "Ada", "phone": "+61 400 000 001", "suburb": "Carlton"}`

// traceScene makes a call and traces it.
func traceScene(t *testing.T) map[string]string {
	t.Helper()
	url := newDatabase(t)
	env := []string{"DATABASE_URL=" + url}
	startWorker(t, url, "WORKER_ID=web-1")
	gemWith(t, env, "call", "leads.create", ada, "--wait").wantCode(t, exitDone)
	traced := gemWith(t, env, "trace", testdb.Value[string](t, testdb.Pool(t, url),
		"select id::text from core_tool_calls"))
	return map[string]string{"call": traced.stdout}
}

// rulesScene stops a call by a limit, and has another one approved.
func rulesScene(t *testing.T) map[string]string {
	t.Helper()
	url := newDatabase(t)
	db, env := testdb.Pool(t, url), []string{"DATABASE_URL=" + url}
	startWorker(t, url, "TOOLS_RULES="+rulesOfTheGuide(t, "sms_once_a_day", "won_is_checked"))
	gemWith(t, env, "roles", "add", testdb.Value[string](t, db, "select session_user::text"), "sales").wantCode(t,
		exitDone)
	const sms = `{"to": "+61400000001", "message": "Hello", "context_ref": {"type": "lead", "id": "1"}}`
	gemWith(t, env, "call", "comms.send_sms", sms, "--wait")
	limited := gemWith(t, env, "call", "comms.send_sms", sms, "--wait")

	gemWith(t, env, "call", "leads.create", ada, "--wait").wantCode(t, exitDone)
	id := testdb.Value[string](t, db, `insert into core_tool_calls (tool_name, input)
		select 'leads.update_stage', jsonb_build_object('lead_id', id, 'stage', 'won') from leads returning id::text`)
	question := delta{T: t, db: db}.question(id)
	questions := gemWith(t, env, "questions")
	gemWith(t, env, "approve", question, "--reason", "signed today").wantCode(t, exitDone)
	awaitReceipt(t, db, id)
	approved := gemWith(t, env, "receipt", id)
	return map[string]string{
		"limit": excerpt(t, limited.stdout, "result", "error", "error_code") +
			excerpt(t, limited.stdout, "result", "error", "message"),
		"questions": questions.stdout,
		"effects":   excerpt(t, approved.stdout, "effects", "rules"),
	}
}

func awaitReceipt(t *testing.T, db *pgxpool.Pool, call string) {
	t.Helper()
	if _, err := client.Await(t.Context(), db, call); err != nil {
		t.Fatal(err)
	}
}

// rulesOfTheGuide is a rules file with some of the rules of docs/rules.md.
func rulesOfTheGuide(t *testing.T, names ...string) string {
	t.Helper()
	var rules []string
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```")
	for _, found := range blocks.FindAllStringSubmatch(readPage(t, "docs/rules.md"), -1) {
		var file struct {
			Name  string
			Rules []json.RawMessage
		}
		if err := json.Unmarshal([]byte(found[1]), &file); err != nil {
			continue // sequences of calls, for gem rules test
		}
		for _, name := range names {
			if strings.Contains(found[1], `"`+name+`"`) && len(file.Rules) == 1 {
				rules = append(rules, string(file.Rules[0]))
			} else if file.Name == name {
				rules = append(rules, found[1])
			}
		}
	}
	if len(rules) != len(names) {
		t.Fatalf("docs/rules.md has %d of the rules %v", len(rules), names)
	}
	return `{"version": "1.0.0", "rules": [` + strings.Join(rules, ",") + `]}`
}

// excerpt returns a member of a JSON document.
func excerpt(t *testing.T, document string, path ...string) string {
	t.Helper()
	value := json.RawMessage(document)
	for _, name := range path {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(value, &object); err != nil || object[name] == nil {
			t.Fatalf("%s: %v:\n%s", path, err, document)
		}
		value = object[name]
	}
	var indented bytes.Buffer
	_ = json.Indent(&indented, value, "", "  ")
	var lines strings.Builder
	for line := range strings.Lines(fmt.Sprintf("%q: %s", path[len(path)-1], &indented)) {
		lines.WriteString(wrapped(strings.TrimRight(line, "\n")))
	}
	return lines.String()
}

// wrapped breaks a line after spaces and commas, where it would be longer than 160 characters.
func wrapped(line string) string {
	var lines strings.Builder
	length := 0
	for _, part := range regexp.MustCompile(`[^ ,]*[ ,]*`).FindAllString(steady(line), -1) {
		if length+len(part) > 160 {
			lines.WriteString("\n  ")
			length = 2
		}
		lines.WriteString(part)
		length += len(part)
	}
	return strings.ReplaceAll(lines.String(), " \n", "\n") + "\n"
}

// poolerScene starts a worker behind a transaction pooler, with a direct way for notifications.
func poolerScene(t *testing.T) map[string]string {
	t.Helper()
	url := newDatabase(t)
	w := startWorker(t, pgbouncer.Start(t, url, pgbouncer.Options{}).URL(url), "DIRECT_URL="+url)
	return map[string]string{"start": logged(t, w, "DATABASE_URL leads")}
}

// logged returns the lines of a worker's log whose messages begin so, without level and time.
func logged(t *testing.T, w *process, messages ...string) string {
	t.Helper()
	var lines strings.Builder
	for _, message := range messages {
		found := regexp.MustCompile(`(?m)("msg":"`+message+`.*)\}$`).FindAllStringSubmatch(w.stderr.String(), -1)
		if found == nil {
			t.Errorf("the log has no line %q:\n%s", message, w.stderr.String())
			continue
		}
		lines.WriteString(wrapped(found[len(found)-1][1]))
	}
	return lines.String()
}

// dockerScene asks for the health of a worker in a container.
func dockerScene(t *testing.T) map[string]string {
	t.Helper()
	url := newDatabase(t)
	startWorker(t, url, "WORKER_ID=eaef6f4db1f0") // as Docker names its host
	healthy := gemWith(t, []string{"DATABASE_URL=" + url, "WORKER_ID=eaef6f4db1f0"}, "healthcheck")
	return map[string]string{"health": healthy.stdout}
}

// renderScene does what docs/render.md does: it migrates, runs a worker through a session pooler, and makes a call. It
// stops the worker while another call runs.
func renderScene(t *testing.T) map[string]string {
	t.Helper()
	url := testdb.NewEmpty(t)
	through := pgbouncer.Start(t, url, pgbouncer.Options{Mode: pgbouncer.Session, PoolSize: 15}).URL(url)
	env := []string{"DATABASE_URL=" + through, "DIRECT_URL=" + through}
	gemWith(t, env, "migrate").wantCode(t, exitDone)
	again := gemWith(t, env, "migrate")
	again.wantCode(t, exitDone)

	w := startWorker(t, through, "DIRECT_URL="+through, "RENDER_INSTANCE_ID=srv-cl0abc-x7k2p", "RENDER_GIT_COMMIT=9858f2a",
		"WORKER_CONCURRENCY=10", "WORKER_CONNECTIONS=4", "WORKER_SHUTDOWN_GRACE=45s")
	started := logged(t, w, "gem worker", "registry loaded", "DATABASE_URL leads", "worker started")

	db := testdb.Pool(t, url)
	_, page, _ := strings.Cut(readPage(t, "docs/render.md"), "\n```sql\n")
	page, _, _ = strings.Cut(page, "```")
	insert, look, ok := strings.Cut(page, ";\n")
	if !ok {
		t.Fatal("docs/render.md has no call")
	}
	first := testdb.Value[string](t, db, insert)
	awaitReceipt(t, db, first)
	w.stderr.waitFor(t, `"msg":"call ended"`)
	receipt := (&follower{env: map[string]string{"DATABASE_URL": url}}).query(t, look)
	call := logged(t, w, "call ended")

	// A lock keeps the next call running while the worker stops.
	lock, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), "lock table notes"); err != nil {
		t.Fatal(err)
	}
	testdb.Value[string](t, db, insert)
	for !testdb.Value[bool](t, db,
		"select exists (select from pg_locks where relation = 'notes'::regclass and not granted)") {
	}
	w.signal(t, syscall.SIGTERM)
	w.stderr.waitFor(t, "stopping: ")
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := w.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	return map[string]string{
		"again": again.stdout, "start": started, "receipt": receipt, "call": call,
		"stop": logged(t, w, "stopping: ", "call ended", "worker stopped"),
	}
}

// operationsScene connects to a server whose certificate comes from an unknown authority.
func operationsScene(t *testing.T) map[string]string {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	t.Cleanup(certified.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := io.ReadFull(conn, make([]byte, 8)); err == nil { // Postgres's request for TLS
				_, _ = conn.Write([]byte("S"))
				_ = tls.Server(conn, certified.TLS).HandshakeContext(t.Context())
			}
			_ = conn.Close()
		}
	}()
	url := "postgres://postgres:gem@" + listener.Addr().String() + "/postgres?sslmode=verify-full"
	refused := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate", "--patience", "0s")
	refused.wantCode(t, exitFailed)
	return map[string]string{"certificate": refused.stderr}
}

package dashboard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

// museum is a dashboard with a call of each kind, so that every page has something to show.
type museum struct {
	server *httptest.Server
	db     *pgxpool.Pool
	user   dashboard.User

	failed, retried, waiting, running, agent, extraction, question, approval, answered string
	// values for the fields of filters
	names url.Values
}

// newMuseum fills every text that others choose with the result of text, which gets the name of the place.
func newMuseum(t *testing.T, text func(place string) string) *museum {
	t.Helper()
	m := &museum{}
	m.server, m.db = pages(t, dashboard.User{}, func(o *dashboard.Options) {
		o.User = func(*http.Request) (dashboard.User, error) { return m.user, nil }
	})
	tools, err := json.Marshal(object{"version": "1", "tools": []object{
		{"name": "shop.order", "description": text("description"), "idempotency": object{"mode": "none"}, "timeout_ms": 1000,
			"permissions": []string{text("permission")}, "input_schema": object{"description": text("schema")}}}})
	if err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, m.db, "select gem.record_registry('1', repeat('a', 64), $1::text::jsonb)", string(tools))
	testdb.Exec(t, m.db, "insert into gem.roles values ('ada', 'boss')")
	worker := text("worker")
	testdb.Exec(t, m.db, "select gem.start_worker($1, 50, '', '1', '1 hour', '{steps}')", worker)

	m.names = url.Values{"tool": {text("tool")}, "session": {text("session")}, "caller": {text("caller")},
		"key": {text("key")}}
	claimed := func(tool string) string {
		id := made(t, m.db, client.NewCall{Tool: tool, SessionID: m.names.Get("session"), CreatedBy: m.names.Get("caller"),
			Input: object{"note": text("input"), text("input field"): 1}})
		testdb.Exec(t, m.db, "select gem.claim($1, 50, true)", worker)
		return id
	}
	jsonOf := func(v any) string {
		encoded, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(encoded)
	}
	event := func(id, event string, data object) {
		testdb.Exec(t, m.db, `with call as (update core_tool_calls set events = events + 1, steps = steps + 1 where id = $1
			returning *)
			insert into core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
			select id, events, gem.now(), $2, attempt, $3, $4::text::jsonb from call`, id, event, worker, jsonOf(data))
	}
	effects := jsonOf(object{"db_writes": []object{{"table": text("table"), "action": "insert", "id": text("row")}},
		"messages_sent":  []object{{"type": "mail", "recipient": text("recipient"), "message_id": "1"}},
		"files_written":  []string{text("file")},
		"external_calls": []object{{"service": text("service"), "endpoint": "https://shop.example/" + text("endpoint")}},
		"rules": object{"version": text("version"), "verdicts": []object{{"rule": text("rule"), "action": "warn",
			"message": text("verdict")}},
			"approvals": []object{{"rule": text("rule"), "id": "01a20000-0000-7000-8000-000000000001", "by": text("approver"),
				"reason": text("reason"), "at": "2026-01-01T00:00:00Z"}}}})
	ends := func(id, status string, result object, context any) {
		testdb.Exec(t, m.db, "select gem.finish($1, 1, $2, $3, $4::text::jsonb, $5::text::jsonb, '1', p_steps => (select "+
			"steps "+
			"from core_tool_calls where id = $1), p_context => $6)",
			id, worker, status, jsonOf(result), effects, context)
	}
	failure := object{"error": object{"error_code": "validation_error", "message": text("message"),
		"details": []object{{"path": "/note", "message": text("detail")}}}}

	m.failed = claimed(m.names.Get("tool"))
	ends(m.failed, "failed", failure, text("context"))
	m.retried = claimed("shop.order")
	testdb.Exec(t, m.db, "select gem.retry($1, 1, $2, $3::text::jsonb, 5, '1 hour')", m.retried, worker,
		jsonOf(object{"error_code": "execution_error", "message": text("message"), "details": text("detail"),
			"context": text("context of a retry")}))
	m.running = claimed("shop.order")
	event(m.running, "step", object{"name": text("step"), "kind": "step", "result": text("step result")})
	testdb.Exec(t, m.db, "select gem.progress(jsonb_build_array(jsonb_build_object('call', $1::text, 'attempt', 1, "+
		"'rows', "+
		"jsonb_build_array(jsonb_build_object('kind', 'text', 'data', $2::text::jsonb)))))",
		m.running, jsonOf(object{"text": text("progress")}))

	m.agent = claimed("agent.run")
	event(m.agent, "step", object{"name": "turn 1", "kind": "step", "result": object{"stop_reason": text("stop"),
		"parts": []object{{"type": "text", "text": text("turn")},
			{"type": "tool_call", "name": text("wanted tool"), "arguments": text("wanted arguments")}}}})
	ends(m.agent, "succeeded", object{"answer": text("answer of an agent")}, nil)
	m.extraction = claimed("extract.run")
	ends(m.extraction, "succeeded", object{"document": object{"length": 3, "offsets": "utf16", "sha256": text("hash")},
		"result_kind": "non_empty",
		"extractions": []object{{"class": text("class"), "quote": text("quote"),
			"attributes": object{"a": text("attribute")}}},
		"rejected": []object{{"class": text("class"), "quote": text("quote"), "reason": text("rejection")}}}, nil)

	asks := func(tool string, input object) string {
		id := made(t, m.db, client.NewCall{Tool: tool, Input: input, CreatedBy: m.names.Get("caller"),
			SessionID: m.names.Get("session")})
		testdb.Exec(t, m.db, "select gem.claim($1, 50, true)", worker)
		testdb.Exec(t, m.db, "select gem.wait($1, 1, $2, '[]', 'answer', '{#answer}', 1, null, null)", id, worker)
		return id
	}
	m.question = asks("wait.answer", object{"text": text("question"), "by": []string{"role:boss"},
		"schema": object{"type": "object", "properties": object{fieldName(text("field")): object{"type": "string",
			"title": text("title"), "description": text("help"), "enum": []string{text("choice")}}}}})
	approves := object{"tool": text("tool to approve"), "input": object{"note": text("argument")},
		"text": text("question"), "by": []string{"role:boss"}, "others": false,
		"digest": strings.Repeat("0", 64), "before": []object{{"tool": text("tool before"), "status": text("status"),
			"error_code": text("code"), "at": "2026-01-01T00:00:00Z"}}}
	m.approval = asks("wait.approval", approves)
	m.answered = asks("wait.approval", approves)
	event(m.answered, "answered", object{"name": "#answer", "by": text("answerer"),
		"value": object{"approved": true, "reason": text("reason")}})
	// A call that waits for a rule's question, which is in its journal.
	m.waiting = claimed("shop.order")
	testdb.Exec(t, m.db, "set session_replication_role = replica; update core_tool_calls set parent_call_id = '"+m.waiting+
		"', parent_step = '##1' where id = '"+m.approval+
		"'; set session_replication_role = origin")
	testdb.Exec(t, m.db, "insert into core_hook_events (source, session_id, event, part, kind, path, command, outcome, "+
		"failed, at) select $1, $2, 'PostToolUse', 0, 'test', $3, $4, 'fail', array[$5], gem.now()",
		"claude-code", m.names.Get("session"), text("path"), text("command"), text("test"))
	testdb.Exec(t, m.db, "select gem.save_schedule('s', '@hourly', 'shop.order', "+
		"'{\"sent\": \"SECRET-scheduled.\"}', 'UTC', jsonb_build_object('session_id', $1::text))", m.names.Get("session"))
	testdb.Exec(t, m.db, "select gem.pause_schedule('s', null, $1, $2)", text("pauser"), text("reason"))
	testdb.Exec(t, m.db, "insert into gem.occurrences (schedule_id, due_at, upto, count, backfilled, skipped, detail, "+
		"at) select id, gem.now(), gem.now(), 1, false, 'missed', $1, gem.now() from gem.schedules", text("detail"))
	testdb.Exec(t, m.db, "update gem.epochs set why = 'promotion', reran = 1")
	testdb.Exec(t, m.db, "insert into gem.epoch_calls select 1, $1, 1, $2, $3, 'ran_twice', null, 'queued, attempt 0', "+
		"'{\"sent\": \"SECRET-lost.\"}', gem.now()", m.failed, text("worker"), text("tool"))
	return m
}

// paths returns the path of every page, with filters in the queries.
func (m *museum) paths(t *testing.T) []string {
	t.Helper()
	odd := url.PathEscape(m.names.Get("tool"))
	all := []string{"/", "/?range=day", "/overview.json", "/calls?state=failed", "/calls.json", "/calls?state=" + odd,
		"/calls?from=" + odd, "/calls?before=" + odd, "/calls?find=" + odd,
		"/calls?" + m.names.Encode() + "&code=" + odd + "&q=" + odd, "/failures", "/failures.json", "/failures?within=" + odd,
		"/failures?tool=" + odd, "/sessions", "/sessions.json",
		"/sessions?" + url.Values{"id": m.names["session"]}.Encode(),
		"/sessions.json?" + url.Values{"id": m.names["session"]}.Encode(),
		"/sessions/" + url.PathEscape(m.names.Get("session")),
		"/sessions?id=" + odd + "none", "/questions", "/questions.json", "/questions?decided=" + m.answered, "/tools",
		"/tools.json", "/tools?find=" + odd, "/tools?name=shop.order",
		"/tools/shop.order", "/tools/" + odd, "/workers", "/workers.json", "/epochs", "/epochs.json",
		"/epochs/1", "/epochs/" + odd, "/schedules", "/schedules/s", "/schedules/" + odd, "/calls",
		"/nothing/" + odd, "/nothing?" + odd,
		"/calls/" + odd, "/questions/" + odd,
		"/calls/bulk?do=again&all=yes&state=failed", "/calls/bulk?do=cancel&all=yes&tool=" + odd,
		"/calls/bulk?do=cancel&id=" + odd, "/calls/bulk/done", "/calls/bulk/done?done=" + odd,
		"/questions/" + m.approval + "/arguments", "/live?watch=" + odd,
		"/calls/" + m.agent + "/conversation", "/calls/" + m.agent + "/conversation.json",
		"/calls/" + m.extraction + "/extraction", "/calls/" + m.extraction + "/extraction.json"}
	for _, id := range []string{m.question, m.approval, m.answered} {
		all = append(all, "/questions/"+id)
	}
	for _, id := range []string{m.failed, m.retried, m.waiting, m.running, m.agent, m.extraction, m.question, m.approval,
		m.answered} {
		all = append(all, "/calls/"+id, "/calls/"+id+".json", "/calls/"+id+"/cancel", "/calls/"+id+"/again",
			"/calls/"+id+"/input", "/calls/"+id+"/result", "/calls/"+id+"/effects",
			"/calls/"+id+"/events/1", "/calls/"+id+"/events/2", "/calls/"+id+"/events/3", "/calls/"+id+"?events=1")
	}
	untouched := routes(t)
	mux := http.NewServeMux()
	for pattern := range untouched {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	for _, path := range all {
		_, pattern := mux.Handler(httptest.NewRequest(http.MethodGet, path, nil))
		delete(untouched, pattern)
	}
	if len(untouched) > 0 {
		t.Errorf("no page is read of %v", slices.Collect(maps.Keys(untouched)))
	}
	return all
}

var registered = regexp.MustCompile(`s\.(page|list|json|download)\(mux, "([^"]*)"|mux\.HandleFunc\("GET ([^"]*)"`)

// routes are the patterns of all pages, as the program's files register them, without those of the login and of static
// files.
func routes(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") ||
			strings.HasPrefix(f.Name(), "login") {
			continue
		}
		source, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range registered.FindAllStringSubmatch(string(source), -1) {
			path := found[2] + found[3]
			if path == "" { // one of those above
				continue
			}
			if strings.HasSuffix(path, "/{id}/") {
				path += "{part}"
			}
			if all["GET "+path] = true; found[1] == "list" && !strings.HasSuffix(path, "}") {
				all["GET "+path+".json"] = true
			}
		}
	}
	delete(all, "GET /static/{name}")
	if len(all) < 25 {
		t.Fatalf("only %d patterns were found: %v", len(all), all)
	}
	return all
}

// seen is the response to a path: its status, headers and body, without following redirects.
type seen struct {
	path   string
	status int
	header http.Header
	body   string
}

// walk reads every page as a user, and for live pages also the parts that are sent while they are open.
func (m *museum) walk(t *testing.T, user dashboard.User) (all []seen) {
	t.Helper()
	m.user = user
	browser := *m.server.Client()
	browser.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, path := range m.paths(t) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, m.server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		q.RequestURI = path
		m.server.Config.Handler.ServeHTTP(w, q)
		stop()
		s := seen{path, w.Code, w.Header(), w.Body.String()}
		if s.status == http.StatusInternalServerError {
			t.Errorf("%s: %s", path, s.body)
		}
		all = append(all, s)
		if strings.Contains(s.body, "data-watch=") {
			all = append(all, m.watch(t, path, strings.Count(s.body, `<div id="live"`)+
				strings.Count(s.body, `<div id="health"`)*3))
		}
	}
	return all
}

// watch reads the first events of a page's stream: one for each of its parts.
func (m *museum) watch(t *testing.T, path string, parts int) seen {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	to := "/live?watch=" + url.QueryEscape(path)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, m.server.URL+to, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := m.server.Client().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var body strings.Builder
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for before := ""; parts > 0 && lines.Scan(); before = lines.Text() {
		fmt.Fprintln(&body, lines.Text())
		if lines.Text() == "" && strings.HasPrefix(before, "data: ") {
			parts--
		}
	}
	if parts > 0 {
		t.Errorf("%s: the stream ended: %s", to, body.String())
	}
	return seen{to, answer.StatusCode, answer.Header, body.String()}
}

// fieldName turns a text into a field name that the database accepts.
func fieldName(text string) string {
	name := []rune(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return -1
		}
		return r
	}, text))
	return string(name[:min(len(name), 100)])
}

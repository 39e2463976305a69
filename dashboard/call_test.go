package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
)

// Shop is the domain of these tests: a durable tool with steps, children and a question, and plain tools.
type Shop struct{}

type order struct {
	Text string `json:"text"`
	N    int    `json:"n,omitempty"`
}

func (Shop) Order(ctx context.Context, d *handlers.Durable, in order) (order, error) {
	for i := range in.N {
		if _, err := handlers.Step(ctx, d, "step "+strconv.Itoa(i),
			func(context.Context) (string, error) { return in.Text, nil }); err != nil {
			return in, err
		}
	}
	packed, err := handlers.Start[order](d, "pack", "shop.pack", order{Text: in.Text}).Wait(ctx)
	if err != nil {
		return in, err
	}
	color, err := handlers.Ask[string](d, "color", handlers.Question{Text: "Which color?"}).Wait(ctx)
	return order{Text: packed.Text + " " + color}, err
}

func (Shop) Pack(_ context.Context, call *handlers.Call, in order) (order, error) {
	switch {
	case in.Text == "later" && call.Attempt == 1:
		return in, handlers.Transient(errors.New("the shelf is empty"))
	case in.Text == "broken":
		return in, errors.New("it fell down")
	}
	call.Wrote("shelf", handlers.Insert, "17")
	call.Called("warehouse", "https://warehouse.example/v1/pack", 200)
	call.Called("evil", "javascript:alert(1)", 200)
	return in, nil
}

func shopRegistry(t *testing.T) []byte {
	t.Helper()
	entry := func(name, more string) string {
		return `{"name": "` + name +
			`", "input_schema": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}, "n": {"type": "integer", "maximum": 9999}}},
			"output_schema": {"type": "object"}, "timeout_ms": 60000, "permissions": [], "retry": {"max_attempts": 3, "backoff_ms": 1}, ` + more + `}`
	}
	return []byte(`{"version": "7.1", "tools": [
		` + entry("shop.order", `"idempotency": {"mode": "none"}, "calls": ["shop.*"]`) + `,
		` + entry("shop.pack", `"idempotency": {"mode": "safe-retry"}`) + `]}`)
}

// shop is a database with a worker of the shop, and its pages for an operator and for a viewer, each with the rights
// of its role.
type shop struct {
	*handlertest.Env
	operator, viewer *httptest.Server
}

func openShop(t *testing.T, noWorker bool) *shop {
	t.Helper()
	s := &shop{Env: handlertest.Start(t, handlertest.Options{Registry: shopRegistry(t), Domains: []any{Shop{}},
		NoWorker: noWorker})}
	for _, operates := range []bool{true, false} {
		o := dashboard.Options{Read: as(t, s.URL, "gem_monitor"), Act: as(t, s.URL, "gem_operator"),
			TraceURL: "https://traces.example/{trace_id}",
			User: func(*http.Request) (dashboard.User, error) {
				return dashboard.User{Name: "ada", Operator: operates}, nil
			}}
		through := behind(t, &o, s.URL)
		h, err := dashboard.New(o)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(through(h))
		t.Cleanup(server.Close)
		if operates {
			s.operator = server
		} else {
			s.viewer = server
		}
	}
	return s
}

// reads fetches a page and checks the texts that it contains and lacks.
func reads(t *testing.T, server *httptest.Server, path string, has []string, lacks ...string) string {
	t.Helper()
	status, body := get(t, server, path)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", path, status, body)
	}
	for _, want := range has {
		if !strings.Contains(body, want) {
			t.Errorf("%s lacks %q:\n%s", path, want, body)
		}
	}
	for _, no := range lacks {
		if strings.Contains(body, no) {
			t.Errorf("%s has %q:\n%s", path, no, body)
		}
	}
	if len(body) > 200_000 {
		t.Errorf("%s has %d bytes", path, len(body))
	}
	return body
}

func (s *shop) sql(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.DB.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

const sound = "Replaying the journal gives the row"

func TestADurableCallShowsItsStepsChildrenAndQuestions(t *testing.T) {
	t.Parallel()
	s := openShop(t, false)
	id := s.Insert(handlertest.Call{Tool: "shop.order", Input: `{"text": "later", "n": 2}`, Session: "s 1",
		CreatedBy: "ada"})
	question := s.Question(id)
	asks := []string{"<title>shop.order: waiting", "Its handler is waiting for calls that it made",
		"/questions/" + question.ID, "Step step 1", "Call pack", "shop.pack",
		"Waits for color", sound, `href="/sessions?id=s%201"`, "/cancel", "The step step 0 has ended"}
	reads(t, s.operator, "/calls/"+id, append(asks, `&#34;n&#34;: 2`))
	reads(t, s.operator, "/calls/"+question.ID, []string{"may be answered by", "Which color?", "<dt>Parent</dt>",
		"<code>color</code>"})
	s.Answer(question.ID, "blue")
	s.Await(id)
	page := reads(t, s.operator, "/calls/"+id, []string{"<title>shop.order: succeeded", "It succeeded", "later blue",
		"Attempt 1 on", "/again", sound, "<dd>7.1</dd>", "data-watch=\"call:" + id})
	_, rest, _ := strings.Cut(page, "Calls made for it")
	_, pack, _ := strings.Cut(rest, "/calls/")
	pack = pack[:36]
	reads(t, s.operator, "/calls/"+pack, []string{"Scheduled for the next attempt",
		"A transient error; the next attempt is in", "the shelf is empty", "Attempt 2 on", "<dt>Parent</dt>",
		`<a href="https://warehouse.example/v1/pack" rel="noreferrer noopener">`, "<td data-label=\"Table\">shelf",
		"javascript:alert(1)", sound}, `href="javascript`)

	reads(t, s.viewer, "/calls/"+id, []string{"It succeeded", "Step step 1", "Only operators see inputs and results"},
		"later", "blue", "/again", "download", "Checked")
	reads(t, s.viewer, "/calls/"+pack, []string{"the shelf is empty"}, "warehouse")
}

func TestACallIsJSONForScriptsToo(t *testing.T) {
	t.Parallel()
	s := openShop(t, false)
	r := s.Run(handlertest.Call{Tool: "shop.pack", Input: `{"text": "a", "big": 12345678901234567890.1230}`})
	var got struct {
		Call    struct{ ID, Status string }
		Journal []struct{ Event string }
		Input   json.RawMessage
		Result  struct{ Text string }
		Checked []string
		Found   []any
	}
	body := reads(t, s.operator, "/calls/"+r.CallID+".json", nil)
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Call.ID != r.CallID || got.Call.Status != "succeeded" || len(got.Journal) != 3 ||
		got.Journal[1].Event != "claimed" || got.Result.Text != "a" || len(got.Checked) < 10 || len(got.Found) != 0 ||
		!strings.Contains(string(got.Input), "12345678901234567890.1230") {
		t.Errorf("%+v", got)
	}
	reads(t, s.viewer, "/calls/"+r.CallID+".json", []string{`"succeeded"`}, `"input"`, `"result"`, "1234567890")
	if status, body := get(t, s.operator, "/calls/00000000-0000-4000-8000-000000000000.json"); status != 404 ||
		!strings.Contains(body, "may have been pruned") {
		t.Errorf("%d %s", status, body)
	}
}

func TestAHitAndItsSourceNameEachOther(t *testing.T) {
	t.Parallel()
	s := openShop(t, false)
	call := handlertest.Call{Tool: "shop.pack", Input: `{"text": "once"}`, Key: "k", CreatedBy: "ada"}
	first, second := s.Run(call), s.Run(call)
	for _, server := range []*httptest.Server{s.operator, s.viewer} {
		reads(t, server, "/calls/"+second.CallID, []string{"It succeeded by repeating receipt " + first.ID + " of call " +
			first.CallID, "nothing ran again", `href="/calls/` + first.CallID})
		reads(t, server, "/calls/"+first.CallID, []string{"Repeated by", `href="/calls/` + second.CallID,
			"shop.pack:caller="})
	}
	// The id of a receipt leads to its call.
	s.operator.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if status, _ := get(t, s.operator, "/calls/"+first.ID); status != http.StatusSeeOther {
		t.Errorf("got %d", status)
	}
}

func TestAnInvalidInputIsMarkedWhereTheErrorPoints(t *testing.T) {
	t.Parallel()
	s := openShop(t, false)
	r := s.Run(handlertest.Call{Tool: "shop.pack", Input: `{"text": "a", "n": 12345, "list": [{"n": 1}]}`})
	reads(t, s.operator, "/calls/"+r.CallID, []string{"<title>shop.pack: failed", "validation_error",
		`<a href="#at-1"><code>/n</code></a>`, `<mark id="at-1"`, ">12345</mark>", "/again", sound})
	reads(t, s.viewer, "/calls/"+r.CallID, []string{"validation_error"}, "12345<", "#at-1")
	failed := s.Run(handlertest.Call{Tool: "shop.pack", Input: `{"text": "broken"}`})
	for _, server := range []*httptest.Server{s.operator, s.viewer} {
		reads(t, server, "/calls/"+failed.CallID, []string{"execution_error", "it fell down", "returned an error"})
	}
}

func TestWhatAnAgentWroteIsTextAndBounded(t *testing.T) {
	t.Parallel()
	s := openShop(t, false)
	const hostile = `<script>alert(1)</script>\"><img src=x onerror=alert(1)>` + "\u202e" + `\u001b[31m`
	deep := strings.Repeat(`[`, 1000) + strings.Repeat(`]`, 1000)
	r := s.Run(handlertest.Call{Tool: "shop.pack", Input: `{"text": "` + hostile + `", "deep": ` + deep +
		`, "big": 12345678901234567890.123}`, Session: "../<b>", Key: `"><script>alert(2)</script>`, CreatedBy: "<i>eve</i>"})
	reads(t, s.operator, "/calls/"+r.CallID, []string{"12345678901234567890.123", "&lt;script&gt;alert(1)", "%3cb%3e"},
		"<script>alert", "<img", "<i>eve", "\u202e", "\x1b")
	long := s.Insert(handlertest.Call{Tool: "<script>alert(3)</script>",
		Input: `{"text": "` + strings.Repeat(`\"<&`, 150_000) + `"}`})
	s.Await(long)
	reads(t, s.operator, "/calls/"+long, []string{"&lt;script&gt;alert(3)", "this is its beginning",
		"/calls/" + long + "/input", "unknown_tool"}, "<script>alert")
	answer, err := s.operator.Client().Get(s.operator.URL + "/calls/" + long + "/input")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if h := answer.Header; h.Get("Content-Type") != "text/plain; charset=utf-8" ||
		!strings.HasPrefix(h.Get("Content-Disposition"), "attachment") || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v", h)
	}
	if status, _ := get(t, s.viewer, "/calls/"+long+"/input"); status != http.StatusForbidden {
		t.Errorf("a viewer got %d", status)
	}
	s.sql(t, `set session_replication_role = replica; update core_tool_receipts
		set effects = jsonb_build_object('db_writes',
		(select jsonb_agg(jsonb_build_object('table', repeat('"<', 40), 'action', 'insert', 'id', n::text))
			from generate_series(1, 300) n)); reset session_replication_role`)
	reads(t, s.operator, "/calls/"+long, []string{"At most a hundred of each kind are listed"})
	for path, want := range map[string]int{"/calls/x": 404, "/calls/" + long + "/events/99": 404,
		"/calls/" + long + "/events/x": 404, "/calls/" + long + "/events/1": 200, "/calls/" + long + "?events=x": 400,
		"/calls/" + long + "?events=99999999999": 400} {
		if status, _ := get(t, s.operator, path); status != want {
			t.Errorf("%s: got %d, want %d", path, status, want)
		}
	}
}

func TestALongJournalIsShownInParts(t *testing.T) {
	t.Parallel()
	s := openShop(t, false)
	id := s.Insert(handlertest.Call{Tool: "shop.order", Input: `{"text": "` + strings.Repeat("y", 3000) + `", "n": 150}`})
	question := s.Question(id)
	body := reads(t, s.operator, "/calls/"+id, []string{"events are not shown here", "?events=51#journal",
		"The step step 0 has", "The step step 149 has", "events of the journal not read", sound}, "The step step 75 has")
	if n := strings.Count(body, "The step step"); n > 100 {
		t.Errorf("%d steps are shown", n)
	}
	reads(t, s.operator, "/calls/"+id+"?events=51", []string{"The step step 75 has", "?events=151#journal"},
		"The step step 0 has")
	reads(t, s.operator, "/calls/"+id+"?events=151", []string{"The step step 149 has"}, "Next events<")
	s.Answer(question.ID, "blue")
	s.Await(id)
}

func TestWhatBelongsToACallIsShown(t *testing.T) {
	t.Parallel()
	s := openShop(t, true)
	const id, question = "01a20000-0000-7000-8000-000000000001", "01a20000-0000-7000-8000-000000000002"
	s.sql(t, `insert into core_tool_calls (id, tool_name, input, traceparent) values ('`+id+
		`', 'shop.pack', '{"text": "a"}', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01')`)
	s.sql(t, "select gem.record_registry('x', repeat('0', 64), '{}')")
	s.sql(t, "select gem.start_worker('a', 9, '', 'x', '1 hour')")
	s.sql(t, "select gem.claim('a', 1, true)")
	s.sql(t, `insert into core_tool_progress (call_id, attempt, seq, at, kind, data) select '`+id+
		`', 1, n, now(), kind, data::jsonb from (values
		(1, 'status', '{"state": "asking", "target": "target_a"}'),
		(2, 'text', '{"text": "Hel"}'), (3, 'text', '{"text": "lo <b>"}'),
		(4, 'tool_call', '{"index": 0, "id": "x", "name": "look", "arguments": ""}'),
		(5, 'tool_call', '{"index": 0, "arguments": "{}"}')) p (n, kind, data)`)
	s.sql(t, `insert into core_llm_requests (call_id, attempt, n, label, tool_name, route, target, provider, model,
		routes_version, status, at, ended_at, reserved, cost, input_tokens, output_tokens, estimated_input, spends)
		select '`+id+
		`', 1, n, 'main', 'shop.pack', 'default', 'target_a', 'p', 'model-<i>', '1', 'done', now(), now(), 9, 250000000, 7, 9, 7, '{}' from generate_series(1, 2) n`)
	s.sql(t, `set session_replication_role = replica; insert into core_tool_calls (id, tool_name, input, run_at, status,
		created_at, updated_at, parent_call_id, parent_step, waits_for)
		values ('`+question+`', 'wait.approval', '{}', now(), 'waiting', now(), now(), '`+id+
		`', '##digest', 'answer'); reset session_replication_role`)
	trace := `<a href="https://traces.example/0af7651916cd43dd8448eb211c80319c" rel="noreferrer noopener">`
	reads(t, s.operator, "/calls/"+id, []string{trace, "Hello &lt;b&gt;", "look{}", "asking target_a",
		"Requests to models: 2 (14 tokens in, 18 out, $0.50)", "model-&lt;i&gt;", "/questions/" + question,
		"Question from a rule"})
	reads(t, s.viewer, "/calls/"+id, []string{trace, "Requests to models: 2 (14 tokens in, 18 out, $0.50)"}, "Hello",
		"model-")

	s.sql(t, `select gem.finish('`+id+
		`', 1, 'a', 'succeeded', '{"text": "a"}', '{"idempotency": {"mode": "none", "hit": false}, "files_written": ["https://files.example/a", "/etc/x"], "messages_sent":
		[{"type": "sms", "recipient": "+1555", "message_id": "m"}], "db_reads": [{"table": "shelf", "count": 3}], "rules": {"version": "3", "verdicts": [{"rule": "small", "action": "warn", "message": "It is large."}],
		"approvals": [{"rule": "big", "id": "`+question+`", "by": "grace", "at": "2026-01-01T00:00:00Z", "digest": "d"}]}}', '7.1')`)
	reads(t, s.operator, "/calls/"+id, []string{`<a href="https://files.example/a" rel="noreferrer noopener">`,
		"<li>/etc/x</li>", "&#43;1555", "A warning: It is large.",
		`<code>small</code></td><td data-label="Decision">warn</td><td data-label="Why">It is large.`,
		`<code>big</code></td><td data-label="Decision">approved</td><td data-label="Why">by grace `, "Rules, version 3",
		"llm-entries"}, "Hello")
}

func TestARowThatWasAlteredIsCalledOut(t *testing.T) {
	t.Parallel()
	s := openShop(t, false)
	r := s.Run(handlertest.Call{Tool: "shop.pack", Input: `{"text": "a"}`})
	reads(t, s.operator, "/calls/"+r.CallID, []string{sound, "Replaying a call", "result are stored once"})
	s.sql(t, fmt.Sprintf("begin; set local session_replication_role = replica; update core_tool_calls set events = "+
		"events + 10000 where id = '%s'; commit", r.CallID))
	reads(t, s.operator, "/calls/"+r.CallID, []string{"journal-gaps", "the call counts 10003"}, sound,
		"too long to be checked")
	s.sql(t, fmt.Sprintf("begin; set local session_replication_role = replica; update core_tool_calls set events = "+
		"events - 10000 where id = '%s'; commit", r.CallID))
	s.sql(t, fmt.Sprintf("begin; set local session_replication_role = replica; update core_tool_calls set attempt = 5, "+
		"created_by = 'eve' where id = '%s'; commit", r.CallID))
	reads(t, s.operator, "/calls/"+r.CallID, []string{"this call contradicts its journal", "journal-replay",
		"attempt is 5, and 1 by the journal", "receipt-attempt"}, sound)
	reads(t, s.operator, "/calls/"+r.CallID+".json", []string{`"check":"journal-replay"`})
	s.sql(t, fmt.Sprintf("begin; set local session_replication_role = replica; delete from core_tool_receipts where "+
		"call_id = '%s'; commit", r.CallID))
	for _, server := range []*httptest.Server{s.operator, s.viewer} {
		reads(t, server, "/calls/"+r.CallID, []string{"has no receipt."})
	}
	s.sql(t, fmt.Sprintf(
		`begin; set local session_replication_role = replica; update core_tool_events set data = '{"call_id": "none"}', event = 'called' where call_id = '%s' and seq = 3; commit`, r.CallID))
	reads(t, s.operator, "/calls/"+r.CallID, []string{"found a value that it cannot read"}, sound)
}

func TestOpenCallsSayWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	s := openShop(t, true)
	queued := s.Insert(handlertest.Call{Tool: "shop.pack", Input: `{"text": "a"}`})
	reads(t, s.operator, "/calls/"+queued, []string{"<title>shop.pack: queued", "no worker is running that could claim it",
		sound})
	reads(t, s.viewer, "/calls/"+queued, []string{"It has been queued since"})
	s.sql(t, "select gem.record_registry('x', repeat('0', 64), '{}')")
	s.sql(t, "select gem.start_worker('a', 9, '', 'x', '1 hour')")
	s.sql(t, "select gem.claim('a', 1, true)")
	for _, server := range []*httptest.Server{s.operator, s.viewer} {
		reads(t, server, "/calls/"+queued, []string{"<title>shop.pack: running", "It has been running on a since", "so far"})
	}
	s.sql(t, "update core_workers set alive_until = now() - interval '1 second'")
	s.sql(t, "select gem.start_worker('b', 9, '', 'x', '1 hour'), gem.recover('b', null)")
	reads(t, s.viewer, "/calls/"+queued, []string{"The worker a died", "its worker died"})
	waiting := s.Insert(handlertest.Call{Tool: "shop.pack", Input: `{"text": "b"}`})
	s.sql(t, "select gem.claim('b', 9, true)")
	s.sql(t, "select gem.hold_key($1, 2, 'b', 'K')", queued)
	s.sql(t, "select gem.hold_key($1, 1, 'b', 'K')", waiting)
	for _, server := range []*httptest.Server{s.operator, s.viewer} {
		reads(t, server, "/calls/"+waiting, []string{"It waits for call " + queued + ", which holds the same key, K",
			"held by", "Waits for its key"})
	}
}

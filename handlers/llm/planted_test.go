package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/jackc/pgx/v5"
)

// plantedKey is valid base64, as signatures of Gemini's have to be, and looks like no provider's key: it is found as a
// key of this worker alone.
const plantedKey = "planted9Key9of9tests"

// The second text is put next to it if the text itself has to be kept.
const beside = "the key of this worker is"

// plantings are answers that have the key wherever a provider can say something.
func plantings() map[string]llmtest.Script {
	const said = beside + " " + plantedKey + "!"
	headers := http.Header{"Request-Id": {plantedKey}, "X-Request-Id": {plantedKey}, "Retry-After": {plantedKey},
		"Retry-After-Ms": {plantedKey}, "X-Should-Retry": {plantedKey},
		"Set-Cookie": {"a=" + plantedKey}, "Server": {plantedKey}, "Www-Authenticate": {plantedKey},
		"X-Ratelimit-Reset": {plantedKey}, "Warning": {plantedKey}}
	all := map[string]llmtest.Script{}
	add := func(name string, s llmtest.Script) {
		s.Header, s.RequestID = headers.Clone(), plantedKey
		all[name] = s
	}
	raw := func(status int, body string) llmtest.Script {
		return llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.FailedStatus, Status: status, Raw: body}}
	}
	for _, status := range []int{300, 301, 302, 303, 304, 307, 308, 400, 401, 402, 403, 404, 405, 408, 409, 413, 418, 422,
		429, 451, 500, 501, 502, 503, 504, 529, 599} {
		add(fmt.Sprint("status ", status), llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.FailedStatus, Status: status,
			Message: said}})
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		add(fmt.Sprint("redirect ", status), llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.Redirected, Status: status,
			Message: said, Location: "https://127.0.0.1:9/" + plantedKey + "?key=" + plantedKey}})
	}
	for name, body := range map[string]string{
		"plain":  said,
		"a page": "<html>" + said + "</html>",
		"a text": `"` + said + `"`,
		"a list": `[{"error": {"message": "` + said + `", "status": "` + plantedKey + `", "details": [{"reason": "` +
			plantedKey + `", "retryDelay": "` + plantedKey + `"}]}}]`,
		"other fields": `{"` + plantedKey + `": "` + plantedKey + `", "detail": "` + said + `", "code": "` + plantedKey +
			`", "request_id": "` + plantedKey + `"}`,
		"escaped": `{"why": "` + beside + ` \u0070lanted9Key9of9tests"}`,
		"types": `{"type": "` + plantedKey + `", "error": {"type": "` + plantedKey + `", "code": "` + plantedKey +
			`", "status": "` + plantedKey + `", "param": "` + plantedKey + `", "message": "` + said + `"}, "request_id": "` +
			plantedKey + `"}`,
		"cut": `{"error": {"message": "` + said + strings.Repeat(" "+plantedKey, 10_000),
	} {
		add("body, "+name, raw(400, body))
		add("body of 401, "+name, raw(401, body))
	}
	add("too long", llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.TooLong,
		Message: "the prompt is too long: " + said}})
	for _, status := range []int{400, 401, 404, 429, 500, 529} {
		add(fmt.Sprint("error event ", status), llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.ErrorFirst, Status: status,
			Message: said}})
	}
	add("late error event", llmtest.Say("something comes first").
		With(llmtest.Fault{Kind: llmtest.ErrorLate, After: 2, Message: said}))
	event := func(data string) string {
		return "event: " + plantedKey + "\nid: " + plantedKey + "\ndata: " + data + "\n\n"
	}
	for name, event := range map[string]string{
		"no JSON": "data: " + said + "\n\n",
		"wrong types": event(`{"type": ["` + plantedKey + `"], "choices": "` + plantedKey + `", "candidates": "` +
			plantedKey + `", "model": {"` + plantedKey + `": 1}}`),
		"an error": event(`{"type": "error", "error": {"type": "` + plantedKey + `", "code": "` + plantedKey +
			`", "status": "` + plantedKey + `", "message": "` + said + `"}, "request_id": "` + plantedKey + `"}`),
		"a text":        event(`{"error": "` + said + `"}`),
		"error field":   "error: " + said + "\n\n",
		"error event":   "event: error\ndata: " + said + "\n\n",
		"half an event": "data: {\"" + plantedKey,
	} {
		add("event, "+name, llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.ErrorFirst, Raw: event}})
		add("late event, "+name, llmtest.Say("something comes first").
			With(llmtest.Fault{Kind: llmtest.ErrorLate, After: 2, Raw: event}))
	}
	add("garbage", llmtest.Say("x").With(llmtest.Fault{Kind: llmtest.Garbage, Raw: "data: " + plantedKey + "\n\n"}))
	add("comments", llmtest.Say("x").With(llmtest.Fault{Kind: llmtest.Garbage,
		Raw: ": " + plantedKey + "\nretry: " + plantedKey + "\nid: " + plantedKey + "\n" + plantedKey + ": " + plantedKey +
			"\n\n"}))

	// What the answer itself says.
	whole := llmtest.Script{Model: plantedKey, ProviderStop: plantedKey, Parts: []provider.Part{
		{Type: provider.Thinking, Text: "thought: " + plantedKey, Signature: plantedKey}, {Type: provider.Text, Text: said},
		{Type: provider.ToolCall, ID: plantedKey, Name: plantedKey,
			Arguments: json.RawMessage(`{"` + plantedKey + `": ["\u0070lanted9Key9of9tests", "` + said + `"]}`)}}}
	add("answer", whole)
	add("answer that is cut", whole.With(llmtest.After(12, llmtest.CleanCut)))
	broken := whole
	broken.Parts = []provider.Part{{Type: provider.ToolCall, ID: plantedKey, Name: plantedKey,
		RawArguments: `{"` + plantedKey}}
	add("arguments that are none", broken)
	add("finish_reason", llmtest.Script{Parts: llmtest.Say("x").Parts, ProviderStop: "error " + plantedKey})
	odd := llmtest.Say("x")
	odd.Header = http.Header{"Content-Type": {`text/` + plantedKey + `; a="` + plantedKey + `"`}}
	all["content type"] = odd
	return all
}

// Also the exact key in the text of an answer is cut out: a receipt is forever.
func TestAKeyThatAProviderRepeatsIsFoundNowhere(t *testing.T) {
	t.Parallel()
	for _, d := range llmtest.Dialects {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			l, heard := listen()
			s := newScene(t)
			scripts := plantings()
			names := map[string]string{}
			for name, script := range scripts {
				target := fmt.Sprintf("p%d", len(names))
				names[target] = name
				s.target(target, d, object{"first_content_s": 20}).key(target, "PLANTED_API_KEY", plantedKey).route(target, target)
				s.server.Always("/"+target+"/", script)
			}
			s.budget("all", "all", "1000")
			env := s.start(t, heard)
			for target, name := range names {
				env.Insert(asks("hello", object{"route": target}, shows))
				// The status alone ends a request in the same way, whichever tool made it.
				if os.Getenv("GEM_TEST_LONG") == "" && (strings.HasPrefix(name, "status ") ||
					strings.HasPrefix(name, "redirect ")) {
					continue
				}
				env.Insert(tool("llm.structured", object{"messages": []any{object{"role": "user", "content": "hello"}},
					"route": target, "schema": object{"type": "object"}}))
			}
			env.Until("all calls to end", func() bool {
				var open int
				if err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_calls where status in ('queued', "+
					"'running', 'waiting')").Scan(&open); err != nil {
					t.Fatal(err)
				}
				if open > 0 {
					env.Pass(20 * time.Minute)
					time.Sleep(20 * time.Millisecond)
				}
				return open == 0
			})
			asked := map[string]bool{}
			for _, r := range s.server.Requests() {
				if r.Key != plantedKey || strings.Contains(r.Query, plantedKey) {
					t.Errorf("the request %s?%s has the key %q", r.Path, r.Query, r.Key)
				}
				target, _, _ := strings.Cut(strings.TrimPrefix(r.Path, "/"), "/")
				asked[names[target]] = true
			}
			for name := range scripts {
				if !asked[name] {
					t.Errorf("%s was not asked for", name)
				}
			}

			for table, rows := range dump(t, env.DB) {
				for _, row := range rows {
					if strings.Contains(row, plantedKey) {
						t.Errorf("%s has it: %s", table, row)
					}
				}
			}
			told := strings.Join(dump(t, env.DB)["public.core_tool_receipts"], "\n")
			if n := strings.Count(told, beside+" [cut]"); n < len(scripts)/2 {
				t.Errorf("only %d texts have come so far", n)
			}
			for _, line := range env.Logs.All() {
				if text := fmt.Sprintf("%+v %v", line.Entry, line.ContextMap()); strings.Contains(text, plantedKey) {
					t.Errorf("a line of the log has it: %s", text)
				}
			}
			if len(l.named("chat ")) < len(scripts) {
				t.Errorf("%d spans", len(l.named("chat ")))
			}
			for _, span := range l.spans.GetSpans() {
				if text := fmt.Sprintf("%+v", span); strings.Contains(text, plantedKey) {
					t.Errorf("a span has it: %s", text)
				}
			}
			if text := fmt.Sprintf("%+v", l.data(t)); strings.Contains(text, plantedKey) {
				t.Errorf("a metric has it: %s", text)
			}
		})
	}
}

// dump returns all rows of all tables, as text.
func dump(t *testing.T, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) map[string][]string {
	t.Helper()
	list := func(sql string) []string {
		rows, err := db.Query(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := map[string][]string{}
	for _, table := range list(`select format('%I.%I', schemaname, tablename) from pg_tables
		where schemaname not in ('pg_catalog', 'information_schema')`) {
		all[table] = list("select to_jsonb(t)::text from " + table + " t")
	}
	return all
}

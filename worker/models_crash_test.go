package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// doomedModels is the mode of a doomed process that asks models.
const doomedModels = "models"

// chatPoints passes points at the span of each request to a model: it begins when the request's row has been committed
// and nothing was sent, and ends when the answer has been read and nothing of it was written.
type chatPoints struct{ at func(point string) }

func (p chatPoints) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if strings.HasPrefix(s.Name(), "chat ") {
		p.at("after begin")
	}
}

func (p chatPoints) OnEnd(s sdktrace.ReadOnlySpan) {
	if strings.HasPrefix(s.Name(), "chat ") {
		p.at("after stream")
	}
}
func (chatPoints) Shutdown(context.Context) error   { return nil }
func (chatPoints) ForceFlush(context.Context) error { return nil }

// An answer that is in the journal is not bought again. What else was under way is lost, and in the ledger and on the
// receipt.
func TestAQuestionToAModelWhoseWorkerDiesAtAnyPointIsPaidAsOftenAsTheReceiptSays(t *testing.T) {
	t.Parallel()
	const (
		chat       = `{"messages": [{"role": "user", "content": "hello"}]}`
		failsOver  = `{"messages": [{"role": "user", "content": "hello"}], "route": "over"}`
		structured = `{"messages": [{"role": "user", "content": "hello"}], "schema": {"type": "object", "required": ["n"]}}`
		ensemble   = `{"messages": [{"role": "user", "content": "hello"}], "members": [{"route": "default"}, {"route": "over"}], "strategy": "all"}`
		// The server ends the process.
		arrived, streams = "arrived", "in the stream"
	)
	for _, s := range some([]struct {
		point, tool, input string
		rows               string // of the ledger, in their order
		unsent             int    // rows whose request no provider got
		attempts           int
	}{
		{"before work", "llm.chat", chat, "done", 0, 2},
		{arrived, "llm.chat", chat, "lost done", 0, 2},
		{streams, "llm.chat", chat, "lost done", 0, 2},
		{"after begin", "llm.chat", chat, "lost done", 1, 2},
		{"after work", "llm.chat", chat, "lost done", 0, 2}, // its end was written, and not committed
		{"before step", "llm.chat", chat, "lost done", 0, 2},
		{"after step", "llm.chat", chat, "done", 0, 2},
		{"before receipt", "llm.chat", chat, "done", 0, 2},
		{"after receipt", "llm.chat", chat, "done", 0, 1},
		{"after stream", "llm.chat", chat, "lost done", 0, 2},
		{"after stream 1", "llm.chat", failsOver, "lost failed done", 0, 2}, // it was refused, and that was not written
		{"after begin 2", "llm.chat", failsOver, "failed lost failed done", 1, 2},
		// what does not fit is in the journal; the repair is bought
		{"after step 1", "llm.structured", structured, "done done", 0, 2},
		{"after stream 2", "llm.structured", structured, "done lost done", 0, 2},
		{"after begin 2", "llm.structured", structured, "done lost done", 1, 2},
		{"after step 2", "llm.structured", structured, "done done", 0, 2},
		{"after stream 2", "llm.ensemble", ensemble, "", 0, 0},
		{"after receipt 1", "llm.ensemble", ensemble, "", 0, 0}, // of a member
		{"after step 2", "llm.ensemble", ensemble, "", 0, 0},
	}) {
		t.Run(s.point+", "+s.tool+", "+s.rows, func(t *testing.T) {
			t.Parallel()
			server := llmtest.Start(t, llmtest.Options{})
			word := make(chan struct{})
			first := llmtest.Say("what the dead worker may have read")
			if s.tool != "llm.structured" {
				first.Before = func(ctx context.Context, delta int) {
					if s.point == arrived && delta == -1 || s.point == streams && delta == 2 {
						close(word)
						<-ctx.Done()
					}
				}
				server.Script("/up", first)
			} else {
				server.Script("/up", first) // which is not JSON
				server.Always("/up", llmtest.Say(`{"n": 1}`))
			}
			server.Always("/down", llmtest.Script{Fault: llmtest.Status(503)})
			routes := modelRoutes(t, server)
			env := handlertest.Start(t, handlertest.Options{Registry: gem.BuiltInRegistry, NoWorker: true,
				Domains:     []any{llm.Domain()},
				Environment: map[string]string{"LLM_ROUTES": routes}})
			id := env.Insert(handlertest.Call{Tool: s.tool, Input: s.input})
			dies := (<-chan struct{})(word)
			if s.point != arrived && s.point != streams {
				dies = nil
			}
			dieOn(t, dies, s.point, testdb.RouteTo(t, env.URL), doomedModels, "", "LLM_ROUTES="+routes)

			env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			r := env.Await(id)
			if r.Status != receipts.Succeeded || s.attempts > 0 && r.Attempt != s.attempts {
				t.Errorf("attempt %d: %s %s", r.Attempt, r.Status, r.Result)
			}
			if got := text(t, env, "select coalesce(string_agg(status, ' ' order by n), '') from core_llm_requests where "+
				"call_id = $1", id); s.rows != "" && got != s.rows {
				t.Errorf("the ledger has %q, want %q", got, s.rows)
			}
			rows := number(t, env, "select count(*) from core_llm_requests")
			if n := server.Counts().Requests; n+s.unsent != rows {
				t.Errorf("the server was asked %d times, and the ledger has %d requests, %d of which were not sent", n, rows,
					s.unsent)
			}
			if n := number(t, env, "select count(*) from core_llm_requests where status = 'sent'"); n != 0 {
				t.Errorf("%d requests are still sent", n)
			}
			if twice := text(t, env, `select coalesce(string_agg(what, ' '), '') from (
				select call_id || ' ' || label as what from core_llm_requests where status = 'done' group by call_id,
					label having count(*) > 1) t`); twice != "" {
				t.Errorf("bought twice: %s", twice)
			}
			if s.tool != "llm.ensemble" {
				entries, told := modelEntries(t, r)
				if fmt.Sprint(entries) != fmt.Sprint(strings.Fields(s.rows)) || told != rows {
					t.Errorf("the receipt has the requests %v, and speaks of %d; want %s", entries, told, s.rows)
				}
			}
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults != 0 {
				t.Errorf("audit: %+v (%v)", report, err)
			}
		})
	}
}

// modelRoutes is a routes file with two targets: one that answers, and one that a route asks first.
func modelRoutes(t *testing.T, server *llmtest.Server) string {
	t.Helper()
	type object = map[string]any
	providers, targets := object{}, object{}
	for _, name := range []string{"up", "down"} {
		providers[name] = object{"dialect": llmtest.OpenAI, "base_url": server.BaseURL(llmtest.OpenAI, "/"+name),
			"local": true}
		targets[name] = object{"provider": name, "model": "model-" + name, "context": 100_000, "max_output": 10_000,
			"capabilities": []string{"structured"},
			"usd_per_mtok": []any{object{"input": "1", "output": "2", "cache_write": "1"}}}
	}
	encoded, err := json.Marshal(object{"version": "1", "providers": providers, "targets": targets,
		"routes":  object{"default": object{"targets": []string{"up"}}, "over": object{"targets": []string{"down", "up"}}},
		"budgets": []any{object{"name": "all", "scope": "all", "period": "month", "usd": "5"}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// modelEntries returns how each request of a receipt ended, and how many its usage speaks of.
func modelEntries(t *testing.T, r *receipts.Receipt) (outcomes []string, told int) {
	t.Helper()
	var effects struct {
		External []struct{ LLM struct{ Outcome string } } `json:"external_calls"`
	}
	var result struct {
		Usage struct{ Call struct{ Requests int } }
	}
	if err := json.Unmarshal(r.Effects, &effects); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Result, &result); err != nil {
		t.Fatal(err)
	}
	for _, e := range effects.External {
		outcomes = append(outcomes, e.LLM.Outcome)
	}
	return outcomes, result.Usage.Call.Requests
}

func text(t *testing.T, env *handlertest.Env, sql string, args ...any) (s string) {
	t.Helper()
	if err := env.DB.QueryRow(t.Context(), sql, args...).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

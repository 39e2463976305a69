package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

func TestOneInputGivesReceiptsOfOneShapeInEachDialect(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	weather := llmtest.Script{Parts: []provider.Part{{Type: provider.Text, Text: "Let me look. "},
		{Type: provider.ToolCall, ID: "call_a", Name: "weather", Arguments: json.RawMessage(`{"city":"Köln"}`)}},
		Usage: &provider.Usage{Input: 1000, Output: 100, CacheRead: 300, Known: true}}
	for _, d := range llmtest.Dialects {
		s.target(string(d), d, nil).route(string(d), string(d))
		s.server.Always("/"+string(d), weather)
	}
	env := s.start(t)
	var shapes []string
	for _, d := range llmtest.Dialects {
		r := env.Run(asks("What is the weather?", object{"route": d, "tools": []any{object{"name": "weather",
			"parameters": object{"type": "object", "properties": object{"city": object{"type": "string"}},
				"required": []string{"city"}}}}}))
		got := succeeded(t, r)
		if got.Text != "Let me look. " || len(got.ToolCalls) != 1 || got.ToolCalls[0].Name != "weather" ||
			string(got.ToolCalls[0].Arguments) != `{"city": "Köln"}` ||
			got.Stop != "tool_use" || got.Model != "model-"+string(d) {
			t.Errorf("%s: %s", d, r.Result)
		}
		if got.Usage.Input != 1000 || got.Usage.Output != 100 || got.Usage.Source != "provider" ||
			*got.Usage.Cost != "0.0012" || got.Usage.Call.Requests != 1 {
			t.Errorf("%s: %+v", d, got.Usage)
		}
		if calls := external(t, r); len(calls) != 1 || calls[0].Status != 200 || calls[0].LLM.Target != string(d) ||
			calls[0].LLM.Outcome != "done" {
			t.Errorf("%s: %s", d, r.Effects)
		}
		shapes = append(shapes, shape(t, r.Result))
	}
	for _, other := range shapes[1:] {
		if diff := cmp.Diff(shapes[0], other); diff != "" {
			t.Error(diff)
		}
	}
}

// What no later call repeats would only cost more.
func TestAChatIsCachedOnlyIfItSaysSo(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.Anthropic, object{"usd_per_mtok": []any{object{"input": "1", "output": "0",
		"cache_read": "0.1", "cache_write": "1.25"}}}).route("default", "a")
	s.server.Always("", llmtest.Say("Well."))
	env := s.start(t)
	long := object{"system": strings.Repeat("Be brief. ", 400)} // 1,000 tokens, and the question has 2
	for i, c := range []struct {
		cache bool
		cost  string
	}{{false, "0.001002"}, {true, "0.0012525"}, {true, "0.0001002"}, {false, "0.001002"}} {
		fields := maps.Clone(long)
		if c.cache {
			fields["cache"] = true
		}
		got := succeeded(t, env.Run(asks("Hello!", fields)))
		if cost := *got.Usage.Cost; cost != c.cost || c.cache != (len(s.server.Last().CacheAt) == 2) {
			t.Errorf("chat %d: %s USD, want %s, with marks at %v", i+1, cost, c.cost, s.server.Last().CacheAt)
		}
	}
}

// shape is a document without its values.
func shape(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	var bare func(any) any
	bare = func(v any) any {
		switch v := v.(type) {
		case object:
			for k := range v {
				v[k] = bare(v[k])
			}
			return v
		case []any:
			for i := range v {
				v[i] = bare(v[i])
			}
			return v
		}
		return fmt.Sprintf("%T", v)
	}
	encoded, err := json.MarshalIndent(bare(doc), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

func TestTheNextTargetAnswersWhereOneFailsBeforeAnyContent(t *testing.T) {
	t.Parallel()
	for _, fault := range llmtest.EarlyFaults() {
		switch fault.Status {
		case 400, 413, 422:
			continue // refused: see below
		}
		if fault.Kind == llmtest.TooLong || fault.Kind == llmtest.EndlessLine {
			continue
		}
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", llmtest.OpenAI, object{"first_content_s": 1}).target("b", llmtest.Anthropic,
				nil).route("default", "a", "b")
			s.server.Always("/a", llmtest.Say("from a").With(fault))
			s.server.Always("/b", llmtest.Say("from b"))
			env := s.start(t)
			r := env.Run(asks("hello"))
			got := succeeded(t, r)
			if got.Text != "from b" || r.Attempt != 1 || len(got.Routing.Tried) != 1 || got.Routing.Tried[0].Target != "a" ||
				got.Routing.Target != "b" || got.Usage.Call.Requests != 2 {
				t.Errorf("attempt %d: %s", r.Attempt, r.Result)
			}
			if calls := external(t, r); len(calls) != 2 || calls[0].LLM.Outcome != "failed" || calls[1].LLM.Outcome != "done" {
				t.Errorf("%s", r.Effects)
			}
		})
	}
}

func TestARefusedConnectionIsNoEnd(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.Gemini, nil).route("default", "a", "b")
	s.providers["a"].(object)["base_url"] = llmtest.Refused(t) + "/v1"
	env := s.start(t)
	if got := succeeded(t, env.Run(asks("hello"))); got.Text != "ok" || got.Routing.Tried[0].Outcome != "unreachable" {
		t.Errorf("%+v", got)
	}
}

// A partial answer is never mixed with another: the next attempt starts over, with another target first.
func TestAnAnswerThatBreaksOffIsAskedForAnewInAnotherAttempt(t *testing.T) {
	t.Parallel()
	for _, fault := range llmtest.LateFaults() {
		switch fault.Kind {
		case llmtest.NoUsage, llmtest.FinishedTwice, llmtest.EndlessLine:
			continue
		}
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", llmtest.OpenAI, object{"idle_s": 1}).target("b", llmtest.OpenAI, nil).route("default",
				"a",
				"b")
			s.server.Always("/a", llmtest.Say("this answer is much longer than three deltas are").With(fault))
			s.server.Always("/b", llmtest.Say("from b"))
			env := s.start(t)
			id := env.Insert(asks("hello"))
			env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
			if n := len(s.server.Requests()); n != 1 {
				t.Errorf("%d requests in the first attempt", n)
			}
			env.Pass(10 * time.Second)
			r := env.Await(id)
			got := succeeded(t, r)
			if got.Text != "from b" || r.Attempt != 2 || got.Usage.Call.Requests != 2 || got.Usage.Call.Cost == nil ||
				*got.Usage.Call.Cost <= *got.Usage.Cost {
				t.Errorf("attempt %d: %s", r.Attempt, r.Result)
			}
			if calls := external(t, r); len(calls) != 2 || calls[0].LLM.Outcome != "cut" || calls[0].LLM.Target != "a" {
				t.Errorf("%s", r.Effects)
			}
		})
	}
}

func slicesContains(list []string, what string) bool {
	for _, s := range list {
		if s == what {
			return true
		}
	}
	return false
}

func TestARequestThatIsRefusedIsSentToNobodyElse(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]string{400: "provider_refused", 422: "provider_refused", 413: "request_too_large"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", llmtest.Anthropic, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
			s.server.Always("/a", llmtest.Script{Fault: llmtest.Status(status)})
			env := s.start(t)
			r := env.Run(asks("hello"))
			got := failedWith(t, r, code)
			if n := len(s.server.Requests()); n != 1 || r.Attempt != 1 || len(got.Routing.Tried) != 1 ||
				got.Usage.Call.Requests != 1 {
				t.Errorf("%d requests, attempt %d: %s", n, r.Attempt, r.Result)
			}
		})
	}
}

func TestAPromptThatIsTooLongGoesOnlyToALargerModel(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.Anthropic, nil).target("same", llmtest.OpenAI, nil).target("larger",
		llmtest.OpenAI,
		object{"context": 1_000_000}).
		route("default", "a", "same", "larger").route("small", "a", "same")
	s.server.Always("/a", llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.TooLong}})
	env := s.start(t)
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "larger" || len(s.server.Requests()) != 2 {
		t.Errorf("%+v", got.Routing)
	}
	failedWith(t, env.Run(asks("hello", object{"route": "small"})), "context_too_long")
	if n := len(s.server.Requests()); n != 3 {
		t.Errorf("%d requests", n)
	}
}

func TestACancelledCallEndsItsRequest(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
	s.server.Always("/a", llmtest.Say("a long answer of which the end never comes").
		With(llmtest.After(3, llmtest.Stalled)))
	env := s.start(t)
	id := env.Insert(asks("hello"))
	env.Until("a stream", func() bool { return s.server.Counts().Open == 1 })
	if _, err := env.DB.Exec(t.Context(), "select cancel_tool_call($1)", id); err != nil {
		t.Fatal(err)
	}
	r := env.Await(id)
	failedWith(t, r, "cancelled")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := s.server.Wait(ctx, func(c llmtest.Counts) bool { return c.Open == 0 }); err != nil {
		t.Error(err)
	}
	var status string
	var output int
	if err := env.DB.QueryRow(t.Context(), "select status, output_tokens from core_llm_requests where call_id = $1",
		id).Scan(&status, &output); err != nil || status != "cancelled" || output == 0 {
		t.Errorf("%s, %d tokens, %v", status, output, err)
	}
	if n := len(s.server.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestATargetThatLacksAToolIsSkippedWithItsReason(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("plain", llmtest.OpenAI, object{"capabilities": []string{}}).target("able", llmtest.OpenAI,
		nil).route("default", "plain", "able").route("plain", "plain")
	env := s.start(t)
	tools := object{"tools": []any{object{"name": "weather", "parameters": object{"type": "object"}}}}
	got := succeeded(t, env.Run(asks("hello", tools)))
	if got.Routing.Target != "able" || len(got.Routing.Skipped) != 1 ||
		!strings.Contains(got.Routing.Skipped[0].Why, "tools") {
		t.Errorf("%+v", got.Routing)
	}
	failedWith(t, env.Run(asks("hello", tools, object{"route": "plain"})), "no_capable_target")
	if n := len(s.server.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
	failedWith(t, env.Run(asks("hello", object{"route": "none"})), "unknown_route")
}

func TestATargetCoolsDownForAllWorkers(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a",
		"b").route("only",
		"a")
	s.server.Script("/a", llmtest.Script{Fault: llmtest.Limited(5*time.Minute, llmtest.InSeconds)})
	s.server.Always("/a", llmtest.Say("from a"))
	s.server.Always("/b", llmtest.Say("from b"))
	env := s.start(t)
	if got := succeeded(t, env.Run(asks("hello"))); got.Text != "from b" {
		t.Errorf("%+v", got)
	}
	env.StartWorker()
	if got := succeeded(t, env.Run(asks("hello"))); got.Text != "from b" || len(got.Routing.Tried) != 0 ||
		got.Routing.Skipped[0].Target != "a" {
		t.Errorf("it is cooling down: %+v", got)
	}
	// A call that has no other target waits in the queue.
	id := env.Insert(asks("hello", object{"route": "only"}))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	if n := len(s.server.Requests()); n != 3 {
		t.Errorf("%d requests", n)
	}
	env.Pass(301 * time.Second)
	if got := succeeded(t, env.Await(id)); got.Text != "from a" {
		t.Errorf("%+v", got)
	}
	if got := succeeded(t, env.Run(asks("hello"))); got.Text != "from a" {
		t.Errorf("after its cooldown: %+v", got)
	}
}

func TestABudgetForOneCallLetsOneRunAtATime(t *testing.T) {
	t.Parallel()
	// A request reserves some 0.02 USD: 10,000 tokens of output at 2 USD for a million.
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a").budget("all", "all", "0.03")
	gate := make(chan struct{})
	s.server.Script("/a", llmtest.Script{Parts: llmtest.Say("first").Parts, Before: func(ctx context.Context, delta int) {
		if delta == 0 {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
	}})
	env := s.start(t)
	most := object{"max_output_tokens": 10_000}
	first := env.Insert(asks("one", most))
	env.Until("a stream", func() bool { return s.server.Counts().Open == 1 })
	// callers do not learn what others spent of a shared budget
	for caller, told := range map[string]bool{"": true, "ada": false} {
		call := asks("two", most)
		call.CreatedBy = caller
		r := env.Run(call)
		failedWith(t, r, "budget_exceeded")
		if said := string(r.Result); strings.Contains(said, "reserved_usd") != told ||
			strings.Contains(said, " spent and ") != told || !strings.Contains(said, "limit_usd") {
			t.Errorf("%q reads %s", caller, said)
		}
	}
	close(gate)
	succeeded(t, env.Await(first))
	succeeded(t, env.Run(asks("three", most)))
	if n := len(s.server.Requests()); n != 2 {
		t.Errorf("%d requests", n)
	}
}

func TestFiftyCallsAtOnceOnMoneyForSeven(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, object{"usd_per_mtok": []any{object{"input": "0", "output": "2"}}}).
		route("default", "a").budget("all", "all", "0.149")
	most := 0
	s.server.Always("/a", llmtest.Script{Parts: llmtest.Say("x").Parts,
		Usage: &provider.Usage{Input: 10, Output: 10_000, Known: true}})
	env := s.start(t, func(o *handlertest.Options) { o.Worker = func(o *worker.Options) { o.Concurrency = 25 } })
	env.StartWorker()
	var ids []string
	for i := range 50 {
		ids = append(ids, env.Insert(asks(fmt.Sprint(i), object{"max_output_tokens": 10_000})))
	}
	for _, id := range ids {
		if r := env.Await(id); r.Status == receipts.Succeeded {
			most++
		} else {
			failedWith(t, r, "budget_exceeded")
		}
	}
	if n := len(s.server.Requests()); most != 7 || n != 7 {
		t.Errorf("%d calls succeeded, with %d requests", most, n)
	}
}

func TestAThoughtGoesBackAsItCame(t *testing.T) {
	t.Parallel()
	// Gemini's are base64
	for d, signature := range map[llmtest.Dialect]string{llmtest.Anthropic: "EqQBCgIYAhIkZ+/==ü\u2028",
		llmtest.Gemini: "EqQBCgIYAhIkZ+/+"} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", d, nil).route("default", "a")
			s.server.Script("/a", llmtest.Think("I think.", signature, "So it is."))
			env := s.start(t)
			r := env.Run(asks("Why?", object{"effort": "low"}))
			got := succeeded(t, r)
			parts := []any{}
			for _, p := range got.Parts {
				parts = append(parts, p)
			}
			succeeded(t, env.Run(tool("llm.chat", object{"messages": []any{object{"role": "user", "content": "Why?"},
				object{"role": "assistant", "content": parts},
				object{"role": "user", "content": "And then?"}}})))
			asked := s.server.Last().Asked
			found := false
			for _, p := range asked.Messages[1].Content {
				found = found || p.Signature == signature
			}
			if !found {
				t.Errorf("the server was sent %+v", asked.Messages)
			}
		})
	}
}

func TestWithoutAKeyTheToolSaysWhichWouldDo(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.Anthropic, nil).route("default", "a",
		"b").key("a",
		"OPENAI_API_KEY", "").key("b", "OTHER_API_KEY", "")
	env := s.start(t)
	r := env.Run(asks("hello"))
	var result struct {
		RequiredEnv []string `json:"required_env"`
	}
	if err := json.Unmarshal(r.Result, &result); err != nil || r.Status != receipts.NotConfigured ||
		!cmp.Equal(result.RequiredEnv, []string{"OPENAI_API_KEY", "OTHER_API_KEY"}) {
		t.Errorf("%s %s", r.Status, r.Result)
	}
	s.key("b", "OTHER_API_KEY", "a key of the other's")
	env = s.start(t)
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "b" {
		t.Errorf("%+v", got.Routing)
	}
}

func TestWithoutARoutesFileTheToolsAreNotConfigured(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.routes = nil
	env := s.start(t)
	if r := env.Run(asks("hello")); r.Status != receipts.NotConfigured {
		t.Errorf("%s %s", r.Status, r.Result)
	}
}

func TestTheSameKeyIsNotPaidForAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	env := s.start(t)
	call := asks("hello")
	call.Key = "once"
	succeeded(t, env.Run(call))
	r := env.Run(call)
	if succeeded(t, r); r.ReplayOf == "" || len(s.server.Requests()) != 1 || len(external(t, r)) != 0 {
		t.Errorf("%d requests, %s", len(s.server.Requests()), r.Effects)
	}
}

func TestATargetWhoseKeyIsWrongCoolsDownAndNoCallWaitsForIt(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	s.server.Always("/a", llmtest.Script{Fault: llmtest.Status(http.StatusUnauthorized)})
	env := s.start(t)
	r := env.Run(asks("hello"))
	failedWith(t, r, "provider_auth")
	if !strings.Contains(string(r.Result), "a has no key_env in the routes file") {
		t.Errorf("it does not say what to look at: %s", r.Result)
	}
	failedWith(t, env.Run(asks("hello again")), "provider_auth")
	if n := len(s.server.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestAnAnswerThatTakesLongerThanItsToolMayIsATimeoutThatIsSettled(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	s.server.Always("/a", llmtest.Say("an answer that does not go on").With(llmtest.After(2, llmtest.Stalled)))
	env := s.start(t, func(o *handlertest.Options) {
		o.Registry = withTimeout(t, o.Registry, "llm.chat", 4000)
	})
	r := env.Run(asks("hello"))
	failedWith(t, r, "timeout")
	if calls := external(t, r); r.Attempt != 1 || len(calls) != 1 || calls[0].LLM.Outcome != "cancelled" {
		t.Errorf("attempt %d: %s", r.Attempt, r.Effects)
	}
}

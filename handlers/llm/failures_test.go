package llm_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/receipts"
)

// final is a provider that says that another attempt is of no use.
func final(status int) llmtest.Script {
	return llmtest.Script{Fault: llmtest.Status(status), Header: http.Header{"X-Should-Retry": {"false"}}}
}

func TestWhatIsNotTransientFailsTheCallOnceNoOtherTargetIsLeft(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		script llmtest.Script
		code   string
	}{
		{"x-should-retry is false", final(500), "provider_unavailable"},
		{"402", llmtest.Script{Fault: llmtest.Status(402)}, "provider_auth"},
		{"404", llmtest.Script{Fault: llmtest.Status(404)}, "provider_refused"},
		{"307", llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.Redirected}}, "provider_refused"},
		{"a pause of more than 15 minutes", llmtest.Script{Fault: llmtest.Limited(16*time.Minute, llmtest.InSeconds)},
			"rate_limited"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", llmtest.Anthropic, nil).target("b", llmtest.Anthropic, nil).route("default", "a", "b")
			s.server.Always("/a", test.script)
			s.server.Always("/b", test.script)
			env := s.start(t)
			r := env.Run(asks("hello"))
			got := failedWith(t, r, test.code)
			if n := len(s.server.Requests()); n != 2 || r.Attempt != 1 || len(got.Routing.Tried) != 2 ||
				len(external(t, r)) != 2 {
				t.Errorf("%d requests, attempt %d: %s", n, r.Attempt, r.Result)
			}
			if e, _ := r.Error(); test.code == "rate_limited" && !strings.Contains(string(e.Details), `"retry_after_s": 960`) {
				t.Errorf("%s", e.Details)
			}
		})
	}
}

func TestOneTargetThatComesBackIsWaitedForWhateverTheOthersSay(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"limited", "wrong"}, {"wrong", "limited"}} {
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("limited", llmtest.OpenAI, nil).target("wrong", llmtest.OpenAI, nil).route("default",
				order...)
			s.server.Script("/limited", llmtest.Script{Fault: llmtest.Limited(7*time.Minute, llmtest.InSeconds)})
			s.server.Always("/limited", llmtest.Say("from limited"))
			s.server.Always("/wrong", llmtest.Script{Fault: llmtest.Status(http.StatusUnauthorized)})
			env := s.start(t)
			id := env.Insert(asks("hello"))
			env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
			// Another call finds one target cooling down for 7 min, and the other for 10.
			other := env.Insert(asks("hello"))
			env.Until("the other call to be put back", func() bool { return slicesContains(env.Journal(other), "retried") })
			if n := len(s.server.Requests()); n != 2 {
				t.Errorf("%d requests", n)
			}
			env.Pass(8 * time.Minute)
			for _, id := range []string{id, other} {
				if got := succeeded(t, env.Await(id)); got.Text != "from limited" {
					t.Errorf("%+v", got)
				}
			}
			if n := env.Logs.FilterMessageSnippet("a provider refused a target").Len(); n != 1 {
				t.Errorf("%d warnings", n)
			}
		})
	}
}

// alwaysLimited makes a call whose only target asks for a pause of 90 s each time.
func alwaysLimited(t *testing.T) (s *scene, env *handlertest.Env, id string) {
	t.Helper()
	s = newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	s.server.Always("/a", llmtest.Script{Fault: llmtest.Limited(90*time.Second, llmtest.InSeconds)})
	env = s.start(t)
	return s, env, env.Insert(asks("hello"))
}

func TestATargetThatIsAlwaysLimitedFailsTheCallWithItsPause(t *testing.T) {
	t.Parallel()
	s, env, id := alwaysLimited(t)
	for n := 1; n < 12; n++ {
		env.Until("an attempt", func() bool { return strings.Count(strings.Join(env.Journal(id), " "), "retried") == n })
		env.Pass(91 * time.Second)
	}
	r := env.Await(id)
	failedWith(t, r, "rate_limited")
	if n := len(s.server.Requests()); n != 12 || r.Attempt != 12 ||
		!strings.Contains(string(r.Result), `"retry_after_s"`) || len(external(t, r)) != 12 {
		t.Errorf("%d requests: %s %s", n, r.Result, r.Effects)
	}
}

// Each attempt lists all requests of the call so far. The cancellation ends the call, not an attempt.
func TestACallThatIsCancelledBetweenAttemptsListsEachRequestOnce(t *testing.T) {
	t.Parallel()
	s, env, id := alwaysLimited(t)
	const attempts = 3
	for n := 1; n <= attempts; n++ {
		if n > 1 {
			env.Pass(91 * time.Second)
		}
		env.Until("an attempt", func() bool { return strings.Count(strings.Join(env.Journal(id), " "), "retried") == n })
	}
	if _, err := env.DB.Exec(t.Context(), "select cancel_tool_call($1)", id); err != nil {
		t.Fatal(err)
	}
	r := env.Await(id)
	failedWith(t, r, "cancelled")
	if got := external(t, r); len(got) != attempts || len(s.server.Requests()) != attempts {
		t.Errorf("%d requests, and the receipt lists %+v", len(s.server.Requests()), got)
	}
}

func TestARefusalIsAnAnswer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, d := range llmtest.Dialects {
		s.target(string(d), d, nil).target("other_"+string(d), d, nil).route(string(d), string(d), "other_"+string(d))
		s.server.Always("/"+string(d), llmtest.Script{Parts: llmtest.Say("I would rather not.").Parts,
			Stop: provider.Refusal})
	}
	env := s.start(t)
	for _, d := range llmtest.Dialects {
		if got := succeeded(t, env.Run(asks("hello", object{"route": d}))); got.Stop != "refusal" ||
			got.Routing.Target != string(d) {
			t.Errorf("%s: %+v", d, got)
		}
	}
	if n := len(s.server.Requests()); n != len(llmtest.Dialects) {
		t.Errorf("%d requests", n)
	}
}

// gated is a script that waits before its first delta until the gate opens.
func gated(text string, gate <-chan struct{}) llmtest.Script {
	return llmtest.Script{Parts: llmtest.Say(text).Parts, Before: func(ctx context.Context, delta int) {
		if delta == 0 {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
	}}
}

func TestATargetIsAskedSoManyRequestsAtOnceByAllWorkers(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("few", llmtest.OpenAI, object{"max_concurrent": 2}).target("more", llmtest.OpenAI,
		nil).route("default", "few", "more").route("only", "few")
	gate := make(chan struct{})
	s.server.Always("/few", gated("from few", gate))
	env := s.start(t, func(o *handlertest.Options) { o.Worker = nil })
	env.StartWorker()
	var ids []string
	for range 2 {
		ids = append(ids, env.Insert(asks("hello", object{"route": "only"})))
	}
	env.Until("two streams", func() bool { return s.server.Counts().Open == 2 })
	for range 3 {
		if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "more" || len(got.Routing.Skipped) != 1 ||
			got.Routing.Skipped[0].Why != "busy" {
			t.Errorf("%+v", got.Routing)
		}
	}
	// Who has no other target waits in the queue.
	third := env.Insert(asks("hello", object{"route": "only"}))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(third), "retried") })
	close(gate)
	for _, id := range ids {
		succeeded(t, env.Await(id))
	}
	env.Pass(10 * time.Second)
	if got := succeeded(t, env.Await(third)); got.Text != "from few" {
		t.Errorf("%+v", got)
	}
	for _, r := range s.server.Requests() {
		if r.Gone {
			t.Errorf("request %d was left", r.N)
		}
	}
}

func TestACallMakesAtMostAThousandRequests(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
	s.server.Script("/a", llmtest.Script{Fault: llmtest.Limited(time.Second, llmtest.InSeconds)})
	s.server.Script("/b", llmtest.Script{Fault: llmtest.Limited(time.Second, llmtest.InSeconds)})
	env := s.start(t)
	id := env.Insert(asks("hello"))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	// As if it had made 997 more before.
	if _, err := env.DB.Exec(t.Context(), `insert into core_llm_requests (call_id, attempt, n, label, tool_name, route,
		target, provider, model, routes_version, status, at, ended_at,
			reserved, cost, estimated_input, spends)
		select call_id, attempt, 2 + i, label, tool_name, route, target, provider, model, routes_version, status, at,
			ended_at,
			reserved, 0, estimated_input, spends
		from core_llm_requests, generate_series(1, 997) i where call_id = $1 and n = 1`, id); err != nil {
		t.Fatal(err)
	}
	s.server.Script("/a", llmtest.Script{Fault: llmtest.Status(500)})
	env.Pass(10 * time.Second)
	r := env.Await(id)
	got := failedWith(t, r, "provider_unavailable")
	if n := len(s.server.Requests()); n != 3 || len(got.Routing.Tried) != 1 || r.Attempt != 2 {
		t.Errorf("%d requests: %s", n, r.Result)
	}
}

func TestACallWhoseTimeIsOverSettlesItsRequest(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
	s.server.Always("/a", llmtest.Say("a long answer of which the end never comes").
		With(llmtest.After(3, llmtest.Stalled)))
	env := s.start(t, func(o *handlertest.Options) { o.Registry = withTimeout(t, o.Registry, "llm.chat", 2000) })
	r := env.Run(asks("hello"))
	failedWith(t, r, "timeout")
	var status string
	if err := env.DB.QueryRow(t.Context(), "select status from core_llm_requests where call_id = $1",
		r.CallID).Scan(&status); err != nil || status != "cancelled" {
		t.Errorf("%s, %v", status, err)
	}
	if n := len(s.server.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
	env.Until("the stream to end", func() bool { return s.server.Counts().Open == 0 })
}

// A server that only shows that it lives has not answered: signs of life, the role and empty deltas are
// not content.
func TestWhatIsNoContentLetsAnotherTargetAnswer(t *testing.T) {
	t.Parallel()
	role := "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
	for name, script := range map[string]llmtest.Script{
		"an error after the role": {Raw: ": PROCESSING\n\n" + role + role +
			"data: {\"error\":{\"message\":\"overloaded\",\"code\":503},\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}]}\n\n"},
		"an end after the role": {Raw: role + "data: [DONE]\n\n"},
		"an error event":        {Raw: role + "event: error\ndata: {\"message\":\"internal\"}\n\n"},
		"no choices at all":     {Raw: "data: {\"choices\":[]}\n\ndata: [DONE]\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
			s.server.Always("/a", script)
			s.server.Always("/b", llmtest.Say("from b"))
			env := s.start(t)
			r := env.Run(asks("hello"))
			if got := succeeded(t, r); got.Text != "from b" || len(got.Parts) != 1 || r.Attempt != 1 ||
				len(got.Routing.Tried) != 1 {
				t.Errorf("%s", r.Result)
			}
		})
	}
}

// Each tool that asks, and not only llm.chat, goes to the next target, before it has content.
func TestEachToolThatAsksGoesToTheNextTarget(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.Anthropic, nil).target("b", llmtest.OpenAI, nil).route("default", "a",
		"b").route("only", "a")
	s.server.Always("/a", llmtest.Script{Fault: llmtest.Status(500)})
	s.server.Always("/b", llmtest.Say(`{"winner": "A", "reason": "it is first"}`))
	env := s.start(t)
	hello := object{"messages": []any{object{"role": "user", "content": "hello"}}}
	for _, call := range []handlertest.Call{
		tool("llm.chat", hello),
		tool("llm.structured", hello, object{"schema": object{"type": "object"}}),
		tool("llm.ensemble", hello, object{"members": []any{object{"route": "default"}, object{"route": "default"}},
			"strategy": "judge", "judge_route": "default"}),
	} {
		if r := env.Run(call); r.Status != receipts.Succeeded {
			t.Errorf("%s: %s", call.Tool, r.Result)
		}
	}
	// And a route of one target stays with it.
	before := asked(s, "/b")
	id := env.Insert(asks("hello", object{"route": "only"}))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	if n := asked(s, "/b"); n != before {
		t.Errorf("%d requests to another route's target", n-before)
	}
}

// asked is how many requests came below a path.
func asked(s *scene, path string) (n int) {
	for _, r := range s.server.Requests() {
		if strings.HasPrefix(r.Path, path+"/") {
			n++
		}
	}
	return n
}

func TestARepairStaysWithItsTarget(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.OpenAI, nil).route("default", "a", "b")
	s.server.Script("/a", llmtest.Say(`{"n": "one"}`), llmtest.Script{Fault: llmtest.Status(503)}, llmtest.Say(`{"n": 1}`))
	env := s.start(t)
	id := env.Insert(tool("llm.structured", object{"messages": []any{object{"role": "user", "content": "hello"}},
		"schema": object{"type": "object", "properties": object{"n": object{"type": "integer"}}}}))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	env.Pass(10 * time.Second)
	r := env.Await(id)
	got := succeeded(t, r)
	if string(got.Output) != `{"n": 1}` || got.Repairs != 1 || got.Usage.Call.Requests != 3 || asked(s, "/b") != 0 {
		t.Errorf("%s", r.Result)
	}
}

func TestUsageOfNothingIsNotEstimated(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, d := range llmtest.Dialects {
		s.target(string(d), d, nil).route(string(d), string(d)).target("none_"+string(d), d, nil).route("none_"+string(d),
			"none_"+string(d))
		s.server.Always("/"+string(d), llmtest.Script{Parts: llmtest.Say("hello").Parts, Usage: &provider.Usage{Known: true}})
		s.server.Always("/none_"+string(d), llmtest.Say("hello").With(llmtest.Fault{Kind: llmtest.NoUsage}))
	}
	env := s.start(t)
	for _, d := range llmtest.Dialects {
		if got := succeeded(t, env.Run(asks("hello", object{"route": d}))); got.Usage.Source != "provider" ||
			got.Usage.Input != 0 || got.Usage.Output != 0 || *got.Usage.Cost != "0" {
			t.Errorf("%s: %+v", d, got.Usage)
		}
		if got := succeeded(t, env.Run(asks("hello", object{"route": fmt.Sprint("none_",
			d)}))); got.Usage.Source != "estimated" || got.Usage.Input == 0 || got.Usage.Output == 0 || *got.Usage.Cost == "0" {
			t.Errorf("%s: %+v", d, got.Usage)
		}
	}
}

// Otherwise a proxy that fills in one figure would let a budget of money never fill.
func TestUsageThatIsReportedInPartIsEstimatedForTheRest(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	parts := map[string]provider.Usage{"input": {NoOutput: true, Input: 7, Known: true},
		"output": {NoInput: true, Output: 7, Known: true}, "neither": {NoInput: true, NoOutput: true, Known: true}}
	for _, d := range llmtest.Dialects {
		for part, u := range parts {
			name := fmt.Sprint(d, "_", part)
			s.target(name, d, nil).route(name, name)
			s.server.Always("/"+name, llmtest.Script{Parts: llmtest.Say(strings.Repeat("well ", 100)).Parts, Usage: &u})
		}
	}
	env := s.start(t)
	for _, d := range llmtest.Dialects {
		for part, u := range parts {
			got := succeeded(t, env.Run(asks(strings.Repeat("hello ", 50), object{"route": fmt.Sprint(d, "_", part)}))).Usage
			if got.Source != "estimated" || u.NoInput && got.Input < 80 || !u.NoInput && got.Input != 7 ||
				u.NoOutput && got.Output < 100 || !u.NoOutput && got.Output != 7 {
				t.Errorf("%s reports %s: %+v", d, part, got)
			}
		}
	}
}

// A provider charges what it wrote until an answer broke off, though its last word of usage, if any, is from the
// beginning.
func TestWhatCameOfAnAnswerThatBrokeOffIsCounted(t *testing.T) {
	t.Parallel()
	for _, d := range llmtest.Dialects {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", d, nil).route("default", "a")
			s.server.Script("/a", llmtest.Say(strings.Repeat("a long answer ", 100)).With(llmtest.After(100, llmtest.Broken)))
			env := s.start(t)
			id := env.Insert(asks("hello", object{"system": strings.Repeat("Be brief. ", 30)}))
			env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
			var status, source string
			var input, output, cost int64
			if err := env.DB.QueryRow(t.Context(), "select status, usage_source, input_tokens, output_tokens, cost from "+
				"core_llm_requests where call_id = $1", id).
				Scan(&status, &source, &input, &output, &cost); err != nil {
				t.Fatal(err)
			}
			// 800 letters came: some 200 tokens.
			if status != "cut" || source != "estimated" || input < 50 || output < 200 || output > 400 ||
				cost != 1000*input+2000*output {
				t.Errorf("%s, %s: %d in, %d out, %d", status, source, input, output, cost)
			}
		})
	}
}

// A server that says again and again that it lives, and nothing else, is not waited for: neither before the first
// content nor after.
func TestSignsOfLifeKeepNoRequestAlive(t *testing.T) {
	t.Parallel()
	for _, d := range llmtest.Dialects {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			s := newScene(t).target("a", d, object{"first_content_s": 1, "idle_s": 1}).target("b", llmtest.OpenAI,
				nil).route("default", "a", "b").route("only", "a")
			stalled := llmtest.After(3, llmtest.Stalled)
			stalled.Every = 5 * time.Millisecond
			s.server.Script("/a", llmtest.Say("it says nothing").
				With(llmtest.Fault{Kind: llmtest.Hanging, Every: 5 * time.Millisecond}),
				llmtest.Say("it says no more than these letters").With(stalled), llmtest.Say("from a"))
			env := s.start(t)
			if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "b" || got.Routing.Tried[0].Outcome != "late" {
				t.Errorf("%+v", got.Routing)
			}
			id := env.Insert(asks("hello", object{"route": "only"}))
			env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
			env.Pass(10 * time.Second)
			r := env.Await(id)
			if got := succeeded(t, r); got.Text != "from a" || r.Attempt != 2 {
				t.Errorf("%s", r.Result)
			}
		})
	}
}

func TestAnAttemptAsksFourTargetsAndTheNextOneTheRest(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	names := []string{"a", "b", "c", "d", "e", "f"}
	for _, name := range names {
		s.target(name, llmtest.OpenAI, nil)
		s.server.Always("/"+name, llmtest.Script{Fault: llmtest.Status(http.StatusUnauthorized)})
	}
	s.server.Always("/f", llmtest.Say("from f"))
	s.route("default", names...)
	env := s.start(t)
	id := env.Insert(asks("hello"))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	if n := len(s.server.Requests()); n != 4 {
		t.Errorf("%d requests", n)
	}
	env.Pass(10 * time.Second)
	if got := succeeded(t, env.Await(id)); got.Text != "from f" || got.Usage.Call.Requests != 6 ||
		len(got.Routing.Skipped) != 4 {
		t.Errorf("%+v", got)
	}
}

func TestAnAnswerWithoutAnEndHasABound(t *testing.T) {
	t.Parallel()
	for _, d := range llmtest.Dialects {
		for name, script := range map[string]llmtest.Script{
			"an endless line": llmtest.Say("this answer is much longer than three deltas are").
				With(llmtest.After(3, llmtest.EndlessLine)),
			"an endless text": {Parts: llmtest.Say(strings.Repeat("x", provider.MaxAnswer+1)).Parts, Delta: 64 << 10},
		} {
			t.Run(fmt.Sprint(d, ", ", name), func(t *testing.T) {
				t.Parallel()
				s := newScene(t).target("a", d, nil).target("b", d, nil).route("default", "a", "b")
				s.server.Always("/a", script)
				env := s.start(t)
				r := env.Run(asks("hello"))
				failedWith(t, r, "answer_too_large")
				if n := len(s.server.Requests()); n != 1 || r.Attempt != 1 {
					t.Errorf("%d requests", n)
				}
			})
		}
	}
}

package llm_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/google/go-cmp/cmp"
)

// price is a list of one price.
func price(input, output string) []any { return []any{object{"input": input, "output": output}} }

func TestTheCheapestTargetIsAskedFirst(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("dear", llmtest.OpenAI, object{"usd_per_mtok": price("10", "10")}).target("unpriced",
		llmtest.OpenAI,
		object{"usd_per_mtok": []any{}}).
		target("wordy", llmtest.OpenAI, object{"usd_per_mtok": price("1", "2")}).target("brief", llmtest.OpenAI,
		object{"usd_per_mtok": price("1", "3")})
	delete(s.targets["unpriced"].(object), "usd_per_mtok")
	s.routes["default"] = object{"targets": []string{"unpriced", "dear", "brief", "wordy"}, "order": "cheapest"}
	s.routes["brief"] = object{"targets": []string{"brief"}}
	s.server.Always("/brief", llmtest.Script{Parts: llmtest.Say("x").Parts,
		Usage: &provider.Usage{Input: 5, Output: 10, Known: true}})
	s.server.Always("/wordy", llmtest.Script{Parts: llmtest.Say("x").Parts,
		Usage: &provider.Usage{Input: 5, Output: 4000, Known: true}})
	env := s.start(t)
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "wordy" {
		t.Errorf("by its price: %s", got.Routing.Target)
	}
	succeeded(t, env.Run(asks("hello", object{"route": "brief"})))
	// It is dearer by the token, and needs fewer.
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "brief" {
		t.Errorf("by what was seen: %s", got.Routing.Target)
	}
	s.server.Script("/brief", llmtest.Script{Fault: llmtest.Status(500)})
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "wordy" {
		t.Errorf("the next: %s", got.Routing.Target)
	}
}

func TestTheFastestTargetIsAskedFirstOnceAllAreKnown(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("slow", llmtest.OpenAI, nil).target("fast", llmtest.OpenAI, nil)
	s.routes["default"] = object{"targets": []string{"slow", "fast"}, "order": "fastest"}
	env := s.start(t)
	for range 3 { // the first is asked until it is known, and then the other
		succeeded(t, env.Run(asks("hello")))
	}
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "fast" {
		t.Errorf("a target that is not known: %s", got.Routing.Target)
	}
	for range 2 {
		succeeded(t, env.Run(asks("hello")))
	}
	// No test here measures a time: these are what was seen.
	if _, err := env.DB.Exec(t.Context(), `update gem.llm_targets set tokens_per_s = 50, output_tokens = 100,
		first_content_ms = case target when 'slow' then 3000 else 200 end`); err != nil {
		t.Fatal(err)
	}
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "fast" {
		t.Errorf("the faster: %s", got.Routing.Target)
	}
	if _, err := env.DB.Exec(t.Context(), `update gem.llm_targets set tokens_per_s = 50, output_tokens = 100,
		first_content_ms = case target when 'fast' then 3000 else 200 end`); err != nil {
		t.Fatal(err)
	}
	if got := succeeded(t, env.Run(asks("hello"))); got.Routing.Target != "slow" {
		t.Errorf("now the faster: %s", got.Routing.Target)
	}
}

func TestAWeightedRouteDrawsOncePerCall(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("rare", llmtest.OpenAI, nil).target("often", llmtest.OpenAI, nil)
	s.routes["default"] = object{"targets": []string{"rare", "often"}, "order": "weighted", "weights": object{"often": 9}}
	env := s.start(t)
	var ids []string
	for range 60 {
		ids = append(ids, env.Insert(asks("hello")))
	}
	drawn := map[string]int{}
	for _, id := range ids {
		drawn[succeeded(t, env.Await(id)).Routing.Target]++
	}
	if drawn["often"] < 2*drawn["rare"] || drawn["often"]+drawn["rare"] != 60 { // 54 to 6 are to be expected
		t.Errorf("%v", drawn)
	}
	// The next attempt of a call has the same order.
	for _, target := range []string{"/rare", "/often"} {
		s.server.Always(target, llmtest.Script{Fault: llmtest.Status(500)})
	}
	id := env.Insert(asks("hello"))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	env.Pass(10 * time.Second)
	env.Until("the call to be put back again", func() bool {
		return strings.Count(strings.Join(env.Journal(id), " "), "retried") == 2
	})
	var order []string
	if err := env.DB.QueryRow(t.Context(), "select array_agg(target order by n) from core_llm_requests where call_id = $1",
		id).Scan(&order); err != nil || len(order) != 4 || order[0] != order[2] || order[1] != order[3] {
		t.Errorf("%v, %v", order, err)
	}
}

// What the requests of earlier attempts cost is gone from what the call may cost.
func TestWhatACallMayCostHoldsOverItsAttempts(t *testing.T) {
	t.Parallel()
	// A request reserves 10,000 tokens of output at 2 USD for a million: 0.02 USD.
	s := newScene(t).target("a", llmtest.OpenAI, object{"usd_per_mtok": price("0", "2")}).route("default", "a")
	s.routes["capped"] = object{"targets": []string{"a"}, "max_cost_usd": "0.03"}
	cut := llmtest.Script{Parts: llmtest.Say("this answer is much longer than three deltas are").Parts,
		Fault: llmtest.After(3, llmtest.ErrorLate)}
	env := s.start(t)
	most := object{"max_output_tokens": 10_000}
	for name, call := range map[string]handlertest.Call{
		"the call's":  asks("hello", most, object{"max_cost_usd": "0.03"}),
		"the route's": asks("hello", most, object{"max_cost_usd": "5", "route": "capped"}),
	} {
		s.server.Script("/a", cut)
		before := len(s.server.Requests())
		id := env.Insert(call)
		env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
		// As if the answer that broke off had been long.
		if _, err := env.DB.Exec(t.Context(), "update core_llm_requests set cost = 15000000 where call_id = $1",
			id); err != nil {
			t.Fatal(err)
		}
		env.Pass(31 * time.Second)
		r := env.Await(id)
		got := failedWith(t, r, "budget_exceeded")
		if n := len(s.server.Requests()) - before; n != 1 || len(got.Routing.Skipped) != 1 ||
			got.Routing.Skipped[0].Why != "max_cost" {
			t.Errorf("%s: %d requests, %s", name, n, r.Result)
		}
	}
	// With enough left it continues, and its usage has both requests.
	s.server.Script("/a", cut, llmtest.Script{Parts: llmtest.Say("whole").Parts,
		Usage: &provider.Usage{Input: 7, Output: 500, Known: true}})
	id := env.Insert(asks("hello", most, object{"max_cost_usd": "0.03"}))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	env.Pass(31 * time.Second)
	got := succeeded(t, env.Await(id))
	var sum string
	if err := env.DB.QueryRow(t.Context(), "select trim_scale(sum(cost) / 1e9)::text from core_llm_requests where "+
		"call_id = $1", id).Scan(&sum); err != nil {
		t.Fatal(err)
	}
	if *got.Usage.Cost != "0.001" || got.Usage.Call.Requests != 2 || *got.Usage.Call.Cost != sum || sum == "0.001" ||
		got.Usage.Call.Unknown != 0 {
		t.Errorf("%+v, and the ledger has %s", got.Usage, sum)
	}
	// What would cost too much at once asks nobody.
	before := len(s.server.Requests())
	dear := env.Run(asks("hello", most, object{"max_cost_usd": "0.01"}))
	failedWith(t, dear, "budget_exceeded")
	if !strings.Contains(string(dear.Result), "lower it, or raise max_cost_usd") {
		t.Errorf("it does not say what to do: %s", dear.Result)
	}
	if n := len(s.server.Requests()) - before; n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestTheModelsAreListedWithWhatIsKnownOfThem(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, object{"max_concurrent": 3}).target("b", llmtest.Anthropic,
		object{"capabilities": []string{}}).route("default", "a", "b").route("only", "a").
		key("b", "OTHER_API_KEY", "")
	s.server.Script("/a", llmtest.Script{Fault: llmtest.Limited(7*time.Minute, llmtest.InSeconds)})
	env := s.start(t)
	id := env.Insert(asks("hello", object{"route": "only"}))
	env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
	var got struct {
		Version string
		Routes  []struct {
			Name, Order string
			Targets     []string
		}
		Targets []struct {
			Name, Provider, Model string
			Capabilities          []string
			Key                   bool
			Running               int
			CooldownUntil         *time.Time                       `json:"cooldown_until"`
			CooldownReason        string                           `json:"cooldown_reason"`
			Prices                []struct{ Input, Output string } `json:"usd_per_mtok"`
		}
	}
	r := env.Run(tool("llm.models"))
	if err := json.Unmarshal(r.Result, &got); err != nil || len(got.Targets) != 2 || len(got.Routes) != 2 ||
		got.Version != "1" {
		t.Fatalf("%s, %v", r.Result, err)
	}
	a, b := got.Targets[0], got.Targets[1]
	if !a.Key || a.CooldownUntil == nil || a.CooldownReason != "rate_limited" || a.Model != "model-a" ||
		a.Prices[0].Output != "2" || len(a.Capabilities) != 3 || a.Running != 0 {
		t.Errorf("%+v", a)
	}
	if b.Key || b.CooldownUntil != nil || b.CooldownReason != "" || len(b.Capabilities) != 0 {
		t.Errorf("%+v", b)
	}
	if diff := cmp.Diff([]string{"a", "b"}, got.Routes[0].Targets); diff != "" || got.Routes[0].Order != "listed" {
		t.Error(got.Routes)
	}
	if strings.Contains(string(r.Result), s.server.URL) {
		t.Errorf("it has an address: %s", r.Result)
	}
}

// row is what llm.usage answers.
type row struct {
	Day, Route, Target string
	Requests           int
	Input              int    `json:"input_tokens"`
	Output             int    `json:"output_tokens"`
	Cost               string `json:"cost_usd"`
}

func usage(t *testing.T, env *handlertest.Env, call handlertest.Call) []row {
	t.Helper()
	return handlertest.Output[struct{ Rows []row }](t, env.Run(call)).Rows
}

func TestUsageIsSummedAsAskedForAndOfTheCallerAlone(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).target("b", llmtest.Gemini, nil).route("default", "a").route("other",
		"b").route("both", "a", "b")
	for _, target := range []string{"/a", "/b"} {
		s.server.Always(target, llmtest.Script{Parts: llmtest.Say("x").Parts,
			Usage: &provider.Usage{Input: 100, Output: 10, Known: true}})
	}
	reg := signedIn(t)
	env := s.start(t, func(o *handlertest.Options) { o.Registry = reg })
	const ann, bob = "4d3b9f3e-6f0b-4c39-8d3a-0d5f5c0f6a01", "4d3b9f3e-6f0b-4c39-8d3a-0d5f5c0f6a02"
	as := func(user string, call handlertest.Call) handlertest.Call {
		call.CreatedBy, call.SignedIn = user, user != ""
		return call
	}
	for _, user := range []string{ann, ann, bob, ""} {
		succeeded(t, env.Run(as(user, asks("hello"))))
	}
	succeeded(t, env.Run(as(ann, asks("hello", object{"route": "other"}))))
	s.server.Script("/a", llmtest.Script{Fault: llmtest.Status(500)})
	succeeded(t, env.Run(as(bob, asks("hello", object{"route": "both"}))))
	env.Pass(24 * time.Hour)
	succeeded(t, env.Run(as(bob, asks("hello"))))

	for _, test := range []struct {
		name string
		call handlertest.Call
		want []row
	}{
		{"a caller's own", as(ann, tool("llm.usage", object{"by": []string{"target"}})),
			[]row{{Target: "a", Requests: 2, Input: 200, Output: 20, Cost: "0.00024"},
				{Target: "b", Requests: 1, Input: 100, Output: 10, Cost: "0.00012"}}},
		{"whoever it names", as(ann, tool("llm.usage", object{"by": []string{"target"}, "created_by": bob})),
			[]row{{Target: "a", Requests: 2, Input: 200, Output: 20, Cost: "0.00024"},
				{Target: "b", Requests: 1, Input: 100, Output: 10, Cost: "0.00012"}}},
		{"one user's", tool("llm.usage", object{"by": []string{"route"}, "created_by": bob}),
			[]row{{Route: "both", Requests: 2, Input: 100, Output: 10, Cost: "0.00012"},
				{Route: "default", Requests: 2, Input: 200, Output: 20, Cost: "0.00024"}}},
		{"of all", tool("llm.usage", object{"by": []string{"target", "route"}}),
			[]row{{Route: "both", Target: "a", Requests: 1, Cost: "0"},
				{Route: "both", Target: "b", Requests: 1, Input: 100, Output: 10, Cost: "0.00012"},
				{Route: "default", Target: "a", Requests: 5, Input: 500, Output: 50, Cost: "0.0006"},
				{Route: "other", Target: "b", Requests: 1, Input: 100, Output: 10, Cost: "0.00012"}}},
		{"in one", tool("llm.usage", object{"by": []string{}}),
			[]row{{Requests: 8, Input: 700, Output: 70, Cost: "0.00084"}}},
	} {
		if diff := cmp.Diff(test.want, usage(t, env, test.call)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	days := map[string]int{}
	for _, r := range usage(t, env, tool("llm.usage")) {
		days[r.Day] += r.Requests
	}
	if len(days) != 2 {
		t.Errorf("by default it is by day: %v", days)
	}
}

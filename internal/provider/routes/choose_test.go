package routes_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/routes"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func allKeys(string) bool { return true }

func nothingSeen(string) routes.Stats { return routes.Stats{} }

func names(usable []routes.Candidate) []string {
	var all []string
	for _, c := range usable {
		all = append(all, c.Target.Name)
	}
	return all
}

// choice has targets that each lack something.
const choice = `{"version": "1",
	"providers": {"one": {"dialect": "openai", "base_url": "https://one.example", "key_env": "ONE_API_KEY"}, "two": {"dialect": "openai", "base_url": "https://two.example", "key_env": "TWO_API_KEY"},
		"near": {"dialect": "openai", "base_url": "http://127.0.0.1", "local": true}},
	"targets": {
		"able": {"provider": "one", "model": "able", "context": 20000, "max_output": 9000, "capabilities": ["tools", "thinking", "structured"], "usd_per_mtok": [{"input": "2", "output": "10"}]},
		"plain": {"provider": "two", "model": "plain", "context": 20000, "max_output": 9000, "usd_per_mtok": [{"input": "1", "output": "1"}]},
		"terse": {"provider": "two", "model": "terse", "context": 20000, "max_output": 999, "capabilities": ["tools"], "usd_per_mtok": [{"input": "1", "output": "1"}]},
		"narrow": {"provider": "two", "model": "narrow", "context": 3000, "max_output": 3000, "capabilities": ["tools"], "usd_per_mtok": [{"input": "1", "output": "1"}]},
		"unpriced": {"provider": "near", "model": "unpriced", "context": 20000, "max_output": 9000, "capabilities": ["tools"]}},
	"routes": {"default": {"targets": ["able", "plain", "terse", "narrow", "unpriced"]}}}`

func TestATargetThatCannotServeIsSkippedWithItsReason(t *testing.T) {
	t.Parallel()
	route, _ := parse(t, choice).Route("default")
	most := func(text string) *provider.Money {
		m, _ := provider.ParseMoney(text)
		return &m
	}
	for name, c := range map[string]struct {
		need   routes.Need
		keys   string
		usable []string
		why    map[string]string
		keyed  []string // that would do
	}{
		"all can": {routes.Need{InputTokens: 10, MaxOutput: 10}, "ONE_API_KEY TWO_API_KEY",
			[]string{"able", "plain", "terse", "narrow", "unpriced"}, nil, nil},
		"tools": {routes.Need{Tools: true, InputTokens: 10, MaxOutput: 10}, "ONE_API_KEY TWO_API_KEY",
			[]string{"able", "terse", "narrow", "unpriced"}, map[string]string{"plain": "capability: its capabilities lack " +
				"tools"}, nil},
		"all capabilities": {routes.Need{Tools: true, Thinking: true, Structured: true, InputTokens: 10, MaxOutput: 10},
			"ONE_API_KEY TWO_API_KEY", []string{"able"}, map[string]string{
				"plain":    "capability: its capabilities lack tools and thinking and structured",
				"terse":    "capability: its capabilities lack thinking and structured",
				"narrow":   "capability: its capabilities lack thinking and structured",
				"unpriced": "capability: its capabilities lack thinking and structured",
			}, nil},
		"a long input": {routes.Need{InputTokens: 2500, MaxOutput: 1000}, "ONE_API_KEY TWO_API_KEY",
			[]string{"able", "plain", "unpriced"}, map[string]string{
				"terse":  "context: its max_output is 999, and the request asks for 1000",
				"narrow": "context: its context is 3000 tokens, and the request needs some 2500 of input and 1000 of output",
			}, nil},
		"an input too long": {routes.Need{InputTokens: math.MaxInt32, MaxOutput: 9001}, "ONE_API_KEY TWO_API_KEY", nil,
			map[string]string{
				"able": "context: its max_output is 9000, and the request asks for 9001", "plain": "context: its max_output is " +
					"9000, and the request asks for 9001", "terse": "context: its max_output is 999, and the request asks for 9001",
				"narrow":   "context: its max_output is 3000, and the request asks for 9001",
				"unpriced": "context: its max_output is 9000, and the request asks for 9001",
			}, nil},
		"an output that just fits": {routes.Need{InputTokens: 2001, MaxOutput: 999}, "ONE_API_KEY TWO_API_KEY",
			[]string{"able", "plain", "terse", "narrow", "unpriced"}, nil, nil},
		"a cap": {routes.Need{InputTokens: 1000, MaxOutput: 500, MaxCost: most("0.0015")}, "ONE_API_KEY TWO_API_KEY",
			[]string{"plain", "terse", "narrow"}, map[string]string{
				"able":     "cost: the request may cost 0.007 USD, and the call may cost at most 0.0015 USD",
				"unpriced": "price: it has no price, and the call may cost at most 0.0015 USD",
			}, nil},
		"one key": {routes.Need{InputTokens: 10, MaxOutput: 10}, "TWO_API_KEY",
			[]string{"plain", "terse", "narrow", "unpriced"}, map[string]string{"able": "key: ONE_API_KEY is not set"},
			[]string{"ONE_API_KEY"}},
		"no key": {routes.Need{Tools: true, InputTokens: 10, MaxOutput: 10, MaxCost: most("1")}, "", nil,
			map[string]string{"able": "key: ONE_API_KEY is not set", "plain": "capability: its capabilities lack tools",
				"terse": "key: TWO_API_KEY is not set", "narrow": "key: TWO_API_KEY is not set",
				"unpriced": "price: it has no price, and the call may cost at most 1 USD"}, []string{"ONE_API_KEY", "TWO_API_KEY"}},
		"a key in vain": {routes.Need{Thinking: true, InputTokens: 99999, MaxOutput: 10}, "", nil,
			map[string]string{"able": "context: its context is 20000 tokens, and the request needs some 99999 of input and 10 " +
				"of output", "plain": "capability: its capabilities lack thinking", "terse": "capability: its capabilities lack " +
				"thinking", "narrow": "capability: its capabilities lack thinking",
				"unpriced": "capability: its capabilities lack thinking"}, nil},
		"nothing is left": {routes.Need{InputTokens: 1, MaxOutput: 1, MaxCost: most("0")}, "ONE_API_KEY TWO_API_KEY", nil,
			map[string]string{"able": "cost: the request may cost 0.000012 USD, and the call may cost at most 0 USD",
				"plain":    "cost: the request may cost 0.000002 USD, and the call may cost at most 0 USD",
				"terse":    "cost: the request may cost 0.000002 USD, and the call may cost at most 0 USD",
				"narrow":   "cost: the request may cost 0.000002 USD, and the call may cost at most 0 USD",
				"unpriced": "price: it has no price, and the call may cost at most 0 USD"}, nil},
	} {
		usable, skipped := routes.Usable(route, c.need,
			func(variable string) bool { return strings.Contains(c.keys, variable) }, nothingSeen)
		why := map[string]string{}
		for _, s := range skipped {
			why[s.Target.Name] = string(s.Lack) + ": " + s.Why
		}
		if c.why == nil {
			c.why = map[string]string{}
		}
		if diff := cmp.Diff(c.usable, names(usable)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.why, why); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(c.keyed, routes.MissingKeys(skipped)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTheLowerOfTwoCapsHolds(t *testing.T) {
	t.Parallel()
	route, _ := parse(t, strings.Replace(choice, `["able", "plain", "terse", "narrow", "unpriced"]}`,
		`["able", "plain"], "max_cost_usd": "0.002"}`, 1)).Route("default")
	for text, want := range map[string][]string{"": {"plain"}, "1": {"plain"}, "0.001": nil} {
		need := routes.Need{InputTokens: 1000, MaxOutput: 500}
		if m, err := provider.ParseMoney(text); err == nil {
			need.MaxCost = &m
		}
		if usable, _ := routes.Usable(route, need, allKeys, nothingSeen); !slices.Equal(names(usable), want) {
			t.Errorf("%q: got %q, want %q", text, names(usable), want)
		}
	}
}

// ordered has the same three targets in every order.
func ordered(t *testing.T, order string) *routes.Route {
	t.Helper()
	route, _ := parse(t, file(map[string]string{
		"targets": `{"a": {"provider": "p", "model": "a", "context": 100000, "max_output": 10000, "usd_per_mtok": [{"input": "3", "output": "15"}]},
			"b": {"provider": "p", "model": "b", "context": 100000, "max_output": 10000, "usd_per_mtok": [{"input": "1", "output": "30"}]},
			"c": {"provider": "p", "model": "c", "context": 100000, "max_output": 10000}}`,
		"routes": `{"default": {"targets": ["c", "b", "a"], ` + order + `}}`,
	})).Route("default")
	return route
}

func TestTheOrderOfTheTargets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order string
		need  routes.Need
		seen  map[string]routes.Stats
		want  []string
	}{
		"as listed": {`"order": "listed"`, routes.Need{InputTokens: 1, MaxOutput: 1},
			map[string]routes.Stats{"a": {Samples: 9, TokensPerSecond: 100}}, []string{"c", "b", "a"}},
		"cheap for a long input": {`"order": "cheapest"`, routes.Need{InputTokens: 10000, MaxOutput: 100}, nil,
			[]string{"b", "a", "c"}},
		"cheap for a long output": {`"order": "cheapest"`, routes.Need{InputTokens: 10000, MaxOutput: 5000}, nil,
			[]string{"a", "b", "c"}},
		"cheap as answers are short": {`"order": "cheapest"`, routes.Need{InputTokens: 10000, MaxOutput: 5000},
			map[string]routes.Stats{"b": {Samples: 1, MeanOutput: 100}}, []string{"b", "a", "c"}},
		"cheap as its tokens are few": {`"order": "cheapest"`, routes.Need{InputTokens: 10000, MaxOutput: 100},
			map[string]routes.Stats{"a": {InputRatio: 0.3}}, []string{"a", "b", "c"}},
		"alike": {`"order": "cheapest"`, routes.Need{}, nil, []string{"b", "a", "c"}},
		"fast": {`"order": "fastest"`, routes.Need{InputTokens: 1, MaxOutput: 1000},
			map[string]routes.Stats{"a": {Samples: 3, FirstContentMS: 900, TokensPerSecond: 100},
				"b": {Samples: 3, FirstContentMS: 100, TokensPerSecond: 50},
				"c": {Samples: 3, FirstContentMS: 100, TokensPerSecond: 10}}, []string{"a", "b", "c"}},
		"fast for a short answer": {`"order": "fastest"`, routes.Need{InputTokens: 1, MaxOutput: 10},
			map[string]routes.Stats{"a": {Samples: 3, FirstContentMS: 900, TokensPerSecond: 100},
				"b": {Samples: 3, FirstContentMS: 100, TokensPerSecond: 50},
				"c": {Samples: 3, FirstContentMS: 100, TokensPerSecond: 10}}, []string{"b", "a", "c"}},
		"nothing known of any": {`"order": "fastest"`, routes.Need{InputTokens: 1, MaxOutput: 1000}, nil,
			[]string{"c", "b", "a"}},
		"too little known of some, to know": {`"order": "fastest"`, routes.Need{InputTokens: 1, MaxOutput: 1000},
			map[string]routes.Stats{"c": {Samples: 3, FirstContentMS: 1, TokensPerSecond: 1000},
				"b": {Samples: 2, FirstContentMS: 1, TokensPerSecond: 1}}, []string{"b", "a", "c"}},
		"no speed known": {`"order": "fastest"`, routes.Need{InputTokens: 1, MaxOutput: 1000},
			map[string]routes.Stats{"a": {Samples: 3, FirstContentMS: 5, TokensPerSecond: math.NaN()}}, []string{"c", "b", "a"}},
	} {
		usable, _ := routes.Usable(ordered(t, c.order), c.need, allKeys,
			func(target string) routes.Stats { return c.seen[target] })
		if diff := cmp.Diff(c.want, names(usable)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTargetsThatAreAlikeStayAsListed(t *testing.T) {
	t.Parallel()
	for _, order := range []routes.Order{routes.Listed, routes.Cheapest, routes.Fastest} {
		route := &routes.Route{Order: order}
		for range 16 {
			route.Targets = append(route.Targets, &routes.Target{Name: "alike", Provider: &routes.Provider{}, Context: 10,
				MaxOutput: 10,
				Prices:    []provider.Price{{Input: 1, Output: 1}}})
		}
		usable, _ := routes.Usable(route, routes.Need{InputTokens: 1, MaxOutput: 1}, allKeys, nothingSeen)
		for i, c := range usable {
			if c.Target != route.Targets[i] {
				t.Errorf("%s: target %d is at another place", order, i)
			}
		}
	}
}

func TestACallIsDrawnOnceAndManyInProportion(t *testing.T) {
	t.Parallel()
	route := ordered(t, `"order": "weighted", "weights": {"a": 6, "b": 3}`)
	first, second := map[string]int{}, map[string]int{}
	const calls = 10_000
	for i := range calls {
		need := routes.Need{InputTokens: 1, MaxOutput: 1, CallID: fmt.Sprint("call ", i)}
		usable, _ := routes.Usable(route, need, allKeys, nothingSeen)
		if again, _ := routes.Usable(route, need, allKeys, nothingSeen); !slices.Equal(names(usable), names(again)) {
			t.Fatalf("call %d: got %q, and then %q", i, names(usable), names(again))
		}
		first[usable[0].Target.Name]++
		if usable[0].Target.Name == "a" {
			second[usable[1].Target.Name]++
		}
	}
	for _, c := range []struct {
		what string
		got  int
		want float64
	}{{"a first", first["a"], calls * .6}, {"b first", first["b"], calls * .3}, {"c first", first["c"], calls * .1},
		{"b after a", second["b"], float64(first["a"]) * .75}} {
		if math.Abs(float64(c.got)-c.want) > calls*.02 {
			t.Errorf("%s: %d times, not some %.0f", c.what, c.got, c.want)
		}
	}
}

func TestAnEstimateIsCorrectedByWhatWasSeen(t *testing.T) {
	t.Parallel()
	if got := []int{routes.Estimate(0), routes.Estimate(1), routes.Estimate(3), routes.Estimate(4)}; !slices.Equal(got,
		[]int{0, 1, 1, 2}) {
		t.Errorf("got %v", got)
	}
	route := ordered(t, `"order": "listed"`)
	for ratio, want := range map[float64]int{0: 1000, 0.8: 800, 1.0001: 1001, 9: 4000, 0.001: 250, -1: 1000,
		math.Inf(1): 4000} {
		usable, _ := routes.Usable(route, routes.Need{InputTokens: 1000, MaxOutput: 1}, allKeys,
			func(string) routes.Stats { return routes.Stats{InputRatio: ratio} })
		if got := usable[0].InputTokens; got != want {
			t.Errorf("%v: got %d, want %d", ratio, got, want)
		}
	}
}

func TestTheReserveIsOfTheDearestInput(t *testing.T) {
	t.Parallel()
	for cached, want := range map[string]string{"": "0.002", `, "cache_read": "0.3", "cache_write": "3.75"`: "0.00475",
		`, "cache_read": "2"`: "0.003", `, "cache_write": "0.5"`: "0.002", `, "cache_read": "5"`: "0.006"} {
		text := strings.Replace(choice, `{"input": "2", "output": "10"}`, `{"input": "1", "output": "10"`+cached+`}`, 1)
		route, _ := parse(t, text).Route("default")
		usable, _ := routes.Usable(route, routes.Need{InputTokens: 1000, MaxOutput: 100}, allKeys, nothingSeen)
		if got := usable[0].Reserve.String(); got != want {
			t.Errorf("%s: got %s, want %s", cached, got, want)
		}
	}
}

// drawMoney draws prices, many of them equal or zero.
func drawMoney(t *rapid.T, name string) provider.Money {
	return provider.Money(rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 5),
		rapid.Int64Range(0, int64(10_000*provider.USD))).Draw(t, name))
}

func drawPrices(t *rapid.T) (all []provider.Price) {
	above := int64(0)
	for range rapid.IntRange(0, 4).Draw(t, "tiers") {
		p := provider.Price{AboveInput: above, Input: drawMoney(t, "input"), Output: drawMoney(t, "output")}
		if rapid.Bool().Draw(t, "cached") {
			read, write := drawMoney(t, "cache read"), drawMoney(t, "cache write")
			p.CacheRead, p.CacheWrite = &read, &write
		}
		all = append(all, p)
		above += rapid.Int64Range(1, 300_000).Draw(t, "next")
	}
	return all
}

func drawRoute(t *rapid.T) *routes.Route {
	r := &routes.Route{Order: rapid.SampledFrom([]routes.Order{routes.Listed, routes.Cheapest, routes.Fastest,
		routes.Weighted}).Draw(t, "order")}
	for i := range rapid.IntRange(1, 5).Draw(t, "targets") {
		a := &routes.Target{
			Name: fmt.Sprint("target", i), Model: fmt.Sprint("m", i), Context: rapid.IntRange(1, 2_000_000).Draw(t, "context"),
			Prices:   drawPrices(t),
			Provider: &routes.Provider{KeyEnv: rapid.SampledFrom([]string{"", "A_API_KEY", "B_API_KEY"}).Draw(t, "key")},
			Tools:    rapid.Bool().Draw(t, "tools"), Thinking: rapid.Bool().Draw(t, "thinking"),
			Structured: rapid.Bool().Draw(t, "structured"),
		}
		a.MaxOutput = rapid.IntRange(1, a.Context).Draw(t, "max_output")
		r.Targets = append(r.Targets, a)
		if r.Order == routes.Weighted {
			r.Weights = append(r.Weights, rapid.IntRange(1, 1000).Draw(t, "weight"))
		}
	}
	return r
}

func drawNeed(t *rapid.T) routes.Need {
	n := routes.Need{
		Tools: rapid.Bool().Draw(t, "needs tools"), Structured: rapid.Bool().Draw(t, "needs structured"),
		InputTokens: rapid.IntRange(0, 500_000).Draw(t, "input tokens"),
		MaxOutput:   rapid.IntRange(1, 130_000).Draw(t, "output tokens"), CallID: rapid.String().Draw(t, "call"),
	}
	if rapid.Bool().Draw(t, "capped") {
		most := drawMoney(t, "cap")
		n.MaxCost = &most
	}
	return n
}

func drawStats(t *rapid.T, r *routes.Route) func(string) routes.Stats {
	figure := rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 10), rapid.Float64(), rapid.Just(math.NaN()))
	seen := map[string]routes.Stats{}
	for _, a := range r.Targets {
		seen[a.Name] = routes.Stats{
			Samples: rapid.IntRange(0, 6).Draw(t, "samples"), InputRatio: figure.Draw(t, "ratio"),
			MeanOutput:     figure.Draw(t, "mean"),
			FirstContentMS: figure.Draw(t, "first content"), TokensPerSecond: figure.Draw(t, "speed"),
		}
	}
	return func(target string) routes.Stats { return seen[target] }
}

func TestAnyUsageWithinTheEstimateCostsNoMoreThanTheReserve(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, need := drawRoute(t), drawNeed(t)
		usable, _ := routes.Usable(r, need, allKeys, drawStats(t, r))
		for _, c := range usable {
			u := provider.Usage{Input: rapid.Int64Range(0, int64(c.InputTokens)).Draw(t, "used input"),
				Output: rapid.Int64Range(0, int64(need.MaxOutput)).Draw(t, "used output")}
			u.CacheRead = rapid.Int64Range(0, u.Input).Draw(t, "read")
			u.CacheWrite = rapid.Int64Range(0, u.Input-u.CacheRead).Draw(t, "written")
			cost, known := provider.Cost(c.Target.Prices, u)
			if known != c.ReserveKnown || cost > c.Reserve {
				t.Fatalf("%+v costs %s, and %s was reserved", u, cost, c.Reserve)
			}
		}
	})
}

func TestEachTargetIsUsableOrSkippedAndTheOrderIsOfTheUsable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, need := drawRoute(t), drawNeed(t)
		stats := drawStats(t, r)
		hasKey := func(variable string) bool { return variable == "A_API_KEY" }
		usable, skipped := routes.Usable(r, need, hasKey, stats)
		got := names(usable)
		for _, s := range skipped {
			got = append(got, s.Target.Name)
			if s.Why == "" || s.Lack == "" {
				t.Fatalf("%s is skipped without a reason", s.Target.Name)
			}
		}
		var want []string
		for _, a := range r.Targets {
			want = append(want, a.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for i, c := range usable {
			switch {
			case need.Tools && !c.Target.Tools, need.Structured && !c.Target.Structured,
				c.InputTokens+need.MaxOutput > c.Target.Context,
				c.Provider.KeyEnv == "B_API_KEY":
				t.Fatalf("%s cannot serve", c.Target.Name)
			case need.MaxCost != nil && (!c.ReserveKnown || c.Reserve > *need.MaxCost):
				t.Fatalf("%s may cost %s of %s", c.Target.Name, c.Reserve, need.MaxCost)
			case i == 0:
				continue
			}
			before := usable[i-1]
			if r.Order == routes.Listed && slices.Index(r.Targets, before.Target) > slices.Index(r.Targets, c.Target) {
				t.Fatal("not as listed")
			}
			if r.Order == routes.Cheapest && !before.ReserveKnown && c.ReserveKnown {
				t.Fatal("a target without a price comes before one that has one")
			}
			seen := stats(before.Target.Name)
			if r.Order == routes.Fastest && stats(c.Target.Name).Samples < 3 && seen.Samples >= 3 && seen.FirstContentMS >= 0 &&
				seen.TokensPerSecond > 0 {
				t.Fatal("a target that is not known comes after one that is")
			}
		}
		// What one target lacks does not change the order of the others.
		if len(skipped) > 0 {
			fewer := *r
			fewer.Targets, fewer.Weights = nil, nil
			for i, a := range r.Targets {
				if slices.Contains(names(usable), a.Name) {
					fewer.Targets = append(fewer.Targets, a)
					if r.Weights != nil {
						fewer.Weights = append(fewer.Weights, r.Weights[i])
					}
				}
			}
			alone, _ := routes.Usable(&fewer, need, hasKey, stats)
			if !slices.Equal(names(alone), names(usable)) {
				t.Fatalf("got %q, and without the others %q", names(usable), names(alone))
			}
		}
	})
}

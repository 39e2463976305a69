//go:build !windows

package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// models are providers of models. They answer with the id of the call and the number of the request, and fail at
// random.
type models struct{ server *llmtest.Server }

// maxOutput is the maximum of tokens in an answer. At the prices below they cost 0.01 USD.
const maxOutput = 1000

// targets maps the models to their dialects. Each has its name as its path. The model dead does not exist, and east
// accepts few requests at once.
var targets = map[string]llmtest.Dialect{
	"dead": llmtest.OpenAI, "east": llmtest.OpenAI, "west": llmtest.Anthropic, "south": llmtest.Gemini,
	"north": llmtest.OpenAI, "center": llmtest.Anthropic,
}

// chatRoutes are the routes that calls use.
var chatRoutes = map[string][]string{"default": {"dead", "east", "west", "south", "center"},
	"other": {"north", "south", "east", "center"}}

// failures are the possible faults of a request, with weights that sum to a hundred.
var failures = []struct {
	fault  llmtest.Fault
	weight int
}{
	{llmtest.Fault{}, 76},
	{llmtest.Limited(50*time.Millisecond, llmtest.InMilliseconds), 4},
	{llmtest.Status(500), 2}, {llmtest.Status(503), 2}, {llmtest.Status(400), 2}, {llmtest.Status(413), 1},
	{llmtest.Fault{Kind: llmtest.ErrorFirst}, 1}, {llmtest.Fault{Kind: llmtest.Silent}, 1},
	{llmtest.After(-1, llmtest.Reset), 2},
	{llmtest.After(2, llmtest.ErrorLate), 1}, {llmtest.After(2, llmtest.CleanCut), 2},
	{llmtest.After(3, llmtest.Broken), 1}, {llmtest.After(1, llmtest.Stalled), 1},
	{llmtest.Fault{Kind: llmtest.NoUsage}, 2}, {llmtest.Fault{Kind: llmtest.FinishedTwice}, 2},
}

func startModels(seed uint64, fail bool) *models {
	return &models{llmtest.New(llmtest.Options{Answer: func(asked *llmtest.Request) llmtest.Script {
		r := rand.New(rand.NewPCG(seed, uint64(asked.N)))
		s := llmtest.Say(fmt.Sprintf("%s %d", callOf(asked), asked.N))
		s.Usage = &provider.Usage{Input: int64(1 + r.IntN(8)), Output: int64(1 + r.IntN(maxOutput)), Known: true}
		if !fail {
			return s
		}
		s.Delay = between(r, 0, 40*time.Millisecond)
		at := r.IntN(100)
		for _, f := range failures {
			if at -= f.weight; at < 0 {
				s.Fault = f.fault
				break
			}
		}
		if targetOf(asked) == "dead" {
			s.Fault = llmtest.Status(404)
		}
		return s
	}})}
}

// callOf returns the call of a request, whose message contains only the call's id.
func callOf(r *llmtest.Request) string {
	if len(r.Asked.Messages) == 0 || len(r.Asked.Messages[0].Content) == 0 {
		return ""
	}
	return r.Asked.Messages[0].Content[0].Text
}

func targetOf(r *llmtest.Request) string {
	target, _, _ := strings.Cut(strings.TrimPrefix(r.Path, "/"), "/")
	return target
}

// routes returns the routes file. The budget of a session covers some of its calls.
func (m *models) routes() string {
	type object = map[string]any
	providers, all, routes := object{}, object{}, object{}
	for name, dialect := range targets {
		providers[name] = object{"dialect": dialect, "base_url": m.server.BaseURL(dialect, "/"+name), "local": true}
		target := object{"provider": name, "model": "model-" + name, "context": 100_000, "max_output": 10_000,
			"first_content_s": 1, "idle_s": 1,
			"usd_per_mtok": []any{object{"input": "1", "output": "10", "cache_write": "1"}}}
		if name == "east" {
			target["max_concurrent"] = 3
		}
		all[name] = target
	}
	for name, targets := range chatRoutes {
		routes[name] = object{"targets": targets}
	}
	return encode(object{"version": "1", "providers": providers, "targets": all, "routes": routes, "budgets": []any{
		object{"name": "all", "scope": "all", "period": "month", "usd": "1000"},
		object{"name": "session", "scope": "session", "period": "month", "usd": "0.03"}}})
}

// request is a request that has reached a provider.
type request struct {
	n             int
	call, target  string
	input, output int64
}

func (m *models) asked() (all []request) {
	for _, r := range m.server.Requests() {
		all = append(all, request{r.N, callOf(&r), targetOf(&r), r.Usage.Input, r.Usage.Output})
	}
	return all
}

package llm_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/llm/llmtest"
)

// hostile adds an arm whose provider answers with a body, whatever it is asked.
func (s *scene) hostile(t *testing.T, name string, d llmtest.Dialect, body string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	s.arm(name, d, nil).route(name, name)
	s.providers[name].(object)["base_url"] = server.URL
}

// A provider that says that it took all tokens there are is believed only so far that the call ends, and that what was spent can be added up.
func TestAUsageBeyondAllSenseIsBounded(t *testing.T) {
	t.Parallel()
	const most = "9223372036854775807"
	openAI := func(usage string) string {
		return `data: {"model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}],"usage":` + usage + "}\n\n"
	}
	anthropic := func(usage string) string {
		return `data: {"type":"message_start","message":{"id":"1","model":"m","usage":` + usage + `}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"hi"}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":` + usage + `}

data: {"type":"message_stop"}

`
	}
	s := newScene(t)
	price := []any{object{"input": "10000", "output": "10000"}}
	for name, body := range map[string]string{
		"o_both":   openAI(`{"prompt_tokens":` + most + `,"completion_tokens":` + most + `}`),
		"o_sum":    openAI(`{"prompt_tokens":1,"completion_tokens":` + most + `,"total_tokens":-` + most + `,"completion_tokens_details":{"reasoning_tokens":` + most + `}}`),
		"a_caches": anthropic(`{"input_tokens":` + most + `,"output_tokens":` + most + `,"cache_read_input_tokens":` + most + `,"cache_creation_input_tokens":` + most + `}`),
	} {
		d := llmtest.OpenAI
		if name[0] == 'a' {
			d = llmtest.Anthropic
		}
		s.hostile(t, name, d, body)
		s.arms[name].(object)["usd_per_mtok"] = price
	}
	s.hostile(t, "a_none", llmtest.Anthropic, anthropic(`{"input_tokens":1e999,"output_tokens":5}`))
	s.budget("of_arm", "arm", "900000000")
	env := s.start(t)
	ask := func(arm string) handlertest.Call { return asks("hello", object{"route": arm, "max_output_tokens": 1}) }
	for _, arm := range []string{"o_both", "o_sum", "a_caches"} {
		for range 2 { // of which the second must find room in what was spent
			got := succeeded(t, env.Run(ask(arm)))
			if got.Usage.Input < 0 || got.Usage.Output != 1_000_000_000 || got.Usage.Cost == nil || *got.Usage.Cost != "1000000" {
				t.Errorf("%s: %+v, %s", arm, got.Usage, *got.Usage.Cost)
			}
		}
	}
	if got := succeeded(t, env.Run(ask("a_none"))); got.Usage.Source != "estimated" || got.Usage.Input == 0 {
		t.Errorf("a figure that is none: %+v", got.Usage)
	}
	if r := env.Run(tool("llm.usage")); r.Status != "succeeded" {
		t.Errorf("%s", r.Result)
	}
}

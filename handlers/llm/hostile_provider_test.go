package llm_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// hostile adds a target whose provider answers with a body, whatever it is asked.
func (s *scene) hostile(t *testing.T, name string, d llmtest.Dialect, body string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	s.target(name, d, nil).route(name, name)
	s.providers[name].(object)["base_url"] = server.URL
}

// If a provider reports more tokens than a request can have, its usage is cut to what the request can explain.
func TestAUsageBeyondAllSenseIsBounded(t *testing.T) {
	t.Parallel()
	const most = "9223372036854775807"
	openAI := func(usage string) string {
		return `data: {"model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}],"usage":` + usage +
			"}\n\n"
	}
	anthropic := func(usage string) string {
		return `data: {"type":"message_start","message":{"id":"1","model":"m","usage":` + usage + `}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"hi"}}

data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":` + usage + `}

data: {"type":"message_stop"}

`
	}
	gemini := func(usage string) string {
		return `data: {"candidates":[{"content":{"parts":[{"text":"hi"}]},"finishReason":"STOP"}],"usageMetadata":` + usage +
			"}\n\n"
	}
	s := newScene(t)
	price := []any{object{"input": "10000", "output": "10000"}}
	for name, body := range map[string]string{
		"o_both": openAI(`{"prompt_tokens":` + most + `,"completion_tokens":` + most + `}`),
		"o_sum": openAI(`{"prompt_tokens":1,"completion_tokens":` + most + `,"total_tokens":-` + most +
			`,"completion_tokens_details":{"reasoning_tokens":` + most + `}}`),
		"o_huge": openAI(`{"prompt_tokens":1e400,"completion_tokens":1.5e300,"total_tokens":-1e400}`),
		"o_cached": openAI(`{"prompt_tokens":` + most +
			`,"completion_tokens":1000000,"prompt_tokens_details":{"cached_tokens":` + most + `}}`),
		"a_caches": anthropic(`{"input_tokens":` + most + `,"output_tokens":` + most + `,"cache_read_input_tokens":` + most +
			`,"cache_creation_input_tokens":` + most + `}`),
		"a_huge": anthropic(`{"input_tokens":1e999,"output_tokens":1e18}`),
		"g_most": gemini(
			`{"promptTokenCount":2147483647,"candidatesTokenCount":2147483647,"thoughtsTokenCount":2147483647}`),
	} {
		d := map[byte]llmtest.Dialect{'o': llmtest.OpenAI, 'a': llmtest.Anthropic, 'g': llmtest.Gemini}[name[0]]
		s.hostile(t, name, d, body)
		s.targets[name].(object)["usd_per_mtok"] = price
		s.targets[name].(object)["cache"] = "off"
	}
	s.hostile(t, "o_sane", llmtest.OpenAI, openAI(`{"prompt_tokens":-7,"completion_tokens":2.5}`))
	s.budget("of_all", "all", "1000")
	env := s.start(t)
	ask := func(target string) handlertest.Call {
		return asks("hello", object{"route": target, "max_output_tokens": 3})
	}
	for _, target := range []string{"o_both", "o_sum", "o_huge", "o_cached", "a_caches", "a_huge", "g_most"} {
		for range 2 { // the second must find room in what was spent
			r := env.Run(ask(target))
			got := succeeded(t, r)
			if got.Usage.Input > 4200 || got.Usage.Output != 3 || got.Usage.Cost == nil || got.Usage.Source != "provider" {
				t.Errorf("%s: %+v", target, got.Usage)
			}
			if !strings.Contains(string(r.Effects), `"usage_bounded": true`) {
				t.Errorf("%s: the receipt does not say so: %s", target, r.Effects)
			}
		}
	}
	if got := succeeded(t, env.Run(ask("o_sane"))); got.Usage.Source != "provider" || got.Usage.Input != 0 ||
		got.Usage.Output != 3 {
		t.Errorf("a usage that the request explains: %+v", got.Usage)
	}
	if r := env.Run(tool("llm.usage")); r.Status != "succeeded" {
		t.Errorf("%s", r.Result)
	}
	var spent, dearest, bounded int64
	err := env.DB.QueryRow(t.Context(), `select (select sum(spent) from gem.llm_spend), max(cost),
		count(*) filter (where (reported ->> 'output_tokens')::numeric >= 1000000)
		from core_llm_requests`).Scan(&spent, &dearest, &bounded)
	if err != nil || spent > 15*45_000_000_000 || dearest > 45_000_000_000 || bounded != 14 {
		t.Errorf("all cost %d, the dearest %d, and %d are noted as bounded (%v)", spent, dearest, bounded, err)
	}
}

// Of an answer that breaks off, the output is estimated; its input is believed no further than that of a whole answer.
func TestAUsageBeyondAllSenseIsBoundedOfAnAnswerThatBreaksOff(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for name, body := range map[string]string{
		"a_cut": `data: {"type":"message_start","message":{"id":"1","model":"m","usage":{"input_tokens":1000000000000000000,"output_tokens":0}}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello hello hello"}}

`,
		"g_cut": `data: {"candidates":[{"content":{"parts":[{"text":"hello hello hello"}]}}],"usageMetadata":{"promptTokenCount":2147483647}}

`,
	} {
		s.hostile(t, name, map[byte]llmtest.Dialect{'a': llmtest.Anthropic, 'g': llmtest.Gemini}[name[0]], body)
		s.targets[name].(object)["usd_per_mtok"] = []any{object{"input": "10000", "output": "10000"}}
		s.targets[name].(object)["cache"] = "off"
	}
	s.budget("of_all", "all", "1000")
	env := s.start(t)
	for _, target := range []string{"a_cut", "g_cut"} {
		id := env.Insert(asks("hello", object{"route": target, "max_output_tokens": 3}))
		var input, cost int64
		var reported bool
		env.Until("its first request has ended", func() bool {
			return env.DB.QueryRow(t.Context(), `select input_tokens, cost, reported is not null from core_llm_requests
				where call_id = $1 and status = 'cut'`, id).Scan(&input, &cost, &reported) == nil
		})
		if input > 4200 || cost > 45_000_000_000 || !reported {
			t.Errorf("%s: %d tokens of input for %d, noted as bounded: %t", target, input, cost, reported)
		}
		if _, err := env.DB.Exec(t.Context(), "select cancel_tool_call($1)", id); err != nil {
			t.Error(err)
		}
	}
}

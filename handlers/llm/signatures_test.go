package llm_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
)

// What a redacted thought holds is in its signature, which the provider reads and charges: it must not pass a budget
// unseen.
func TestRedactedThoughtsCountInWhatARequestMayCost(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.Anthropic, nil).route("default", "a").budget("all", "all", "0.01")
	s.server.Always("", llmtest.Say("fine"))
	env := s.start(t)
	with := func(bytes int) object {
		thought := object{"type": "thinking", "redacted": true, "target": "a", "signature": strings.Repeat("s", bytes)}
		return object{"max_output_tokens": 100, "messages": []any{object{"role": "user", "content": "x"},
			object{"role": "assistant", "content": []any{thought}}, object{"role": "user", "content": "y"}}}
	}
	failedWith(t, env.Run(tool("llm.chat", with(90_000))), "budget_exceeded")
	succeeded(t, env.Run(tool("llm.chat", with(900))))
	if n := len(s.server.Requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

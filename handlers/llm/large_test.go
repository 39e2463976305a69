package llm_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
)

// An answer of less than 1 MiB may take more as JSON, and is in a result twice.
func TestAnAnswerThatIsTooLargeForItsResultIsPaidAndSaysSo(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	body := func(piece string, times int) string {
		return strings.Repeat(`data: {"model":"m","choices":[{"index":0,"delta":{"content":"`+piece+`"}}]}`+"\n\n", times) +
			`data: {"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5}}` + "\n\n"
	}
	s.hostile(t, "escapes", llmtest.OpenAI, body(strings.Repeat(`\u0001`, 100_000), 10))
	s.hostile(t, "twice", llmtest.OpenAI, body(strings.Repeat("x", 100_000), 7))
	s.hostile(t, "fits", llmtest.OpenAI, body(strings.Repeat("x", 100_000), 5))
	env := s.start(t)
	for target, status := range map[string]string{"escapes": "cut", "twice": "done"} {
		r := env.Run(asks("hello", object{"route": target}))
		failedWith(t, r, "answer_too_large")
		if all := external(t, r); len(all) != 1 || all[0].LLM.Outcome != status {
			t.Errorf("%s: %+v", target, all)
		}
		var unpaid int
		if err := env.DB.QueryRow(t.Context(), "select count(*) from core_llm_requests where target = $1 and cost is "+
			"distinct "+
			"from 20000", target).Scan(&unpaid); err != nil || unpaid != 0 {
			t.Errorf("%s: %d are not reckoned, %v", target, unpaid, err)
		}
	}
	if got := succeeded(t, env.Run(asks("hello", object{"route": "fits"}))); len(got.Text) != 500_000 {
		t.Error(len(got.Text))
	}
}

// An output that fits its schema may have more values than the check of a result takes, or be longer as Postgres prints
// it.
func TestAnOutputThatIsTooLargeForItsResultIsPaidAndSaysSo(t *testing.T) {
	t.Parallel()
	s := newScene(t).target("a", llmtest.OpenAI, nil).route("default", "a")
	env := s.start(t)
	list := object{"schema": object{"type": "object", "properties": object{"n": object{"type": "array"}}}}
	for name, text := range map[string]string{
		"many values":  `{"n":[` + strings.Repeat("1,", 250_000) + `1]}`,
		"long numbers": `{"n":[` + strings.Repeat("1e308,", 4_000) + `1]}`,
	} {
		s.server.Always("/a", llmtest.Say(text))
		r := env.Run(structured(list))
		if got := failedWith(t, r, "answer_too_large"); got.Usage.Cost == nil {
			t.Errorf("%s: %+v", name, got.Usage)
		}
	}
}

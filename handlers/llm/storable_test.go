package llm_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/llmtest"
)

func quoted(text string) string {
	encoded, _ := json.Marshal(text)
	return string(encoded)
}

// The bodies of answers in the dialects. text and name are inside of a JSON string, arguments are JSON.
func saying(d llmtest.Dialect, text, name, arguments string) string {
	switch d {
	case llmtest.Anthropic:
		return `data: {"type":"message_start","message":{"id":"1","model":"m","usage":{"input_tokens":10,"output_tokens":1}}}

data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"` + text + `"}}

data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"` + name + `","name":"` + name + `","input":{}}}

data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":` + quoted(arguments) + `}}

data: {"type":"content_block_stop","index":1}

data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":5}}

data: {"type":"message_stop"}

`
	case llmtest.Gemini:
		return `data: {"modelVersion":"m","candidates":[{"content":{"parts":[{"text":"` + text +
			`"},{"functionCall":{"name":"` + name + `","args":` + arguments +
			`}}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":5}}` + "\n\n"
	case llmtest.OpenAI:
	}
	return `data: {"model":"m","choices":[{"index":0,"delta":{"content":"` + text + `","tool_calls":[{"index":0,"id":"` +
		name + `","function":{"name":"` + name +
		`","arguments":` + quoted(arguments) +
		`}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5}}` + "\n\n"
}

// What a model writes is paid. NUL and half of a surrogate pair, which Postgres does not take, must not cost it.
func TestAnAnswerThatPostgresDoesNotTakeIsMadeFit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.budget("all", "all", "1000")
	arguments := map[string]string{"nul": `{"a":"\u0000"}`, "half": `{"a":"\ud800"}`, "low": `{"a":"\udc00x"}`,
		"key":  `{"\u0000":1}`,
		"deep": `{"a":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, "number": `{"a":1e130000}`}
	type script struct{ target, raw string }
	var all []script
	for _, d := range llmtest.Dialects {
		for name, raw := range arguments {
			target := string(d[:1]) + "_" + name
			s.hostile(t, target, d, saying(d, `a\u0000b`, `n\u0000`, raw))
			all = append(all, script{target, raw})
		}
		s.hostile(t, string(d[:1])+"_good", d, saying(d, `a\ud83d\ude00`, "n", `{"a":"\ud83d\ude00 \\u0000","b":-1.5e3}`))
	}
	env := s.start(t)
	for _, script := range all {
		got := succeeded(t, env.Run(asks("hello", object{"route": script.target})))
		if got.Text != "a\uFFFDb" || len(got.ToolCalls) != 1 || got.ToolCalls[0].Name != "n\uFFFD" ||
			string(got.ToolCalls[0].Arguments) != "{}" ||
			got.ToolCalls[0].Raw != script.raw || len(got.ToolCalls[0].Faults) == 0 {
			t.Errorf("%s: %.300q %+v", script.target, got.Text, got.ToolCalls)
		}
		if got.Usage.Cost == nil || *got.Usage.Cost != "0.00002" || got.Usage.Call.Unknown != 0 {
			t.Errorf("%s: %+v", script.target, got.Usage)
		}
	}
	for _, d := range llmtest.Dialects {
		got := succeeded(t, env.Run(asks("hello", object{"route": string(d[:1]) + "_good"})))
		if got.Text != "a😀" || got.ToolCalls[0].Raw != "" {
			t.Errorf("%s: %q %+v", d, got.Text, got.ToolCalls)
		}
		var read struct {
			A string
			B float64
		}
		if err := json.Unmarshal(got.ToolCalls[0].Arguments, &read); err != nil || read.A != "😀 \\u0000" || read.B != -1500 {
			t.Errorf("%s: %s, %v", d, got.ToolCalls[0].Arguments, err)
		}
	}
}

package llm_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/aimock"
)

// foreign are the dialects as aimock has them: where their paths begin, and how each reports the usage of a request: 31
// tokens in, 17 out.
var foreign = []struct {
	name, base string
	usage      map[string]int
}{
	{"openai", "/v1", map[string]int{"prompt_tokens": 31, "completion_tokens": 17}},
	{"anthropic", "", map[string]int{"input_tokens": 31, "output_tokens": 17}},
	{"gemini", "", map[string]int{"promptTokenCount": 31, "candidatesTokenCount": 17}},
}

const foreignKey = "a key for the other server"

// startForeign starts a worker whose routes lead to a server of other people's making: a route for each dialect, and
// "DIALECT_first" with a second target, whose model is "second".
func startForeign(t *testing.T, fixture func(model string, usage map[string]int) []aimock.Fixture) *handlertest.Env {
	t.Helper()
	s := &scene{providers: object{}, targets: object{}, routes: object{},
		keys: map[string]string{"FOREIGN_API_KEY": foreignKey}}
	var fixtures []aimock.Fixture
	for _, d := range foreign {
		fixtures = append(fixtures, fixture("model-"+d.name, d.usage)...)
		fixtures = append(fixtures, aimock.Fixture{Match: aimock.Match{Model: "second-" + d.name},
			Response: aimock.Response{Content: "from the second", Usage: d.usage}})
	}
	server := aimock.Start(t, aimock.Options{Key: foreignKey, Fixtures: fixtures})
	for _, d := range foreign {
		s.providers[d.name] = object{"dialect": d.name, "base_url": server.URL + d.base, "local": true,
			"key_env": "FOREIGN_API_KEY"}
		for target, model := range map[string]string{d.name: "model-" + d.name, "second_" + d.name: "second-" + d.name} {
			s.targets[target] = object{"provider": d.name, "model": model, "context": 100_000, "max_output": 10_000,
				"capabilities": []string{"tools", "thinking", "structured"},
				"usd_per_mtok": []any{object{"input": "1", "output": "2", "cache_write": "1"}}}
		}
		s.route(d.name, d.name).route(d.name+"_first", d.name, "second_"+d.name)
	}
	return s.start(t)
}

// one is a fixture of one response, whatever is asked of the model.
func one(r aimock.Response) func(string, map[string]int) []aimock.Fixture {
	return func(model string, usage map[string]int) []aimock.Fixture {
		if r.Error == nil {
			r.Usage = usage
		}
		return []aimock.Fixture{{Match: aimock.Match{Model: model}, Response: r, ChunkSize: 7}}
	}
}

func TestAServerOfOthersAnswersWithTextAndUsage(t *testing.T) {
	t.Parallel()
	env := startForeign(t, one(aimock.Response{Content: "Grüße, \"Ω\"\n\\ <end>"}))
	for _, d := range foreign {
		r := env.Run(asks("hello", object{"route": d.name, "system": "Be brief."}))
		got := succeeded(t, r)
		if got.Text != "Grüße, \"Ω\"\n\\ <end>" || got.Stop != "end_turn" || got.Usage.Input != 31 ||
			got.Usage.Output != 17 || got.Usage.Source != "provider" ||
			*got.Usage.Cost != "0.000065" || got.Usage.Call.Requests != 1 || got.Routing.Target != d.name {
			t.Errorf("%s: %s", d.name, r.Result)
		}
		if calls := external(t, r); len(calls) != 1 || calls[0].Status != 200 || calls[0].LLM.Outcome != "done" {
			t.Errorf("%s: %s", d.name, r.Effects)
		}
	}
}

func TestAServerOfOthersCallsToolsAndIsGivenTheirResults(t *testing.T) {
	t.Parallel()
	yes := true
	env := startForeign(t, func(model string, usage map[string]int) []aimock.Fixture {
		return []aimock.Fixture{
			{Match: aimock.Match{Model: model, HasToolResult: &yes},
				Response: aimock.Response{Content: "It rains.", Usage: usage}},
			{Match: aimock.Match{Model: model}, Response: aimock.Response{Usage: usage, ToolCalls: []aimock.ToolCall{
				{ID: "call_a", Name: "weather", Arguments: `{"where":"Zürich \"Hbf\""}`},
				{ID: "call_b", Name: "weather", Arguments: `{"day":2}`}}}, ChunkSize: 3},
		}
	})
	tools := object{"tools": []any{object{"name": "weather", "description": "tells it",
		"parameters": object{"type": "object", "properties": object{"where": object{"type": "string"}},
			"required": []string{"where"}}}}}
	for _, d := range foreign {
		r := env.Run(asks("How is the weather?", tools, object{"route": d.name}))
		got := succeeded(t, r)
		if len(got.ToolCalls) != 2 || got.Stop != "tool_use" {
			t.Errorf("%s: %s", d.name, r.Result)
			continue
		}
		var arguments struct{ Where string }
		first, second := got.ToolCalls[0], got.ToolCalls[1]
		if err := json.Unmarshal(first.Arguments, &arguments); err != nil || arguments.Where != `Zürich "Hbf"` ||
			first.Name != "weather" || len(first.Faults) != 0 {
			t.Errorf("%s: %+v", d.name, first)
		}
		if len(second.Faults) == 0 || second.ID == first.ID {
			t.Errorf("%s: %+v", d.name, second)
		}
		said, results := []any{}, []any{}
		for _, p := range got.Parts {
			said = append(said, p)
		}
		for _, c := range got.ToolCalls {
			results = append(results, object{"type": "tool_result", "tool_call_id": c.ID, "content": "rain"})
		}
		r = env.Run(tool("llm.chat", tools, object{"route": d.name,
			"messages": []any{object{"role": "user", "content": "How is the weather?"},
				object{"role": "assistant", "content": said}, object{"role": "tool", "content": results}}}))
		if got := succeeded(t, r); got.Text != "It rains." {
			t.Errorf("%s: %s", d.name, r.Result)
		}
	}
}

func TestAServerOfOthersAnswersBySchema(t *testing.T) {
	t.Parallel()
	first, second := 0, 1
	env := startForeign(t, func(model string, usage map[string]int) []aimock.Fixture {
		return []aimock.Fixture{
			{Match: aimock.Match{Model: model, SequenceIndex: &first},
				Response: aimock.Response{Content: `{"n": "one"}`, Usage: usage}},
			{Match: aimock.Match{Model: model, SequenceIndex: &second},
				Response: aimock.Response{Content: "```json\n{\"n\": 1}\n```", Usage: usage}},
		}
	})
	for _, d := range foreign {
		r := env.Run(tool("llm.structured", object{"route": d.name,
			"messages": []any{object{"role": "user", "content": "Count."}},
			"schema": object{"type": "object", "properties": object{"n": object{"type": "integer"}}, "required": []string{"n"},
				"additionalProperties": false}}))
		got := succeeded(t, r)
		if string(got.Output) != `{"n": 1}` || got.Repairs != 1 || got.Usage.Call.Requests != 2 ||
			*got.Usage.Call.Cost != "0.00013" {
			t.Errorf("%s: %s", d.name, r.Result)
		}
	}
}

func TestAServerOfOthersIsLimited(t *testing.T) {
	t.Parallel()
	env := startForeign(t, func(model string, usage map[string]int) []aimock.Fixture {
		first := 0
		return []aimock.Fixture{
			{Match: aimock.Match{Model: model, SequenceIndex: &first},
				Response: aimock.Response{Status: 429, RetryAfter: 70, Error: &aimock.Failure{Message: "slow down"}}},
			{Match: aimock.Match{Model: model}, Response: aimock.Response{Content: "after the pause", Usage: usage}},
		}
	})
	waiting := map[string]string{}
	for _, d := range foreign {
		waiting[d.name] = env.Insert(asks("hello", object{"route": d.name}))
	}
	for _, d := range foreign {
		id := waiting[d.name]
		env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
		var waits bool
		if err := env.DB.QueryRow(t.Context(), "select run_at >= created_at + interval '70 seconds' from core_tool_calls "+
			"where id = $1", id).Scan(&waits); err != nil || !waits {
			t.Errorf("%s: it does not wait, %v", d.name, err)
		}
		// Meanwhile another target of the same provider serves.
		if got := succeeded(t, env.Run(asks("hello", object{"route": d.name + "_first"}))); got.Text != "from the second" ||
			len(got.Routing.Skipped) != 1 || !strings.Contains(got.Routing.Skipped[0].Why, "rate_limited") {
			t.Errorf("%s: %+v", d.name, got)
		}
	}
	env.Pass(71 * time.Second)
	for _, d := range foreign {
		r := env.Await(waiting[d.name])
		if got := succeeded(t, r); got.Text != "after the pause" || r.Attempt != 2 || got.Usage.Call.Requests != 2 {
			t.Errorf("%s: %s", d.name, r.Result)
		}
	}
}

func TestAServerOfOthersIsCutOff(t *testing.T) {
	t.Parallel()
	first := 0
	env := startForeign(t, func(model string, usage map[string]int) []aimock.Fixture {
		return []aimock.Fixture{{Match: aimock.Match{Model: model, SequenceIndex: &first}, ChunkSize: 3, Latency: 5,
			TruncateAfterChunks: 4,
			Response:            aimock.Response{Content: "a text of some length, of which the end never comes", Usage: usage}}}
	})
	for _, d := range foreign {
		id := env.Insert(asks("hello", object{"route": d.name + "_first"}))
		env.Until("the call to be put back", func() bool { return slicesContains(env.Journal(id), "retried") })
		env.Pass(10 * time.Second)
		r := env.Await(id)
		if got := succeeded(t, r); got.Text != "from the second" || r.Attempt != 2 || got.Usage.Call.Requests != 2 {
			t.Errorf("%s: %s", d.name, r.Result)
		}
	}
}

package llmoracle_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ollama/ollama/api"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/handlertest"
	gemllm "github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/internal/testing/llmoracle"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

func TestMain(m *testing.M) { testdb.Main(m) }

type object = map[string]any

// dialects are the dialects that Ollama speaks.
var dialects = []string{"openai", "anthropic"}

// start starts a worker with a route for each dialect of an Ollama.
func start(t *testing.T, m llmoracle.Model) (*handlertest.Env, *llmoracle.Ollama) {
	t.Helper()
	o := llmoracle.StartOllama(t, m)
	providers, targets, routes := object{}, object{}, object{}
	for name, base := range map[string]string{"openai": o.URL + "/v1", "anthropic": o.URL} {
		providers[name] = object{"dialect": name, "base_url": base, "local": true}
		targets[name] = object{"provider": name, "model": "qwen3", "context": 100_000, "max_output": 10_000,
			"capabilities": []string{"tools", "structured"},
			"usd_per_mtok": []any{object{"input": "1", "output": "2", "cache_write": "1"}}}
		routes[name] = object{"targets": []string{name}}
	}
	file, err := json.Marshal(object{"version": "1", "providers": providers, "targets": targets, "routes": routes})
	if err != nil {
		t.Fatal(err)
	}
	return handlertest.Start(t, handlertest.Options{Registry: gem.BuiltInRegistry, Domains: []any{gemllm.Domain()},
		Environment: map[string]string{"LLM_ROUTES": string(file)}}), o
}

func calls(tool, route string, input object) handlertest.Call {
	input["route"] = route
	encoded, _ := json.Marshal(input)
	return handlertest.Call{Tool: tool, Input: string(encoded)}
}

func says(text string) []any { return []any{object{"role": "user", "content": text}} }

// result has the parts of a result that the tests check.
type result struct {
	Text      string
	Stop      string `json:"stop_reason"`
	Model     string
	ToolCalls []struct {
		ID, Name  string
		Arguments json.RawMessage
		Faults    []any
	} `json:"tool_calls"`
	Parts  []any
	Output json.RawMessage
	Usage  struct {
		Input  int    `json:"input_tokens"`
		Output int    `json:"output_tokens"`
		Source string `json:"source"`
		Cost   string `json:"cost_usd"`
	}
}

func TestChatThroughAWorkerIsAnsweredByOllama(t *testing.T) {
	t.Parallel()
	env, _ := start(t, llmoracle.Answers(text("Grüße, \""), text("🌍\"\n"), done("stop")))
	for _, d := range dialects {
		got := handlertest.Output[result](t, env.Run(calls("llm.chat", d, object{"messages": says("hi")})))
		if got.Text != "Grüße, \"🌍\"\n" || got.Stop != "end_turn" || got.Model != "qwen3" || got.Usage.Input != 31 ||
			got.Usage.Output != 17 ||
			got.Usage.Source != "provider" || got.Usage.Cost != "0.000065" {
			t.Errorf("%s: %+v", d, got)
		}
	}
}

func TestOllamaCallsToolsThroughAWorkerAndIsGivenTheirResults(t *testing.T) {
	t.Parallel()
	weather := call(t, 0, "c1", "weather", `{"where":"Zürich \"Hbf\""}`)
	env, o := start(t, func(r *api.ChatRequest, say func(api.ChatResponse)) error {
		if r.Messages[len(r.Messages)-1].Role == "tool" {
			say(text("It rains."))
		} else {
			say(weather)
		}
		say(done("stop"))
		return nil
	})
	for _, d := range dialects {
		tools := []any{object{"name": "weather", "parameters": object{"type": "object", "required": []string{"where"}}}}
		got := handlertest.Output[result](t, env.Run(calls("llm.chat", d,
			object{"messages": says("How is the weather?"), "tools": tools})))
		if len(got.ToolCalls) != 1 || got.ToolCalls[0].Name != "weather" ||
			string(got.ToolCalls[0].Arguments) != `{"where": "Zürich \"Hbf\""}` || len(got.ToolCalls[0].Faults) != 0 ||
			got.Stop != "tool_use" {
			t.Errorf("%s: %+v", d, got)
			continue
		}
		conversation := append(says("How is the weather?"), object{"role": "assistant", "content": got.Parts},
			object{"role": "tool", "content": []any{object{"type": "tool_result", "tool_call_id": got.ToolCalls[0].ID,
				"content": "rain"}}})
		got = handlertest.Output[result](t, env.Run(calls("llm.chat", d, object{"messages": conversation, "tools": tools})))
		if got.Text != "It rains." {
			t.Errorf("%s: %+v", d, got)
		}
		asked := o.Requests()
		if last := asked[len(asked)-1].Messages; len(last) != 3 || len(last[1].ToolCalls) != 1 ||
			last[2].ToolCallID != last[1].ToolCalls[0].ID || last[2].Content != "rain" {
			t.Errorf("%s: it was sent %+v", d, last)
		}
	}
}

func TestOllamaAnswersBySchemaThroughAWorker(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	env, o := start(t, func(_ *api.ChatRequest, say func(api.ChatResponse)) error {
		answer := `{"n": "one"}`
		if asked.Add(1)%2 == 0 {
			answer = `{"n": 1}`
		}
		say(text(answer))
		say(done("stop"))
		return nil
	})
	for _, d := range dialects {
		got := handlertest.Output[result](t, env.Run(calls("llm.structured", d, object{"messages": says("Count."),
			"schema": object{"type": "object", "properties": object{"n": object{"type": "integer"}}, "required": []string{"n"},
				"additionalProperties": false}})))
		if string(got.Output) != `{"n": 1}` {
			t.Errorf("%s: %+v", d, got)
		}
		if d == "openai" && !strings.Contains(string(o.Requests()[0].Format), `"integer"`) {
			t.Errorf("the format is %s", o.Requests()[0].Format)
		}
	}
}

// Ollama sends no Retry-After. The call waits until the cooldown of the target ends.
func TestOllamaIsBusyAndLaterNot(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			t.Run(fmt.Sprint(d, " ", status), func(t *testing.T) {
				t.Parallel()
				var asked atomic.Int64
				env, _ := start(t, func(_ *api.ChatRequest, say func(api.ChatResponse)) error {
					if asked.Add(1) == 1 {
						return api.StatusError{StatusCode: status, ErrorMessage: "server busy, please try again"}
					}
					say(text("now"))
					say(done("stop"))
					return nil
				})
				id := env.Insert(calls("llm.chat", d, object{"messages": says("hi")}))
				env.Until("the call to be put back", func() bool {
					return strings.Contains(strings.Join(env.Journal(id), " "), "retried")
				})
				env.Pass(31 * time.Second)
				r := env.Await(id)
				if got := handlertest.Output[result](t, r); got.Text != "now" || r.Attempt != 2 {
					t.Errorf("%s: %+v", d, got)
				}
			})
		}
	}
}

func TestOllamaBreaksOffInMidStreamAndTheCallBeginsAnew(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		t.Run(d, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			env, _ := start(t, func(_ *api.ChatRequest, say func(api.ChatResponse)) error {
				if asked.Add(1) == 1 {
					say(text("one "))
					return fmt.Errorf("the runner has died")
				}
				say(text("whole"))
				say(done("stop"))
				return nil
			})
			id := env.Insert(calls("llm.chat", d, object{"messages": says("hi")}))
			env.Until("the call to be put back", func() bool {
				return strings.Contains(strings.Join(env.Journal(id), " "), "retried")
			})
			env.Pass(10 * time.Second)
			r := env.Await(id)
			if got := handlertest.Output[result](t, r); r.Status != receipts.Succeeded || got.Text != "whole" || r.Attempt != 2 {
				t.Errorf("%+v", got)
			}
		})
	}
}

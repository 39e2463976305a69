package llmoracle_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/anthropic"
	"github.com/gemworker/gem/internal/provider/openai"
	"github.com/gemworker/gem/internal/testing/llmoracle"
)

// each runs a test with our dialects against Ollama's code for them.
func each(t *testing.T, m llmoracle.Model, test func(t *testing.T, name string, p provider.Provider,
	o *llmoracle.Ollama)) {
	t.Parallel()
	t.Run("openai", func(t *testing.T) {
		t.Parallel()
		o := llmoracle.StartOllama(t, m)
		test(t, "openai", openai.New(provider.Endpoint{BaseURL: o.URL + "/v1", HTTP: provider.NewHTTP(nil)}), o)
	})
	t.Run("anthropic", func(t *testing.T) {
		t.Parallel()
		o := llmoracle.StartOllama(t, m)
		test(t, "anthropic", anthropic.New(provider.Endpoint{BaseURL: o.URL, HTTP: provider.NewHTTP(nil)}), o)
	})
}

func ask(t *testing.T, p provider.Provider, r *provider.Request) (*provider.Answer, error) {
	t.Helper()
	if r.Model == "" {
		r.Model = "qwen3"
	}
	if r.MaxOutputTokens == 0 {
		r.MaxOutputTokens = 100
	}
	if r.Messages == nil {
		r.Messages = []provider.Message{{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "hi"}}}}
	}
	s, err := p.Stream(t.Context(), r)
	if err != nil {
		return nil, err
	}
	return provider.Collect(s, nil)
}

func text(text string) api.ChatResponse {
	return api.ChatResponse{Message: api.Message{Role: "assistant", Content: text}}
}

func thought(text string) api.ChatResponse {
	return api.ChatResponse{Message: api.Message{Role: "assistant", Thinking: text}}
}

func done(reason string) api.ChatResponse {
	return api.ChatResponse{
		Message: api.Message{Role: "assistant"}, Done: true, DoneReason: reason,
		Metrics: api.Metrics{PromptEvalCount: 31, EvalCount: 17},
	}
}

func call(t *testing.T, index int, id, name, arguments string) api.ChatResponse {
	t.Helper()
	c := api.ToolCall{ID: id, Function: api.ToolCallFunction{Index: index, Name: name}}
	if err := json.Unmarshal([]byte(arguments), &c.Function.Arguments); err != nil {
		t.Fatal(err)
	}
	return api.ChatResponse{Message: api.Message{Role: "assistant", ToolCalls: []api.ToolCall{c}}}
}

func TestOllamaAnswersWithText(t *testing.T) {
	each(t, llmoracle.Answers(thought("Let me "), thought("see."), text("Grüße, \""), text("🌍\"\n"), done("stop")),
		func(t *testing.T, _ string, p provider.Provider, _ *llmoracle.Ollama) {
			a, err := ask(t, p, &provider.Request{})
			if err != nil {
				t.Fatal(err)
			}
			if a.Text() != "Grüße, \"🌍\"\n" || a.Stop != provider.EndTurn || a.Model != "qwen3" {
				t.Errorf("%+v", a)
			}
			if want := (provider.Usage{Input: 31, Output: 17, Known: true}); a.Usage != want {
				t.Errorf("usage is %+v, not %+v", a.Usage, want)
			}
			if len(a.Parts) != 2 || a.Parts[0].Type != provider.Thinking || a.Parts[0].Text != "Let me see." {
				t.Errorf("the parts are %+v", a.Parts)
			}
		})
}

func TestOllamaStopsAtTheBound(t *testing.T) {
	each(t, llmoracle.Answers(text("half a sen"), done("length")),
		func(t *testing.T, _ string, p provider.Provider, _ *llmoracle.Ollama) {
			if a, err := ask(t, p, &provider.Request{}); err != nil || a.Stop != provider.MaxTokens || a.Text() != "half a sen" {
				t.Errorf("%+v, %v", a, err)
			}
		})
}

func TestOllamaCallsTools(t *testing.T) {
	m := llmoracle.Answers(text("Well."), call(t, 0, "c1", "weather", `{"where":"Zürich \"Hbf\"","days":2}`),
		call(t, 1, "c2", "weather", `{}`), done("stop"))
	each(t, m, func(t *testing.T, _ string, p provider.Provider, _ *llmoracle.Ollama) {
		a, err := ask(t, p, &provider.Request{Tools: []provider.Tool{{Name: "weather",
			Parameters: json.RawMessage(`{"type":"object"}`)}}})
		if err != nil {
			t.Fatal(err)
		}
		want := []provider.Part{
			{Type: provider.Text, Text: "Well."},
			{Type: provider.ToolCall, ID: "c1", Name: "weather",
				Arguments: json.RawMessage(`{"where":"Zürich \"Hbf\"","days":2}`)},
			{Type: provider.ToolCall, ID: "c2", Name: "weather", Arguments: json.RawMessage(`{}`)},
		}
		if !reflect.DeepEqual(a.Parts, want) || a.Stop != provider.ToolUse {
			t.Errorf("%s: %+v", a.Stop, a.Parts)
		}
	})
}

func TestOllamaUnderstandsWhatIsAsked(t *testing.T) {
	each(t, llmoracle.Answers(text("ok"), done("stop")),
		func(t *testing.T, name string, p provider.Provider, o *llmoracle.Ollama) {
			cold, most := 0.0, 0.9
			_, err := ask(t, p, &provider.Request{
				System: "Be brief.", MaxOutputTokens: 77, Temperature: &cold, TopP: &most, Stop: []string{"END", "ENDE"},
				Tools: []provider.Tool{{Name: "weather", Description: "tells it",
					Parameters: json.RawMessage(`{"type":"object","properties":{"where":{"type":"string"}},"required":["where"]}`)}},
				Messages: []provider.Message{
					{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "How is "},
						{Type: provider.Text, Text: "the weather?"}}},
					{Role: provider.Assistant, Content: provider.Content{
						{Type: provider.Text, Text: "I look."},
						{Type: provider.ToolCall, ID: "c1", Name: "weather", Arguments: json.RawMessage(`{"where":"Bern"}`)},
						{Type: provider.ToolCall, ID: "c2", Name: "weather", Arguments: json.RawMessage(`{"where":"Rom"}`)},
					}},
					{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "c1", Content: "rain"},
						{Type: provider.ToolResult, ToolCallID: "c2", Content: ""}}},
					{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "And now?"}}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			r := o.Requests()[0]
			if r.Options["num_predict"] != 77.0 || r.Options["temperature"] != 0.0 || r.Options["top_p"] != 0.9 ||
				!reflect.DeepEqual(r.Options["stop"], []any{"END", "ENDE"}) {
				t.Errorf("the options are %v", r.Options)
			}
			if len(r.Tools) != 1 || r.Tools[0].Function.Name != "weather" || r.Tools[0].Function.Description != "tells it" ||
				!reflect.DeepEqual(r.Tools[0].Function.Parameters.Required, []string{"where"}) {
				t.Errorf("the tools are %+v", r.Tools)
			}
			var said []string
			for _, m := range r.Messages {
				line := m.Role + ": " + m.Content
				for _, c := range m.ToolCalls {
					line += " " + c.ID + "=" + c.Function.Name + c.Function.Arguments.String()
				}
				if m.ToolCallID != "" {
					line += " for " + m.ToolCallID
				}
				said = append(said, line)
			}
			want := []string{
				"system: Be brief.", "user: How is the weather?",
				`assistant: I look. c1=weather{"where":"Bern"} c2=weather{"where":"Rom"}`,
				"tool: rain for c1", "tool:  for c2", "user: And now?",
			}
			if name == "anthropic" { // this dialect has one turn for both, and Ollama puts a turn's text before its results
				want[3], want[4], want[5] = want[5], want[3], want[4]
			}
			if !reflect.DeepEqual(said, want) {
				t.Errorf("%s: the messages are\n%s", name, strings.Join(said, "\n"))
			}
		})
}

func TestOllamaIsToldOfASchemaAndAnEffort(t *testing.T) {
	t.Parallel()
	o := llmoracle.StartOllama(t, llmoracle.Answers(text(`{"n":1}`), done("stop")))
	p := openai.New(provider.Endpoint{BaseURL: o.URL + "/v1", HTTP: provider.NewHTTP(nil)})
	schema := `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`
	if _, err := ask(t, p, &provider.Request{Schema: json.RawMessage(schema), SchemaName: "count", Thinks: true,
		Effort: provider.EffortHigh}); err != nil {
		t.Fatal(err)
	}
	r := o.Requests()[0]
	if string(r.Format) != schema || r.Think == nil || r.Think.Value != "high" {
		t.Errorf("the format is %s, the effort %+v", r.Format, r.Think)
	}
}

func TestOllamaFailsBeforeItSaysAnything(t *testing.T) {
	fails := func(*api.ChatRequest, func(api.ChatResponse)) error {
		return errors.New("the model has not enough memory")
	}
	each(t, fails, func(t *testing.T, _ string, p provider.Provider, o *llmoracle.Ollama) {
		_, err := ask(t, p, &provider.Request{})
		var failed *provider.Error
		if !errors.As(err, &failed) || failed.Kind != provider.Unavailable || failed.Status != 500 ||
			!strings.Contains(failed.Message, "memory") {
			t.Errorf("%+v", err)
		}
		if n := len(o.Requests()); n != 1 {
			t.Errorf("there were %d requests", n)
		}
	})
}

// Ollama's code drops the error of a model that has begun to answer, and ends the body normally. Only the terminal
// event is missing.
func TestOllamaFailsInMidStream(t *testing.T) {
	fails := func(_ *api.ChatRequest, say func(api.ChatResponse)) error {
		say(text("one "))
		say(text("two "))
		return errors.New("the runner has died")
	}
	each(t, fails, func(t *testing.T, _ string, p provider.Provider, _ *llmoracle.Ollama) {
		a, err := ask(t, p, &provider.Request{})
		var failed *provider.Error
		if !errors.As(err, &failed) || failed.Kind != provider.Cut && failed.Kind != provider.Unavailable {
			t.Errorf("%+v", err)
		}
		if a == nil || a.Text() != "one two " {
			t.Errorf("%+v", a)
		}
	})
}

func TestOllamaRefusesARequest(t *testing.T) {
	each(t, llmoracle.Answers(), func(t *testing.T, _ string, p provider.Provider, _ *llmoracle.Ollama) {
		_, err := ask(t, p, &provider.Request{Messages: []provider.Message{}})
		var failed *provider.Error
		if !errors.As(err, &failed) || failed.Kind != provider.BadRequest {
			t.Errorf("%+v", err)
		}
	})
}

package openai_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
)

// sent returns what a server gets.
func sent(t *testing.T, base string, r *provider.Request) map[string]any {
	t.Helper()
	s := streaming(chunks(finished))
	if _, _, err := askFor(t, s, base, r); err != nil {
		t.Fatal(err)
	}
	var body map[string]any
	if err := json.Unmarshal(s.sent, &body); err != nil {
		t.Fatal(err)
	}
	return body
}

func object(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestARequestGoesWhereTheEndpointSays(t *testing.T) {
	// Vendors' libraries and proxies read these.
	for _, name := range []string{"OPENAI_BASE_URL", "OPENAI_API_BASE", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY",
		"https_proxy", "http_proxy", "all_proxy"} {
		t.Setenv(name, "http://elsewhere.invalid:1/v9")
	}
	for _, name := range []string{"OPENAI_API_KEY", "OPENAI_CUSTOM_HEADERS", "OPENAI_ORG_ID", "OPENAI_ORGANIZATION",
		"OPENAI_PROJECT_ID", "OPENAI_API_TYPE", "OPENAI_API_VERSION"} {
		t.Setenv(name, "X-Stolen: yes")
	}
	for base, want := range map[string]string{
		"https://provider.invalid/v1":             "https://provider.invalid/v1/chat/completions",
		"https://provider.invalid/v1beta/openai/": "https://provider.invalid/v1beta/openai/chat/completions",
	} {
		s := streaming(chunks(finished))
		if _, _, err := askFor(t, s, base, question()); err != nil {
			t.Fatal(err)
		}
		if got := s.asked.URL.String(); got != want || s.asked.Method != http.MethodPost {
			t.Errorf("got %s %s", s.asked.Method, got)
		}
		if got := s.asked.Header; got.Get("Authorization") != "Bearer "+key ||
			got.Get("Content-Type") != "application/json" || got.Get("Accept") != "text/event-stream" || len(got) != 3 {
			t.Errorf("got %v", got)
		}
		if s.asked.ContentLength != int64(len(s.sent)) {
			t.Errorf("%d bytes are announced, %d came", s.asked.ContentLength, len(s.sent))
		}
	}
	s := streaming(chunks(finished))
	stream, err := newWith(anywhere, "", s.client()).Stream(t.Context(), question())
	if err != nil {
		t.Fatal(err)
	}
	stream.Close()
	if h, ok := s.asked.Header["Authorization"]; ok {
		t.Errorf("without a key: got %q", h)
	}
}

func TestARequestHasWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	zero, p := 0.0, 0.9
	r := &provider.Request{
		Model: "gpt-5-mini", System: "Be brief.", MaxOutputTokens: 77, Temperature: &zero, TopP: &p, Stop: []string{"END"},
		Effort: provider.EffortLow, Thinks: true, Target: "own", ToolChoice: provider.ChooseRequired,
		Tools: []provider.Tool{{Name: "f", Description: "does f",
			Parameters: json.RawMessage(`{"type":"object","properties":{}}`)}},
		Messages: []provider.Message{
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "a"}, {Type: provider.Text, Text: "b"}}},
			{Role: provider.Assistant, Content: provider.Content{
				{Type: provider.Thinking, Text: "hmm", Target: "own"},
				{Type: provider.Thinking, Text: "another's", Target: "other"},
				{Type: provider.ToolCall, ID: "c1", Name: "f", Arguments: json.RawMessage(`{"x":1}`), Signature: "sig",
					Target: "own"},
				{Type: provider.ToolCall, ID: "c2", Name: "f", Signature: "foreign", Target: "other"},
			}},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "c1", Content: ""},
				{Type: provider.ToolResult, ToolCallID: "c2", Content: "broke", IsError: true}}},
			{Role: provider.Assistant, Content: provider.Content{{Type: provider.Thinking, Text: "only a thought",
				Target: "other"}}},
			{Role: provider.Assistant, Content: provider.Content{{Type: provider.Text, Text: "done"}}},
		},
	}
	want := `{"model":"gpt-5-mini","stream":true,"stream_options":{"include_usage":true},"max_tokens":77,"temperature":0,"top_p":0.9,"stop":["END"],
		"reasoning_effort":"low","tool_choice":"required",
		"tools":[{"type":"function","function":{"name":"f","description":"does f","parameters":{"type":"object","properties":{}}}}],
		"messages":[
			{"role":"system","content":"Be brief."},
			{"role":"user","content":"ab"},
			{"role":"assistant","content":null,"tool_calls":[
				{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"},"extra_content":{"google":{"thought_signature":"sig"}}},
				{"id":"c2","type":"function","function":{"name":"f","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"c1","content":""},
			{"role":"tool","tool_call_id":"c2","content":"Error: broke"},
			{"role":"assistant","content":"done"}]}`
	if got := sent(t, anywhere, r); !reflect.DeepEqual(got, object(t, want)) {
		data, _ := json.Marshal(got)
		t.Errorf("got %s", data)
	}
}

func TestServersDiffer(t *testing.T) {
	t.Parallel()
	r := question()
	r.Target = "own"
	r.Messages = append(r.Messages,
		provider.Message{Role: provider.Assistant, Content: provider.Content{
			{Type: provider.Thinking, Text: "hmm", Target: "own"}, {Type: provider.Thinking, Text: "not this", Target: "other"},
			{Type: provider.Thinking, Text: "nor this"},
			{Type: provider.Thinking, Redacted: true, Text: "nor that", Target: "own"}, {Type: provider.Text, Text: "wait"},
			{Type: provider.ToolCall, ID: "toolu_1", Name: "f"}, {Type: provider.ToolCall, ID: "abcDEF123", Name: "f"},
		}},
		provider.Message{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "toolu_1",
			Content: "1"}}},
	)
	for base, test := range map[string]struct {
		bound, content, field string
		options, short        bool
	}{
		"https://api.openai.com/v1":                               {"max_completion_tokens", "", "", true, false},
		"https://ours.openai.azure.com/openai/v1":                 {"max_completion_tokens", "", "", true, false},
		"https://eu.api.openai.com/v1":                            {"max_completion_tokens", "", "", true, false},
		"https://api.openai.com.elsewhere.invalid/v1":             {"max_tokens", "", "", true, false},
		"https://api.mistral.ai/v1":                               {"max_tokens", "list", "", false, true},
		"https://api.deepseek.com":                                {"max_tokens", "", "reasoning_content", true, false},
		"https://openrouter.ai/api/v1":                            {"max_tokens", "", "reasoning", true, false},
		"http://127.0.0.1:11434/v1":                               {"max_tokens", "", "", true, false},
		"https://generativelanguage.googleapis.com/v1beta/openai": {"max_tokens", "", "", true, false},
	} {
		body := sent(t, base, r)
		if body[test.bound] != 100.0 || (body["max_tokens"] == nil) == (body["max_completion_tokens"] == nil) {
			t.Errorf("%s: %v, %v", base, body["max_tokens"], body["max_completion_tokens"])
		}
		if (body["stream_options"] != nil) != test.options {
			t.Errorf("%s: stream_options is %v", base, body["stream_options"])
		}
		said := body["messages"].([]any)[1].(map[string]any)
		if _, isList := said["content"].([]any); isList != (test.content == "list") {
			t.Errorf("%s: content is %v", base, said["content"])
		}
		if parts := list(said, "content"); test.content == "list" {
			if want := object(t,
				`[{"type":"thinking","thinking":[{"type":"text","text":"hmm"}]},{"type":"text","text":"wait"}]`); !reflect.DeepEqual(any(parts), want) {
				t.Errorf("%s: content is %v", base, parts)
			}
		}
		for _, field := range []string{"reasoning", "reasoning_content"} {
			if (said[field] == "hmm") != (field == test.field) {
				t.Errorf("%s: %s is %v", base, field, said[field])
			}
		}
		first := text(list(said, "tool_calls")[0], "id")
		if (first != "toolu_1") != test.short || test.short && len(first) != 9 ||
			text(list(said, "tool_calls")[1], "id") != "abcDEF123" {
			t.Errorf("%s: the ids are %v", base, said["tool_calls"])
		}
		if result := body["messages"].([]any)[2]; text(result, "tool_call_id") != first {
			t.Errorf("%s: the result is for %v", base, result)
		}
	}
}

// Conversations with the same tools and instructions share a key, whatever is said in them.
func TestOpenAIGetsAKeyForItsCache(t *testing.T) {
	t.Parallel()
	key := func(base string, change func(*provider.Request)) string {
		r := question()
		r.System, r.Cache = "Be brief.", true
		change(r)
		got, _ := sent(t, base, r)["prompt_cache_key"].(string)
		return got
	}
	const own = "https://api.openai.com/v1"
	first := key(own, func(*provider.Request) {})
	if len(first) < 20 || len(first) > 64 {
		t.Errorf("the key is %q", first)
	}
	said := provider.Message{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "and then?"}}}
	if got := key(own, func(r *provider.Request) { r.Messages = append(r.Messages, said) }); got != first {
		t.Errorf("another message has another key: %s", got)
	}
	if got := key(own, func(r *provider.Request) { r.System = "Be long." }); got == first {
		t.Error("other instructions have the same key")
	}
	if got := key(own, func(r *provider.Request) { r.Cache = false }); got != "" {
		t.Errorf("a request that is not to be cached has %s", got)
	}
	if got := key("https://ours.openai.azure.com/openai/v1", func(*provider.Request) {}); got != "" {
		t.Errorf("another server gets %s", got)
	}
}

func TestASchemaIsStrictWhereOpenAITakesIt(t *testing.T) {
	t.Parallel()
	for schema, strict := range map[string]bool{
		`{"type":"object","properties":{"a":{"type":["string","null"]}},"required":["a"],"additionalProperties":false}`: true,
		`{"type":"object","properties":{"a":{"anyOf":[{"type":"integer","minimum":1},{"$ref":"#/$defs/b"}]}},"required":["a"],"additionalProperties":false,
			"$defs":{"b":{"type":"array","items":{"type":"object","properties":{},"additionalProperties":false}}}}`: true,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":[],"additionalProperties":false}`:                 false,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["b"],"additionalProperties":false}`:              false,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`:                                           false,
		`{"type":"object","properties":{"a":{"type":"object"}},"required":["a"],"additionalProperties":false}`:              false,
		`{"type":"object","properties":{"a":{"type":"array"}},"required":["a"],"additionalProperties":false}`:               false,
		`{"type":"object","properties":{"a":{"allOf":[]}},"required":["a"],"additionalProperties":false}`:                   false,
		`{"type":"object","properties":{"a":{"not":{}}},"required":["a"],"additionalProperties":false}`:                     false,
		`{"type":"object","properties":{"a":{"minLength":1}},"required":["a"],"additionalProperties":false}`:                false,
		`{"type":"object","properties":{"a":{"$ref":"https://e.invalid/s"}},"required":["a"],"additionalProperties":false}`: false,
		`{"type":"object","properties":{"a":true},"required":["a"],"additionalProperties":false}`:                           false,
		`{"type":"object","properties":{},"additionalProperties":false,"if":{},"then":{}}`:                                  false,
		`{"type":"array","items":{"type":"string"}}`:                                                                        false,
		strings.Repeat(`{"type":"object","required":["a"],"additionalProperties":false,"properties":{"a":`, 12) +
			`{"type":"string"}` + strings.Repeat(`}}`, 12): false,
	} {
		r := question()
		r.Schema, r.SchemaName = json.RawMessage(schema), "thing"
		got := sent(t, anywhere, r)["response_format"]
		want := map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "thing", "strict": strict,
			"schema": object(t, schema)}}
		if !reflect.DeepEqual(got, any(want)) {
			t.Errorf("%s:\n got %v\nwant %v", schema, got, want)
		}
	}
}

func TestARequestThatIsNoJSONIsNotSent(t *testing.T) {
	t.Parallel()
	r := question()
	r.Schema = json.RawMessage(`{`)
	s := streaming(chunks(finished))
	if _, _, err := askFor(t, s, anywhere, r); kind(err) != provider.BadRequest || s.asked != nil {
		t.Errorf("got %v", err)
	}
}

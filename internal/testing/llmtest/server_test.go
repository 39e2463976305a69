package llmtest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// bodies request an answer from model-a, with everything that a request can have.
var bodies = map[llmtest.Dialect]string{
	llmtest.Anthropic: `{"model":"model-a","max_tokens":100,"stream":true,"system":[{"type":"text","text":"Be brief."}],"temperature":0.5,"top_p":0.9,
		"stop_sequences":["END"],"tool_choice":{"type":"any"},"tools":[{"name":"add","description":"adds","input_schema":{"type":"object"}}],
		"output_config":{"effort":"low","format":{"type":"json_schema","schema":{"type":"object"}}},
		"messages":[{"role":"user","content":"How much?"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"sig=="},{"type":"tool_use","id":"c1","name":"add","input":{"a":1}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"2"}],"is_error":true}]}]}`,
	llmtest.OpenAI: `{"model":"model-a","max_completion_tokens":100,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.9,
		"stop":["END"],"tool_choice":"required","tools":[{"type":"function","function":{"name":"add","description":"adds","parameters":{"type":"object"}}}],
		"reasoning_effort":"low","response_format":{"type":"json_schema","json_schema":{"name":"sum","schema":{"type":"object"}}},
		"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"How much?"}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"2"}]}`,
	llmtest.Gemini: `{"systemInstruction":{"parts":[{"text":"Be brief."}]},"generationConfig":{"maxOutputTokens":100,"temperature":0.5,"topP":0.9,
		"stopSequences":["END"],"thinkingConfig":{"thinkingLevel":"LOW"},"responseJsonSchema":{"type":"object"}},
		"toolConfig":{"functionCallingConfig":{"mode":"ANY"}},
		"tools":[{"functionDeclarations":[{"name":"add","description":"adds","parametersJsonSchema":{"type":"object"}}]}],
		"contents":[{"role":"user","parts":[{"text":"How much?"}]},
		{"role":"model","parts":[{"functionCall":{"name":"add","args":{"a":1}},"thoughtSignature":"sig=="}]},
		{"role":"user","parts":[{"functionResponse":{"name":"add","response":{"error":"2"}}}]}]}`,
}

// ask sends a request of a dialect, with the key "secret".
func ask(ctx context.Context, client *http.Client, s *llmtest.Server, d llmtest.Dialect, prefix,
	body string) (*http.Response, error) {
	path := map[llmtest.Dialect]string{
		llmtest.Anthropic: "/v1/messages", llmtest.OpenAI: "/chat/completions",
		llmtest.Gemini: "/v1beta/models/model-a:streamGenerateContent?alt=sse",
	}[d]
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.BaseURL(d, prefix)+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = http.Header{
		"Content-Type": {"application/json"}, "Anthropic-Version": {"2023-06-01"},
		"X-Api-Key": {"secret"}, "Authorization": {"Bearer secret"}, "X-Goog-Api-Key": {"secret"},
	}
	return client.Do(request)
}

// head is a response without its body.
type head struct {
	status int
	header http.Header
}

// answer returns a response, its body, and the error at the end of the body.
func answer(t *testing.T, s *llmtest.Server, d llmtest.Dialect) (head, string, error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	response, err := ask(t.Context(), client, s, d, "", bodies[d])
	if err != nil {
		return head{}, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return head{response.StatusCode, response.Header}, string(body), err
}

// each runs a test for each dialect.
func each(t *testing.T, test func(t *testing.T, d llmtest.Dialect)) {
	t.Parallel()
	for _, d := range llmtest.Dialects {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			test(t, d)
		})
	}
}

// heard is the content of a body, parsed without this package.
type heard struct {
	text, thought, signature, call, arguments, stop string
	input, output, cached, reasoning                int64
	events, ends                                    int
	failed                                          string
}

func hear(t *testing.T, d llmtest.Dialect, body string) heard {
	t.Helper()
	var h heard
	for _, line := range strings.Split(strings.ReplaceAll(body, "\r\n", "\n"), "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var e any
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			h.failed = "garbage"
			continue
		}
		h.events++
		at := func(path ...any) any {
			v := e
			for _, step := range path {
				switch step := step.(type) {
				case string:
					m, _ := v.(map[string]any)
					v = m[step]
				case int:
					l, _ := v.([]any)
					if step >= len(l) {
						return nil
					}
					v = l[step]
				}
			}
			return v
		}
		text := func(path ...any) string { s, _ := at(path...).(string); return s }
		number := func(n *int64, path ...any) {
			if f, ok := at(path...).(float64); ok {
				*n = int64(f)
			}
		}
		if message := text("error", "message"); message != "" {
			h.failed = message
		}
		stop := ""
		switch d {
		case llmtest.Anthropic:
			h.text += text("delta", "text")
			h.thought += text("delta", "thinking")
			h.signature += text("delta", "signature")
			h.call += text("content_block", "name")
			h.arguments += text("delta", "partial_json")
			stop = text("delta", "stop_reason")
			number(&h.input, "usage", "input_tokens")
			number(&h.cached, "usage", "cache_read_input_tokens")
			number(&h.output, "usage", "output_tokens")
		case llmtest.OpenAI:
			h.text += text("choices", 0, "delta", "content")
			h.thought += text("choices", 0, "delta", "reasoning_content")
			h.call += text("choices", 0, "delta", "tool_calls", 0, "function", "name")
			h.arguments += text("choices", 0, "delta", "tool_calls", 0, "function", "arguments")
			stop = text("choices", 0, "finish_reason")
			number(&h.input, "usage", "prompt_tokens")
			number(&h.cached, "usage", "prompt_tokens_details", "cached_tokens")
			number(&h.output, "usage", "completion_tokens")
			number(&h.reasoning, "usage", "completion_tokens_details", "reasoning_tokens")
		case llmtest.Gemini:
			if part := "candidates"; at(part, 0, "content", "parts", 0, "thought") == true {
				h.thought += text(part, 0, "content", "parts", 0, "text")
			} else {
				h.text += text(part, 0, "content", "parts", 0, "text")
			}
			h.signature += text("candidates", 0, "content", "parts", 0, "thoughtSignature")
			h.call += text("candidates", 0, "content", "parts", 0, "functionCall", "name")
			if args := at("candidates", 0, "content", "parts", 0, "functionCall", "args"); args != nil {
				encoded, _ := json.Marshal(args)
				h.arguments += string(encoded)
			}
			stop = text("candidates", 0, "finishReason")
			number(&h.input, "usageMetadata", "promptTokenCount")
			number(&h.cached, "usageMetadata", "cachedContentTokenCount")
			number(&h.output, "usageMetadata", "candidatesTokenCount")
			number(&h.reasoning, "usageMetadata", "thoughtsTokenCount")
		}
		if stop != "" {
			h.stop = stop
			h.ends++
		}
	}
	return h
}

func TestAnAnswerIsSpokenInEachDialect(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{Key: "secret"})
		s.Script("model-a", llmtest.Script{
			Parts: []provider.Part{
				{Type: provider.Thinking, Text: "Two and two …", Signature: "c2ln=="},
				{Type: provider.Text, Text: "\"Grüße\", \\ 🌍 <end>"},
				{Type: provider.ToolCall, ID: "c1", Name: "add", Arguments: json.RawMessage(`{"text":"a\"ü\\n🌍"}`)},
			},
			Usage: &provider.Usage{Input: 100, Output: 50, CacheRead: 40, Reasoning: 20, Known: true},
		})
		response, body, err := answer(t, s, d)
		if err != nil || response.status != http.StatusOK {
			t.Fatal(response, err)
		}
		want := heard{text: "\"Grüße\", \\ 🌍 <end>", thought: "Two and two …", signature: "c2ln==", call: "add",
			arguments: `{"text":"a\"ü\\n🌍"}`, ends: 1, cached: 40}
		switch d {
		case llmtest.Anthropic:
			want.stop, want.input, want.output = "tool_use", 60, 50 // cached tokens are counted separately
		case llmtest.OpenAI:
			want.stop, want.input, want.output, want.reasoning, want.signature = "tool_calls", 100, 50, 20, ""
		case llmtest.Gemini:
			want.stop, want.input, want.output, want.reasoning = "STOP", 100, 30, 20 // so are thought tokens
		}
		got := hear(t, d, body)
		got.events = 0
		if got != want {
			t.Errorf("got  %+v\nwant %+v\n%s", got, want, body)
		}
		if r := s.Last(); !r.Finished || r.Gone || r.Status != 200 || r.Usage.Input != 100 || s.Left() != 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestChunksAndSplitsChangeNoByte(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		script := llmtest.Say("Grüße 🌍")
		script.RequestID = "r"
		one, bytewise, split := script, script, script
		bytewise.Chunk = 1
		split.Splits = []int{1, 2, 30, 31, 100_000}
		s.Script("", one, bytewise, split)
		var bodies []string
		for range 3 {
			_, body, err := answer(t, s, d)
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, body)
		}
		if bodies[0] == "" || bodies[1] != bodies[0] || bodies[2] != bodies[0] {
			t.Errorf("%q", bodies)
		}
	})
}

func TestRequestsAreRecordedInOneForm(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		if _, _, err := answer(t, s, d); err != nil {
			t.Fatal(err)
		}
		half, most := 0.5, 0.9
		want := provider.Request{
			Model: "model-a", System: "Be brief.", MaxOutputTokens: 100, Temperature: &half, TopP: &most, Stop: []string{"END"},
			ToolChoice: provider.ChooseRequired, Effort: provider.EffortLow, Schema: json.RawMessage(`{"type":"object"}`),
			Tools: []provider.Tool{{Name: "add", Description: "adds", Parameters: json.RawMessage(`{"type":"object"}`)}},
		}
		call := provider.Part{Type: provider.ToolCall, ID: "c1", Name: "add", Arguments: json.RawMessage(`{"a":1}`)}
		result := provider.Part{Type: provider.ToolResult, ToolCallID: "c1", Content: "2", IsError: true}
		turn := provider.Content{call}
		switch d {
		case llmtest.Anthropic:
			turn = provider.Content{{Type: provider.Thinking, Text: "Hm.", Signature: "sig=="}, call}
		case llmtest.OpenAI:
			want.SchemaName, result.IsError = "sum", false
		case llmtest.Gemini:
			turn[0].ID, turn[0].Signature = "", "sig=="
			result = provider.Part{Type: provider.ToolResult, Name: "add", Content: "2", IsError: true}
		}
		want.Messages = []provider.Message{
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "How much?"}}},
			{Role: provider.Assistant, Content: turn}, {Role: provider.FromTool, Content: provider.Content{result}},
		}
		r := s.Last()
		if r.Err != nil || r.Dialect != d || r.Key != "secret" || r.N != 1 || string(r.Body) != bodies[d] ||
			!reflect.DeepEqual(r.Asked, want) {
			t.Errorf("got  %+v (%v)\nwant %+v", r.Asked, r.Err, want)
		}
	})
}

func TestUsageIsCountedFromTheTexts(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		s.Always("", llmtest.Say("12345"))
		var sum provider.Usage
		for range 2 {
			_, body, _ := answer(t, s, d)
			if got := hear(t, d, body); got.output != 2 || got.input == 0 || got.input != s.Last().Usage.Input {
				t.Errorf("%+v", got)
			}
			sum.Input += s.Last().Usage.Input
			sum.Output += s.Last().Usage.Output
		}
		if got := s.Usage(); got != sum || sum.Output != 4 {
			t.Errorf("%+v, not %+v", got, sum)
		}
	})
}

func TestFaultsAreWhatTheySayTheyAre(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		for _, f := range llmtest.Faults() {
			if f.Kind == llmtest.Silent || f.Kind == llmtest.Hanging || f.Kind == llmtest.Stalled {
				continue // see TestAClientThatLeavesIsSeen
			}
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel()
				s := llmtest.Start(t, llmtest.Options{})
				if f.Kind == llmtest.EndlessLine {
					endless(t, s, d, f)
					return
				}
				f.Location = "http://127.0.0.1:1/elsewhere"
				s.Script("", llmtest.Say("one two three four five six").With(f))
				response, body, err := answer(t, s, d)
				got := hear(t, d, body)
				if f.After > 0 && got.text != "one two three four five "[:8*f.After] && f.Kind != llmtest.Garbage {
					t.Errorf("%d deltas say %q", f.After, got.text)
				}
				if f.Kind != llmtest.FailedStatus && f.Kind != llmtest.TooLong && f.Kind != llmtest.Redirected && f.After >= 0 &&
					response.status != http.StatusOK {
					t.Errorf("the status is %d", response.status)
				}
				switch f.Kind {
				case llmtest.FailedStatus:
					if response.status != f.Status || !strings.Contains(body, "scripted failure") || err != nil {
						t.Error(response.status, body, err)
					}
					pause(t, d, response.header, body, f)
				case llmtest.TooLong:
					if response.status != http.StatusBadRequest || !strings.Contains(body, "max") {
						t.Error(response.status, body)
					}
				case llmtest.Redirected:
					if response.status != http.StatusTemporaryRedirect || response.header.Get("Location") != f.Location {
						t.Error(response.status, response.header)
					}
				case llmtest.ErrorFirst:
					if err != nil || got.events != 1 || got.failed != "scripted failure 503" {
						t.Error(body, err)
					}
				case llmtest.ErrorLate:
					if err != nil || got.ends != 0 || got.failed != "scripted failure 503" {
						t.Error(body, err)
					}
				case llmtest.Reset:
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("%v (%q)", err, body)
					}
				case llmtest.Broken:
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("%v (%q)", err, body)
					}
				case llmtest.CleanCut:
					if err != nil || got.ends != 0 || got.failed != "" {
						t.Errorf("%v (%q)", err, body)
					}
				case llmtest.Garbage:
					if err != nil || got.ends != 1 || got.failed != "garbage" {
						t.Errorf("%v (%q)", err, body)
					}
				case llmtest.NoUsage:
					if err != nil || got.ends != 1 || got.input != 0 || got.output != 0 || got.text != "one two three four five six" {
						t.Errorf("%v (%q)", err, body)
					}
				case llmtest.FinishedTwice:
					if got.ends--; err != nil || got.ends != 1 || got.output != 7 {
						t.Errorf("%v (%q)", err, body)
					}
				default:
					t.Error("nobody looks at it")
				}
			})
		}
	})
}

// pause checks how a failure requests a pause.
func pause(t *testing.T, d llmtest.Dialect, h http.Header, body string, f llmtest.Fault) {
	t.Helper()
	seconds, ms := h.Get("Retry-After"), h.Get("Retry-After-Ms")
	switch f.RetryForm {
	case "":
		if seconds+ms != "" {
			t.Error(h)
		}
	case llmtest.InSeconds:
		if seconds != "7" || ms != "" {
			t.Error(h)
		}
	case llmtest.InMilliseconds:
		if seconds != "" || ms != "7000" {
			t.Error(h)
		}
	case llmtest.AtDate:
		if _, err := http.ParseTime(seconds); err != nil {
			t.Error(h, err)
		}
	case llmtest.InRetryInfo:
		if seconds+ms != "" || strings.Contains(body, "RetryInfo") != (d == llmtest.Gemini) {
			t.Error(h)
		}
	}
}

// endless reads 1.5 MiB of a line and leaves.
func endless(t *testing.T, s *llmtest.Server, d llmtest.Dialect, f llmtest.Fault) {
	s.Script("", llmtest.Say("one two three four five six").With(f))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	response, err := ask(ctx, http.DefaultClient, s, d, "", bodies[d])
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.CopyN(io.Discard, response.Body, 3<<19); err != nil {
		t.Fatal(err)
	}
	leave()
	if err := s.Wait(t.Context(), func(c llmtest.Counts) bool { return c.Gone == 1 && c.Open == 0 }); err != nil {
		t.Error(err)
	}
}

func TestAClientThatLeavesIsSeen(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		for _, f := range []llmtest.Fault{
			{Kind: llmtest.Silent}, {Kind: llmtest.Hanging}, llmtest.After(0, llmtest.Stalled),
			llmtest.After(3, llmtest.Stalled),
			{Kind: llmtest.Stalled, After: 3, Every: time.Millisecond},
		} {
			s := llmtest.Start(t, llmtest.Options{})
			s.Script("", llmtest.Say("one two three four five six").With(f))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			done := make(chan string, 1)
			go func() {
				response, err := ask(ctx, http.DefaultClient, s, d, "", bodies[d])
				if err != nil {
					done <- ""
					return
				}
				defer response.Body.Close()
				body, _ := io.ReadAll(response.Body)
				done <- string(body)
			}()
			if err := s.Wait(t.Context(), func(c llmtest.Counts) bool {
				return c.Open == 1 && c.Connections == 1 && c.Deltas == f.After
			}); err != nil {
				t.Fatal(err)
			}
			leave()
			body := <-done
			if err := s.Wait(t.Context(), func(c llmtest.Counts) bool {
				return c.Gone == 1 && c.Open == 0 && c.Connections == 0
			}); err != nil {
				t.Error(f, err)
			}
			if got := hear(t, d, body); got.ends != 0 || f.After == 0 && got.text != "" {
				t.Errorf("%v: %q", f, body)
			}
			if r := s.Last(); !r.Gone || r.Finished || r.Deltas != f.After {
				t.Errorf("%v: %+v", f, r)
			}
		}
	})
}

func TestAWrongKeyIsTurnedAway(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{Key: "another"})
		s.Script("", llmtest.Say("for whoever has the key"))
		if response, body, err := answer(t, s, d); err != nil || response.status != http.StatusUnauthorized || s.Left() != 1 {
			t.Error(response, body, err)
		}
	})
}

func TestARequestThatIsNoneOfTheDialectIsRefused(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		for _, body := range []string{"", "{", "[]", `{"model":"model-a","stream":true,"max_tokens":1}`} {
			response, err := ask(t.Context(), s.Client(), s, d, "", body)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusBadRequest || s.Last().Err == nil {
				t.Errorf("%q: %d", body, response.StatusCode)
			}
		}
	})
}

func TestQueuesAreForModelsPathsAndAnyRequest(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{Answer: func(r *llmtest.Request) llmtest.Script {
			return llmtest.Say(fmt.Sprint("request ", r.N))
		}})
		s.Script("", llmtest.Say("any"))
		s.Script("/east", llmtest.Say("east"))
		s.Script("/east/1", llmtest.Say("east 1"))
		s.Script("model-b", llmtest.Say("b"))
		for i, want := range []string{"east 1", "east", "any", "request 4"} {
			response, err := ask(t.Context(), s.Client(), s, d, "/east/1", bodies[d])
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if got := hear(t, d, string(body)).text; got != want {
				t.Errorf("%d: %q, not %q", i, got, want)
			}
		}
		s.Always("model-a", llmtest.Say("always"))
		for range 2 {
			if _, body, _ := answer(t, s, d); hear(t, d, body).text != "always" {
				t.Error(body)
			}
		}
		if s.Left() != 1 {
			t.Errorf("%d are left", s.Left())
		}
	})
}

func TestAScriptCanWaitForATest(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		goOn := make(chan struct{})
		script := llmtest.Say("one two three four")
		script.KeepAlives = 2
		script.Before = func(ctx context.Context, delta int) {
			if delta == 1 {
				select {
				case <-goOn:
				case <-ctx.Done():
				}
			}
		}
		s.Script("", script, script)
		response, err := ask(t.Context(), s.Client(), s, d, "", bodies[d])
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		reader := bufio.NewReader(response.Body)
		var before bytes.Buffer
		for !strings.Contains(before.String(), "one two ") {
			line, err := reader.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			before.WriteString(line)
		}
		close(goOn)
		rest, err := io.ReadAll(reader)
		if got := hear(t, d, before.String()+string(rest)); err != nil || got.text != "one two three four" || got.ends != 1 {
			t.Error(got, err)
		}
	})
}

func TestOnlyItsOwnClientTrustsATLSServer(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{TLS: true})
		if _, _, err := answer(t, s, d); err == nil || s.Counts().Requests != 0 {
			t.Error("a stranger was let in")
		}
		s.Script("", llmtest.Say("ok"), llmtest.Say("one two three four").With(llmtest.After(1, llmtest.Reset)))
		response, err := ask(t.Context(), s.Client(), s, d, "", bodies[d])
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.ProtoMajor != 2 || hear(t, d, string(body)).text != "ok" {
			t.Error(response, string(body), err)
		}
		response, err = ask(t.Context(), s.Client(), s, d, "", bodies[d])
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err == nil {
			t.Errorf("a stream that was reset ends well: %q", body)
		}
	})
}

func TestARefusedConnectionIsRefused(t *testing.T) {
	t.Parallel()
	url := llmtest.Refused(t)
	for range 3 {
		response, err := http.Get(url)
		if err == nil {
			response.Body.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
	}
}

func TestCloseEndsWhatHangs(t *testing.T) {
	t.Parallel()
	s := llmtest.New(llmtest.Options{})
	s.Script("", llmtest.Say("ok").With(llmtest.Fault{Kind: llmtest.Silent}))
	done := make(chan error)
	go func() {
		_, _, err := answer(t, s, llmtest.OpenAI)
		done <- err
	}()
	if err := s.Wait(t.Context(), func(c llmtest.Counts) bool { return c.Open == 1 }); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := <-done; err == nil {
		t.Error("the request was answered")
	}
	if c := s.Counts(); c.Gone != 0 || c.Open != 0 {
		t.Errorf("%+v", c)
	}
}

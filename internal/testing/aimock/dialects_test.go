package aimock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/anthropic"
	"github.com/gemworker/gem/internal/provider/gemini"
	"github.com/gemworker/gem/internal/provider/openai"
	"github.com/gemworker/gem/internal/testing/aimock"
)

// dialects are our dialects, and the usage that each reports for a request of 31 tokens in and 17 out.
var dialects = []struct {
	name  string
	base  string
	open  func(provider.Endpoint) provider.Provider
	usage map[string]int
}{
	{"openai", "/v1", openai.New, map[string]int{"prompt_tokens": 31, "completion_tokens": 17}},
	{"anthropic", "", anthropic.New, map[string]int{"input_tokens": 31, "output_tokens": 17}},
	{"gemini", "", gemini.New, map[string]int{"promptTokenCount": 31, "candidatesTokenCount": 17}},
}

// each requests a fixture's answer in each dialect and with each chunk size.
func each(t *testing.T, fixture aimock.Fixture, r provider.Request,
	test func(t *testing.T, dialect string, a *provider.Answer, err error)) {
	t.Helper()
	var fixtures []aimock.Fixture
	chunks := []int{1, 7, 1000}
	model := func(dialect string, chunk int) string { return fmt.Sprintf("model-%s-%d-chunk", dialect, chunk) }
	for _, d := range dialects {
		for _, chunk := range chunks {
			f := fixture
			f.Match.Model, f.ChunkSize = model(d.name, chunk), chunk
			if f.Response.Error == nil {
				f.Response.Usage = d.usage
			}
			fixtures = append(fixtures, f)
		}
	}
	s := aimock.Start(t, aimock.Options{Key: "secret", Fixtures: fixtures})
	for _, d := range dialects {
		p := d.open(provider.Endpoint{BaseURL: s.URL + d.base, Key: "secret", HTTP: provider.NewHTTP(nil)})
		for _, chunk := range chunks {
			t.Run(fmt.Sprintf("%s by %d", d.name, chunk), func(t *testing.T) {
				r := r
				r.Model = model(d.name, chunk)
				a, err := complete(t, p, r)
				test(t, d.name, a, err)
			})
		}
	}
}

func complete(t *testing.T, p provider.Provider, r provider.Request) (*provider.Answer, error) {
	t.Helper()
	r.MaxOutputTokens = 100
	if r.Messages == nil {
		r.Messages = []provider.Message{{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "hi"}}}}
	}
	s, err := p.Stream(t.Context(), &r)
	if err != nil {
		return nil, err
	}
	return provider.Collect(s, nil)
}

func TestADialectReadsText(t *testing.T) {
	t.Parallel()
	// no character of four bytes: aimock splits those, which no provider does
	const said = "Grüße, \"Ω\"\n\\ <end> of the text"
	each(t, aimock.Fixture{Response: aimock.Response{Content: said}}, provider.Request{System: "Be brief."},
		func(t *testing.T, _ string, a *provider.Answer, err error) {
			if err != nil {
				t.Fatal(err)
			}
			if a.Text() != said || a.Stop != provider.EndTurn {
				t.Errorf("%+v", a)
			}
			if a.Usage.Input != 31 || a.Usage.Output != 17 || !a.Usage.Known {
				t.Errorf("usage is %+v", a.Usage)
			}
		})
}

func TestADialectReadsThoughts(t *testing.T) {
	t.Parallel()
	fixture := aimock.Fixture{Response: aimock.Response{Content: "Four.", Reasoning: "Two and two …",
		ReasoningSignature: "c2lnbmVk=="}}
	each(t, fixture, provider.Request{Thinks: true}, func(t *testing.T, dialect string, a *provider.Answer, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if a.Text() != "Four." || len(a.Parts) != 2 || a.Parts[0].Type != provider.Thinking ||
			a.Parts[0].Text != "Two and two …" {
			t.Errorf("%+v", a.Parts)
		}
		if dialect == "anthropic" && a.Parts[0].Signature != "c2lnbmVk==" {
			t.Errorf("the signature is %q", a.Parts[0].Signature)
		}
	})
}

func TestADialectReadsCallsOfTools(t *testing.T) {
	t.Parallel()
	const first, second = `{"where":"Zürich \"Hbf\"","days":2}`, `{}`
	fixture := aimock.Fixture{Response: aimock.Response{ToolCalls: []aimock.ToolCall{
		{ID: "call_1", Name: "weather", Arguments: first}, {ID: "call_2", Name: "weather", Arguments: second},
	}}}
	tools := []provider.Tool{{Name: "weather", Description: "tells it", Parameters: json.RawMessage(`{"type":"object"}`)}}
	each(t, fixture, provider.Request{Tools: tools}, func(t *testing.T, dialect string, a *provider.Answer, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Parts) != 2 || a.Stop != provider.ToolUse {
			t.Fatalf("%s: %+v", a.Stop, a.Parts)
		}
		for i, want := range []string{first, second} {
			p := a.Parts[i]
			if p.Type != provider.ToolCall || p.Name != "weather" || !same(t, p.Arguments, want) || p.ID == "" {
				t.Errorf("call %d: %+v", i, p)
			}
			if dialect != "gemini" && p.ID != []string{"call_1", "call_2"}[i] {
				t.Errorf("the id of call %d is %s", i, p.ID)
			}
		}
		if a.Parts[0].ID == a.Parts[1].ID {
			t.Error("both calls have one id")
		}
	})
}

// same compares JSON. Gemini's arguments are an object, whose members have no order.
func same(t *testing.T, got json.RawMessage, want string) bool {
	t.Helper()
	var a, b map[string]any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil {
		return false
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func TestADialectGivesResultsBack(t *testing.T) {
	t.Parallel()
	yes := true
	fixture := aimock.Fixture{Match: aimock.Match{HasToolResult: &yes}, Response: aimock.Response{Content: "It rains."}}
	r := provider.Request{
		Tools: []provider.Tool{{Name: "weather", Parameters: json.RawMessage(`{"type":"object"}`)}},
		Messages: []provider.Message{
			{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "How is the weather?"}}},
			{Role: provider.Assistant, Content: provider.Content{{Type: provider.ToolCall, ID: "call_1", Name: "weather",
				Arguments: json.RawMessage(`{}`)}}},
			{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "call_1",
				Content: "rain"}}},
		},
	}
	each(t, fixture, r, func(t *testing.T, _ string, a *provider.Answer, err error) {
		if err != nil || a.Text() != "It rains." {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

func TestADialectReadsThatAnAnswerIsCutAtItsBound(t *testing.T) {
	t.Parallel()
	each(t, aimock.Fixture{Response: aimock.Response{Content: "half a sen", FinishReason: "length"}}, provider.Request{},
		func(t *testing.T, _ string, a *provider.Answer, err error) {
			if err != nil || a.Stop != provider.MaxTokens {
				t.Errorf("%+v, %v", a, err)
			}
		})
}

func TestADialectReadsARefusal(t *testing.T) {
	t.Parallel()
	each(t, aimock.Fixture{Response: aimock.Response{Content: "I", FinishReason: "content_filter"}}, provider.Request{},
		func(t *testing.T, dialect string, a *provider.Answer, err error) {
			if dialect == "anthropic" {
				return // aimock cannot express it in this dialect
			}
			if err != nil || a.Stop != provider.Refusal {
				t.Errorf("%+v, %v", a, err)
			}
		})
}

func TestADialectReadsFailures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status, pause int
		want          provider.ErrorKind
	}{
		{400, 0, provider.BadRequest}, {403, 0, provider.Unauthorized}, {404, 0, provider.NotFound},
		{413, 0, provider.TooLarge}, {422, 0, provider.BadRequest},
		{429, 7, provider.RateLimited}, {500, 0, provider.Unavailable}, {503, 0, provider.Overloaded},
		{529, 0, provider.Overloaded},
	}
	var fixtures []aimock.Fixture
	for _, test := range tests {
		failure := aimock.Response{Error: &aimock.Failure{Message: "not today"}, Status: test.status, RetryAfter: test.pause}
		fixtures = append(fixtures, aimock.Fixture{Match: aimock.Match{Model: fmt.Sprint("status-", test.status)},
			Response: failure})
	}
	fixtures = append(fixtures, aimock.Fixture{Match: aimock.Match{Model: "breaks"},
		Response: aimock.Response{Content: "a text of some length"}, ChunkSize: 3, Latency: 5, TruncateAfterChunks: 4})
	s := aimock.Start(t, aimock.Options{Key: "secret", Fixtures: fixtures})
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			p := d.open(provider.Endpoint{BaseURL: s.URL + d.base, Key: "secret", HTTP: provider.NewHTTP(nil)})
			for _, test := range tests {
				_, err := complete(t, p, provider.Request{Model: fmt.Sprint("status-", test.status)})
				var failed *provider.Error
				if !errors.As(err, &failed) || failed.Kind != test.want || failed.Status != test.status {
					t.Errorf("%d: %+v", test.status, err)
					continue
				}
				if failed.RetryAfter != time.Duration(test.pause)*time.Second {
					t.Errorf("%d: a pause of %s", test.status, failed.RetryAfter)
				}
				if said := strings.HasPrefix(failed.Message, "not today"); said == (test.want == provider.Unauthorized) {
					t.Errorf("%d: %q", test.status, failed.Message)
				}
			}
			a, err := complete(t, p, provider.Request{Model: "breaks"})
			var failed *provider.Error
			if !errors.As(err, &failed) || failed.Kind != provider.Cut {
				t.Errorf("a stream that breaks: %+v, %+v", a, err)
			}
			stranger := d.open(provider.Endpoint{BaseURL: s.URL + d.base, Key: "another", HTTP: provider.NewHTTP(nil)})
			_, err = complete(t, stranger, provider.Request{Model: "breaks"})
			if !errors.As(err, &failed) || failed.Kind != provider.Unauthorized || failed.Message != "" {
				t.Errorf("a wrong key: %+v", err)
			}
		})
	}
}

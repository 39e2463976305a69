package llmtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/anthropic"
	"github.com/gemworker/gem/internal/provider/gemini"
	"github.com/gemworker/gem/internal/provider/openai"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// dialectOf returns our client of a dialect for a server.
func dialectOf(s *llmtest.Server, d llmtest.Dialect) provider.Provider {
	e := provider.Endpoint{BaseURL: s.BaseURL(d), Key: "secret", HTTP: provider.NewHTTP(nil)}
	switch d {
	case llmtest.Anthropic:
		return anthropic.New(e)
	case llmtest.OpenAI:
		return openai.New(e)
	}
	return gemini.New(e)
}

// complete requests an answer and returns the received part, including with an error.
func complete(ctx context.Context, p provider.Provider, r provider.Request,
	seen func(*provider.Event)) (*provider.Answer, error) {
	r.Model, r.MaxOutputTokens = "model-a", 100
	if r.Messages == nil {
		r.Messages = []provider.Message{{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "hi"}}}}
	}
	s, err := p.Stream(ctx, &r)
	if err != nil {
		return &provider.Answer{}, err
	}
	return provider.Collect(s, seen)
}

func TestOurDialectsReadOneAnswerInTheSameWay(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		script := llmtest.Script{
			Parts: []provider.Part{
				{Type: provider.Thinking, Text: "Two and two …", Signature: "c2lnbmVk/+=="},
				{Type: provider.Text, Text: "\"Grüße\", \\ 🌍 <end>\n"},
				{Type: provider.ToolCall, ID: "call_0", Name: "add",
					Arguments: json.RawMessage(`{"text":"a\"ü\\n🌍\u2028","list":[1,{"b":null}]}`)},
				{Type: provider.ToolCall, ID: "call_1", Name: "none", Arguments: json.RawMessage(`{}`)},
			},
			Usage:     &provider.Usage{Input: 100, Output: 50, CacheRead: 40, Reasoning: 20, Known: true},
			Model:     "model-a-2026",
			RequestID: "req_of_the_test", KeepAlives: 2,
		}
		want := provider.Answer{Parts: script.Parts, Stop: provider.ToolUse, Model: script.Model, Usage: *script.Usage,
			RequestID: script.RequestID}
		want.ProviderStop = map[llmtest.Dialect]string{llmtest.Anthropic: "tool_use", llmtest.OpenAI: "tool_calls",
			llmtest.Gemini: "STOP"}[d]
		want.Parts = append([]provider.Part(nil), want.Parts...)
		switch d {
		case llmtest.Anthropic:
			want.Usage.Reasoning = 0 // this dialect does not report it
		case llmtest.OpenAI:
			want.Parts[0].Signature = "" // this dialect has none
		}
		s := llmtest.Start(t, llmtest.Options{Key: "secret"})
		p := dialectOf(s, d)
		for _, cut := range []llmtest.Script{{}, {Delta: 1}, {Chunk: 1}, {Chunk: 3, Delta: 2}, {Chunk: 100}, {Delta: 10_000},
			{Delta: 10_000, Chunk: 64 << 10}} {
			script.Delta, script.Chunk = cut.Delta, cut.Chunk
			s.Script("", script)
			got, err := complete(t.Context(), p, provider.Request{Thinks: true,
				Tools: []provider.Tool{{Name: "add", Parameters: json.RawMessage(`{"type":"object"}`)}}}, nil)
			if err != nil {
				t.Fatalf("delta %d, chunk %d: %v", cut.Delta, cut.Chunk, err)
			}
			for i := range got.Parts {
				if d == llmtest.Gemini && got.Parts[i].Type == provider.ToolCall && i < len(want.Parts) {
					if got.Parts[i].ID == "" || i > 2 && got.Parts[i].ID == got.Parts[i-1].ID {
						t.Errorf("call %d has the id %q", i, got.Parts[i].ID)
					}
					got.Parts[i].ID = want.Parts[i].ID // created by our client
				}
				got.Parts[i].Arguments = canonical(t, got.Parts[i].Arguments)
			}
			for i := range want.Parts {
				want.Parts[i].Arguments = canonical(t, want.Parts[i].Arguments)
			}
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("delta %d, chunk %d:\n got %+v\nwant %+v", cut.Delta, cut.Chunk, *got, want)
			}
		}
	})
}

// canonical returns JSON with sorted members. The arguments of one dialect are an object on the wire, whose members
// have no order.
func canonical(t *testing.T, raw json.RawMessage) json.RawMessage {
	t.Helper()
	if raw == nil {
		return nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	sorted, _ := json.Marshal(v)
	return sorted
}

func TestOurDialectsReadEachStop(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		p := dialectOf(s, d)
		for _, stop := range []provider.Stop{provider.EndTurn, provider.MaxTokens, provider.StopSequence, provider.Refusal} {
			script := llmtest.Say("ok")
			script.Stop = stop
			s.Script("", script)
			want := stop
			if stop == provider.StopSequence && d != llmtest.Anthropic {
				want = provider.EndTurn // the other dialects have one word for both
			}
			if got, err := complete(t.Context(), p, provider.Request{}, nil); err != nil || got.Stop != want ||
				got.Text() != "ok" {
				t.Errorf("%s: %+v, %v", stop, got, err)
			}
		}
	})
}

func TestACallUnderAnUnknownStopIsACall(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		script := llmtest.Call("c1", "add", `{"a":1}`)
		script.ProviderStop = "SOMETHING_NEW"
		s.Script("", script)
		if got, err := complete(t.Context(), dialectOf(s, d), provider.Request{}, nil); err != nil ||
			got.Stop != provider.ToolUse || got.ProviderStop != "SOMETHING_NEW" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// wanted returns the kind of error of a fault, or "".
func wanted(f llmtest.Fault) provider.ErrorKind {
	switch f.Kind {
	case llmtest.FailedStatus:
		switch f.Status {
		case 401, 402, 403:
			return provider.Unauthorized
		case 404:
			return provider.NotFound
		case 413:
			return provider.TooLarge
		case 400, 422:
			return provider.BadRequest
		case 429:
			return provider.RateLimited
		case 503, 529:
			return provider.Overloaded
		}
		return provider.Unavailable
	case llmtest.TooLong:
		return provider.ContextLength
	case llmtest.Redirected:
		return provider.NotFound
	case llmtest.ErrorFirst, llmtest.ErrorLate:
		return provider.Overloaded
	case llmtest.Reset:
		if f.After < 0 {
			return provider.Unreachable
		}
		return provider.Cut
	case llmtest.Broken, llmtest.CleanCut:
		return provider.Cut
	case llmtest.Garbage:
		return provider.Garbled
	case llmtest.EndlessLine:
		return provider.AnswerTooBig
	}
	return ""
}

func TestOurDialectsMapEachFault(t *testing.T) {
	const said = "one two three four five six"
	each(t, func(t *testing.T, d llmtest.Dialect) {
		for _, f := range llmtest.Faults() {
			if f.Kind == llmtest.Silent || f.Kind == llmtest.Hanging || f.Kind == llmtest.Stalled {
				continue // the caller's timeouts end those
			}
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel()
				s := llmtest.Start(t, llmtest.Options{})
				f.Location = s.URL + "/elsewhere"
				s.Script("", llmtest.Say(said).With(f))
				content := 0
				got, err := complete(t.Context(), dialectOf(s, d), provider.Request{}, func(e *provider.Event) {
					if e.IsContent() {
						content++
					}
				})
				if n := s.Counts().Requests; n != 1 {
					t.Errorf("there were %d requests", n)
				}
				want := wanted(f)
				if want == "" {
					if err != nil || got.Text() != said || got.Stop != provider.EndTurn ||
						got.Usage.Known != (f.Kind != llmtest.NoUsage) {
						t.Fatalf("%+v, %v", got, err)
					}
					return
				}
				var failed *provider.Error
				if !errors.As(err, &failed) || failed.Kind != want {
					t.Fatalf("%+v is no %s (after %+v)", err, want, got)
				}
				if deltas := max(0, f.After); content != deltas || !strings.HasPrefix(said, got.Text()) ||
					len(got.Text()) != min(8*deltas, len(said)) {
					t.Errorf("%d pieces came: %q", content, got.Text())
				}
				switch f.RetryForm {
				case llmtest.InSeconds, llmtest.InMilliseconds:
					if failed.RetryAfter != f.Retry {
						t.Errorf("a pause of %s", failed.RetryAfter)
					}
				case llmtest.AtDate:
					if failed.RetryAfter <= 0 || failed.RetryAfter > f.Retry {
						t.Errorf("a pause of %s", failed.RetryAfter)
					}
				case llmtest.InRetryInfo:
					if d == llmtest.Gemini && failed.RetryAfter != f.Retry {
						t.Errorf("a pause of %s", failed.RetryAfter)
					}
				default:
					if failed.RetryAfter != 0 {
						t.Errorf("a pause of %s, which nobody asked for", failed.RetryAfter)
					}
				}
				if f.Kind == llmtest.FailedStatus && (failed.Status != f.Status ||
					strings.Contains(failed.Message, "scripted") == (want == provider.Unauthorized)) {
					t.Errorf("%+v", failed)
				}
			})
		}
	})
}

func TestOurDialectsTakeNoPartOfABodyForAWholeOne(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		script := llmtest.Say("Grüße")
		script.Parts = append(script.Parts, llmtest.Call("c1", "add", `{"a":"ü"}`).Parts...)
		s.Script("", script)
		_, body, err := answer(t, s, d)
		if err != nil {
			t.Fatal(err)
		}
		terminal := map[llmtest.Dialect]string{llmtest.Anthropic: `{"type":"message_stop"}`,
			llmtest.OpenAI: `"finish_reason":"tool_calls"`, llmtest.Gemini: `"finishReason":"STOP"`}[d]
		whole := strings.Index(body, terminal)
		if whole < 0 {
			t.Fatal(body)
		}
		whole += strings.Index(body[whole:], "\n") // the end of the line
		p := dialectOf(s, d)
		for n := 1; n <= len(body); n++ {
			if n%5 > 0 && n < whole-100 {
				continue // that is enough
			}
			script.Raw = body[:n]
			s.Script("", script)
			got, err := complete(t.Context(), p, provider.Request{}, nil)
			var failed *provider.Error
			switch {
			case n == len(body) && err != nil:
				t.Errorf("the whole: %v", err)
			case n < whole-2 && !errors.As(err, &failed): // a line can be complete without its final CRLF
				t.Errorf("%d of %d bytes: %+v, %v", n, len(body), got, err)
			case err == nil && (got.Stop != provider.ToolUse || len(got.Parts) != 2):
				t.Errorf("%d of %d bytes: %+v", n, len(body), got)
			case err != nil && (!errors.As(err, &failed) || failed.Kind != provider.Cut && failed.Kind != provider.Garbled):
				t.Errorf("%d of %d bytes: %v", n, len(body), err)
			}
		}
	})
}

func TestOurDialectsEndAtOnceWithTheirContext(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		for _, f := range []llmtest.Fault{{Kind: llmtest.Silent}, {Kind: llmtest.Hanging}, llmtest.After(0, llmtest.Stalled),
			llmtest.After(3, llmtest.Stalled)} {
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel()
				s := llmtest.Start(t, llmtest.Options{})
				s.Script("", llmtest.Say("one two three four five six").With(f))
				why := errors.New("the test ends it")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				done := make(chan error, 1)
				go func() {
					_, err := complete(ctx, dialectOf(s, d), provider.Request{}, nil)
					done <- err
				}()
				if err := s.Wait(t.Context(), func(c llmtest.Counts) bool {
					return c.Open == 1 && c.Deltas == f.After
				}); err != nil {
					t.Fatal(err)
				}
				cancel(why)
				if err := <-done; !errors.Is(err, why) {
					t.Errorf("%v", err)
				}
				if err := s.Wait(t.Context(), func(c llmtest.Counts) bool { return c.Gone == 1 && c.Open == 0 }); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

func TestOurDialectsEndARequestWhenTheirStreamIsClosed(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		s.Script("", llmtest.Say("one two three four five six").With(llmtest.After(2, llmtest.Stalled)))
		stream, err := dialectOf(s, d).Stream(t.Context(), &provider.Request{
			Model: "model-a", MaxOutputTokens: 100, Messages: []provider.Message{{Role: provider.User,
				Content: provider.Content{{Type: provider.Text, Text: "hi"}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for content := 0; content < 2 && stream.Next(); {
			if e := stream.Current(); e.IsContent() {
				content++
			}
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Wait(t.Context(), func(c llmtest.Counts) bool { return c.Gone == 1 && c.Open == 0 }); err != nil {
			t.Error(err)
		}
		for stream.Next() { // what was read before may still arrive
			if e := stream.Current(); e.IsContent() || e.Kind == provider.Ended {
				t.Errorf("a closed stream goes on: %+v", e)
			}
		}
	})
}

func TestOurDialectsAskForTheSame(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{Key: "secret"})
		cold, most := 0.0, 0.9
		r := provider.Request{
			System: "Be brief.", Temperature: &cold, TopP: &most, Stop: []string{"END"}, ToolChoice: provider.ChooseRequired,
			Target: "a/b", Thinks: true, Effort: provider.EffortHigh,
			Tools: []provider.Tool{{Name: "add", Description: "adds",
				Parameters: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`)}},
			Messages: []provider.Message{
				{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: "How much is it?"}}},
				{Role: provider.Assistant, Content: provider.Content{
					{Type: provider.Thinking, Text: "Hm.", Signature: "c2lnbmVk/+==", Target: "a/b"},
					{Type: provider.Thinking, Text: "not mine", Signature: "YW5vdGhlcg==", Target: "c/d"},
					{Type: provider.Text, Text: "I add."},
					{Type: provider.ToolCall, ID: "c1", Name: "add", Arguments: json.RawMessage(`{"a":1}`), Signature: "Y2FsbA==",
						Target: "a/b"},
				}},
				{Role: provider.FromTool, Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "c1", Content: "2"}}},
			},
		}
		if _, err := complete(t.Context(), dialectOf(s, d), r, nil); err != nil {
			t.Fatal(err)
		}
		got := s.Last().Asked
		if got.Model != "model-a" || got.System != r.System || got.MaxOutputTokens != 100 ||
			!reflect.DeepEqual(got.Stop, r.Stop) || got.ToolChoice != r.ToolChoice {
			t.Errorf("%+v", got)
		}
		if d != llmtest.Anthropic { // Anthropic's models that think accept neither
			if got.Temperature == nil || *got.Temperature != 0 || got.TopP == nil || fmt.Sprintf("%.4f", *got.TopP) != "0.9000" {
				t.Errorf("temperature %v, top_p %v", got.Temperature, got.TopP)
			}
		}
		if len(got.Tools) != 1 || got.Tools[0].Name != "add" || got.Tools[0].Description != "adds" ||
			string(canonical(t, got.Tools[0].Parameters)) != string(canonical(t, r.Tools[0].Parameters)) {
			t.Errorf("%+v", got.Tools)
		}
		var turns []string
		for _, m := range got.Messages {
			for _, p := range m.Content {
				turns = append(turns, fmt.Sprintf("%s %s %q", m.Role, p.Type, p.Text+p.Content+p.Name))
			}
		}
		want := []string{`user text "How much is it?"`, `assistant thinking "Hm."`, `assistant text "I add."`,
			`assistant tool_call "add"`, `tool tool_result "2"`}
		if d == llmtest.OpenAI { // OpenAI's dialect returns thoughts only to servers that are known to accept them
			want = append(want[:1], want[2:]...)
		}
		if d == llmtest.Gemini {
			want[len(want)-1] = `tool tool_result "2add"` // this dialect names the tool
		}
		if !reflect.DeepEqual(turns, want) {
			t.Errorf("got  %q\nwant %q", turns, want)
		}
		body := string(s.Last().Body)
		if strings.Contains(body, "YW5vdGhlcg==") || strings.Contains(body, "not mine") {
			t.Error("a thought of another target was sent")
		}
		if d == llmtest.Anthropic && !strings.Contains(body, `"c2lnbmVk/+=="`) || d == llmtest.Gemini &&
			!strings.Contains(body, "Y2FsbA==") {
			t.Errorf("a signature of its own is missing: %s", body)
		}
	})
}

func TestOurDialectsShowNoKey(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		p := dialectOf(s, d)
		for _, f := range []llmtest.Fault{
			{Kind: llmtest.FailedStatus, Status: 400, Message: "your key secret is bad, as is sk-abcdefghijklmnopqrstuvwx"},
			{Kind: llmtest.FailedStatus, Status: 401, Message: "secret is wrong"},
			{Kind: llmtest.FailedStatus, Status: 500, Raw: "<html>secret</html>"}, {Kind: llmtest.ErrorFirst, Message: "secret"},
			{Kind: llmtest.ErrorLate, After: 2, Message: "secret"},
			{Kind: llmtest.Redirected, Location: "http://127.0.0.1:1/?key=secret"},
		} {
			script := llmtest.Say("one two three four").With(f)
			script.RequestID = "secret"
			s.Script("", script)
			_, err := complete(t.Context(), p, provider.Request{}, nil)
			if err == nil {
				t.Fatalf("%v: no error", f)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				var failed *provider.Error
				if errors.As(e, &failed) && strings.Contains(failed.Message+failed.RequestID, "secret") ||
					strings.Contains(e.Error(), "secret") || strings.Contains(e.Error(), "sk-abc") {
					t.Errorf("%v: %v", f, e)
				}
			}
		}
	})
}

package llmtest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// odd are unusual texts that a caller may send.
var odd = []string{"", " ", "\n\n", "hello", "\u2028\u2029\ufeff", "\"}]}\\", "<|im_end|>", "🌍👩‍👩‍👧", "שלום \u202e",
	"data: [DONE]\n\n", strings.Repeat("é", 20_000), "e\u0301\u0001\u001f"}

// conversation returns a conversation that nobody should send: roles in any order, results without calls, empty parts,
// and thoughts of other models.
func conversation(r *rand.Rand) (all []provider.Message) {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for range 1 + r.IntN(8) {
		m := provider.Message{Role: provider.Role(pick("user", "assistant", "tool"))}
		for range r.IntN(5) {
			id := pick("c1", "c2", "call_0", strings.Repeat("i", 200), "ü/ \n")
			switch r.IntN(4) {
			case 0:
				m.Content = append(m.Content, provider.Part{Type: provider.Text, Text: odd[r.IntN(len(odd))],
					Signature: pick("", "", "no base64!"), Target: pick("", "own", "other")})
			case 1:
				m.Content = append(m.Content, provider.Part{Type: provider.Thinking, Text: odd[r.IntN(len(odd))],
					Signature: pick("", "c2ln", "ü\u2028"), Redacted: r.IntN(2) == 0, Target: pick("own", "other")})
			case 2:
				m.Content = append(m.Content, provider.Part{Type: provider.ToolCall, ID: id,
					Name: pick("weather", "no such tool", "ü"), Arguments: json.RawMessage(
						pick("", "{}", `{"a":[1,{"b":null}]}`, `{"n":12345678901234567890.5e-300}`)),
					RawArguments: pick("", "{\"a"), Signature: pick("", "c2ln"), Target: pick("", "own", "other")})
			default:
				m.Content = append(m.Content, provider.Part{Type: provider.ToolResult, ToolCallID: id,
					Content: odd[r.IntN(len(odd))], IsError: r.IntN(2) == 0})
			}
		}
		all = append(all, m)
	}
	return all
}

// told returns the content of a conversation, whatever its form: its texts, and the number of calls and results.
func told(messages []provider.Message) string {
	var texts strings.Builder
	calls, results := 0, 0
	for _, m := range messages {
		for _, p := range m.Content {
			switch p.Type {
			case provider.Text:
				texts.WriteString(p.Text)
			case provider.ToolCall:
				calls++
			case provider.ToolResult:
				results++
			case provider.Thinking:
			}
		}
	}
	return fmt.Sprintf("%d calls, %d results, %q", calls, results, texts.String())
}

func TestOurDialectsSendAnyConversation(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		p := dialectOf(s, d)
		for seed := range uint64(300) {
			r := provider.Request{Messages: conversation(rand.New(rand.NewPCG(seed, 14))), Target: "own", Thinks: seed%2 == 0,
				Effort: provider.EffortHigh, //nolint:gosec // a test
				Tools:  []provider.Tool{{Name: "weather", Parameters: json.RawMessage(`{"type":"object"}`)}}}
			before := s.Counts().Requests
			got, err := complete(t.Context(), p, r, nil)
			if n := s.Counts().Requests - before; n != 1 {
				t.Fatalf("%d: %d requests, %v", seed, n, err)
			}
			var failed *provider.Error
			switch {
			case errors.As(err, &failed) && failed.Kind == provider.BadRequest && len(s.Last().Asked.Messages) == 0:
				// nothing was left to send
			case err != nil || got.Text() != "ok":
				t.Errorf("%d: %q, %v", seed, got.Text(), err)
			default:
				if got, want := told(s.Last().Asked.Messages), told(r.Messages); got != want {
					t.Errorf("%d: the server was told\n%.300s\nand not\n%.300s", seed, got, want)
				}
			}
			if d == llmtest.Anthropic {
				alternates(t, s.Last().Body)
			}
		}
	})
}

// alternates checks what Anthropic's API requires: alternating turns of both sides, no empty turn, and no empty text.
func alternates(t *testing.T, body []byte) {
	t.Helper()
	var sent struct {
		Messages []struct {
			Role    string
			Content []struct{ Type, Text string }
		}
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		t.Fatal(err)
	}
	for i, m := range sent.Messages {
		if len(m.Content) == 0 || i > 0 && m.Role == sent.Messages[i-1].Role {
			t.Errorf("turn %d: %+v", i, m)
		}
		for _, c := range m.Content {
			if c.Type == "text" && c.Text == "" {
				t.Error("an empty text was sent")
			}
		}
	}
}

// The provider's own error about such a conversation reaches the caller, and no further request follows.
func TestAProvidersComplaintOfAConversationIsABadRequest(t *testing.T) {
	each(t, func(t *testing.T, d llmtest.Dialect) {
		s := llmtest.Start(t, llmtest.Options{})
		s.Script("", llmtest.Script{Fault: llmtest.Fault{Kind: llmtest.FailedStatus, Status: 400,
			Message: "messages.0: a tool_result without its tool_use"}})
		_, err := complete(t.Context(), dialectOf(s, d),
			provider.Request{Messages: []provider.Message{{Role: provider.FromTool,
				Content: provider.Content{{Type: provider.ToolResult, ToolCallID: "none", Content: "rain"}}}}}, nil)
		var failed *provider.Error
		if !errors.As(err, &failed) || failed.Kind != provider.BadRequest || failed.Status != 400 ||
			!strings.Contains(failed.Message, "without its tool_use") {
			t.Errorf("%+v", err)
		}
	})
}

package llmtest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// Script is how one request is answered. The zero value is an empty answer.
type Script struct {
	// Parts are the answer's texts, thoughts and calls of tools. A call's RawArguments, if any, are sent in place of its
	// Arguments.
	Parts []provider.Part
	// Stop is why the answer ends. Default: ToolUse if there is a call, else EndTurn.
	Stop provider.Stop
	// ProviderStop is sent in place of the dialect's word for Stop.
	ProviderStop string
	// Usage is sent as it is, in the dialect's own form. Default: what was asked and answered, counted by [Tokens].
	Usage *provider.Usage
	// Model is the one that answers. Default: the one that was asked for.
	Model string
	// RequestID is sent as the provider's. Default: req_1, req_2 and so on.
	RequestID string
	// Header has further headers of the response.
	Header http.Header

	// Raw, if any, is the body of the stream in place of all that: any bytes, such as a recorded answer or half of one. No
	// deltas are counted.
	Raw string

	// Delta is how many letters of a text, thought or arguments come in one event. Default: 8. Gemini sends arguments
	// whole.
	Delta int
	// Chunk is how many bytes of the body are written at once, wherever that cuts them. Default: one event.
	Chunk int
	// Splits are further places in the body, in bytes, between two writes.
	Splits []int
	// Delay is waited before each write but the first.
	Delay time.Duration
	// Before is called before the headers are sent (-1), and before each delta (0, 1, 2 …). ctx ends when the client or
	// the server is gone.
	Before func(ctx context.Context, delta int)
	// KeepAlives is how many signs of life come before the first delta: pings, comments or empty deltas, as the dialect
	// has them.
	KeepAlives int

	// Fault is what goes wrong.
	Fault Fault
}

// Say answers with a text.
func Say(text string) Script {
	return Script{Parts: []provider.Part{{Type: provider.Text, Text: text}}}
}

// Think answers with a thought, which is signed, and a text.
func Think(thought, signature, text string) Script {
	return Script{Parts: []provider.Part{{Type: provider.Thinking, Text: thought, Signature: signature},
		{Type: provider.Text, Text: text}}}
}

// Call answers with the call of a tool.
func Call(id, name, arguments string) Script {
	return Script{Parts: []provider.Part{{Type: provider.ToolCall, ID: id, Name: name,
		Arguments: json.RawMessage(arguments)}}}
}

// With returns the script with a fault.
func (s Script) With(f Fault) Script {
	s.Fault = f
	return s
}

// stop returns why the answer ends.
func (s *Script) stop() provider.Stop {
	if s.Stop != "" {
		return s.Stop
	}
	for _, p := range s.Parts {
		if p.Type == provider.ToolCall {
			return provider.ToolUse
		}
	}
	return provider.EndTurn
}

// word returns the dialect's word for why the answer ends.
func (s *Script) word(words map[provider.Stop]string) string {
	if s.ProviderStop != "" {
		return s.ProviderStop
	}
	return words[s.stop()]
}

// Tokens returns how many tokens a text has here: one for each four bytes begun.
func Tokens(text string) int64 { return int64(len(text)+3) / 4 }

// used returns the usage of an answer.
func (s *Script) used(asked *provider.Request) provider.Usage {
	if s.Usage != nil {
		return *s.Usage
	}
	u := provider.Usage{Input: Tokens(asked.System), Known: true}
	for _, m := range asked.Messages {
		for _, p := range m.Content {
			u.Input += Tokens(p.Text) + Tokens(p.Name) + Tokens(string(p.Arguments)) + Tokens(p.Content)
		}
	}
	for _, t := range asked.Tools {
		u.Input += Tokens(t.Name) + Tokens(t.Description)
	}
	for _, p := range s.Parts {
		n := Tokens(p.Text) + Tokens(p.Name) + Tokens(arguments(&p))
		if p.Type == provider.Thinking {
			u.Reasoning += n
		}
		u.Output += n
	}
	return u
}

// arguments returns what is sent as a call's arguments.
func arguments(p *provider.Part) string {
	switch {
	case p.Type != provider.ToolCall:
		return ""
	case p.RawArguments != "":
		return p.RawArguments
	case len(p.Arguments) == 0:
		return "{}"
	}
	return string(p.Arguments)
}

// pieces cuts a text into deltas.
func (s *Script) pieces(text string) []string {
	size := s.Delta
	if size <= 0 {
		size = 8
	}
	var list []string
	for letters := []rune(text); len(letters) > 0; {
		n := min(size, len(letters))
		list = append(list, string(letters[:n]))
		letters = letters[n:]
	}
	return list
}

package llmtest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// Script is the answer to one request. The zero value is an empty answer.
type Script struct {
	// Parts are the texts, thoughts and tool calls of the answer. RawArguments of a call, if set, replace its Arguments.
	Parts []provider.Part
	// Stop is why the answer ends. The default is ToolUse if there is a call, otherwise EndTurn.
	Stop provider.Stop
	// ProviderStop replaces the dialect's word for Stop.
	ProviderStop string
	// Usage is sent unchanged, in the dialect's own form. By default [Tokens] counts the request and the answer.
	Usage *provider.Usage
	// Model is the model that answers. The default is the requested model.
	Model string
	// RequestID is the provider's request id. The defaults are req_1, req_2 and so on.
	RequestID string
	// Header has further headers of the response.
	Header http.Header

	// Raw, if set, replaces the body of the stream: any bytes, such as a recorded answer or half of one. No deltas are
	// counted.
	Raw string

	// Delta is the number of characters of a text, thought or arguments in one event. The default is 8. Gemini sends
	// arguments in one piece.
	Delta int
	// Chunk is the number of bytes per write, wherever that cuts the body. The default is one event.
	Chunk int
	// Splits are further positions in the body, in bytes, between two writes.
	Splits []int
	// Delay is the pause before each write except the first.
	Delay time.Duration
	// Before is called before the headers (with -1), and before each delta (0, 1, 2 …). ctx ends when the client has
	// gone or the server is closed.
	Before func(ctx context.Context, delta int)
	// KeepAlives is the number of signs of life before the first delta: pings, comments or empty deltas, depending on
	// the dialect.
	KeepAlives int

	// Fault is the fault of the answer.
	Fault Fault
}

// Say returns a script that answers with a text.
func Say(text string) Script {
	return Script{Parts: []provider.Part{{Type: provider.Text, Text: text}}}
}

// Think returns a script that answers with a signed thought and a text.
func Think(thought, signature, text string) Script {
	return Script{Parts: []provider.Part{{Type: provider.Thinking, Text: thought, Signature: signature},
		{Type: provider.Text, Text: text}}}
}

// Call returns a script that answers with a tool call.
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

// Tokens returns the number of tokens of a text, one for each four bytes, rounded up.
func Tokens(text string) int64 { return int64(len(text)+3) / 4 }

// used returns the usage of an answer.
func (s *Script) used(asked *provider.Request) provider.Usage {
	if s.Usage != nil {
		return *s.Usage
	}
	u := provider.Usage{Known: true}
	for _, p := range pieces(asked) {
		u.Input += p.tokens
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

// arguments returns the arguments that are sent for a call.
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

// pieces splits a text into deltas.
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

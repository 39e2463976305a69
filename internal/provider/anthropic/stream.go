package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

// stream reads the events of one response.
type stream struct {
	provider.Queue
	ctx context.Context
	key string

	request string
	began   bool
	blocks  map[int64]*block
	begun   int // blocks so far
	calls   int
	usage   provider.Usage
	start   usage
	stop    string
}

// block is a content block that has not stopped.
type block struct {
	call  int    // of a call to a tool, otherwise -1
	text  bool   // a text or a thought, which has no arguments
	input string // the arguments in its start event, for a server that sends them at once
}

// ended returns why the events ended before message_stop.
func (s *stream) ended(err error) error {
	if errors.Is(err, io.EOF) {
		err = &provider.Error{Kind: provider.Cut, Message: "the stream ended before its message_stop"}
	}
	return provider.InStream(provider.Broke(s.ctx, err, true, s.key), s.request)
}

func garbled() *provider.Error {
	return &provider.Error{Kind: provider.Garbled, Status: http.StatusOK, Message: "an event of the stream cannot be read"}
}

func (s *stream) alive() { s.Send(provider.Event{Kind: provider.KeepAlive}) }

// event is an event of the stream, with the needed fields.
type event struct {
	Type    string `json:"type"`
	Index   *int64 `json:"index"`
	Message struct {
		Model string          `json:"model"`
		Usage json.RawMessage `json:"usage"`
	} `json:"message"`
	ContentBlock struct {
		Type      string          `json:"type"`
		Text      string          `json:"text"`
		Thinking  string          `json:"thinking"`
		Signature string          `json:"signature"`
		Data      string          `json:"data"`
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Input     json.RawMessage `json:"input"`
	} `json:"content_block"`
	Delta struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		Thinking    string `json:"thinking"`
		Signature   string `json:"signature"`
		PartialJSON string `json:"partial_json"`
		StopReason  string `json:"stop_reason"`
	} `json:"delta"`
	Usage json.RawMessage `json:"usage"`
}

func (s *stream) read(raw provider.ServerEvent, err error) {
	if err != nil {
		s.Fail(s.ended(err))
		return
	}
	if len(raw.Data) == 0 {
		s.alive()
		return
	}
	// An event may have its type only in its data, or only as its name.
	var named struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw.Data, &named); err != nil && raw.Name != "error" {
		s.Fail(provider.InStream(garbled(), s.request))
		return
	}
	if named.Type == "" {
		named.Type = raw.Name
	}
	switch named.Type {
	case "error":
		s.Fail(late(raw.Data, s.Events.Header, s.key))
		return
	case "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
		"message_stop":
	default:
		s.alive()
		return
	}
	var e event
	if err := json.Unmarshal(raw.Data, &e); err != nil {
		s.Fail(provider.InStream(garbled(), s.request))
		return
	}
	if strings.HasPrefix(named.Type, "content_block_") && e.Index == nil { // its block is unknown
		s.Fail(provider.InStream(garbled(), s.request))
		return
	}
	switch named.Type {
	case "message_start":
		if s.began { // the blocks of another message would have the same indexes
			s.Fail(provider.InStream(garbled(), s.request))
			return
		}
		s.began = true
		s.Send(provider.Event{Kind: provider.Began, Model: e.Message.Model, RequestID: s.request})
		s.use(usageOf(e.Message.Usage))
	case "content_block_start":
		s.open(&e)
	case "content_block_delta":
		s.grow(&e)
	case "content_block_stop":
		s.close(*e.Index)
	case "message_delta":
		if reason := e.Delta.StopReason; reason != "" {
			s.stop = reason
		}
		s.use(usageOf(e.Usage))
	case "message_stop":
		for _, b := range s.blocks {
			if b.call >= 0 { // its arguments may be missing or cut, and would read as none
				s.Fail(provider.InStream(&provider.Error{Kind: provider.Cut,
					Message: "the stream ended in the middle of a call to a tool"}, s.request))
				return
			}
		}
		if s.stop == "" {
			s.Fail(provider.InStream(&provider.Error{Kind: provider.Cut, Message: "the stream ended without a reason"},
				s.request))
			return
		}
		s.Send(provider.Event{Kind: provider.Ended, Stop: stopOf(s.stop, s.calls > 0), ProviderStop: s.stop})
		s.Finish()
	}
	if s.Waiting() == 0 && !s.Done() {
		s.alive()
	}
}

func (s *stream) open(e *event) {
	if s.begun++; s.begun > provider.MaxParts {
		s.Fail(provider.InStream(&provider.Error{Kind: provider.AnswerTooBig,
			Message: fmt.Sprintf("the answer has more than %d blocks", provider.MaxParts)}, s.request))
		return
	}
	if b := s.blocks[*e.Index]; b != nil && b.call >= 0 || s.stop != "" { // see message_stop
		s.Fail(provider.InStream(garbled(), s.request))
		return
	}
	c := &e.ContentBlock
	b := &block{call: -1, text: c.Type == "text" || strings.HasSuffix(c.Type, "thinking")}
	s.blocks[*e.Index] = b
	switch c.Type {
	case "text":
		s.delta(provider.Event{Kind: provider.TextDelta, Delta: c.Text})
	case "thinking":
		s.delta(provider.Event{Kind: provider.ThinkingDelta, Delta: c.Thinking, Signature: c.Signature})
	case "redacted_thinking":
		s.delta(provider.Event{Kind: provider.ThinkingDelta, Signature: c.Data, Redacted: true})
	case "tool_use":
		b.call, s.calls = s.calls, s.calls+1
		if raw := string(c.Input); raw != "null" {
			b.input = raw
		}
		s.Send(provider.Event{Kind: provider.CallBegan, Index: b.call, ID: c.ID, Name: c.Name})
	}
}

// delta sends an event of content, unless it is empty.
func (s *stream) delta(e provider.Event) {
	if e.Delta != "" || e.Signature != "" {
		s.Send(e)
	}
}

// deltas are the kinds of content that a block grows by.
var deltas = []string{"text_delta", "thinking_delta", "signature_delta", "input_json_delta"}

func (s *stream) grow(e *event) {
	d, b := &e.Delta, s.blocks[*e.Index]
	switch known := slices.Contains(deltas, d.Type); {
	case known && d.Text == "" && d.Thinking == "" && d.Signature == "" && d.PartialJSON == "":
		return // some servers send empty ones for any block
	case b != nil && b.call >= 0 && d.Type != "input_json_delta": // it may hold arguments
		s.Fail(provider.InStream(garbled(), s.request))
		return
	}
	switch d.Type {
	case "text_delta":
		s.delta(provider.Event{Kind: provider.TextDelta, Delta: d.Text})
	case "thinking_delta":
		s.delta(provider.Event{Kind: provider.ThinkingDelta, Delta: d.Thinking})
	case "signature_delta":
		s.delta(provider.Event{Kind: provider.ThinkingDelta, Signature: d.Signature})
	case "input_json_delta":
		switch {
		case b == nil || b.text: // arguments of a call that would run without them
			s.Fail(provider.InStream(garbled(), s.request))
		case b.call >= 0 && d.PartialJSON != "": // the provider's own tools have arguments, too
			b.input = ""
			s.Send(provider.Event{Kind: provider.ArgumentsDelta, Index: b.call, Delta: d.PartialJSON})
		}
	}
}

func (s *stream) close(index int64) {
	if b := s.blocks[index]; b != nil && b.call >= 0 && b.input != "" {
		s.Send(provider.Event{Kind: provider.ArgumentsDelta, Index: b.call, Delta: b.input})
	}
	delete(s.blocks, index)
}

// usage has the API's counts. The start event has all counts, the end event has the changed ones, and each count is
// cumulative.
type usage struct {
	Input      *provider.Count `json:"input_tokens"`
	Output     *provider.Count `json:"output_tokens"`
	CacheRead  *provider.Count `json:"cache_read_input_tokens"`
	CacheWrite *provider.Count `json:"cache_creation_input_tokens"`
	Details    struct {
		Thinking *provider.Count `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// usageOf reads a usage. It ignores a usage with a figure that is not a number.
func usageOf(raw json.RawMessage) usage {
	var u usage
	if json.Unmarshal(raw, &u) != nil {
		return usage{}
	}
	return u
}

func (s *stream) use(u usage) {
	seen := false
	take := func(into **provider.Count, n *provider.Count) {
		if n != nil {
			seen, *into = true, n
		}
	}
	take(&s.start.Input, u.Input)
	take(&s.start.Output, u.Output)
	take(&s.start.CacheRead, u.CacheRead)
	take(&s.start.CacheWrite, u.CacheWrite)
	take(&s.start.Details.Thinking, u.Details.Thinking)
	if !seen {
		return
	}
	now := &s.start
	s.usage = provider.Usage{
		Input:      now.Input.Int() + now.CacheRead.Int() + now.CacheWrite.Int(),
		Output:     now.Output.Int(),
		CacheRead:  now.CacheRead.Int(),
		CacheWrite: now.CacheWrite.Int(),
		Reasoning:  now.Details.Thinking.Int(),
		Known:      true,
		NoInput:    now.Input == nil,
		NoOutput:   now.Output == nil,
	}
	s.Send(provider.Event{Kind: provider.UsageSeen, Usage: s.usage})
}

func stopOf(reason string, calls bool) provider.Stop {
	switch reason {
	case "end_turn", "pause_turn":
		return provider.EndTurn
	case "max_tokens", "model_context_window_exceeded":
		return provider.MaxTokens
	case "stop_sequence":
		return provider.StopSequence
	case "tool_use":
		return provider.ToolUse
	case "refusal":
		return provider.Refusal
	}
	if calls {
		return provider.ToolUse
	}
	return provider.EndTurn
}

package anthropic

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"github.com/gemworker/gem/internal/llm"
)

// maxBlocks is how many blocks an answer may have.
const maxBlocks = 4096

// stream reads the events of one response.
type stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	x      *llm.Exchange
	events ssestream.Decoder
	key    string

	queue []llm.Event
	cur   llm.Event
	err   error
	done  bool

	request string
	blocks  map[int64]*block
	begun   int // blocks so far
	calls   int
	usage   llm.Usage
	start   usage
	stop    string
}

// block is a content block that has not stopped.
type block struct {
	call  int    // of a call of a tool, otherwise -1
	input string // the arguments that its start brought, for a server that sends them whole
}

func (s *stream) Next() (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			s.fail(garbled())
			ok = false
		}
	}()
	for len(s.queue) == 0 {
		if s.done {
			return false
		}
		if !s.events.Next() {
			s.fail(s.ended())
			return false
		}
		s.read(s.events.Event())
	}
	s.cur, s.queue = s.queue[0], s.queue[1:]
	return true
}

func (s *stream) Current() llm.Event { return s.cur }
func (s *stream) Err() error         { return s.err }

func (s *stream) Close() error {
	s.cancel()
	return s.events.Close()
}

func (s *stream) fail(err error) {
	s.err, s.done, s.queue = err, true, nil
	s.cancel()
}

// ended says why the events ended before message_stop.
func (s *stream) ended() error {
	err := s.x.Err()
	if err == nil {
		err = s.events.Err()
	}
	if err == nil {
		err = &llm.Error{Kind: llm.Cut, Message: "the stream ended before its message_stop"}
	}
	return about(llm.Broke(s.ctx, err, true, s.key), s.request)
}

// about adds the id of the request to an error of a stream.
func about(err error, request string) error {
	e, ok := err.(*llm.Error) //nolint:errorlint // Broke returns it bare
	if !ok {
		return err
	}
	with := *e
	with.Status, with.RequestID = http.StatusOK, request
	return &with
}

func garbled() *llm.Error {
	return &llm.Error{Kind: llm.Garbled, Status: http.StatusOK, Message: "an event of the stream cannot be read"}
}

func (s *stream) send(e llm.Event) { s.queue = append(s.queue, e) }
func (s *stream) alive()           { s.send(llm.Event{Kind: llm.KeepAlive}) }

func (s *stream) read(raw ssestream.Event) {
	// An event may have its type in its data alone, or as its name alone.
	var named struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw.Data, &named); err != nil && raw.Type != "error" {
		s.fail(about(garbled(), s.request))
		return
	}
	if named.Type == "" {
		named.Type = raw.Type
	}
	switch named.Type {
	case "error":
		s.fail(late(raw.Data, s.x.Header, s.key))
		return
	case "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop":
	default:
		s.alive()
		return
	}
	var e sdk.MessageStreamEventUnion
	if err := json.Unmarshal(raw.Data, &e); err != nil {
		s.fail(about(garbled(), s.request))
		return
	}
	switch named.Type {
	case "message_start":
		s.send(llm.Event{Kind: llm.Began, Model: e.Message.Model, RequestID: s.request})
		s.use(usageOf(e.Message.Usage.RawJSON()))
	case "content_block_start":
		s.open(&e)
	case "content_block_delta":
		s.grow(&e)
	case "content_block_stop":
		s.close(e.Index)
	case "message_delta":
		if reason := string(e.Delta.StopReason); reason != "" {
			s.stop = reason
		}
		s.use(usageOf(e.Usage.RawJSON()))
	case "message_stop":
		if s.stop == "" {
			s.fail(about(&llm.Error{Kind: llm.Cut, Message: "the stream ended without a reason"}, s.request))
			return
		}
		s.send(llm.Event{Kind: llm.Ended, Stop: stopOf(s.stop, s.calls > 0), ProviderStop: s.stop})
		s.done = true
		s.cancel() // nothing more can come
	}
	if len(s.queue) == 0 && !s.done {
		s.alive()
	}
}

func (s *stream) open(e *sdk.MessageStreamEventUnion) {
	if s.begun++; s.begun > maxBlocks {
		s.fail(about(&llm.Error{Kind: llm.AnswerTooBig, Message: fmt.Sprintf("the answer has more than %d blocks", maxBlocks)}, s.request))
		return
	}
	b, c := &block{call: -1}, &e.ContentBlock
	s.blocks[e.Index] = b
	switch c.Type {
	case "text":
		s.delta(llm.Event{Kind: llm.TextDelta, Delta: c.Text})
	case "thinking":
		s.delta(llm.Event{Kind: llm.ThinkingDelta, Delta: c.Thinking, Signature: c.Signature})
	case "redacted_thinking":
		s.delta(llm.Event{Kind: llm.ThinkingDelta, Signature: c.Data, Redacted: true})
	case "tool_use":
		b.call, s.calls = s.calls, s.calls+1
		if raw := c.JSON.Input.Raw(); raw != "null" {
			b.input = raw
		}
		s.send(llm.Event{Kind: llm.CallBegan, Index: b.call, ID: c.ID, Name: c.Name})
	}
}

// delta sends an event of content, unless it brings nothing.
func (s *stream) delta(e llm.Event) {
	if e.Delta != "" || e.Signature != "" {
		s.send(e)
	}
}

func (s *stream) grow(e *sdk.MessageStreamEventUnion) {
	d := &e.Delta
	switch d.Type {
	case "text_delta":
		s.delta(llm.Event{Kind: llm.TextDelta, Delta: d.Text})
	case "thinking_delta":
		s.delta(llm.Event{Kind: llm.ThinkingDelta, Delta: d.Thinking})
	case "signature_delta":
		s.delta(llm.Event{Kind: llm.ThinkingDelta, Signature: d.Signature})
	case "input_json_delta":
		// The provider's own tools have arguments too, but those calls are none of ours.
		if b := s.blocks[e.Index]; b != nil && b.call >= 0 && d.PartialJSON != "" {
			b.input = ""
			s.send(llm.Event{Kind: llm.ArgumentsDelta, Index: b.call, Delta: d.PartialJSON})
		}
	}
}

func (s *stream) close(index int64) {
	if b := s.blocks[index]; b != nil && b.call >= 0 && b.input != "" {
		s.send(llm.Event{Kind: llm.ArgumentsDelta, Index: b.call, Delta: b.input})
	}
	delete(s.blocks, index)
}

// usage is what the API counts. Its start has all, its end what has changed, and each figure is the whole so far.
type usage struct {
	Input      *llm.Count `json:"input_tokens"`
	Output     *llm.Count `json:"output_tokens"`
	CacheRead  *llm.Count `json:"cache_read_input_tokens"`
	CacheWrite *llm.Count `json:"cache_creation_input_tokens"`
	Details    struct {
		Thinking *llm.Count `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// usageOf reads the usage that the SDK kept: in the SDK's own fields, a missing figure is 0.
// It ignores a usage with a figure that is not a number: the SDK takes such a figure for 0.
func usageOf(raw string) usage {
	var u usage
	if json.Unmarshal([]byte(raw), &u) != nil {
		return usage{}
	}
	return u
}

func (s *stream) use(u usage) {
	seen := false
	take := func(into **llm.Count, n *llm.Count) {
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
	n := func(p *llm.Count) int64 {
		if p == nil {
			return 0
		}
		return int64(*p)
	}
	now := &s.start
	s.usage = llm.Usage{
		Input:      n(now.Input) + n(now.CacheRead) + n(now.CacheWrite),
		Output:     n(now.Output),
		CacheRead:  n(now.CacheRead),
		CacheWrite: n(now.CacheWrite),
		Reasoning:  n(now.Details.Thinking),
		Known:      true,
	}
	s.send(llm.Event{Kind: llm.UsageSeen, Usage: s.usage})
}

func stopOf(reason string, calls bool) llm.Stop {
	switch reason {
	case "end_turn", "pause_turn":
		return llm.EndTurn
	case "max_tokens", "model_context_window_exceeded":
		return llm.MaxTokens
	case "stop_sequence":
		return llm.StopSequence
	case "tool_use":
		return llm.ToolUse
	case "refusal":
		return llm.Refusal
	}
	if calls {
		return llm.ToolUse
	}
	return llm.EndTurn
}

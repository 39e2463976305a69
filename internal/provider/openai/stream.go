package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/provider"
)

const (
	// maxCalls is the maximum number of tool calls in an answer.
	maxCalls = 256
	// linger is how long a stream waits for usage, or for the end of the body, after the end of the answer.
	linger = 2 * time.Second
)

// chunk is a piece of an answer, with the needed fields.
type chunk struct {
	ID      same            `json:"id"`
	Model   same            `json:"model"`
	Object  same            `json:"object"`
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type choice struct {
	Index        int             `json:"index"`
	Delta        delta           `json:"delta"`
	Message      *delta          `json:"message"` // used only in an answer that is not a stream
	FinishReason string          `json:"finish_reason"`
	Error        json.RawMessage `json:"error"`
}

type delta struct {
	Content          loose      `json:"content"`
	ReasoningContent loose      `json:"reasoning_content"`
	Reasoning        loose      `json:"reasoning"`
	Refusal          loose      `json:"refusal"`
	ToolCalls        []toolCall `json:"tool_calls"`
}

type toolCall struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments loose  `json:"arguments"`
	} `json:"function"`
	ExtraContent *extraContent `json:"extra_content"`
}

// extraContent has Gemini's signature of a call's thought.
type extraContent struct {
	Google struct {
		ThoughtSignature string `json:"thought_signature"`
	} `json:"google"`
}

type usage struct {
	Prompt        *provider.Count `json:"prompt_tokens"`
	Completion    *provider.Count `json:"completion_tokens"`
	Total         provider.Count  `json:"total_tokens"`
	CacheHit      provider.Count  `json:"prompt_cache_hit_tokens"` // DeepSeek's
	PromptDetails *struct {
		Cached     provider.Count `json:"cached_tokens"`
		CacheWrite provider.Count `json:"cache_write_tokens"` // OpenRouter's
	} `json:"prompt_tokens_details"`
	CompletionDetails *struct {
		Reasoning provider.Count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	Cost json.RawMessage `json:"cost"` // OpenRouter's number; Perplexity has an object
}

// UnmarshalJSON ignores a usage with a figure that is not a number: the answer is complete without it.
func (u *usage) UnmarshalJSON(data []byte) error {
	type plain usage
	var read plain
	if json.Unmarshal(data, &read) != nil {
		read = plain{}
	}
	*u = usage(read)
	return nil
}

// part is a piece of a content that is a list, as in Mistral's reasoning models. Thinking is a list of parts, or a
// text.
type part struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Thinking loose  `json:"thinking"`
}

// same is a text that each chunk repeats. It is kept from chunk to chunk.
type same string

func (s *same) UnmarshalJSON(data []byte) error {
	if n := len(data); n == len(*s)+2 && string(data[1:n-1]) == string(*s) {
		return nil
	}
	var l loose
	err := l.UnmarshalJSON(data)
	*s = same(l.text)
	return err
}

// loose is a value that some servers send as a text and others in another form, which it keeps raw.
type loose struct {
	text string
	raw  json.RawMessage
}

func (l *loose) UnmarshalJSON(data []byte) error {
	switch {
	case string(data) == "null":
		return nil
	case data[0] != '"':
		l.raw = slices.Clone(data)
		return nil
	}
	// Most texts are short and need no unescaping.
	if inside := data[1 : len(data)-1]; bytes.IndexByte(inside, '\\') < 0 && utf8.Valid(inside) {
		l.text = string(inside)
		return nil
	}
	return json.Unmarshal(data, &l.text)
}

// call is a tool call whose arguments are still arriving.
type call struct {
	number    int  // in the order of their beginning
	index     *int // the server's
	id        string
	ids       []string // other ids of its pieces: some servers give each piece its own
	name      string
	signature string
	arguments strings.Builder
	depth     int
	quoted    bool
	escaped   bool
	whole     bool
}

type stream struct {
	ctx       context.Context
	cancel    context.CancelFunc
	events    *provider.Events
	key       string
	requestID string

	event   provider.Event
	waiting []provider.Event
	at      int // of the next event in waiting
	chunk   chunk
	data    bytes.Reader
	decoder *json.Decoder
	decoded int64 // bytes that the decoder was given
	size    int
	calls   []*call
	refused bool
	began   bool
	ended   bool
	over    bool
	err     error
}

func (s *stream) Current() provider.Event { return s.event }
func (s *stream) Err() error              { return s.err }

// Close implements [provider.Stream].
func (s *stream) Close() error {
	s.cancel()
	return s.events.Close()
}

// Next implements [provider.Stream].
func (s *stream) Next() bool {
	for s.at == len(s.waiting) {
		s.waiting, s.at = s.waiting[:0], 0
		if s.over || s.err != nil {
			return false
		}
		s.read()
	}
	s.event = s.waiting[s.at]
	s.at++
	return true
}

// read reads the next chunk, and puts its events into waiting.
func (s *stream) read() {
	event, err := s.events.Next()
	data := event.Data
	switch {
	case errors.Is(err, io.EOF), string(data) == "[DONE]":
		s.end()
		return
	case err != nil:
		s.broke(err)
		return
	case event.Name == "error":
		s.complain(data)
		return
	case len(data) == 0:
		s.emit(provider.Event{Kind: provider.KeepAlive})
		return
	}
	c := &s.chunk
	c.Usage, c.Error = nil, c.Error[:0]
	clear(c.Choices)
	c.Choices = c.Choices[:0]
	if err := s.decode(data, c); err != nil {
		switch {
		case s.ended && s.allWhole():
			s.over = true
		case s.events.Torn:
			s.fail(&provider.Error{Kind: provider.Cut, Message: "the stream ended in the middle of a line"})
		default:
			s.garbled(provider.Clean("a piece of the stream is not of the dialect: "+err.Error(), s.key))
		}
		return
	}
	s.take(c, data)
	if len(s.waiting) == 0 && s.err == nil {
		s.emit(provider.Event{Kind: provider.KeepAlive})
	}
}

// decode reads one document. One decoder for all documents costs a third less than a decoder for each.
func (s *stream) decode(data []byte, c *chunk) error {
	if s.decoder == nil {
		s.decoder = json.NewDecoder(&s.data)
	}
	s.data.Reset(data)
	s.decoded += int64(len(data))
	if err := s.decoder.Decode(c); err != nil {
		return err
	}
	if s.decoder.InputOffset() != s.decoded { // the decoder would take the rest for the next chunk
		return errors.New("something follows its document")
	}
	return nil
}

// end handles the server's [DONE], or the end of the body.
func (s *stream) end() {
	s.over = true
	if !s.ended {
		s.fail(&provider.Error{Kind: provider.Cut, Message: "the stream ended without a finish_reason"})
		return
	}
	// A body that has been read to its end leaves a connection that can be used again.
	s.events.Drain()
}

// broke handles an error of reading the body.
func (s *stream) broke(err error) {
	if s.ended && s.ctx.Err() == nil { // the answer is whole
		s.over = true
		return
	}
	s.fail(provider.Broke(s.ctx, err, true, s.key))
}

// fail ends the stream. The events of the chunk before the fault are still delivered.
func (s *stream) fail(err error) {
	s.err = provider.InStream(err, s.requestID)
	s.cancel()
}

func (s *stream) garbled(message string) {
	s.fail(&provider.Error{Kind: provider.Garbled, Message: message})
}

func (s *stream) emit(e provider.Event) { s.waiting = append(s.waiting, e) }

func (s *stream) take(c *chunk, data []byte) {
	if present(c.Error) {
		s.complain(c.Error)
		return
	}
	if c.Object == "error" {
		s.complain(data)
		return
	}
	if !s.began && (c.Model != "" || len(c.Choices) > 0) {
		s.began = true
		if s.requestID == "" {
			s.requestID = provider.RequestID(http.Header{"X-Request-Id": {string(c.ID)}}, s.key)
		}
		s.emit(provider.Event{Kind: provider.Began, Model: provider.Word(string(c.Model), s.key), RequestID: s.requestID})
	}
	for i := range c.Choices {
		if c.Choices[i].Index == 0 {
			s.choose(&c.Choices[i])
		}
		if s.err != nil {
			return
		}
	}
	if u, ok := c.Usage.read(); ok {
		s.emit(provider.Event{Kind: provider.UsageSeen, Usage: u})
	}
}

// complain ends the stream with the server's error. After a complete answer it ignores the error.
func (s *stream) complain(raw json.RawMessage) {
	if s.ended {
		s.over = true
		return
	}
	c := complaintOf(raw)
	s.fail(c.inStream(s.key))
}

func (s *stream) choose(c *choice) {
	if present(c.Error) {
		s.complain(c.Error)
		return
	}
	if s.ended { // OpenRouter finishes twice
		for i := range c.Delta.ToolCalls { // arguments of a call that would run without them
			if f := &c.Delta.ToolCalls[i].Function; f.Name != "" || f.Arguments.text != "" || f.Arguments.raw != nil {
				s.garbled("a call to a tool continues after the answer's end")
				return
			}
		}
		return
	}
	d := &c.Delta
	if s.events.Whole && c.Message != nil { // Perplexity has both, and in a stream the message grows
		d = c.Message
	}
	s.think(d)
	s.say(d)
	for i := range d.ToolCalls {
		if s.err == nil {
			s.call(&d.ToolCalls[i])
		}
	}
	if c.FinishReason != "" && s.err == nil {
		s.finish(c.FinishReason)
	}
}

func (s *stream) text(kind provider.EventKind, delta string) {
	if delta != "" && s.grow(len(delta)) {
		s.emit(provider.Event{Kind: kind, Delta: delta})
	}
}

// grow adds to the size of the answer, and reports whether it is within the limit.
func (s *stream) grow(n int) bool {
	if s.size += n; s.size > provider.MaxAnswer {
		s.fail(&provider.Error{Kind: provider.AnswerTooBig,
			Message: fmt.Sprintf("the answer has more than %d bytes", provider.MaxAnswer)})
	}
	return s.err == nil
}

// think takes a thought from the server's field. Some servers have it in both fields.
func (s *stream) think(d *delta) {
	thought := d.ReasoningContent.text
	if thought == "" {
		thought = d.Reasoning.text
	}
	s.text(provider.ThinkingDelta, thought)
}

func (s *stream) say(d *delta) {
	s.text(provider.TextDelta, d.Content.text)
	if d.Content.raw != nil {
		s.parts(d.Content.raw)
	}
	if d.Refusal.text != "" {
		s.refused = true
		s.text(provider.TextDelta, d.Refusal.text)
	}
}

func (s *stream) parts(raw json.RawMessage) {
	var parts []part
	if json.Unmarshal(raw, &parts) != nil {
		s.garbled("the content of a piece is neither a text nor a list of parts")
		return
	}
	for i := range parts {
		p := &parts[i]
		if p.Type != "thinking" {
			s.text(provider.TextDelta, p.Text) // a part of an unknown type, such as a reference, has none
			continue
		}
		s.text(provider.ThinkingDelta, p.Thinking.text)
		var inside []part
		_ = json.Unmarshal(p.Thinking.raw, &inside)
		for j := range inside {
			s.text(provider.ThinkingDelta, inside[j].Text)
		}
	}
}

func (s *stream) call(t *toolCall) {
	if f := &t.Function; t.ID == "" && f.Name == "" && f.Arguments.text == "" && f.Arguments.raw == nil {
		return // some servers end with an empty piece
	}
	c := s.find(t)
	if s.err != nil {
		return
	}
	if c == nil {
		if len(s.calls) == maxCalls {
			s.fail(&provider.Error{Kind: provider.AnswerTooBig, Message: fmt.Sprintf("the answer has more than %d calls of "+
				"tools", maxCalls)})
			return
		}
		if t.ID != "" && slices.ContainsFunc(s.calls, func(c *call) bool { return slices.Contains(c.ids, t.ID) }) {
			s.garbled("a call to a tool begins after its arguments")
			return
		}
		c = &call{number: len(s.calls), index: t.Index, id: t.ID}
		s.calls = append(s.calls, c)
	}
	if name := t.Function.Name; name != "" && c.name != "" && name != c.name {
		s.garbled("two calls to different tools have the same id")
		return
	}
	arguments := t.Function.Arguments.text
	if raw := t.Function.Arguments.raw; raw != nil { // an object, not the text of one
		arguments = string(raw)
	}
	if !s.grow(len(t.ID) + len(t.Function.Name) + len(arguments)) {
		return
	}
	if t.ExtraContent != nil && c.name == "" {
		c.signature = t.ExtraContent.Google.ThoughtSignature
	}
	if c.id == "" {
		c.id = t.ID
	} else if t.ID != "" && t.ID != c.id && len(c.ids) < maxCalls {
		c.ids = append(c.ids, t.ID)
	}
	c.add(arguments)
	if c.name == "" {
		if t.Function.Name == "" {
			return
		}
		if c.name = t.Function.Name; c.id == "" {
			c.id = "call_" + strconv.Itoa(c.number)
		}
		s.emit(provider.Event{Kind: provider.CallBegan, Index: c.number, ID: c.id, Name: c.name, Signature: c.signature})
		arguments = c.arguments.String() // also what came before the name
	}
	if arguments != "" {
		s.emit(provider.Event{Kind: provider.ArgumentsDelta, Index: c.number, Delta: arguments})
	}
}

// find returns the call that a fragment belongs to, or nil if the fragment begins a call. The index decides, or
// otherwise the id, which also decides between calls with the same index.
func (s *stream) find(t *toolCall) *call {
	if t.Index == nil && t.ID == "" {
		return s.findOpen(t)
	}
	var found *call
	for i := len(s.calls) - 1; i >= 0; i-- {
		c := s.calls[i]
		if t.Index != nil && c.index != nil {
			if *t.Index != *c.index || t.ID != c.id && s.hasCall(t.ID) {
				continue
			}
			found = c
			break
		}
		if t.ID == c.id {
			if found != nil {
				s.garbled("two calls to tools have the same id")
				return nil
			}
			found = c
		}
	}
	if found == nil || found.isOver(t) {
		return nil
	}
	return found
}

// findOpen is find for a fragment with neither index nor id. Without a name, it continues the only call whose
// arguments are incomplete.
func (s *stream) findOpen(t *toolCall) *call {
	var open *call
	for _, c := range s.calls {
		switch {
		case t.Function.Name != "":
			open = c // the last one
		case c.whole:
		case open != nil:
			s.garbled("a piece of arguments belongs to more than one call to a tool")
			return nil
		default:
			open = c
		}
	}
	if open == nil || open.isOver(t) {
		return nil
	}
	return open
}

// allWhole reports whether the arguments of all calls are complete.
func (s *stream) allWhole() bool {
	return !slices.ContainsFunc(s.calls, func(c *call) bool { return !c.whole })
}

// hasCall reports whether a call has this id.
func (s *stream) hasCall(id string) bool {
	return id != "" && slices.ContainsFunc(s.calls, func(c *call) bool { return c.id == id })
}

// isOver reports whether a fragment that seems to continue the call begins another: some servers give all calls the
// same index, and some also give no id. Another call then has a name again, with another id, or without an id another
// name or after complete arguments.
func (c *call) isOver(t *toolCall) bool {
	if t.Function.Name == "" || c.name == "" {
		return false
	}
	if t.ID != "" {
		return t.ID != c.id
	}
	return c.whole || t.Function.Name != c.name
}

// add appends a fragment of the arguments, and records whether they are now a complete object. It reads each byte once.
func (c *call) add(fragment string) {
	c.arguments.WriteString(fragment)
	for _, b := range []byte(fragment) {
		switch {
		case c.escaped:
			c.escaped = false
		case c.quoted:
			c.escaped, c.quoted = b == '\\', b != '"'
		case b == '"':
			c.quoted = true
		case b == '{':
			c.depth++
			c.whole = false
		case b == '}':
			c.depth--
			c.whole = c.depth == 0
		}
	}
}

func (s *stream) finish(reason string) {
	for _, c := range s.calls {
		if c.name == "" {
			s.garbled("a call to a tool has no name")
			return
		}
	}
	stop := provider.EndTurn
	if len(s.calls) > 0 {
		stop = provider.ToolUse
	}
	switch reason {
	case "length", "model_length", "max_tokens":
		stop = provider.MaxTokens
	case "content_filter":
		stop = provider.Refusal
	case "error", "insufficient_system_resource", "abort":
		s.fail(&provider.Error{Kind: provider.Unavailable, Message: provider.Clean("the answer ended with the "+
			"finish_reason "+reason, s.key)})
		return
	default:
		if s.refused {
			stop = provider.Refusal
		}
	}
	s.ended = true
	time.AfterFunc(linger, s.cancel)
	s.emit(provider.Event{Kind: provider.Ended, Stop: stop, ProviderStop: provider.Word(reason, s.key),
		RequestID: s.requestID})
}

// read returns the usage, if the server reports it.
func (u *usage) read() (provider.Usage, bool) {
	if u == nil || u.Prompt == nil && u.Completion == nil {
		return provider.Usage{}, false
	}
	seen := provider.Usage{Known: true, NoInput: u.Prompt == nil, NoOutput: u.Completion == nil,
		CacheRead: int64(u.CacheHit), CostUSD: dollars(u.Cost)}
	if u.Prompt != nil {
		seen.Input = int64(*u.Prompt)
	}
	if u.Completion != nil {
		seen.Output = int64(*u.Completion)
	}
	if d := u.PromptDetails; d != nil {
		seen.CacheRead, seen.CacheWrite = int64(max(d.Cached, u.CacheHit)), int64(d.CacheWrite)
	}
	if d := u.CompletionDetails; d != nil {
		seen.Reasoning = int64(d.Reasoning)
		// Some servers count thoughts separately from the completion, as their total shows.
		if d.Reasoning > 0 && int64(u.Total) == seen.Input+seen.Output+seen.Reasoning {
			seen.Output += seen.Reasoning
		}
	}
	seen.CacheRead = min(max(seen.CacheRead, 0), seen.Input)
	seen.CacheWrite = min(max(seen.CacheWrite, 0), seen.Input-seen.CacheRead)
	seen.Reasoning = min(max(seen.Reasoning, 0), seen.Output)
	return seen, true
}

// dollars returns a number in decimal digits, with at most nine after the point, or "" if it is not a number.
func dollars(raw json.RawMessage) string {
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || n < 0 || n >= 1e9 {
		return ""
	}
	text := strconv.FormatFloat(n, 'f', 9, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// present reports whether a raw member exists and is not null.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

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

	sdk "github.com/sashabaranov/go-openai"

	"github.com/gemworker/gem/internal/llm"
)

const (
	// maxCalls is how many calls of tools an answer may have.
	maxCalls = 256
	// linger is how long a stream waits for usage, or for the end of the body, once the answer has ended.
	linger = 2 * time.Second
)

// chunk is a piece of an answer, as far as it is needed.
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
	Message      *delta          `json:"message"` // counts only in an answer that is no stream
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

// extraContent is where Gemini puts the signature of a call's thought.
type extraContent struct {
	Google struct {
		ThoughtSignature string `json:"thought_signature"`
	} `json:"google"`
}

type usage struct {
	Prompt        *llm.Count `json:"prompt_tokens"`
	Completion    *llm.Count `json:"completion_tokens"`
	Total         llm.Count  `json:"total_tokens"`
	CacheHit      llm.Count  `json:"prompt_cache_hit_tokens"` // DeepSeek's
	PromptDetails *struct {
		Cached     llm.Count `json:"cached_tokens"`
		CacheWrite llm.Count `json:"cache_write_tokens"` // OpenRouter's
	} `json:"prompt_tokens_details"`
	CompletionDetails *struct {
		Reasoning llm.Count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	Cost json.RawMessage `json:"cost"` // OpenRouter's number; Perplexity has an object
}

// part is a piece of a content that is a list, as Mistral's models that think have it. Thinking is a list of parts, or a text.
type part struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Thinking loose  `json:"thinking"`
}

// same is a text that each chunk repeats. It is kept from one to the next.
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

// loose is what some servers write as a text and others in another way: raw then.
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
	// Most texts are short, and as they stand.
	if inside := data[1 : len(data)-1]; bytes.IndexByte(inside, '\\') < 0 && utf8.Valid(inside) {
		l.text = string(inside)
		return nil
	}
	return json.Unmarshal(data, &l.text)
}

// call is a call of a tool whose arguments still come.
type call struct {
	number    int  // in the order of their beginning
	index     *int // the server's
	id        string
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
	raw       *sdk.ChatCompletionStream
	lines     *lines
	key       string
	requestID string

	event   llm.Event
	waiting []llm.Event
	at      int // of the next event in waiting
	chunk   chunk
	data    bytes.Reader
	decoder *json.Decoder
	size    int
	calls   []*call
	refused bool
	began   bool
	ended   bool
	over    bool
	err     error
}

func (s *stream) Current() llm.Event { return s.event }
func (s *stream) Err() error         { return s.err }

// Close implements [llm.Stream].
func (s *stream) Close() error {
	s.cancel()
	return s.raw.Close()
}

// Next implements [llm.Stream].
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

// read takes the next chunk. What it brings is waiting then.
func (s *stream) read() {
	data, err := s.raw.RecvRaw()
	switch {
	case errors.Is(err, io.EOF):
		s.end()
		return
	case err != nil:
		s.broke(err)
		return
	}
	c := &s.chunk
	c.Usage, c.Error = nil, c.Error[:0]
	clear(c.Choices)
	c.Choices = c.Choices[:0]
	if err := s.decode(data, c); err != nil {
		switch {
		case s.ended: // the answer is whole
			s.over = true
		case s.lines.torn:
			s.fail(&llm.Error{Kind: llm.Cut, Message: "the stream ended in the middle of a line"})
		default:
			s.fail(&llm.Error{Kind: llm.Garbled, Message: llm.Clean("a piece of the stream is not of the dialect: "+err.Error(), s.key)})
		}
		return
	}
	s.take(c, data)
	if len(s.waiting) == 0 && s.err == nil {
		s.emit(llm.Event{Kind: llm.KeepAlive})
	}
}

// decode reads one document. A decoder for all of them costs a third less than one for each.
func (s *stream) decode(data []byte, c *chunk) error {
	if s.decoder == nil {
		s.decoder = json.NewDecoder(&s.data)
	}
	s.data.Reset(data)
	return s.decoder.Decode(c)
}

// end is reached with the server's [DONE] or with the end of the body.
func (s *stream) end() {
	s.over = true
	if !s.ended {
		s.fail(&llm.Error{Kind: llm.Cut, Message: "the stream ended without a finish_reason"})
		return
	}
	// A body that has been read to its end leaves a connection that can be used again.
	_, _ = io.CopyN(io.Discard, s.lines.reader, 4096)
}

// broke is reached when the body cannot be read any more.
func (s *stream) broke(err error) {
	if s.ended && s.ctx.Err() == nil { // the answer is whole
		s.over = true
		return
	}
	s.fail(llm.Broke(s.ctx, err, true, s.key))
}

// fail ends the stream. What the chunk brought before the fault is still given.
func (s *stream) fail(err error) {
	if e, ok := errors.AsType[*llm.Error](err); ok {
		with := *e
		with.Status, with.RequestID = http.StatusOK, s.requestID
		err = &with
	}
	s.err = err
	s.cancel()
}

func (s *stream) emit(e llm.Event) { s.waiting = append(s.waiting, e) }

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
			s.requestID = llm.RequestID(http.Header{"X-Request-Id": {string(c.ID)}}, s.key)
		}
		s.emit(llm.Event{Kind: llm.Began, Model: llm.Word(string(c.Model), s.key), RequestID: s.requestID})
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
		s.emit(llm.Event{Kind: llm.UsageSeen, Usage: u})
	}
}

// complain ends the stream with the server's error. After the whole answer there is none.
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
		return
	}
	d := &c.Delta
	if s.lines.whole && c.Message != nil { // Perplexity has both, and in a stream the message grows
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

func (s *stream) text(kind llm.EventKind, delta string) {
	if delta != "" && s.grow(len(delta)) {
		s.emit(llm.Event{Kind: kind, Delta: delta})
	}
}

// grow counts what the answer has, and reports whether it may have that much.
func (s *stream) grow(n int) bool {
	if s.size += n; s.size > llm.MaxAnswer {
		s.fail(&llm.Error{Kind: llm.AnswerTooBig, Message: fmt.Sprintf("the answer has more than %d bytes", llm.MaxAnswer)})
	}
	return s.err == nil
}

// think takes a thought from where the server has it. Some have it in both fields.
func (s *stream) think(d *delta) {
	thought := d.ReasoningContent.text
	if thought == "" {
		thought = d.Reasoning.text
	}
	s.text(llm.ThinkingDelta, thought)
}

func (s *stream) say(d *delta) {
	s.text(llm.TextDelta, d.Content.text)
	if d.Content.raw != nil {
		s.parts(d.Content.raw)
	}
	if d.Refusal.text != "" {
		s.refused = true
		s.text(llm.TextDelta, d.Refusal.text)
	}
}

func (s *stream) parts(raw json.RawMessage) {
	var parts []part
	if json.Unmarshal(raw, &parts) != nil {
		s.fail(&llm.Error{Kind: llm.Garbled, Message: "the content of a piece is neither a text nor a list of parts"})
		return
	}
	for i := range parts {
		p := &parts[i]
		if p.Type != "thinking" {
			s.text(llm.TextDelta, p.Text) // a part of an unknown type, such as a reference, has none
			continue
		}
		s.text(llm.ThinkingDelta, p.Thinking.text)
		var inside []part
		_ = json.Unmarshal(p.Thinking.raw, &inside)
		for j := range inside {
			s.text(llm.ThinkingDelta, inside[j].Text)
		}
	}
}

func (s *stream) call(t *toolCall) {
	c := s.find(t)
	if c == nil {
		if len(s.calls) == maxCalls {
			s.fail(&llm.Error{Kind: llm.AnswerTooBig, Message: fmt.Sprintf("the answer has more than %d calls of tools", maxCalls)})
			return
		}
		c = &call{number: len(s.calls), index: t.Index, id: t.ID}
		s.calls = append(s.calls, c)
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
	}
	c.add(arguments)
	if c.name == "" {
		if t.Function.Name == "" {
			return
		}
		if c.name = t.Function.Name; c.id == "" {
			c.id = "call_" + strconv.Itoa(c.number)
		}
		s.emit(llm.Event{Kind: llm.CallBegan, Index: c.number, ID: c.id, Name: c.name, Signature: c.signature})
		arguments = c.arguments.String() // also what came before the name
	}
	if arguments != "" {
		s.emit(llm.Event{Kind: llm.ArgumentsDelta, Index: c.number, Delta: arguments})
	}
}

// find returns the call that a fragment belongs to, nil if it begins one. The index says so, or the id where there is no index. A fragment
// with neither goes on with the last call, unless it begins another.
func (s *stream) find(t *toolCall) *call {
	for i := len(s.calls) - 1; i >= 0; i-- {
		c := s.calls[i]
		switch {
		case t.Index != nil && c.index != nil:
			if *t.Index != *c.index {
				continue
			}
		case t.ID != "":
			if t.ID != c.id {
				continue
			}
		}
		if c.isOver(t) {
			return nil
		}
		return c
	}
	return nil
}

// isOver reports whether a fragment that seems to go on with the call begins another: some servers give all calls the same index, and
// some give no id either. A name comes again then, with another id, or after arguments that are whole.
func (c *call) isOver(t *toolCall) bool {
	if t.Function.Name == "" || c.name == "" {
		return false
	}
	if t.ID != "" {
		return t.ID != c.id
	}
	return c.whole
}

// add takes a fragment of the arguments, and notes whether they are a whole object now. It looks at each byte once.
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
			s.fail(&llm.Error{Kind: llm.Garbled, Message: "a call of a tool has no name"})
			return
		}
	}
	stop := llm.EndTurn
	if len(s.calls) > 0 {
		stop = llm.ToolUse
	}
	switch reason {
	case "length", "model_length", "max_tokens":
		stop = llm.MaxTokens
	case "content_filter":
		stop = llm.Refusal
	case "error", "insufficient_system_resource", "abort":
		s.fail(&llm.Error{Kind: llm.Unavailable, Message: llm.Clean("the answer ended with the finish_reason "+reason, s.key)})
		return
	default:
		if s.refused {
			stop = llm.Refusal
		}
	}
	s.ended = true
	time.AfterFunc(linger, s.cancel)
	s.emit(llm.Event{Kind: llm.Ended, Stop: stop, ProviderStop: llm.Word(reason, s.key), RequestID: s.requestID})
}

// read returns the usage, if the server says something of it.
func (u *usage) read() (llm.Usage, bool) {
	if u == nil || u.Prompt == nil && u.Completion == nil {
		return llm.Usage{}, false
	}
	seen := llm.Usage{Known: true, CacheRead: int64(u.CacheHit), CostUSD: dollars(u.Cost)}
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
		// Some count thoughts beside the completion: their total says so.
		if d.Reasoning > 0 && int64(u.Total) == seen.Input+seen.Output+seen.Reasoning {
			seen.Output += seen.Reasoning
		}
	}
	seen.CacheRead = min(max(seen.CacheRead, 0), seen.Input)
	seen.CacheWrite = min(max(seen.CacheWrite, 0), seen.Input-seen.CacheRead)
	seen.Reasoning = min(max(seen.Reasoning, 0), seen.Output)
	return seen, true
}

// dollars returns a number in decimal digits, with at most nine after the point; "" if it is none.
func dollars(raw json.RawMessage) string {
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || n < 0 || n >= 1e9 {
		return ""
	}
	text := strconv.FormatFloat(n, 'f', 9, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// present reports whether a raw member is there and not null.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

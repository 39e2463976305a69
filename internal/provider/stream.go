package provider

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Stream is an answer that arrives. The consumer sets the pace:
//
//	defer s.Close()
//	for s.Next() {
//		s.Current()
//	}
//	err := s.Err()
//
// It is not safe for concurrent use, except for Close.
type Stream interface {
	// Next waits for the next event. It returns false at the end, even after an error.
	Next() bool
	// Current returns the event that Next advanced to.
	Current() Event
	// Err returns why the stream ended early: an [*Error], or the cause of the context's end. It returns
	// nil after a complete answer. A body that ends without the dialect's terminal event is an error.
	Err() error
	// Close ends the request at once, even in the middle of the stream.
	Close() error
}

// EventKind determines which fields of an [Event] have a meaning.
type EventKind string

// The kinds of events.
const (
	// Began: Model, RequestID, if known.
	Began EventKind = "began"
	// TextDelta, ThinkingDelta: Delta; Signature, which may come alone, at the end of the thought; Redacted.
	TextDelta     EventKind = "text"
	ThinkingDelta EventKind = "thinking"
	// CallBegan: Index, ID, Name, Signature. ArgumentsDelta: Index, Delta. A provider that sends a call whole gives one of
	// each.
	CallBegan      EventKind = "tool_call"
	ArgumentsDelta EventKind = "arguments"
	// UsageSeen: Usage, which replaces any earlier one.
	UsageSeen EventKind = "usage"
	// Ended: Stop, ProviderStop. It is the terminal event, which occurs once. Only UsageSeen may follow it.
	Ended EventKind = "ended"
	// KeepAlive: only a sign of life arrived.
	KeepAlive EventKind = "keep_alive"
)

// Event is a piece of an answer.
type Event struct {
	Kind         EventKind
	Delta        string
	Signature    string
	Redacted     bool
	Index        int // of the call among the answer's calls: 0, 1, 2 in the order of their beginning
	ID, Name     string
	Usage        Usage
	Stop         Stop
	ProviderStop string // in the provider's words
	Model        string // as the provider names it
	RequestID    string // the provider's, for its support
}

// IsContent reports whether the event has a piece of the answer itself. After such an event no other target is asked in
// this attempt.
func (e *Event) IsContent() bool {
	switch e.Kind {
	case TextDelta, ThinkingDelta:
		return e.Delta != "" || e.Signature != ""
	case CallBegan, ArgumentsDelta:
		return true
	}
	return false
}

// Stop is the reason for the end of an answer.
type Stop string

// The reasons. Refusal includes content filters.
const (
	EndTurn      Stop = "end_turn"
	MaxTokens    Stop = "max_tokens"
	ToolUse      Stop = "tool_use"
	StopSequence Stop = "stop_sequence"
	Refusal      Stop = "refusal"
)

// Usage counts tokens. Input includes cached tokens, and Output includes thoughts.
type Usage struct {
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	CacheRead  int64 `json:"cache_read_tokens"`
	CacheWrite int64 `json:"cache_write_tokens"`
	Reasoning  int64 `json:"reasoning_tokens"`
	// Known means that the provider reported input, output or both. An explicit 0 is known. NoInput and NoOutput mean
	// that it did not report this one.
	Known    bool `json:"-"`
	NoInput  bool `json:"-"`
	NoOutput bool `json:"-"`
	// CostUSD is the provider's own figure, in decimal digits, if it gives one.
	CostUSD string `json:"-"`
}

// maxTokens bounds each figure of a provider's usage, so that adding a few of them cannot overflow. Code that charges
// for a usage must also bound it by the request: see [Usage.Within].
const maxTokens = 1_000_000_000_000_000_000

func (u Usage) bounded() Usage {
	for _, n := range []*int64{&u.Input, &u.Output, &u.CacheRead, &u.CacheWrite, &u.Reasoning} {
		*n = Tokens(*n)
	}
	return u
}

// Tokens returns a number of tokens within its bounds: at least 0, and at most 10¹⁸.
func Tokens(n int64) int64 { return min(max(n, 0), maxTokens) }

// Within returns the usage with at most the given tokens of input and output, and with parts that do not exceed the
// whole.
func (u Usage) Within(input, output int64) Usage {
	u.Input, u.Output = min(max(u.Input, 0), max(input, 0)), min(max(u.Output, 0), max(output, 0))
	u.CacheRead = min(max(u.CacheRead, 0), u.Input)
	u.CacheWrite = min(max(u.CacheWrite, 0), u.Input-u.CacheRead)
	u.Reasoning = min(max(u.Reasoning, 0), u.Output)
	return u
}

// Count is a number of tokens in a provider's JSON, as [Tokens] bounds it. A fraction is rounded up.
type Count int64

// Int returns the number, 0 for one that is missing.
func (c *Count) Int() int64 {
	if c == nil {
		return 0
	}
	return int64(*c)
}

// UnmarshalJSON reads any number, such as 1e400, also within quotes.
func (c *Count) UnmarshalJSON(data []byte) error {
	if n := len(data); n > 2 && data[0] == '"' && len(bytes.Trim(data[1:n-1], "0123456789+-.eE")) == 0 {
		data = data[1 : n-1]
	}
	if string(data) == "null" {
		return nil
	}
	if n, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		*c = Count(Tokens(n))
		return nil
	}
	n, err := strconv.ParseFloat(string(data), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("%.40s is not a number of tokens", data)
	case n >= maxTokens:
		*c = maxTokens
	default:
		*c = Count(max(math.Ceil(n), 0))
	}
	return nil
}

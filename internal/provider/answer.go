package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gemworker/gem/internal/schema"
)

// MaxAnswer is the maximum size of an answer, in bytes of text, thoughts and arguments.
const MaxAnswer = 1 << 20

// MaxParts is the maximum number of parts of an answer. A part takes some 200 bytes of memory, however short it is.
const MaxParts = 4096

// Answer is a complete answer, or the part that arrived.
type Answer struct {
	// Parts are its texts, thoughts and calls to tools, in their order.
	Parts        []Part
	Stop         Stop
	ProviderStop string
	Model        string
	RequestID    string
	Usage        Usage
}

// Text returns the texts of the answer, joined.
func (a *Answer) Text() string {
	var text strings.Builder
	for _, p := range a.Parts {
		if p.Type == Text {
			text.WriteString(p.Text)
		}
	}
	return text.String()
}

// Collect reads a stream to its end and closes it. It returns the part that arrived, even with an error. seen, if not
// nil, is called with each event.
func Collect(s Stream, seen func(*Event)) (*Answer, error) {
	defer s.Close()
	c := collector{calls: map[int]*call{}}
	for s.Next() {
		e := s.Current()
		if err := c.add(&e); err != nil {
			return c.answer(), err
		}
		if seen != nil {
			seen(&e)
		}
	}
	err := s.Err()
	if err == nil && !c.ended {
		err = &Error{Kind: Cut, Message: "the stream ended without its terminal event"}
	}
	return c.answer(), err
}

// collector builds an answer. Texts grow in builders, so that the cost of an event depends only on its own size.
type collector struct {
	Answer
	pieces []*piece
	calls  map[int]*call
	size   int
	ended  bool
}

// piece is a growing part.
type piece struct {
	Part
	text strings.Builder
}

type call = piece

func (c *collector) add(e *Event) error {
	c.size += len(e.Delta) + len(e.Signature) + len(e.ID) + len(e.Name)
	if c.size > MaxAnswer {
		return &Error{Kind: AnswerTooBig, Message: fmt.Sprintf("the answer has more than %d bytes", MaxAnswer)}
	}
	switch e.Kind {
	case Began:
		c.named(e)
	case TextDelta:
		return c.grow(Text, e)
	case ThinkingDelta:
		return c.grow(Thinking, e)
	case CallBegan:
		p := &piece{Part: Part{Type: ToolCall, ID: storable(e.ID), Name: storable(e.Name), Signature: e.Signature}}
		c.calls[e.Index] = p
		return c.begin(p)
	case ArgumentsDelta:
		p := c.calls[e.Index]
		if p == nil {
			return &Error{Kind: Garbled, Message: fmt.Sprintf("arguments came for the call %d, which had not begun", e.Index)}
		}
		p.text.WriteString(e.Delta)
	case UsageSeen:
		c.Usage = e.Usage.bounded()
	case Ended:
		c.named(e)
		c.ended, c.Stop, c.ProviderStop = true, e.Stop, e.ProviderStop
	case KeepAlive:
	}
	return nil
}

func (c *collector) named(e *Event) {
	if e.Model != "" {
		c.Model = e.Model
	}
	if e.RequestID != "" {
		c.RequestID = e.RequestID
	}
}

// begin begins a part.
func (c *collector) begin(p *piece) error {
	if len(c.pieces) == MaxParts {
		return &Error{Kind: AnswerTooBig, Message: fmt.Sprintf("the answer has more than %d parts", MaxParts)}
	}
	c.pieces = append(c.pieces, p)
	return nil
}

// grow adds to the last part if it is of the same type and has not been signed, and begins another otherwise.
func (c *collector) grow(t PartType, e *Event) error {
	var p *piece
	if n := len(c.pieces); n > 0 && c.pieces[n-1].Type == t && !c.pieces[n-1].Redacted && !e.Redacted &&
		c.pieces[n-1].Signature == "" {
		p = c.pieces[n-1]
	} else {
		if e.Delta == "" && e.Signature == "" {
			return nil
		}
		p = &piece{Part: Part{Type: t, Redacted: e.Redacted}}
		if err := c.begin(p); err != nil {
			return err
		}
	}
	p.text.WriteString(strings.ReplaceAll(e.Delta, "\x00", "\uFFFD")) // which Postgres cannot store in JSON
	p.Signature += e.Signature
	return nil
}

func (c *collector) answer() *Answer {
	a := c.Answer
	calls := 0
	for _, p := range c.pieces {
		if p.Type == ToolCall {
			calls++
		}
	}
	for _, p := range c.pieces {
		part, text := p.Part, storable(p.text.String())
		part.Signature = storable(part.Signature)
		if part.Type == ToolCall {
			part.Arguments, part.RawArguments = arguments(text, calls)
		} else {
			part.Text = text
		}
		a.Parts = append(a.Parts, part)
	}
	return &a
}

// arguments returns the arguments of a call that a model wrote: as an object, or as the raw text if it is not an object
// or cannot be stored next to those of the other calls. An empty text means no arguments.
func arguments(text string, calls int) (object json.RawMessage, raw string) {
	trimmed := strings.TrimSpace(text)
	if trimmed == "" {
		return json.RawMessage("{}"), ""
	}
	if !strings.HasPrefix(trimmed, "{") || !json.Valid([]byte(trimmed)) || !schema.Storable([]byte(trimmed), calls) {
		return json.RawMessage("{}"), text
	}
	var compact bytes.Buffer
	if json.Compact(&compact, []byte(trimmed)) != nil {
		return json.RawMessage("{}"), text
	}
	return compact.Bytes(), ""
}

package grounding

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// MaxShards is the maximum number of shards of a document.
	MaxShards = 512
	// MaxSize is the largest body size that [TooLarge] suggests, in code points.
	MaxSize = 32_000
)

// flagBytes is the number of bytes before a context in which flags are counted.
const flagBytes = 512

// Window is the part of a document that a model sees. It consists of the body, which the model is asked about, and the
// context around it.
type Window struct {
	// Before is the text before the body. If the body begins inside a table, Before begins with the first two lines of the
	// table.
	Before string
	// Body is the text that the model is asked about. It owns the items that begin in it.
	Body string
	// After is the text after the body.
	After string
}

// Text returns the whole window. The offsets of items count its bytes.
func (w Window) Text() string { return w.Before + w.Body + w.After }

// Blank reports whether the body is only white space. Callers need not ask a model about such a body.
func (w Window) Blank() bool { return strings.TrimSpace(w.Body) == "" }

// Shard is a piece of a document. The bodies of all shards, joined in order, are the read text.
type Shard struct {
	Index      int // from 0
	Start, End int // byte offsets of the body in the read text
	Window
}

// TooLarge reports that a text needs more than [MaxShards] shards of the requested size.
type TooLarge struct {
	Size int // the requested size, in code points
	Fits int // a size that fits, or 0 if it would exceed [MaxSize]
}

func (e *TooLarge) Error() string {
	remedy := "divide it into several documents"
	if e.Fits > 0 {
		remedy = fmt.Sprintf("a size of %d fits", e.Fits)
	}
	return fmt.Sprintf("the document has more than %d shards of at most %d characters: %s", MaxShards, e.Size, remedy)
}

// Cut splits a text into shards. A body has at most size code points. A size below 1 counts as 1. The context on each
// side has at most context code points. A body ends in its second half: after the last blank line, else after a line, a
// sentence or a space. If there is none of these, it ends between two characters. A character and its combining marks
// stay together up to 64 code points, even if they exceed size. An empty text has no shards. The error is a
// *[TooLarge].
func Cut(t *Text, size, context int) ([]Shard, error) {
	size, context = min(max(size, 1), len(t.read)+1), min(max(context, 0), len(t.read))
	var shards []Shard
	for start := 0; start < len(t.read); {
		if len(shards) == MaxShards {
			return nil, &TooLarge{size, sizeThatFits(t.read)}
		}
		end := bodyEnd(t.read, start, size)
		shards = append(shards, Shard{len(shards), start, end, t.window(start, end, context)})
		start = end
	}
	return shards, nil
}

// sizeThatFits returns a size, in code points, that gives a text at most [MaxShards] shards. It returns 0 if that size
// exceeds [MaxSize].
func sizeThatFits(read string) int {
	for size := (codePoints(read) + MaxShards - 1) / MaxShards; size <= MaxSize; size += size/16 + 1 {
		shards := 0
		for start := 0; start < len(read) && shards <= MaxShards; shards++ {
			start = bodyEnd(read, start, size)
		}
		if shards <= MaxShards {
			return size
		}
	}
	return 0
}

// Halves splits a shard in two after its answer was cut off. Both halves keep the index of the shard. Each has about
// one third to two thirds of the body. Halves returns nil if the body is a single character.
func (s Shard) Halves(t *Text, context int) []Shard {
	middle := bodyEnd(t.read[:s.End], s.Start, max(1, codePoints(s.Body)*2/3))
	if middle == s.End {
		return nil
	}
	return []Shard{
		{s.Index, s.Start, middle, t.window(s.Start, middle, context)},
		{s.Index, middle, s.End, t.window(middle, s.End, context)},
	}
}

// window returns the window of the body from start to end.
func (t *Text) window(start, end, context int) Window {
	from, to := start, skip(t.read, end, context)
	for range context {
		_, n := utf8.DecodeLastRuneInString(t.read[:from])
		from -= n
	}
	for from < start && !between(t.read, from, max(0, from-flagBytes)) {
		_, n := utf8.DecodeRuneInString(t.read[from:])
		from += n
	}
	for to > end && !between(t.read, to, end) {
		_, n := utf8.DecodeLastRuneInString(t.read[:to])
		to -= n
	}
	header, from := t.header(start, from)
	return Window{header + t.read[from:start], t.read[start:end], t.read[end:to]}
}

// skip returns the offset n code points after at, or the length of the text if that is smaller.
func skip(text string, at, n int) int {
	for n > 0 && at < len(text) {
		piece := text[at:min(at+n, len(text))]
		n -= codePoints(piece) // the last code point may be incomplete
		at += len(piece)
	}
	for at < len(text) && !utf8.RuneStart(text[at]) {
		at++
	}
	return at
}

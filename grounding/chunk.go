package grounding

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// MaxShards is how many shards a document may have.
	MaxShards = 512
	// MaxSize is the largest size of a body that [TooLarge] proposes.
	MaxSize = 32_000
)

// flagBytes is how far back the flags before a context are counted.
const flagBytes = 512

// Window is what a model sees of a document: the body, which it is asked about, and the context.
type Window struct {
	// Before is what the text has before the body. If the body begins inside a table, the table's first two lines come
	// first.
	Before string
	// Body owns the items that begin in it.
	Body string
	// After is what follows the body.
	After string
}

// Text is the whole window. The offsets of items count its bytes.
func (w Window) Text() string { return w.Before + w.Body + w.After }

// Blank reports whether the body is only white space, so that no model needs to be asked.
func (w Window) Blank() bool { return strings.TrimSpace(w.Body) == "" }

// Shard is a piece of a document. The bodies of all shards, in their order, are the read text.
type Shard struct {
	Index      int // from 0
	Start, End int // of the body: byte offsets in the read text
	Window
}

// TooLarge is why a text cannot be cut: it has more than [MaxShards] shards of its size.
type TooLarge struct {
	Size int // that was asked for
	Fits int // a size that fits, 0 if it is greater than [MaxSize]
}

func (e *TooLarge) Error() string {
	remedy := "divide it into several documents"
	if e.Fits > 0 {
		remedy = fmt.Sprintf("a size of %d fits", e.Fits)
	}
	return fmt.Sprintf("the document has more than %d shards of at most %d characters: %s", MaxShards, e.Size, remedy)
}

// Cut divides a text into shards, each with a body of at most size code points (at least 1) and up to context code
// points on both sides. A body ends, in its second half, behind the last blank line, else behind a line, a sentence or
// a space, else between two characters. A character with its combining marks stays whole, even if it has more code
// points than size, up to 64. An empty text has no shards. The error is a *[TooLarge].
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

// sizeThatFits returns a size with which a text has at most [MaxShards] shards, or 0.
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

// Halves divides a shard whose answer was cut off into two with the same index, of about a third to two thirds of its
// body each. It returns nil for a body that is one character.
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

// window returns what a model sees of a body.
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

// skip returns the offset that is n code points after another, at most the text's length.
func skip(text string, at, n int) int {
	for n > 0 && at < len(text) {
		piece := text[at:min(at+n, len(text))]
		n -= codePoints(piece) // the last may be a part
		at += len(piece)
	}
	for at < len(text) && !utf8.RuneStart(text[at]) {
		at++
	}
	return at
}

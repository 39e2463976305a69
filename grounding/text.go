package grounding

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Text is a document in its original form and as it is read, with the way back from each byte that is read. It can be
// used by many goroutines.
type Text struct {
	given, read string
	// dropped has, for each byte of the given text that is not read, the offset in the read text from which on it counts;
	// ascending.
	dropped []int32
	changes []Change
	tables  func() [][]table // of the read text, by separator; found when they are first asked for
}

// Change says how often a step of the normalisation changed a text.
type Change struct {
	Step  string `json:"step"`
	Count int    `json:"count"`
}

// The steps of the normalisation, in their order.
const (
	dropBOM      = "bom"         // a byte order mark at the beginning was dropped
	unifyLines   = "line_ends"   // \r\n and \r became \n
	trimLineEnds = "line_spaces" // spaces and tabs at the end of a line were dropped
)

const bom = "\ufeff"

// Normalise makes the text that chunks and models see: without a byte order mark at the beginning, and with \n at the
// end of each line, even if the document has \r\n or \r. Nothing else changes. The text is valid UTF-8, of less than 2
// GiB.
func Normalise(given string) *Text { return normalise(given, false) }

// NormaliseTrimmed does the same, and drops spaces and tabs at the ends of lines, and before the separators U+2028 and
// U+2029. No tool does.
func NormaliseTrimmed(given string) *Text { return normalise(given, true) }

func normalise(given string, trim bool) *Text {
	t := &Text{given: given}
	t.tables = sync.OnceValue(func() [][]table { return findTables(t.read) })
	text := strings.TrimPrefix(given, bom)
	if len(text) < len(given) {
		t.drop(len(bom), 0)
		t.changes = append(t.changes, Change{dropBOM, 1})
	}
	if ends := strings.Count(text, "\r"); ends > 0 {
		t.changes = append(t.changes, Change{unifyLines, ends})
	}
	if trim || strings.IndexByte(text, '\r') >= 0 {
		text = t.lines(text, trim)
	}
	t.read = text
	return t
}

// lines returns the text with \n at the end of each line, without the spaces and tabs before it if trim is true.
func (t *Text) lines(text string, trim bool) string {
	ends, spaces := "\r", ""
	if trim {
		ends, spaces = "\r\n\u2028\u2029", " \t"
	}
	var b strings.Builder
	b.Grow(len(text))
	t.dropped = slices.Grow(t.dropped, strings.Count(text, "\r\n"))
	trimmed := 0
	for {
		end := strings.IndexAny(text, ends)
		line := text
		if end >= 0 {
			line = text[:end]
		}
		kept := strings.TrimRight(line, spaces)
		if len(kept) < len(line) {
			trimmed++
		}
		b.WriteString(kept)
		if end < 0 {
			break
		}
		text = text[end:]
		given, mark := 1, "\n"
		switch {
		case strings.HasPrefix(text, "\r\n"):
			given = 2
		case text[0] >= utf8.RuneSelf:
			given, mark = 3, text[:3]
		}
		b.WriteString(mark)
		text = text[given:]
		t.drop(len(line)-len(kept)+given-len(mark), b.Len())
	}
	if trimmed > 0 {
		t.changes = append(t.changes, Change{trimLineEnds, trimmed})
	}
	return b.String()
}

// drop notes that n bytes of the given text are not read, which stand before an offset of the read text.
func (t *Text) drop(n, before int) {
	for range n {
		t.dropped = append(t.dropped, int32(before))
	}
}

// Read is the text that chunks and models see.
func (t *Text) Read() string { return t.read }

// Changes describes what the normalisation changed: nothing if the text is read as it is.
func (t *Text) Changes() []Change { return t.changes }

// Given returns the byte offset in the given text of a byte offset in the read text: where the byte there was given,
// and at the end of the text behind its last byte. Of a line end that was given as \r\n, the offset before it is that
// of \r, and the offset after it is behind \n.
func (t *Text) Given(at int) int {
	n, _ := slices.BinarySearch(t.dropped, int32(at+1))
	return at + n
}

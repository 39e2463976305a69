package grounding

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Text is a document in its given form and in the form that is read. It maps each byte of the read form back to the
// given form. It is safe for concurrent use.
type Text struct {
	given, read string
	// dropped has an entry for each byte of the given text that is not read. The entry is the first offset in the read
	// text that the byte shifts. The entries are in ascending order.
	dropped []int32
	changes []Change
	tables  func() [][]table // of the read text, by separator; computed on first use
}

// Change reports how often a step of the normalisation changed a text.
type Change struct {
	Step  string `json:"step"`
	Count int    `json:"count"`
}

// Steps of the normalisation, in order.
const (
	dropBOM      = "bom"         // a byte order mark at the beginning was dropped
	unifyLines   = "line_ends"   // \r\n and \r became \n
	trimLineEnds = "line_spaces" // spaces and tabs at the end of a line were dropped
)

const bom = "\ufeff"

// Normalise returns the text that chunks and models see. It drops a byte order mark at the beginning and replaces the
// line ends \r\n and \r by \n. It changes nothing else. given must be valid UTF-8 of less than 2 GiB.
func Normalise(given string) *Text { return normalise(given, false) }

// NormaliseTrimmed is like [Normalise]. It also drops spaces and tabs at the ends of lines, and before the separators
// U+2028 and U+2029. No tool uses it.
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

// lines returns the text with \n at the end of each line. If trim is true, it drops the spaces and tabs before each
// line end.
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

// drop records that n bytes of the given text are not read. before is the offset in the read text that follows them.
func (t *Text) drop(n, before int) {
	for range n {
		t.dropped = append(t.dropped, int32(before))
	}
}

// Read returns the text that chunks and models see.
func (t *Text) Read() string { return t.read }

// Changes returns the changes of the normalisation. It is empty if the text was not changed.
func (t *Text) Changes() []Change { return t.changes }

// Given returns the byte offset in the given text for a byte offset in the read text. For the end of the read text, it
// returns the offset after its last byte. For the offset before a line end that was given as \r\n, it returns the
// offset of \r. For the offset after that line end, it returns the offset after \n.
func (t *Text) Given(at int) int {
	n, _ := slices.BinarySearch(t.dropped, int32(at+1))
	return at + n
}

package grounding

import (
	"strings"
	"unicode/utf8"
)

// Unit is the unit of offsets. An empty unit means [UTF16].
type Unit string

// Units of offsets.
const (
	UTF16     Unit = "utf16"     // UTF-16 code units, as in the strings of JavaScript, Java and C#
	CodePoint Unit = "codepoint" // code points, as in Python and Postgres
	Byte      Unit = "byte"      // bytes of UTF-8, as in Go and Rust
)

// Index converts byte offsets of a text into counts of another unit. It is safe for concurrent use.
type Index struct {
	text  string
	count func(string) int // nil counts bytes
	sums  []int32          // units before each block
}

// blockSize is the maximum number of bytes that a lookup reads.
const blockSize = 256

// Index returns an index that converts byte offsets of the given text into u. An unknown unit means [UTF16].
func (t *Text) Index(u Unit) *Index {
	switch {
	case u == Byte || isASCII(t.given):
		return newIndex(t.given, nil)
	case u == CodePoint:
		return newIndex(t.given, codePoints)
	default:
		return newIndex(t.given, utf16Units)
	}
}

// Lines returns an index of the read text that counts line ends. All offsets in the first line become 0.
func (t *Text) Lines() *Index {
	return newIndex(t.read, func(s string) int { return strings.Count(s, "\n") })
}

func newIndex(text string, count func(string) int) *Index {
	x := &Index{text: text, count: count}
	if count == nil {
		return x
	}
	x.sums = make([]int32, 0, len(text)/blockSize+1)
	sum := 0
	for at := 0; at <= len(text); at += blockSize {
		x.sums = append(x.sums, int32(sum))
		sum += count(text[at:min(at+blockSize, len(text))])
	}
	return x
}

// At returns the number of units before a byte offset. The offset must be between two characters and at most the length
// of the text.
func (x *Index) At(offset int) int {
	if x.count == nil {
		return offset
	}
	block := offset / blockSize
	return int(x.sums[block]) + x.count(x.text[block*blockSize:offset])
}

// Len returns the number of units of the whole text.
func (x *Index) Len() int { return x.At(len(x.text)) }

// codePoints returns the number of characters that begin in s. s may begin and end within a character.
func codePoints(s string) int {
	n := 0
	for i := range len(s) {
		if utf8.RuneStart(s[i]) {
			n++
		}
	}
	return n
}

// utf16Units is like codePoints, but counts a surrogate pair as two.
func utf16Units(s string) int {
	n := 0
	for i := range len(s) {
		if utf8.RuneStart(s[i]) {
			n++
		}
		if s[i] >= 0xF0 {
			n++
		}
	}
	return n
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

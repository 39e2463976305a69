package grounding

import (
	"strings"
	"unicode/utf8"
)

// Unit is what offsets count. The empty unit is [UTF16].
type Unit string

// The units of offsets.
const (
	UTF16     Unit = "utf16"     // as JavaScript, Java and C# index their strings
	CodePoint Unit = "codepoint" // as Python and Postgres do
	Byte      Unit = "byte"      // of UTF-8, as Go and Rust do
)

// Index converts byte offsets of a text into another count. It can be used by many goroutines.
type Index struct {
	text  string
	count func(string) int // nil: a byte counts one
	sums  []int32          // units before each block
}

// blockSize is how many bytes a lookup reads at most.
const blockSize = 256

// Index returns the index of the given text: from its bytes to the unit.
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

// Lines returns the index of the read text that counts line ends: the offset of a byte in the first line becomes 0.
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

// At returns the units before a byte offset, which is between two characters and at most the length of the text.
func (x *Index) At(offset int) int {
	if x.count == nil {
		return offset
	}
	block := offset / blockSize
	return int(x.sums[block]) + x.count(x.text[block*blockSize:offset])
}

// Len returns the count of the whole text.
func (x *Index) Len() int { return x.At(len(x.text)) }

// codePoints counts the characters that begin in a piece of a text. The piece may begin and end within a character.
func codePoints(s string) int {
	n := 0
	for i := range len(s) {
		if utf8.RuneStart(s[i]) {
			n++
		}
	}
	return n
}

// utf16Units counts like codePoints, and twice where a character is a surrogate pair.
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

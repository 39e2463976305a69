package provider

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/receipts"
)

// maxArgumentLevels limits the arguments of a proposed call. The limit of a receipt is slightly higher.
const maxArgumentLevels = receipts.MaxLevels - 50

// storable returns the text in a form that Postgres can store: invalid UTF-8 and NUL become U+FFFD.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// isStorable reports whether a receipt can store a JSON document: Postgres rejects NUL and halves of surrogate pairs,
// and readers reject numbers of a million digits or a thousand levels. The document is valid JSON.
func isStorable(document []byte) bool {
	if !utf8.Valid(document) {
		return false
	}
	levels := 0
	for at := 0; at < len(document); {
		switch c := document[at]; {
		case c == '"':
			length, ok := storableString(document[at:])
			if !ok {
				return false
			}
			at += length
			continue
		case c == '{', c == '[':
			if levels++; levels > maxArgumentLevels {
				return false
			}
		case c == '}', c == ']':
			levels--
		case c == '-', c >= '0' && c <= '9':
			length := len(document[at:]) - len(bytes.TrimLeft(document[at:], "+-.0123456789eE"))
			if !receipts.NumberFits(string(document[at : at+length])) {
				return false
			}
			at += length
			continue
		}
		at++
	}
	return true
}

// storableString returns the length of the string literal at the beginning of a text.
func storableString(text []byte) (length int, ok bool) {
	for at := 1; at < len(text); at++ {
		switch text[at] {
		case '"':
			return at + 1, true
		case '\\':
			if at++; text[at] != 'u' {
				continue
			}
			c := escaped(text[at-1:])
			at += 4
			switch {
			case c == 0, c >= 0xDC00 && c <= 0xDFFF:
				return 0, false
			case c >= 0xD800 && c <= 0xDBFF:
				if low := escaped(text[at+1:]); low < 0xDC00 || low > 0xDFFF {
					return 0, false
				}
				at += 6
			}
		}
	}
	return 0, false
}

// escaped returns the number in \uXXXX at the beginning of a text, 0 if there is none.
func escaped(text []byte) uint64 {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	c, _ := strconv.ParseUint(string(text[2:6]), 16, 32) // whose JSON has been checked
	return c
}

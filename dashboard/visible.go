package dashboard

import (
	"bytes"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Callers, agents and documents choose much of the text that the pages show. A character that controls, hides or
// reorders text could make a page differ from the database, so the dashboard never sends one: pages show a symbol in its
// place, and JSON contains its escape. Every page, event, error text and JSON text passes through here.

// isHidden reports whether a character controls, hides or reorders text. Line ends and tabs do not count, and neither do
// the two characters that join letters or keep them apart.
func isHidden(c rune) bool {
	switch c {
	case '\n', '\t', '\u200c', '\u200d':
		return false
	}
	return unicode.In(c, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp) || c == utf8.RuneError
}

// visible replaces hidden characters with symbols, in text and in HTML alike.
func visible(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(c rune) rune {
		switch {
		case !isHidden(c):
			return c
		case c < 0x20:
			return 0x2400 + c // its picture, such as ␍
		case c == 0x7f:
			return 0x2421
		}
		return utf8.RuneError
	}, s)
}

// visibleJSON escapes hidden characters. JSON has them only in strings, so the value stays the same.
func visibleJSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, isHidden) {
		return text
	}
	var out strings.Builder
	escape := func(unit rune) {
		const digits = "0123456789abcdef"
		out.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			out.WriteByte(digits[unit>>shift&0xf])
		}
	}
	for _, c := range string(text) {
		switch high, low := utf16.EncodeRune(c); {
		case !isHidden(c) || c == '\r': // between values
			out.WriteRune(c)
		case c > 0xffff:
			escape(high)
			escape(low)
		default:
			escape(c)
		}
	}
	return []byte(out.String())
}

// plainError answers a request with a line of text.
func plainError(w http.ResponseWriter, text string, status int) {
	http.Error(w, visible(strings.ReplaceAll(text, "\n", " ")), status)
}

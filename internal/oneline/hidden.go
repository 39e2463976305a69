package oneline

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Hidden reports whether a character controls, hides or reorders text, or has no visible shape. It ignores line ends,
// tabs and the two characters that join letters or keep them apart.
func Hidden(c rune) bool {
	switch c {
	case '\n', '\t', '\u200c', '\u200d':
		return false
	}
	return c == utf8.RuneError || unicode.In(c, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp,
		unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

// JSON escapes hidden characters. They occur only in strings of JSON, so the value stays the same.
func JSON(text []byte) []byte {
	if !bytes.ContainsFunc(text, Hidden) {
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
		case !Hidden(c) || c == '\r': // between values
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

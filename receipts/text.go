package receipts

import (
	"strings"
	"unicode/utf8"
)

// Truncate returns at most the first n bytes of s, without splitting a character.
func Truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for back := 0; back < utf8.UTFMax && back <= n; back++ {
		if utf8.RuneStart(s[n-back]) {
			return s[:n-back]
		}
	}
	return s[:n] // not UTF-8
}

// Shorten is like [Truncate], but replaces the rest with an ellipsis.
func Shorten(s string, n int) string {
	if len(s) > n {
		s = Truncate(s, n) + "…"
	}
	return s
}

// Storable makes s a text that Postgres can hold: invalid UTF-8 and NUL become U+FFFD.
func Storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

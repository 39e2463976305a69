package value

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// Cut returns at most n bytes of s, and no part of a character.
func Cut(s string, n int) string {
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

// Shorten is [Cut] with an ellipsis in place of the rest.
func Shorten(s string, n int) string {
	if len(s) > n {
		s = Cut(s, n) + "…"
	}
	return s
}

// IsUUID reports whether a text is a UUID as ids of calls and rows are written. Postgres would refuse another one, and end the transaction.
func IsUUID(s string) bool { return uuidForm.MatchString(s) }

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Storable makes s a text that Postgres can hold: invalid UTF-8 and NUL become U+FFFD.
func Storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// OneLine makes a text of another service fit for an error message: at most 500 bytes of valid UTF-8 on one line, without
// the secrets, in case the service echoed them.
func OneLine(s string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[secret]")
		}
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return Shorten(strings.TrimSpace(s), 500)
}

// maxWords bounds what one search costs, however long its query is.
const maxWords = 20

var literally = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// Words turns a query into patterns for `ilike all`: a row matches if each word occurs somewhere in it, in any case. An
// empty query matches every row. Words after the 20th are ignored.
func Words(query string) []string {
	words := strings.Fields(query)
	words = words[:min(len(words), maxWords)]
	for i, word := range words {
		words[i] = "%" + literally.Replace(word) + "%"
	}
	return words
}

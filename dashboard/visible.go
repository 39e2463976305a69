package dashboard

import (
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/oneline"
)

// Callers, agents and documents choose much of the text on the pages. A character that controls, hides or reorders
// text could make a page differ from the database, so the dashboard never sends one: pages show a symbol instead, and
// JSON contains its escape. Every page, event, error text and JSON text passes through here.

// visible replaces hidden characters with symbols, in text and in HTML. It keeps the selector that turns a symbol
// into an emoji.
func visible(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	before := ' '
	return strings.Map(func(c rune) rune {
		last := before
		before = c
		switch {
		case !oneline.Hidden(c) || c == '\ufe0f' && unicode.Is(unicode.So, last):
			return c
		case c < 0x20:
			return 0x2400 + c // its picture, such as ␍
		case c == 0x7f:
			return 0x2421
		}
		return utf8.RuneError
	}, s)
}

// plainError answers a request with a line of text.
func plainError(w http.ResponseWriter, text string, status int) {
	http.Error(w, visible(strings.ReplaceAll(text, "\n", " ")), status)
}

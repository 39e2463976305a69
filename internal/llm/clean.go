package llm

import (
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxForeign is how many characters of foreign text are kept.
	maxForeign = 500
	cut        = "[cut]"
	// minKey is how long a key has to be for its occurrences to be cut out.
	minKey = 4
)

var (
	// looksLikeKey finds what begins as the keys of known providers do.
	looksLikeKey = regexp.MustCompile(`(?i:\b(?:bearer|basic)\s+[^\s"',;]{6,})|\b(?:sk|rk|pk|gsk|hf|pplx|xai|key)[-_][A-Za-z0-9_*.\-]{6,}|\bAIza[A-Za-z0-9_\-]{6,}|\bya29\.[A-Za-z0-9_\-]+`)
	// longWord finds what may be a key of an unknown provider: see random.
	longWord = regexp.MustCompile(`[A-Za-z0-9+/_=\-]{32,}`)
)

// Clean returns foreign text in one line of at most 500 characters and valid UTF-8. The given keys and what looks like a key are cut out
// of it, also where they are escaped as in a URL.
func Clean(text string, keys ...string) string {
	for _, key := range keys {
		if len(key) < minKey {
			continue
		}
		text = strings.ReplaceAll(text, key, cut)
		for _, escaped := range []string{url.QueryEscape(key), url.PathEscape(key)} {
			if escaped != key {
				text = strings.ReplaceAll(text, escaped, cut)
			}
		}
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = looksLikeKey.ReplaceAllString(text, cut)
	text = longWord.ReplaceAllStringFunc(text, func(word string) string {
		if random(word) {
			return cut
		}
		return word
	})
	return short(oneLine(text), maxForeign)
}

// oneLine turns whatever is no graphic character, and each run of spaces, into one space.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) }), " ")
}

// short returns at most n characters of text.
func short(text string, n int) string {
	if len(text) <= n || utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}

// random reports whether a long word looks like a key and not like the name of a model or a path: 32 letters and digits in a row, or
// small and capital letters among at least four digits.
func random(word string) bool {
	run, digits := 0, 0
	var small, capital bool
	for _, c := range word {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case c >= 'a' && c <= 'z':
			small = true
		case c >= 'A' && c <= 'Z':
			capital = true
		default:
			run = 0
			continue
		}
		if run++; run >= 32 {
			return true
		}
	}
	return small && capital && digits >= 4
}

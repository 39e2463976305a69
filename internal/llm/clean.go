package llm

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	// maxForeign is how many characters of foreign text are kept.
	maxForeign = 500
	cut        = "[cut]"
	// maxWord is how many characters of a provider's name for something are kept.
	maxWord = 128
	// minKey is how long a key has to be for its occurrences to be cut out of what is no answer, and minSecret out of an answer: a shorter
	// one, such as the "ollama" that its users set, may be a word.
	minKey, minSecret = 4, 16
)

var (
	// looksLikeKey finds what begins as the keys of known providers do.
	looksLikeKey = regexp.MustCompile(`(?i:\b(?:bearer|basic)\s+[^\s"',;]{6,})|\b(?:sk|rk|pk|gsk|hf|pplx|xai|key)[-_][A-Za-z0-9_*.\-]{6,}|\bAIza[A-Za-z0-9_\-]{6,}|\bya29\.[A-Za-z0-9_\-]+`)
	// longWord finds what may be a key of an unknown provider: see random.
	longWord = regexp.MustCompile(`[A-Za-z0-9+/_=\-]{32,}`)
)

// Clean returns foreign text in one line of at most 500 characters and valid UTF-8. The given keys and what looks like a key are cut out
// of it, also where they are escaped as in a URL or in JSON.
func Clean(text string, keys ...string) string {
	text = strings.ToValidUTF8(cutKeys(text, minKey, keys), "\uFFFD")
	text = looksLikeKey.ReplaceAllString(text, cut)
	text = longWord.ReplaceAllStringFunc(text, func(word string) string {
		if random(word) {
			return cut
		}
		return word
	})
	return short(oneLine(text), maxForeign)
}

// Word returns a provider's name for something, such as a model or a request, in one line of at most 128 characters and valid UTF-8. The
// given keys are cut out of it. What only looks like a key stays: names do.
func Word(text string, keys ...string) string {
	return short(oneLine(strings.ToValidUTF8(cutKeys(text, minKey, keys), "\uFFFD")), maxWord)
}

// CutKeys cuts the given keys out of all that the provider said. In what the model wrote only those of 16 characters or more are looked
// for. What looks like a key stays there: an answer may be about keys.
func (a *Answer) CutKeys(keys ...string) {
	a.Model, a.ProviderStop, a.RequestID = Word(a.Model, keys...), Word(a.ProviderStop, keys...), Word(a.RequestID, keys...)
	for i := range a.Parts {
		p := &a.Parts[i]
		for _, text := range []*string{&p.Text, &p.Signature, &p.ID, &p.Name, &p.RawArguments} {
			*text = cutKeys(*text, minSecret, keys)
		}
		if len(p.Arguments) == 0 {
			continue
		}
		if without := cutKeys(string(p.Arguments), minSecret, keys); json.Valid([]byte(without)) {
			p.Arguments = json.RawMessage(without)
		} else {
			p.Arguments, p.RawArguments = json.RawMessage("{}"), without
		}
	}
}

// Cutter cuts keys out of a text that comes in pieces, as CutKeys does out of a whole one.
type Cutter struct {
	keys, forms []string
	held        string // the end of what came, where a key may begin
}

// NewCutter returns a Cutter of keys.
func NewCutter(keys ...string) *Cutter {
	c := &Cutter{}
	for _, key := range keys {
		if len(key) >= minSecret {
			c.keys = append(c.keys, key)
			c.forms = append(c.forms, key, url.QueryEscape(key), url.PathEscape(key))
		}
	}
	return c
}

// Add returns what may be shown once a piece has come.
func (c *Cutter) Add(piece string) string {
	text := c.Whole(c.held + piece)
	hold := len(text)
	for _, form := range c.forms {
		for i := max(0, len(text)-len(form)+1); i < hold; i++ {
			if text[i] == form[0] && strings.HasPrefix(form, text[i:]) {
				hold = i
			}
		}
	}
	c.held = text[hold:]
	return text[:hold]
}

// Rest returns what Add held back, at the end of the text. What may be nearly all of a key is cut.
func (c *Cutter) Rest() string {
	rest := c.held
	c.held = ""
	if len(rest) >= minSecret {
		return cut
	}
	return rest
}

// Whole returns a text that came at once.
func (c *Cutter) Whole(text string) string { return cutKeys(text, minSecret, c.keys) }

// cutKeys cuts keys of at least so many characters out of a text, also where they are escaped as in a URL or in JSON.
func cutKeys(text string, least int, keys []string) string {
	for _, key := range keys {
		if len(key) < least || key == "" || len(text) < len(key) {
			continue
		}
		text = strings.ReplaceAll(text, key, cut)
		for _, escaped := range []string{url.QueryEscape(key), url.PathEscape(key)} {
			if escaped != key {
				text = strings.ReplaceAll(text, escaped, cut)
			}
		}
		if strings.Contains(text, `\`) {
			text = inJSON(key).ReplaceAllLiteralString(text, cut)
		}
	}
	return text
}

// expressions are those of inJSON: a program has few keys, and an answer may have thousands of parts.
var expressions sync.Map

// inJSON finds a key of which any letters are escaped as in JSON.
func inJSON(key string) *regexp.Regexp {
	if known, ok := expressions.Load(key); ok {
		return known.(*regexp.Regexp)
	}
	var b strings.Builder
	for _, c := range key {
		plain := regexp.QuoteMeta(string(c))
		if strings.ContainsRune(`"\/`, c) {
			plain = `\\?` + plain
		}
		fmt.Fprintf(&b, `(?:%s|\\u(?i:%04x))`, plain, c)
	}
	expression := regexp.MustCompile(b.String())
	expressions.Store(key, expression)
	return expression
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

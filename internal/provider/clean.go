package provider

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/scrub"
)

const (
	// maxForeign is the maximum length of foreign text, in characters.
	maxForeign = 500
	cut        = "[cut]"
	// maxWord is the maximum length of a provider's name for something, in characters.
	maxWord = 128
	// minKey is the minimum length of a key that is cut out of texts other than answers, and minSecret is the minimum for
	// answers: a shorter key, such as the "ollama" that its users set, may be an ordinary word.
	minKey, minSecret = 4, 16
)

var (
	// looksLikeKey matches words that begin like the keys of known providers.
	looksLikeKey = regexp.MustCompile(
		`(?i:\b(?:bearer|basic)\s+[^\s"',;]{6,})|\b(?:sk|rk|pk|gsk|hf|pplx|xai|key)[-_][A-Za-z0-9_*.\-]{6,}|\bAIza[A-Za-z0-9_\-]{6,}|\bya29\.[A-Za-z0-9_\-]+`)
	// longWord matches words that may be keys of unknown providers: see random.
	longWord = regexp.MustCompile(`[A-Za-z0-9+/_=\-]{32,}`)
)

// Clean returns foreign text in one line of at most 500 characters and valid UTF-8. It cuts out the given keys and
// anything that looks like a key, even if they are escaped as in a URL or in JSON.
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

// Word returns a provider's name for something, such as a model or a request, in one line of at most 128 characters and
// valid UTF-8. It cuts out the given keys, but keeps words that only look like keys, because names do.
func Word(text string, keys ...string) string {
	return short(oneLine(strings.ToValidUTF8(cutKeys(text, minKey, keys), "\uFFFD")), maxWord)
}

// CutKeys cuts the given keys out of the provider's answer. In the model's own text, it looks only for keys of at least
// 16 characters. Other texts that look like keys stay there, because an answer may be about keys.
func (a *Answer) CutKeys(keys ...string) {
	a.Model, a.ProviderStop, a.RequestID = Word(a.Model, keys...), Word(a.ProviderStop, keys...),
		Word(a.RequestID, keys...)
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
	for _, t := range []PartType{Text, Thinking} {
		a.cutJoined(t, keys)
	}
}

// cutJoined cuts keys that are split over parts of a type, whose texts are joined later. A part that becomes empty is
// removed, because providers reject empty parts.
func (a *Answer) cutJoined(t PartType, keys []string) {
	for _, key := range keys {
		var joined strings.Builder
		for i := range a.Parts {
			if a.Parts[i].Type == t {
				joined.WriteString(a.Parts[i].Text)
			}
		}
		whole := joined.String()
		if cutKeys(whole, minSecret, []string{key}) == whole {
			continue
		}
		found, from := scrub.Find(whole, key), 0
		var kept []Part
		for _, p := range a.Parts {
			if had := p.Text; p.Type == t && had != "" {
				p.Text = without(had, from, found)
				if from += len(had); p.Text == "" && p.Signature == "" {
					continue
				}
			}
			kept = append(kept, p)
		}
		a.Parts = kept
	}
}

// without returns a text without the found ranges. The text begins at from. A mark replaces each range at its
// beginning.
func without(text string, from int, found [][]int) string {
	var b strings.Builder
	at := 0
	for _, r := range found {
		begin, end := r[0]-from, r[1]-from
		if end <= 0 || begin >= len(text) {
			continue
		}
		b.WriteString(text[at:max(begin, at)])
		if begin >= 0 {
			b.WriteString(cut)
		}
		at = min(end, len(text))
	}
	return b.String() + text[at:]
}

// Cutter cuts keys out of a text that arrives in pieces, as CutKeys does for a complete text.
type Cutter struct {
	keys []string
	held string // the end of the text so far, in which a key may begin
}

// NewCutter returns a Cutter of keys.
func NewCutter(keys ...string) *Cutter {
	c := &Cutter{}
	for _, key := range keys {
		if len(key) >= minSecret {
			c.keys = append(c.keys, key)
		}
	}
	return c
}

// Add returns the text that may be shown after a piece has arrived.
func (c *Cutter) Add(piece string) string {
	text := c.Whole(c.held + piece)
	hold := len(text)
	for _, key := range c.keys {
		for i := max(0, len(text)-len(`\u0000`)*len(key)); i < hold; i++ {
			if (text[i] == key[0] || text[i] == '%' || text[i] == '\\') && begins(text[i:], key) {
				hold = i
			}
		}
	}
	c.held = text[hold:]
	return text[:hold]
}

// begins reports whether a text is the beginning of a key, plain or escaped as in a URL or in JSON.
func begins(text, key string) bool {
	return strings.HasPrefix(url.QueryEscape(key), text) || strings.HasPrefix(url.PathEscape(key), text) ||
		beginsInJSON(text, key)
}

func beginsInJSON(text, key string) bool {
	if text == "" || key == "" {
		return text == ""
	}
	letter, size := utf8.DecodeRuneInString(key)
	plain := key[:size]
	for _, form := range []string{plain, `\` + plain, fmt.Sprintf(`\u%04x`, letter)} {
		if form[0] != text[0] || len(form) == 1+size && !strings.ContainsAny(plain, `"\/`) {
			continue
		}
		n := min(len(form), len(text))
		if (text[:n] == form[:n] || len(form) > 1+size && strings.EqualFold(text[:n], form[:n])) &&
			beginsInJSON(text[n:], key[size:]) {
			return true
		}
	}
	return false
}

// Rest returns the text that Add held back, at the end of the text. It cuts a text that may be almost all of a key.
func (c *Cutter) Rest() string {
	rest := c.held
	c.held = ""
	if len(rest) >= minSecret {
		return cut
	}
	return rest
}

// Whole returns a text that arrived at once.
func (c *Cutter) Whole(text string) string { return cutKeys(text, minSecret, c.keys) }

// cutKeys cuts keys of a minimum length out of a text, even if they are escaped as in a URL or in JSON.
func cutKeys(text string, least int, keys []string) string {
	for _, key := range keys {
		if len(key) < least {
			continue
		}
		text = scrub.Replace(text, key, cut)
	}
	return text
}

// oneLine turns each run of spaces and of characters that are not graphic into one space.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) }),
		" ")
}

// short returns at most n characters of text.
func short(text string, n int) string {
	if len(text) <= n || utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}

// random reports whether a long word looks like a key and not like the name of a model or a path: 32 letters and digits
// in a row, or small and capital letters among at least four digits.
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

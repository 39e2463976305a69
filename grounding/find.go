package grounding

import (
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How the quote of an item matches the text.
const (
	Exact    = "exact"    // as the model wrote it
	Folded   = "folded"   // with other white space, quotation marks, dashes, or another presentation of the same letters
	Caseless = "caseless" // the same, with other capital letters
)

// span is a part of the window's text, in bytes.
type span struct{ start, end int }

// sighting is where a quote stands: all places of the best match that it has.
type sighting struct {
	spots []span // ascending
	match string
}

// finder finds quotes in a window.
type finder struct {
	text           string
	body           span
	folded, noCase *folding // made when they are needed
	seen           map[string]sighting
	// work counts the bytes that were looked at. spare is how many may be looked at twice, since a match was refused
	// within a longer run of matches.
	work, spare int
	one         bool // the first place is enough
}

func newFinder(w Window) *finder {
	text := w.Text()
	return &finder{text: text, body: span{len(w.Before), len(w.Before) + len(w.Body)}, seen: map[string]sighting{},
		spare: 16 * len(text)}
}

// find returns where a quote stands, in no place if the window does not have it.
func (f *finder) find(quote string) sighting {
	s, ok := f.seen[quote]
	if ok {
		return s
	}
	s = f.look(quote)
	if len(s.spots) == 0 {
		for _, variant := range variants(quote) {
			if s = f.look(variant); len(s.spots) > 0 {
				if s.match == Exact {
					s.match = Folded
				}
				break
			}
		}
	}
	f.seen[quote] = s
	return s
}

// variants are what the model may have meant by a quote that is not there: a tab in it can be a path like C:\temp whose
// backslash was not escaped, an escape in it was written twice, and quotation marks around it can be the model's own.
func variants(quote string) []string {
	var all []string
	if strings.ContainsAny(quote, "\b\f\n\r\t") {
		all = append(all, unescaped.Replace(quote))
	}
	if strings.Contains(quote, `\`) {
		all = append(all, strings.TrimSpace(unescape(quote)))
	}
	if inner := strings.Trim(quote, "\"'`“”‘’«» "); inner != quote && inner != "" {
		all = append(all, inner)
	}
	return all
}

var unescaped = strings.NewReplacer("\b", `\b`, "\f", `\f`, "\n", `\n`, "\r", `\r`, "\t", `\t`)

// look finds the places of the first way of matching that has any: exact between the borders of words, exact within
// words, folded, caseless. An exact match in the context alone is first looked for, folded, in the body, about which
// the model was asked.
func (f *finder) look(quote string) sighting {
	var whole, within []span
	long := utf8.RuneCountInString(quote) >= 3
	f.each(f.text, quote, func(from, to int) bool {
		at := span{from, to}
		switch b := f.border(at); {
		case b == clear:
			whole = append(whole, at)
		case b == inNumber || b == inWord && long:
			within = append(within, at)
		default:
			return false
		}
		return true
	})
	exact := whole
	if len(exact) == 0 {
		exact = within
	}
	if spots, inBody := f.owned(exact); inBody {
		return sighting{spots, Exact}
	}
	if f.folded == nil {
		f.folded = fold(f.text, false)
		f.work += len(f.text)
	}
	spots, inBody := f.owned(f.lookFolded(f.folded, quote, false))
	if len(exact) > 0 && !inBody {
		return sighting{exact, Exact}
	}
	if len(spots) > 0 {
		return sighting{spots, Folded}
	}
	if f.noCase == nil {
		f.noCase = fold(f.text, true)
		f.work += len(f.text)
	}
	spots, _ = f.owned(f.lookFolded(f.noCase, quote, true))
	return sighting{spots, Caseless}
}

func (f *finder) lookFolded(text *folding, quote string, caseless bool) []span {
	var spots []span
	f.work += len(quote)
	f.each(text.text, strings.TrimSpace(fold(quote, caseless).text), func(from, to int) bool {
		at, whole := text.span(from, to)
		b := f.border(at)
		if !whole || b != clear && b != inNumber {
			return false
		}
		spots = append(spots, at)
		return true
	})
	return spots
}

// each calls found for each place of part in text. Places do not overlap, except after one that found refused.
func (f *finder) each(text, part string, found func(from, to int) bool) {
	if part == "" {
		return
	}
	for at := 0; ; {
		i := strings.Index(text[at:], part)
		if i < 0 {
			f.work += len(text) - at
			return
		}
		f.work += i + len(part)
		at += i
		accepted := found(at, at+len(part))
		if accepted && f.one {
			return
		}
		if accepted || f.spare < len(part) {
			at += len(part)
			continue
		}
		f.spare -= len(part)
		_, n := utf8.DecodeRuneInString(text[at:])
		at += n
	}
}

// owned returns the spots that begin in the body, and whether there are any. If there are none, all of them are the
// neighbours'.
func (f *finder) owned(spots []span) ([]span, bool) {
	from := sort.Search(len(spots), func(i int) bool { return spots[i].start >= f.body.start })
	to := sort.Search(len(spots), func(i int) bool { return spots[i].start >= f.body.end })
	if from < to {
		return spots[from:to], true
	}
	return spots, false
}

// border is what a place cuts.
type border uint8

const (
	clear    border = iota // nothing: it begins and ends where words do, or in a script that does not divide words
	inNumber               // a number at its comma or point
	inWord                 // a word
	inside                 // a digit from a digit, or a character from its marks: not a match of the quote
)

func (f *finder) border(at span) border {
	before, n := utf8.DecodeLastRuneInString(f.text[:at.start])
	first, _ := utf8.DecodeRuneInString(f.text[at.start:])
	last, _ := utf8.DecodeLastRuneInString(f.text[:at.end])
	after, m := utf8.DecodeRuneInString(f.text[at.end:])
	worst := max(joint(before, first), joint(last, after))
	if worst == clear && (inPoint(before, first) && isDigit(lastRune(f.text[:at.start-n])) || inPoint(after, last) &&
		isDigit(firstRune(f.text[at.end+m:]))) {
		return inNumber
	}
	return worst
}

// inPoint reports whether mark can divide a number that has digit.
func inPoint(mark, digit rune) bool { return (mark == ',' || mark == '.') && isDigit(digit) }

func lastRune(s string) rune  { r, _ := utf8.DecodeLastRuneInString(s); return r }
func firstRune(s string) rune { r, _ := utf8.DecodeRuneInString(s); return r }

// joint is what a border between two neighbouring characters cuts.
func joint(a, b rune) border {
	const joiner = '\u200d'
	if a < 0x80 && b < 0x80 {
		switch {
		case !isWord(a) || !isWord(b):
			return clear
		case isDigit(a) && isDigit(b):
			return inside
		}
		return inWord
	}
	switch {
	case a == utf8.RuneError || b == utf8.RuneError: // an end of the text
		return clear
	case unicode.Is(unicode.M, b) && b != '\ufe0e' && b != '\ufe0f' && !vowelPoint(b),
		b == joiner && (unicode.IsSymbol(a) || unicode.Is(unicode.M, a)), a == joiner && unicode.IsSymbol(b):
		return inside
	case isDigit(a) && isDigit(b):
		return inside
	case !isWord(a) || !isWord(b) || unicode.In(a, undivided...) || unicode.In(b, undivided...):
		return clear
	}
	return inWord
}

// undivided are the scripts whose words are not divided by spaces, or not only: in Korean a particle follows its noun
// without one.
var undivided = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Bopomofo, unicode.Hangul, unicode.Thai, unicode.Lao,
	unicode.Khmer, unicode.Myanmar, unicode.Tibetan, unicode.Yi,
}

// vowelPoint reports whether Arabic and Hebrew can leave out a mark.
func vowelPoint(r rune) bool {
	return 0x591 <= r && r <= 0x5C7 || 0x64B <= r && r <= 0x65F || r == 0x670
}

func isDigit(r rune) bool {
	if r < 0x80 {
		return '0' <= r && r <= '9'
	}
	return r != utf8.RuneError && unicode.IsDigit(r)
}

// isWord reports whether a character is a part of words. None is at the ends of a text.
func isWord(r rune) bool {
	if r < 0x80 {
		return '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z'
	}
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.M, r))
}

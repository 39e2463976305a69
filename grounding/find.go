package grounding

import (
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The ways in which the quote of an item matches the text.
const (
	Exact    = "exact"    // the text has the quote as the model wrote it
	Folded   = "folded"   // differs in white space, quotation marks, dashes or the presentation of letters
	Caseless = "caseless" // differs in letter case as well
)

// span is a range of the window's text, in bytes.
type span struct{ start, end int }

// sighting holds all spots of the best match of a quote.
type sighting struct {
	spots []span // ascending
	match string
}

// finder finds quotes in a window.
type finder struct {
	text           string
	body           span
	folded, noCase *folding // built on first use
	seen           map[string]sighting
	// work counts the bytes examined. spare is the number of bytes that may still be examined twice. After a rejected
	// match, each searches again within that match.
	work, spare int
	one         bool // stop at the first match
}

func newFinder(w Window) *finder {
	text := w.Text()
	return &finder{text: text, body: span{len(w.Before), len(w.Before) + len(w.Body)}, seen: map[string]sighting{},
		spare: 16 * len(text)}
}

// find returns the best match of a quote in the window. The result has no spots if the window does not have the quote.
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

// variants returns other readings of a quote that is not in the text. A tab may come from a path such as C:\temp with
// an unescaped backslash. An escape may have been written twice. Quotation marks around the quote may be the model's
// own.
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

// look returns the spots of the first kind of match that has any: exact at word borders, exact within words, folded,
// caseless. If an exact match occurs only in the context, look prefers a folded match in the body, because the model
// was asked about the body.
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
	spots, inBody := f.owned(f.lookFolded(f.folded, quote, false, inNumber))
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
	spots, _ = f.owned(f.lookFolded(f.noCase, quote, true, inNumber))
	return sighting{spots, Caseless}
}

// lookFolded returns the folded matches of a quote whose ends split nothing worse than worst.
func (f *finder) lookFolded(text *folding, quote string, caseless bool, worst border) []span {
	var spots []span
	f.work += len(quote)
	f.each(text.text, strings.TrimSpace(fold(quote, caseless).text), func(from, to int) bool {
		at, whole := text.span(from, to)
		if !whole || f.border(at) > worst {
			return false
		}
		spots = append(spots, at)
		return true
	})
	return spots
}

// each calls found for each occurrence of part in text. found reports whether it accepts the occurrence. Occurrences do
// not overlap, except after a rejected one.
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

// owned returns the spots that begin in the body, and reports whether there are any. If there are none, it returns all
// spots: they belong to the neighbouring shards.
func (f *finder) owned(spots []span) ([]span, bool) {
	from := sort.Search(len(spots), func(i int) bool { return spots[i].start >= f.body.start })
	to := sort.Search(len(spots), func(i int) bool { return spots[i].start >= f.body.end })
	if from < to {
		return spots[from:to], true
	}
	return spots, false
}

// border describes what the ends of a match split.
type border uint8

const (
	clear    border = iota // nothing: both ends are at word borders, or the script does not separate words
	inNumber               // a number at its comma or point
	inWord                 // a word
	inside                 // two digits, or a character and its marks: not a match of the quote
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

// inPoint reports whether mark can be a separator in a number that contains digit.
func inPoint(mark, digit rune) bool { return (mark == ',' || mark == '.') && isDigit(digit) }

func lastRune(s string) rune  { r, _ := utf8.DecodeLastRuneInString(s); return r }
func firstRune(s string) rune { r, _ := utf8.DecodeRuneInString(s); return r }

// joint returns what a border between two adjacent characters splits.
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
	case a == utf8.RuneError || b == utf8.RuneError: // start or end of the text
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

// undivided lists the scripts that do not separate all words with spaces. Korean belongs to them because a particle
// follows its noun without a space.
var undivided = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Bopomofo, unicode.Hangul, unicode.Thai, unicode.Lao,
	unicode.Khmer, unicode.Myanmar, unicode.Tibetan, unicode.Yi,
}

// vowelPoint reports whether a character is a mark that Arabic or Hebrew may omit.
func vowelPoint(r rune) bool {
	return 0x591 <= r && r <= 0x5C7 || 0x64B <= r && r <= 0x65F || r == 0x670
}

func isDigit(r rune) bool {
	if r < 0x80 {
		return '0' <= r && r <= '9'
	}
	return r != utf8.RuneError && unicode.IsDigit(r)
}

// isWord reports whether a character is part of a word. It returns false for utf8.RuneError, which marks the ends of a
// text.
func isWord(r rune) bool {
	if r < 0x80 {
		return '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z'
	}
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.M, r))
}

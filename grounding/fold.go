package grounding

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// folding is a text without details of presentation, and maps back to its source. Two texts that differ only in
// presentation have the same folding.
type folding struct {
	text string
	// start and end hold, for each byte of text, the range of the source that it was folded from.
	start, end []int32
}

// span returns the range of the source that text[from:to] was folded from. It also reports whether both ends are at
// borders of folded parts of the source.
func (f *folding) span(from, to int) (span, bool) {
	whole := (from == 0 || f.start[from] != f.start[from-1]) && (to == len(f.text) || f.start[to] != f.start[to-1])
	return span{int(f.start[from]), int(f.end[to-1])}, whole
}

// folder builds a folding.
type folder struct {
	s          string
	caseless   bool
	text       []byte
	start, end []int32
}

// fold removes details of presentation. A run of white space becomes one space. Quotation marks and dashes become their
// ASCII forms, and … becomes three dots. fold drops characters without width, the backslashes of Markdown and its **.
// It decodes the HTML entities for &, <, >, quotation marks and the space. It replaces ligatures and other presentation
// forms by their letters. The rest becomes NFC. If caseless is true, fold also removes the case of letters.
func fold(s string, caseless bool) *folding {
	f := folder{s: s, caseless: caseless, text: make([]byte, 0, len(s)), start: make([]int32, 0, len(s)),
		end: make([]int32, 0, len(s))}
	for at := 0; at < len(s); {
		at = f.step(at)
	}
	return &folding{string(f.text), f.start, f.end}
}

// step folds the text at an offset and returns the offset after it.
func (f *folder) step(at int) int {
	c := f.s[at]
	if c >= utf8.RuneSelf {
		return f.rune(at)
	}
	next := at + 1
	switch c {
	case ' ', '\t', '\n', '\v', '\f', '\r':
		f.space(at, next)
		return next
	case '\\':
		if next < len(f.s) && punctuation(f.s[next]) {
			at, next, c = next, next+1, f.s[next]
		}
	case '&':
		if c, n := entity(f.s[at:]); c == ' ' {
			f.space(at, at+n)
			return at + n
		} else if n > 0 {
			f.byte(c, at, at+n)
			return at + n
		}
	case '*':
		if f.emphasis(at) {
			return at + 2
		}
	case '`':
		c = '\''
	}
	if next < len(f.s) && f.s[next] >= utf8.RuneSelf && !f.starts(next) {
		return f.cluster(at, next)
	}
	if f.caseless && 'A' <= c && c <= 'Z' {
		c |= 0x20
	}
	f.byte(c, at, next)
	return next
}

func (f *folder) byte(c byte, start, end int) {
	f.text, f.start, f.end = append(f.text, c), append(f.start, int32(start)), append(f.end, int32(end))
}

// space adds a space, or extends the space before it.
func (f *folder) space(start, end int) {
	if n := len(f.text); n > 0 && f.text[n-1] == ' ' {
		f.end[n-1] = int32(end)
		return
	}
	f.byte(' ', start, end)
}

// string adds s, the folded form of the source from start to end.
func (f *folder) string(s string, start, end int) {
	if f.caseless {
		for _, r := range s {
			f.text = appendSmall(f.text, r)
		}
	} else {
		f.text = append(f.text, s...)
	}
	for len(f.start) < len(f.text) {
		f.start, f.end = append(f.start, int32(start)), append(f.end, int32(end))
	}
}

func punctuation(c byte) bool {
	return '!' <= c && c <= '/' || ':' <= c && c <= '@' || '[' <= c && c <= '`' || '{' <= c && c <= '~'
}

var entities = []struct {
	name string
	char byte
}{{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&#39;", '\''}, {"&#x27;", '\''},
	{"&#34;", '"'}, {"&nbsp;", ' '}}

// entity returns the character and the length of the entity at the start of s. The length is 0 if there is none.
func entity(s string) (byte, int) {
	for _, e := range entities {
		if strings.HasPrefix(s, e.name) {
			return e.char, len(e.name)
		}
	}
	return 0, 0
}

// emphasis reports whether ** is at an offset and at the border of a word. Within a word, ** is an operator.
func (f *folder) emphasis(at int) bool {
	if !strings.HasPrefix(f.s[at:], "**") {
		return false
	}
	before, _ := utf8.DecodeLastRuneInString(f.s[:at])
	after, _ := utf8.DecodeRuneInString(f.s[at+2:])
	return !isWord(before) || !isWord(after)
}

// unseen reports whether a character has no width and only affects how others are shown. It also returns true for the
// stroke that lengthens Arabic words.
func unseen(r rune) bool {
	switch {
	case r == 0xAD || r == 0x34F || r == 0x61C || r == 0x640 || r == 0x180E || r == 0xFEFF:
		return true
	case r < 0x200B:
		return false
	}
	return r <= 0x200F || 0x202A <= r && r <= 0x202E || 0x2060 <= r && r <= 0x206F || 0xFE00 <= r && r <= 0xFE0F ||
		0xE0100 <= r && r <= 0xE01EF
}

// presentationForm reports whether a character belongs to a block of characters that exist only for their appearance.
// These are ligatures, letter forms by position in a word, and full and half width forms.
func presentationForm(r rune) bool {
	return r >= 0xFB00 && (r <= 0xFDFF || 0xFE10 <= r && r <= 0xFE1F || 0xFE30 <= r && r <= 0xFEFC || 0xFF01 <= r &&
		r <= 0xFFEF)
}

// rune folds the non-ASCII character at an offset and returns the offset after it.
func (f *folder) rune(at int) int {
	r, n := utf8.DecodeRuneInString(f.s[at:])
	next := at + n
	switch {
	case unicode.IsSpace(r):
		f.space(at, next)
		return next
	case unseen(r):
		return next
	case presentationForm(r):
		f.string(forms()[r], at, next)
		return next
	}
	if plain := plainMark(r); plain != "" {
		f.string(plain, at, next)
		return next
	}
	for next < len(f.s) && !f.starts(next) {
		_, n := utf8.DecodeRuneInString(f.s[next:])
		next += n
	}
	if next == at+n && inert(r) {
		f.string(f.s[at:next], at, next)
		return next
	}
	f.string(norm.NFC.String(f.s[at:next]), at, next)
	return next
}

// cluster folds an ASCII character with the marks that follow it, and returns the offset after them.
func (f *folder) cluster(at, next int) int {
	for next < len(f.s) && !f.starts(next) {
		_, n := utf8.DecodeRuneInString(f.s[next:])
		next += n
	}
	f.string(norm.NFC.String(f.s[at:next]), at, next)
	return next
}

// starts reports whether the character at an offset does not combine with the characters before it.
func (f *folder) starts(at int) bool {
	if f.s[at] < utf8.RuneSelf {
		return true
	}
	r, _ := utf8.DecodeRuneInString(f.s[at:])
	return inert(r) || unseen(r) || norm.NFC.PropertiesString(f.s[at:]).BoundaryBefore()
}

// inert reports whether NFC leaves a character unchanged. It is a quick test and knows only common letters.
func inert(r rune) bool {
	return r < 0x300 || 0x391 <= r && r <= 0x482 || 0x4E00 <= r && r <= 0x9FFF || 0xAC00 <= r && r <= 0xD7A3
}

// plainMark returns the ASCII form of a quotation mark, a dash, a slash or an ellipsis. It returns an empty string for
// other characters.
func plainMark(r rune) string {
	switch r {
	case '‘', '’', '‚', '‛', '‹', '›', '′', 'ʹ', 'ʼ', '´':
		return "'"
	case '“', '”', '„', '‟', '«', '»', '″', '〝', '〞':
		return `"`
	case '‐', '‑', '‒', '–', '—', '―', '−':
		return "-"
	case '…':
		return "..."
	case '⁄', '∕':
		return "/"
	}
	return ""
}

// forms maps presentation forms to plain characters.
var forms = sync.OnceValue(func() map[rune]string {
	m := map[rune]string{}
	for r := rune(0xFB00); r <= 0xFFEF; r++ {
		if !presentationForm(r) {
			continue
		}
		var plain strings.Builder
		for _, letter := range norm.NFKC.String(string(r)) { // letter may be a mark
			if mark := plainMark(letter); mark != "" {
				plain.WriteString(mark)
			} else {
				plain.WriteRune(letter)
			}
		}
		m[r] = plain.String()
	}
	return m
})

// appendSmall appends a letter in a form that its upper case and its lower case share.
func appendSmall(to []byte, r rune) []byte {
	switch {
	case r == 'ß' || r == 'ẞ':
		return append(to, "ss"...)
	case 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == ' ':
		return append(to, byte(r))
	}
	return utf8.AppendRune(to, unicode.ToLower(unicode.ToUpper(r)))
}

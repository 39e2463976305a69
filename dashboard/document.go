package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/extract"
)

// documentText is a document as it was read, with the places of quotes in it.
type documentText struct {
	text   string
	Same   bool        // its hash is that of the receipt
	bytes  map[int]int // offsets in the receipt's unit → in bytes; those that stand within a character, or behind the end, are left out
	quotes []extract.Found
}

// newDocumentText finds the offsets of quotes in a document. length is that of the text which was read, in the unit; the document may have grown since.
func newDocumentText(text string, unit extract.Unit, length int, sum string, quotes []extract.Found) *documentText {
	d := &documentText{quotes: quotes}
	wanted := make([]int, 0, 2*len(quotes)+1)
	for _, q := range quotes {
		wanted = append(wanted, q.Start, q.End)
	}
	wanted = append(wanted, length)
	slices.Sort(wanted)
	d.bytes = byteOffsets(text, unit, slices.Compact(wanted))
	if end, ok := d.bytes[length]; ok && length > 0 {
		text = text[:end]
	}
	hash := sha256.Sum256([]byte(text))
	d.text, d.Same = text, hex.EncodeToString(hash[:]) == sum
	return d
}

// byteOffsets converts offsets, which ascend, into bytes.
func byteOffsets(text string, unit extract.Unit, wanted []int) map[int]int {
	found := make(map[int]int, len(wanted))
	count := 0
	for at, c := range text {
		for len(wanted) > 0 && wanted[0] < count {
			wanted = wanted[1:]
		}
		if len(wanted) == 0 {
			return found
		}
		if wanted[0] == count {
			found[count] = at
		}
		switch {
		case unit == extract.Byte:
			count += utf8.RuneLen(c)
		case unit == extract.CodePoint || c < 0x10000:
			count++
		default:
			count += 2
		}
	}
	if slices.Contains(wanted, count) {
		found[count] = len(text)
	}
	return found
}

// place is where a quote is said to be, in bytes, and whether it stands there.
func (d *documentText) place(i int) (from, to int, inPlace bool) {
	q := d.quotes[i]
	from, begins := d.bytes[q.Start]
	to, ends := d.bytes[q.End]
	if !begins || !ends || from >= to || to > len(d.text) {
		return 0, 0, false
	}
	return from, to, d.text[from:to] == q.Quote
}

// Pieces is how many pieces the document has.
func (d *documentText) Pieces() int { return max(1, (len(d.text)+pieceSize-1)/pieceSize) }

// border is where a piece begins, in bytes: after a line's end, or at least between two characters.
func (d *documentText) border(n int) int {
	at := n * pieceSize
	switch {
	case at <= 0:
		return 0
	case at >= len(d.text):
		return len(d.text)
	}
	if line := strings.LastIndexByte(d.text[at-1000:at], '\n'); line >= 0 {
		return at - 1000 + line + 1
	}
	for !utf8.RuneStart(d.text[at]) {
		at--
	}
	return at
}

func (d *documentText) piece(n int) (from, to int) { return d.border(n), d.border(n + 1) }

// pieceOf is the piece that has a byte.
func (d *documentText) pieceOf(at int) int {
	n := at / pieceSize
	if n+1 < d.Pieces() && at >= d.border(n+1) {
		n++
	}
	return n
}

// Size is how many bytes the document has.
func (d *documentText) Size() int { return len(d.text) }

// segment is a stretch of a document in which the same quotes stand.
type segment struct {
	Text   string
	Begin  []int  // the numbers of the quotes that begin with it
	End    string // the numbers of those that end with it
	Title  string // the classes of all that stand there; empty: none
	Marked bool
}

// segments cuts a stretch of a text at the beginnings and ends of quotes, which may overlap.
func segments(text string, from, to int, quotes []quote) (all []segment) {
	cuts := []int{from, to}
	for _, q := range quotes {
		cuts = append(cuts, max(q.from, from), min(q.to, to))
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for i := 0; i+1 < len(cuts); i++ {
		s := segment{Text: text[cuts[i]:cuts[i+1]]}
		var classes, ends []string
		for _, q := range quotes {
			if q.from >= cuts[i+1] || q.to <= cuts[i] {
				continue
			}
			s.Marked = true
			if label := strconv.Itoa(q.N) + " " + q.Class; len(classes) < 10 {
				classes = append(classes, label)
			}
			if q.from == cuts[i] {
				s.Begin = append(s.Begin, q.N)
			}
			if q.to == cuts[i+1] {
				ends = append(ends, strconv.Itoa(q.N))
			}
		}
		s.Title, s.End = strings.Join(classes, ", "), strings.Join(ends, " ")
		all = append(all, s)
	}
	return all
}

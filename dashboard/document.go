package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/grounding"
)

// documentText is a document, with the places of quotes in it.
type documentText struct {
	text string
	Same bool // it has the hash of the receipt
	// maps offsets in the receipt's unit to bytes, without offsets inside a character or after the end
	bytes  map[int]int
	quotes []grounding.FoundItem
}

// newDocumentText finds the offsets of quotes in a document. length is the length, in the unit, of the text that the
// call read; the document may have grown since.
func newDocumentText(text string, unit grounding.Unit, length int, sum string,
	quotes []grounding.FoundItem) *documentText {
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

// byteOffsets converts ascending offsets to bytes.
func byteOffsets(text string, unit grounding.Unit, wanted []int) map[int]int {
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
		case unit == grounding.Byte:
			count += utf8.RuneLen(c)
		case unit == grounding.CodePoint || c < 0x10000:
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

// place returns where a quote should be, in bytes, and whether it is there.
func (d *documentText) place(i int) (from, to int, inPlace bool) {
	q := d.quotes[i]
	from, begins := d.bytes[q.Start]
	to, ends := d.bytes[q.End]
	if !begins || !ends || from >= to || to > len(d.text) {
		return 0, 0, false
	}
	return from, to, d.text[from:to] == q.Quote
}

// Pieces returns the number of pieces of the document.
func (d *documentText) Pieces() int { return max(1, (len(d.text)+pieceSize-1)/pieceSize) }

// border returns where a piece begins, in bytes: after a line's end, or at least between two characters.
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

// pieceOf returns the piece that contains a byte.
func (d *documentText) pieceOf(at int) int {
	n := at / pieceSize
	if n+1 < d.Pieces() && at >= d.border(n+1) {
		n++
	}
	return n
}

// Size returns the size of the document in bytes.
func (d *documentText) Size() int { return len(d.text) }

// segment is a part of a document that belongs to the same quotes.
type segment struct {
	Text   string
	Begin  []int  // the numbers of the quotes that begin with it
	End    string // the numbers of the quotes that end with it
	Title  string // the classes of its quotes; may be empty
	Marked bool
}

// segments cuts a part of a text at the beginnings and ends of quotes, which may overlap.
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

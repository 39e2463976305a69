package grounding

import (
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// pieces lists the parts of test texts. They cover everything that is normalised, that must not be split, or at which a
// body may end.
var pieces = []string{
	"a", "Beta", "Ω", "e\u0301", "n\u0303\u0331", "\u0301", "😀", "👩‍🚀", "👍🏽", "🇦🇺", "🇦", "한", "\u1112\u1161\u11ab", "漢字",
	"。", "」", "กำ", "नी", "\u200d",
	" ", "  ", "\t", "\n", "\n\n", "\r", "\r\n", "\r\r\n", " \n \n", "\ufeff", "\u00a0", "\u2028", ".", ". ", "?\" ",
	"| a | b |\n", ";;\n", "x\ty\tz\n",
}

func anyText(t *rapid.T) string {
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 60).Draw(t, "text"), "")
}

var toNewline = strings.NewReplacer("\r\n", "\n", "\r", "\n")

func TestWhatIsReadMapsBackToWhatWasGiven(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		given := anyText(t)
		for _, text := range []*Text{Normalise(given), NormaliseTrimmed(given)} {
			read, last := text.Read(), -1
			for at := range len(read) + 1 {
				if text.Given(at) <= last || text.Given(at) > len(given) {
					t.Fatalf("offset %d maps to %d, after %d, of %d", at, text.Given(at), last, len(given))
				}
				last = text.Given(at)
			}
		}
		text := Normalise(given)
		read := text.Read()
		if text.Given(len(read)) != len(given) {
			t.Fatalf("the end maps to %d of %d", text.Given(len(read)), len(given))
		}
		for from := range read {
			for to := range read {
				if from > to {
					continue
				}
				if got := given[text.Given(from):text.Given(to)]; toNewline.Replace(got) != read[from:to] {
					t.Fatalf("[%d,%d) %q maps to %q", from, to, read[from:to], got)
				}
			}
		}
	})
}

func TestOffsetsAreCountedInEachUnit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		given := strings.Repeat(anyText(t), 5) // longer than a block
		text := Normalise(given)
		bytes, points, units, lines := text.Index(Byte), text.Index(CodePoint), text.Index(UTF16), text.Lines()
		for at := range given + " " {
			before := given[:at]
			if bytes.At(at) != at || points.At(at) != utf8.RuneCountInString(before) ||
				units.At(at) != len(utf16.Encode([]rune(before))) {
				t.Fatalf("%q: got %d bytes, %d code points, %d units", before, bytes.At(at), points.At(at), units.At(at))
			}
		}
		if units.Len() != len(utf16.Encode([]rune(given))) {
			t.Fatalf("got the length %d", units.Len())
		}
		for at := range text.Read() {
			if got, want := lines.At(at), strings.Count(text.Read()[:at], "\n"); got != want {
				t.Fatalf("offset %d: got %d line ends, want %d", at, got, want)
			}
		}
	})
}

func TestTheEmptyUnitIsThatOfBrowsers(t *testing.T) {
	t.Parallel()
	if got := Normalise("😀 Zoë").Index("").At(len("😀 ")); got != 3 {
		t.Errorf("got %d, want 3", got)
	}
}

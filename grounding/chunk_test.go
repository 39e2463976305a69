package grounding

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// checkShards checks the properties that hold for all texts, sizes and contexts.
func checkShards(t interface{ Fatalf(string, ...any) }, text *Text, shards []Shard, start, end, size, context int) {
	read := text.Read()
	size, context = max(size, 1), max(context, 0)
	at := start
	for i, s := range shards {
		n := utf8.RuneCountInString(s.Body)
		switch {
		case s.Start != at || s.End <= s.Start || s.Body != read[s.Start:s.End]:
			t.Fatalf("body %d is [%d,%d) %q, and the last ended at %d", i, s.Start, s.End, s.Body, at)
		case !utf8.ValidString(s.Body):
			t.Fatalf("body %d divides a character: %q", i, s.Body)
		case n > size && (n > size+maxCluster || len(characters(s.Body)) > 1):
			t.Fatalf("body %d has %d code points of %d: %q", i, n, size, s.Body)
		case !between(read, s.End, s.Start) && len(characters(s.Body)) > 1:
			t.Fatalf("body %d ends within a character: %q|%q", i, s.Body, read[s.End:])
		case !strings.HasPrefix(read[s.End:], s.After) || utf8.RuneCountInString(s.After) > context:
			t.Fatalf("body %d has after it %q, want up to %d of %q", i, s.After, context, read[s.End:])
		}
		checkBefore(t, read, s, context)
		at = s.End
	}
	if at != end {
		t.Fatalf("the bodies end at %d of %d", at, end)
	}
}

// checkBefore checks that the context before a body is the end of the text before it. A table header may precede the
// context.
func checkBefore(t interface{ Fatalf(string, ...any) }, read string, s Shard, context int) {
	n := 0
	for n < len(s.Before) && n < s.Start && s.Before[len(s.Before)-1-n] == read[s.Start-1-n] {
		n++
	}
	header := s.Before[:len(s.Before)-n]
	if header != "" && !strings.Contains(read[:s.Start], header) || len(header) > maxHeader ||
		utf8.RuneCountInString(s.Before) > context+maxHeader {
		t.Fatalf("the body at %d has before it %q", s.Start, s.Before)
	}
}

// characters splits a text into its characters.
func characters(text string) []string {
	var all []string
	start := 0
	for at := range text + " " {
		if at > 0 && between(text, at, start) {
			all = append(all, text[start:at])
			start = at
		}
	}
	return all
}

func TestBodiesTileTheTextWhateverTheSize(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := Normalise(anyText(t))
		size, context := rapid.IntRange(1, 40).Draw(t, "size"), rapid.IntRange(0, 30).Draw(t, "context")
		shards, err := Cut(text, size, context)
		if err != nil {
			t.Fatal(err)
		}
		checkShards(t, text, shards, 0, len(text.Read()), size, context)
		for _, s := range shards {
			if halves := s.Halves(text, context); halves != nil {
				checkShards(t, text, halves, s.Start, s.End, size, context)
			} else if len(characters(s.Body)) > 1 {
				t.Fatalf("%q was not divided", s.Body)
			}
		}
	})
}

func TestEachMentionIsOwnedByOneShardThatSeesItWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := Normalise(anyText(t))
		size, context := rapid.IntRange(1, 40).Draw(t, "size"), rapid.IntRange(1, 30).Draw(t, "context")
		shards, err := Cut(text, size, context)
		if err != nil {
			t.Fatal(err)
		}
		read := text.Read()
		for start := range read {
			var owner *Shard
			for i, s := range shards {
				if s.Start <= start && start < s.End {
					if owner != nil {
						t.Fatalf("offset %d has two owners", start)
					}
					owner = &shards[i]
				}
			}
			for end := range read + " " {
				mention := read[start:max(start, end)]
				if utf8.RuneCountInString(mention) > context || !between(read, end, max(0, owner.Start)) {
					continue
				}
				at := len(owner.Before) + start - owner.Start
				if window := owner.Text(); !strings.HasPrefix(window[at:], mention) {
					t.Fatalf("%q at %d is not in %q", mention, start, window)
				}
			}
		}
	})
}

func TestABodyEndsWhereTheTextPauses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, text, first string }{
		{"a blank line", "One two.\nThree.\n\nFour five. Six\nseven eight nine", "One two.\nThree.\n\n"},
		{"a blank line of spaces", "One two.\nThree.\n \t\nFour five. Six\nseven eight", "One two.\nThree.\n \t\n"},
		{"a line", "One two three four\nFive. Six seven eight nine", "One two three four\n"},
		{"a sentence", "One two three four. Five six seven eight nine", "One two three four. "},
		{"a sentence in quotation marks", "One two “three four.” Five six seven eight", "One two “three four.” "},
		{"a sentence without spaces", "一二三四五六七八九十一二三四五「六七八。」九十一二三四五六七八九十", "一二三四五六七八九十一二三四五「六七八。」"},
		{"a danda", "एक दो तीन चार पाँच। छह सात आठ नौ दस ग्यारह", "एक दो तीन चार पाँच। "},
		{"a word", "One two three four five six seven eight nine", "One two three four five six "},
		{"before a bracket", "One two three four fivesix (seven)eight", "One two three four fivesix "},
		{"no decimal point", "One two three four 1,840.00 1840.0011111111", "One two three four 1,840.00 "},
		{"a character", strings.Repeat("x", 40), strings.Repeat("x", 30)},
		{"a letter with its accent", strings.Repeat("x", 29) + "e\u0301" + strings.Repeat("x", 9), strings.Repeat("x", 29)},
		{"an emoji of several", strings.Repeat("x", 28) + "👩‍🚀" + strings.Repeat("x", 9), strings.Repeat("x", 28)},
		{"a flag", "x" + strings.Repeat("🇦🇺", 20), "x" + strings.Repeat("🇦🇺", 14)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			shards, err := Cut(Normalise(test.text), 30, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := shards[0].Body; got != test.first {
				t.Errorf("got %q, want %q", got, test.first)
			}
		})
	}
}

func TestACharacterOfManyMarksStaysWhole(t *testing.T) {
	t.Parallel()
	letter := "e" + strings.Repeat("\u0301", 20)
	shards, err := Cut(Normalise("x"+letter+"x"), 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(shards) != 3 || shards[1].Body != letter {
		t.Errorf("got %+v", shards)
	}
	endless, err := Cut(Normalise("e"+strings.Repeat("\u0301", 1000)), 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(endless) != 11 {
		t.Errorf("got %d shards of an endless character, want 11 of at most 100 code points", len(endless))
	}
}

func TestABodyInsideATableSeesItsHeader(t *testing.T) {
	t.Parallel()
	rows := strings.Repeat("| Acme | 1.00 |\n", 6)
	head := "| Name | Sum |\n|------|-----|\n"
	for _, test := range []struct{ name, text, before string }{
		{"a table", "Prices:\n" + head + rows, head + ".00 |\n"},
		{"a text", "Prices:\n" + strings.Repeat("Acme: 1.00 dollars\n", 6), "llars\n"},
		{"tabs", "a\tb\tc\n" + strings.Repeat("Acme\t1.00\t2.00\n", 6), "a\tb\tc\nAcme\t1.00\t2.00\n\t2.00\n"},
		{"semicolons", "a;b;c\n" + strings.Repeat("Acme;1.00;2.00;\n", 6), "Acme;1.00;2.00;\nAcme;1.00;2.00;\n2.00;\n"},
		{"a header that is too long", "| Name | " + strings.Repeat("Sum", 1000) + " |\n" + rows, ".00 |\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			shards, err := Cut(Normalise(test.text), 60, 6)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.before, shards[len(shards)-1].Before); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAHeaderIsNotRepeatedWhereTheContextHasIt(t *testing.T) {
	t.Parallel()
	text := "| Name | Sum |\n|------|-----|\n" + strings.Repeat("| Acme | 1.00 |\n", 6)
	shards, err := Cut(Normalise(text), 60, 25)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := shards[1].Before, text[:shards[1].Start]; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestABlankTextNeedsNoModel(t *testing.T) {
	t.Parallel()
	for _, given := range []string{"", " ", "\r\n\t \u3000\u00a0", "\ufeff", strings.Repeat("\n", 100)} {
		shards, err := Cut(Normalise(given), 8, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range shards {
			if !s.Blank() {
				t.Errorf("%q: a model would be asked about %q", given, s.Body)
			}
		}
	}
}

func TestADocumentThatIsTooLargeIsToldWhatFits(t *testing.T) {
	t.Parallel()
	text := Normalise(strings.Repeat("word and ", 1000))
	_, err := Cut(text, 10, 0)
	var large *TooLarge
	if !errors.As(err, &large) || large.Size != 10 || large.Fits <= 10 {
		t.Fatalf("got %v", err)
	}
	if shards, err := Cut(text, large.Fits, 0); err != nil || len(shards) > MaxShards {
		t.Errorf("a size of %d does not fit: %v", large.Fits, err)
	}
	if want := "the document has more than 512 shards of at most 10 characters: a size of"; !strings.HasPrefix(err.Error(),
		want) {
		t.Errorf("got %q, want %q", err, want)
	}
	if exact, err := Cut(Normalise(strings.Repeat("x", MaxShards)), 1, 0); err != nil || len(exact) != MaxShards {
		t.Errorf("512 shards: got %d, %v", len(exact), err)
	}
	if _, err := Cut(Normalise(strings.Repeat("x", MaxShards*MaxSize+1)), MaxSize, 0); err == nil ||
		!strings.HasSuffix(err.Error(), "divide it into several documents") {
		t.Errorf("more than the largest size: got %v", err)
	}
}

func FuzzChunk(f *testing.F) {
	f.Add("Alpha Beta\r\n\r\nGamma", 8, 2)
	f.Add(strings.Join(pieces, ""), 3, 5)
	f.Add("| a | b |\n| - | - |\n| c | d |\n", 12, 3)
	f.Fuzz(func(t *testing.T, given string, size, context int) {
		text := Normalise(strings.ToValidUTF8(given, "?"))
		context = min(context, 3000)
		shards, err := Cut(text, size, context)
		var large *TooLarge
		if errors.As(err, &large) {
			return
		}
		checkShards(t, text, shards, 0, len(text.Read()), size, context)
		for _, s := range shards[:min(len(shards), 20)] {
			if halves := s.Halves(text, context); halves != nil {
				checkShards(t, text, halves, s.Start, s.End, size, context)
			}
		}
	})
}

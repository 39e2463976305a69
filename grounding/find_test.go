package grounding

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/unicode/norm"
)

// seen returns the matches of a quote as match@start-end, in bytes. It returns an empty string if there are none.
func seen(text, quote string) string {
	s := newFinder(Window{Body: text}).find(quote)
	var all []string
	for _, at := range s.spots {
		all = append(all, fmt.Sprintf("%s@%d-%d", s.match, at.start, at.end))
	}
	return strings.Join(all, " ")
}

func TestAQuoteIsFoundAsItStandsInTheText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, text, quote, want string }{
		{"as it is", "😀 Zoë", "Zoë", "exact@5-9"},
		{"in all places", "Blue Red Blue", "Blue", "exact@0-4 exact@9-13"},
		{"decomposed", "😀 Zoë", "Zoe\u0308", "folded@5-9"},
		{"composed", "Zoe\u0308 ran", "Zoë", "folded@0-5"},
		{"over line ends", "due\n  on\tMay\u00a03", "due on May 3", "folded@0-15"},
		{"over line ends of the model", "due on May", "due\n\non May", "folded@0-10"},
		{"with plain quotation marks", "“It’s »so«”", `"It's "so""`, "folded@0-19"},
		{"with a plain dash and points", "3–5 May… ok", "3-5 May...", "folded@0-12"},
		{"without what has no width", "co\u00adop\u200berate now", "cooperate", "folded@0-14"},
		{"with what has no width", "cooperate", "\u200fco\u00adoperate\u200e", "folded@0-9"},
		{"without the selector of an emoji", "I ❤\ufe0f it", "I ❤ it", "folded@0-11"},
		{"with ligatures opened", "the oﬃce ﬁre", "office fire", "folded@4-16"},
		{"with narrow forms", "共１，２００円", "1,200円", "folded@3-21"},
		{"without the stroke of Arabic", "كتـــاب جديد", "كتاب", "folded@0-14"},
		{"without the marks of Markdown", "**Total:** 5\\_000", "Total: 5_000", "folded@2-17"},
		{"with escapes of Markdown", "a_b * c", `a\_b \* c`, "folded@0-7"},
		{"with backslashes written twice", `C:\temp\new`, `C:\\temp\\new`, "folded@0-11"},
		{"with escapes that JSON knows", `see C:\temp\new.`, "C:\temp\new", "folded@4-15"},
		{"with entities of HTML", "R&D <b>", "R&amp;D &lt;b&gt;", "folded@0-7"},
		{"with escapes written twice", "Zoë\nran", `Zo\u00eb\nran`, "folded@0-8"},
		{"in quotation marks of the model", "say yes", `"yes"`, "folded@4-7"},
		{"in other letters", "ACME Corp", "Acme CORP", "caseless@0-9"},
		{"in other letters of German and Greek", "STRASSE ΟΔΟΣ", "Straße Οδος", "caseless@0-16"},
		{"spaces at its ends do not count", "a Beta c", " Beta\n", "folded@2-6"},
		{"other words", "due on May 3", "due on the 3rd of May", ""},
		{"nothing that is seen", "a\u200bb", "\u200b\u200b", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := seen(test.text, test.quote); got != test.want {
				t.Errorf("%q in %q: got %q, want %q", test.quote, test.text, got, test.want)
			}
		})
	}
}

func TestAQuoteIsNotCutOutOfAWord(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, text, quote, want string }{
		{"three letters may be", "banana", "nan", "exact@2-5"},
		{"two may not", "banana", "na", ""},
		{"a word alone is better", "Annual report by Ann", "Ann", "exact@17-20"},
		{"the second half of a compound", "Dampfschiff", "schiff", "exact@5-11"},
		{"not in other letters", "Dampfschiff", "Schiff", ""},
		{"not folded", "a co\u00adoperation", "cooperat", ""},
		{"not a number out of a number", "12005", "200", ""},
		{"a number at its comma only if there is no other", "1,200 or 200", "200", "exact@9-12"},
		{"a date", "3.5.2026", "2026", "exact@4-8"},
		{"a letter without its mark", "Zoe\u0308", "Zoe", ""},
		{"an emoji without its other half", "👩\u200d🚀", "👩", ""},
		{"a flag of marks", "5️⃣ ok", "5", ""},
		{"Chinese does not divide words", "给予250毫克静脉", "250毫克", "exact@6-15"},
		{"one sign of Chinese", "患者王明", "王", "exact@6-9"},
		{"a noun of Korean and its particle", "서울에서", "서울", "exact@0-6"},
		{"Thai does not divide words", "ที่เชียงใหม่วันนี้", "เชียงใหม่", "exact@9-36"},
		{"Thai without the mark of its last letter", "ที่", "ท", ""},
		{"Arabic without the vowel of its last letter", "محمدٌ هنا", "محمد", "exact@0-8"},
		{"points and dashes are borders", "(x-ray)", "x", "exact@1-2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := seen(test.text, test.quote); got != test.want {
				t.Errorf("%q in %q: got %q, want %q", test.quote, test.text, got, test.want)
			}
		})
	}
}

// places returns the quotes of an answer with their offsets, in the order of the text, and then the reasons of the
// rejections.
func places(t *testing.T, w Window, items ...string) string {
	t.Helper()
	r := tokens(t).Read(w, extractions(items...), false)
	var all []string
	for _, item := range r.Items {
		all = append(all, fmt.Sprintf("%s@%d", item.Quote, item.Start))
	}
	for _, rejected := range r.Rejected {
		all = append(all, rejected.Reason)
	}
	return strings.Join(all, " ")
}

func TestAmongEqualMentionsTheOrderOfTheAnswerDecides(t *testing.T) {
	t.Parallel()
	const text = "Red Blue Green Blue Red Blue"
	at := func(quote string, offset int) string {
		return fmt.Sprintf(`{"class":"token","quote":%q,"charStart":%d}`, quote, offset)
	}
	for _, test := range []struct {
		name  string
		items []string
		want  string
	}{
		{"the first", []string{token("Blue")}, "Blue@4"},
		{"all", []string{token("Blue"), token("Blue"), token("Blue")}, "Blue@4 Blue@15 Blue@24"},
		{"one more than there are", []string{token("Blue"), token("Blue"), token("Blue"), token("Blue")},
			"Blue@4 Blue@15 Blue@24"},
		{"behind another", []string{token("Green"), token("Blue")}, "Green@9 Blue@15"},
		{"between two", []string{token("Green"), token("Red"), token("Blue")}, "Green@9 Red@20 Blue@24"},
		{"not all in order", []string{token("Green"), token("Red Blue Green"), token("Blue")},
			"Red Blue Green@0 Green@9 Blue@15"},
		{"against the order", []string{token("Green"), token("Red"), token("Blue"), token("Red")},
			"Red@0 Green@9 Blue@15 Red@20"},
		{"the longest chain", []string{token("Red Blue"), token("Green Blue"), token("Red")},
			"Red Blue@0 Green Blue@9 Red@20"},
		{"an offset is a hint", []string{at("Blue", 15)}, "Blue@15"},
		{"an offset beside it is none", []string{at("Blue", 16)}, "Blue@4"},
		{"the order before the offsets", []string{at("Red", 20), at("Blue", 4)}, "Red@0 Blue@4"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := places(t, Window{Body: text}, test.items...); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	if got := places(t, Window{Body: "😀é " + text}, at("Blue", 3+1+15)); got != "Blue@22" {
		t.Errorf("an offset in UTF-16: %s", got)
	}
	if got := places(t, Window{Body: "😀é " + text}, at("Blue", 3+15)); got != "Blue@22" {
		t.Errorf("an offset in characters: %s", got)
	}
}

func TestAnAnswerThatIsNotInOrderIsPlacedByTheShortestWay(t *testing.T) {
	t.Parallel()
	c := compiled(t, &Program{Instructions: "Find all.",
		Classes: []Class{{Name: "person"}, {Name: "amount"}, {Name: "act"}}})
	for _, test := range []struct{ name, claims, want string }{
		{"as it stands there", "person:Ada amount:5 person:Bob person:Ada", "Ada@0 5@9 Bob@14 Ada@19"},
		{"class by class", "amount:5 person:Ada person:Bob", "Ada@0 5@9 Bob@14"},
		{"class by class, all", "person:Ada person:Bob person:Ada person:Eve amount:5 amount:5",
			"Ada@0 5@9 Bob@14 Ada@19 5@28 Eve@33"},
		{"one class in another's place", "act:Ada_pays person:Ada person:Bob", "Ada@0 Ada pays@0 Bob@14"},
		{"backwards, by what stands there once", "person:Eve amount:5 person:Bob", "Bob@14 5@28 Eve@33"},
	} {
		var items []string
		for _, claim := range strings.Fields(test.claims) {
			class, quote, _ := strings.Cut(claim, ":")
			items = append(items, fmt.Sprintf(`{"class":%q,"quote":%q}`, class, strings.ReplaceAll(quote, "_", " ")))
		}
		var got []string
		for _, item := range c.Read(Window{Body: "Ada pays 5 to Bob. Ada owes 5 to Eve."}, extractions(items...),
			false).Items {
			got = append(got, fmt.Sprintf("%s@%d", item.Quote, item.Start))
		}
		if all := strings.Join(got, " "); all != test.want {
			t.Errorf("%s: got %s, want %s", test.name, all, test.want)
		}
	}
}

func TestAShardOwnsWhatBeginsInItsBody(t *testing.T) {
	t.Parallel()
	w := Window{Before: "Blue Gre", Body: "en Red Ye", After: "llow Blue Red"}
	for _, test := range []struct{ quote, want string }{
		{"Blue", ""},            // only the context has it
		{"Green", ""},           // begins in the context before the body
		{"Red", "Red@11"},       // the one in the body, not the one after it
		{"Yellow", "Yellow@15"}, // ends in the context after the body
		{"Blue Red", ""},
		{"Nobody", QuoteNotFound},
	} {
		if got := places(t, w, token(test.quote)); got != test.want {
			t.Errorf("%s: got %q, want %q", test.quote, got, test.want)
		}
	}
}

// A model is asked about the body, so it means the mention there. This holds even if it wrote the quote as in the
// context.
func TestAMentionInTheBodyCountsThoughTheContextHasItWordForWord(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, quote string
		window      Window
		want        string
	}{
		{"before", "Ada Byron", Window{Before: "Seller: Ada Byron. ", Body: "Signed: Ada\nByron."}, "Ada\nByron@27"},
		{"after", "5-7", Window{Body: "Pages 5–7. ", After: "Or 5-7."}, "5–7@6"},
		{"within a word of the body", "Ada", Window{Before: "Ada ", Body: "Adam"}, ""},
		{"in other letters", "May", Window{Before: "May ", Body: "it may be"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := ""
			for _, item := range tokens(t).Read(test.window, extractions(token(test.quote)), false).Items {
				got += fmt.Sprintf("%s@%d", item.Quote, item.Start)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTextsThatDifferInPresentationHaveOneFolding(t *testing.T) {
	t.Parallel()
	for _, class := range [][]string{
		{"a b", "a\u00a0b", "a \n\tb", "a\u200b b", "a\u3000b"},
		{"\"it's\"", "“it’s”", "„it‘s‟", "«it′s»", "&quot;it&#39;s&quot;"},
		{"a-b", "a–b", "a—b", "a−b", "a‑b", "a\uff0db"},
		{"Å", "A\u030a", "\u212b"},
		{"가", "\u1100\u1161"},
		{"fi", "ﬁ", "f\u00adi"},
		{"لا", "ﻻ"},
		{"5_0", `5\_0`},
	} {
		want := fold(class[0], false).text
		for _, other := range class[1:] {
			if got := fold(other, false).text; got != want {
				t.Errorf("%q: got %q, want %q", other, got, want)
			}
		}
	}
	for _, pair := range [][2]string{{"m²", "m2"}, {"½", "1/2"}, {"a b", "ab"}, {"é", "e"}, {"2**3", "23"}, {"①", "1"},
		{"Ａ", "a"}, {"و", "ر"}} {
		if a, b := fold(pair[0], false).text, fold(pair[1], false).text; a == b {
			t.Errorf("%q and %q are both %q: they are not the same words", pair[0], pair[1], a)
		}
	}
}

// FuzzFold checks that each part of a folding maps to a part of the text, in order. It also checks that a text is found
// in itself, and that matches of its NFC and NFD forms are whole characters.
func FuzzFold(f *testing.F) {
	for _, seed := range []string{"a \n“b”…c\u00ad\u0301 ﬁ &amp; **x** \\_ é", "\u1100\u1161\u11a8",
		"👩\u200d🚀 \u0301\u0301", "ßẞİı", "`` \\\\ ﷺ"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "")
		for _, caseless := range []bool{false, true} {
			folded := fold(text, caseless)
			if len(folded.start) != len(folded.text) || len(folded.end) != len(folded.text) || !utf8.ValidString(folded.text) {
				t.Fatalf("%q: %q with %d starts and %d ends", text, folded.text, len(folded.start), len(folded.end))
			}
			for i := range folded.text {
				start, end := int(folded.start[i]), int(folded.end[i])
				if start < 0 || start >= end || end > len(text) || !utf8.ValidString(text[start:end]) {
					t.Fatalf("%q: byte %d stands for %d to %d", text, i, start, end)
				}
				if i > 0 && (start < int(folded.start[i-1]) || end < int(folded.end[i-1])) {
					t.Fatalf("%q: byte %d goes back", text, i)
				}
			}
		}
		finder := newFinder(Window{Body: text})
		quote := strings.TrimSpace(text)
		for _, variant := range []string{quote, norm.NFD.String(quote), norm.NFC.String(quote)} {
			for _, at := range finder.find(variant).spots {
				if at.start >= at.end || !utf8.ValidString(text[at.start:at.end]) {
					t.Fatalf("%q in %q: at %d to %d", variant, text, at.start, at.end)
				}
			}
		}
		first, _ := utf8.DecodeRuneInString(quote)
		from := strings.Index(text, quote)
		if before, _ := utf8.DecodeLastRuneInString(text[:from]); quote != "" && strings.Count(text, quote) == 1 &&
			joint(before, first)+joint(lastRune(quote), firstRune(text[from+len(quote):])) == clear {
			if diff := cmp.Diff(sighting{[]span{{from, from + len(quote)}}, Exact}, finder.find(quote),
				cmp.AllowUnexported(sighting{}, span{})); diff != "" {
				t.Fatalf("%q is not found in itself:\n%s", quote, diff)
			}
		}
	})
}

// Most values of the table occur in many rows. The model reports the rows in several ways. Each value must be found in
// its own row.
func TestTheValuesOfARowAreFoundInThatRow(t *testing.T) {
	t.Parallel()
	type cell struct {
		class, quote string
		at           int
	}
	var text strings.Builder
	var rows [][]cell
	for i := range 200 {
		row := []cell{{class: "number", quote: fmt.Sprint("R-", 1000+7*i)},
			{class: "name", quote: []string{"Ann", "Anna", "Bo"}[i*i%3]}, {class: "day", quote: fmt.Sprint(i * 5 % 28)},
			{class: "sum", quote: fmt.Sprint(i*37%50, ".00")}}
		for n := range row {
			text.WriteString("| ")
			row[n].at = text.Len()
			text.WriteString(row[n].quote + " ")
		}
		text.WriteString("|\n")
		rows = append(rows, row)
	}
	c := compiled(t, &Program{Instructions: "Find all.",
		Classes: []Class{{Name: "number"}, {Name: "name"}, {Name: "day"}, {Name: "sum"}}})
	byClass := func(a, b cell) int { return strings.Compare(a.class, b.class) }
	for _, test := range []struct {
		name  string
		every int // report every nth row
		order func(all []cell)
		right float64
	}{
		{"in their order", 1, func([]cell) {}, 1},
		{"every ninth in their order", 9, func([]cell) {}, 1},
		{"each in an order of its own", 1, func(all []cell) {
			for i := 0; i < len(all); i += 4 {
				slices.Reverse(all[i : i+4])
			}
		}, 1},
		{"every ninth in an order of its own", 9, func(all []cell) {
			for i := 0; i < len(all); i += 4 {
				slices.Reverse(all[i : i+4])
			}
		}, 0.9},
		{"class by class", 1, func(all []cell) { slices.SortStableFunc(all, byClass) }, 1},
	} {
		var told []cell
		for i := 0; i < len(rows); i += test.every {
			told = append(told, rows[i]...)
		}
		test.order(told)
		want := map[cell]bool{}
		var items []string
		for _, cell := range told {
			want[cell] = true
			items = append(items, fmt.Sprintf(`{"class":%q,"quote":%q}`, cell.class, cell.quote))
		}
		right := 0
		for _, item := range c.Read(Window{Body: text.String()}, extractions(items...), false).Items {
			if want[cell{item.Class, item.Quote, item.Start}] {
				right++
			}
		}
		if share := float64(right) / float64(len(told)); share < test.right {
			t.Errorf("%s: %d of %d are in their rows", test.name, right, len(told))
		}
	}
}

package grounding

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestOfTwoAnswersAllThatIsAcceptedCounts(t *testing.T) {
	t.Parallel()
	c := compiled(t, &Program{Instructions: "Find all.",
		Classes: []Class{{Name: "token"}, {Name: "sum",
			Attributes: json.RawMessage(`{"type":"object","properties":{"n":{"type":"number"}}}`)}}})
	sum := func(quote string, n int) string {
		return fmt.Sprintf(`{"class":"sum","quote":%q,"attributes":{"n":%d}}`, quote, n)
	}
	bad := token("Nobody")
	for _, test := range []struct{ name, first, second, want string }{
		{"both", extractions(token("Gamma"), bad), extractions(token("Alpha")), "Alpha Gamma"},
		{"the same", extractions(token("Gamma"), bad), extractions(token("Gamma"), bad), "Gamma !" + QuoteNotFound},
		{"the second differs", extractions(sum("Beta", 1), bad), extractions(sum("Beta", 2)), "Beta !" + Conflict},
		{"the first cannot be read", "no", extractions(token("Beta")), "Beta"},
		{"the second cannot be read", extractions(token("Beta"), bad), "no", "Beta !" + QuoteNotFound},
		{"the second is cut", extractions(token("Beta"), bad), `{"extractions":[`, "Beta !" + QuoteNotFound},
		{"neither can be read", "no", "no", Unreadable},
		{"the first cannot be read and the second is cut", "no", `{"extractions":[`, Truncated},
		{"the first cannot be read, and the second takes all back", `{"extractions":[` + token("Beta") + `}`, extractions(),
			"!" + Unreadable},
		{"the first says nothing, and the second has nothing", "no", extractions(), "empty"},
		{"the second takes all back", extractions(bad), extractions(), "!" + QuoteNotFound},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := Window{Body: alpha}
			got := MergeAnswers(c.Read(w, test.first, false), c.Read(w, test.second, false))
			if o := outcome(got); o != test.want {
				t.Errorf("got %s, want %s", o, test.want)
			}
			if test.name == "the second differs" && string(got.Items[0].Attributes) != `{"n":2}` {
				t.Errorf("got the attributes %s of the first answer", got.Items[0].Attributes)
			}
		})
	}
}

func TestOffsetsCountTheGivenTextInEachUnit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, given, quote string
		want               map[Unit][2]int
		sliced             string
	}{
		{"beyond ASCII", "😀 Zoë", "Zoë", map[Unit][2]int{UTF16: {3, 6}, CodePoint: {2, 5}, Byte: {5, 9}}, "Zoë"},
		{"line ends of Windows", "A\r\nBeta", "Beta", map[Unit][2]int{UTF16: {3, 7}, CodePoint: {3, 7}, Byte: {3, 7}},
			"Beta"},
		{"over line ends of Windows", "\ufeffA\r\nBeta", "A\nBeta",
			map[Unit][2]int{UTF16: {1, 8}, CodePoint: {1, 8}, Byte: {3, 10}}, "A\r\nBeta"},
	} {
		for unit, want := range test.want {
			text := Normalise(test.given)
			shard := Shard{End: len(text.Read()), Window: Window{Body: text.Read()}}
			found, _ := Merge(text, unit, []Part{{shard, tokens(t).Read(shard.Window,
				extractions(`{"class":"token","quote":`+string(mustJSON(test.quote))+`}`), false)}})
			if len(found) != 1 || found[0].Start != want[0] || found[0].End != want[1] || found[0].Quote != test.sliced {
				t.Errorf("%s, %s: got %+v, want %v", test.name, unit, found, want)
			}
		}
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// allOf returns the answer of a perfect model. It has every mention in a window, including those in the context.
func allOf(w Window, quotes []string) string {
	var items []string
	text := w.Text()
	for at := 0; at < len(text); at++ {
		for _, quote := range quotes {
			if strings.HasPrefix(text[at:], quote) {
				items = append(items, token(quote))
			}
		}
	}
	return extractions(items...)
}

func TestEachMentionIsFoundOnceWhateverTheShards(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 60 {
		fmt.Fprintf(&b, "%d. Beta Gamma pays\r\nZoë😀 and leaves. Alpha? ", i)
	}
	given := b.String()
	text := Normalise(given)
	quotes := []string{"Beta Gamma", "Zoë", "Alpha"}
	units := utf16.Encode([]rune(given))
	for _, size := range []int{16, 25, 40, 100, 5000} {
		for _, context := range []int{16, 50} {
			shards, err := Cut(text, size, context)
			if err != nil {
				t.Fatal(err)
			}
			var parts []Part
			for _, s := range shards {
				parts = append(parts, Part{s, tokens(t).Read(s.Window, allOf(s.Window, quotes), false)})
			}
			rand.New(rand.NewSource(int64(size))).Shuffle(len(parts),
				func(i, j int) { parts[i], parts[j] = parts[j], parts[i] }) //nolint:gosec // the same order each time
			found, refused := Merge(text, UTF16, parts)
			if len(found) != 180 || len(refused) > 0 {
				t.Errorf("size %d, context %d: %d found, rejected %v", size, context, len(found), refused)
			}
			for i, f := range found {
				if got := string(utf16.Decode(units[f.Start:f.End])); got != f.Quote || !strings.HasPrefix(quotes[i%3], f.Quote) {
					t.Errorf("size %d, context %d: the text is %q at the place of %q", size, context, got, f.Quote)
				}
				before, _, _ := strings.Cut(given, f.Quote)
				if line := 1 + strings.Count(before, "\n"); i < 3 && f.Line != line {
					t.Errorf("%s: line %d, want %d", f.Quote, f.Line, line)
				}
			}
		}
	}
}

func TestMergingDoesNotDependOnTheOrderOfTheParts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := Normalise(rapid.StringMatching(`([ab] ?[éß😀]? ?\r?\n?){1,80}`).Draw(t, "text"))
		shards, err := Cut(text, 10, 4)
		if err != nil {
			t.Fatal(err)
		}
		c := compiledForRapid(t)
		var parts []Part
		for _, s := range shards {
			parts = append(parts, Part{s, c.Read(s.Window,
				extractions(rapid.SliceOfN(rapid.SampledFrom([]string{token("a"), token("b"), token("é"), token("a b"), token("x"),
					"1"}), 0, 8).Draw(t, "items")...), false)})
		}
		found, refused := Merge(text, Byte, parts)
		shuffled := rapid.Permutation(parts).Draw(t, "order")
		again, refusedAgain := Merge(text, Byte, shuffled)
		if diff := cmp.Diff(found, again) + cmp.Diff(refused, refusedAgain); diff != "" {
			t.Fatal(diff)
		}
		runes := []rune(text.given)
		units := utf16.Encode(runes)
		slices := map[Unit]func(from, to int) string{
			Byte:      func(from, to int) string { return text.given[from:to] },
			CodePoint: func(from, to int) string { return string(runes[from:to]) },
			UTF16:     func(from, to int) string { return string(utf16.Decode(units[from:to])) },
		}
		for unit, slice := range slices {
			found, _ := Merge(text, unit, parts)
			for _, f := range found {
				if slice(f.Start, f.End) != f.Quote {
					t.Fatalf("%+v is not the text in %s", f, unit)
				}
			}
		}
	})
}

func compiledForRapid(t *rapid.T) *CompiledProgram {
	c, err := (&Program{Instructions: "Extract tokens.", Classes: []Class{{Name: "token"}}}).Compile()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheShareOfTheLinesThatAreCoveredIsSeen(t *testing.T) {
	t.Parallel()
	rows := strings.Repeat("| a row |\n", 40)
	row := func(n int) Item { return Item{Start: 3 + 10*n + 2, End: 3 + 10*n + 7} }
	for _, test := range []struct {
		name  string
		body  string
		items []Item
		want  float64
	}{
		{"nothing", rows, nil, 0},
		{"three of forty rows", rows, []Item{row(0), row(0), row(7), row(39)}, 0.075},
		{"over lines", rows, []Item{{Start: 3, End: 3 + 25}}, 0.075},
		{"blank lines do not count", "a\n\n \nb", []Item{{Start: 3, End: 4}}, 0.5},
		{"behind the body", "a\nb", []Item{{Start: 5, End: 20}}, 0.5},
		{"a blank body", " \n", nil, 0},
		{"all", "a", []Item{{Start: 3, End: 4}}, 1},
	} {
		if got := Covered(Window{Before: "xx\n", Body: test.body, After: "yy"}, test.items); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

package grounding

import (
	"fmt"
	"strings"
	"testing"
)

// hard is a case whose text and answer are as hard to read as possible for their size.
type hard struct {
	name string
	make func(n int) (text, answer string) // n is the approximate size of the growing part, in bytes
}

func fill(s string, n int) string { return strings.Repeat(s, n/len(s)+1) }

// many returns an answer with n quotes, but at most MaxItems.
func many(n int, quote func(i int) string) string {
	var items []string
	for i := range min(n, MaxItems) {
		items = append(items, token(quote(i)))
	}
	return extractions(items...)
}

// hardAnswers returns answers that are hard to read as JSON.
func hardAnswers() []hard {
	var all []hard
	for _, s := range []string{
		"{", "[", "{[", `{"`, `{"a":`, `[{"quote":`, `"{`, `{\"`, `{"\`, `{"a":"\"`, `","`, `{"x":"/*`, `{/*`, `["//`,
		"<think>", "<think>{", "</think>", "<", `{"extractions":[`, `{"extractions":["`,
		`{}`, `[{}]`, `{"a":"{\"extractions\":[`, `{"extractions":"{`, `{'`, "[“", "[\x00", "{a", "[a", "[1", "\u200b{",
		"```[", "\xff{",
	} {
		all = append(all, hard{fmt.Sprintf("answer of %q", s), func(n int) (string, string) { return alpha, fill(s, n) }})
		all = append(all, hard{fmt.Sprintf("%q in an item", s),
			func(n int) (string, string) { return alpha, `{"extractions":[{"quote":"` + fill(s, n) }})
	}
	return all
}

// hardTexts returns texts in which quotes are hard to find.
func hardTexts() []hard {
	return []hard{
		{"one letter everywhere", func(n int) (string, string) {
			return fill("a ", n), many(MaxItems, func(int) string { return "a" })
		}},
		{"two letters that are no word", func(n int) (string, string) {
			return fill("a", n), many(10, func(i int) string { return fill("a", i) })
		}},
		{"long quotes that end within a number", func(n int) (string, string) {
			return fill("1", n), many(50, func(i int) string { return fill("1", 1000+i) })
		}},
		{"different quotes over each other", func(n int) (string, string) {
			return fill("ab ", n), many(200, func(i int) string { return strings.TrimSpace(fill("ab ", 3*i+1)) })
		}},
		{"quotes of two words in all orders", func(n int) (string, string) {
			return fill("a b b a ", n), many(MaxItems, func(i int) string { return []string{"a", "b", "a b", "b a"}[i*i%4] })
		}},
		{"quotes that are not there", func(n int) (string, string) {
			return fill("abc ", n), many(100, func(i int) string { return fmt.Sprint("abc ", i) })
		}},
		{"marks", func(n int) (string, string) {
			return "e" + fill("\u0301", n), many(10, func(i int) string { return fmt.Sprint("é", i) })
		}},
		{"nothing that is seen", func(n int) (string, string) {
			return fill("\u200b", n), many(10, func(i int) string { return fmt.Sprint("x", i) })
		}},
		{"white space", func(n int) (string, string) {
			return fill("\u00a0 ", n), many(10, func(i int) string { return fmt.Sprint("x", i) })
		}},
		{"forms of many letters", func(n int) (string, string) {
			return fill("ﷺ", n), many(10, func(i int) string { return fmt.Sprint("x", i) })
		}},
	}
}

// manyItems returns cases that grow with the answer. Most of their windows keep their size.
func manyItems() []hard {
	return []hard{
		{"quotes that are not there, by the answer", func(n int) (string, string) {
			return fill("abc ", 4000), many(n/30, func(i int) string { return fmt.Sprint("abc ", i) })
		}},
		{"one quote, by the answer", func(n int) (string, string) {
			return fill("a ", 4000), many(n/30, func(int) string { return "a" })
		}},
		{"values that must stand in a long quote", func(n int) (string, string) {
			text := strings.TrimSpace(fill("a ", n/4))
			return text, extractions(fmt.Sprintf(`{"class":"token","quote":%q,"attributes":{"all":["a"%s]}}`, text,
				fill(`,"a"`, n)))
		}},
		{"long quotes, by the answer", func(n int) (string, string) {
			return fill("a ", 40000), many(n/1000, func(i int) string { return fill("a ", 900+2*i) })
		}},
	}
}

func TestTwiceTheInputIsAtMostTwoAndAHalfTimesTheWork(t *testing.T) {
	t.Parallel()
	c := compiled(t, &Program{Instructions: "Find all.", Classes: []Class{{Name: "token", Verbatim: []string{"all"},
		Attributes: []byte(`{"type":"object","properties":{"all":{"type":"array","items":{"type":"string"}}}}`)}}})
	for _, test := range append(append(hardAnswers(), hardTexts()...), manyItems()...) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const n = 15_000
			work := func(n int) int {
				text, answer := test.make(n)
				_, work := c.read(Window{Body: text}, answer, false)
				return work
			}
			if once, twice := work(n), work(2*n); 2*twice > 5*once+10_000 || once > 100*maxReadings*n {
				t.Errorf("%d bytes and steps, and %d for twice as much", once, twice)
			}
		})
	}
}

// BenchmarkHard measures the time for the hardest answers and texts at one size and at twice that size.
func BenchmarkHard(b *testing.B) {
	c := tokens(b)
	for _, bench := range append(append(hardAnswers(), hardTexts()...), manyItems()...) {
		for _, n := range []int{30_000, 60_000} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				text, answer := bench.make(n)
				b.SetBytes(int64(len(text) + len(answer)))
				for b.Loop() {
					c.Read(Window{Body: text}, answer, false)
				}
			})
		}
	}
}

package grounding

import (
	"fmt"
	"strings"
	"testing"
)

// perfect returns the shards of a text, and for each shard an answer with ten of its quotes. If folded is true, the
// quotes have another presentation.
func perfect(b *testing.B, text string, folded bool) (shards []Shard, answers []string) {
	shards, err := Cut(Normalise(text), 8300, 200)
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range shards {
		var items []string
		lines := strings.SplitAfter(s.Body, ", ")
		for i := range 10 {
			quote := strings.Trim(lines[len(lines)*i/10], ", \n")
			if folded {
				quote = strings.ReplaceAll(quote, " ", " \u00a0")
			}
			items = append(items, fmt.Sprintf(`{"class":"token","quote":%q,"attributes":{}}`, quote))
		}
		answers = append(answers, extractions(items...))
	}
	return shards, answers
}

// invoices returns a text with few equal lines.
func invoices() string {
	var b strings.Builder
	for i := 0; b.Len() < benchBytes; i++ {
		fmt.Fprintf(&b, "Invoice %d from Acme Roofing %d to Ada Lovelace, of Zürich, Total due: %d.00 AUD by 3 May 2026, a "+
			"deposit of 200.00 AUD was paid.\n", i, i%97, i*7)
	}
	return b.String()
}

func BenchmarkRead(b *testing.B) {
	_, answers := perfect(b, invoices(), false)
	bytes := 0
	for _, answer := range answers {
		bytes += len(answer)
	}
	b.SetBytes(int64(bytes))
	for b.Loop() {
		for _, answer := range answers {
			if len(readAnswer(answer, 0).items()) != 10 {
				b.Fatal(answer)
			}
		}
	}
}

func BenchmarkAlignExact(b *testing.B)  { benchmarkAlign(b, false) }
func BenchmarkAlignFolded(b *testing.B) { benchmarkAlign(b, true) }

func benchmarkAlign(b *testing.B, folded bool) {
	c := tokens(b)
	text := invoices()
	shards, answers := perfect(b, text, folded)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		for i, s := range shards {
			if r := c.Read(s.Window, answers[i], false); len(r.Items) == 0 || len(r.Rejected) > 0 {
				b.Fatal(r)
			}
		}
	}
}

// BenchmarkAll runs all steps: normalise, cut, hash, read, align and merge.
func BenchmarkAll(b *testing.B) {
	for _, folded := range []bool{false, true} {
		b.Run(map[bool]string{false: "exact", true: "folded"}[folded], func(b *testing.B) {
			c := tokens(b)
			given := invoices()
			_, answers := perfect(b, given, folded)
			b.SetBytes(int64(len(given)))
			for b.Loop() {
				text := Normalise(given)
				shards, err := Cut(text, 8300, 200)
				if err != nil {
					b.Fatal(err)
				}
				parts := make([]Part, len(shards))
				for i, s := range shards {
					c.Request(s.Window, "", "", "m", nil)
					parts[i] = Part{s, c.Read(s.Window, answers[i], false)}
				}
				if found, refused := Merge(text, UTF16, parts); len(found) < 9*len(shards) || len(refused) > 0 {
					b.Fatal(len(found), refused)
				}
			}
		})
	}
}

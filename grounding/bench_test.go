package grounding

import (
	"encoding/json"
	"strings"
	"testing"
)

// benchBytes is the size of the text that a benchmark processes in each iteration, in bytes.
const benchBytes = 4 << 20

func repeated(s string) string { return strings.Repeat(s, benchBytes/len(s)) }

var benchTexts = []struct{ name, text string }{
	{"prose", repeated("Invoice 1042 from Acme Roofing to Ada Lovelace.\nTotal due: 1,840.00 AUD by 3 May 2026. A " +
		"deposit of 200.00 AUD was paid.\n\n")},
	{"one line", repeated("The tenant pays 1,840.00 AUD by the third of May, and the deposit was paid before. ")},
	{"windows", repeated("Invoice 1042 from Acme Roofing to Ada Lovelace.\r\nTotal due: 1,840.00 AUD by 3 May 2026.\r\n")},
	{"table", repeated("| 1042 | Acme Roofing | 1,840.00 | 3 May 2026 |\n")},
	{"chinese", repeated("甲方应于二〇二六年五月三日前向乙方支付人民币一千八百四十元。")},
	{"accents", repeated("café Zoë naïve Łódź Ελλάδα Москва, ")},
	{"line feeds", repeated("\n")},
	{"returns", repeated("\r\n")},
	{"marks", repeated("e\u0301\u0302\u0303\u0304")},
	{"only marks", repeated("\u0301")},
	{"flags", repeated("🇦🇺")},
	{"separators", repeated(";;\n||\n")},
	{"spaces", repeated(" ")},
	{"closers", repeated(`"`)},
}

func BenchmarkNormalise(b *testing.B) {
	for _, bench := range benchTexts {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.text)))
			for b.Loop() {
				Normalise(bench.text)
			}
		})
	}
}

func BenchmarkCut(b *testing.B) {
	for _, bench := range benchTexts {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.text)))
			for b.Loop() {
				if _, err := Cut(Normalise(bench.text), 16000, 200); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHash(b *testing.B) {
	c := compiled(b, &Program{Instructions: "Extract tokens.", Classes: []Class{{Name: "token"}}})
	for _, bench := range benchTexts[:6] {
		b.Run(bench.name, func(b *testing.B) {
			shards, err := Cut(Normalise(bench.text), 16000, 200)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(bench.text)))
			for b.Loop() {
				for _, s := range shards {
					c.Request(s.Window, "", "", "m", nil)
				}
			}
		})
	}
}

func BenchmarkPrompt(b *testing.B) {
	c := compiled(b, &Program{Instructions: "Extract tokens.", Classes: []Class{{Name: "token"}}})
	shards, err := Cut(Normalise(benchTexts[0].text), 16000, 200)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(benchBytes)
	for b.Loop() {
		for _, s := range shards {
			c.Prompt(s.Window)
		}
	}
}

// BenchmarkOffsets indexes the whole text once per iteration and looks up 20,000 offsets.
func BenchmarkOffsets(b *testing.B) {
	for _, bench := range benchTexts[:6] {
		b.Run(bench.name, func(b *testing.B) {
			text := Normalise(bench.text)
			b.SetBytes(int64(len(bench.text)))
			for b.Loop() {
				x := text.Index(UTF16)
				for i := range 20_000 {
					x.At(text.Given(i * (len(text.Read()) / 20_000)))
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	p := &Program{Instructions: "Extract tokens.", Classes: []Class{
		{Name: "amount",
			Attributes: json.RawMessage(
				`{"type":"object","properties":{"value":{"type":"number"},"currency":{"type":"string"}}}`)},
	}}
	for b.Loop() {
		compiled(b, p)
	}
}

func compiled(t testing.TB, p *Program) *CompiledProgram {
	t.Helper()
	c, err := p.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

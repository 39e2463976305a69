package registry_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/registry"
)

func BenchmarkValidate(b *testing.B) {
	tool := toolWith(b, leadSchema)
	for _, c := range []struct{ name, doc string }{
		{"right", `{"name": "Ann Smith", "phone": "+61400000000", "suburb": "Fitzroy", "email": "ann@example.com", "source": "gmb"}`},
		{"wrong", `{"name": "", "phone": 3, "email": "x", "source": "tv", "more": 1}`},
		{"no JSON", `{"name": "Ann Smith", `},
		{"64 KB", `{"name": "Ann", "phone": "1", "suburb": "Fitzroy", "notes": "` + strings.Repeat("x", 64<<10) + `"}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			doc := []byte(c.doc)
			b.ReportAllocs()
			for b.Loop() {
				tool.ValidateInput(doc)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	var entries []string
	for _, name := range numbered(`"domain.tool_%d"`, 100) {
		entries = append(entries, entry(fields{"name": name, "input_schema": leadSchema}))
	}
	text := []byte(file(entries...))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := registry.Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

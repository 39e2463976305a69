package provider_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/provider"
)

// Looking for a key takes memory of its own the first time alone: an answer may have thousands of parts.
func TestKeysAreLookedForInThousandsOfPartsAtLittleCost(t *testing.T) {
	key := strings.Repeat("sk-of-parts-", 8)
	answer := func() *provider.Answer {
		a := &provider.Answer{}
		for i := range 100 {
			a.Parts = append(a.Parts, provider.Part{Type: provider.Text,
				Text: fmt.Sprintf(`%d \n %s \u0073%s`, i, key, key[1:])})
		}
		return a
	}
	a := answer()
	a.CutKeys(key)
	for _, p := range a.Parts {
		if strings.Contains(p.Text, "parts") || strings.Count(p.Text, "[cut]") != 2 {
			t.Fatal(p.Text)
		}
	}
	// Compiling an expression for each part would take thousands per part. The race detector adds some.
	if n := testing.AllocsPerRun(5, func() { answer().CutKeys(key) }); n > 100*200 {
		t.Errorf("%v allocations", n)
	}
}

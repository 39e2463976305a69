package dashboard

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDeepValuesAreLaidOutWithinBounds(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 99) + strings.Repeat("[],", 20_000) + "[]" + strings.Repeat("]", 99)
	if n := len(indented(json.RawMessage(deep))); n > mostIndent {
		t.Errorf("%d bytes become %d", len(deep), n)
	}
	deep = strings.Repeat(`{"a":`, 150) + "1" + strings.Repeat("}", 150)
	var marked []string
	for _, p := range printed(deep, map[string]string{strings.Repeat("/a", 100): "deep", strings.Repeat("/a", 150): "too deep", "": "root"}) {
		if p.N > 0 {
			marked = append(marked, p.Says)
		}
	}
	if got := strings.Join(marked, ", "); got != "root, deep" {
		t.Errorf("marked: %s", got)
	}
}

package schema_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/schema"
)

// A short pattern can compile to a machine of thousands of steps, and each of them looks at each letter of a key.
func TestKeysThatAreTooDearForTheirPatternsAreNotMatched(t *testing.T) {
	t.Parallel()
	s, problems := schema.New("the output",
		map[string]any{"patternProperties": map[string]any{
			"^(((x{0,10}){0,10}){0,10})*$": map[string]any{"type": "integer"}}})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	faults, _ := s.Check([]byte(`{"`+strings.Repeat("x", 900_000)+`": "a"}`), true)
	if len(faults) != 1 || faults[0].Keyword == "type" {
		t.Errorf("%.300v", faults)
	}
	if faults, _ := s.Check([]byte(`{"xxxx": "a"}`), true); len(faults) != 1 || faults[0].Keyword != "type" {
		t.Errorf("%v", faults)
	}
}

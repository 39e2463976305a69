package llm

import (
	"encoding/json"
	"regexp/syntax"
)

// maxPatterns limits the patterns of all schemas of a call, in steps of their compiled machines. A step takes about 40
// bytes and a microsecond, and ten characters of a pattern can produce a thousand steps.
const maxPatterns = 100_000

func tooManyPatterns(path string) error {
	return invalid(path, "the patterns of the schemas are too large together: leave some out, or repeat less in them, "+
		"such as {1,1000}")
}

// patternsIn returns patternSize of a document, or 0 if the document cannot be read.
func patternsIn(raw json.RawMessage) int {
	var doc any
	if len(raw) > maxSchema || json.Unmarshal(raw, &doc) != nil {
		return 0
	}
	return patternSize(doc)
}

// patternSize returns the size of the compiled patterns in a schema.
func patternSize(v any) (size int) {
	switch v := v.(type) {
	case map[string]any:
		if pattern, ok := v["pattern"].(string); ok {
			size += steps(pattern)
		}
		if named, ok := v["patternProperties"].(map[string]any); ok {
			for pattern := range named {
				size += steps(pattern)
			}
		}
		for _, inner := range v {
			size += patternSize(inner)
		}
	case []any:
		for _, inner := range v {
			size += patternSize(inner)
		}
	}
	return size
}

func steps(pattern string) int {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0 // another check rejects the schema
	}
	return stepsOf(parsed)
}

func stepsOf(r *syntax.Regexp) int {
	size := 1
	if r.Op == syntax.OpLiteral {
		size += len(r.Rune)
	}
	for _, sub := range r.Sub {
		size += stepsOf(sub)
	}
	if r.Op == syntax.OpRepeat {
		size *= max(r.Min, r.Max, 1)
	}
	return size
}

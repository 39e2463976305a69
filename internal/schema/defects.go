package schema

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/oneline"
)

// printable reports whether a line can contain a name. As a regular expression it would cost each start of the program
// 8 MB.
func printable(name string) bool {
	return name != "" && utf8.RuneCountInString(name) <= 200 &&
		!strings.ContainsFunc(name, func(r rune) bool { return unicode.Is(unicode.C, r) })
}

// Defects orders problems of a file by their place, and names the entry of its list and the field of each, which field
// writes. Only the first of one place is kept.
func Defects(doc any, list string, problems []Problem, field func(steps []string) string) (all []defects.Defect) {
	slices.SortStableFunc(problems, func(a, b Problem) int { return ComparePointers(a.Pointer, b.Pointer) })
	for _, found := range slices.CompactFunc(problems, func(a, b Problem) bool { return a.Pointer == b.Pointer }) {
		d := defects.Defect{Problem: oneline.Cut(found.Text, 500)}
		steps := Tokens(found.Pointer)
		if len(steps) > 1 && steps[0] == list {
			d.Part = list + "[" + steps[1] + "]"
			if name := As[string](ValueAt(doc, "/"+list+"/"+steps[1]+"/name")); printable(name) {
				d.Part = name
			}
			steps = steps[2:]
		}
		d.Field = oneline.Cut(field(steps), 200)
		all = append(all, d)
	}
	return all
}

package schema

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Defect is one thing that is wrong with a file of the program's own.
type Defect struct {
	// Part is the name of the entry, such as a tool's, list[3] if it has no valid one, and empty for a defect outside the entries.
	Part string
	// Field is, for example, timeout_ms, retry.backoff_ms or limit.per[1], or empty for the whole entry or file.
	Field string
	// Problem says what is wrong and what to do, in at most 500 characters.
	Problem string
}

// String returns the three parts in one line.
func (d Defect) String() string {
	parts := slices.DeleteFunc([]string{d.Part, d.Field, d.Problem}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// InvalidError is the error of a file that cannot be used.
type InvalidError struct {
	Defects []Defect // at least one, ordered by their place in the file, fields by name
}

// Error returns one defect a line.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Defects))
	for i, d := range e.Defects {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}

// printable reports whether a name can stand in a line. As a regular expression it would cost each start of the program 8 MB.
func printable(name string) bool {
	return name != "" && utf8.RuneCountInString(name) <= 200 && !strings.ContainsFunc(name, func(r rune) bool { return unicode.Is(unicode.C, r) })
}

// Defects orders problems of a file by their place, and names the entry of its list and the field of each, which field writes. Only the first of
// one place is kept.
func Defects(doc any, list string, problems []Problem, field func(steps []string) string) (all []Defect) {
	slices.SortStableFunc(problems, func(a, b Problem) int { return ComparePointers(a.Pointer, b.Pointer) })
	for _, found := range slices.CompactFunc(problems, func(a, b Problem) bool { return a.Pointer == b.Pointer }) {
		d := Defect{Problem: Cut(found.Text, 500)}
		steps := Tokens(found.Pointer)
		if len(steps) > 1 && steps[0] == list {
			d.Part = list + "[" + steps[1] + "]"
			if name := As[string](ValueAt(doc, "/"+list+"/"+steps[1]+"/name")); printable(name) {
				d.Part = name
			}
			steps = steps[2:]
		}
		d.Field = Cut(field(steps), 200)
		all = append(all, d)
	}
	return all
}

// Package defects has the errors of files that an operator writes, such as the registry and the rules.
package defects

import (
	"slices"
	"strings"
)

// Defect is one thing that is wrong with a file of the program's own.
type Defect struct {
	// Part is the name of the entry, such as a tool's, list[3] if it has no valid one, and empty for a defect outside the
	// entries.
	Part string
	// Field is, for example, timeout_ms, retry.backoff_ms or limit.per[1], or empty for the whole entry or file.
	Field string
	// Problem describes the mistake and how to correct it, in at most 500 characters.
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

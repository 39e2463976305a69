package registry

import (
	"slices"
	"strings"
)

// Warnings names the places of the tools' input schemas at which a small input can cost so much that it is refused unchecked,
// with the keyword that would bound it.
func (r *Registry) Warnings() []Defect {
	var all []Defect
	for _, t := range r.tools {
		for at, problem := range t.input.Invitations() {
			all = append(all, Defect{Tool: t.Name, Field: "input_schema" + at, Problem: problem})
		}
	}
	slices.SortFunc(all, func(a, b Defect) int { return strings.Compare(a.String(), b.String()) })
	return all
}

package registry

import (
	"fmt"
	"slices"
	"strings"
)

// Warnings names the places of the tools' input schemas at which a small input can cost so much that it is refused unchecked,
// with the keyword that would bound it, and names that are too long for some agents' clients.
func (r *Registry) Warnings() []Defect {
	var all []Defect
	for _, t := range r.tools {
		if n := len(t.Name); n > longName {
			all = append(all, Defect{Tool: t.Name, Field: "name", Problem: fmt.Sprintf("has %d characters: clients that put a prefix before the names of tools may refuse "+
				"more than %d", n, longName)})
		}
		for at, problem := range t.input.Invitations() {
			all = append(all, Defect{Tool: t.Name, Field: "input_schema" + at, Problem: problem})
		}
	}
	slices.SortFunc(all, func(a, b Defect) int { return strings.Compare(a.String(), b.String()) })
	return all
}

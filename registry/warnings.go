package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/defects"
)

// Warnings returns the places of the tools' input schemas at which a small input can be too expensive to check, with
// the keyword that would limit it, and names that are too long for some agents' clients.
func (r *Registry) Warnings() []defects.Defect {
	var all []defects.Defect
	for _, t := range r.tools {
		if n := len(t.Name); n > longName {
			all = append(all, defects.Defect{Part: t.Name, Field: "name",
				Problem: fmt.Sprintf("has %d characters: clients that put a prefix before the names of "+
					"tools may refuse more than %d", n, longName)})
		}
		for at, problem := range t.input.Invitations() {
			all = append(all, defects.Defect{Part: t.Name, Field: "input_schema" + at, Problem: problem})
		}
	}
	slices.SortFunc(all, func(a, b defects.Defect) int { return strings.Compare(a.String(), b.String()) })
	return all
}

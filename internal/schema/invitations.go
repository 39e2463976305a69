package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

const (
	manyAlternatives = 50   // of each item of a list without an end
	longPattern      = 1000 // instructions that may each be tried at each byte of a text without an end
)

// Invitations names the places at which a small document can cost so much that it is refused unchecked, each with the
// keyword that would bound it.
func (s *Schema) Invitations() map[string]string {
	all := map[string]string{}
	for part, price := range s.compiled().prices {
		_, at, _ := strings.Cut(part.Location, "#")
		at = PlainPointer(at)
		if n := mostAlternatives(itemsOf(part)); n > manyAlternatives && part.MaxItems < 0 {
			all[at] = fmt.Sprintf("each item is tried against %d alternatives: bound the list with maxItems, or use one "+
				"object with an enum", n)
		}
		if recurring(part) > 1 {
			all[at] = "several alternatives lead back here, so that each level of a document doubles the cost: tell them " +
				"apart by one property, " +
				"and refer back once"
		}
		if price.pattern > longPattern && part.MaxLength < 0 {
			all[at] = "the pattern is long, and so may the text be: shorten its repetitions"
		}
	}
	return all
}

// itemsOf lists the schemas that apply to every item of a list.
func itemsOf(s *jsonschema.Schema) []*jsonschema.Schema {
	items, _ := s.Items.(*jsonschema.Schema)
	rest, _ := s.AdditionalItems.(*jsonschema.Schema)
	return slices.DeleteFunc([]*jsonschema.Schema{items, rest, s.Items2020, s.Contains, s.UnevaluatedItems},
		func(part *jsonschema.Schema) bool { return part == nil })
}

// mostAlternatives counts the alternatives that schemas try for one value.
func mostAlternatives(schemas []*jsonschema.Schema) int {
	n := 0
	seen := map[*jsonschema.Schema]bool{}
	for len(schemas) > 0 {
		s := schemas[0]
		schemas = schemas[1:]
		if seen[s] {
			continue
		}
		seen[s] = true
		n += len(s.AnyOf) + len(s.OneOf)
		schemas = append(schemas, inPlace(s)...)
	}
	return n
}

// recurring counts the alternatives of a schema that lead back to it.
func recurring(s *jsonschema.Schema) int {
	n := 0
	for _, alternative := range slices.Concat(s.AnyOf, s.OneOf) {
		if _, leads := prices(alternative)[s]; leads {
			n++
		}
	}
	return n
}

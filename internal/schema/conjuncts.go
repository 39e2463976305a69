package schema

import "strings"

// Conjuncts returns the schemas that every valid document matches as a whole: the schema itself, and the schemas that
// it includes by $ref and allOf. References resolve in root.
func Conjuncts(root, v any) []map[string]any { return conjuncts(nil, root, v) }

func conjuncts(all []map[string]any, root, v any) []map[string]any {
	part, ok := v.(map[string]any)
	// A schema in a circle of references is refused elsewhere; here it must only end.
	if !ok || len(all) >= 100 {
		return all
	}
	all = append(all, part)
	if ref := As[string](part["$ref"]); strings.HasPrefix(ref, "#/") {
		all = conjuncts(all, root, ValueAt(root, PlainPointer(ref[1:])))
	}
	for _, other := range As[[]any](part["allOf"]) {
		all = conjuncts(all, root, other)
	}
	return all
}

package grounding

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gemworker/gem/internal/schema"
)

// Limits of an attribute schema.
const (
	maxLevels     = 5
	maxProperties = 100
)

// attributeKeywords lists the keywords that all providers enforce in all their dialects.
var attributeKeywords = []string{"type", "properties", "required", "items", "enum", "const", "description",
	"additionalProperties"}

// compileAttributes compiles the attribute schema of a class. at is the JSON pointer of the schema in the program. It
// returns the decoded schema and the compiled schema, or the first fault.
func compileAttributes(text json.RawMessage, at string) (map[string]any, *schema.Schema, *Fault) {
	doc, err := schema.Decode("the schema", text)
	if err != nil {
		return nil, nil, &Fault{at, err.Error()}
	}
	root, isObject := doc.(map[string]any)
	switch {
	case !isObject:
		return nil, nil, &Fault{at, "must be a JSON Schema, which is an object"}
	case root["type"] != "object":
		return nil, nil, &Fault{at + "/type", `must be "object": the attributes of an item are an object`}
	}
	properties := 0
	if fault := checkSubset(root, at, 1, &properties); fault != nil {
		return nil, nil, fault
	}
	if properties > maxProperties {
		return nil, nil, &Fault{at, fmt.Sprintf("has %d properties and may have at most %d", properties, maxProperties)}
	}
	s, problems := schema.New("the attributes", doc)
	if len(problems) > 0 {
		return nil, nil, &Fault{at + problems[0].Pointer, problems[0].Text}
	}
	s.Object = true
	return root, s, nil
}

// checkSubset returns the first fault of a schema, or nil. A fault is a keyword, a form of a keyword or a depth that is
// not allowed. The compiler reports the violations of JSON Schema itself.
func checkSubset(s map[string]any, at string, level int, properties *int) *Fault {
	if level > maxLevels {
		return &Fault{at, fmt.Sprintf("the schema has more than %d levels", maxLevels)}
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		here := schema.JoinPointer(at, name)
		switch value := s[name]; name {
		case "type":
			if list, ok := value.([]any); ok && (len(list) != 2 || !slices.Contains(list, any("null"))) {
				return &Fault{here, `a list of types must be one type and "null"`}
			}
		case "additionalProperties":
			if value != false {
				return &Fault{here, "must be false, or left out"}
			}
		case "properties":
			inside := schema.As[map[string]any](value)
			*properties += len(inside)
			for _, property := range slices.Sorted(maps.Keys(inside)) {
				if fault := checkInner(inside[property], schema.JoinPointer(here, property), level, properties); fault != nil {
					return fault
				}
			}
		case "items":
			if fault := checkInner(value, here, level, properties); fault != nil {
				return fault
			}
		case "required":
			inside := schema.As[map[string]any](s["properties"])
			for i, property := range schema.Texts(value) {
				if _, ok := inside[property]; !ok {
					return &Fault{fmt.Sprintf("%s/%d", here, i), schema.Show(property) +
						" is not among the properties: no item could have it"}
				}
			}
		case "enum", "const", "description":
		case "nullable":
			return &Fault{here, `is no keyword of JSON Schema: write "type": ["string", "null"], with the value's own type`}
		default:
			return &Fault{here, "cannot be used in a schema of attributes, which may have type, properties, required, items, " +
				"enum, const, description and " +
				"additionalProperties" + schema.DidYouMean(name, attributeKeywords)}
		}
	}
	return nil
}

func checkInner(value any, at string, level int, properties *int) *Fault {
	s, ok := value.(map[string]any)
	if !ok {
		return &Fault{at, "must be a schema that is an object"}
	}
	return checkSubset(s, at, level+1, properties)
}

// types returns the names of the types in a schema.
func types(s map[string]any) []string {
	if one, ok := s["type"].(string); ok {
		return []string{one}
	}
	return schema.Texts(s["type"])
}

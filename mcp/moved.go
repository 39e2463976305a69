package mcp

import (
	"bytes"
	"encoding/json"
	"strings"
)

// moved returns a schema whose references still resolve when it is placed elsewhere: references to the root of the
// document, as in "$ref": "#/$defs/address", then begin at that place.
func moved(schema json.RawMessage, place string) json.RawMessage {
	if !bytes.Contains(schema, []byte(`"#`)) {
		return schema
	}
	var root any
	decoder := json.NewDecoder(bytes.NewReader(schema))
	decoder.UseNumber()
	if decoder.Decode(&root) != nil {
		return schema
	}
	moveRefs(root, place)
	return encode(root)
}

// moveRefs walks through the parts of a schema that may be schemas.
func moveRefs(node any, place string) {
	schema, ok := node.(map[string]any)
	if !ok {
		return
	}
	if id, ok := schema["$id"].(string); ok && !strings.HasPrefix(id, "#") {
		return // its references are relative to it
	}
	for keyword, value := range schema {
		switch keyword {
		case "$ref", "$dynamicRef", "$recursiveRef":
			if ref, ok := value.(string); ok && (ref == "#" || strings.HasPrefix(ref, "#/")) {
				schema[keyword] = place + ref[1:]
			}
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
			named, _ := value.(map[string]any)
			for _, sub := range named {
				moveRefs(sub, place)
			}
		case "allOf", "anyOf", "oneOf", "prefixItems", "items":
			if list, ok := value.([]any); ok {
				for _, sub := range list {
					moveRefs(sub, place)
				}
				continue
			}
			moveRefs(value, place)
		case "const", "enum", "default", "examples": // values
		default:
			moveRefs(value, place)
		}
	}
}

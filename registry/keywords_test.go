package registry_test

import (
	"testing"
)

// Each schema is tried as an output_schema, whose type is free.
func TestSchemasAreRefused(t *testing.T) {
	const draft7 = `"$schema": "http://json-schema.org/draft-07/schema#", `
	for _, c := range []struct {
		name, schema string
		want         []string // "pointer: part of the problem"
	}{
		{"mistyped keyword", `{"minLenght": 3}`, []string{"/minLenght: did you mean minLength?"}},
		{"keyword in other letters", `{"maxlength": 3, "min_items": 2}`,
			[]string{"/maxlength: did you mean maxLength?", "/min_items: did you mean minItems?"}},
		{"unknown keyword", `{"colour": 3}`, []string{"/colour: begin its name with x-"}},
		{"word of OpenAPI", `{"nullable": true, "example": 3}`,
			[]string{"/example: examples", `/nullable: ["string", "null"]`}},
		{"word of draft 3", `{"id": "a", "extends": {}}`, []string{"/extends: write allOf", "/id: write $id"}},
		{"under every kind of subschema", `{
			"properties": {"a": {"bad": 1}}, "patternProperties": {"^b": {"bad": 1}}, "additionalProperties": {"bad": 1},
			"propertyNames": {"bad": 1}, "dependentSchemas": {"a": {"bad": 1}}, "unevaluatedProperties": {"bad": 1},
			"dependencies": {"a": {"bad": 1}, "b": ["bad"]},
			"items": {"bad": 1}, "prefixItems": [{"bad": 1}], "contains": {"bad": 1}, "unevaluatedItems": {"bad": 1},
			"allOf": [{"bad": 1}], "anyOf": [{}, {"bad": 1}], "oneOf": [{"bad": 1}], "not": {"bad": 1},
			"if": {"bad": 1}, "then": {"bad": 1}, "else": {"bad": 1}, "contentSchema": {"bad": 1},
			"$defs": {"a": {"bad": 1}}, "definitions": {"a": {"items": {"bad": 1}}}}`,
			[]string{
				"/$defs/a/bad: is not a JSON Schema keyword in draft", "/additionalProperties/bad: is not a JSON Schema keyword " +
					"in draft", "/allOf/0/bad: is not a JSON Schema keyword in draft",
				"/anyOf/1/bad: is not a JSON Schema keyword in draft",
				"/contains/bad: is not a JSON Schema keyword in draft", "/contentSchema/bad: is not a JSON Schema keyword in draft",
				"/definitions/a/items/bad: is not a JSON Schema keyword in draft",
				"/dependencies/a/bad: is not a JSON Schema keyword in draft", "/dependentSchemas/a/bad: is not a JSON Schema " +
					"keyword in draft", "/else/bad: is not a JSON Schema keyword in draft",
				"/if/bad: is not a JSON Schema keyword in draft",
				"/items/bad: is not a JSON Schema keyword in draft", "/not/bad: is not a JSON Schema keyword in draft",
				"/oneOf/0/bad: is not a JSON Schema keyword in draft",
				"/patternProperties/^b/bad: is not a JSON Schema keyword in draft",
				"/prefixItems/0/bad: is not a JSON Schema keyword in draft", "/properties/a/bad: is not a JSON Schema keyword in " +
					"draft", "/propertyNames/bad: is not a JSON Schema keyword in draft",
				"/then/bad: is not a JSON Schema keyword in draft", "/unevaluatedItems/bad: is not a JSON Schema keyword in draft",
				"/unevaluatedProperties/bad: is not a JSON Schema keyword in draft",
			}},
		{"under items of an older draft", `{` + draft7 + `"items": [{"bad": 1}], "additionalItems": {"bad": 1}}`,
			[]string{"/additionalItems/bad: is not a JSON Schema keyword in draft",
				"/items/0/bad: is not a JSON Schema keyword in draft"}},
		{"where a reference leads",
			`{"$ref": "#/x-schemas/a", "x-schemas": {"a": {"minLenght": 1, "$ref": "#/x-schemas/b"}}}`, []string{
				"/x-schemas/a/$ref: leads to nothing", "/x-schemas/a/minLenght: did you mean minLength?"}},
		{"newer keyword in an older draft", `{` + draft7 + `"prefixItems": [], "unevaluatedProperties": false}`,
			[]string{"/prefixItems: name draft 2020-12 in $schema", "/unevaluatedProperties: name draft 2019-09"}},
		{"const in draft 4", `{"$schema": "http://json-schema.org/draft-04/schema", "const": 1}`,
			[]string{"/const: is not a JSON Schema keyword in draft-04 and would check nothing: name draft-06"}},
		{"older keyword in the newest draft", `{"items": {}, "additionalItems": false}`,
			[]string{"/additionalItems: write prefixItems"}},
		{"list of items in the newest draft", `{"items": [{}]}`, []string{"/items: expected object or boolean, but got " +
			"array"}},
		{"beside a reference in an older draft", `{` + draft7 +
			`"$ref": "#/definitions/a", "minLength": 1, "title": "a", "definitions": {"a": {}}}`,
			[]string{"/minLength: does nothing beside $ref"}},
		{"unknown draft", `{"$schema": "https://example.com/my-draft", "bad": 1}`,
			[]string{"/$schema: is not a supported draft of JSON Schema"}},
		{"empty enum", `{"enum": []}`, []string{"/enum: no value can match"}},

		{"lookahead", `{"pattern": "^(?!x)"}`, []string{"/pattern: no lookahead"}},
		{"lookbehind", `{"properties": {"a": {"pattern": "(?<=x)y"}}}`, []string{"/properties/a/pattern: (?<"}},
		{"lookahead in names", `{"patternProperties": {"(?=x)": {}}}`, []string{"/patternProperties/(?=x): no lookahead"}},
		{"broken pattern", `{"pattern": "("}`, []string{`/pattern: missing closing )`}},
		{"backreference", `{"pattern": "(a)\\1"}`, []string{`/pattern: invalid escape sequence`}},

		{"wrong values",
			`{"type": "text", "required": "a", "properties": {"a": {"minLength": -1}}, "maximum": "3", "multipleOf": 0}`,
			[]string{
				"/maximum: expected number, but got string", "/multipleOf: must be > 0", "/properties/a/minLength: must be >= 0",
				"/required: expected array, but got string", "/type: must be one of"}},
		{"a schema of another type", `{"properties": {"a": 1, "b": {"items": null}}}`,
			[]string{"/properties/a: expected object or boolean", "/properties/b/items: expected object or boolean"}},
		{"required as in draft 3", `{"properties": {"a": {"required": true}}}`,
			[]string{"/properties/a/required: expected array, but got boolean"}},

		{"reference to a file", `{"$ref": "file:///etc/passwd"}`, []string{"/$ref: leads out of this schema"}},
		{"reference to a neighbouring file", `{"$ref": "other.json"}`, []string{"/$ref: leads out of this schema"}},
		{"reference to a path", `{"$ref": "/etc/passwd"}`, []string{"/$ref: leads out of this schema"}},
		{"reference to the network",
			`{"$ref": "https://example.com/a.json#/a", "anyOf": [{"$ref": "http://example.com"}, {"$ref": "//example.com/a"}]}`,
			[]string{
				"/$ref: leads out", "/anyOf/0/$ref: leads out", "/anyOf/1/$ref: leads out"}},
		{"reference to a draft", `{"$ref": "https://json-schema.org/draft/2020-12/schema"}`, []string{"/$ref: leads out"}},
		{"reference to a vocabulary", `{"$dynamicRef": "https://json-schema.org/draft/2020-12/meta/core"}`,
			[]string{"/$dynamicRef: leads out"}},
		{"reference relative to an id", `{"$id": "https://example.com/a/", "$ref": "b"}`, []string{"/$ref: leads out"}},
		{"reference to nothing", `{"$ref": "#/$defs/a", "$defs": {"b": {}}}`, []string{"/$ref: leads to nothing"}},
		{"reference to no anchor", `{"$ref": "#a", "properties": {"p": {"$anchor": "b"}}}`,
			[]string{"/$ref: leads to nothing"}},
		{"reference to no schema", `{"$ref": "#/required", "required": ["a"]}`,
			[]string{"/required: is a list, and a reference leads here as to a schema"}},
		{"reference in a circle", `{"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}`,
			[]string{": does not compile"}},
		{"reference to itself", `{"$ref": "#"}`, []string{": does not compile"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want []string
			for _, w := range c.want {
				want = append(want, "leads.create: output_schema"+w)
			}
			refused(t, file(entry(fields{"output_schema": c.schema})), want)
		})
	}
}

func TestSchemasAreAccepted(t *testing.T) {
	const draft7 = `"$schema": "http://json-schema.org/draft-07/schema#", `
	for name, schema := range map[string]string{
		"everything": `{}`,
		"nothing":    `false`,
		"names that look like keywords": `{"properties": {"minLenght": {}, "nullable": {"type": "boolean"}, "$ref": {"type": "string"}}, "patternProperties": {"bad": {}},
			"$defs": {"bad": {}}, "definitions": {"bad": {}}, "dependentSchemas": {"bad": {}}, "dependentRequired": {"bad": ["bad"]}, "required": ["bad"]}`,
		"values that look like schemas": `{"enum": [{"bad": 1, "$ref": "x.json"}], "const": {"bad": 1}, "default": {"bad": [{"bad": 1}]}, "examples": [{"bad": 1}]}`,
		"notes of one's own":            `{"x-bad": {"bad": 1}, "properties": {"a": {"x-": 1}}}`,
		"annotations":                   `{"title": "a", "description": "b", "$comment": "c", "deprecated": true, "readOnly": true, "writeOnly": false}`,
		"format that nobody knows":      `{"format": "phone-number"}`,
		"draft 4": `{"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://example.com/a", "minimum": 1, "exclusiveMinimum": true,
			"dependencies": {"a": ["b"]}, "items": [{}], "additionalItems": false}`,
		"draft 6": `{"$schema": "http://json-schema.org/draft-06/schema#", "const": 1, "contains": {}, "propertyNames": {}, "examples": []}`,
		"draft 7 as generators write": `{` + draft7 +
			`"$ref": "#/definitions/a", "definitions": {"a": {"type": "object", "if": {}, "then": {}}}}`,
		"draft 7 over https":           `{"$schema": "https://json-schema.org/draft-07/schema", "items": [{}]}`,
		"draft 7 with new definitions": `{` + draft7 + `"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}]}`,
		"draft 2019":                   `{"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": true, "items": [{}], "additionalItems": {"$recursiveRef": "#"}}`,
		"the newest draft":             `{"$schema": "https://json-schema.org/schema", "prefixItems": [{}], "$dynamicAnchor": "n", "additionalProperties": {"$dynamicRef": "#n"}}`,
		"reference to itself":          `{"properties": {"children": {"items": {"$ref": "#"}}}}`,
		"reference by pointer":         `{"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {}}}`,
		"reference by anchor":          `{"$ref": "#a", "$defs": {"x": {"$anchor": "a"}}}`,
		"reference by id":              `{"$id": "https://example.com/a.json", "$ref": "b.json#/$defs/c", "$defs": {"x": {"$id": "b.json", "$defs": {"c": {}}}}}`,
		"reference by urn":             `{"$id": "urn:example:a", "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "urn:example:a#/$defs/b"}, "b": {}}}`,
		"reference to a property":      `{"properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}}`,
		"pattern that Go can read":     `{"pattern": "^\\p{L}+/[\\w.-]*$"}`,
	} {
		t.Run(name, func(t *testing.T) { parse(t, file(entry(fields{"output_schema": schema}))) })
	}
}

func TestSchemasOfTwoToolsDoNotSeeEachOther(t *testing.T) {
	shared := entry(fields{"name": `"a.a"`, "output_schema": `{"$id": "https://example.com/shared", "$defs": {"x": {}}}`})
	for _, ref := range []string{"https://example.com/shared", "https://example.com/shared#/$defs/x"} {
		refused(t, file(shared, entry(fields{"output_schema": `{"$ref": "` + ref + `"}`})),
			[]string{"leads.create: output_schema/$ref: leads out"})
	}
}

package types_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/gemworker/gem/registry"
)

type object = map[string]any

// maker makes schemas of all keywords, and values that may fit them.
type maker struct {
	*rand.Rand
	defs []string // names of $defs
}

func (m *maker) one(of ...any) any { return of[m.IntN(len(of))] }

// keys are names of properties, some of them hard to write.
var keys = []any{"a", "b", "kind", "x-y", "class", "new", "0", "-1", "", "a b", "it's", "say \"it\"", "back\\slash",
	"*/", "line\nbreak",
	"\u2028", "\u202e", "日本", "__proto__", "`${a}`", "readonly", "__a", "list", "None"}

var texts = []any{"a", "b", "", "*/ export type X = never /*", "// @ts-ignore", "\"", "\\", "\n\r\u2028\u2029",
	"日本\U000e0001", "${a}`", "/**", "\"\"\"\nraise SystemExit(1) #", "']\nraise SystemExit(1)"}

func (m *maker) name() string { return m.one(keys...).(string) }

func (m *maker) scalar() any {
	return m.one(nil, true, false, 0, 1, -1, 0.5, json.Number("1e400"), json.Number("12345678901234567890"),
		json.Number("-1e-400"), m.one(texts...))
}

func (m *maker) value(depth int) any {
	switch n := m.IntN(8); {
	case n == 0 && depth > 0:
		list := []any{}
		for range m.IntN(3) {
			list = append(list, m.value(depth-1))
		}
		return list
	case n == 1 && depth > 0:
		o := object{}
		for range m.IntN(3) {
			o[m.name()] = m.value(depth - 1)
		}
		return o
	}
	return m.scalar()
}

func (m *maker) schemas(least, depth int) (all []any) {
	for range least + m.IntN(3) {
		all = append(all, m.schema(depth))
	}
	return all
}

// schema makes a schema of a few keywords.
func (m *maker) schema(depth int) any {
	if m.IntN(12) == 0 {
		return m.IntN(4) > 0
	}
	s := object{}
	for range 1 + m.IntN(4) {
		m.keyword(s, depth)
	}
	return s
}

func (m *maker) keyword(s object, depth int) {
	kinds := []any{"string", "number", "integer", "boolean", "array", "object", "null"}
	if depth == 0 {
		switch m.IntN(4) {
		case 0:
			s["const"] = m.value(1)
		case 1:
			s["enum"] = []any{m.value(1), m.value(0), m.value(1)}
		default:
			s["type"] = m.one(kinds...)
		}
		return
	}
	switch m.IntN(20) {
	case 0, 1, 2:
		s["type"] = m.one(kinds...)
	case 3:
		s["type"] = []any{m.one(kinds[:3]...), m.one(kinds[3:]...)}
	case 4:
		s["enum"] = []any{m.value(2), m.value(1), m.value(0)}
	case 5:
		s["const"] = m.value(2)
	case 6, 7, 8:
		s["type"] = "object"
		properties, required := object{}, []any{}
		for range m.IntN(4) {
			name := m.name()
			properties[name] = m.schema(depth - 1)
			if m.IntN(2) == 0 && !strings.Contains(fmt.Sprint(required...), name) {
				required = append(required, name)
			}
		}
		s["properties"] = properties
		if len(required) > 0 {
			s["required"] = required
		}
	case 9:
		s["additionalProperties"] = m.one(true, false, m.schema(depth-1))
	case 10:
		s["patternProperties"] = object{m.one("^x-", "a", ".").(string): m.schema(depth - 1)}
	case 11:
		s["items"] = m.schema(depth - 1)
	case 12:
		s["type"], s["prefixItems"], s["minItems"] = "array", m.schemas(1, depth-1), m.IntN(3)
	case 13:
		s["required"] = []any{m.name()}
	case 14:
		s["anyOf"] = m.schemas(1, depth-1)
	case 15:
		s["oneOf"] = m.schemas(1, depth-1)
	case 16:
		s["allOf"] = m.schemas(1, depth-1)
	case 17:
		s["not"] = m.one(true, object{}, object{"type": m.one(kinds...)}, m.schema(depth-1))
	case 18:
		s["if"], s["then"], s["else"] = m.schema(depth-1), m.schema(depth-1), m.schema(depth-1)
	case 19:
		s["$ref"] = m.one("#", "#/$defs/"+m.defs[m.IntN(len(m.defs))], "#/$defs/"+m.defs[m.IntN(len(m.defs))])
	}
	if m.IntN(3) == 0 {
		s["description"] = m.one(texts...)
	}
}

// registry makes a registry with some of the schemas that a registry accepts.
func (m *maker) registry(file int, version string, tools int) *registry.Registry {
	var entries []any
	for len(entries) < tools {
		entry := object{"name": fmt.Sprintf("fuzz.f%d_t%d", file, len(entries)), "description": m.one(texts...),
			"idempotency": object{"mode": "none"}, "timeout_ms": 1}
		for _, side := range []string{"input_schema", "output_schema"} {
			m.defs = []string{"a", "node", "a-b", "日本"}
			s := object{"$defs": object{"a": m.schema(2), "node": m.schema(3), "a-b": m.schema(1), "日本": m.schema(2)}}
			if m.IntN(8) == 0 {
				s["$ref"] = "#/$defs/node"
			}
			s["properties"] = object{"v": m.schema(4), "w": m.schema(3)}
			entry[side] = s
		}
		text, err := json.Marshal(object{"version": version, "tools": []any{entry}})
		if err != nil {
			panic(err)
		}
		if _, err := registry.Parse(text); err == nil {
			entries = append(entries, entry)
		}
	}
	text, err := json.Marshal(object{"version": version, "tools": entries})
	if err != nil {
		panic(err)
	}
	r, err := registry.Parse(text)
	if err != nil {
		panic(err)
	}
	return r
}

// fit makes a value that may fit a schema.
func (m *maker) fit(text []byte) any {
	var root any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&root); err != nil {
		panic(err)
	}
	v := m.fitting(root, root, 8)
	if _, ok := v.(object); !ok {
		return object{}
	}
	return v
}

func (m *maker) fitting(root, schema any, depth int) any {
	s, ok := schema.(object)
	if !ok || depth == 0 || len(s) == 0 {
		return m.value(1)
	}
	if ref, ok := s["$ref"].(string); ok && m.IntN(3) > 0 {
		if name, ok := strings.CutPrefix(ref, "#/$defs/"); ok {
			return m.fitting(root, root.(object)["$defs"].(object)[name], depth-1)
		}
		return m.fitting(root, root, depth-1)
	}
	for _, keyword := range []string{"anyOf", "oneOf", "allOf"} {
		if parts, ok := s[keyword].([]any); ok && m.IntN(2) == 0 {
			return m.fitting(root, parts[m.IntN(len(parts))], depth-1)
		}
	}
	if c, ok := s["const"]; ok {
		return c
	}
	if list, ok := s["enum"].([]any); ok {
		return list[m.IntN(len(list))]
	}
	kind := s["type"]
	if list, ok := kind.([]any); ok {
		kind = list[m.IntN(len(list))]
	}
	switch kind {
	case "string":
		return m.one(texts...)
	case "number", "integer":
		return m.one(0, 1, 2)
	case "boolean":
		return m.IntN(2) == 0
	case "null":
		return nil
	case "array":
		list := []any{}
		first, _ := s["prefixItems"].([]any)
		for _, item := range first[:m.IntN(len(first)+1)] {
			list = append(list, m.fitting(root, item, depth-1))
		}
		if len(list) == len(first) {
			for range m.IntN(3) {
				list = append(list, m.fitting(root, s["items"], depth-1))
			}
		}
		return list
	case "object", nil:
		o := object{}
		properties, _ := s["properties"].(object)
		required, _ := s["required"].([]any)
		for _, name := range required {
			o[name.(string)] = m.value(1)
		}
		for _, name := range keys {
			if property, ok := properties[name.(string)]; ok && (m.IntN(2) == 0 || o[name.(string)] != nil) {
				o[name.(string)] = m.fitting(root, property, depth-1)
			}
		}
		for _, name := range []string{"v", "w"} {
			if property, ok := properties[name]; ok && m.IntN(4) > 0 {
				o[name] = m.fitting(root, property, depth-1)
			}
		}
		if m.IntN(3) == 0 {
			o[m.name()] = m.value(1)
		}
		return o
	}
	return m.value(1)
}

package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// Member is a member of a JSON object.
type Member struct {
	Name  string
	Value json.RawMessage
}

// Members returns the members of an object in their order, which decides the order of the members in a structured
// answer.
func Members(object json.RawMessage) ([]Member, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("it is no JSON object")
	}
	var members []Member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		m := Member{Name: name.(string)}
		if err := d.Decode(&m.Value); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	_, err := d.Token()
	return members, err
}

// Object writes members as an object.
func Object(members []Member) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		name, _ := json.Marshal(m.Name)
		b.Write(name)
		b.WriteByte(':')
		b.Write(m.Value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// Subset rewrites a JSON Schema for a provider that accepts only some keywords. It calls change for each schema in it,
// the outer ones last, with its members; change returns the members to keep. Schemas that are true or false do not
// change.
func Subset(schema json.RawMessage, change func([]Member) []Member) (json.RawMessage, error) {
	if t := bytes.TrimSpace(schema); bytes.Equal(t, []byte("true")) || bytes.Equal(t, []byte("false")) {
		return t, nil
	}
	members, err := Members(schema)
	if err != nil {
		return nil, err
	}
	for i, m := range members {
		value, err := within(m, change)
		if err != nil {
			return nil, err
		}
		members[i].Value = value
	}
	return Object(change(members)), nil
}

// within rewrites the schemas in a keyword's value.
func within(m Member, change func([]Member) []Member) (json.RawMessage, error) {
	one := func(s json.RawMessage) (json.RawMessage, error) { return Subset(s, change) }
	switch m.Name {
	case "properties", "$defs", "definitions", "patternProperties", "dependentSchemas":
		named, err := Members(m.Value)
		if err != nil {
			return nil, err
		}
		for i := range named {
			if named[i].Value, err = one(named[i].Value); err != nil {
				return nil, err
			}
		}
		return Object(named), nil
	case "anyOf", "oneOf", "allOf", "prefixItems":
		return each(m.Value, one)
	case "items":
		if bytes.HasPrefix(bytes.TrimSpace(m.Value), []byte("[")) {
			return each(m.Value, one)
		}
		return one(m.Value)
	case "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties",
		"unevaluatedItems":
		return one(m.Value)
	}
	return m.Value, nil
}

func each(list json.RawMessage, one func(json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	var schemas []json.RawMessage
	if err := json.Unmarshal(list, &schemas); err != nil {
		return nil, err
	}
	for i := range schemas {
		var err error
		if schemas[i], err = one(schemas[i]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(schemas)
}

// Noted returns kept with the omitted parts of a schema in its description, so that a model at least sees them.
func Noted(kept, dropped []Member) []Member {
	if len(dropped) == 0 {
		return kept
	}
	var words []string
	for _, m := range dropped {
		words = append(words, m.Name+": "+string(m.Value))
	}
	note := "(" + strings.Join(words, ", ") + ")"
	for i, m := range kept {
		var text string
		if m.Name == "description" && json.Unmarshal(m.Value, &text) == nil {
			kept[i].Value, _ = json.Marshal(strings.TrimSpace(text + " " + note))
			return kept
		}
	}
	text, _ := json.Marshal(note)
	return append(kept, Member{Name: "description", Value: text})
}

// notAtTheTop are the keywords that providers reject at the top of a tool's schema. The tool's call still checks them.
var notAtTheTop = []string{"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const"}

// Parameters returns an input's schema in the form that providers accept: the schema of an object. It describes in
// words the keywords at the top that they would reject.
func Parameters(schema json.RawMessage) json.RawMessage {
	members, err := Members(schema)
	if err != nil { // true, which takes any object
		return json.RawMessage(`{"type":"object","properties":{}}`)
	}
	var kept, dropped []Member
	typed, described := false, false
	for _, m := range members {
		described = described || m.Name == "properties"
		if slices.Contains(notAtTheTop, m.Name) {
			dropped = append(dropped, m)
			continue
		}
		if m.Name == "type" {
			m.Value, typed = json.RawMessage(`"object"`), true
		}
		kept = append(kept, m)
	}
	if !typed {
		kept = append(kept, Member{Name: "type", Value: json.RawMessage(`"object"`)})
	}
	if !described { // which OpenAI misses
		kept = append(kept, Member{Name: "properties", Value: json.RawMessage(`{}`)})
	}
	return Object(Noted(kept, dropped))
}

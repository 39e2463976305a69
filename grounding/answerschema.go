package grounding

import (
	"encoding/json"

	"github.com/gemworker/gem/internal/schema"
)

// These types describe the form of an answer as a JSON Schema. The keys are in the order in which a model should write
// them: the quote before the values that are read from it.
type (
	listSchema struct {
		Type       string         `json:"type"`
		Properties listProperties `json:"properties"`
		Required   []string       `json:"required"`
		Additional bool           `json:"additionalProperties"`
	}
	listProperties struct {
		Extractions arraySchema `json:"extractions"`
	}
	arraySchema struct {
		Type  string `json:"type"`
		Items any    `json:"items"`
	}
	choiceSchema struct {
		AnyOf []itemSchema `json:"anyOf"`
	}
	itemSchema struct {
		Type       string         `json:"type"`
		Properties itemProperties `json:"properties"`
		Required   []string       `json:"required"`
		Additional bool           `json:"additionalProperties"`
	}
	itemProperties struct {
		Class      scalarSchema    `json:"class"`
		Quote      scalarSchema    `json:"quote"`
		Attributes json.RawMessage `json:"attributes,omitempty"`
		Inferred   *scalarSchema   `json:"inferred,omitempty"`
	}
	scalarSchema struct {
		Type string   `json:"type"`
		Enum []string `json:"enum,omitempty"`
	}
)

// answerSchema returns the schema of an answer. Classes whose items have the same form share one item schema.
func (c *CompiledProgram) answerSchema() json.RawMessage {
	var items []itemSchema
	type form struct {
		attributes string
		inferred   bool
	}
	known := map[form]int{}
	for _, given := range c.program.Classes {
		class := c.class(given.Name)
		f := form{string(class.Attributes), class.Inferred}
		i, ok := known[f]
		if !ok {
			i = len(items)
			known[f] = i
			items = append(items, itemForm(class))
		}
		items[i].Properties.Class.Enum = append(items[i].Properties.Class.Enum, class.Name)
	}
	list := arraySchema{"array", choiceSchema{items}}
	if len(items) == 1 {
		list.Items = items[0]
	}
	return schema.Canonical(listSchema{"object", listProperties{list}, []string{"extractions"}, false})
}

func itemForm(class *compiledClass) itemSchema {
	s := itemSchema{
		Type:       "object",
		Properties: itemProperties{Class: scalarSchema{Type: "string"}, Quote: scalarSchema{Type: "string"}},
		Required:   []string{"class", "quote"},
	}
	if class.attributes != nil {
		s.Properties.Attributes = schema.Canonical(closed(class.document))
		s.Required = append(s.Required, "attributes")
	}
	if class.Inferred {
		s.Properties.Inferred = &scalarSchema{Type: "boolean"}
		s.Required = append(s.Required, "inferred")
	}
	return s
}

// closed returns a copy of an attribute schema. Objects in the copy allow only the properties that the schema names,
// because providers require it.
func closed(s map[string]any) map[string]any {
	all := map[string]any{}
	for name, value := range s {
		switch inner := value.(type) {
		case map[string]any:
			if name == "items" {
				value = closed(inner)
			}
			if name == "properties" {
				properties := map[string]any{}
				for property, of := range inner {
					properties[property] = closed(schema.As[map[string]any](of))
				}
				value = properties
				all["additionalProperties"] = false
			}
		case string:
			if name == "type" && inner == "object" {
				all["additionalProperties"] = false
			}
		}
		all[name] = value
	}
	return all
}

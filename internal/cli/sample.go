package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

type sample struct {
	tool  string
	input map[string]any

	// For gem demo: the required outcome (see outcome), and the actual one.
	want    string
	receipt *receipts.Receipt
}

func (c *sample) json() string {
	encoded, err := json.Marshal(c.input)
	if err != nil || c.input == nil {
		return "{}"
	}
	return string(encoded)
}

// insert returns a frontend's statement, as a person would write it.
func (c *sample) insert() string {
	return fmt.Sprintf("insert into core_tool_calls (tool_name, input) values ('%s', '%s')", c.tool,
		strings.ReplaceAll(c.json(), "'", "''"))
}

// command returns the same call as a shell command.
func (c *sample) command() string {
	return fmt.Sprintf(`gem call %s '%s' --wait`, c.tool, strings.ReplaceAll(c.json(), "'", `'\''`))
}

func bestSample(r *registry.Registry) *sample {
	if _, has := r.Tool("os.create_note"); has {
		return &sample{tool: "os.create_note", input: map[string]any{"domain": "business", "title": "Roof",
			"content": "Two broken tiles."}}
	}
	var first *sample
	for _, t := range r.Tools() {
		if isQuestion(t.Name) { // it would wait for an answer
			continue
		}
		c, known := sampleOf(t)
		if known {
			return c
		}
		first = cmp.Or(first, c)
	}
	return cmp.Or(first, &sample{tool: "domain.method"})
}

// sampleSchema is the part of a schema that names example values.
type sampleSchema struct {
	Required   []string                   `json:"required"`
	Properties map[string]json.RawMessage `json:"properties"`
	Examples   []any                      `json:"examples"`
	Default    any                        `json:"default"`
	Const      any                        `json:"const"`
	Enum       []any                      `json:"enum"`
}

// sampleOf returns a call to a tool with the first example of its input_schema, or with the required fields. If the
// schema names no value for a required field, the value is "…" and known is false.
func sampleOf(t *registry.Tool) (c *sample, known bool) {
	var schema sampleSchema
	_ = json.Unmarshal(t.InputSchema, &schema) // a schema of another form names no values
	c, known = &sample{tool: t.Name, input: map[string]any{}}, true
	if len(schema.Examples) > 0 {
		c.input, known = schema.Examples[0].(map[string]any)
		return c, known
	}
	for _, name := range schema.Required {
		var p sampleSchema
		_ = json.Unmarshal(schema.Properties[name], &p)
		values := slices.Concat(p.Examples, []any{p.Default, p.Const}, p.Enum)
		i := slices.IndexFunc(values, func(v any) bool { return v != nil })
		if i < 0 {
			c.input[name], known = "…", false
			continue
		}
		c.input[name] = values[i]
	}
	return c, known
}

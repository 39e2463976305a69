package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/registry"
)

// ownTools calls the tools of a program that has others than the built-in ones, as far as their input is known and they reach
// nothing but Postgres, and prints what came of it. A keyed tool is called twice: the second call repeats the first receipt.
func (d *demo) ownTools(ctx context.Context) error {
	var (
		calls []*demoCall
		left  []string
		most  time.Duration
	)
	schemas, err := inputSchemas(d.registry)
	if err != nil {
		return err
	}
	for _, t := range d.registry.Tools() {
		input, known := schemas[t.Name].example()
		c := demoCall{tool: t.Name, input: input}
		if !known || slices.ContainsFunc(t.Permissions, func(p string) bool { return p != "read:db" && p != "write:db" }) {
			left = append(left, fmt.Sprintf("  gem call %s '%s' --wait", t.Name, strings.ReplaceAll(c.json(), "'", `'\''`)))
			continue
		}
		most = max(most, t.Timeout)
		calls = append(calls, &c)
		if t.Idempotency.Mode == registry.Keyed {
			again := c
			calls = append(calls, &again)
		}
	}
	if len(calls) > 0 {
		fmt.Fprintf(d.progress, "\nThe frontend inserts %s, such as:\n  %s;\n\n", count(len(calls), "call"), readableInsert(calls[0]))
		if err := d.round(ctx, receiptsWithin+most, calls); err != nil {
			return err
		}
		if err := d.print(); err != nil {
			return err
		}
		fmt.Fprintln(d.out, "\nEach call has one receipt.")
	}
	if len(left) > 0 {
		fmt.Fprintf(d.out, "\nNot called here, since the input is not known or the tool may reach more than Postgres. Start `gem dev`, and then:\n%s\n",
			strings.Join(left, "\n"))
	}
	return nil
}

// inputSchema is the part of an input_schema that tells what an input looks like.
type inputSchema struct {
	Required   []string                   `json:"required"`
	Properties map[string]json.RawMessage `json:"properties"`
	Examples   []any                      `json:"examples"`
	Default    any                        `json:"default"`
	Const      any                        `json:"const"`
	Enum       []any                      `json:"enum"`
}

func inputSchemas(r *registry.Registry) (map[string]*inputSchema, error) {
	var file struct {
		Tools []struct {
			Name  string       `json:"name"`
			Input *inputSchema `json:"input_schema"`
		} `json:"tools"`
	}
	err := json.Unmarshal(r.JSON(), &file)
	schemas := map[string]*inputSchema{}
	for _, t := range file.Tools {
		schemas[t.Name] = t.Input
	}
	return schemas, err
}

// example returns an input that fits the schema, and false if a value in it is not known and stands as "…".
func (s *inputSchema) example() (input map[string]any, known bool) {
	if len(s.Examples) > 0 {
		if example, ok := s.Examples[0].(map[string]any); ok {
			return example, true
		}
	}
	input, known = map[string]any{}, true
	for _, name := range s.Required {
		var p inputSchema
		_ = json.Unmarshal(s.Properties[name], &p) // one without examples stays empty
		values := slices.Concat(p.Examples, []any{p.Default, p.Const}, p.Enum)
		if i := slices.IndexFunc(values, func(v any) bool { return v != nil }); i >= 0 {
			input[name] = values[i]
		} else {
			input[name], known = "…", false
		}
	}
	return input, known
}

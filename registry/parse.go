package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Parse reads a registry file, checks all of it and compiles its schemas. Its error is an [*InvalidError] with every
// defect.
func Parse(data []byte) (*Registry, error) {
	d := decoder{noun: "the registry", registry: true}
	doc := d.decode(bytes.TrimPrefix(data, []byte("\ufeff")))
	p := &parser{}
	for _, f := range d.faults {
		p.add(f.Path, f.Message)
	}
	var tools []*Tool
	if !d.stopped {
		p.shape(doc)
		tools = p.tools(doc)
	}
	if len(p.problems) > 0 {
		return nil, &InvalidError{p.defects(doc)}
	}
	top := doc.(map[string]any)
	delete(top, "$schema")
	r := &Registry{Version: as[string](top["version"]), doc: top, json: canonical(top), tools: tools, byName: map[string]*Tool{}}
	for _, t := range tools {
		r.byName[t.Name] = t
	}
	return r, nil
}

// parser makes the tools of one registry file, and checks what its shape does not tell.
type parser struct{ problems []problem }

func (p *parser) add(pointer, text string) { p.problems = append(p.problems, problem{pointer, text}) }

var printable = regexp.MustCompile(`^\PC{1,200}$`)

// defects orders the problems by their place, and names the tool and the field of each. Only the first of one place is kept.
func (p *parser) defects(doc any) (all []Defect) {
	slices.SortStableFunc(p.problems, func(a, b problem) int { return comparePointers(a.pointer, b.pointer) })
	for _, found := range slices.CompactFunc(p.problems, func(a, b problem) bool { return a.pointer == b.pointer }) {
		d := Defect{Problem: cut(found.text, 500)}
		steps := tokens(found.pointer)
		if len(steps) > 1 && steps[0] == "tools" {
			d.Tool = "tools[" + steps[1] + "]"
			if name := as[string](valueAt(doc, "/tools/"+steps[1]+"/name")); printable.MatchString(name) {
				d.Tool = name
			}
			steps = steps[2:]
		}
		d.Field = fieldName(steps)
		if strings.Contains(d.Field, "_schema.") {
			d.Field = strings.Join(steps, "/")
		}
		d.Field = cut(d.Field, 200)
		all = append(all, d)
	}
	return all
}

func (p *parser) tools(doc any) []*Tool {
	var tools []*Tool
	first := map[string]int{}
	for i, v := range as[[]any](valueAt(doc, "/tools")) {
		entry, ok := v.(map[string]any)
		if !ok {
			continue
		}
		at := "/tools/" + strconv.Itoa(i)
		t := p.tool(at, entry)
		if before, twice := first[t.Name]; !twice {
			first[t.Name] = i
		} else if t.Name != "" {
			p.add(at+"/name", fmt.Sprintf("tools[%d] and tools[%d] have the same name: rename or remove one", before, i))
		}
		tools = append(tools, t)
	}
	return tools
}

// tool reads one entry. A value of the wrong type is left out: its shape is reported.
func (p *parser) tool(at string, entry map[string]any) *Tool {
	t := &Tool{
		Name:         as[string](entry["name"]),
		Description:  as[string](entry["description"]),
		InputSchema:  canonical(entry["input_schema"]),
		OutputSchema: canonical(entry["output_schema"]),
		Permissions:  texts(entry["permissions"]),
		Idempotency: Idempotency{
			Mode:         Mode(as[string](valueAt(entry, "/idempotency/mode"))),
			KeyField:     as[string](valueAt(entry, "/idempotency/key_field")),
			OnOtherInput: OnOtherInput(as[string](valueAt(entry, "/idempotency/on_other_input"))),
		},
		Calls:         texts(entry["calls"]),
		Timeout:       milliseconds(entry["timeout_ms"]),
		Deadline:      cmp.Or(milliseconds(entry["deadline_ms"]), 30*24*time.Hour),
		ReceiptFields: texts(entry["receipt_fields"]),
		Retry: Retry{ // with the defaults that its documentation states
			MaxAttempts: cmp.Or(whole(valueAt(entry, "/retry/max_attempts")), 3),
			Backoff:     cmp.Or(milliseconds(valueAt(entry, "/retry/backoff_ms")), 500*time.Millisecond),
		},
		entry: entry,
	}
	if open, stated := entry["frontends"].(bool); stated {
		t.Frontends = open
	} else {
		t.Frontends = !slices.ContainsFunc(t.Permissions, func(permission string) bool { return !ofDatabase(permission) })
	}
	if onOther := &t.Idempotency.OnOtherInput; *onOther == "" {
		*onOther = map[Mode]OnOtherInput{SafeRetry: Refuse, Keyed: Replay}[t.Idempotency.Mode]
	}
	t.input = p.schema(entry["input_schema"], at+"/input_schema", "the input")
	t.input.object = true
	t.output = p.schema(entry["output_schema"], at+"/output_schema", "the output")
	p.input(entry["input_schema"], at, t.Idempotency)
	return t
}

func whole(v any) int {
	i, _ := strconv.Atoi(string(as[json.Number](v)))
	return i
}

func milliseconds(v any) time.Duration { return time.Duration(whole(v)) * time.Millisecond }

func (p *parser) schema(doc any, at, noun string) *schema {
	s := &schema{noun: noun, doc: doc}
	for _, found := range s.compile() {
		p.add(at+found.pointer, found.text)
	}
	return s
}

// input refuses an input_schema that no object can match, and a key field that a valid input could lack.
func (p *parser) input(schema any, at string, idempotency Idempotency) {
	described, required := false, false
	for _, part := range conjuncts(nil, schema, schema) {
		if t, ok := part["type"]; ok && t != "object" && !slices.Contains(as[[]any](t), any("object")) {
			p.add(at+"/input_schema/type", "is "+show(t)+`, and an input is always an object: write "type": "object"`)
		}
		_, ok := lookup(part, joinPointer("/properties", idempotency.KeyField))
		described = described || ok
		required = required || slices.Contains(as[[]any](part["required"]), any(idempotency.KeyField))
	}
	if idempotency.Mode == Keyed && idempotency.KeyField != "" && (!described || !required) {
		p.add(at+"/idempotency/key_field", show(idempotency.KeyField)+" is not a required property of input_schema, and a call without it would "+
			`have no key: describe it under "properties", and add it to "required"`)
	}
}

// conjuncts appends the schemas that every document must match as a whole: the schema itself, and those that it includes by
// $ref and allOf.
func conjuncts(all []map[string]any, root, v any) []map[string]any {
	schema, ok := v.(map[string]any)
	// A schema in a circle of references is refused elsewhere; here it must only end.
	if !ok || len(all) >= 100 {
		return all
	}
	all = append(all, schema)
	if ref := as[string](schema["$ref"]); strings.HasPrefix(ref, "#/") {
		all = conjuncts(all, root, valueAt(root, libraryPointer(ref[1:])))
	}
	for _, part := range as[[]any](schema["allOf"]) {
		all = conjuncts(all, root, part)
	}
	return all
}

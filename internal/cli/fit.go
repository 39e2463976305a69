package cli

import (
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
	"go.uber.org/zap"
)

// fit binds a registry's tools as a worker would, with the domains of domains.json, which may be nil, and compares
// the two.
func (p *Program) fit(r *registry.Registry, d *backends.Domains) (bound *binding.Handlers, without string, err error) {
	if bound, _, err = p.bind(r, d, os.Getenv, zap.NewNop()); err != nil {
		return nil, "", err
	}
	if without, err = fit(r, bound); err != nil {
		err = fmt.Errorf("the registry and the program's handlers do not fit:\n%w", err)
	}
	return bound, without, err
}

// fit compares a registry with the program's handlers. The error has a line for each field of a handler's struct that
// its tool's schema lacks, and for each property that the schema requires and the struct lacks: such a handler cannot
// do its work. A tool in a backend has no struct, and none of the fields for durable handlers. An included tool needs
// a handler in Go. without is a sentence about the tools without a handler, or empty.
func fit(r *registry.Registry, bound *binding.Handlers) (without string, err error) {
	var (
		faults []error
		alone  []string
		spare  = map[string]bool{} // handlers without a tool
	)
	for _, h := range bound.All() {
		spare[h.Func] = true
	}
	for _, tool := range r.Tools() {
		h, ok := bound.For(tool.Name)
		switch {
		case ok:
		case tool.Included:
			domain, _, _ := strings.Cut(tool.Name, ".")
			faults = append(faults, fmt.Errorf(`%s: the registry includes it, and this program has no domain %s: add the one `+
				`of handlers/%[2]s to its Domains, or take the tool out of "include"`, tool.Name, domain))
			continue
		default:
			alone = append(alone, tool.Name)
			continue
		}
		delete(spare, h.Func)
		if h.UsesBackend() {
			faults = append(faults, unfitBackend(tool, h)...)
			continue
		}
		for _, side := range []struct {
			name   string
			schema json.RawMessage
			goType reflect.Type
			output bool
		}{{"input", tool.InputSchema, h.Input, false}, {"output", tool.OutputSchema, h.Output, true}} {
			var root any
			if err := json.Unmarshal(side.schema, &root); err != nil {
				return "", err
			}
			c := comparison{root: root, output: side.output}
			c.compare("", root, side.goType, 0)
			for _, text := range c.faults {
				faults = append(faults, fmt.Errorf("%s: %s in %s does not fit %s_schema: %s", tool.Name, h.Func, h.File, side.name,
					text))
			}
		}
	}
	if len(alone) > 0 {
		for i, name := range alone {
			domain, method, _ := strings.Cut(name, ".")
			var near []string
			for _, h := range slices.Sorted(maps.Keys(spare)) {
				if typeName, methodName, _ := strings.Cut(h, "."); strings.EqualFold(typeName, domain) {
					near = append(near, methodName)
				}
			}
			if hint := schema.DidYouMean(method, near); hint != "" {
				alone[i] += " (" + strings.TrimPrefix(hint, ": ") + ")"
			}
		}
		without = "tools without a handler, whose calls end as not_configured: " + strings.Join(alone, ", ")
	}
	return without, errors.Join(faults...)
}

// unfitBackend returns the faults of an entry whose tool runs in a backend: fields that only durable handlers have.
func unfitBackend(tool *registry.Tool, h *binding.Handler) (faults []error) {
	if h.Durable {
		return nil
	}
	for _, field := range tool.Durable() {
		faults = append(faults, fmt.Errorf("%s: %s is for durable handlers, and the tool runs in a backend (%s %s), where "+
			"it is one attempt: remove it, or let its service have an SDK of GEM's, and list it under `durable` in "+
			"domains.json (docs/sdk.md)", tool.Name, field, h.File, h.Func))
	}
	return faults
}

// comparison finds where a schema and a Go type disagree about the fields of an object.
type comparison struct {
	root   any // of the schema
	output bool
	faults []string
}

// mostLevels ends the comparison of types that contain themselves.
const mostLevels = 10

func (c *comparison) compare(at string, schema any, goType reflect.Type, level int) {
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	if level > mostLevels || codesItself(goType) {
		return
	}
	o := object{properties: map[string]any{}}
	c.gather(&o, schema, true, map[string]bool{})
	switch goType.Kind() {
	case reflect.Slice, reflect.Array:
		if o.items != nil {
			c.compare(at+"[]", o.items, goType.Elem(), level+1)
		}
	case reflect.Struct:
		if len(o.properties) > 0 {
			c.fields(at, o, goType, level)
		}
	}
}

// fields compares the properties of an object with the fields of a struct.
func (c *comparison) fields(at string, o object, goType reflect.Type, level int) {
	fields := jsonFields(goType)
	if len(fields) == 0 && !c.output {
		return // the type reads the input itself
	}
	names := slices.Sorted(maps.Keys(o.properties))
	for _, name := range names {
		for field := range fields {
			// encoding/json matches it anyway.
			if _, exact := fields[name]; !exact && !c.output && strings.EqualFold(field, name) {
				fields[name] = fields[field]
				delete(fields, field)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		_, known := o.properties[name]
		if known {
			c.compare(join(at, name), o.properties[name], fields[name], level+1)
		} else if !o.patterns && (o.closed || !c.output) {
			c.faults = append(c.faults, fmt.Sprintf("the schema has no property %s, which %s names%s", join(at, name), goType,
				cmp.Or(schema.DidYouMean(name, names), ": add it to the schema, or remove the field")))
		}
	}
	for _, name := range o.required {
		if _, ok := fields[name]; !ok {
			c.faults = append(c.faults, fmt.Sprintf("the schema requires %s, and %s has no field for it%s", join(at, name),
				goType,
				cmp.Or(schema.DidYouMean(name, slices.Sorted(maps.Keys(fields))),
					fmt.Sprintf(": add one with the tag `json:%q`", name))))
		}
	}
}

func join(at, name string) string { return strings.TrimPrefix(at+"."+name, ".") }

// object holds a schema's constraints on objects and lists.
type object struct {
	properties map[string]any
	required   []string
	closed     bool // no other properties are allowed
	patterns   bool // patternProperties names some
	items      any
}

// gather adds a schema's constraints, with the schemas that it refers to and combines. always is false in
// alternatives, whose required properties do not apply to all objects.
func (c *comparison) gather(o *object, schema any, always bool, seen map[string]bool) {
	s, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if ref, ok := s["$ref"].(string); ok && !seen[ref] {
		seen[ref] = true
		c.gather(o, c.target(ref), always, seen)
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf", "if", "then", "else"} {
		parts, ok := s[keyword].([]any)
		if !ok {
			parts = []any{s[keyword]}
		}
		for _, part := range parts {
			c.gather(o, part, always && keyword == "allOf", seen)
		}
	}
	properties, _ := s["properties"].(map[string]any)
	for name, property := range properties {
		if _, ok := property.(map[string]any); ok || o.properties[name] == nil {
			o.properties[name] = property
		}
	}
	if required, ok := s["required"].([]any); ok && always {
		for _, name := range required {
			if name, ok := name.(string); ok && !slices.Contains(o.required, name) {
				o.required = append(o.required, name)
			}
		}
	}
	o.closed = o.closed || always && (s["additionalProperties"] == false || s["unevaluatedProperties"] == false)
	o.patterns = o.patterns || s["patternProperties"] != nil || s["dependentSchemas"] != nil
	if _, ok := s["items"].(map[string]any); ok {
		o.items = s["items"]
	}
}

// target returns the schema that a reference of the form #/$defs/name leads to, or nil.
func (c *comparison) target(ref string) any {
	pointer, ok := strings.CutPrefix(ref, "#")
	v := c.root
	for _, token := range strings.Split(pointer, "/")[1:] {
		around, _ := v.(map[string]any)
		v = around[strings.NewReplacer("~1", "/", "~0", "~").Replace(token)]
	}
	if !ok {
		return nil
	}
	return v
}

// codesItself reports whether a type reads or writes its own JSON. Its fields then mean nothing.
func codesItself(t reflect.Type) bool {
	pointer := reflect.PointerTo(t)
	for _, coder := range []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[json.Marshaler](),
		reflect.TypeFor[encoding.TextUnmarshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if pointer.Implements(coder) {
			return true
		}
	}
	return false
}

// jsonFields returns the fields of a struct by their names in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, field := range reflect.VisibleFields(t) {
		tag := field.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		inside := field.Anonymous && name == "" // encoding/json treats its fields as the struct's
		for n := 1; n < len(field.Index); n++ {
			inside = inside || t.FieldByIndex(field.Index[:n]).Tag.Get("json") != "" // its fields belong to a tagged struct
		}
		if tag != "-" && field.IsExported() && !inside {
			all[cmp.Or(name, field.Name)] = field.Type
		}
	}
	return all
}

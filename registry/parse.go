package registry

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/schema"
)

// Parse reads a registry file, checks it completely, adds the entries that it includes, and compiles its schemas. Its
// error is an [*InvalidError] with every defect.
func Parse(data []byte) (*Registry, error) {
	entries, err := own()
	if err != nil {
		return nil, err
	}
	return resolve(data, entries, false)
}

// ParseRecorded reads a registry in the format of [Registry.JSON], which may have the field "added". A file may not.
func ParseRecorded(data []byte) (*Registry, error) {
	entries, err := own()
	if err != nil {
		return nil, err
	}
	return resolve(data, entries, true)
}

// Resolve is [Parse] for a program whose own entries come from another registry file.
func Resolve(data, ownFile []byte) (*Registry, error) {
	entries, err := readCatalog(ownFile)
	if err != nil {
		return nil, err
	}
	return resolve(data, entries, false)
}

func resolve(data []byte, own catalog, recorded bool) (*Registry, error) {
	doc, problems := form().Read(data)
	p := &parser{problems: problems, checked: isChecked(data)}
	p.byName, p.byFlatName, p.places = map[string]*Tool{}, map[string]*Tool{}, map[*Tool]string{}
	for i, v := range list(doc, "tools") {
		if entry, ok := v.(map[string]any); ok {
			at := "/tools/" + strconv.Itoa(i)
			p.enter(at, fmt.Sprintf("tools[%d]", i), p.tool(at, entry))
		}
	}
	version, added := p.include(doc, own, recorded)
	if len(p.problems) > 0 {
		return nil, &defects.InvalidError{Defects: schema.Defects(doc, "tools", p.problems, fieldName)}
	}
	r := &Registry{Version: version, tools: p.tools, byName: p.byName, byFlatName: p.byFlatName, own: own}
	r.write(doc.(map[string]any), added)
	return r, nil
}

// write builds the document of the registry from that of a valid file. Its version does not cover the tools in added.
func (r *Registry) write(file map[string]any, added []string) {
	r.FileVersion = schema.As[string](file["version"])
	r.doc = maps.Clone(file)
	for _, field := range []string{"$schema", "include", "overrides", "added"} {
		delete(r.doc, field)
	}
	r.doc["version"] = r.Version
	r.named = maps.Clone(r.doc)
	all, named, names := []any{}, []any{}, []any{}
	for _, t := range r.tools {
		all = append(all, t.entry)
		if !slices.Contains(added, t.Name) {
			named = append(named, t.entry)
		}
	}
	for _, name := range added {
		names = append(names, name)
	}
	r.doc["tools"], r.named["tools"] = all, named
	if len(names) > 0 {
		r.doc["added"] = names
	}
	r.json = schema.Canonical(r.doc)
}

// checkedSum is the sha256 of the program's tools.registry.json, which a test checks. A command saves 80 ms by
// compiling its schemas only when they are used.
//
//go:embed checked.sha256
var checkedSum string

func isChecked(data []byte) bool {
	return fmt.Sprintf("%x\n", sha256.Sum256(data)) == checkedSum || bytes.Equal(data, ownText)
}

//go:embed registry.schema.json
var formText []byte

// FileSchema returns the JSON Schema of a registry file, for editors.
func FileSchema() []byte { return slices.Clone(formText) }

// form is registry.schema.json without the grammar of the tools' schemas. Each of these is checked by its own draft.
var form = sync.OnceValue(func() *schema.Form { return schema.NewForm("the registry", formText, "input", "schema") })

// parser makes the tools of one registry file, and checks what the form cannot.
type parser struct {
	checked            bool // a test of the program found the schemas valid
	problems           []schema.Problem
	tools              []*Tool
	byName, byFlatName map[string]*Tool
	places             map[*Tool]string
}

func (p *parser) add(pointer, text string) {
	p.problems = append(p.problems, schema.Problem{Pointer: pointer, Text: text})
}

// fieldName returns a place inside a schema as a pointer.
func fieldName(steps []string) string {
	name := schema.FieldName(steps)
	if strings.Contains(name, "_schema.") {
		name = strings.Join(steps, "/")
	}
	return name
}

// enter adds a tool whose entry is at a pointer, and checks its name. Messages call it place.
func (p *parser) enter(at, place string, t *Tool) {
	p.tools = append(p.tools, t)
	if t.Name == "" {
		return
	}
	if domainOf(t.Name) == "gem" {
		p.add(at+"/name", "the domain gem is for tools of GEM's own: choose another domain")
	}
	switch earlier := p.byFlatName[t.FlatName()]; {
	case earlier == nil:
		p.byName[t.Name], p.byFlatName[t.FlatName()], p.places[t] = t, t, place
	case earlier.Name == t.Name:
		p.add(at+"/name", fmt.Sprintf("%s and %s have the same name: rename or remove one", p.places[earlier], place))
	default:
		p.add(at+"/name", fmt.Sprintf("%s and %s are both called %s by agents, which know no dots: rename one",
			earlier.Name, t.Name, t.FlatName()))
	}
}

// tool reads one entry. It ignores a value of the wrong type, which the form reports.
func (p *parser) tool(at string, entry map[string]any) *Tool {
	t := &Tool{
		Name:         schema.As[string](entry["name"]),
		Description:  schema.As[string](entry["description"]),
		InputSchema:  schema.Canonical(entry["input_schema"]),
		OutputSchema: schema.Canonical(entry["output_schema"]),
		Permissions:  schema.Texts(entry["permissions"]),
		Idempotency: Idempotency{
			Mode:         Mode(schema.As[string](schema.ValueAt(entry, "/idempotency/mode"))),
			KeyField:     schema.As[string](schema.ValueAt(entry, "/idempotency/key_field")),
			OnOtherInput: OnOtherInput(schema.As[string](schema.ValueAt(entry, "/idempotency/on_other_input"))),
		},
		Calls:         schema.Texts(entry["calls"]),
		Timeout:       milliseconds(entry["timeout_ms"]),
		Deadline:      cmp.Or(milliseconds(entry["deadline_ms"]), 30*24*time.Hour),
		ReceiptFields: schema.Texts(entry["receipt_fields"]),
		Hints:         Hints{Title: schema.As[string](schema.ValueAt(entry, "/hints/title"))},
		entry:         entry,
	}
	if destructive, stated := schema.ValueAt(entry, "/hints/destructive").(bool); stated {
		t.Hints.Destructive = &destructive
	}
	if open, stated := entry["frontends"].(bool); stated {
		t.Frontends = open
	} else {
		t.Frontends = !slices.ContainsFunc(t.Permissions, func(permission string) bool { return !ofDatabase(permission) })
	}
	if slices.Contains(Asking, t.Name) && t.Idempotency.Mode != None && t.Idempotency.Mode != "" {
		p.add(at+"/idempotency/mode",
			`must be "none" for a tool that asks: each question is asked, and the handler that asks has a name for it`)
	}
	if onOther := &t.Idempotency.OnOtherInput; *onOther == "" {
		*onOther = map[Mode]OnOtherInput{SafeRetry: Refuse, Keyed: Replay}[t.Idempotency.Mode]
	}
	t.input = p.schema(entry["input_schema"], at+"/input_schema", "the input")
	t.input.Object = true
	t.output = p.schema(entry["output_schema"], at+"/output_schema", "the output")
	p.input(entry["input_schema"], at, t.Idempotency)
	return t
}

func list(doc any, field string) []any { return schema.As[[]any](schema.ValueAt(doc, "/"+field)) }

func whole(v any) int {
	i, _ := strconv.Atoi(string(schema.As[json.Number](v)))
	return i
}

func milliseconds(v any) time.Duration { return time.Duration(whole(v)) * time.Millisecond }

func (p *parser) schema(doc any, at, noun string) *schema.Schema {
	if p.checked {
		return schema.Checked(noun, doc)
	}
	s, problems := schema.New(noun, doc)
	for _, found := range problems {
		p.add(at+found.Pointer, found.Text)
	}
	return s
}

// input refuses an input_schema that no object can match, and a key field that a valid input may lack.
func (p *parser) input(doc any, at string, idempotency Idempotency) {
	described, required := false, false
	for _, part := range schema.Conjuncts(doc, doc) {
		if t, ok := part["type"]; ok && t != "object" && !slices.Contains(schema.As[[]any](t), any("object")) {
			p.add(at+"/input_schema/type", "is "+schema.Show(t)+`, and an input is always an object: write "type": "object"`)
		}
		_, ok := schema.Lookup(part, schema.JoinPointer("/properties", idempotency.KeyField))
		described = described || ok
		required = required || slices.Contains(schema.As[[]any](part["required"]), any(idempotency.KeyField))
	}
	if idempotency.Mode == Keyed && idempotency.KeyField != "" && (!described || !required) {
		p.add(at+"/idempotency/key_field", schema.Show(idempotency.KeyField)+
			" is not a required property of input_schema, and a call without it would "+
			`have no key: describe it under "properties", and add it to "required"`)
	}
}

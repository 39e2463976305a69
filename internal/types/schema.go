package types

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// language writes types in a programming language.
type language interface {
	// anything returns the type that accepts every value.
	anything() string
	// every returns the type that accepts all values of a kind. For fractions, it also accepts integers.
	every(k kind) string
	// constant returns the type that accepts only the value c, or "" if the language has no such type.
	constant(c any) string
	// list returns a type of lists. first holds the types of the first elements, by position, and others the types of all
	// further elements. The elements before the position least must exist.
	list(first [][]option, least int, others []option) string
	// object returns the type of the objects that d describes.
	object(d *dict) option
	// union returns the type that accepts the values of all options.
	union(options []option) string
	// both returns types for the values that p and q have in common. These types may accept more values. p and q are
	// different sets of lists, or different sets of objects.
	both(p, q part) part
	// named returns the options, after it has declared a name for each option that needs one. at is the place in the
	// schema where the options are used.
	named(options []option, at string) []option
	// declare declares a type with a name and a description.
	declare(name string, options []option, doc string)
}

// dict describes the objects that a schema accepts.
type dict struct {
	fields []field
	others []option // the types of additional properties; empty: none are allowed
}

// field is a property that a schema names.
type field struct {
	name     string
	options  []option
	required bool
	doc      string
}

// writer writes the types of one schema. A nested schema becomes a type with a name if a reference leads to it.
// Otherwise its type is written where it is used.
type writer struct {
	lang  language
	names names
	// open is true for an input, whose type allows additional properties wherever the schema does. The type of an output
	// omits them, so that a type checker finds a misspelled name.
	open bool

	doc     any
	base    string            // the first part of the names of all types
	anchors map[string]string // the places of anchors; empty for an anchor that occurs twice
	nested  bool              // a nested schema has a $id, so references to anchors are not resolved
	memo    map[string]values // the values of the targets of references, by place
	busy    map[string]bool   // places whose values are being computed
	refs    map[alias]string  // the names of types
	queue   []alias           // types that have a name and are still to be declared
}

// sorted returns the tools in the order of their names.
func sorted(r *registry.Registry) []*registry.Tool {
	return slices.SortedFunc(slices.Values(r.Tools()), func(a, b *registry.Tool) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// write declares the type of a schema, and the types of the schemas to which it refers. It returns the name of the
// first. The input of a tool is always an object.
func (w *writer) write(name string, text []byte) string {
	doc, err := schema.Decode("the schema", text)
	if err != nil {
		panic(err) // the registry is valid
	}
	w.doc, w.base = doc, name
	w.anchors = map[string]string{}
	w.find(doc, "")
	w.memo, w.busy, w.refs = map[string]values{}, map[string]bool{}, map[alias]string{}
	own := w.names.take(name)
	accepted := anything()
	if w.open {
		accepted = only(object)
	}
	if s, _ := doc.(map[string]any); !w.open || typed(s).alone(object) {
		w.refs[alias{"", all}] = own // for references to the whole schema
	}
	w.lang.declare(own, w.listed(w.and(w.values(doc, place{}, false), accepted)), describe(doc))
	for i := 0; i < len(w.queue); i++ { // a declaration may add types to the queue
		next := w.queue[i]
		target := w.of(next.at).part(next.kind)
		w.lang.declare(w.refs[next], w.listed(target), describe(schema.ValueAt(doc, next.at)))
	}
	return own
}

// alias is a type with a name: it accepts what the schema at a place accepts, or only its lists or its objects.
type alias struct {
	at   string
	kind kind
}

// place holds the pointer to a schema, and the pointer to the enclosing schema to which references are relative.
type place struct{ at, base string }

func (p place) to(keys ...string) place {
	for _, key := range keys {
		p.at = schema.JoinPointer(p.at, key)
	}
	return p
}

// in returns the place with its base set: a schema with an id is the base of its own references.
func (p place) in(doc any) place {
	if hasID(doc) {
		p.base = p.at
	}
	return p
}

func hasID(doc any) bool {
	s, _ := doc.(map[string]any)
	for _, keyword := range []string{"$id", "id"} {
		if id := schema.As[string](s[keyword]); id != "" && id[0] != '#' {
			return true
		}
	}
	return false
}

// find looks for anchors.
func (w *writer) find(doc any, at string) {
	switch v := doc.(type) {
	case []any:
		for i, item := range v {
			w.find(item, at+"/"+strconv.Itoa(i))
		}
	case map[string]any:
		w.nested = w.nested || at != "" && hasID(v)
		for _, keyword := range []string{"$anchor", "$id"} {
			name := strings.TrimPrefix(schema.As[string](v[keyword]), "#")
			if _, twice := w.anchors[name]; name != "" {
				w.anchors[name] = map[bool]string{false: at}[twice] // an anchor that occurs twice is ambiguous
			}
		}
		for key, value := range v {
			w.find(value, schema.JoinPointer(at, key))
		}
	}
}

// target returns the place to which a reference leads, and whether it could be found.
func (w *writer) target(ref string, from place) (place, bool) {
	fragment, local := strings.CutPrefix(ref, "#")
	if !local {
		return place{}, false
	}
	if fragment = schema.PlainPointer(fragment); fragment == "" || fragment[0] == '/' {
		_, found := schema.Lookup(w.doc, from.base+fragment)
		return w.placeOf(from.base + fragment), found
	}
	at, found := w.anchors[fragment]
	return place{at: at}, found && at != "" && !w.nested
}

func (w *writer) placeOf(at string) place {
	p := place{}
	for _, key := range schema.Tokens(at) {
		p = p.in(schema.ValueAt(w.doc, p.at)).to(key)
	}
	return p
}

// of returns what the target of a reference accepts.
func (w *writer) of(at string) values {
	doc := schema.ValueAt(w.doc, at)
	if w.busy[at] { // the schema refers to itself: only its kinds and its name are known yet
		s, _ := doc.(map[string]any)
		v := typed(s)
		for _, k := range []kind{list, object} {
			if v[k].every {
				v[k] = part{only: []option{{size: 1}}}
			}
		}
		return v
	}
	v, known := w.memo[at]
	if !known {
		w.busy[at] = true
		v = w.values(doc, w.placeOf(at), false)
		w.memo[at] = v
		delete(w.busy, at)
	}
	return v
}

// name returns the name of a type. If the type has none yet, it gets one, and is added to the queue.
func (w *writer) name(a alias) string {
	name, known := w.refs[a]
	if !known {
		tokens := schema.Tokens(a.at)
		name = w.base
		if len(tokens) > 0 {
			name += pascal(tokens[len(tokens)-1])
		} else {
			name += "Whole"
		}
		name += map[kind]string{list: "List", object: "Object"}[a.kind]
		name = w.names.take(name)
		w.refs[a] = name
		w.queue = append(w.queue, a)
	}
	return name
}

func describe(doc any) string {
	return schema.As[string](schema.As[map[string]any](doc)["description"])
}

// notes are the keywords that add nothing to a reference next to them.
var notes = []string{"$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}

// options returns the types of a nested schema.
func (w *writer) options(doc any, at place) []option {
	s, _ := doc.(map[string]any)
	if ref, ok := s["$ref"].(string); ok {
		plain := true
		for keyword := range s {
			plain = plain && (keyword == "$ref" || slices.Contains(notes, keyword))
		}
		if target, found := w.target(ref, at); found && plain {
			return []option{{text: w.name(alias{target.at, all})}}
		}
	}
	return w.lang.named(w.listed(w.values(doc, at, false)), at.at)
}

// values returns what a schema accepts. inside is true if the schema is combined with another schema that lists the
// properties.
func (w *writer) values(doc any, at place, inside bool) values {
	s, ok := doc.(map[string]any)
	if !ok {
		if doc == false {
			return values{}
		}
		return anything()
	}
	at = at.in(doc)
	v := typed(s)
	if v[object].every {
		v[object] = w.object(s, at, inside)
	}
	if v[list].every {
		v[list] = w.list(s, at)
	}
	if c, ok := s["const"]; ok {
		v = w.and(v, w.constants([]any{c}))
	}
	if list, ok := s["enum"].([]any); ok {
		v = w.and(v, w.constants(list))
	}
	if ref, ok := s["$ref"].(string); ok {
		if target, found := w.target(ref, at); found {
			v = w.and(v, w.named(target.at))
		}
	}
	inside = inside || saysProperties(s) && !v[object].every
	for i, part := range schema.As[[]any](s["allOf"]) {
		v = w.and(v, w.values(part, at.to("allOf", strconv.Itoa(i)), inside))
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		if parts, ok := s[keyword].([]any); ok {
			var either values
			for i, part := range parts {
				either = either.or(w.values(part, at.to(keyword, strconv.Itoa(i)), inside))
			}
			v = w.and(v, either)
		}
	}
	then, one := s["then"]
	other, two := s["else"]
	if _, asks := s["if"]; asks && one && two {
		v = w.and(v, w.values(then, at.to("then"), inside).or(w.values(other, at.to("else"), inside)))
	}
	if not, ok := s["not"]; ok {
		v = w.and(v, without(not))
	}
	return v
}

// named returns what the target of a reference accepts, with a name in place of the types of its lists and objects.
func (w *writer) named(at string) values {
	v := w.of(at)
	for _, k := range []kind{list, object} {
		if p := v[k]; slices.ContainsFunc(p.only, func(o option) bool { return o.dict == nil }) {
			named := alias{at, k}
			if v.alone(k) {
				named.kind = all
			}
			v[k].only = []option{{text: w.name(named), size: p.size()}}
		}
	}
	return v
}

// typed returns what the keyword type of a schema accepts.
func typed(s map[string]any) values {
	if t, ok := s["type"]; ok {
		return only(kindsOf(t)...)
	}
	return anything()
}

// kindsOf returns the kinds that a value of the keyword type names.
func kindsOf(t any) (some []kind) {
	names := schema.Texts(t)
	if name, ok := t.(string); ok {
		names = []string{name}
	}
	of := map[string][]kind{"string": {text}, "number": {integer, fraction}, "integer": {integer}, "boolean": {boolean},
		"array": {list}, "object": {object}, "null": {null}}
	for _, name := range names {
		some = append(some, of[name]...)
	}
	return some
}

// without returns the values that the keyword not leaves, if its schema accepts everything or only names kinds of
// values. For any other schema, it returns all values.
func without(not any) values {
	s, ok := not.(map[string]any)
	switch t, typed := s["type"]; {
	case not == true, ok && len(s) == 0:
		return values{}
	case typed && len(s) == 1:
		v := anything()
		for _, k := range kindsOf(t) {
			v[k].every = false
		}
		return v
	}
	return anything()
}

// saysProperties reports whether a schema has a keyword for properties.
func saysProperties(s map[string]any) bool {
	for _, keyword := range []string{"properties", "patternProperties", "additionalProperties"} {
		if _, ok := s[keyword]; ok {
			return true
		}
	}
	return false
}

// object returns the objects that a schema accepts.
func (w *writer) object(s map[string]any, at place, inside bool) part {
	properties, patterns := schema.As[map[string]any](s["properties"]), schema.As[map[string]any](s["patternProperties"])
	additional, stated := s["additionalProperties"]
	required := schema.Texts(s["required"])
	if additional == true {
		stated = false
	}

	// The other properties.
	var others []option
	switch {
	case !stated:
		others = w.listed(anything())
	case additional != false:
		others = w.options(additional, at.to("additionalProperties"))
	}
	for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
		if stated {
			others = append(others, w.options(patterns[pattern], at.to("patternProperties", pattern))...)
		}
	}
	others = distinct(others)

	names := append(slices.Collect(maps.Keys(properties)), required...)
	slices.Sort(names)
	names = slices.Compact(names)
	if !stated && len(names) == 0 {
		return part{every: true}
	}
	d := &dict{}
	for _, name := range names {
		f := field{name, others, slices.Contains(required, name), ""}
		if doc, ok := properties[name]; ok {
			f.options, f.doc = w.options(doc, at.to("properties", name)), describe(doc)
		}
		d.fields = append(d.fields, f)
	}
	if stated || w.open && !inside {
		d.others = others
	}
	return part{only: []option{w.lang.object(d)}}
}

// list returns the lists that a schema accepts.
func (w *writer) list(s map[string]any, at place) part {
	first, rest, restKey := "prefixItems", any(nil), "items"
	if _, older := s["items"].([]any); older { // the form before draft 2020-12
		first, restKey = "items", "additionalItems"
	}
	before, tuple := s[first].([]any)
	rest, more := s[restKey]
	var others []option
	switch {
	case !more:
		others = w.listed(anything())
	case rest != false:
		others = w.options(rest, at.to(restKey))
	}
	if !tuple || len(before) == 0 || len(before) > 100 {
		if tuple && len(before) > 0 || w.lang.union(others) == w.lang.anything() {
			return part{every: true}
		}
		return part{only: []option{{text: w.lang.list(nil, 0, others), size: 1}}}
	}
	least, _ := strconv.Atoi(string(schema.As[json.Number](s["minItems"])))
	var items [][]option
	for i, item := range before {
		items = append(items, w.options(item, at.to(first, strconv.Itoa(i))))
	}
	return part{only: []option{{text: w.lang.list(items, least, others), size: 1}}}
}

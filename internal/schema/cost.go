package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// Nothing ends the library once it validates, and it builds an error for everything that does not fit, also in
// alternatives that do not apply. So what a validation can cost at most is counted before it is started, which itself
// stops at these limits.
const (
	maxTime    = 25_000_000 // units of about 100 ns
	maxMemory  = 256 << 20  // bytes of errors
	lightShare = 32         // what may cost more than such a part of these is checked alone: see [Tool.CheckInput]

	stepTime   = 10  // of applying a subschema to a value
	errorTime  = 10  // of building an error and looking at it
	nameTime   = 30  // of a property that an error names
	errorBytes = 160 // of an error, besides its two pointers into the schema and the one into the document
)

// price is what a subschema costs wherever it is applied, without its parts.
type price struct {
	time    int                    // of its own keywords
	errors  int                    // that its own keywords can give
	bytes   int                    // of their texts, and of the subschema's location in each
	numbers int                    // keywords that calculate
	pattern int                    // instructions of its pattern
	names   map[*regexp.Regexp]int // and of those of patternProperties
}

// meter counts the cost of applying a schema to a document.
type meter struct {
	prices       map[*jsonschema.Schema]price
	light        bool // it stops where a document has to be checked alone
	time, memory int
}

func (m *meter) spent() bool {
	if m.light {
		return m.time > maxTime/lightShare || m.memory > maxMemory/lightShare
	}
	return m.time > maxTime || m.memory > maxMemory
}

// spot is a place of a validation.
type spot struct {
	path  int                  // length of the pointer to the value
	route int                  // length of the way through the schema
	depth int                  // schemas on that way
	same  []*jsonschema.Schema // that are being applied to the same value
}

// at is the place of a part under a name.
func (p spot) at(name string, keyword int) spot {
	return spot{path: p.path + 1 + 3*len(name), route: p.route + keyword, depth: p.depth + 1}
}

// apply counts the cost of applying a schema to a value. It assumes that all keywords are looked at and that all may
// fail, except that nothing is looked at in a value of a wrong type.
func (m *meter) apply(s *jsonschema.Schema, v any, p spot) {
	if s == nil || m.spent() || slices.Contains(p.same, s) { // the library finds such a loop
		return
	}
	price := m.prices[s]
	m.time += stepTime + price.errors*errorTime + price.time + p.depth*p.route/2000
	m.memory += price.errors*(errorBytes+2*p.route+p.path) + price.bytes
	switch v := v.(type) {
	case map[string]any:
		m.time += len(v) // the library makes a set of them
	case []any:
		m.time += len(v)
	}
	if s.Always != nil || !ofType(s, v) {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		m.object(s, v, p)
	case []any:
		m.list(s, v, p)
	case string:
		m.text(s, v, price)
	case json.Number:
		if price.numbers > 0 {
			m.time += price.numbers * (stepTime + numberSize(v)/4)
		}
	}
	m.inPlace(s, v, p)
}

// inPlace counts the subschemas that apply to the same value.
func (m *meter) inPlace(s *jsonschema.Schema, v any, p spot) {
	if parts := inPlace(s); len(parts) > 0 {
		p = spot{path: p.path, route: p.route + 12, depth: p.depth + 1, same: append(slices.Clip(p.same), s)}
		for _, part := range parts {
			m.apply(part, v, p)
		}
	}
}

// inPlace lists the subschemas that a schema always applies to the value that it is applied to itself.
func inPlace(s *jsonschema.Schema) []*jsonschema.Schema {
	one := []*jsonschema.Schema{s.Ref, s.RecursiveRef, s.DynamicRef, s.Not, s.If, s.Then, s.Else}
	one = slices.DeleteFunc(one, func(part *jsonschema.Schema) bool { return part == nil })
	return slices.Concat(one, s.AllOf, s.AnyOf, s.OneOf)
}

func (m *meter) object(s *jsonschema.Schema, v map[string]any, p spot) {
	for name, part := range s.Properties {
		if value, ok := v[name]; ok {
			m.apply(part, value, p.at(name, 12+3*len(name)))
		}
	}
	for name, other := range s.Dependencies {
		if part, ok := other.(*jsonschema.Schema); ok && has(v, name) {
			m.inPlace(&jsonschema.Schema{Ref: part}, v, p)
		}
	}
	for name, part := range s.DependentSchemas {
		if has(v, name) {
			m.inPlace(&jsonschema.Schema{Ref: part}, v, p)
		}
	}
	if s.PropertyNames == nil && len(s.PatternProperties) == 0 && s.AdditionalProperties == nil &&
		s.UnevaluatedProperties == nil {
		return
	}
	additional, _ := s.AdditionalProperties.(*jsonschema.Schema)
	for name, value := range v {
		if m.spent() {
			return
		}
		m.apply(s.PropertyNames, name, p.at(name, 14))
		_, known := s.Properties[name]
		for pattern, part := range s.PatternProperties {
			m.time += 2 + len(name)*max(len(pattern.String())/5, m.prices[s].names[pattern]/10)
			if m.spent() {
				return // before it is matched here
			}
			if pattern.MatchString(name) {
				known = true
				m.apply(part, value, p.at(name, 20+3*len(pattern.String())))
			}
		}
		if !known {
			m.time += nameTime
			m.memory += 16 + 4*len(name)
			m.apply(additional, value, p.at(name, 21))
		}
		m.apply(s.UnevaluatedProperties, value, p.at(name, 22))
	}
}

func has(v map[string]any, name string) bool {
	_, ok := v[name]
	return ok
}

func (m *meter) list(s *jsonschema.Schema, v []any, p spot) {
	if s.Extensions[uniqueItems] != nil {
		m.read(v)
	}
	items, _ := s.Items.(*jsonschema.Schema)
	first, _ := s.Items.([]*jsonschema.Schema)
	rest, _ := s.AdditionalItems.(*jsonschema.Schema)
	if items == nil && first == nil && s.PrefixItems == nil && s.Items2020 == nil && s.Contains == nil &&
		s.UnevaluatedItems == nil {
		return
	}
	for i, item := range v {
		if m.spent() {
			return
		}
		here := p.at(strconv.Itoa(i), 18)
		for _, part := range []*jsonschema.Schema{items, nth(first, i, rest), nth(s.PrefixItems, i, s.Items2020), s.Contains,
			s.UnevaluatedItems} {
			m.apply(part, item, here)
		}
	}
}

// nth is the schema of an item: one of the first, or that of the others.
func nth(first []*jsonschema.Schema, i int, rest *jsonschema.Schema) *jsonschema.Schema {
	if i < len(first) {
		return first[i]
	}
	return rest
}

func (m *meter) text(s *jsonschema.Schema, v string, price price) {
	m.time += len(v) / 100
	m.time += len(v) * price.pattern / 10
	switch s.Format {
	case "":
	case "regex": // it is compiled
		m.time += 50 * len(v)
		m.memory += 4 * len(v)
	default:
		m.time += len(v)
		m.memory += 4 * len(v) // the library quotes it
	}
	if s.ContentEncoding != "" || s.ContentMediaType != "" {
		m.time += len(v)
	}
}

// read counts the cost of reading a value once.
func (m *meter) read(v any) {
	m.time += 4
	switch v := v.(type) {
	case string:
		m.time += len(v) / 50
	case json.Number:
		m.time += 2
	case []any:
		for _, item := range v {
			m.read(item)
		}
	case map[string]any:
		for name, value := range v {
			m.time += 4 + len(name)/50
			m.read(value)
		}
	}
}

// numberSize is the number of digits that a number has when it is written out.
func numberSize(n json.Number) int {
	_, power, _ := strings.Cut(strings.ToLower(string(n)), "e")
	exponent, _ := strconv.Atoi(power)
	return len(n) + max(exponent, -exponent)
}

// ofType reports whether a schema's type admits a value: if not, the library looks no further.
func ofType(s *jsonschema.Schema, v any) bool {
	if len(s.Types) == 0 {
		return true
	}
	kind := ""
	switch v.(type) {
	case nil:
		kind = "null"
	case bool:
		kind = "boolean"
	case json.Number:
		return slices.Contains(s.Types, "number") || slices.Contains(s.Types, "integer")
	case string:
		kind = "string"
	case []any:
		kind = "array"
	case map[string]any:
		kind = "object"
	}
	return slices.Contains(s.Types, kind)
}

// prices finds out what each subschema costs that validation can reach. It hands uniqueItems to [unique].
func prices(s *jsonschema.Schema) map[*jsonschema.Schema]price {
	all := map[*jsonschema.Schema]price{}
	var visit func(*jsonschema.Schema)
	visit = func(s *jsonschema.Schema) {
		if _, known := all[s]; known || s == nil {
			return
		}
		all[s] = priceOf(s)
		if s.Extensions[uniqueItems] != nil {
			s.UniqueItems = false
		}
		for _, part := range parts(s) {
			visit(part)
		}
	}
	visit(s)
	return all
}

// parts lists all subschemas that a schema may apply.
func parts(s *jsonschema.Schema) []*jsonschema.Schema {
	all := append(inPlace(s), s.PropertyNames, s.UnevaluatedProperties, s.Items2020, s.Contains, s.UnevaluatedItems,
		s.ContentSchema)
	for _, value := range append(slices.Collect(maps.Values(s.Dependencies)), s.AdditionalProperties, s.AdditionalItems,
		s.Items) {
		switch part := value.(type) {
		case *jsonschema.Schema:
			all = append(all, part)
		case []*jsonschema.Schema:
			all = append(all, part...)
		}
	}
	all = slices.AppendSeq(all, maps.Values(s.Properties))
	all = slices.AppendSeq(all, maps.Values(s.PatternProperties))
	all = slices.AppendSeq(all, maps.Values(s.DependentSchemas))
	return append(all, s.PrefixItems...)
}

func priceOf(s *jsonschema.Schema) price {
	var p price
	count := func(uses ...bool) {
		for _, used := range uses {
			if used {
				p.errors++
			}
		}
	}
	count(s.Always != nil, len(s.Types) > 0, len(s.Constant) > 0, len(s.Enum) > 0, s.Format != "", s.Pattern != nil,
		len(s.Required) > 0,
		s.MinProperties >= 0, s.MaxProperties >= 0, s.MinItems >= 0, s.MaxItems >= 0, s.UniqueItems, s.MinLength >= 0,
		s.MaxLength >= 0,
		s.Contains != nil, s.MaxContains >= 0, s.ContentEncoding != "", s.ContentMediaType != "",
		s.AdditionalProperties == false,
		s.AdditionalItems == false, s.Minimum != nil, s.Maximum != nil, s.ExclusiveMinimum != nil, s.ExclusiveMaximum != nil,
		s.MultipleOf != nil, s.Ref != nil, s.RecursiveRef != nil, s.DynamicRef != nil, s.Not != nil, len(s.AnyOf) > 0,
		len(s.OneOf) > 0,
		s.Then != nil, s.Else != nil)
	p.errors += len(s.AllOf) + len(s.DependentRequired) + len(s.Dependencies)
	for _, names := range s.DependentRequired {
		p.errors += len(names)
	}
	for _, names := range s.Dependencies {
		if names, ok := names.([]string); ok {
			p.errors += len(names)
		}
	}
	if p.errors > 1 || len(s.Properties)+len(s.PatternProperties) > 0 {
		p.errors++ // the library wraps several into one
	}
	values := append(slices.Clone(s.Constant), s.Enum...)
	for _, value := range values {
		p.bytes += len(fmt.Sprint(value)) + 4
		var of meter
		of.read(value)
		p.time += of.time + len(fmt.Sprint(value))/50
		if n, ok := value.(json.Number); ok {
			p.time += stepTime + numberSize(n)/4
		}
	}
	for _, name := range s.Required {
		p.bytes += len(name) + 4
	}
	p.time += nameTime*len(s.Required) + (len(s.Properties)+len(s.Dependencies)+len(s.DependentRequired)+
		len(s.DependentSchemas))/2
	p.bytes += p.errors * len(s.Location)
	for _, limit := range []bool{s.Minimum != nil || s.Maximum != nil || s.ExclusiveMinimum != nil ||
		s.ExclusiveMaximum != nil,
		s.MultipleOf != nil, s.MultipleOf != nil, slices.Contains(s.Types, "integer"), len(values) > 0} {
		if limit {
			p.numbers++
		}
	}
	if s.Pattern != nil {
		p.pattern = instructions(s.Pattern)
		p.bytes += len(s.Pattern.String())
	}
	if len(s.PatternProperties) > 0 {
		p.names = map[*regexp.Regexp]int{}
		for pattern := range s.PatternProperties {
			p.names[pattern] = instructions(pattern)
		}
	}
	return p
}

// instructions is the size of a compiled pattern, which is the cost of a byte at worst.
func instructions(pattern *regexp.Regexp) int {
	parsed, err := syntax.Parse(pattern.String(), syntax.Perl)
	if err != nil {
		return 0
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	return len(program.Inst)
}

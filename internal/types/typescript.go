// Package types writes the contract of a registry in a programming language: a type for the input and the output of
// each tool. In TypeScript it also writes a map from the tools' names to both types, and the receipt. In Python it also
// writes the type of a durable call, with methods that are typed for each tool.
//
// A type expresses only a part of its schema: the kinds of values, the properties and the constants. If the language
// cannot express the schema, the type accepts more values than the schema. A type never rejects a value that the schema
// accepts, except that in Python an integer must be an int: the schema also accepts 1.0. The same registry always gives
// the same text.
package types

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/registry"
)

// receipt has the types that are the same for every registry.
//
//go:embed receipt.ts
var receipt string

// TypeScript returns a TypeScript file with the types of a registry.
func TypeScript(r *registry.Registry) []byte {
	var b, types strings.Builder
	fmt.Fprintf(&b, "// The tools of GEM's registry %s, sha256 %s. Written by `gem types typescript`: change the "+
		"registry instead.\n\n", line(r.Version), r.SHA256())
	names := names{"Tools": true, "ToolName": true}
	for _, found := range exported.FindAllStringSubmatch(receipt, -1) {
		names[found[1]] = true
	}
	b.WriteString("/** The input and the output of each tool. */\nexport type Tools = {\n")
	for _, t := range sorted(r) {
		fmt.Fprintf(&types, "\n// %s\n", t.Name)
		base := pascal(t.FlatName())
		input := (&writer{lang: typescript{&types}, names: names, open: true}).write(base+"Input", t.InputSchema)
		output := (&writer{lang: typescript{&types}, names: names}).write(base+"Output", t.OutputSchema)
		b.WriteString(indent(comment(t.Description)))
		fmt.Fprintf(&b, "  %s: { input: %s; output: %s }\n", quote(t.Name), input, output)
	}
	b.WriteString("}\n\nexport type ToolName = keyof Tools\n")
	b.WriteString(types.String())
	b.WriteString("\n" + receipt)
	return []byte(b.String())
}

var exported = regexp.MustCompile(`(?m)^export type (\w+)`)

// typescript writes types in TypeScript, and adds their declarations to a text.
type typescript struct{ *strings.Builder }

func (typescript) anything() string { return "unknown" }

func (typescript) every(k kind) string {
	return [kinds]string{"string", "number", "number", "boolean", "unknown[]", "{ [key: string]: unknown }", "null"}[k]
}

func (t typescript) constant(c any) string {
	switch c := c.(type) {
	case string:
		return quote(c)
	case json.Number:
		f, err := c.Float64()
		if err != nil || math.Abs(f) > 1<<53 {
			return "" // JavaScript has no number with exactly this value
		}
		return strconv.FormatFloat(f, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(c)
	case []any:
		items := make([]string, len(c))
		for i, item := range c {
			items[i] = cmp.Or(t.constant(item), "number")
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		if len(c) == 0 {
			return "Record<string, never>"
		}
		var fields []string
		for _, name := range slices.Sorted(maps.Keys(c)) {
			fields = append(fields, key(name)+": "+cmp.Or(t.constant(c[name]), "number"))
		}
		return "{ " + strings.Join(fields, "; ") + " }"
	}
	return "null"
}

func (t typescript) list(first [][]option, least int, others []option) string {
	if len(first) == 0 && len(others) > 0 {
		return element(others) + "[]"
	}
	var items []string
	for i, options := range first {
		text := element(options)
		if i >= least {
			text += "?"
		}
		items = append(items, text)
	}
	if len(others) > 0 {
		items = append(items, "..."+element(others)+"[]")
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// element returns the type of a list's elements, with the parentheses that it needs before [] or ?.
func element(options []option) string {
	if len(options) > 1 || len(options) == 1 && options[0].both {
		return "(" + typescript{}.union(options) + ")"
	}
	return typescript{}.union(options)
}

func (t typescript) object(d *dict) option {
	if len(d.fields) == 0 && len(d.others) == 0 {
		return option{text: "Record<string, never>", size: 1}
	}
	var b strings.Builder
	index, optional := slices.Clone(d.others), false
	for _, f := range d.fields {
		mark := ""
		if !f.required {
			mark, optional = "?", true
			if slices.Contains(inherited, f.name) { // even {} has this property
				f.options = []option{{text: "unknown"}}
			}
		}
		b.WriteString(indent(comment(f.doc)) + "  " + key(f.name) + mark + ": " + indented(t.union(f.options)) + "\n")
		index = append(index, f.options...)
	}
	if len(d.others) > 0 {
		if optional {
			index = append(index, option{text: "undefined"})
		}
		if index = distinct(index); wide(index) {
			index = []option{{text: "unknown"}}
		}
		b.WriteString("  [key: string]: " + indented(t.union(index)) + "\n")
	}
	return option{text: "{\n" + b.String() + "}", size: 1}
}

// inherited lists the properties that all objects of JavaScript have.
var inherited = strings.Fields("constructor hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString " +
	"toString valueOf")

// wide reports whether one of the options accepts any value, or the options are too long to be repeated.
func wide(options []option) bool {
	length := 0
	for _, o := range options {
		length += len(o.text)
		if o.text == "unknown" {
			return true
		}
	}
	return len(options) > 1 && length > 400
}

func (typescript) union(options []option) string {
	if len(options) == 0 {
		return "never"
	}
	texts := make([]string, len(options))
	for i, o := range options {
		texts[i] = o.text
	}
	return strings.Join(texts, " | ")
}

// both returns the intersection of p and q, or p if TypeScript would have to expand it into too many types.
func (typescript) both(p, q part) part {
	made := p.size() * q.size()
	if made > most {
		return p
	}
	return part{only: []option{{text: operand(p.only) + " & " + operand(q.only), size: made, both: true}}}
}

// operand returns a union in the form in which it may be one side of an intersection.
func operand(options []option) string {
	return element([]option{{text: typescript{}.union(options), both: len(options) > 1}})
}

func (typescript) named(options []option, _ string) []option { return options }

func (t typescript) declare(name string, options []option, doc string) {
	t.WriteString(comment(doc) + "export type " + name + " = " + t.union(options) + "\n")
}

var plainKey = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// key returns the name of a property, in quotes if it needs them.
func key(name string) string {
	if plainKey.MatchString(name) {
		return name
	}
	return quote(name)
}

// quote returns a text as a literal, with escapes for invisible characters.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case unseen(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// comment returns a description as a comment for the line above a declaration.
func comment(description string) string {
	description = strings.NewReplacer("\r\n", "\n", "\r", "\n", "*/", "*\\/").Replace(strings.TrimSpace(description))
	lines := strings.Split(description, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(line(lines[i]), " ")
	}
	switch {
	case description == "":
		return ""
	case len(lines) == 1:
		return "/** " + lines[0] + " */\n"
	}
	var b strings.Builder
	b.WriteString("/**\n")
	for _, l := range lines {
		b.WriteString(strings.TrimRight(" * "+l, " ") + "\n")
	}
	b.WriteString(" */\n")
	return b.String()
}

// indent returns the lines with indentation.
func indent(lines string) string {
	if lines == "" {
		return ""
	}
	return "  " + strings.TrimSuffix(strings.ReplaceAll(lines, "\n", "\n  "), "  ")
}

// indented returns the lines with indentation, except for the first line.
func indented(lines string) string { return strings.ReplaceAll(lines, "\n", "\n  ") }

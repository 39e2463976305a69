// Package types writes the contract of a registry in a programming language: a type for the input and the output of
// each tool. In TypeScript there are also a map from the tools' names to both, and the receipt; in Python, a call whose
// methods know the tools.
//
// A type says less than its schema: which kinds of values, which properties, which constants. Where the language cannot
// express the schema, the type is wider, so that it never rejects what the schema accepts. The same registry
// always gives the same text.
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

// TypeScript returns the file of types of a registry.
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

// typescript adds types to a text.
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
			return "" // JavaScript has none of exactly that value
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

// element writes the type of a list's elements, as it is written before [] or ?.
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
			if slices.Contains(inherited, f.name) { // even {} has one
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

// inherited are the properties that all objects of JavaScript have.
var inherited = strings.Fields("constructor hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString " +
	"toString valueOf")

// wide reports whether one of the options is any value, or they are many or long, since they stand elsewhere too.
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

// both is p where an intersection would be too much for TypeScript.
func (typescript) both(p, q part) part {
	made := p.size() * q.size()
	if made > most {
		return p
	}
	return part{only: []option{{text: operand(p.only) + " & " + operand(q.only), size: made, both: true}}}
}

// operand writes a union as one side of an intersection.
func operand(options []option) string {
	return element([]option{{text: typescript{}.union(options), both: len(options) > 1}})
}

func (typescript) named(options []option, _ string) []option { return options }

func (t typescript) declare(name string, options []option, doc string) {
	t.WriteString(comment(doc) + "export type " + name + " = " + t.union(options) + "\n")
}

var plainKey = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// key writes the name of a property.
func key(name string) string {
	if plainKey.MatchString(name) {
		return name
	}
	return quote(name)
}

// quote writes a text as a literal, in which whatever is not seen is escaped.
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

// comment writes a description above what it describes.
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

// indent indents lines.
func indent(lines string) string {
	if lines == "" {
		return ""
	}
	return "  " + strings.TrimSuffix(strings.ReplaceAll(lines, "\n", "\n  "), "  ")
}

// indented indents all lines but the first.
func indented(lines string) string { return strings.ReplaceAll(lines, "\n", "\n  ") }

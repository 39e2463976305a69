package types

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// pythonHead is the beginning of each file. Only type checkers read the imports that Python 3.10 lacks.
const pythonHead = `# pyright: reportUnusedImport=false
from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Mapping, NoReturn, Optional, TypeAlias, TypeVar, overload

import gem_handlers
from gem_handlers import Child

if TYPE_CHECKING:
    from typing_extensions import NotRequired, TypedDict  # every type checker includes this module

    T = TypeVar("T")

    class Decision(dict[str, Any], Generic[T]):
        """The decision on a call whose output has the type T."""
else:
    class TypedDict(dict):  # at run time, the values are plain dicts
        def __init_subclass__(cls, **_): pass
`

// pythonMethods lists the methods of a durable call that are typed for each tool. more holds the parameters after the
// input, and result the result. all holds the parameters after the input in the SDK's own method.
var pythonMethods = []struct{ name, more, result, all string }{
	{"def start", "", "Child[%s]", ", **more: Any"},
	{"async def run", "", "%s", ""},
	{"def approve", approveMore, "Child[Decision[%s]]", approveMore},
}

// pythonApproved types the call that people approved.
const pythonApproved = `        @overload
        def start_approved(self, name: str, approval: Child[Decision[T]]) -> Child[T]: ...
        @overload
        def start_approved(self, name: str, approval: Child[dict[str, Any]]) -> Child[Any]: ...
        def start_approved(self, name: str, approval: Child[Any]) -> Child[Any]: ...
`

const approveMore = ", by: list[str], text: str = \"\", owner_too: bool = False, until: Optional[datetime] = None"

// Python returns a Python file with the types of a registry.
func Python(r *registry.Registry) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# The tools of GEM's registry %s, sha256 %s. Written by `gem types python`: change the registry "+
		"instead.\n\n%s", line(r.Version), r.SHA256(), pythonHead)
	names := names{}
	var methods [3]strings.Builder
	for _, t := range sorted(r) { // @overload needs two tools: every registry has wait.answer and wait.approval
		fmt.Fprintf(&b, "\n\n# %s\n", t.Name)
		write := func(side string, text []byte, open bool) string {
			p := &python{&b, names, pascal(t.FlatName()) + side, map[string]string{}}
			return (&writer{lang: p, names: names, open: open}).write(p.base, text)
		}
		input, output := write("Input", t.InputSchema, true), write("Output", t.OutputSchema, false)
		for i, m := range pythonMethods {
			fmt.Fprintf(&methods[i], "        @overload\n        %s(self, name: str, tool: Literal[%q], input: %s%s) -> %s:\n",
				m.name, t.Name, input, m.more, strings.Replace(m.result, "%s", output, 1))
			fmt.Fprintf(&methods[i], "            %s\n", docstring(t.Description))
		}
	}
	b.WriteString("\n\nclass DurableCall(gem_handlers.DurableCall):\n" +
		"    \"\"\"The type of a durable handler's call, with methods that are typed for each tool.\"\"\"\n" +
		"    if TYPE_CHECKING:\n")
	for i, m := range pythonMethods {
		b.WriteString(methods[i].String())
		fmt.Fprintf(&b, "        %s(self, name: str, tool: str, input: Mapping[str, Any]%s) -> %s: ...\n", m.name, m.all,
			strings.Replace(m.result, "%s", "Any", 1))
	}
	b.WriteString(pythonApproved)
	return []byte(b.String())
}

// python writes types in Python, and adds their declarations to a text.
type python struct {
	*strings.Builder
	names names
	base  string            // the first part of the names of all types
	known map[string]string // the names of declared types, by their text
}

func (*python) anything() string { return "Any" }

func (*python) every(k kind) string {
	return [kinds]string{"str", "int", "float", "bool", "list[Any]", "dict[str, Any]", "None"}[k]
}

// constant declares a name for a text that needs escapes, because a type in quotes cannot contain escapes.
func (p *python) constant(c any) string {
	switch c := c.(type) {
	case string:
		text := "Literal[" + strconv.Quote(c) + "]"
		if !strings.ContainsAny(text, `'\`) {
			return text
		}
		if p.known[text] == "" {
			p.known[text] = p.names.take(p.base + "Text")
			p.WriteString("\n\n" + p.known[text] + " = " + text + "\n")
		}
		return p.known[text]
	case json.Number:
		if !strings.ContainsAny(string(c), ".eE") {
			return "Literal[" + string(c) + "]"
		}
	case bool:
		return map[bool]string{true: "Literal[True]", false: "Literal[False]"}[c]
	case nil:
		return "None"
	}
	return ""
}

func (p *python) list(first [][]option, _ int, others []option) string {
	return "list[" + p.union(distinct(append(slices.Concat(first...), others...))) + "]"
}

// union joins all constants into one Literal.
func (*python) union(options []option) string {
	var texts, constants []string
	for _, o := range options {
		constant, ok := strings.CutPrefix(o.text, "Literal[")
		switch {
		case o.text == "Any":
			return "Any"
		case ok:
			constants = append(constants, strings.TrimSuffix(constant, "]"))
		default:
			texts = append(texts, o.text)
		}
	}
	if len(constants) > 0 {
		texts = append([]string{"Literal[" + strings.Join(constants, ", ") + "]"}, texts...)
	}
	if len(texts) == 0 {
		return "NoReturn"
	}
	return strings.Join(texts, " | ")
}

// object returns a type that has no name yet. Its text is the declaration of the class without a name.
func (p *python) object(d *dict) option {
	if len(d.fields) == 0 && len(d.others) > 0 {
		return option{text: "dict[str, " + p.union(d.others) + "]", size: 1, dict: d}
	}
	return option{text: p.class("", d, ""), size: 1, dict: d}
}

// both merges each type of a with each type of b: the result has the fields of both. A field whose types differ has the
// type Any.
func (p *python) both(a, b part) (merged part) {
	for _, x := range a.only {
		for _, y := range b.only {
			if x.dict == nil || y.dict == nil || len(a.only)*len(b.only) > 20 {
				return part{every: true}
			}
			merged.only = append(merged.only, p.object(p.merge(x.dict, y.dict)))
		}
	}
	merged.only = distinct(merged.only)
	return merged
}

func (p *python) merge(a, b *dict) *dict {
	same := func(a, b []option) []option {
		switch s, t := p.union(a), p.union(b); {
		case s == t, t == "Any", s == "NoReturn":
			return a
		case s == "Any", t == "NoReturn":
			return b
		}
		return []option{{text: "Any"}}
	}
	d := &dict{fields: slices.Clone(a.fields), others: same(a.others, b.others)}
	for _, f := range b.fields {
		i := slices.IndexFunc(d.fields, func(g field) bool { return g.name == f.name })
		if i < 0 {
			d.fields = append(d.fields, f)
			continue
		}
		d.fields[i].options = same(d.fields[i].options, f.options)
		d.fields[i].required = d.fields[i].required || f.required
	}
	return d
}

// named declares the classes. Their names contain the names of the properties on the path to the place.
func (p *python) named(options []option, at string) []option {
	name, property := p.base, false
	for _, token := range schema.Tokens(at) {
		if property {
			name += pascal(token)
		}
		property = !property && (token == "properties" || token == "$defs" || token == "definitions")
	}
	return p.classes(options, name)
}

func (p *python) classes(options []option, name string) (named []option) {
	for _, o := range options {
		if isClass(o) {
			if p.known[o.text] == "" {
				p.known[o.text] = p.names.take(name)
				p.WriteString(p.class(p.known[o.text], o.dict, ""))
			}
			o.text = p.known[o.text]
		}
		named = append(named, option{text: o.text, size: 1})
	}
	return named
}

// isClass reports whether a type is a TypedDict, which needs a name.
func isClass(o option) bool { return o.dict != nil && !strings.HasPrefix(o.text, "dict[") }

func (p *python) declare(name string, options []option, doc string) {
	if len(options) == 1 && isClass(options[0]) {
		p.known[options[0].text] = name
		p.WriteString(p.class(name, options[0].dict, doc))
		return
	}
	p.WriteString("\n\n" + name + ": TypeAlias = '" + p.union(p.classes(options, name)) + "'\n")
	if doc != "" {
		p.WriteString(docstring(doc) + "\n")
	}
}

// plainField matches the names that a field of a class may have, unless they are in takenFields. A name that begins
// with a capital letter could hide a type, and Python changes a name that begins with two underscores.
var plainField = regexp.MustCompile(`^(?:[a-z]|_[A-Za-z0-9])[A-Za-z0-9_]*$`)

// takenFields lists the keywords of Python and the types that a field would hide.
var takenFields = strings.Fields("and as assert async await break class continue def del elif else except finally " +
	"for from global if import in is lambda nonlocal not or pass raise return try while with yield " +
	"str int float bool list dict")

// class returns the declaration of a TypedDict. It is a class if the names of all fields allow it, and otherwise a call
// of TypedDict.
func (p *python) class(name string, d *dict, doc string) string {
	extra, plain, others := "", true, slices.Clone(d.others)
	var fields, items strings.Builder
	for _, f := range d.fields {
		if f.name == "" { // a TypedDict cannot have a field with an empty name
			others = append(others, f.options...)
			continue
		}
		t := p.union(f.options)
		if !f.required {
			t = "NotRequired[" + t + "]"
		}
		plain = plain && plainField.MatchString(f.name) && !slices.Contains(takenFields, f.name)
		fmt.Fprintf(&fields, "    %s: %s\n", f.name, t)
		if f.doc != "" {
			fmt.Fprintf(&fields, "    %s\n", docstring(f.doc))
			fmt.Fprintf(&items, "        # %s\n", line(f.doc))
		}
		fmt.Fprintf(&items, "        %s: '%s',\n", strconv.Quote(f.name), t)
	}
	if len(others) > 0 {
		extra = ", extra_items='" + p.union(distinct(others)) + "'"
	}
	if !plain {
		return fmt.Sprintf("\n\nif TYPE_CHECKING:\n    %s = TypedDict(%[1]q, {\n%s    }%s)\nelse:\n    %[1]s = dict\n", name,
			items.String(), extra)
	}
	body := fields.String()
	if doc != "" || body == "" {
		body = "    " + docstring(doc) + "\n" + body
	}
	return fmt.Sprintf("\n\nclass %s(TypedDict%s):\n%s", name, extra, body)
}

// docstring returns a text as a literal, so that no part of the text becomes code. An empty text becomes an ellipsis.
func docstring(text string) string {
	if text == "" {
		return "..."
	}
	return `""` + strconv.Quote(text) + `""`
}

// Package types writes the contract of a registry as TypeScript: a type for the input and the output of each tool, a
// map from the tools' names to both, and the receipt.
//
// A type says less than its schema: which kinds of values, which properties, which constants. Where TypeScript cannot
// express the schema, the type is wider, so that it never rejects what the schema accepts. The same registry
// always gives the same text.
package types

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/registry"
)

// receipt has the types that are the same for every registry.
//
//go:embed receipt.ts
var receipt string

// Of returns the file of types of a registry.
func Of(r *registry.Registry) []byte {
	var b, types strings.Builder
	fmt.Fprintf(&b, "// The tools of GEM's registry %s, sha256 %s. Written by `gem types typescript`: change the "+
		"registry instead.\n\n", line(r.Version), r.SHA256())
	names := newNames()
	tools := r.Tools()
	slices.SortFunc(tools, func(a, b *registry.Tool) int { return strings.Compare(a.Name, b.Name) })
	b.WriteString("/** The input and the output of each tool. */\nexport type Tools = {\n")
	for _, t := range tools {
		fmt.Fprintf(&types, "\n// %s\n", t.Name)
		base := pascal(t.FlatName())
		input := (&writer{types: &types, names: names, open: true}).write(base+"Input", t.InputSchema)
		output := (&writer{types: &types, names: names}).write(base+"Output", t.OutputSchema)
		b.WriteString(indent(comment(t.Description)))
		fmt.Fprintf(&b, "  %s: { input: %s; output: %s }\n", quote(t.Name), input, output)
	}
	b.WriteString("}\n\nexport type ToolName = keyof Tools\n")
	b.WriteString(types.String())
	b.WriteString("\n" + receipt)
	return []byte(b.String())
}

// write adds the type of a schema, and of the schemas that it refers to, and returns its name. The input of a tool is
// always an object.
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
		w.refs[alias{"", all}] = own // for what refers to the whole schema
	}
	w.declare(own, w.values(doc, place{}, false).and(accepted), doc)
	for i := 0; i < len(w.queue); i++ { // the types that it names, and so on
		next := w.queue[i]
		target := w.of(next.at)
		w.declare(w.refs[next], target.part(next.kind), schema.ValueAt(doc, next.at))
	}
	return own
}

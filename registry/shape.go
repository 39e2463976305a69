package registry

import (
	"cmp"
	_ "embed"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

//go:embed registry.schema.json
var fileSchemaText []byte

// fileSchema is registry.schema.json without the grammar of the tools' schemas, each of which is checked by its own draft.
var fileSchema = sync.OnceValue(func() *schema {
	doc := (&decoder{registry: true}).decode(fileSchemaText)
	for _, name := range []string{"input", "schema"} {
		valueAt(doc, "/$defs").(map[string]any)[name] = map[string]any{"type": []any{"object", "boolean"}}
	}
	s := &schema{noun: "the registry", doc: doc}
	if err := s.build(); err != nil {
		panic(err)
	}
	return s
})

// shape checks a registry file against registry.schema.json.
func (p *parser) shape(doc any) {
	s := fileSchema()
	var invalid *jsonschema.ValidationError
	if errors.As(s.compiled.Validate(doc), &invalid) {
		eachLeaf(invalid, func(leaf *jsonschema.ValidationError) {
			s.findings(doc, leaf, func(f finding) { p.add(f.path, s.advice(doc, f)) })
		})
	}
}

// advice says what is wrong with a field of the file, followed by the field's description in registry.schema.json.
func (s *schema) advice(doc any, f finding) string {
	_, name := splitPointer(f.path)
	about, _ := splitPointer(f.at)
	text := s.verdict(doc, f)
	switch f.keyword {
	case "additionalProperties":
		known := slices.Sorted(maps.Keys(s.beside(f.at, "properties")))
		text = "unknown field" + cmp.Or(DidYouMean(name, known),
			": remove it, or begin its name with x- to keep it as a note; known fields are "+strings.Join(known, ", "))
	case "required":
		about = joinPointer(about+"/properties", name)
		text = "is missing"
	case "pattern", "minimum", "maximum":
		text += "; it is " + cut(show(valueAt(doc, f.path)), 40)
	}
	if description, ok := valueAt(s.doc, about+"/description").(string); ok {
		text = strings.Replace(text+". ", "?. ", "? ", 1) + description
	}
	return text
}

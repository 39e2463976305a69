package schema

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/gemworker/gem/internal/oneline"
)

// Form is the required form of one of the program's files: a JSON Schema whose descriptions explain the fields.
type Form struct{ schema *Schema }

// NewForm makes a form from a schema that a test has checked. anySchema names the $defs that represent schemas, which
// are checked separately.
func NewForm(noun string, text []byte, anySchema ...string) *Form {
	doc := (&decoder{file: true}).decode(text)
	for _, name := range anySchema {
		ValueAt(doc, "/$defs").(map[string]any)[name] = map[string]any{"type": []any{"object", "boolean"}}
	}
	return &Form{Checked(noun, doc)}
}

// Read reads a file. It returns its document, nil if that cannot be read, and every problem.
func (f *Form) Read(data []byte) (doc any, problems []Problem) {
	d := decoder{noun: f.schema.noun, file: true}
	doc = d.decode(bytes.TrimPrefix(data, []byte("\ufeff")))
	for _, fault := range d.faults {
		problems = append(problems, Problem{fault.Path, fault.Message})
	}
	if d.stopped {
		return nil, problems
	}
	var invalid *jsonschema.ValidationError
	if errors.As(f.schema.compiled().root.Validate(doc), &invalid) {
		eachLeaf(invalid, func(leaf *jsonschema.ValidationError) {
			f.schema.findings(doc, leaf, func(found finding) {
				problems = append(problems, Problem{found.path, f.schema.advice(doc, found)})
			})
		})
	}
	return doc, problems
}

// Decode reads a JSON text as strictly as a file, in which a key may stand once. noun is what the error calls it.
func Decode(noun string, data []byte) (any, error) {
	d := &decoder{noun: noun, file: true}
	value := d.decode(data)
	if len(d.faults) > 0 {
		return nil, errors.New(d.faults[0].Message)
	}
	return value, nil
}

// advice describes the error in a field of the file, followed by the field's description in registry.schema.json.
func (s *Schema) advice(doc any, f finding) string {
	_, name := splitPointer(f.path)
	about, _ := splitPointer(f.at)
	text := s.verdict(doc, f)
	switch f.keyword {
	case "additionalProperties":
		known := slices.Sorted(maps.Keys(s.sibling(f.at, "properties")))
		remedy := ": remove it"
		if _, notes := s.sibling(f.at, "patternProperties")["^x-"]; notes {
			remedy += ", or begin its name with x- to keep it as a note"
		}
		text = "unknown field" + cmp.Or(DidYouMean(name, known), remedy+"; known fields are "+strings.Join(known, ", "))
	case "required":
		about = JoinPointer(about+"/properties", name)
		text = "is missing"
	case "pattern", "minimum", "maximum":
		if strings.Contains(f.route, "/propertyNames/") {
			text = "its name " + text
		} else {
			text += "; it is " + oneline.Cut(Show(ValueAt(doc, f.path)), 40)
		}
	}
	if description, ok := ValueAt(s.doc, about+"/description").(string); ok {
		text = strings.Replace(text+". ", "?. ", "? ", 1) + description
	}
	return text
}

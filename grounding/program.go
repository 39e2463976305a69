package grounding

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/schema"
)

// Program is the task of an extraction. Its JSON has at most 256 KiB.
type Program struct {
	// Instructions tells the model what to look for, in at most 20,000 characters. It must not be blank.
	Instructions string `json:"instructions"`
	// Classes lists the kinds of items to find: 1 to 50, with unique names.
	Classes []Class `json:"classes"`
	// Examples shows the model the form of an answer. There are at most 20. Their contents are never results.
	Examples []Example `json:"examples,omitempty"`
}

// Class is a kind of item to find.
type Class struct {
	// Name begins with a lower-case letter. Up to 63 lower-case letters, digits and _ may follow.
	Name string `json:"name"`
	// Description tells the model what belongs to the class, in at most 2,000 characters.
	Description string `json:"description,omitempty"`
	// Attributes is the JSON Schema of an object that each item of the class has in addition to its quote. Only part of
	// JSON Schema is allowed: see [Program.Compile]. A class without a schema has no attributes.
	Attributes json.RawMessage `json:"attributes,omitempty"`
	// Verbatim names the attributes whose values must be in the quote.
	Verbatim []string `json:"verbatim,omitempty"`
	// Inferred allows items that the quote implies but does not state. Such items are marked.
	Inferred bool `json:"inferred,omitempty"`
	// Max is the maximum number of items of the class in a shard. 0 means that the class has no limit of its own.
	Max int `json:"max,omitempty"`
}

// Example is a text with the items that should be found in it.
type Example struct {
	Text        string         `json:"text"`
	Extractions []ExpectedItem `json:"extractions"`
}

// ExpectedItem is one item of an example. Its quote is in the example's text.
type ExpectedItem struct {
	Class      string          `json:"class"`
	Quote      string          `json:"quote"`
	Attributes json.RawMessage `json:"attributes,omitempty"`
	Inferred   bool            `json:"inferred,omitempty"`
}

// Fault is why a program is invalid. Pointer is the JSON pointer of the invalid value in the program.
type Fault struct{ Pointer, Message string }

func (f *Fault) Error() string { return f.Pointer + ": " + f.Message }

// Limits of a program.
const (
	maxProgram      = 256 << 10 // bytes of JSON
	maxInstructions = 20_000    // characters
	maxClasses      = 50
	maxDescription  = 2000 // characters
	maxExamples     = 20
)

var className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// CompiledProgram is a valid program that is ready for use. It is safe for concurrent use.
type CompiledProgram struct {
	program Program // in canonical form
	hash    string
	schema  json.RawMessage
	system  string // the fixed part of every prompt
	classes map[string]*compiledClass
}

// compiledClass is a class with its compiled schema.
type compiledClass struct {
	Class                     // with Attributes in canonical form
	document   map[string]any // the schema of the attributes, or nil if the class has none
	attributes *schema.Schema // the same schema, compiled
}

// class returns the class with a name, or nil.
func (c *CompiledProgram) class(name string) *compiledClass { return c.classes[name] }

// Hash returns the SHA-256 of the program's canonical form, in hexadecimal.
func (c *CompiledProgram) Hash() string { return c.hash }

// Schema returns the JSON Schema of an answer. Its keys are in the order in which a model should write them.
func (c *CompiledProgram) Schema() json.RawMessage { return c.schema }

// Compile checks a program and returns it ready for use. The error is a *[Fault] for the first fault. An attribute
// schema may have the keywords type, properties, required, items, enum, const, description and additionalProperties.
// type may be a list of one type and null. additionalProperties must be false. The schema may have at most 5 levels and
// 100 properties. Examples must be correct: their quotes are in their texts, and their attributes fit the schema.
func (p *Program) Compile() (*CompiledProgram, error) {
	c := &CompiledProgram{classes: map[string]*compiledClass{}}
	if fault := c.check(p); fault != nil {
		return nil, fault
	}
	text, err := p.canonical()
	if err != nil {
		return nil, &Fault{"", err.Error()}
	}
	c.hash = sum(text)
	if err := json.Unmarshal(text, &c.program); err != nil {
		return nil, &Fault{"", err.Error()}
	}
	c.schema = c.answerSchema()
	c.system = c.systemPrompt()
	return c, nil
}

// check returns the first fault of the program, or nil. It also compiles the classes.
func (c *CompiledProgram) check(p *Program) *Fault {
	text, err := json.Marshal(p)
	switch {
	case err != nil:
		return &Fault{"", "is no JSON: " + err.Error()}
	case len(text) > maxProgram:
		return &Fault{"", fmt.Sprintf("has %d bytes and may have at most %d", len(text), maxProgram)}
	}
	switch n := utf8.RuneCountInString(p.Instructions); {
	case strings.TrimSpace(p.Instructions) == "":
		return &Fault{"/instructions", "is empty: say what to extract"}
	case n > maxInstructions:
		return tooLong("/instructions", n, maxInstructions)
	}
	if n := len(p.Classes); n == 0 || n > maxClasses {
		return &Fault{"/classes", fmt.Sprintf("has %d classes and must have 1 to %d", n, maxClasses)}
	}
	for i, class := range p.Classes {
		if fault := c.add(class, fmt.Sprintf("/classes/%d", i)); fault != nil {
			return fault
		}
	}
	if n := len(p.Examples); n > maxExamples {
		return &Fault{"/examples", fmt.Sprintf("has %d examples and may have at most %d", n, maxExamples)}
	}
	for i, example := range p.Examples {
		for j, e := range example.Extractions {
			if fault := c.checkExpected(example.Text, e, fmt.Sprintf("/examples/%d/extractions/%d", i, j)); fault != nil {
				return fault
			}
		}
	}
	return nil
}

// add compiles a class and returns its first fault, or nil. at is the JSON pointer of the class.
func (c *CompiledProgram) add(class Class, at string) *Fault {
	switch n := utf8.RuneCountInString(class.Description); {
	case !className.MatchString(class.Name):
		return &Fault{at + "/name", "must begin with a small letter, and go on with at most 63 small letters, digits and _"}
	case c.classes[class.Name] != nil:
		return &Fault{at + "/name", fmt.Sprintf("there are two classes of the name %s", class.Name)}
	case n > maxDescription:
		return tooLong(at+"/description", n, maxDescription)
	case class.Max < 0:
		return &Fault{at + "/max", "must be at least 1, or left out for no bound"}
	}
	compiled := &compiledClass{Class: class}
	var properties map[string]any
	if class.Attributes != nil {
		doc, s, fault := compileAttributes(class.Attributes, at+"/attributes")
		if fault != nil {
			return fault
		}
		compiled.Attributes, compiled.document, compiled.attributes = schema.Canonical(doc), doc, s
		properties = schema.As[map[string]any](doc["properties"])
	}
	for i, name := range class.Verbatim {
		property := schema.As[map[string]any](properties[name])
		here := fmt.Sprintf("%s/verbatim/%d", at, i)
		switch {
		case property == nil:
			return &Fault{here, fmt.Sprintf("%s is not an attribute of the class%s", schema.Show(name),
				schema.DidYouMean(name, slices.Sorted(maps.Keys(properties))))}
		case slices.Contains(types(property), "object"):
			return &Fault{here, fmt.Sprintf("%s is an object, and a quote cannot contain it: name attributes that are strings "+
				"or numbers", schema.Show(name))}
		}
	}
	c.classes[class.Name] = compiled
	return nil
}

// checkExpected returns the first fault of an expected item, or nil. text is the text of the example.
func (c *CompiledProgram) checkExpected(text string, e ExpectedItem, at string) *Fault {
	class := c.class(e.Class)
	switch {
	case class == nil:
		names := slices.Sorted(maps.Keys(c.classes))
		return &Fault{at + "/class", fmt.Sprintf("%s is not a class of the program%s", schema.Show(e.Class),
			schema.DidYouMean(e.Class, names))}
	case e.Quote == "" || !strings.Contains(text, e.Quote):
		return &Fault{at + "/quote", "is not in the example's text: copy it from there"}
	case e.Inferred && !class.Inferred:
		return &Fault{at + "/inferred", "the class does not allow inferred items"}
	case class.attributes == nil && e.Attributes != nil:
		return &Fault{at + "/attributes", "the class has no attributes"}
	case class.attributes == nil:
		return nil
	}
	attributes := e.Attributes
	if attributes == nil {
		attributes = json.RawMessage("{}")
	}
	if faults, _ := class.attributes.Check(attributes, true); len(faults) > 0 {
		return &Fault{at + "/attributes" + faults[0].Path, faults[0].Message}
	}
	var values map[string]any
	_ = json.Unmarshal(attributes, &values) // Check has validated the JSON
	for _, name := range class.Verbatim {
		if value, ok := values[name].(string); ok && !strings.Contains(e.Quote, value) {
			return &Fault{schema.JoinPointer(at+"/attributes", name),
				"is not in the quote, and the class requires that: copy it from the quote"}
		}
	}
	return nil
}

func tooLong(pointer string, n, most int) *Fault {
	return &Fault{pointer, fmt.Sprintf("has %d characters and may have at most %d", n, most)}
}

package extract

import (
	"encoding/json"

	"github.com/gemworker/gem/internal/schema"
)

// Program says what to extract. Its JSON is at most 256 KiB.
type Program struct {
	// Instructions tell the model what to look for, in at most 20,000 characters.
	Instructions string `json:"instructions"`
	// Classes are the kinds of things to find, 1 to 50 with different names.
	Classes []Class `json:"classes"`
	// Examples show the model the form of an answer, at most 20. What they hold is never a result.
	Examples []Example `json:"examples,omitempty"`
}

// Class is a kind of thing to find.
type Class struct {
	// Name begins with a small letter, then small letters, digits and _, at most 64.
	Name string `json:"name"`
	// Description tells the model what belongs to the class, in at most 2,000 characters.
	Description string `json:"description,omitempty"`
	// Attributes is the JSON Schema of an object that each item of the class has beside its quote. Only a part of JSON Schema is allowed, see [Program.Compile].
	// A class without one has no attributes.
	Attributes json.RawMessage `json:"attributes,omitempty"`
	// Verbatim names attributes whose values must stand in the quote.
	Verbatim []string `json:"verbatim,omitempty"`
	// Inferred allows items that the quote implies and does not say. They are marked.
	Inferred bool `json:"inferred,omitempty"`
	// Max is how many items of the class a shard may have. 0 is no bound of its own.
	Max int `json:"max,omitempty"`
}

// Example is a text with what should be found in it.
type Example struct {
	Text        string     `json:"text"`
	Extractions []Expected `json:"extractions"`
}

// Expected is one find of an example. The quote stands in the example's text.
type Expected struct {
	Class      string          `json:"class"`
	Quote      string          `json:"quote"`
	Attributes json.RawMessage `json:"attributes,omitempty"`
	Inferred   bool            `json:"inferred,omitempty"`
}

// Fault is why a program cannot be used. Pointer is the JSON pointer of the value in the program.
type Fault struct{ Pointer, Message string }

func (f *Fault) Error() string { return f.Pointer + ": " + f.Message }

// Compiled is a program that can be used, by many goroutines.
type Compiled struct {
	program Program
	hash    string
	schema  json.RawMessage
	prefix  string // of every prompt
	classes map[string]*compiledClass
}

// compiledClass is a class with its schema.
type compiledClass struct {
	Class
	attributes *schema.Schema // nil for a class without attributes
}

// class returns the class of a name, or nil.
func (c *Compiled) class(name string) *compiledClass { return c.classes[name] }

// Hash is the sha256 of the program's canonical form, in hexadecimal.
func (c *Compiled) Hash() string { return c.hash }

// Schema is the JSON Schema of an answer.
func (c *Compiled) Schema() json.RawMessage { return c.schema }

// Compile checks a program. The error is a *[Fault]: the first, in the order of the program.
func (p *Program) Compile() (*Compiled, error) {
	c := &Compiled{program: *p, classes: map[string]*compiledClass{}}
	for _, class := range p.Classes {
		c.classes[class.Name] = &compiledClass{Class: class}
	}
	return c, nil
}

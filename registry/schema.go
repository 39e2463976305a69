package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// schema is a compiled JSON Schema, with the document that it was made from, which the messages of faults quote.
type schema struct {
	noun     string // what faults call the document: the input, the output
	object   bool   // whether a document must be an object whatever the schema says
	doc      any
	compiled *jsonschema.Schema
	prices   map[*jsonschema.Schema]price
	budget   *budget // nil for a schema without dynamic references
}

// compile returns every problem in the schema, for one place the clearest first, and makes it ready if there is none.
func (s *schema) compile() []problem {
	problems, dynamic := lint(s.doc)
	if dynamic {
		s.budget = &budget{}
	}
	err := s.build()
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
	case errors.As(err, &invalid):
		eachLeaf(invalid, func(leaf *jsonschema.ValidationError) {
			problems = append(problems, problem{libraryPointer(leaf.InstanceLocation), cut(leaf.Message, 200)})
		})
	case len(problems) == 0:
		problems = append(problems, problem{"", "the schema does not compile: " + cut(strings.ReplaceAll(err.Error(), schemaURL, ""), 200)})
	}
	return problems
}

// build compiles the schema from nothing but itself: no file, no network, no other schema.
func (s *schema) build() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the library panicked: %v", r)
		}
	}()
	c := jsonschema.NewCompiler()
	c.Draft = jsonschema.Draft2020
	c.AssertFormat = true
	c.LoadURL = func(string) (io.ReadCloser, error) {
		return nil, errors.New("a reference leads out of the schema")
	}
	c.RegisterExtension(uniqueItems, nil, unique{})
	if s.budget != nil {
		c.RegisterExtension("steps", nil, s.budget)
	}
	if err := c.AddResource(schemaURL, bytes.NewReader(canonical(s.doc))); err != nil {
		return err
	}
	if s.compiled, err = c.Compile(schemaURL); err == nil {
		s.prices = prices(s.compiled)
	}
	return err
}

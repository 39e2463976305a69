// Package schema checks documents of strangers against JSON Schemas: it says every fault with its place, in bounded time and memory, and looks a
// schema over before it is used. It also reads the program's own files, such as the registry, and says all that is wrong with one.
package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// Schema is a compiled JSON Schema, with the document that it was made from, which the messages of faults quote.
type Schema struct {
	Object   bool   // a document must be an object whatever the schema says
	noun     string // what faults call the document: the input, the output
	doc      any
	compiled *jsonschema.Schema
	prices   map[*jsonschema.Schema]price
	budget   *budget // nil for a schema without dynamic references
}

// New compiles a schema, of documents that faults call by a noun. It returns every problem in it, for one place the clearest first; if there is any,
// the schema must not be used.
func New(noun string, doc any) (*Schema, []Problem) {
	s := &Schema{noun: noun, doc: doc}
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
			problems = append(problems, Problem{PlainPointer(leaf.InstanceLocation), Cut(leaf.Message, 200)})
		})
	case len(problems) == 0:
		problems = append(problems, Problem{"", "the schema does not compile: " + Cut(strings.ReplaceAll(err.Error(), schemaURL, ""), 200)})
	}
	return s, problems
}

// build compiles the schema from nothing but itself: no file, no network, no other schema.
func (s *Schema) build() (err error) {
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
	if err := c.AddResource(schemaURL, bytes.NewReader(Canonical(s.doc))); err != nil {
		return err
	}
	if s.compiled, err = c.Compile(schemaURL); err == nil {
		s.prices = prices(s.compiled)
	}
	return err
}

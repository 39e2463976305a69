// Package schema checks documents of strangers against JSON Schemas: it says every fault with its place, in bounded
// time and memory, and looks a schema over before it is used. It also reads the program's own files, such as the
// registry, and says all that is wrong with one.
package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/gemworker/gem/internal/oneline"
)

// Schema is a compiled JSON Schema, with the document that it was made from, which the messages of faults quote.
type Schema struct {
	Object   bool   // a document must be an object whatever the schema says
	noun     string // what faults call the document: the input, the output
	doc      any
	compiled func() *validator
}

// validator checks documents.
type validator struct {
	root   *jsonschema.Schema
	prices map[*jsonschema.Schema]price
	budget *budget // nil for a schema without dynamic references
}

// New compiles a schema, of documents that faults call by a noun. It returns every problem in it, for one place the
// clearest first; if there is any, the schema must not be used.
func New(noun string, doc any) (*Schema, []Problem) {
	c, problems := compile(doc)
	return &Schema{noun: noun, doc: doc, compiled: func() *validator { return c }}, problems
}

// Checked returns a schema in which New found no problem when the program was tested. It is compiled when it is first
// used.
func Checked(noun string, doc any) *Schema {
	return &Schema{noun: noun, doc: doc, compiled: sync.OnceValue(func() *validator {
		c, problems := compile(doc)
		if len(problems) > 0 {
			panic(fmt.Sprintf("a schema of the program is invalid: %s: %s", problems[0].Pointer, problems[0].Text))
		}
		return c
	})}
}

func compile(doc any) (*validator, []Problem) {
	c := &validator{}
	problems, dynamic := lint(doc)
	if dynamic {
		c.budget = &budget{}
	}
	err := c.build(doc)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
	case errors.As(err, &invalid):
		eachLeaf(invalid, func(leaf *jsonschema.ValidationError) {
			problems = append(problems, Problem{PlainPointer(leaf.InstanceLocation), oneline.Cut(leaf.Message, 200)})
		})
	case len(problems) == 0:
		problems = append(problems, Problem{"", "the schema does not compile: " +
			oneline.Cut(strings.ReplaceAll(err.Error(), schemaURL, ""), 200)})
	}
	return c, problems
}

// build compiles the schema from nothing but itself: no file, no network, no other schema.
func (s *validator) build(doc any) (err error) {
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
	if err := c.AddResource(schemaURL, bytes.NewReader(Canonical(doc))); err != nil {
		return err
	}
	if s.root, err = c.Compile(schemaURL); err == nil {
		s.prices = prices(s.root)
	}
	return err
}

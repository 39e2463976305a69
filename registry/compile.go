package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// schema is a compiled JSON Schema, with the document that it was made from, which the messages of faults quote.
type schema struct {
	noun     string // what faults call the document: the input, the output
	object   bool   // whether a document must be an object whatever the schema says
	doc      any
	compiled *jsonschema.Schema
	budget   *budget // nil for a schema without references
}

// compile returns the schema, or every fault in it. doc must have come from the decoder without a fault: the library
// panics on some numbers.
func compile(noun string, doc any) (_ *schema, faults []schemaFault) {
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, []schemaFault{{"", "it is " + kindOf(doc) + " and must be a JSON Schema, an object: {} accepts everything"}}
	}
	faults, refs := lint(doc)
	if slices.ContainsFunc(faults, func(f schemaFault) bool { return f.pointer == "/$schema" }) {
		return nil, faults
	}
	s := &schema{noun: noun, doc: doc}
	if refs {
		s.budget = &budget{}
	}
	var err error
	s.compiled, err = compileAlone(doc, s.budget)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
	case errors.As(err, &invalid):
		faults = append(faults, grammar(invalid, faults)...)
	case len(faults) == 0:
		faults = append(faults, schemaFault{"", "the schema does not compile: " + cut(strings.ReplaceAll(err.Error(), schemaURL, ""), 200)})
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return s, nil
}

// compileAlone compiles the schema with nothing else in reach: no file, no network, no other schema.
func compileAlone(doc any, b *budget) (_ *jsonschema.Schema, err error) {
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
	if b != nil {
		b.limit(c)
	}
	if err := c.AddResource(schemaURL, bytes.NewReader(canonical(doc))); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// grammar turns what the library found in a schema's keywords into faults, one for each place that has none yet.
func grammar(err *jsonschema.ValidationError, known []schemaFault) []schemaFault {
	var faults []schemaFault
	for _, leaf := range leaves(err) {
		at := libraryPointer(leaf.InstanceLocation)
		if slices.ContainsFunc(known, func(f schemaFault) bool { return f.pointer == at }) {
			continue
		}
		problem := cut(leaf.Message, 200)
		i := slices.IndexFunc(faults, func(f schemaFault) bool { return f.pointer == at })
		switch {
		case i < 0:
			faults = append(faults, schemaFault{at, problem})
		case !strings.Contains(faults[i].problem, problem):
			faults[i].problem += "; or " + problem
		}
	}
	slices.SortFunc(faults, func(a, b schemaFault) int { return comparePointers(a.pointer, b.pointer) })
	return faults
}

package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// Fault is one thing that is wrong with an input or an output. Receipts carry faults under these names.
type Fault struct {
	// Path is the JSON pointer of the value, "" for the whole document. Of a missing property it is the pointer that
	// the property would have. A path of more than 500 characters is cut.
	Path string `json:"path"`
	// Keyword is the word of the schema that refuses the value, or for what no schema states one of json (the document is
	// not one JSON value), size, depth, number, nul and unicode; schema when the check itself failed, and more for the
	// last of too many faults.
	Keyword string `json:"keyword"`
	// Message is a sentence for a person, of at most 300 characters. It quotes the schema and never the value.
	Message string `json:"message"`
}

const (
	maxFaults  = 100 // of one document; one more says how many were left out
	maxMessage = 300 // characters
	maxPath    = 500 // characters

	keywordSchema = "schema"
	keywordMore   = "more"
)

// newFault bounds a fault, and makes sure that the database can hold it: the keys on its path come from the document.
func newFault(path, keyword, message string) Fault {
	return Fault{Path: cut(clean(path), maxPath), Keyword: keyword, Message: cut(clean(message), maxMessage)}
}

func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// withMore ends a list of faults with how many it lacks.
func withMore(faults []Fault, more int) []Fault {
	switch more {
	case 0:
		return faults
	case 1:
		return append(faults, newFault("", keywordMore, "1 more fault was left out"))
	}
	return append(faults, newFault("", keywordMore, fmt.Sprintf("%d more faults were left out", more)))
}

// cut shortens a text to at most n characters, and marks that it did.
func cut(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	for i := range s {
		if n--; n == 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// ValidateInput checks an input against the tool's input_schema. It returns every fault, ordered by path, and none when
// the input is right. An input is always an object, whatever the schema says.
//
// It is made for hostile input: it neither panics nor changes anything, and its faults are bounded in number and length.
func (t *Tool) ValidateInput(raw json.RawMessage) []Fault { return t.input.validate(raw) }

// ValidateOutput checks an output against the tool's output_schema, as [Tool.ValidateInput] does. An output that passes
// can be stored as jsonb.
func (t *Tool) ValidateOutput(raw json.RawMessage) []Fault { return t.output.validate(raw) }

// large admits one large document at a time: the faults of one can take a hundred times its size, and a worker that
// checks ten at once must not run out of memory.
var large = make(chan struct{}, 1)

const largeBytes = 64 << 10

func (s *schema) validate(raw []byte) []Fault {
	if len(raw) > largeBytes {
		large <- struct{}{}
		defer func() { <-large }()
	}
	doc, levels, faults := decodeDocument(s.noun, raw)
	if len(faults) > 0 {
		return faults
	}
	if _, ok := doc.(map[string]any); s.object && !ok {
		return []Fault{newFault("", "type", fmt.Sprintf("%s must be an object and is %s", s.noun, kindOf(doc)))}
	}
	return s.check(doc, levels)
}

func (s *schema) check(doc any, levels int) (faults []Fault) {
	if s.budget != nil {
		s.budget.Lock()
		defer s.budget.Unlock()
		s.budget.left = stepsFor(levels)
	}
	defer func() {
		switch recover().(type) {
		case nil:
		case spent:
			faults = []Fault{newFault("", keywordSize, s.noun+" is nested so that checking it would take too long: nest it less, or send less")}
		default:
			// Nothing is known that gets here. What the library panicked with may quote the document, so it is not passed on.
			faults = []Fault{newFault("", keywordSchema, s.noun+" could not be checked: the JSON Schema library failed on it")}
		}
	}()
	err := s.compiled.Validate(doc)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return s.explain(doc, invalid)
	default:
		return []Fault{newFault("", keywordSchema, s.noun+" could not be checked: the tool's schema refers to itself without end")}
	}
}

// leaves returns the errors that are the reason of all others. What merely wraps them (a $ref, a branch of anyOf) is left
// out, and so is what is no fault by itself: the items that contains passed over.
func leaves(err *jsonschema.ValidationError) []*jsonschema.ValidationError {
	var found []*jsonschema.ValidationError
	var collect func(*jsonschema.ValidationError)
	collect = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 || lastKeyword(e.KeywordLocation) == "minContains" {
			found = append(found, e)
			return
		}
		for _, cause := range e.Causes {
			collect(cause)
		}
	}
	collect(err)
	return found
}

// explain turns the library's errors into faults, in an order that does not depend on that of a Go map.
func (s *schema) explain(doc any, err *jsonschema.ValidationError) []Fault {
	var found first
	for _, leaf := range leaves(err) {
		for _, f := range s.findings(doc, leaf) {
			found.add(f)
		}
	}
	var faults []Fault
	for i, f := range found.sorted {
		if len(faults) == maxFaults {
			return withMore(faults, found.more+len(found.sorted)-i)
		}
		fault := newFault(f.path, f.keyword, s.message(doc, f))
		if !slices.Contains(faults, fault) {
			faults = append(faults, fault)
		}
	}
	return withMore(faults, found.more)
}

// first keeps the first findings of a document and counts the others, of which there may be hundreds of thousands.
type first struct {
	sorted []finding
	more   int
}

func (l *first) add(f finding) {
	// Some of those kept may come out as the same fault, so they are more than will be shown.
	const keep = 2 * maxFaults
	if len(l.sorted) == keep {
		l.more++
		if f.compare(l.sorted[keep-1]) >= 0 {
			return
		}
		l.sorted = l.sorted[:keep-1]
	}
	i, _ := slices.BinarySearchFunc(l.sorted, f, finding.compare)
	l.sorted = slices.Insert(l.sorted, i, f)
}

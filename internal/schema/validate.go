package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/receipts"
	"github.com/santhosh-tekuri/jsonschema/v5"
)

const (
	maxFaults  = 50  // of one document; one more says how many were left out
	maxMessage = 300 // characters
	maxPath    = 500 // characters
)

// newFault bounds a fault and makes sure that the database can store its path, whose keys come from the document.
func newFault(path, keyword, message string) receipts.Fault {
	path = strings.ReplaceAll(strings.ToValidUTF8(path, "\ufffd"), "\x00", "\ufffd")
	return receipts.Fault{Path: oneline.Cut(path, maxPath), Keyword: keyword, Message: oneline.Cut(message, maxMessage)}
}

// bounded returns the first faults. If there are others, one more fault tells how many: those of the list, and more.
func bounded(faults []receipts.Fault, more int) []receipts.Fault {
	shown := min(len(faults), maxFaults)
	if more += len(faults) - shown; more > 0 {
		faults = append(faults[:shown], newFault("", "more", fmt.Sprintf("more faults were left out: %d", more)))
	}
	return faults
}

// lightSize is how many bytes a document may have that need not be checked alone.
const lightSize = 64 << 10

// Check checks a document: it returns every fault, ordered by path, or nil. It is safe for hostile documents and for
// use by many goroutines. If alone is false it checks only what costs little: some hundredths of a second, and some 10
// MiB; left says that it left the document unchecked.
func (s *Schema) Check(raw []byte, alone bool) (faults []receipts.Fault, left bool) {
	defer func() {
		if recover() != nil {
			// No document is known that gets here. The panic's value may quote the document, so it is not passed on.
			faults = []receipts.Fault{newFault("", "schema",
				s.noun+" could not be checked: the JSON Schema library failed on it")}
			left = false
		}
	}()
	if !alone && len(raw) > lightSize {
		return nil, true
	}
	d := decoder{noun: s.noun}
	doc := d.decode(raw)
	if len(d.faults) > 0 {
		return bounded(d.faults, 0), false
	}
	if _, ok := doc.(map[string]any); s.Object && !ok {
		return []receipts.Fault{newFault("", "type",
			fmt.Sprintf("%s must be an object but is %s", s.noun, kindOf(doc)))}, false
	}
	cost := meter{prices: s.compiled().prices, light: !alone}
	cost.apply(s.compiled().root, doc, spot{})
	switch {
	case cost.spent() && !alone:
		return nil, true
	case cost.spent():
		return s.tooExpensive(), false
	}
	return s.decide(doc, d.deepest, alone)
}

func (s *Schema) tooExpensive() []receipts.Fault {
	return []receipts.Fault{newFault("", "size",
		s.noun+" is too expensive to check against the schema of its tool: send less, or nest it less")}
}

// validate lets the library decide, within the steps that a document of so many levels may take.
func (s *Schema) validate(doc any, levels int, alone bool) error {
	if budget := s.compiled().budget; budget != nil {
		budget.Lock()
		defer budget.Unlock()
		budget.left = stepsFor(levels)
		if !alone {
			budget.left /= lightShare
		}
	}
	return s.compiled().root.Validate(doc)
}

func (s *Schema) decide(doc any, levels int, alone bool) (faults []receipts.Fault, left bool) {
	err := s.validate(doc, levels, alone)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil, false
	case errors.As(err, &invalid):
		return s.explain(doc, invalid), false
	case errors.Is(err, budgetSpent) && !alone:
		return nil, true
	case errors.Is(err, budgetSpent):
		return s.tooExpensive(), false
	default:
		return []receipts.Fault{newFault("", "schema",
			s.noun+" could not be checked: the tool's schema refers to itself without end")}, false
	}
}

// explain turns the library's errors into faults, in an order that does not depend on that of a Go map. There may be
// hundreds of thousands; the first are kept, and more than are shown, since some of them may come out as the same
// fault.
func (s *Schema) explain(doc any, err *jsonschema.ValidationError) []receipts.Fault {
	const keep = 2 * maxFaults
	var found []finding
	total := 0
	eachLeaf(err, func(leaf *jsonschema.ValidationError) {
		// A finding is at its leaf, or below.
		if len(found) == keep && ComparePointers(PlainPointer(leaf.InstanceLocation), found[keep-1].path) > 0 {
			total++
			return
		}
		s.findings(doc, leaf, func(f finding) {
			total++
			if len(found) == keep && f.compare(found[keep-1]) >= 0 {
				return
			}
			i, _ := slices.BinarySearchFunc(found, f, finding.compare)
			found = slices.Insert(found, i, f)
			found = found[:min(len(found), keep)]
		})
	})
	var faults []receipts.Fault
	for _, f := range found {
		fault := newFault(f.path, f.keyword, s.message(doc, f))
		if !slices.Contains(faults, fault) {
			faults = append(faults, fault)
		}
	}
	return bounded(faults, total-len(found))
}

package schema

import (
	"errors"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// Document is a JSON text that was read once, and is asked of many schemas.
type Document struct {
	value  any
	levels int
}

// Read reads a text that was checked before, such as an input that fits its tool's schema, or that the program wrote
// itself. It is as strict as [Decode], and numbers become canonical.
func Read(noun string, data []byte) (Document, error) {
	d := &decoder{noun: noun, file: true}
	value := d.decode(data)
	if len(d.faults) > 0 {
		return Document{}, errors.New(d.faults[0].Message)
	}
	return Document{value, d.deepest}, nil
}

// DocumentOf is the document of a value of few levels.
func DocumentOf(value any) Document { return Document{value, 1} }

// Value is what the document holds.
func (d Document) Value() any { return d.value }

// Field returns what an object has under a name, and whether it has it.
func (d Document) Field(name string) (Document, bool) {
	v, ok := As[map[string]any](d.value)[name]
	return Document{v, d.levels}, ok
}

// heavy lets the process check one expensive document at a time.
var heavy sync.Mutex

// Fits reports whether a document fits the schema. It is not decided if that is too expensive, or the library fails on
// it.
func (s *Schema) Fits(d Document) (fits, decided bool) {
	defer func() {
		if recover() != nil {
			fits, decided = false, false
		}
	}()
	fits, decided = s.fits(d, false)
	if !decided {
		heavy.Lock()
		defer heavy.Unlock()
		fits, decided = s.fits(d, true)
	}
	return fits, decided
}

// fits decides, if alone is false, only what costs little.
func (s *Schema) fits(d Document, alone bool) (fits, decided bool) {
	cost := meter{prices: s.compiled().prices, light: !alone}
	if cost.apply(s.compiled().root, d.value, spot{}); cost.spent() {
		return false, false
	}
	err := s.validate(d.value, d.levels, alone)
	var invalid *jsonschema.ValidationError
	return err == nil, err == nil || errors.As(err, &invalid)
}

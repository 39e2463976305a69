package registry

import (
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// stepsFor says how many subschemas one validation may apply to values, when the schema has references and the document
// so many levels. Without references the cost is at most that of the schema times that of the document. With them it can
// double with every level: a filter whose alternatives "and" and "or" both hold filters needs 2ⁿ steps n levels down.
//
// The price of a step grows with the square of the levels, since the library writes the way down into every error, also
// into those of an alternative that is not the right one. So the number falls as that price rises: a list of 100,000
// small objects may be checked, a chain of 200 levels too, and the worst takes a second or two.
func stepsFor(levels int) int { return max(2000, 2_000_000/(1+levels*levels/10)) }

// budget counts the steps of a validation. The library hands nothing of one validation to its extensions, so a schema
// with references checks one document at a time.
type budget struct {
	sync.Mutex
	left int
}

// spent is what the budget panics with, since nothing else ends a validation early.
type spent struct{}

// limit makes the compiler count the steps of what it compiles.
func (b *budget) limit(c *jsonschema.Compiler) { c.RegisterExtension("steps", nil, b) }

// Compile is called for every subschema.
func (b *budget) Compile(jsonschema.CompilerContext, map[string]any) (jsonschema.ExtSchema, error) {
	return b, nil
}

// Validate is called for every subschema that is applied to a value.
func (b *budget) Validate(jsonschema.ValidationContext, any) error {
	if b.left--; b.left < 0 {
		panic(spent{})
	}
	return nil
}

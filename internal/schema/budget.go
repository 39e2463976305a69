package schema

import (
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// stepsFor returns how often one validation may apply a subschema to a value. The schema has $dynamicRef or
// $recursiveRef, whose cost cannot be counted in advance, and the document has the given number of levels.
//
// The cost of a step grows with the square of the levels: the library writes the whole path into every error, even for
// alternatives that do not apply. So the limit falls as that cost rises. A list of 100,000 small objects passes, and so
// does a chain of 200 levels. The worst document takes a second or two.
func stepsFor(levels int) int { return max(2000, 2_000_000/(1+levels*levels/10)) }

// budget is an extension of a schema that counts the steps of a validation. The library passes nothing of one
// validation to its extensions, so a schema with such references checks one document at a time.
type budget struct {
	sync.Mutex
	left int
}

// budgetSpent is the panic that the library turns into an error of the validation; nothing else ends one early.
const budgetSpent = jsonschema.InfiniteLoopError("the budget is spent")

// Compile is called for every subschema.
func (b *budget) Compile(jsonschema.CompilerContext, map[string]any) (jsonschema.ExtSchema, error) {
	return b, nil
}

// Validate is called for every subschema that is applied to a value.
func (b *budget) Validate(jsonschema.ValidationContext, any) error {
	if b.left--; b.left < 0 {
		panic(budgetSpent)
	}
	return nil
}

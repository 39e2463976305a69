package schema

import (
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// stepsFor says how many subschemas one validation may apply to values, for a schema with $dynamicRef or $recursiveRef,
// whose cost cannot be counted beforehand, and a document of so many levels.
//
// The cost of a step grows with the square of the levels, since the library writes the whole path into every error,
// also into those of alternatives that do not apply. So the number falls as that cost rises: a list of 100,000 small
// objects may be checked, a chain of 200 levels too, and the worst takes a second or two.
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

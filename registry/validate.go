package registry

import (
	"encoding/json"

	"github.com/gemworker/gem/internal/schema"
)

// Fault is one thing that is wrong with an input or an output. Receipts contain faults in this form.
type Fault = schema.Fault

// ValidateInput checks an input against the tool's input_schema. It returns every fault, ordered by path, or nil for a
// valid input. An input must be an object, whatever the schema says.
//
// It is safe for hostile input and for use by many goroutines: it does not panic, and returns at most 51 faults. What it could
// cost is counted first: an input that could take more than a few seconds, or 256 MiB, gets one fault with the keyword size.
// Use [Tool.CheckInput] to check many inputs at once in little memory.
func (t *Tool) ValidateInput(raw json.RawMessage) []Fault {
	faults, _ := t.CheckInput(raw, true)
	return faults
}

// ValidateOutput checks an output against the tool's output_schema, as [Tool.ValidateInput] does, except that an output may
// be any value. A valid output can be stored as jsonb.
func (t *Tool) ValidateOutput(raw json.RawMessage) []Fault {
	faults, _ := t.CheckOutput(raw, true)
	return faults
}

// CheckInput does what [Tool.ValidateInput] does, but if alone is false it checks only what costs little: some hundredths of a
// second, and some 10 MiB. It reports whether it left the input unchecked because that could cost more. The caller then waits
// until no other such check runs, and comes again with alone.
func (t *Tool) CheckInput(raw json.RawMessage, alone bool) (faults []Fault, left bool) {
	return t.input.Check(raw, alone)
}

// CheckOutput is to [Tool.ValidateOutput] what [Tool.CheckInput] is to [Tool.ValidateInput].
func (t *Tool) CheckOutput(raw json.RawMessage, alone bool) (faults []Fault, left bool) {
	return t.output.Check(raw, alone)
}

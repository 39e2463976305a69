package registry

import (
	"encoding/json"

	"github.com/gemworker/gem/receipts"
)

// ValidateInput checks an input against the tool's input_schema. It returns every fault, sorted by path, or nil for a
// valid input. An input must be an object, whatever the schema allows.
//
// It is safe for hostile input and for use by many goroutines: it does not panic, and returns at most 51 faults. It
// estimates the cost first: an input that could take more than a few seconds, or 256 MiB, gets one fault with the
// keyword size. Use [Tool.CheckInput] to check many inputs at once in little memory.
func (t *Tool) ValidateInput(raw json.RawMessage) []receipts.Fault {
	faults, _ := t.CheckInput(raw, true)
	return faults
}

// ValidateOutput checks an output against the tool's output_schema, like [Tool.ValidateInput], except that an output
// may be any value. A valid output can be stored as jsonb.
func (t *Tool) ValidateOutput(raw json.RawMessage) []receipts.Fault {
	faults, _ := t.CheckOutput(raw, true)
	return faults
}

// CheckInput is [Tool.ValidateInput] with a limit on cost. If alone is false, it checks only inputs that cost little:
// some hundredths of a second, and some 10 MiB. If left is true, it did not check the input, because the check could
// cost more. Call it again with alone when no other such check runs.
func (t *Tool) CheckInput(raw json.RawMessage, alone bool) (faults []receipts.Fault, left bool) {
	return t.input.Check(raw, alone)
}

// CheckOutput is [Tool.ValidateOutput] with the limit of [Tool.CheckInput].
func (t *Tool) CheckOutput(raw json.RawMessage, alone bool) (faults []receipts.Fault, left bool) {
	return t.output.Check(raw, alone)
}

package registry

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// Digest names a call of the tool by its contents: the sha256, in hexadecimal digits, of the canonical JSON of {tool, input, entry}, where entry
// is the tool's entry in the registry. An approval is bound to it. It is the same for every way to write the input. The error says why the
// input has none: it is no JSON, has a key twice, or a number that is too large.
func (t *Tool) Digest(input json.RawMessage) (string, error) {
	d := &decoder{noun: "the input", registry: true}
	value := d.decode(input)
	if len(d.faults) > 0 {
		return "", errors.New(d.faults[0].Message)
	}
	return fmt.Sprintf("%x", sha256.Sum256(canonical(map[string]any{"tool": t.Name, "input": value, "entry": t.entry}))), nil
}

package registry

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/gemworker/gem/internal/schema"
)

// Digest names a call of the tool by its contents: the sha256, in hexadecimal digits, of the canonical JSON of {tool, input, entry}, where entry
// is the tool's entry in the registry. An approval is bound to it. It is the same for every way to write the input. The error says why the
// input has none: it is no JSON, has a key twice, or a number that is too large.
func (t *Tool) Digest(input json.RawMessage) (string, error) {
	value, err := schema.Decode("the input", input)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(schema.Canonical(map[string]any{"tool": t.Name, "input": value, "entry": t.entry}))), nil
}

package registry

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/schema"
)

// words are the fields of an entry that inform people and models, and do not change the tool's behaviour.
var words = []string{"description", "hints", "receipt_fields"}

// Does returns the parts of the tool's entry that determine its behaviour, without texts and notes. An approval is
// bound to them.
func (t *Tool) Does() map[string]any {
	entry := maps.Clone(t.entry)
	maps.DeleteFunc(entry, func(field string, _ any) bool {
		return slices.Contains(words, field) || strings.HasPrefix(field, "x-")
	})
	return entry
}

// Digest returns a hash of a call's contents: the sha256, in hexadecimal digits, of the canonical JSON of {tool, input,
// entry}, where entry is [Tool.Does]. An approval is bound to it. All notations of an input have the same digest. It
// returns an error if the input is not JSON, has a key twice, or has a number that is too large.
func (t *Tool) Digest(input json.RawMessage) (string, error) {
	value, err := schema.Decode("the input", input)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(schema.Canonical(
		map[string]any{"tool": t.Name, "input": value, "entry": t.Does()}))), nil
}

package value

import (
	"bytes"
	"encoding/json"
)

// Size returns the size of a value as JSON with a final newline, in bytes, in the form of receipts: < takes one byte
// instead of six. It returns 0 for a value that JSON cannot represent.
func Size(v any) int {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return b.Len()
}

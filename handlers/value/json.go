package value

import (
	"bytes"
	"encoding/json"
)

// Size is how many bytes a value takes as JSON with the end of its line, as receipts have it: a < takes one byte, and not six. A value that JSON cannot
// hold takes none.
func Size(v any) int {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return b.Len()
}

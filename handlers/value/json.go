package value

import (
	"encoding/json"

	"github.com/gemworker/gem/receipts"
)

// Size returns the size of a value on a receipt, in bytes of JSON: see [receipts.PrintedSize]. It returns 0 for a value
// that JSON cannot represent.
func Size(v any) int {
	encoded, _ := json.Marshal(v)
	return receipts.PrintedSize(encoded)
}

// Package plainjson writes JSON outside of HTML pages.
package plainjson

import (
	"bytes"
	"encoding/json"
)

// Encode writes a value as JSON, without the escapes that only HTML needs.
func Encode(value any) (json.RawMessage, error) {
	var encoded bytes.Buffer
	enc := json.NewEncoder(&encoded)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(encoded.Bytes()), nil
}

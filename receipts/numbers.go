package receipts

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
)

// WithoutZeros returns a valid JSON document without the zeros at the end of fractions: 1.0 becomes 1, and 2.50 becomes
// 2.5. It does not change numbers with exponents, which Postgres never prints.
func WithoutZeros(document json.RawMessage) json.RawMessage {
	if bytes.IndexByte(document, '.') < 0 {
		return document
	}
	without := make(json.RawMessage, 0, len(document))
	scan(document, func(token []byte) bool {
		if c := token[0]; (c == '-' || c >= '0' && c <= '9') && bytes.IndexByte(token, '.') >= 0 &&
			!bytes.ContainsAny(token, "eE") {
			token = bytes.TrimSuffix(bytes.TrimRight(token, "0"), []byte("."))
			if string(token) == "-0" {
				token = token[1:]
			}
		}
		if without = append(without, token...); token[0] == ',' || token[0] == ':' {
			without = append(without, ' ') // as Postgres prints them
		}
		return true
	})
	return without
}

// Decode decodes a document into the value that into points to, like [json.Unmarshal]. A Go integer may also be written
// with a fraction of zeros, as in 1.0, because such a number is an integer for JSON Schema.
func Decode(document json.RawMessage, into any) error {
	err := json.Unmarshal(document, into)
	if mismatch := (*json.UnmarshalTypeError)(nil); !errors.As(err, &mismatch) {
		return err
	}
	without := WithoutZeros(document)
	if bytes.Equal(without, document) {
		return err
	}
	reflect.ValueOf(into).Elem().SetZero()
	return json.Unmarshal(without, into)
}

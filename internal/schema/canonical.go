package schema

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strings"
)

// Canonical writes a value of a file in the one form that all ways of formatting it share: keys sorted, no white
// space, each string written in one way. The decoder has done the same for its numbers.
func Canonical(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // which takes every value of the decoder
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// canonicalNumber writes 1.50 as 1.5, and 1e3 as 1000. The exponent is within [maxDigits], and so is the result.
func canonicalNumber(n json.Number) json.Number {
	if !strings.ContainsAny(string(n), ".eE") && n != "-0" {
		return n
	}
	r, _ := new(big.Rat).SetString(string(n)) // which reads every number of JSON
	decimals, _ := r.FloatPrec()
	return json.Number(r.FloatString(decimals))
}

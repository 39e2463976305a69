package receipts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// The limits of a JSON document that a receipt or a journal stores, in addition to those of its size. Postgres stores
// 1e131071 in a few bytes and prints it in 131,072, and a float64 ends at 1.8e308.
const (
	MaxLevels = 200 // of objects and lists
	MaxDigits = 400 // of a number, and its largest exponent
)

// NumberFits reports whether a number in JSON is within the limits of a document.
func NumberFits(number string) bool {
	mantissa, power, scientific := strings.Cut(strings.ToLower(number), "e")
	digits := len(mantissa) - strings.Count(mantissa, "-") - strings.Count(mantissa, ".")
	exponent, err := strconv.Atoi(power)
	if scientific && err != nil || digits > MaxDigits || max(exponent, -exponent) > MaxDigits {
		return false
	}
	if digits+exponent > 308 {
		_, err = strconv.ParseFloat(number, 64)
		return err == nil
	}
	return true
}

// Excess returns the limit that a valid JSON document exceeds, or "".
func Excess(document json.RawMessage) string {
	levels, quoted := 0, false
	for at := 0; at < len(document); at++ {
		switch c := document[at]; {
		case quoted && c == '\\':
			at++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			if levels++; levels > MaxLevels {
				return fmt.Sprintf("more than %d levels of objects and lists", MaxLevels)
			}
		case c == '}', c == ']':
			levels--
		case c == '-', c >= '0' && c <= '9':
			length := len(document[at:]) - len(bytes.TrimLeft(document[at:], "+-.0123456789eE"))
			if !NumberFits(string(document[at : at+length])) {
				return fmt.Sprintf("a number of more than %d digits, or beyond 1.7976931348623157e308", MaxDigits)
			}
			at += length - 1
		}
	}
	return ""
}

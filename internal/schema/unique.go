package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"hash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// unique is an extension that decides uniqueItems instead of the library, which compares items pair by pair where they
// have the same hash: it is easy to write many that have. This one reads each item once.
type unique struct{}

// uniqueItems is the name of the extension.
const uniqueItems = "uniqueItems"

// Compile is called for every subschema.
func (unique) Compile(_ jsonschema.CompilerContext, schema map[string]any) (jsonschema.ExtSchema, error) {
	if schema[uniqueItems] == true {
		return unique{}, nil
	}
	return nil, nil
}

// Validate is called for every value that a subschema with uniqueItems is applied to.
func (unique) Validate(ctx jsonschema.ValidationContext, v any) error {
	seen := map[[sha256.Size]byte]bool{}
	for _, item := range As[[]any](v) {
		h := sha256.New()
		writeTo(h, item)
		sum := [sha256.Size]byte(h.Sum(nil))
		if seen[sum] {
			return ctx.Error(uniqueItems, "two items are equal")
		}
		seen[sum] = true
	}
	return nil
}

// writeTo writes a value so that equal values, and no others, give the same bytes: 1, 1.0 and 10e-1 are equal.
func writeTo(h hash.Hash, v any) {
	begin := func(kind byte, size int) {
		_, _ = h.Write(binary.AppendUvarint([]byte{kind}, uint64(size)))
	}
	text := func(kind byte, s string) {
		begin(kind, len(s))
		_, _ = h.Write([]byte(s))
	}
	switch v := v.(type) {
	case nil:
		begin('n', 0)
	case bool:
		text('b', strconv.FormatBool(v))
	case json.Number:
		text('d', plainNumber(string(v)))
	case string:
		text('s', v)
	case []any:
		begin('l', len(v))
		for _, item := range v {
			writeTo(h, item)
		}
	case map[string]any:
		begin('o', len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			text('s', name)
			writeTo(h, v[name])
		}
	}
}

// plainNumber writes a number as its digits, without zeros at either end, and an exponent.
func plainNumber(n string) string {
	mantissa, power, _ := strings.Cut(strings.ToLower(n), "e")
	exponent, _ := strconv.Atoi(power) // within [maxDigits]
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, decimals, _ := strings.Cut(mantissa, ".")
	digits := bytes.TrimLeft([]byte(whole+decimals), "0")
	exponent -= len(decimals)
	significant := bytes.TrimRight(digits, "0")
	exponent += len(digits) - len(significant)
	if len(significant) == 0 {
		return "0"
	}
	sign := ""
	if negative {
		sign = "-"
	}
	return sign + string(significant) + "e" + strconv.Itoa(exponent)
}

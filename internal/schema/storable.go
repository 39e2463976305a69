package schema

import (
	"unicode/utf8"

	"github.com/gemworker/gem/receipts"
)

// Storable reports whether Postgres can store a valid JSON document in an output that repeats it, and the output can
// still be checked. parts is the number of such documents in the output, at least 1: they share the limit equally.
func Storable(document []byte, parts int) bool {
	if !utf8.Valid(document) {
		return false
	}
	d := decoder{}
	d.decode(document)
	return len(d.faults) == 0 && d.deepest <= receipts.MaxLevels-50 && d.work <= maxWork/4/parts
}

package schema

import (
	"unicode/utf8"

	"github.com/gemworker/gem/receipts"
)

// Storable reports whether a valid JSON document may be part of an output that has the same document twice, next to
// parts others of its size: whether Postgres can store it, and the output can be checked and read.
func Storable(document []byte, parts int) bool {
	if !utf8.Valid(document) {
		return false
	}
	d := decoder{}
	d.decode(document)
	return len(d.faults) == 0 && d.deepest <= receipts.MaxLevels-50 && d.work <= maxWork/4/max(parts, 1)
}

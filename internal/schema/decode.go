package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/receipts"
)

// Limits of a document. Outside them the JSON Schema library would panic or need minutes or all memory.
const (
	maxDocumentBytes = 1 << 20  // of an input or an output
	maxFileBytes     = 16 << 20 // of a file
	maxDepth         = receipts.MaxLevels
	maxDigits        = receipts.MaxDigits

	// maxWork bounds the cost of a validation. The library builds the path of every value and keeps it with every fault,
	// so that a long key above many values costs their product. See [decoder.count].
	maxWork = 64 << 20
)

// decoder builds the value of a JSON text and reports what the library or Postgres could not take. A value that is
// refused does not end the reading, so that all such values are reported.
type decoder struct {
	noun string // what faults call the document
	// file: the document is one of the program's own files, in which a duplicate key is a fault, and whose numbers become
	// canonical.
	file bool

	data    []byte // whose syntax encoding/json has checked
	pos     int
	path    []byte // JSON pointer of the value that is being read
	deepest int    // level reached
	work    int
	faults  []receipts.Fault
	stopped bool // nothing after this can be read
}

// decode returns the value of the document. Use it for an input or an output only without faults. The last of
// two equal keys wins, as in jsonb. A file can be checked further unless the decoder stopped: refused numbers are 1.
func (d *decoder) decode(data []byte) any {
	limit := maxDocumentBytes
	if d.file {
		limit = maxFileBytes
	}
	switch {
	case len(data) > limit:
		d.stop("size", "%s has %d bytes and may have at most %d", d.noun, len(data), limit)
		return nil
	case !json.Valid(data):
		d.syntax(data)
		return nil
	}
	if len(data) > maxDocumentBytes/64 && !d.file { // numbers such as 1e308 grow by less than that
		if size := receipts.PrintedSize(data); size > 2*limit {
			d.stop("size", "%s has %d bytes with its numbers written out, and may have at most %d", d.noun, size, 2*limit)
			return nil
		}
	}
	d.data = data
	return d.value(0)
}

// add records a fault of the value that is being read.
func (d *decoder) add(keyword, format string, args ...any) {
	if !d.stopped {
		d.faults = append(d.faults, newFault(string(d.path), keyword, fmt.Sprintf(format, args...)))
	}
}

// stop records a fault of the whole document and ends the reading.
func (d *decoder) stop(keyword, format string, args ...any) {
	d.path = d.path[:0]
	d.add(keyword, format, args...)
	d.stopped = true
}

// syntax reports why the document is not JSON, and where.
func (d *decoder) syntax(data []byte) {
	e := &json.SyntaxError{}
	_ = errors.As(json.Unmarshal(data, new(any)), &e)
	if strings.HasSuffix(e.Error(), "exceeded max depth") {
		d.count(maxDepth + 1)
	}
	before := data[:max(0, e.Offset-1)]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	d.stop("json", "%s is not valid JSON: line %d, column %d: %v", d.noun, line, column, e)
}

// count adds the cost of checking a value: the path that is built for it, in which each byte of a key may take three,
// and the memory for a fault in it, for which the library writes the path through the schema again at each level.
func (d *decoder) count(depth int) {
	d.deepest = max(d.deepest, depth)
	d.work += 128 + 32*depth + depth*depth + 3*len(d.path)
	if depth > maxDepth {
		d.stop("depth", "%s is nested more than %d levels deep", d.noun, maxDepth)
	}
	if d.work > maxWork && !d.file {
		d.stop("size", "%s has too many values under too long keys to be checked: send less, or split it into several calls",
			d.noun)
	}
}

// next goes to the next value in an object or a list, or after its end, and reports whether there is a value.
func (d *decoder) next(closing byte) bool {
	d.skip()
	if d.stopped || d.data[d.pos] == closing {
		d.pos++
		return false
	}
	return true
}

// skip passes over white space and the signs between values.
func (d *decoder) skip() {
	for d.pos < len(d.data) && strings.IndexByte(" \t\r\n,:", d.data[d.pos]) >= 0 {
		d.pos++
	}
}

func (d *decoder) value(depth int) any {
	d.count(depth)
	d.skip()
	switch d.data[d.pos] {
	case '{':
		return d.object(depth)
	case '[':
		return d.list(depth)
	case '"':
		return d.text("")
	}
	from := d.pos
	for d.pos < len(d.data) && strings.IndexByte(" \t\r\n,]}", d.data[d.pos]) < 0 {
		d.pos++
	}
	switch word := string(d.data[from:d.pos]); word {
	case "null":
		return nil
	case "true", "false":
		return word == "true"
	default:
		return d.number(json.Number(word))
	}
}

func (d *decoder) object(depth int) any {
	object := make(map[string]any)
	for d.pos++; d.next('}'); {
		key := d.text("a key of ")
		if _, twice := object[key]; twice && d.file {
			d.faults = append(d.faults, newFault(JoinPointer(string(d.path), key), "duplicate",
				"the key appears twice in one object, and one of its values would be lost: remove or rename one"))
		}
		object[key] = d.under(key, depth)
	}
	return object
}

func (d *decoder) list(depth int) any {
	list := []any{}
	for d.pos++; d.next(']'); {
		list = append(list, d.under(strconv.Itoa(len(list)), depth))
	}
	return list
}

// under returns the value under a key or an index.
func (d *decoder) under(token string, depth int) any {
	above := len(d.path)
	d.path = append(append(d.path, '/'), pointerEscape.Replace(token)...)
	v := d.value(depth + 1)
	d.path = d.path[:above]
	return v
}

func (d *decoder) number(n json.Number) any {
	mantissa, power, _ := strings.Cut(strings.ToLower(string(n)), "e")
	digits := len(mantissa) - strings.Count(mantissa, "-") - strings.Count(mantissa, ".")
	exponent, _ := strconv.Atoi(power) // at the limits of int where it is out of range
	most := maxDigits
	if d.file && power == "" {
		most += maxDigits // the canonical form of a number that has an exponent
	}
	const limits = "a number may have at most %d digits and an exponent between -%[1]d and %[1]d"
	switch {
	case !d.file && !receipts.NumberFits(string(n)):
		d.add("number", limits+", and be at most 1.7976931348623157e308, positive or negative", maxDigits)
		return json.Number("1")
	case d.file && (digits > most || exponent > maxDigits || exponent < -maxDigits):
		d.add("number", limits, maxDigits)
		return json.Number("1")
	}
	d.work += 4 * (digits + max(exponent, -exponent))
	if d.file {
		return canonicalNumber(n)
	}
	return n
}

// text reads a string. part is what it is of the value that faults name: nothing for a value, "a key of " for a key.
func (d *decoder) text(part string) string {
	from, escaped := d.pos, false
	for d.pos++; d.data[d.pos] != '"'; d.pos++ {
		if d.data[d.pos] == '\\' {
			escaped = true
			d.pos++
		}
	}
	d.pos++
	literal := d.data[from:d.pos]
	s := string(literal[1 : len(literal)-1])
	if escaped {
		_ = json.Unmarshal(literal, &s) // which is valid
	}
	if strings.Contains(s, "\x00") {
		d.add("nul", "%sthis value contains the character NUL (\\u0000), which the database cannot store: remove it", part)
	}
	if !utf8.Valid(literal) || escaped && halfPair(literal) {
		d.add("unicode", "%sthis value is not valid Unicode text, which the database cannot store: send UTF-8 and whole "+
			"surrogate pairs", part)
	}
	return s
}

var (
	surrogate    = regexp.MustCompile(`\\u[dD][89a-fA-F]`)
	wholeEscapes = regexp.MustCompile(`\\[^u]|\\u[dD][89abAB]..\\u[dD][c-fC-F]..`)
)

// halfPair reports whether a string literal has half of a surrogate pair, for which encoding/json puts U+FFFD.
func halfPair(literal []byte) bool {
	return surrogate.Match(literal) && surrogate.Match(wholeEscapes.ReplaceAll(literal, []byte(".")))
}

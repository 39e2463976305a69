package registry

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// What a document may be. The JSON Schema library would panic on some numbers, and would spend minutes or all memory on
// others of these; Postgres refuses the rest when the document is stored. So they are refused before either sees them.
const (
	maxDocumentBytes = 1 << 20  // of an input or an output
	maxRegistryBytes = 16 << 20 // of a registry file
	maxDepth         = 200      // objects and lists inside each other
	maxDigits        = 400      // of a number, and the largest exponent; a float64 ends at 308

	// maxWork bounds what a validation may cost. The library builds the path of every value, and keeps it with every
	// fault: a long key above many values costs their product. See [decoder.count].
	maxWork = 64 << 20
)

// Keywords of the faults that no schema states.
const (
	keywordJSON      = "json"      // not one JSON value
	keywordSize      = "size"      // too large, or too costly to check
	keywordDepth     = "depth"     // nested too deeply
	keywordNumber    = "number"    // a number out of all proportion
	keywordNUL       = "nul"       // U+0000, which jsonb and text can not hold
	keywordUnicode   = "unicode"   // no valid UTF-8, or half of a surrogate pair, which jsonb refuses
	keywordDuplicate = "duplicate" // a key that appears twice in one object of a registry file
)

// decoder reads one JSON value in one pass, as encoding/json with UseNumber would, and refuses poison on the way.
// A document of which only a value is poisoned is read to its end, so that all such values are reported.
type decoder struct {
	noun  string // what faults call the document
	data  []byte
	pos   int
	path  []step
	bytes int // of the path, as the library writes it
	work  int

	deepest int // level reached

	// registry: the document is a registry file, which may be larger, and in which a duplicate key is a fault.
	registry bool

	faults []Fault
	more   int // faults that were only counted
}

// step is one step of the path from the document's top to a value: a key, or an index where index ≥ 0.
type step struct {
	key   string
	index int
}

// stopped is what the decoder panics with when there is no use in reading on. It never leaves this file.
type stopped struct{}

// decodeDocument reads an input or an output, and says how many levels it has. The value is to be used only when there
// are no faults.
func decodeDocument(noun string, data []byte) (v any, levels int, faults []Fault) {
	d := decoder{noun: noun, data: data}
	v = d.document(maxDocumentBytes)
	return v, d.deepest, withMore(d.faults, d.more)
}

// decodeRegistry reads a registry file. Unless a fault says that it is no JSON (or too deep), the value is whole: the
// other faults are poison inside it.
func decodeRegistry(data []byte) (v any, faults []Fault, whole bool) {
	d := decoder{noun: "the registry", data: data, registry: true}
	v = d.document(maxRegistryBytes)
	for _, f := range d.faults {
		switch f.Keyword {
		case keywordJSON, keywordDepth, keywordSize:
			return nil, d.faults, false
		}
	}
	return v, d.faults, true
}

func (d *decoder) document(limit int) (v any) {
	if len(d.data) > limit {
		d.add(keywordSize, "%s has %d bytes and may have at most %d", d.noun, len(d.data), limit)
		return nil
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case stopped:
			v = nil
		default:
			panic(r)
		}
	}()
	d.space()
	v = d.value(0)
	d.space()
	if d.pos < len(d.data) {
		d.syntax("there is more after the end of the value")
	}
	return v
}

// add records a fault at the value that is being read.
func (d *decoder) add(keyword, format string, args ...any) {
	if len(d.faults) == maxFaults && !d.registry {
		d.more++
		return
	}
	d.faults = append(d.faults, newFault(pointer(d.path), keyword, fmt.Sprintf(format, args...)))
}

// syntax reports that the document is no JSON, and where. Nothing after that point can be read.
func (d *decoder) syntax(problem string) {
	before := d.data[:min(d.pos, len(d.data))]
	line := 1 + strings.Count(string(before), "\n")
	column := 1 + utf8.RuneCount(before[strings.LastIndexByte(string(before), '\n')+1:])
	if d.pos >= len(d.data) {
		problem = "it ends in the middle of a value"
		if len(strings.TrimSpace(string(d.data))) == 0 {
			problem = "it is empty"
		}
	}
	d.path = nil
	d.add(keywordJSON, "%s is not valid JSON: line %d, column %d: %s", d.noun, line, column, problem)
	panic(stopped{})
}

// count adds up what checking a value costs: the path that is built for it, and what is kept for a fault in it, of which
// the library writes the way through the schema anew at each level.
func (d *decoder) count(depth int) {
	d.deepest = max(d.deepest, depth)
	d.work += 128 + 32*depth + depth*depth + d.bytes
	if d.work > maxWork && !d.registry {
		d.path = nil
		d.add(keywordSize, "%s holds too many values under too long keys to be checked: send less, or in several calls", d.noun)
		panic(stopped{})
	}
}

func (d *decoder) enter(depth int) {
	d.pos++
	if depth >= maxDepth {
		d.path = nil
		d.add(keywordDepth, "%s is nested more than %d levels deep", d.noun, maxDepth)
		panic(stopped{})
	}
}

func (d *decoder) push(s step, bytes int) {
	d.path = append(d.path, s)
	d.bytes += bytes
}

func (d *decoder) pop(bytes int) {
	d.path = d.path[:len(d.path)-1]
	d.bytes -= bytes
}

func (d *decoder) space() {
	for d.pos < len(d.data) {
		switch d.data[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, or 0 at the end, which no JSON token begins with.
func (d *decoder) peek() byte {
	if d.pos < len(d.data) {
		return d.data[d.pos]
	}
	return 0
}

func (d *decoder) value(depth int) any {
	d.count(depth)
	switch c := d.peek(); {
	case c == '"':
		return d.string("")
	case c == '{':
		return d.object(depth)
	case c == '[':
		return d.array(depth)
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	case d.literal("true"):
		return true
	case d.literal("false"):
		return false
	case d.literal("null"):
		return nil
	}
	d.syntax("there is no value here: a value is an object, a list, a string, a number, true, false or null")
	return nil
}

func (d *decoder) literal(word string) bool {
	if len(d.data)-d.pos < len(word) || string(d.data[d.pos:d.pos+len(word)]) != word {
		return false
	}
	d.pos += len(word)
	return true
}

func (d *decoder) object(depth int) any {
	d.enter(depth)
	object := make(map[string]any)
	d.space()
	if d.peek() == '}' {
		d.pos++
		return object
	}
	for {
		if d.peek() != '"' {
			d.syntax(`a key in double quotes is missing`)
		}
		key := d.string("a key of ")
		d.space()
		if d.peek() != ':' {
			d.syntax("a colon is missing after the key")
		}
		d.pos++
		d.space()

		// In the library's paths each byte of a key may take three.
		bytes := 3*len(key) + 1
		d.push(step{key: key, index: -1}, bytes)
		if d.registry {
			if _, twice := object[key]; twice {
				d.add(keywordDuplicate, "the key appears twice in one object, so that one of the two would be lost: remove or rename one")
			}
		}
		object[key] = d.value(depth + 1)
		d.pop(bytes)

		d.space()
		switch d.peek() {
		case ',':
			d.pos++
			d.space()
		case '}':
			d.pos++
			return object
		default:
			d.syntax("a comma or } is missing")
		}
	}
}

func (d *decoder) array(depth int) any {
	d.enter(depth)
	list := []any{}
	d.space()
	if d.peek() == ']' {
		d.pos++
		return list
	}
	for {
		d.push(step{index: len(list)}, 8)
		list = append(list, d.value(depth+1))
		d.pop(8)

		d.space()
		switch d.peek() {
		case ',':
			d.pos++
			d.space()
		case ']':
			d.pos++
			return list
		default:
			d.syntax("a comma or ] is missing")
		}
	}
}

func (d *decoder) digits() int {
	from := d.pos
	for d.peek() >= '0' && d.peek() <= '9' {
		d.pos++
	}
	if d.pos == from {
		d.syntax("a digit is missing")
	}
	return d.pos - from
}

func (d *decoder) number() any {
	from := d.pos
	if d.peek() == '-' {
		d.pos++
	}
	digits := 1
	if d.peek() == '0' {
		d.pos++
	} else {
		digits = d.digits()
	}
	if d.peek() == '.' {
		d.pos++
		digits += d.digits()
	}
	exponent := 0
	if c := d.peek(); c == 'e' || c == 'E' {
		d.pos++
		if c := d.peek(); c == '+' || c == '-' {
			d.pos++
		}
		first := d.pos
		d.digits()
		var err error
		if exponent, err = strconv.Atoi(string(d.data[first:d.pos])); err != nil {
			exponent = maxDigits + 1
		}
	}
	if digits > maxDigits || exponent > maxDigits {
		d.add(keywordNumber, "a number may have at most %d digits and an exponent between -%[1]d and %[1]d", maxDigits)
	} else {
		d.work += 4 * (digits + exponent)
	}
	return json.Number(d.data[from:d.pos])
}

// string reads a string. what says what it is, for a fault: nothing for a value, "a key of " for a key.
func (d *decoder) string(what string) string {
	d.pos++
	from := d.pos
	ascii := true
	for d.pos < len(d.data) {
		switch c := d.data[d.pos]; {
		case c == '"':
			s := string(d.data[from:d.pos])
			d.pos++
			if !ascii && !utf8.ValidString(s) {
				d.unicode(what)
			}
			return s
		case c == '\\':
			return d.escaped(what, from)
		case c < ' ':
			d.syntax("a string holds a control character, which must be written as an escape such as \\n")
		case c >= utf8.RuneSelf:
			ascii = false
		}
		d.pos++
	}
	d.syntax("")
	return ""
}

func (d *decoder) unicode(what string) {
	d.add(keywordUnicode, "%sthis value is no valid Unicode text, which the database can not hold: send UTF-8 and whole surrogate pairs", what)
}

// escaped reads the rest of a string that has an escape at pos.
func (d *decoder) escaped(what string, from int) string {
	s := append(make([]byte, 0, d.pos-from+32), d.data[from:d.pos]...)
	nul, broken := false, false
	for d.pos < len(d.data) {
		c := d.data[d.pos]
		if c != '\\' {
			if c < ' ' {
				d.syntax("a string holds a control character, which must be written as an escape such as \\n")
			}
			d.pos++
			if c != '"' {
				s = append(s, c)
				continue
			}
			if nul {
				d.add(keywordNUL, "%sthis value holds the character NUL (\\u0000), which the database can not hold: remove it", what)
			}
			if broken || !utf8.Valid(s) {
				d.unicode(what)
			}
			return string(s)
		}
		d.pos++
		escape := d.peek()
		if i := strings.IndexByte(`"\/bfnrt`, escape); i >= 0 && escape != 0 {
			s = append(s, "\"\\/\b\f\n\r\t"[i])
			d.pos++
			continue
		}
		if escape != 'u' {
			d.syntax("a string holds a backslash that begins no escape: write \\\\ for a backslash")
		}
		r := d.hex()
		if utf16.IsSurrogate(r) {
			pair := rune(utf8.RuneError)
			if d.pos+1 < len(d.data) && d.data[d.pos] == '\\' && d.data[d.pos+1] == 'u' {
				back := d.pos
				d.pos++
				if pair = utf16.DecodeRune(r, d.hex()); pair == utf8.RuneError {
					d.pos = back
				}
			}
			broken = broken || pair == utf8.RuneError
			r = pair
		}
		nul = nul || r == 0
		s = utf8.AppendRune(s, r)
	}
	d.syntax("")
	return ""
}

// hex reads the u and four digits of an escape.
func (d *decoder) hex() rune {
	d.pos++
	if d.pos+4 <= len(d.data) {
		if r, err := strconv.ParseUint(string(d.data[d.pos:d.pos+4]), 16, 16); err == nil {
			d.pos += 4
			return rune(r)
		}
	}
	d.pos = min(d.pos, len(d.data))
	d.syntax("a string holds \\u without four hexadecimal digits")
	return 0
}

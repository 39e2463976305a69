package receipts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The limits of a JSON document that a receipt or a journal stores, in addition to those of its size. A float64 ends at
// 1.8e308.
const (
	MaxLevels = 200 // of objects and lists
	MaxDigits = 400 // of a number that is written out, and its largest exponent
)

// written returns the number of digits of a number that is written out, as Postgres prints it, before and after the
// point: 0 before it for a number below 1. It returns false if the exponent is beyond the limits of a document.
func written(number string) (before, after int, ok bool) {
	number = strings.TrimPrefix(number, "-")
	mantissa, power := number, ""
	if e := strings.IndexAny(number, "eE"); e >= 0 {
		mantissa, power = number[:e], number[e+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exponent := 0
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil || max(exponent, -exponent) > MaxDigits {
			return 0, 0, false
		}
	}
	after = max(0, len(fraction)-exponent)
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return 0, after, true
	}
	zeros := len(whole) + len(fraction) - len(digits)
	return max(0, len(whole)+exponent-zeros), after, true
}

// NumberFits reports whether a number in JSON is within the limits of a document.
func NumberFits(number string) bool {
	before, after, ok := written(number)
	if !ok || before+after > MaxDigits {
		return false
	}
	if before > 308 {
		_, err := strconv.ParseFloat(number, 64)
		return err == nil
	}
	return true
}

// Excess returns the limit that a valid JSON document exceeds, or "".
func Excess(document json.RawMessage) (limit string) {
	levels := 0
	scan(document, func(token []byte) bool {
		switch c := token[0]; {
		case c == '{', c == '[':
			if levels++; levels > MaxLevels {
				limit = fmt.Sprintf("more than %d levels of objects and lists", MaxLevels)
			}
		case c == '}', c == ']':
			levels--
		case (c == '-' || c >= '0' && c <= '9') && !NumberFits(string(token)):
			limit = fmt.Sprintf("a number of more than %d digits, or beyond 1.7976931348623157e308", MaxDigits)
		}
		return limit == ""
	})
	return limit
}

// WithoutRepeatedKeys returns a valid JSON document as Postgres stores it: with the last value of each key that an
// object has more than once. It returns a document without such keys unchanged.
func WithoutRepeatedKeys(document json.RawMessage) json.RawMessage {
	if !repeatsKey(document) {
		return document
	}
	var value any
	in := json.NewDecoder(bytes.NewReader(document))
	in.UseNumber()
	if in.Decode(&value) != nil {
		return document
	}
	var without bytes.Buffer
	out := json.NewEncoder(&without)
	out.SetEscapeHTML(false)
	if out.Encode(value) != nil {
		return document
	}
	return bytes.TrimSpace(without.Bytes())
}

func repeatsKey(document json.RawMessage) (found bool) {
	var keys []map[string]bool // of the objects around, and nil for a list
	inKey := false
	scan(document, func(token []byte) bool {
		switch c := token[0]; {
		case c == '{':
			keys, inKey = append(keys, map[string]bool{}), true
		case c == '[':
			keys, inKey = append(keys, nil), false
		case c == '}', c == ']':
			keys, inKey = keys[:len(keys)-1], false
		case c == ',':
			inKey = keys[len(keys)-1] != nil
		case c == '"' && inKey:
			var key string
			found = json.Unmarshal(token, &key) == nil && keys[len(keys)-1][key]
			keys[len(keys)-1][key], inKey = true, false
		}
		return !found
	})
	return found
}

// PrintedSize returns the number of bytes of a valid JSON document as Postgres prints it: it stores 1e308 in a few
// bytes, and prints it in 309. A document has the same size before it is stored and when it is read again, unless an
// object has a key twice.
func PrintedSize(document json.RawMessage) (size int) {
	scan(document, func(token []byte) bool {
		switch c := token[0]; {
		case c == '"':
			size += printedString(token)
		case c == '-', c >= '0' && c <= '9':
			before, after, ok := written(string(token))
			if size += max(1, before) + after; !ok {
				size += 1 << 20 // no document with such a number is stored
			}
			if after > 0 {
				size++
			}
			if mantissa, _, _ := strings.Cut(strings.ToLower(string(token)), "e"); c == '-' &&
				strings.ContainsAny(mantissa, "123456789") {
				size++
			}
		case c == ':', c == ',':
			size += 2
		default:
			size += len(token)
		}
		return true
	})
	return size
}

// printedString returns the number of bytes of a string as Postgres prints it.
func printedString(literal []byte) (size int) {
	for at := 0; at < len(literal); at++ {
		if literal[at] != '\\' {
			size++
			continue
		}
		at++
		switch literal[at] {
		case '/':
			size++
		case 'u':
			c := fourHex(literal[at+1:])
			at += 4
			if utf16.IsSurrogate(c) && at+6 < len(literal) && literal[at+1] == '\\' && literal[at+2] == 'u' {
				c = utf16.DecodeRune(c, fourHex(literal[at+3:]))
				at += 6
			}
			switch {
			case c == '"', c == '\\', c == '\b', c == '\t', c == '\n', c == '\f', c == '\r':
				size += 2
			case c < ' ':
				size += 6
			default:
				size += utf8.RuneLen(c)
			}
		default:
			size += 2
		}
	}
	return size
}

// fourHex returns the number in four hexadecimal digits.
func fourHex(digits []byte) rune {
	c, _ := strconv.ParseUint(string(digits[:min(4, len(digits))]), 16, 32)
	return rune(c)
}

// scan passes the tokens of a valid JSON document to f: strings, numbers, words, and single signs. It ends when f
// returns false.
func scan(document []byte, f func(token []byte) bool) {
	for at := 0; at < len(document); {
		end := at + 1
		switch c := document[at]; {
		case c == ' ', c == '\t', c == '\r', c == '\n':
			at = end
			continue
		case c == '"':
			for ; end < len(document) && document[end] != '"'; end++ {
				if document[end] == '\\' {
					end++
				}
			}
			end = min(end+1, len(document))
		case strings.IndexByte("{}[]:,", c) < 0:
			for end < len(document) && strings.IndexByte(" \t\r\n,]}", document[end]) < 0 {
				end++
			}
		}
		if !f(document[at:end]) {
			return
		}
		at = end
	}
}

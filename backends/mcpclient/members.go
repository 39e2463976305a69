package mcpclient

import (
	"bytes"
	"encoding/json"
	"iter"
	"slices"
)

// members yields the members of an object, with their names as JSON, up to the first that is broken, whose value is
// nil. They share the memory of the text, because decoding a large message costs many times its size.
func members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		rest, more := bytes.CutPrefix(spaceless(object), []byte("{"))
		for more {
			var name, value []byte
			if name, rest = first(rest); len(name) == 0 || name[0] != '"' {
				return
			}
			if rest, more = bytes.CutPrefix(spaceless(rest), []byte(":")); more {
				value, rest = first(rest)
			}
			if !yield(name, value) || value == nil {
				return
			}
			rest, more = bytes.CutPrefix(spaceless(rest), []byte(","))
		}
	}
}

// first splits a text after the JSON value with which it begins. The value is nil if it is broken.
func first(text []byte) (value, rest []byte) {
	text = spaceless(text)
	end := bytes.IndexAny(text, " \t\r\n,:\"[]{}")
	switch end {
	case 0:
		end = closing(text)
	case -1:
		end = len(text)
	}
	if !json.Valid(text[:end]) {
		return nil, nil
	}
	return text[:end], text[end:]
}

// closing returns the length of the string, list or object with which a text begins.
func closing(text []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if depth <= 0 && !quoted {
			return i + 1
		}
	}
	return len(text)
}

func spaceless(text []byte) []byte { return bytes.TrimLeft(text, " \t\r\n") }

// unquoted returns the text of a name.
func unquoted(name []byte) []byte {
	if bytes.IndexByte(name, '\\') < 0 {
		return name[1 : len(name)-1]
	}
	var text string
	_ = json.Unmarshal(name, &text)
	return []byte(text)
}

// replaced returns a valid object with one member, as JSON, in the place of those with some names.
func replaced(object []byte, member string, names ...string) []byte {
	changed := append(make([]byte, 0, len(object)+len(member)+2), "{"+member...)
	for name, value := range members(object) {
		if !slices.Contains(names, string(unquoted(name))) {
			changed = append(append(append(append(changed, ','), name...), ':'), value...)
		}
	}
	return append(changed, '}')
}

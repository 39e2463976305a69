// Package oneline prints callers' values on one line, for a person who decides about them. A value cannot break the
// line, change its direction, or look like the words next to it.
package oneline

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Missing is printed for a missing value.
const Missing = "–"

// Most is the number of printed characters of a value, including quotes and ellipsis.
const Most = 100

// Value prints a JSON value: a single word, a number, a boolean and null unchanged, any other text in double quotes,
// lists and objects as compact JSON.
func Value(v any) string {
	switch v := v.(type) {
	case string:
		text := clean(v)
		if isWord(text) {
			return Cut(text, Most)
		}
		return quote(text)
	case json.Number:
		return Cut(v.String(), Most)
	}
	var compact strings.Builder
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it was decoded from JSON
	return Cut(clean(compact.String()), Most)
}

// Quoted prints a text for a place that already has double quotes. It prints other values like [Value].
func Quoted(v any) string {
	if text, ok := v.(string); ok {
		return strings.TrimSuffix(strings.TrimPrefix(quote(clean(text)), `"`), `"`)
	}
	return Value(v)
}

// mostFields is the number of fields of an input that [Call] prints.
const mostFields = 8

// Call describes a call by its tool and the fields of its input: the fields in first, then the others in the order of
// their names. It does not end with a full stop.
func Call(tool string, input map[string]any, first []string) string {
	names := slices.DeleteFunc(slices.Clone(first), func(name string) bool { _, has := input[name]; return !has })
	for _, name := range slices.Sorted(maps.Keys(input)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	fields := make([]string, 0, mostFields+1)
	for _, name := range names[:min(len(names), mostFields)] {
		fields = append(fields, Value(name)+" "+Value(input[name]))
	}
	if more := len(names) - mostFields; more > 0 {
		fields = append(fields, "and "+strconv.Itoa(more)+" more")
	}
	if len(fields) == 0 {
		return Value(tool) + " without arguments"
	}
	return Value(tool) + ": " + strings.Join(fields, ", ")
}

// CallOf is [Call] for an input in JSON. It returns only the tool if the input is not an object.
func CallOf(tool string, input json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(input))
	d.UseNumber()
	var fields map[string]any // nil for null
	if err := d.Decode(&fields); err != nil || fields == nil {
		return Value(tool)
	}
	return Call(tool, fields, nil)
}

// Text prints a text, such as JSON, on one line, cut to a number of characters.
func Text(text string, most int) string { return Cut(clean(text), most) }

// clean puts a text on one line. White space and control characters become single spaces. It removes characters
// without a visible shape, for example characters that change the direction of the text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r), unicode.In(r, unicode.Cc, unicode.Z):
			return ' '
		case unicode.In(r, unicode.Cf, unicode.Co, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// Cut shortens a text to at most n characters. The last one is then an ellipsis.
func Cut(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	for i := range s {
		if n--; n == 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// isWord reports whether a text needs no quotes among other words.
func isWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.Sc) && !strings.ContainsRune("-_.@+:/#%'", r)
	})
}

// quote puts a text in double quotes, cut to [Most] characters.
func quote(s string) string {
	var out strings.Builder
	room := Most - 2
	runes := []rune(s)
	for i, r := range runes {
		piece := string(r)
		if r == '"' || r == '\\' {
			piece = `\` + piece
		}
		left := room - utf8.RuneCountInString(piece)
		if left < 0 || left == 0 && i < len(runes)-1 { // the ellipsis needs the last position
			out.WriteString("…")
			break
		}
		room = left
		out.WriteString(piece)
	}
	return `"` + out.String() + `"`
}

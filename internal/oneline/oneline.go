// Package oneline prints callers' values on one line, for a person who decides about them. A value cannot break the
// line, change its direction, or pass for the words next to it.
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

// Most is how many characters of a value are printed, quotes and ellipsis included.
const Most = 100

// Value prints a JSON value: a single word, a number, a boolean and null as they are, any other text in double quotes,
// lists and objects as compact JSON.
func Value(v any) string {
	switch v := v.(type) {
	case string:
		text := clean(v)
		if isWord(text) {
			return cut(text)
		}
		return quote(text)
	case json.Number:
		return cut(v.String())
	}
	var compact strings.Builder
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // it comes from JSON
	return cut(clean(compact.String()))
}

// Quoted prints a text for a place that already has double quotes around it. It prints other values as [Value] does.
func Quoted(v any) string {
	if text, ok := v.(string); ok {
		return strings.TrimSuffix(strings.TrimPrefix(quote(clean(text)), `"`), `"`)
	}
	return Value(v)
}

// mostFields is how many fields of an input [Call] prints.
const mostFields = 8

// Call describes a call by its tool and the fields of its input: those in first come first, and the others follow in
// the order of their names. It has no full stop at its end.
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

// Text prints a text, such as JSON, on one line, cut to so many characters.
func Text(text string, most int) string { return cutTo(clean(text), most) }

// clean puts a text on one line: white space and control characters become single spaces, and characters without a
// shape of their own, such as those that change the direction of the text, are dropped.
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

// cut shortens a text to [Most] characters.
func cut(s string) string { return cutTo(s, Most) }

func cutTo(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
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
		if left < 0 || left == 0 && i < len(runes)-1 { // the ellipsis needs the last place
			out.WriteString("…")
			break
		}
		room = left
		out.WriteString(piece)
	}
	return `"` + out.String() + `"`
}

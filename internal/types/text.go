package types

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// constants returns the set of some values. If the language has no type for one of these values alone, the set contains
// all values of its kind.
func (w *writer) constants(values []any) (v values) {
	for _, c := range values {
		t := w.lang.constant(c)
		for _, k := range kindsOfConstant(c) {
			v[k].every = v[k].every || t == ""
			v[k].only = append(v[k].only, option{text: t, size: 1})
		}
	}
	return v.or(v) // removes duplicates
}

// kindsOfConstant returns the kinds of a value. A number such as 1.0 or 1e3 is of both kinds of numbers, because it may
// be written as an integer or as a fraction.
func kindsOfConstant(c any) []kind {
	switch c := c.(type) {
	case string:
		return []kind{text}
	case json.Number:
		f, err := c.Float64()
		switch {
		case !strings.ContainsAny(string(c), ".eE"):
			return []kind{integer}
		case err == nil && f != math.Trunc(f):
			return []kind{fraction}
		}
		return []kind{integer, fraction}
	case bool:
		return []kind{boolean}
	case []any:
		return []kind{list}
	case map[string]any:
		return []kind{object}
	}
	return []kind{null}
}

// names holds the names of types that are taken.
type names map[string]bool

// take returns the name, followed by a number if the name is taken, and takes it.
func (n names) take(name string) string {
	free := name
	for i := 2; n[free]; i++ {
		free = name + "_" + strconv.Itoa(i)
	}
	n[free] = true
	return free
}

// pascal writes a name as that of a type: LeadsCreate for leads_create. Other signs than letters and digits of ASCII
// are left out.
func pascal(name string) string {
	var b strings.Builder
	up := true
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z' && up:
			r, up = r-'a'+'A', false
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			up = false
		default:
			up = true
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// unseen reports whether a character is a control character, changes the direction of a text, or ends a line.
func unseen(r rune) bool { return unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) }

// line writes a text in one line.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unseen(r) {
			return ' '
		}
		return r
	}, s)
}

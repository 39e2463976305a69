package types

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// constants is the set of some values. A constant without a type of its own adds all values of its kind.
func (w *writer) constants(values []any) (v values) {
	for _, c := range values {
		t := w.lang.constant(c)
		for _, k := range kindsOfConstant(c) {
			v[k].every = v[k].every || t == ""
			v[k].only = append(v[k].only, option{text: t, size: 1})
		}
	}
	return v.or(v) // each once
}

// kindsOfConstant are the kinds that a value may have. A number such as 1.0 or 1e3 may have both.
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

// names are those of types that are taken.
type names map[string]bool

// take returns the name, or one with a number behind it if it is taken.
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

// unseen finds control characters, characters that change the direction of a text, and line ends other than \n.
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

package types

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// constants is the set of some values.
func constants(list []any) values {
	var v values
	for _, c := range list {
		k, t := constant(c)
		v[k].only = append(v[k].only, option{text: t, size: 1})
	}
	for k := range v {
		if kind(k) == number && slices.ContainsFunc(v[k].only, func(o option) bool { return o.text == "number" }) {
			v[k] = part{every: true}
		}
	}
	return v.or(values{}) // each once
}

// constant writes a value as the type of that value alone.
func constant(c any) (kind, string) {
	switch c := c.(type) {
	case string:
		return text, quote(c)
	case json.Number:
		f, err := c.Float64()
		if err != nil || math.Abs(f) > 1<<53 {
			return number, "number" // JavaScript has none of exactly that value
		}
		return number, strconv.FormatFloat(f, 'g', -1, 64)
	case bool:
		return boolean, strconv.FormatBool(c)
	case []any:
		items := make([]string, len(c))
		for i, item := range c {
			_, items[i] = constant(item)
		}
		return list, "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		if len(c) == 0 {
			return object, "Record<string, never>"
		}
		var fields []string
		for _, name := range slices.Sorted(maps.Keys(c)) {
			_, t := constant(c[name])
			fields = append(fields, key(name)+": "+t)
		}
		return object, "{ " + strings.Join(fields, "; ") + " }"
	}
	return null, "null"
}

// names are those of types that are taken.
type names map[string]bool

var exported = regexp.MustCompile(`(?m)^export type (\w+)`)

func newNames() names {
	taken := names{"Tools": true, "ToolName": true}
	for _, found := range exported.FindAllStringSubmatch(receipt, -1) {
		taken[found[1]] = true
	}
	return taken
}

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

var plainKey = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// key writes the name of a property.
func key(name string) string {
	if plainKey.MatchString(name) {
		return name
	}
	return quote(name)
}

// quote writes a text as a literal, in which whatever is not seen is escaped.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case unseen(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
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

// comment writes a description above what it describes.
func comment(description string) string {
	description = strings.NewReplacer("\r\n", "\n", "\r", "\n", "*/", "*\\/").Replace(strings.TrimSpace(description))
	lines := strings.Split(description, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(line(lines[i]), " ")
	}
	switch {
	case description == "":
		return ""
	case len(lines) == 1:
		return "/** " + lines[0] + " */\n"
	}
	var b strings.Builder
	b.WriteString("/**\n")
	for _, l := range lines {
		b.WriteString(strings.TrimRight(" * "+l, " ") + "\n")
	}
	b.WriteString(" */\n")
	return b.String()
}

// indent indents lines.
func indent(lines string) string {
	if lines == "" {
		return ""
	}
	return "  " + strings.TrimSuffix(strings.ReplaceAll(lines, "\n", "\n  "), "  ")
}

// indented indents all lines but the first.
func indented(lines string) string { return strings.ReplaceAll(lines, "\n", "\n  ") }

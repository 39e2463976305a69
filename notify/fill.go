package notify

import (
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/schema"
)

// fieldNames are the fields of a notice, in the order in which the documentation lists them.
var fieldNames = []string{"title", "text", "link", "kind", "tool", "code", "count", "at"}

// fill replaces {field} by its value, and {{ and }} by braces. It does not change malformed placeholders, which
// [checkPlaces] rejects.
func fill(text string, fields map[string]string) string {
	var out strings.Builder
	for len(text) > 0 {
		at := strings.IndexAny(text, "{}")
		if at < 0 {
			at = len(text)
		}
		out.WriteString(text[:at])
		text = text[at:]
		end := strings.IndexByte(text, '}')
		switch {
		case text == "":
		case strings.HasPrefix(text, "{{") || strings.HasPrefix(text, "}}"):
			out.WriteByte(text[0])
			text = text[2:]
		case text[0] == '{' && end > 0 && slices.Contains(fieldNames, text[1:end]):
			out.WriteString(fields[text[1:end]])
			text = text[end+1:]
		default:
			out.WriteByte(text[0])
			text = text[1:]
		}
	}
	return out.String()
}

// checkPlaces describes the malformed placeholder of a text, in words that follow the name of its field. It returns ""
// if there is none.
func checkPlaces(text string) string {
	marked := map[string]string{}
	for _, name := range fieldNames {
		marked[name] = ""
	}
	rest := fill(strings.NewReplacer("{{", "", "}}", "").Replace(text), marked)
	at := strings.IndexAny(rest, "{}")
	if at < 0 {
		return ""
	}
	place := rest[at:]
	if end := strings.IndexByte(place, '}'); end > 0 {
		place = place[:end+1]
	}
	return fmt.Sprintf("has %s: the fields are {%s}, and {{ is a brace of the text", schema.Show(place),
		strings.Join(fieldNames, "}, {"))
}

// eachText calls visit for each text in a value, with its JSON pointer.
func eachText(value any, at string, visit func(at, text string)) {
	switch v := value.(type) {
	case string:
		visit(at, v)
	case []any:
		for i, item := range v {
			eachText(item, fmt.Sprintf("%s/%d", at, i), visit)
		}
	case map[string]any:
		for name, field := range v {
			eachText(field, schema.JoinPointer(at, name), visit)
		}
	}
}

// filled returns a copy of a value whose texts are filled in.
func filled(value any, fields map[string]string) any {
	switch v := value.(type) {
	case string:
		return fill(v, fields)
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = filled(item, fields)
		}
		return list
	case map[string]any:
		object := make(map[string]any, len(v))
		for name, field := range v {
			object[name] = filled(field, fields)
		}
		return object
	}
	return value
}

// escapes has a function for each value of a channel's "escape". Slack's formatting reference lists the characters to
// escape.
var escapes = map[string]func(string) string{
	"":      func(text string) string { return text },
	"none":  func(text string) string { return text },
	"slack": strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace,
	"html":  html.EscapeString,
}

package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/oneline"
)

// message puts a finding into a sentence. It may quote the schema, which its author wrote, and not the document.
func (s *Schema) message(doc any, f finding) string {
	subject := s.subject(f.path)
	suffix := ""
	for _, step := range route(f.route) {
		switch step.keyword {
		case "propertyNames":
			subject = "the property name " + subject
		case "anyOf", "oneOf":
			if others := s.othersRequired(f); len(others) > 0 {
				suffix = ", unless " + strings.Join(others, " or ") + " is present"
			} else if i := index(step.index); i >= 0 {
				suffix = fmt.Sprintf(" (alternative %d of %s)", i+1, step.keyword)
			}
		}
	}
	verdict := s.verdict(doc, f)
	if about := s.purpose(f); f.keyword == "pattern" && about != "" && !strings.HasSuffix(verdict, "blank") {
		verdict += ": " + about // a pattern alone tells few people what to write
	}
	return oneline.Cut(subject+" "+verdict, maxMessage-len(suffix)) + suffix
}

// purpose returns the first sentence of the description next to a keyword.
func (s *Schema) purpose(f finding) string {
	around, _ := splitPointer(f.at)
	first, _, _ := strings.Cut(As[string](ValueAt(s.doc, around+"/description")), ". ")
	return strings.TrimSuffix(first, ".")
}

// verdicts are sentences without their subject, by keyword. VALUE is the keyword's value in the schema, SIZE the
// document's.
var verdicts = map[string]string{
	"required":         "is required",
	"const":            "must be VALUE",
	"pattern":          "does not match the pattern VALUE",
	"minimum":          "must be at least VALUE",
	"exclusiveMinimum": "must be greater than VALUE",
	"maximum":          "must be at most VALUE",
	"exclusiveMaximum": "must be less than VALUE",
	"multipleOf":       "must be a multiple of VALUE",
	"minLength":        "is too short: its length is SIZE and must be at least VALUE",
	"maxLength":        "is too long: its length is SIZE and must be at most VALUE",
	"minItems":         "has too few items: the number is SIZE and must be at least VALUE",
	"maxItems":         "has too many items: the number is SIZE and must be at most VALUE",
	"minContains":      "has too few items that match contains: the number must be at least VALUE",
	"maxContains":      "has too many items that match contains: the number must be at most VALUE",
	"minProperties":    "has too few properties: the number is SIZE and must be at least VALUE",
	"maxProperties":    "has too many properties: the number is SIZE and must be at most VALUE",
	"uniqueItems":      "must not contain the same item twice",
	"contains":         "must contain an item that matches contains",
	"not":              "must not match VALUE",
	"oneOf":            "matches more than one alternative of oneOf and must match exactly one",
}

// verdict is the sentence without its subject.
func (s *Schema) verdict(doc any, f finding) string {
	want, got := ValueAt(s.doc, f.at), ValueAt(doc, f.path)
	around, _ := splitPointer(f.at)
	switch f.keyword {
	case "additionalProperties", "unevaluatedProperties":
		_, name := splitPointer(f.path)
		return "is an unknown property" + cmp.Or(DidYouMean(name, slices.Sorted(maps.Keys(s.sibling(f.at, "properties")))),
			": leave it out")
	case "type":
		kind := kindOf(got)
		if n, isNumber := got.(json.Number); isNumber && strings.Contains(Show(want), "integer") {
			kind = oneline.Cut(n.String(), 40)
		}
		return "must be " + words(want, " or ", func(v any) string { return kindNames[As[string](v)] }) + " but is " + kind
	case "enum":
		return "must be one of " + words(want, ", ", Show) + DidYouMean(As[string](got), Texts(want))
	case "format":
		return "is not a valid " + Show(want) + examples[Show(want)]
	case "dependencies", "dependentRequired":
		_, other := splitPointer(around)
		return "is required when " + Show(other) + " is present"
	case "exclusiveMinimum", "exclusiveMaximum":
		if want == true { // draft 4: a flag next to the limit
			want = ValueAt(s.doc, around+"/"+strings.ToLower(strings.TrimPrefix(f.keyword, "exclusive")))
		}
	case "pattern":
		if want == `\S` {
			return "must not be blank"
		}
	case "oneOf":
		if names := s.onlyRequired(f.at); len(names) > 0 {
			return "must have only one of " + strings.Join(names, ", ")
		}
	}
	if f.never {
		return "is not allowed here: leave it out"
	}
	text := cmp.Or(verdicts[f.keyword], "does not match "+f.keyword+" VALUE")
	return strings.NewReplacer("SIZE", strconv.Itoa(length(got)), "VALUE", Show(want)).Replace(text)
}

// onlyRequired returns what the alternatives at a pointer require, if each of them is that one property is present, and
// nothing else.
func (s *Schema) onlyRequired(at string) (names []string) {
	for _, alternative := range As[[]any](ValueAt(s.doc, at)) {
		members := As[map[string]any](alternative)
		required := Texts(members["required"])
		if len(members) != 1 || len(required) != 1 {
			return nil
		}
		names = append(names, Show(required[0]))
	}
	return names
}

// othersRequired returns the properties that could each replace one that an alternative requires.
func (s *Schema) othersRequired(f finding) []string {
	if f.keyword != "required" {
		return nil
	}
	alternative, _ := splitPointer(f.at)
	list, i := splitPointer(alternative)
	names := s.onlyRequired(list)
	if at := index(i); at >= 0 && at < len(names) {
		return slices.Delete(names, at, at+1)
	}
	return nil
}

// subject names the value at a pointer as people write it: context_ref.type, links[2], or the input itself.
func (s *Schema) subject(path string) string {
	name := FieldName(Tokens(path))
	if name == "" || name[0] == '[' {
		name = s.noun + name
	}
	if n := utf8.RuneCountInString(name); n > 100 {
		// The end tells more than the beginning.
		name = "…" + string([]rune(name)[n-99:])
	}
	return name
}

// FieldName joins the tokens of a pointer: indexes in brackets, keys with dots between them.
func FieldName(tokens []string) string {
	var b strings.Builder
	for i, token := range tokens {
		switch {
		case index(token) >= 0:
			b.WriteString("[" + token + "]")
		case i > 0:
			b.WriteString("." + Show(token))
		default:
			b.WriteString(Show(token))
		}
	}
	return b.String()
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	}
	return "an object"
}

var kindNames = map[string]string{
	"null": "null", "boolean": "a boolean", "number": "a number", "integer": "a whole number",
	"string": "a string", "array": "a list", "object": "an object",
}

// words writes a value, or the items of a list.
func words(v any, between string, write func(any) string) string {
	items, ok := v.([]any)
	if !ok {
		items = []any{v}
	}
	var all []string
	for _, item := range items {
		all = append(all, write(item))
	}
	return strings.Join(all, between)
}

var plainWord = regexp.MustCompile(`^[\p{L}_$][\p{L}\p{N}_$-]*$`)

// Show formats a value of the schema or the name of a property. It quotes a string unless it reads as a word.
func Show(v any) string {
	if s, ok := v.(string); ok {
		if s = oneline.Cut(s, 150); plainWord.MatchString(s) {
			return s
		}
		v = s
	}
	return oneline.Cut(string(Canonical(v)), 200)
}

// Texts returns the strings of a list.
func Texts(v any) []string {
	var all []string
	for _, item := range As[[]any](v) {
		if text, ok := item.(string); ok {
			all = append(all, text)
		}
	}
	return all
}

// length is the size of a value that has a wrong one.
func length(v any) int {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v)
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

// examples show a value of a format whose name does not say it all.
var examples = map[string]string{
	"date-time": ", such as 2026-01-31T09:30:00Z",
	"date":      ", such as 2026-01-31",
	"time":      ", such as 09:30:00Z",
	"duration":  ", such as PT30M",
	"email":     " address, such as ann@example.com",
	"uri":       ", such as https://example.com/page",
	"uuid":      ", such as 123e4567-e89b-12d3-a456-426614174000",
}

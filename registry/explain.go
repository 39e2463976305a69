package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// message puts a finding into a sentence. It may quote the schema, which its author wrote, and not the document.
func (s *schema) message(doc any, f finding) string {
	subject := s.subject(doc, f.path)
	suffix := ""
	for _, step := range route(f.route) {
		switch step.keyword {
		case "propertyNames":
			subject = "the property name " + subject
		case "anyOf", "oneOf":
			if i, ok := index(step.name); ok {
				suffix = fmt.Sprintf(" (alternative %d of %s)", i+1, step.keyword)
			}
		}
	}
	got, _ := lookup(doc, f.path)
	return cut(subject+" "+s.verdict(f, got), maxMessage-len(suffix)) + suffix
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
	"minLength":        "must have at least VALUE characters and has SIZE",
	"maxLength":        "must have at most VALUE characters and has SIZE",
	"minItems":         "must have at least VALUE items and has SIZE",
	"maxItems":         "must have at most VALUE items and has SIZE",
	"minContains":      "must have at least VALUE items that match contains",
	"maxContains":      "must have at most VALUE items that match contains",
	"minProperties":    "must have at least VALUE properties and has SIZE",
	"maxProperties":    "must have at most VALUE properties and has SIZE",
	"uniqueItems":      "must not contain the same item twice",
	"contains":         "must contain an item that matches contains",
	"additionalItems":  "has more items than its schema allows",
	"not":              "must not match the schema under not",
	"oneOf":            "matches more than one alternative of oneOf and must match exactly one",
	"contentEncoding":  "is not encoded as VALUE",
	"contentMediaType": "is not of the media type VALUE",
}

// singular mends the verdicts on one thing.
var singular = strings.NewReplacer(
	"have at least 1 characters and has 0", "not be empty", "have at least 1 items and has 0", "not be empty",
	"have at least 1 properties and has 0", "not be empty",
	" 1 characters", " 1 character", " 1 items that match", " 1 item that matches", " 1 items", " 1 item", " 1 properties", " 1 property")

// verdict is the sentence without its subject.
func (s *schema) verdict(f finding, got any) string {
	want := s.value(f.at)
	around, _ := splitPointer(f.at)
	switch f.keyword {
	case "additionalProperties", "unevaluatedProperties":
		_, name := splitPointer(f.path)
		if hint := didYouMean(name, slices.Sorted(maps.Keys(s.beside(f.at, "properties")))); hint != "" {
			return "is an unknown property" + hint
		}
		return "is an unknown property: leave it out"
	case "type":
		return "must be " + kinds(want) + " and is " + kindOf(got)
	case "enum":
		return "must be one of " + list(want) + didYouMean(text(got), texts(want))
	case "format":
		return "is not a valid " + show(want) + examples[show(want)]
	case "dependencies", "dependentRequired":
		_, other := splitPointer(around)
		return "is required when " + label(other) + " is present"
	case "exclusiveMinimum", "exclusiveMaximum":
		if want == true { // draft 4: a flag beside the limit
			want = s.value(around + "/" + strings.ToLower(strings.TrimPrefix(f.keyword, "exclusive")))
		}
	}
	if f.never {
		return "is not allowed here: leave it out"
	}
	if text, ok := verdicts[f.keyword]; ok {
		text = strings.Replace(text, "SIZE", strconv.Itoa(length(got)), 1)
		return singular.Replace(strings.Replace(text, "VALUE", show(want), 1))
	}
	return "does not match " + f.keyword + " of its schema"
}

// subject names the value at a pointer as people write it: context_ref.type, links[2], or the input itself.
func (s *schema) subject(doc any, path string) string {
	name := fieldName(doc, tokens(path))
	if name == "" || name[0] == '[' {
		name = s.noun + name
	}
	if n := utf8.RuneCountInString(name); n > 100 {
		// The end tells more than the beginning.
		name = "…" + string([]rune(name)[n-99:])
	}
	return name
}

func fieldName(doc any, steps []string) string {
	var b strings.Builder
	for _, token := range steps {
		if _, ok := doc.([]any); ok {
			b.WriteString("[" + token + "]")
		} else {
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(label(token))
		}
		doc, _ = child(doc, token)
	}
	return b.String()
}

var plainLabel = regexp.MustCompile(`^[\p{L}_$][\p{L}\p{N}_$-]*$`)

// label shows a property's name, in quotes when it is not a plain word.
func label(name string) string {
	if name = cut(name, 60); plainLabel.MatchString(strings.TrimSuffix(name, "…")) {
		return name
	}
	return strconv.Quote(name)
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

// kinds words the value of the keyword type: a string, or a list of strings.
func kinds(want any) string {
	var words []string
	for _, t := range append(texts(want), text(want)) {
		if t != "" {
			words = append(words, kindNames[t])
		}
	}
	return strings.Join(words, " or ")
}

// show writes a value of the schema. A string stands as it is when it reads as a word.
func show(want any) string {
	if s, ok := want.(string); ok && plainLabel.MatchString(s) {
		return cut(s, 120)
	}
	return cut(string(canonical(want)), 200)
}

func list(want any) string {
	var words []string
	for _, item := range asList(want) {
		words = append(words, show(item))
	}
	return strings.Join(words, ", ")
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// texts returns the strings of a list.
func texts(v any) []string {
	var all []string
	for _, item := range asList(v) {
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

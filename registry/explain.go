package registry

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

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// finding is one fault of a document before it is put into words.
type finding struct {
	path    string // of the value, or of the property that is missing
	keyword string
	at      string // pointer into the schema, to the keyword's value
	route   string // how validation came there, $ref by $ref
	other   string // for a dependency, the property that asks for this one
	library string // the library's own words
}

func (f finding) compare(g finding) int {
	return cmp.Or(comparePointers(f.path, g.path), cmp.Compare(f.keyword, g.keyword), cmp.Compare(f.at, g.at),
		cmp.Compare(f.route, g.route), cmp.Compare(f.other, g.other))
}

// findings splits an error of the library into one finding a property, where it speaks of several.
func (s *schema) findings(doc any, e *jsonschema.ValidationError) []finding {
	_, at, _ := strings.Cut(e.AbsoluteKeywordLocation, "#")
	f := finding{
		path:    libraryPointer(e.InstanceLocation),
		at:      libraryPointer(at),
		route:   e.KeywordLocation,
		library: e.Message,
	}
	f.keyword = lastKeyword(f.route)
	switch f.keyword {
	case "minContains":
		if _, stated := lookup(s.doc, f.at); !stated {
			f.keyword = "contains"
		}
	case "required":
		names, _ := s.value(f.at).([]any)
		return each(f, missing(doc, f.path, names))
	case "additionalProperties":
		if e.Message != falseSchema {
			return each(f, s.additional(doc, f))
		}
	case "dependencies", "dependentRequired":
		if name, ok := s.value(f.at).(string); ok {
			steps := tokens(f.at)
			f.other = steps[len(steps)-2]
			return each(f, []string{name})
		}
	}
	return []finding{f}
}

// falseSchema is what the library says of a value under the schema false.
const falseSchema = "not allowed"

// each returns the finding once for each property of the object it is about, or unchanged if there is none to name.
func each(f finding, names []string) []finding {
	if len(names) == 0 {
		return []finding{f}
	}
	all := make([]finding, len(names))
	for i, name := range names {
		all[i] = f
		all[i].path = joinPointer(f.path, name)
	}
	return all
}

// value is what the schema states at a pointer.
func (s *schema) value(at string) any {
	v, _ := lookup(s.doc, at)
	return v
}

func missing(doc any, path string, names []any) []string {
	var absent []string
	for _, name := range names {
		name, _ := name.(string)
		if _, ok := lookup(doc, joinPointer(path, name)); !ok {
			absent = append(absent, name)
		}
	}
	return absent
}

// additional names the properties that neither properties nor patternProperties of the schema know.
func (s *schema) additional(doc any, f finding) []string {
	v, _ := lookup(doc, f.path)
	object, _ := v.(map[string]any)
	around := strings.TrimSuffix(f.at, "/additionalProperties")
	known, _ := s.value(around + "/properties").(map[string]any)
	stated, _ := s.value(around + "/patternProperties").(map[string]any)
	var patterns []*regexp.Regexp
	for pattern := range stated {
		if p, err := regexp.Compile(pattern); err == nil {
			patterns = append(patterns, p)
		}
	}
	var names []string
	for name := range object {
		_, ok := known[name]
		if !ok && !slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(name) }) {
			names = append(names, name)
		}
	}
	return names
}

// routeStep is a keyword that validation went through, with the name or the number that follows it, if one does.
type routeStep struct{ keyword, name string }

// route splits the library's keyword location, such as /properties/tags/items/anyOf/1/type.
func route(location string) []routeStep {
	var steps []routeStep
	parts := tokens(location)
	for i := 0; i < len(parts); i++ {
		s := routeStep{keyword: parts[i]}
		switch s.keyword {
		case "properties", "patternProperties", "dependentSchemas", "dependencies", "dependentRequired":
			if i+1 < len(parts) {
				i++
				s.name = parts[i]
			}
		}
		// The index of a schema in a list. No keyword is a number.
		if i+1 < len(parts) {
			if _, ok := index(parts[i+1]); ok {
				i++
				s.name = parts[i]
			}
		}
		steps = append(steps, s)
	}
	return steps
}

func lastKeyword(location string) string {
	steps := route(location)
	if len(steps) == 0 {
		return keywordSchema
	}
	return steps[len(steps)-1].keyword
}

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

// verdict is the sentence without its subject.
func (s *schema) verdict(f finding, got any) string {
	want := s.value(f.at)
	if f.library == falseSchema {
		if f.keyword == "unevaluatedProperties" || f.keyword == "additionalProperties" {
			return "is not a property that is known here: leave it out"
		}
		return "is not allowed here: leave it out"
	}
	switch f.keyword {
	case "type":
		return "must be " + types(want) + " and is " + kindOf(got)
	case "enum":
		return "must be one of " + list(want)
	case "const":
		return "must be " + show(want)
	case "format":
		return "is not a valid " + show(want) + example(want)
	case "required":
		return "is required"
	case "dependencies", "dependentRequired":
		return "is required when " + label(f.other) + " is present"
	case "additionalProperties":
		known, _ := s.value(strings.TrimSuffix(f.at, "/additionalProperties") + "/properties").(map[string]any)
		steps := tokens(f.path)
		if len(steps) > 0 {
			if hint := didYouMean(steps[len(steps)-1], slices.Sorted(maps.Keys(known))); hint != "" {
				return "is not a property that is known here" + hint
			}
		}
		return "is not a property that is known here: leave it out"
	case "minLength":
		if show(want) == "1" {
			return "must not be empty"
		}
		return "must have at least " + count(want, "character") + length(got)
	case "maxLength":
		return "must have at most " + count(want, "character") + length(got)
	case "pattern":
		return "does not match the pattern " + show(want)
	case "minimum", "exclusiveMinimum":
		if want == true { // draft 4: a flag beside minimum
			want = s.value(strings.TrimSuffix(f.at, "exclusiveMinimum") + "minimum")
		}
		if f.keyword == "minimum" {
			return "must be at least " + show(want)
		}
		return "must be greater than " + show(want)
	case "maximum", "exclusiveMaximum":
		if want == true {
			want = s.value(strings.TrimSuffix(f.at, "exclusiveMaximum") + "maximum")
		}
		if f.keyword == "maximum" {
			return "must be at most " + show(want)
		}
		return "must be less than " + show(want)
	case "multipleOf":
		return "must be a multiple of " + show(want)
	case "minItems":
		return "must have at least " + count(want, "item") + length(got)
	case "maxItems":
		return "must have at most " + count(want, "item") + length(got)
	case "additionalItems":
		return "has more items than its schema knows" + length(got)
	case "uniqueItems":
		return "must not hold the same item twice"
	case "contains":
		return "must hold an item that matches contains"
	case "minContains":
		return "must hold at least " + count(want, "item") + " that match contains"
	case "maxContains":
		return "must hold at most " + count(want, "item") + " that match contains"
	case "minProperties":
		if length(got) == " and has 0" && show(want) == "1" {
			return "must have a property"
		}
		return "must have at least " + count(want, "property") + length(got)
	case "maxProperties":
		return "must have at most " + count(want, "property") + length(got)
	case "not":
		return "must not match the schema under not"
	case "oneOf":
		return "matches more than one alternative of oneOf and must match exactly one"
	case "contentEncoding", "contentMediaType", "contentSchema":
		return "is not encoded as " + show(want)
	}
	return "does not match " + f.keyword + " of its schema"
}

// subject names the value at a pointer as people write it: context_ref.type, links[2], or the input itself.
func (s *schema) subject(doc any, path string) string {
	steps := tokens(path)
	if len(steps) == 0 {
		return s.noun
	}
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
	name := b.String()
	if strings.HasPrefix(name, "[") {
		name = s.noun + name
	}
	if n := utf8.RuneCountInString(name); n > 100 {
		// The end tells more than the beginning.
		name = "…" + string([]rune(name)[n-99:])
	}
	return name
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

// types words the value of the keyword type: a string, or a list of strings.
func types(want any) string {
	names := map[string]string{
		"null": "null", "boolean": "a boolean", "number": "a number", "integer": "a whole number",
		"string": "a string", "array": "a list", "object": "an object",
	}
	list, ok := want.([]any)
	if !ok {
		list = []any{want}
	}
	var words []string
	for _, t := range list {
		t, _ := t.(string)
		words = append(words, names[t])
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
	items, _ := want.([]any)
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = show(item)
	}
	return strings.Join(words, ", ")
}

func count(want any, thing string) string {
	n := show(want)
	switch {
	case n == "1":
		return n + " " + thing
	case thing == "property":
		return n + " properties"
	}
	return n + " " + thing + "s"
}

// length says how long the value is that has a wrong length.
func length(got any) string {
	switch got := got.(type) {
	case string:
		return fmt.Sprintf(" and has %d", utf8.RuneCountInString(got))
	case []any:
		return fmt.Sprintf(" and has %d", len(got))
	case map[string]any:
		return fmt.Sprintf(" and has %d", len(got))
	}
	return ""
}

// example shows a value of a format whose name does not say it all.
func example(format any) string {
	switch format {
	case "date-time":
		return ", such as 2026-01-31T09:30:00Z"
	case "date":
		return ", such as 2026-01-31"
	case "time":
		return ", such as 09:30:00Z"
	case "duration":
		return ", such as PT30M"
	case "email":
		return " address, such as ann@example.com"
	case "uri":
		return ", such as https://example.com/page"
	case "uuid":
		return ", such as 123e4567-e89b-12d3-a456-426614174000"
	}
	return ""
}

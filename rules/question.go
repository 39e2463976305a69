package rules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/schema"
)

// maxPlaces is the maximum number of values in a question: a longer question would not fit into the text of
// wait.approval.
const maxPlaces = 20

// template is a question with places for values of the input, as in "Refund {amount} for {/booking/id}?".
type template []piece

// piece is a text, or the place of a value.
type piece struct {
	text    string // empty for a place
	pointer string // of the value
	quoted  bool   // the place is in double quotes
}

// parseTemplate reads a question. It returns the problem of a malformed one, as a sentence that continues the name of
// the field.
func parseTemplate(question string) (t template, problem string) {
	var text strings.Builder
	places := 0
	for at := 0; at < len(question); {
		rest := question[at:]
		where := fmt.Sprintf("at character %d", utf8.RuneCountInString(question[:at])+1)
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case strings.HasPrefix(rest, "{{") || strings.HasPrefix(rest, "}}"):
			text.WriteByte(rest[0])
			at += 2
		case r == '}':
			return nil, "has a } " + where + " that closes nothing: write }} for a brace of the text"
		case r == '{':
			end := strings.IndexAny(rest[1:], "{}") + 1
			if end == 0 || rest[end] == '{' {
				return nil, "has a { " + where + " that is not closed: name a value, as in {amount}, or write {{ for a brace " +
					"of the text"
			}
			pointer, wrong := placeOf(rest[1:end])
			if wrong != "" {
				return nil, "has " + schema.Show(rest[:end+1]) + " " + where + ", " + wrong
			}
			if places++; places > maxPlaces {
				return nil, fmt.Sprintf("prints more than %d values: the person who decides sees all arguments next to it",
					maxPlaces)
			}
			quoted := strings.HasSuffix(text.String(), `"`) && strings.HasPrefix(rest[end+1:], `"`)
			t = append(t, piece{text: text.String()}, piece{pointer: pointer, quoted: quoted})
			text.Reset()
			at += end + 1
		case unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp):
			return nil, "has a line break or another control character " + where + ": write the question on one line"
		default:
			text.WriteRune(r)
			at += size
		}
	}
	return append(t, piece{text: text.String()}), ""
}

// placeOf returns the JSON pointer of a place, which names a pointer or a field at the top.
func placeOf(name string) (pointer, wrong string) {
	switch {
	case name == "":
		return "", "which names no value: write {amount}, or {{}} for braces of the text"
	case strings.TrimSpace(name) != name:
		return "", "with white space around the name: write {" + strings.TrimSpace(name) + "}"
	case !strings.HasPrefix(name, "/"):
		return schema.JoinPointer("", name), ""
	}
	for i, part := range strings.Split(name, "~") {
		if i > 0 && !strings.HasPrefix(part, "0") && !strings.HasPrefix(part, "1") {
			return "", "which is not a JSON pointer: write ~0 for ~ and ~1 for / in a name"
		}
	}
	return name, ""
}

// fill replaces the places by the values of an input.
func (t template) fill(input any) string {
	var out strings.Builder
	for _, p := range t {
		value, there := any(nil), false
		if p.pointer != "" {
			value, there = schema.Lookup(input, p.pointer)
		}
		switch {
		case p.pointer == "":
			out.WriteString(p.text)
		case !there:
			out.WriteString(oneline.Missing)
		case p.quoted:
			out.WriteString(oneline.Quoted(value))
		default:
			out.WriteString(oneline.Value(value))
		}
	}
	return out.String()
}

// pointers returns the pointers of the values that the question prints.
func (t template) pointers() (all []string) {
	for _, p := range t {
		if p.pointer != "" {
			all = append(all, p.pointer)
		}
	}
	return all
}

// questionText returns the question about a call: the rule's own, or one made from the tool, the input, why
// the rule asks, and the rule's say.
func (r *Rule) questionText(tool string, input any, c *Check) string {
	if r.Question != "" {
		return r.template.fill(input)
	}
	var first []string
	if r.when != nil {
		first = slices.Sorted(maps.Keys(r.when.input))
	}
	call := oneline.Call(tool, schema.As[map[string]any](input), first)
	return sentences(call+". Rule "+r.Name+": "+r.reason(c)+".", r.Say)
}

// reason explains why a rule asks: its conditions on the call, and on anything else.
func (r *Rule) reason(c *Check) string {
	var why []string
	if c.Kind != ItsCall {
		why = append(why, r.about(c))
	}
	if holds := r.holds(); holds != "" {
		why = append(why, holds)
	}
	return cmp.Or(strings.Join(why, "; "), r.conditions())
}

// conditionWords puts a when or an unless into words, or returns "" if there is none.
func conditionWords(condition any) string {
	var all []string
	parts := schema.As[map[string]any](condition)
	for _, part := range []string{"input", "caller"} {
		fields := schema.As[map[string]any](parts[part])
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			subject := oneline.Value(name)
			if part == "caller" {
				subject = "the caller's " + subject
			}
			all = append(all, subject+" "+schemaWords(fields[name]))
		}
	}
	return list(all)
}

// keywordWords are the words for keywords of a condition, in the order in which they are printed.
var keywordWords = []struct{ keyword, words string }{
	{"const", "is "}, {"exclusiveMinimum", "is over "}, {"minimum", "is at least "}, {"exclusiveMaximum", "is under "},
	{"maximum", "is at most "},
}

// schemaWords puts a JSON Schema into words that follow the name of the value.
func schemaWords(doc any) string {
	keywords, isObject := doc.(map[string]any)
	if !isObject {
		return "is given"
	}
	var all []string
	left := maps.Clone(keywords)
	for _, annotation := range []string{"type", "title", "description", "$comment", "examples", "default"} {
		delete(left, annotation)
	}
	for _, k := range keywordWords {
		if value, has := left[k.keyword]; has {
			all = append(all, k.words+oneline.Value(value))
			delete(left, k.keyword)
		}
	}
	if values, has := left["enum"].([]any); has && len(left) == 1 {
		names := make([]string, len(values))
		for i, v := range values {
			names[i] = oneline.Value(v)
		}
		all = append(all, "is one of "+list(names))
		delete(left, "enum")
	}
	switch {
	case len(left) > 0:
		return "fits its condition"
	case len(all) == 0:
		return "is given"
	}
	return strings.Join(all, " and ")
}

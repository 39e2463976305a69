package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// field is a field of the form for an answer.
type field struct {
	Form        string // its name in the form
	Name        string // in the answer; empty: the answer itself
	Label       string
	Description string
	Kind        string // text, number, boolean, choice, json
	Required    bool
	Options     []option
	Bounds      string // of the typed value, in words
	Typed       string
}

type option struct {
	Value  string // of the form: its place in the list
	Label  string
	Chosen bool

	answer json.RawMessage
}

// flat is the schema of an answer, or of one of its fields, in the form that wait.answer allows.
type flat struct {
	Type        string            `json:"type"`
	Title       string            `json:"title"`
	Description string            `json:"description"`
	Enum        []json.RawMessage `json:"enum"`
	MinLength   *json.Number      `json:"minLength"`
	MaxLength   *json.Number      `json:"maxLength"`
	Minimum     *json.Number      `json:"minimum"`
	Maximum     *json.Number      `json:"maximum"`
	Properties  map[string]flat   `json:"properties"`
	Required    []string          `json:"required"`
}

// fieldsOf returns the fields of the form for an answer that fits a schema: one for each field of an object, the
// required ones first, or a single one. The database checks the answer; the form only helps.
func fieldsOf(schema json.RawMessage) []field {
	var f flat
	if err := json.Unmarshal(schema, &f); err != nil || string(bytes.TrimSpace(schema)) == "null" {
		return []field{{Form: "value", Label: "Answer, as JSON", Kind: "json", Required: true}}
	}
	if f.Type != "object" {
		return []field{f.field("", "value", true)}
	}
	names := slices.SortedFunc(maps.Keys(f.Properties), func(a, b string) int {
		if first, other := slices.Contains(f.Required, a), slices.Contains(f.Required, b); first != other {
			return map[bool]int{true: -1, false: 1}[first]
		}
		return strings.Compare(a, b)
	})
	all := make([]field, len(names))
	for i, name := range names {
		all[i] = f.Properties[name].field(name, "value."+strconv.Itoa(i), slices.Contains(f.Required, name))
	}
	return all
}

func (f flat) field(name, form string, required bool) field {
	out := field{Form: form, Name: name, Label: f.Title, Description: f.Description, Required: required}
	if out.Label == "" {
		if out.Label = name; name == "" {
			out.Label = "Answer"
		}
	}
	switch {
	case len(f.Enum) > 0:
		out.Kind = "choice"
		for i, v := range f.Enum {
			label := string(v)
			_ = json.Unmarshal(v, &label) // only a text changes
			out.Options = append(out.Options, option{Value: strconv.Itoa(i), Label: label, answer: v})
		}
	case f.Type == "boolean":
		out.Kind = "boolean"
		out.Options = []option{{Value: "0", Label: "Yes", answer: json.RawMessage("true")},
			{Value: "1", Label: "No", answer: json.RawMessage("false")}}
	case f.Type == "number", f.Type == "integer":
		out.Kind = "number"
		out.Bounds = between("A number", f.Minimum, f.Maximum, "")
		if f.Type == "integer" {
			out.Bounds = between("A whole number", f.Minimum, f.Maximum, "")
		}
	default:
		out.Kind = "text"
		if f.MinLength != nil || f.MaxLength != nil {
			out.Bounds = between("A text", f.MinLength, f.MaxLength, " characters")
		}
	}
	return out
}

func between(what string, least, most *json.Number, unit string) string {
	switch {
	case least != nil && most != nil:
		return fmt.Sprintf("%s from %s to %s%s.", what, *least, *most, unit)
	case least != nil:
		return fmt.Sprintf("%s of at least %s%s.", what, *least, unit)
	case most != nil:
		return fmt.Sprintf("%s of at most %s%s.", what, *most, unit)
	}
	return what + "."
}

// fill puts the typed values into the fields.
func fill(fields []field, form url.Values) {
	for i := range fields {
		f := &fields[i]
		f.Typed = form.Get(f.Form)
		for o := range f.Options {
			f.Options[o].Chosen = f.Options[o].Value == f.Typed
		}
	}
}

// valueOf returns the answer from the fields; otherwise wrong names the correction. An empty optional field is
// omitted. Numbers keep their typed digits.
func valueOf(schema json.RawMessage, fields []field) (value json.RawMessage, wrong string) {
	object := map[string]json.RawMessage{}
	for _, f := range fields {
		one, wrong := f.value()
		switch {
		case wrong != "":
			return nil, wrong
		case f.Name == "" && one == nil:
			return nil, f.Label + " is required."
		case f.Name == "":
			if !hasProperties(schema) {
				return one, ""
			}
			object[""] = one
		case one != nil:
			object[f.Name] = one
		}
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, "The answer cannot be encoded."
	}
	return encoded, ""
}

// hasProperties reports whether answers are objects; an object's field may have the name "".
func hasProperties(schema json.RawMessage) bool {
	var f flat
	return json.Unmarshal(schema, &f) == nil && f.Type == "object"
}

// value returns nil for an empty optional field.
func (f field) value() (value json.RawMessage, wrong string) {
	label := f.Label
	switch f.Kind {
	case "choice", "boolean":
		for _, o := range f.Options {
			if o.Chosen {
				return o.answer, ""
			}
		}
		if f.Required {
			return nil, label + ": choose one."
		}
		return nil, ""
	case "number", "json":
		typed := strings.TrimSpace(f.Typed)
		var number json.Number
		switch {
		case typed == "" && f.Required:
			return nil, label + " is required."
		case typed == "":
			return nil, ""
		case !json.Valid([]byte(typed)):
			return nil, fmt.Sprintf("%s must be %s, and is %q.", label,
				map[string]string{"number": "a number, such as 12 or 0.5", "json": "JSON"}[f.Kind], typed)
		case f.Kind == "number" && (json.Unmarshal([]byte(typed), &number) != nil || typed[0] == '"' || typed == "null"):
			return nil, fmt.Sprintf("%s must be a number, such as 12 or 0.5, and is %q.", label, typed)
		}
		return json.RawMessage(typed), ""
	}
	switch {
	case f.Typed == "" && f.Required:
		// gem answer can give an empty text; here it is probably a mistake, and an answer cannot be withdrawn.
		return nil, label + " is required."
	case f.Typed == "":
		return nil, ""
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(oneKindOfLine(f.Typed)) // a text can always be encoded
	return bytes.TrimSpace(out.Bytes()), ""
}

// oneKindOfLine normalises the line ends that browsers send.
func oneKindOfLine(typed string) string { return strings.ReplaceAll(typed, "\r\n", "\n") }

// typed lists the values of a form, so that the user can copy them.
func typed(form url.Values) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(form)) {
		if v := form.Get(name); v != "" && (name == "reason" || name == "value" || strings.HasPrefix(name, "value.")) {
			all = append(all, v)
		}
	}
	return strings.Join(all, "\n\n")
}

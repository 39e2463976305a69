package value

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
)

// A Rule checks one value of a patch. It returns the keyword of JSON Schema that the value violates and the end of the
// sentence "<key> …", or nothing.
type Rule func(raw json.RawMessage) (keyword, fault string)

// patchFault has the form of the faults that the registry's validation reports.
type patchFault struct {
	Path    string `json:"path"`
	Keyword string `json:"keyword"`
	Message string `json:"message"`
}

var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// ReadPatch checks the input field patch, an object, against the rules of the columns that may be patched. It returns
// the values by column, or all faults in one validation_error. An absent patch is an empty one.
func ReadPatch(raw json.RawMessage, columns map[string]Rule) (map[string]json.RawMessage, error) {
	patch := map[string]json.RawMessage{}
	var faults []patchFault
	if len(raw) > 0 && json.Unmarshal(raw, &patch) != nil {
		faults = append(faults, patchFault{"/patch", "type", "patch must be an object"})
	}
	for _, key := range slices.Sorted(maps.Keys(patch)) {
		name := receipts.Shorten(key, 100)
		keyword, message := "additionalProperties", fmt.Sprintf("%q cannot be patched: the keys are %s",
			name, strings.Join(slices.Sorted(maps.Keys(columns)), ", "))
		if check, known := columns[key]; known {
			var fault string
			if keyword, fault = check(patch[key]); fault == "" {
				continue
			}
			message = key + " " + fault
		}
		faults = append(faults, patchFault{"/patch/" + pointer.Replace(name), keyword, message})
	}
	if len(faults) == 0 {
		return patch, nil
	}
	message := "The patch was refused: " + faults[0].Message
	if more := len(faults) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more, see details)", more)
	}
	return nil, &handlers.Failure{Code: "validation_error", Message: message + ".", Details: faults}
}

// Text accepts a string of at most limit characters; 0 means unlimited.
func Text(limit int) Rule {
	return func(raw json.RawMessage) (string, string) {
		var s *string
		if json.Unmarshal(raw, &s) != nil || s == nil {
			return "type", "must be a string"
		}
		if limit > 0 && utf8.RuneCountInString(*s) > limit {
			return "maxLength", fmt.Sprintf("must have at most %d characters", limit)
		}
		return "", ""
	}
}

// OneOf accepts one of these strings.
func OneOf(values ...string) Rule {
	return func(raw json.RawMessage) (string, string) {
		var s string
		if json.Unmarshal(raw, &s) != nil || !slices.Contains(values, s) {
			return "enum", "must be one of " + strings.Join(values, ", ")
		}
		return "", ""
	}
}

// DateTime accepts a [Time].
func DateTime(raw json.RawMessage) (keyword, fault string) {
	if json.Unmarshal(raw, new(Time)) != nil {
		return "format", "must be a date-time such as 2026-01-31T09:30:00Z"
	}
	return "", ""
}

// Object accepts any JSON object.
func Object(raw json.RawMessage) (keyword, fault string) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		return "type", "must be an object"
	}
	return "", ""
}

// OrNull also accepts null, which empties the column.
func OrNull(check Rule) Rule {
	return func(raw json.RawMessage) (keyword, fault string) {
		if string(raw) == "null" {
			return "", ""
		}
		if keyword, fault = check(raw); fault != "" {
			fault += " or null"
		}
		return keyword, fault
	}
}

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
)

// A Rule checks one value of a patch. It returns the value as it is to be stored, or the keyword of JSON Schema that it
// breaks and the end of the sentence "<key> …".
type Rule func(raw json.RawMessage) (value any, keyword, fault string)

// patchFault has the form of the faults that the registry's validation reports.
type patchFault struct {
	Path    string `json:"path"`
	Keyword string `json:"keyword"`
	Message string `json:"message"`
}

// ReadPatch checks the input field patch, an object, against the rules of the columns that may be patched. It returns the
// values by column, or all faults in one validation_error. An absent patch is an empty one.
func ReadPatch(raw json.RawMessage, columns map[string]Rule) (map[string]any, error) {
	given := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, refusedPatch([]patchFault{{"/patch", "type", "patch must be an object"}})
		}
	}
	patch := map[string]any{}
	var faults []patchFault
	for _, key := range slices.Sorted(maps.Keys(given)) {
		path := "/patch/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(Shorten(key, 100))
		check, known := columns[key]
		if !known {
			faults = append(faults, patchFault{path, "additionalProperties", fmt.Sprintf("%q cannot be patched: the keys are %s",
				Shorten(key, 100), strings.Join(slices.Sorted(maps.Keys(columns)), ", "))})
			continue
		}
		value, keyword, fault := check(given[key])
		if fault != "" {
			faults = append(faults, patchFault{path, keyword, key + " " + fault})
		}
		patch[key] = value
	}
	if len(faults) > 0 {
		return nil, refusedPatch(faults)
	}
	return patch, nil
}

func refusedPatch(faults []patchFault) error {
	message := "The patch was refused: " + faults[0].Message
	if more := len(faults) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more, see details)", more)
	}
	return &handlers.Failure{Code: "validation_error", Message: message + ".", Details: faults}
}

// Text is a string of at most limit characters; 0 is no limit.
func Text(limit int) Rule {
	return func(raw json.RawMessage) (any, string, string) {
		var s *string
		if json.Unmarshal(raw, &s) != nil || s == nil {
			return nil, "type", "must be a string"
		}
		if limit > 0 && utf8.RuneCountInString(*s) > limit {
			return nil, "maxLength", fmt.Sprintf("must have at most %d characters", limit)
		}
		return *s, "", ""
	}
}

// OneOf is one of these strings.
func OneOf(values ...string) Rule {
	return func(raw json.RawMessage) (any, string, string) {
		var s string
		if json.Unmarshal(raw, &s) != nil || !slices.Contains(values, s) {
			return nil, "enum", "must be one of " + strings.Join(values, ", ")
		}
		return s, "", ""
	}
}

// DateTime is a [Time].
func DateTime(raw json.RawMessage) (any, string, string) {
	var t Time
	if json.Unmarshal(raw, &t) != nil {
		return nil, "format", "must be a date-time such as 2026-01-31T09:30:00Z"
	}
	return t, "", ""
}

// Object is any JSON object.
func Object(raw json.RawMessage) (any, string, string) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		return nil, "type", "must be an object"
	}
	return raw, "", ""
}

// OrNull also lets null through, which empties the column.
func OrNull(check Rule) Rule {
	return func(raw json.RawMessage) (any, string, string) {
		if string(raw) == "null" {
			return nil, "", ""
		}
		value, keyword, fault := check(raw)
		if fault != "" {
			fault += " or null"
		}
		return value, keyword, fault
	}
}

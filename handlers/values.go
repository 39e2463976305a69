package handlers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"
)

// The values that the domains share: times, limits, ids, searched words and patches.

// Time is a moment, RFC 3339 in JSON and always UTC on its way out. It accepts all that the format date-time allows, which
// is more than Go's own parser: lower-case letters and a leap second, which becomes the second after it.
type Time struct{ time.Time }

// UnmarshalJSON refuses what lies outside the years 1 to 9999 in UTC, since it could not be written as RFC 3339 again.
func (t *Time) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	parsed, err := parseTime(s)
	if err != nil {
		return err
	}
	t.Time = parsed
	return nil
}

func parseTime(s string) (time.Time, error) {
	text := strings.ToUpper(s)
	leap := len(text) > 19 && text[17:19] == "60"
	if leap {
		text = text[:17] + "59" + text[19:]
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no date-time such as 2026-01-31T09:30:00Z", clip(s, 50))
	}
	if leap {
		parsed = parsed.Add(time.Second)
	}
	parsed = parsed.UTC()
	if parsed.Year() < 1 || parsed.Year() > 9999 {
		return time.Time{}, fmt.Errorf("%q lies outside the years 1 to 9999 in UTC", clip(s, 50))
	}
	return parsed, nil
}

// MarshalJSON writes RFC 3339 in UTC, with as many digits of a second as are needed.
func (t Time) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format(time.RFC3339Nano))
}

// ScanTimestamptz reads a timestamptz.
func (t *Time) ScanTimestamptz(v pgtype.Timestamptz) error {
	t.Time = v.Time.UTC()
	return nil
}

// TimestamptzValue is the timestamptz to write.
func (t Time) TimestamptzValue() (pgtype.Timestamptz, error) {
	return pgtype.Timestamptz{Time: t.Time, Valid: true}, nil
}

// Limit is the greatest number of rows that a caller wants. 0 is no wish: the tool's default holds.
type Limit int

// UnmarshalJSON accepts every way to write an integer, such as 10.0, as JSON Schema does.
func (l *Limit) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseFloat(string(data), 64)
	if err != nil || n != float64(int(n)) {
		return fmt.Errorf("%s is no integer", clip(string(data), 50))
	}
	*l = Limit(n)
	return nil
}

// or returns the limit to use. The registry bounds what a caller may say; most bounds it for a registry that does not.
func (l Limit) or(standard, most int) int {
	if l <= 0 {
		return standard
	}
	return min(int(l), most)
}

// ContextRef names what a row is about, such as a lead. GEM stores it and does not look it up.
type ContextRef struct {
	Type string `json:"type,omitempty"`
	ID   string `json:"id,omitempty"`
}

// rowID is the id of a row of a table. Rows have uuids as ids, so any other string names no row.
func rowID(table, id string) (string, error) {
	if !isUUID(id) {
		return "", NotFound(table, clip(id, 100))
	}
	return id, nil
}

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
		default:
			return false
		}
	}
	return true
}

// orNull makes an optional string that the caller left out a null.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// orNullJSON makes an optional object that the caller left out a null.
func orNullJSON(raw json.RawMessage) *json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return &raw
}

// maxWords bounds what one search costs, however long its query is.
const maxWords = 20

// words turns a query into patterns for `ilike all`: a row matches when each word occurs somewhere in it, without case.
// What means something to ILIKE is taken literally. An empty query matches every row; words beyond the 20th are ignored.
func words(query string) []string {
	patterns := []string{}
	for word := range strings.FieldsSeq(query) {
		if len(patterns) == maxWords {
			break
		}
		patterns = append(patterns, "%"+strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(word)+"%")
	}
	return patterns
}

// clip shortens a text of others to at most n bytes for a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// A rule checks one value of a patch and returns it as it is to be stored, or the keyword of JSON Schema that it breaks and
// the end of a sentence on what it must be.
type rule func(raw json.RawMessage) (value any, keyword, fault string)

// patchFault has the form of the faults that the registry's validation reports.
type patchFault struct {
	Path    string `json:"path"`
	Keyword string `json:"keyword"`
	Message string `json:"message"`
}

// readPatch checks a patch against the columns that may be patched and returns it as stored, or all its faults in one
// validation_error. An absent patch is an empty one.
func readPatch(raw json.RawMessage, columns map[string]rule) (map[string]any, error) {
	given := map[string]json.RawMessage{}
	if orNullJSON(raw) != nil {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, refusedPatch([]patchFault{{"/patch", "type", "patch must be an object"}})
		}
	}
	patch := map[string]any{}
	var faults []patchFault
	for _, key := range slices.Sorted(maps.Keys(given)) {
		path := "/patch/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(clip(key, 100))
		check, known := columns[key]
		if !known {
			faults = append(faults, patchFault{path, "additionalProperties", fmt.Sprintf("%q can not be patched: the keys are %s",
				clip(key, 100), strings.Join(slices.Sorted(maps.Keys(columns)), ", "))})
			continue
		}
		value, keyword, fault := check(given[key])
		if fault != "" {
			faults = append(faults, patchFault{path, keyword, key + " " + fault})
			continue
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
	return &Failure{Code: "validation_error", Message: message + ".", Details: faults}
}

// text is a string of at most limit characters; 0 is no limit.
func text(limit int) rule {
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

func oneOf(values ...string) rule {
	return func(raw json.RawMessage) (any, string, string) {
		var s string
		if json.Unmarshal(raw, &s) != nil || !slices.Contains(values, s) {
			return nil, "enum", "must be one of " + strings.Join(values, ", ")
		}
		return s, "", ""
	}
}

func dateTime(raw json.RawMessage) (any, string, string) {
	var t Time
	if json.Unmarshal(raw, &t) != nil {
		return nil, "format", "must be a date-time such as 2026-01-31T09:30:00Z"
	}
	return t, "", ""
}

func object(raw json.RawMessage) (any, string, string) {
	if !bytes.HasPrefix(raw, []byte("{")) {
		return nil, "type", "must be an object"
	}
	return raw, "", ""
}

// orEmpty lets null through, which empties the column.
func orEmpty(check rule) rule {
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

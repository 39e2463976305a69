// Package value has the types and functions that domains share: times and limits of inputs, the words of a search,
// patches, and texts of others.
package value

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgtype"
)

// Time is a moment: RFC 3339 in JSON, always written in UTC, and a timestamptz in Postgres. It reads everything that
// the format date-time allows, which is more than Go's parser accepts: lower-case letters, and a leap second, which
// becomes the next second.
type Time struct{ time.Time }

// UnmarshalJSON rejects a time outside the years 1 to 9999 in UTC, because RFC 3339 cannot represent it.
func (t *Time) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	text := strings.ToUpper(s)
	leap := len(text) > 19 && text[17:19] == "60"
	if leap {
		text = text[:17] + "59" + text[19:]
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("%q is not a date-time such as 2026-01-31T09:30:00Z", receipts.Shorten(s, 50))
	}
	if leap {
		parsed = parsed.Add(time.Second)
	}
	t.Time = parsed.UTC()
	if t.Year() < 1 || t.Year() > 9999 {
		return fmt.Errorf("%q lies outside the years 1 to 9999 in UTC", receipts.Shorten(s, 50))
	}
	return nil
}

// MarshalJSON writes RFC 3339 in UTC, with as many digits of a second as are needed.
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(time.RFC3339Nano)) }

// ScanTimestamptz reads a timestamptz.
func (t *Time) ScanTimestamptz(v pgtype.Timestamptz) error {
	t.Time = v.Time.UTC()
	return nil
}

// TimestamptzValue returns the timestamptz to write.
func (t Time) TimestamptzValue() (pgtype.Timestamptz, error) {
	return pgtype.Timestamptz{Time: t.Time, Valid: true}, nil
}

// Limit is the maximum number of rows that a caller wants; 0 means the tool's default.
type Limit int

// UnmarshalJSON accepts every way to write an integer, such as 10.0, as JSON Schema does.
func (l *Limit) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseFloat(string(data), 64)
	if err != nil || n != float64(int(n)) {
		return fmt.Errorf("%s is not an integer", receipts.Shorten(string(data), 50))
	}
	*l = Limit(n)
	return nil
}

// Or returns the limit to use, at most most. The registry should also limit it.
func (l Limit) Or(standard, most int) int {
	if l <= 0 {
		return standard
	}
	return min(int(l), most)
}

// ContextRef names the subject of a row, such as a lead. GEM stores it and does not look it up.
type ContextRef struct {
	Type string `json:"type,omitempty"`
	ID   string `json:"id,omitempty"`
}

package value_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/handlers/value"
)

func TestTimesAreReadAsTheFormatAllowsAndWrittenInUTC(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"2026-01-31T09:30:00Z":       "2026-01-31T09:30:00Z",
		"2026-01-31T09:30:00+10:00":  "2026-01-30T23:30:00Z",
		"2026-01-31t09:30:00.250z":   "2026-01-31T09:30:00.25Z",
		"2016-12-31T23:59:60Z":       "2017-01-01T00:00:00Z", // a leap second
		"0001-01-01T00:00:00Z":       "0001-01-01T00:00:00Z",
		"9999-12-31T23:59:59-00:00":  "9999-12-31T23:59:59Z",
		"9999-12-31T23:59:59-10:00":  "", // is in the year 10000
		"0000-06-01T00:00:00Z":       "",
		"2026-01-31":                 "",
		"2026-02-30T00:00:00Z":       "",
		"2026-01-31T+9:30:00Z":       "",
		"yesterday":                  "",
		strings.Repeat("9", 100_000): "",
	} {
		var parsed value.Time
		quoted, _ := json.Marshal(in)
		err := json.Unmarshal(quoted, &parsed)
		if want == "" {
			if err == nil {
				t.Errorf("%.40s: got %v, want an error", in, parsed)
			} else if len(err.Error()) > 200 {
				t.Errorf("%.40s: the error has %d bytes", in, len(err.Error()))
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got, _ := json.Marshal(parsed); string(got) != `"`+want+`"` {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestALimitIsAnyWayToWriteAnInteger(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]value.Limit{"10": 10, "10.0": 10, "1e1": 10} {
		var got value.Limit
		if err := json.Unmarshal([]byte(in), &got); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"10.5", `"10"`, "1e400", "true"} {
		var got value.Limit
		if err := json.Unmarshal([]byte(in), &got); err == nil {
			t.Errorf("%s: got %d, want an error", in, got)
		}
	}
}

func TestSearchedWordsAreTakenLiterally(t *testing.T) {
	t.Parallel()
	for query, want := range map[string][]string{
		"":                       {},
		"  leaking\troof ":       {"%leaking%", "%roof%"},
		`50% off_all c:\x`:       {`%50\%%`, `%off\_all%`, `%c:\\x%`},
		strings.Repeat("a ", 99): value.Words(strings.Repeat("a ", 20)),
	} {
		if diff := cmp.Diff(want, value.Words(query)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", query, diff)
		}
	}
}

func TestAUUIDIsWrittenInOneForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55": true, "0B8F6E1C-3A52-4C1E-9F63-2D7A1B9C4E55": true,
		"0b8f6e1c3a524c1e9f632d7a1b9c4e55":       false,
		"{0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55}": false, "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55\n": false, "": false,
	} {
		if got := value.IsUUID(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

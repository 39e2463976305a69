package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
)

// What the commands say in words: times, durations, and what came of a call.

// moment writes a time for people: in UTC, as the logs and the database do.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// span writes a duration for people: 12 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	two := func(big time.Duration, bigName string, small time.Duration, smallName string) string {
		said := fmt.Sprintf("%d %s %d %s", d/big, bigName, d%big/small, smallName)
		return strings.TrimSuffix(said, " 0 "+smallName)
	}
	switch {
	case d < time.Millisecond:
		return "less than 1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Truncate(100*time.Millisecond).Seconds()), ".0") + " s"
	case d < time.Hour:
		return two(time.Minute, "min", time.Second, "s")
	case d < day:
		return two(time.Hour, "h", time.Minute, "min")
	}
	return two(day, "d", time.Hour, "h")
}

// milliseconds is the duration that a receipt states.
func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if before, ok := strings.CutSuffix(thing, "y"); ok {
		return fmt.Sprintf("%d %sies", n, before)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// cut shortens a text to one line of at most n characters. Frontends and services choose much of what is shown, so what
// could steer a terminal becomes a space.
func cut(s string, n int) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.ContainsAny(s[len(s)-1:], ".!?") {
		return s
	}
	return s + "."
}

// upshot says in a few words what came of a call.
func upshot(r *receipts.Receipt) string {
	switch r.Status {
	case receipts.Failed:
		if e, ok := r.Error(); ok {
			return fmt.Sprintf("%s: %s", e.Code, e.Message)
		}
	case receipts.NotConfigured:
		m := missingSetup(r)
		if len(m.RequiredEnv) > 0 {
			return "needs " + strings.Join(m.RequiredEnv, ", ")
		}
		return m.Reason
	}
	return brief(r.Result)
}

// missingSetup is what a not_configured receipt says; what is not there stays empty.
func missingSetup(r *receipts.Receipt) (m handlers.NotConfigured) {
	_ = json.Unmarshal(r.Result, &m)
	return m
}

// brief writes a JSON object as its fields: a text or a number as it is, a list as its length.
func brief(result json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(result, &fields) != nil || len(fields) == 0 {
		return string(result)
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		said := string(fields[name])
		var value any
		_ = json.Unmarshal(fields[name], &value) // has been valid as part of the whole
		switch v := value.(type) {
		case map[string]any:
			said = "{…}"
		case []any:
			said = count(len(v), "entry")
		case string:
			said = cmp.Or(v, said)
		}
		parts = append(parts, name+" "+said)
	}
	return strings.Join(parts, ", ")
}

// printable keeps a text of others from drawing on a terminal, or turning its lines round.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, s)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table writes rows in aligned columns. The first row is the head.
func table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		// A column is ended by a tab; the last one needs no padding.
		if _, err := fmt.Fprintln(t, strings.TrimRight(strings.Join(row, "\t"), "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

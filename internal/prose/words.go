// Package prose puts the values of packages client and receipts into words for people: the state of a call and the
// reason, and the events of its journal. Commands and pages use the same words.
package prose

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/receipts"
)

// Moment formats a time for people: in UTC, like the logs and the database.
func Moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Span formats a duration for people, rounded: 12 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h.
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	two := func(big time.Duration, bigName string, small time.Duration, smallName string) string {
		said := fmt.Sprintf("%d %s %d %s", d/big, bigName, d%big/small, smallName)
		return strings.TrimSuffix(said, " 0 "+smallName)
	}
	for _, shown := range []struct{ below, unit time.Duration }{
		{time.Second, time.Millisecond}, {time.Minute, 100 * time.Millisecond}, {time.Hour, time.Second}, {day, time.Minute},
		{math.MaxInt64, time.Hour},
	} {
		if d < shown.below {
			d = d.Round(shown.unit)
			break
		}
	}
	switch {
	case d < time.Millisecond:
		return "less than 1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
	case d < time.Hour:
		return two(time.Minute, "min", time.Second, "s")
	case d < day:
		return two(time.Hour, "h", time.Minute, "min")
	}
	return two(day, "d", time.Hour, "h")
}

// Milliseconds returns the duration of a receipt.
func Milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Count formats a number of things: 1 call, 2 calls.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if before, ok := strings.CutSuffix(thing, "y"); ok {
		return fmt.Sprintf("%d %sies", n, before)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Cut shortens a text to one line of at most n characters. Frontends and services choose much of the text, so
// characters that could control a terminal become spaces.
func Cut(s string, n int) string {
	return oneline.Cut(strings.Join(strings.Fields(Printable(s)), " "), n)
}

// Sentence adds a full stop to a text without an end mark.
func Sentence(s string) string {
	s = strings.TrimSpace(s)
	if said := strings.TrimRight(s, "\u201d"); said == "" || strings.ContainsAny(said[len(said)-1:], ".!?") {
		return s
	}
	return s + "."
}

// Upshot describes the result of a call in a few words.
func Upshot(r *receipts.Receipt) string {
	switch r.Status {
	case receipts.Failed:
		if e, ok := r.Error(); ok {
			return fmt.Sprintf("%s: %s", e.Code, e.Message)
		}
	case receipts.NotConfigured:
		m := MissingSetup(r)
		if len(m.RequiredEnv) > 0 {
			return "needs " + strings.Join(m.RequiredEnv, ", ")
		}
		return m.Reason
	}
	return Brief(r.Result)
}

// MissingSetup is what a not_configured receipt says; what is not there stays empty.
func MissingSetup(r *receipts.Receipt) (m receipts.Setup) {
	_ = json.Unmarshal(r.Result, &m)
	for i, variable := range m.RequiredEnv { // a backend may have named it
		m.RequiredEnv[i] = Cut(variable, 200)
	}
	return m
}

// Brief formats a JSON object as its fields: a text or a number unchanged, a list as its length.
func Brief(result json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(result, &fields) != nil || len(fields) == 0 {
		return string(result)
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		said := string(fields[name])
		var value any
		_ = json.Unmarshal(fields[name], &value) // it is valid as a part of valid JSON
		switch v := value.(type) {
		case map[string]any:
			said = "{…}"
		case []any:
			said = Count(len(v), "entry")
		case string:
			said = cmp.Or(v, said)
		}
		parts = append(parts, name+" "+said)
	}
	return strings.Join(parts, ", ")
}

// Argument quotes others' text as one printable word of a shell command that people copy.
func Argument(s string) string { return "'" + strings.ReplaceAll(Printable(s), "'", `'\''`) + "'" }

// Printable prevents others' text from drawing on a terminal, or reordering its lines.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if oneline.Hidden(r) || r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, s)
}

// Package prose says in words what the values of package client and receipts mean, for people: where a call stands and why, what an event of
// its journal tells. Commands and pages say it alike.
package prose

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
)

// Moment writes a time for people: in UTC, as the logs and the database do.
func Moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Span writes a duration for people: 12 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h.
func Span(d time.Duration) string {
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

// Milliseconds is the duration that a receipt states.
func Milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Count writes a number of things: 1 call, 2 calls.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if before, ok := strings.CutSuffix(thing, "y"); ok {
		return fmt.Sprintf("%d %sies", n, before)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Cut shortens a text to one line of at most n characters. Frontends and services choose much of what is shown, so what
// could steer a terminal becomes a space.
func Cut(s string, n int) string {
	s = strings.Join(strings.Fields(Printable(s)), " ")
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// Sentence ends a text with a full stop where it has no end.
func Sentence(s string) string {
	s = strings.TrimSpace(s)
	if said := strings.TrimRight(s, "\u201d"); said == "" || strings.ContainsAny(said[len(said)-1:], ".!?") {
		return s
	}
	return s + "."
}

// Upshot says in a few words what came of a call.
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
func MissingSetup(r *receipts.Receipt) (m handlers.NotConfigured) {
	_ = json.Unmarshal(r.Result, &m)
	for i, variable := range m.RequiredEnv { // a service elsewhere may have named it
		m.RequiredEnv[i] = Cut(variable, 200)
	}
	return m
}

// Brief writes a JSON object as its fields: a text or a number as it is, a list as its length.
func Brief(result json.RawMessage) string {
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
			said = Count(len(v), "entry")
		case string:
			said = cmp.Or(v, said)
		}
		parts = append(parts, name+" "+said)
	}
	return strings.Join(parts, ", ")
}

// Argument is a text of others, printable and in quotes, as one word of a command that is shown to be copied into a shell.
func Argument(s string) string { return "'" + strings.ReplaceAll(Printable(s), "'", `'\''`) + "'" }

// Printable keeps a text of others from drawing on a terminal, or turning its lines round.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, s)
}

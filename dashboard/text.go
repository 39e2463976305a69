package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/internal/provider"
)

// funcs returns the functions of the templates.
func (s *site) funcs() template.FuncMap {
	return template.FuncMap{
		"static": func(base, file string) (string, error) {
			if s.hashed[file] == "" {
				return "", fmt.Errorf("there is no static file %s", file)
			}
			return base + "/static/" + s.hashed[file], nil
		},
		"thousands": thousands, "percent": percent, "words": words, "upper": upper,
		"stateWord": stateWord, "stateText": stateText,
		"json": indented, "span": prose.Span, "when": when, "clock": clock, "newForm": newForm, "short": short,
		"list":     func(v ...any) []any { return v },
		"ruleAsks": ruleAsks, "inside": prose.Inside, "value": oneline.Value, "dict": dict, "segment": url.PathEscape, "usd": usd, "usdText": usdText,
		"ms": ms, "cut": cut, "size": size,
	}
}

// mostIndent limits the bytes that indentation adds to JSON: lists nested thousands deep would fill the memory.
const mostIndent = 4 << 20

// indented prints JSON over several lines, unless it is nested too deeply. Numbers keep their digits.
func indented(raw json.RawMessage) string {
	var out bytes.Buffer
	if d := depth(raw); d > 10 && d*len(raw) > mostIndent || json.Indent(&out, raw, "", "  ") != nil {
		return string(raw)
	}
	return out.String()
}

// depth returns how deeply JSON is nested.
func depth(raw json.RawMessage) (most int) {
	d, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			d++
			most = max(most, d)
		case c == ']', c == '}':
			d--
		}
	}
	return most
}

// short returns the end of an id, where ids of the same moment differ.
func short(id string) string {
	if len(id) <= 8 {
		return id
	}
	return id[len(id)-8:]
}

// ms formats a duration in milliseconds like span. It returns "" for nil.
func ms(d *float64) string {
	if d == nil {
		return ""
	}
	if *d < 1 {
		return "< 1 ms"
	}
	return prose.Span(prose.Milliseconds(*d))
}

// usd formats an amount in 10⁻⁹ USD: with cents from one dollar up, and with three significant digits below.
// static/plot.js formats axes in the same way.
func usd(amount int64) string {
	sign := ""
	if amount < 0 {
		sign, amount = "-", max(-amount, 0)
	}
	unit := int64(provider.USD) / 100 // the unit of rounding: a cent, or less for small amounts
	for amount > 0 && amount < int64(provider.USD) && unit > 1 && amount < 100*unit {
		unit /= 10
	}
	amount = (amount + unit/2) / unit * unit
	if amount == 0 {
		return "$0"
	}
	whole, part := amount/int64(provider.USD), fmt.Sprintf("%09d", amount%int64(provider.USD))
	return sign + "$" + thousands(whole) + "." + part[:2] + strings.TrimRight(part[2:], "0")
}

// usdText formats an amount in decimal digits like usd. It returns any other text unchanged.
func usdText(amount string) string {
	m, err := provider.ParseMoney(amount)
	if err != nil {
		return amount
	}
	return usd(int64(m))
}

// size formats a number of bytes for people.
func size(n int) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d bytes", n)
	case n < 1e6:
		return fmt.Sprintf("%.1f KB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// cut is [oneline.Cut] for templates.
func cut(most int, s string) string { return oneline.Cut(s, most) }

// firstLines returns the first lines of a text, without empty ones.
func firstLines(most int, s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if len(lines) == most {
			return strings.Join(lines, "\n") + "…"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// cutBytes returns the beginning of a text, at most the given number of bytes.
func cutBytes(s string, most int) string {
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// when returns a <time>: relative to now, with the exact time in its title. gem.js keeps it up to date, and shows
// local time if the user chose that.
func when(t time.Time) template.HTML {
	if t.IsZero() {
		return ""
	}
	exact := t.UTC().Format("2006-01-02T15:04:05.000Z")
	ago := time.Since(t)
	said := prose.Span(ago) + " ago"
	if ago < 0 {
		said = "in " + prose.Span(-ago)
	}
	return template.HTML(`<time datetime="` + exact + `" title="` + t.UTC().Format("2006-01-02 15:04:05.000 UTC") + `">` +
		said + `</time>`)
}

// clock returns the time of day, in UTC; gem.js shows local time if the user chose that.
func clock(t time.Time) template.HTML {
	t = t.UTC()
	return template.HTML(`<time class="clock" datetime="` + t.Format(time.RFC3339) + `" title="` +
		t.Format("2006-01-02 15:04 UTC") + `">` + t.Format("15:04") + `</time>`)
}

// percent formats a share of calls.
func percent(part, all int64) string {
	if all == 0 {
		return "–"
	}
	share := strconv.FormatFloat(math.Floor(1000*float64(part)/float64(all))/10, 'f', 1, 64)
	return strings.TrimSuffix(share, ".0") + " %"
}

// upper capitalises the first letter of a text.
func upper(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[size:]
}

// dict returns a map of names and values, as the data of a part.
func dict(pairs ...any) (map[string]any, error) {
	d := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("%v is not a name", pairs[i])
		}
		d[name] = pairs[i+1]
	}
	return d, nil
}

// ruleAsks reports whether a call of this name asks people on behalf of rules.
func ruleAsks(name string) bool { return prose.AsksPeople([]string{name}) }

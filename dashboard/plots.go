package dashboard

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/prose"
)

// plots are figures of one table of numbers: template plots. The server draws them roughly; plot.js adds axes.
type plots struct {
	Table   string // its id, unique on the page
	Minutes []view.Minute
	Step    string // between two points, in words
	Figures []figure
}

// figure draws columns of the table.
type figure struct {
	Title   string
	More    string // shown after the totals
	Unit    string // calls, ms or usd
	Columns string // their positions in the table
	Colors  string
	Lines   []line
	Empty   bool // it has no point, or all are zero
}

type line struct {
	Label, Color string   // Label is its total
	Pieces       []string // points of an SVG polyline in 600 × 100, between gaps
}

// plotsOf returns plots of the calls that ended in each minute: outcomes, durations, waits, and cost if there is any.
// all has the totals.
func plotsOf(table string, minutes []view.Minute, all view.Totals) plots {
	// Calls are counted up to half a minute after their end: until then a minute looks too low.
	for n := len(minutes); n > 0 && time.Since(minutes[n-1].At) < time.Duration(minutes[n-1].Step)*time.Second+
		30*time.Second; n = len(minutes) {
		minutes = minutes[:n-1]
	}
	p := plots{Table: table, Minutes: minutes, Step: "minute"}
	if len(minutes) == 0 {
		return p
	}
	if step := minutes[0].Step / 60; step > 1 {
		p.Step = fmt.Sprintf("%d minutes", step)
	}
	outcomes := []column{
		{1, thousands(all.Succeeded) + " succeeded", "good", func(m view.Minute) *float64 { return number(m.Succeeded) }},
		{2, thousands(all.Failed) + " failed", "bad", func(m view.Minute) *float64 { return number(m.Failed) }},
	}
	if all.Refused > 0 {
		outcomes = append(outcomes, column{3, thousands(all.Refused) + " refused", "refuse",
			func(m view.Minute) *float64 { return number(m.Refused) }})
	}
	if all.NotConfigured > 0 {
		outcomes = append(outcomes, column{5, thousands(all.NotConfigured) + " not configured", "warn",
			func(m view.Minute) *float64 { return number(m.NotConfigured) }})
	}
	p.draw("Calls ended per "+p.Step, "calls", outcomes...)
	if all.Hits > 0 {
		p.Figures[0].More = prose.Count(int(all.Hits), "hit")
	}
	p.draw("Duration", "ms",
		column{7, "p50 " + orDash(all.P50MS), "accent", func(m view.Minute) *float64 { return m.P50MS }},
		column{8, "p95 " + orDash(all.P95MS), "soft", func(m view.Minute) *float64 { return m.P95MS }})
	p.draw("Waiting for a worker", "ms",
		column{9, "p50 " + orDash(all.QueueP50MS), "accent", func(m view.Minute) *float64 { return m.QueueP50MS }},
		column{10, "p95 " + orDash(all.QueueP95MS), "soft", func(m view.Minute) *float64 { return m.QueueP95MS }})
	requests, cost := 0, int64(0)
	for _, m := range minutes {
		requests, cost = requests+m.Requests, cost+m.Cost
	}
	if requests > 0 {
		p.draw("Cost of models per "+p.Step, "usd",
			column{11, fmt.Sprintf("%s for %s", usd(cost), prose.Count(requests, "request")), "accent",
				func(m view.Minute) *float64 { return number(m.Cost) }})
	}
	return p
}

func orDash(d *float64) string { return cmp.Or(ms(d), "–") }

// thousands formats a number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

type column struct {
	place        int
	label, color string
	of           func(view.Minute) *float64 // returns nil for a missing value
}

func number(n int64) *float64 {
	v := float64(n)
	return &v
}

func (p *plots) draw(title, unit string, columns ...column) {
	f := figure{Title: title, Unit: unit, Empty: true}
	most := 0.0
	for _, c := range columns {
		for _, m := range p.Minutes {
			if v := c.of(m); v != nil {
				most = max(most, *v)
				f.Empty = f.Empty && *v == 0 && unit != "usd" // models may be free
			}
		}
	}
	for i, c := range columns {
		if i > 0 {
			f.Columns, f.Colors = f.Columns+" ", f.Colors+" "
		}
		f.Columns, f.Colors = f.Columns+fmt.Sprint(c.place), f.Colors+c.color
		l := line{Label: c.label, Color: c.color}
		var piece strings.Builder
		for j, m := range p.Minutes {
			v := c.of(m)
			if v == nil {
				l.Pieces, piece = add(l.Pieces, piece), strings.Builder{}
				continue
			}
			x, y := 600*float64(j)/float64(max(len(p.Minutes)-1, 1)), 99.0
			if most > 0 {
				y -= 96 * *v / most
			}
			if piece.Len() == 0 { // a single point must be visible
				fmt.Fprintf(&piece, "%.1f,%.1f ", x-3, y)
			}
			fmt.Fprintf(&piece, "%.1f,%.1f ", x, y)
		}
		l.Pieces = add(l.Pieces, piece)
		f.Lines = append(f.Lines, l)
	}
	p.Figures = append(p.Figures, f)
}

func add(pieces []string, piece strings.Builder) []string {
	if piece.Len() == 0 {
		return pieces
	}
	return append(pieces, strings.TrimSpace(piece.String()))
}

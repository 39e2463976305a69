package view

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
)

// Totals summarises the calls that ended in a period, as far as workers have counted them: calls of the last 15 to 30
// s are missing.
type Totals struct {
	Succeeded int64 `json:"succeeded"`
	// Failed excludes the calls that were Refused, by rules, people or the tool's terms, or Cancelled: see
	// [receipts.Kind].
	Failed        int64 `json:"failed"`
	Refused       int64 `json:"refused"`
	Cancelled     int64 `json:"cancelled"`
	NotConfigured int64 `json:"not_configured"`
	Hits          int64 `json:"hits"` // among the succeeded
	// P50MS and P95MS are the median and the 95th percentile of the durations of calls, without hits; QueueP50MS and
	// QueueP95MS those of the time between due and claimed, from a sample. They are exact to an eighth; nil if no
	// call was measured.
	P50MS      *float64 `json:"p50_ms,omitempty"`
	P95MS      *float64 `json:"p95_ms,omitempty"`
	QueueP50MS *float64 `json:"queue_p50_ms,omitempty"`
	QueueP95MS *float64 `json:"queue_p95_ms,omitempty"`
}

// Ended returns the number of calls in the totals.
func (t Totals) Ended() int64 {
	return t.Succeeded + t.Failed + t.Refused + t.Cancelled + t.NotConfigured
}

// Minute is a point of a plot: the calls that ended in the Step seconds from At.
type Minute struct {
	At   time.Time `json:"at"`
	Step int       `json:"step"` // seconds: 60 for up to 6 h, 300 for up to 30 h, otherwise 900
	Totals
	// Requests counts the requests to models that began in that time, and Cost is their cost, in 10⁻⁹ USD: as
	// providers reported it, or as reserved if it is unknown.
	Requests int   `json:"requests,omitempty"`
	Cost     int64 `json:"cost,omitempty"`
}

const (
	kept         = 72 * time.Hour // how long gem.throughput keeps a minute
	mostRequests = 100_000        // whose cost Minutes adds up
)

// Minutes returns the points from one time to another, without gaps, of one tool, or of all if tool is empty, without
// questions to people. It covers the last 72 h; zero times mean the last hour. all has the totals. Only the first
// 100,000 requests to models are counted.
func Minutes(ctx context.Context, db DB, from, to time.Time, tool string) (minutes []Minute, all Totals, err error) {
	var now time.Time
	if err := db.QueryRow(ctx, "select gem.now()").Scan(&now); err != nil {
		return nil, all, fmt.Errorf("read the time: %w", err)
	}
	if to.IsZero() || to.After(now) {
		to = now
	}
	if from.IsZero() {
		from = to.Add(-time.Hour)
	}
	if oldest := now.Add(-kept); from.Before(oldest) {
		from = oldest
	}
	if to.Before(from) {
		return nil, all, nil
	}
	step := stepOf(to.Sub(from))
	from = from.UTC().Truncate(step)
	minutes = make([]Minute, to.Sub(from)/step+1)
	ended := make([]counts, len(minutes))
	at := func(t time.Time) int { return min(max(int(t.Sub(from)/step), 0), len(minutes)-1) }

	rows, err := db.Query(ctx, `select minute, tool_name <> $3::text, succeeded, failed, refused, cancelled,
		not_configured, hits, durations, waits
		from gem.throughput where minute >= $1 and minute < $2 and tool_name = any ($4::text[])`, from, to, tool,
		namesOf(tool))
	if err == nil {
		var one counts
		var minute time.Time
		var question bool
		into := []any{&minute, &question, &one.Succeeded, &one.Failed, &one.Refused, &one.Cancelled, &one.NotConfigured,
			&one.Hits, &one.Durations, &one.Waits}
		_, err = pgx.ForEachRow(rows, into, func() error {
			ended[at(minute)].addOrTake(one, question)
			return nil
		})
	}
	var sums counts
	for i := range minutes {
		sums.add(ended[i])
		minutes[i] = Minute{At: from.Add(time.Duration(i) * step), Step: int(step.Seconds()), Totals: ended[i].totals()}
	}
	if err == nil { // only a bitmap scan can use the index of their times
		_, err = db.Exec(ctx, "set local enable_bitmapscan = on")
	}
	if err == nil {
		rows, err = db.Query(ctx, `select date_bin($4::text::interval, q.at, $1), count(*),
			sum(coalesce(q.cost, q.reserved))::bigint
			from (select at, cost, reserved from gem.model_requests where at >= $1 and at < $2
				and ($3::text = '' or tool_name = $3::text) limit $5::int) q
			group by 1`, from, to, tool, fmt.Sprintf("%d seconds", int(step.Seconds())), mostRequests)
	}
	if err == nil {
		var minute time.Time
		var requests int
		var cost int64
		_, err = pgx.ForEachRow(rows, []any{&minute, &requests, &cost}, func() error {
			minutes[at(minute)].Requests, minutes[at(minute)].Cost = requests, cost
			return nil
		})
	}
	if err == nil {
		_, err = db.Exec(ctx, "set local enable_bitmapscan = off")
	}
	if err != nil {
		return nil, all, fmt.Errorf("read the calls that ended by minute: %w", err)
	}
	return minutes, sums.totals(), nil
}

// namesOf returns the names of the rows of gem.throughput from which [counts.addOrTake] computes the counts of a tool.
// The empty name means all tools: the questions to people are subtracted, so that an approval counts once, as the call
// that was approved.
func namesOf(tool string) []string {
	if tool != "" {
		return []string{tool}
	}
	return append([]string{""}, registry.Asking...)
}

// stepOf returns the time between two points. A plot has at most 360.
func stepOf(span time.Duration) time.Duration {
	switch {
	case span <= 6*time.Hour:
		return time.Minute
	case span <= 30*time.Hour:
		return 5 * time.Minute
	}
	return 15 * time.Minute
}

// counts is a sum of rows of gem.throughput.
type counts struct {
	Succeeded     int64   `json:"succeeded"`
	Failed        int64   `json:"failed"`
	Refused       int64   `json:"refused"`
	Cancelled     int64   `json:"cancelled"`
	NotConfigured int64   `json:"not_configured"`
	Hits          int64   `json:"hits"`
	Durations     []int64 `json:"durations"` // the number of calls by bucket of duration
	Waits         []int64 `json:"waits"`
}

func (c *counts) add(o counts) {
	c.Succeeded += o.Succeeded
	c.Failed += o.Failed
	c.Refused += o.Refused
	c.Cancelled += o.Cancelled
	c.NotConfigured += o.NotConfigured
	c.Hits += o.Hits
	c.Durations = sum(c.Durations, o.Durations)
	c.Waits = sum(c.Waits, o.Waits)
}

// addOrTake adds o, or subtracts it if it is part of the sum.
func (c *counts) addOrTake(o counts, take bool) {
	if take {
		o.Succeeded, o.Failed, o.Refused, o.Cancelled = -o.Succeeded, -o.Failed, -o.Refused, -o.Cancelled
		o.NotConfigured, o.Hits = -o.NotConfigured, -o.Hits
		o.Durations, o.Waits = negative(o.Durations), negative(o.Waits)
	}
	c.add(o)
}

func negative(all []int64) []int64 {
	out := make([]int64, len(all))
	for i, n := range all {
		out[i] = -n
	}
	return out
}

func sum(a, b []int64) []int64 {
	if len(b) > len(a) {
		a = append(slices.Clone(a), make([]int64, len(b)-len(a))...)
	}
	for i, n := range b {
		a[i] += n
	}
	return a
}

func (c counts) totals() Totals {
	return Totals{Succeeded: c.Succeeded, Failed: c.Failed, Refused: c.Refused, Cancelled: c.Cancelled,
		NotConfigured: c.NotConfigured, Hits: c.Hits,
		P50MS: part(c.Durations, 0.5), P95MS: part(c.Durations, 0.95), QueueP50MS: part(c.Waits, 0.5),
		QueueP95MS: part(c.Waits, 0.95)}
}

// part is gem.part_ms: the middle of the bucket that contains a fraction of the counts; nil if there are none.
func part(counts []int64, of float64) *float64 {
	var all, upto int64
	for _, n := range counts {
		all += n
	}
	for bucket, n := range counts {
		if upto += n; n > 0 && float64(upto) >= of*float64(all) {
			ms := 0.1 * math.Pow(1.25, float64(bucket)-0.5)
			digits := 1.0
			if ms < 10 {
				digits = 100
			} else if ms < 100 {
				digits = 10
			}
			ms = math.Round(ms*digits) / digits
			return &ms
		}
	}
	return nil
}

package main

import (
	"cmp"
	"math"
	"slices"
)

// figure is the result of one run of a contestant.
type figure struct {
	measure, contestant, unit string

	value   float64
	singles []float64 // the single calls, whose median is value; nil if they are not timed
	series  []float64 // calls in each second, for snapshot
}

// row is the result of all rounds: a line of the table and an object of the JSON file.
type row struct {
	Measure    string    `json:"measure"`
	Contestant string    `json:"contestant"`
	Median     float64   `json:"median"`
	P99        *float64  `json:"p99"`
	Unit       string    `json:"unit"`
	Min        float64   `json:"min"`
	Max        float64   `json:"max"`
	Rounds     []float64 `json:"rounds"`
	Series     []float64 `json:"series,omitempty"`
}

// summarise returns a row for each measure and contestant, in the order of the table.
func summarise(figures []figure) (rows []row) {
	type key struct{ measure, contestant string }
	of := map[key][]figure{}
	var keys []key
	for _, f := range figures {
		k := key{f.measure, f.contestant}
		if of[k] == nil {
			keys = append(keys, k)
		}
		of[k] = append(of[k], f)
	}
	names := measureNames()
	slices.SortStableFunc(keys, func(a, b key) int {
		return cmp.Or(slices.Index(names, a.measure)-slices.Index(names, b.measure),
			slices.Index(contestantNames, a.contestant)-slices.Index(contestantNames, b.contestant))
	})
	for _, k := range keys {
		rows = append(rows, rowOf(of[k]))
	}
	return rows
}

func rowOf(figures []figure) row {
	first := figures[0]
	r := row{Measure: first.measure, Contestant: first.contestant, Unit: first.unit}
	var singles []float64
	for _, f := range figures {
		r.Rounds = append(r.Rounds, f.value)
		singles = append(singles, f.singles...)
	}
	r.Median, r.Min, r.Max = median(r.Rounds), slices.Min(r.Rounds), slices.Max(r.Rounds)
	if len(singles) > 0 {
		p99 := worstPercent(singles)
		r.P99, r.Min, r.Max = &p99, slices.Min(singles), slices.Max(singles)
	}
	byValue := slices.SortedFunc(slices.Values(figures), func(a, b figure) int { return cmp.Compare(a.value, b.value) })
	r.Series = byValue[(len(byValue)-1)/2].series
	return r
}

// median returns the middle value, or the mean of the two middle values. It returns NaN without values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return math.NaN()
	}
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// worstPercent returns the 99th percentile by the nearest rank: the lowest value that 99 % of the values do not exceed.
func worstPercent(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(0.99 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

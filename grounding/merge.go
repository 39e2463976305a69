package grounding

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/oneline"
)

func compareItems(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Class, b.Class))
}

// MergeAnswers combines two answers about the same window and returns the accepted items of both. If they disagree on
// the attributes of an item, the second answer wins, because it was asked for better ones. The wrong claims of the
// first answer count only if the second answer claims nothing readable.
func MergeAnswers(first, second Reading) Reading {
	switch {
	case first.Failure != "":
		if second.Failure == "" && second.Claimed == 0 && first.Claimed > 0 {
			second.Claimed, second.Rejected = first.Claimed, []Rejection{{Reason: first.Failure}}
		}
		return second
	case second.Failure != "":
		return first
	}
	r := Reading{Items: slices.Clone(second.Items), Rejected: slices.Clone(second.Rejected),
		Claimed: first.Claimed + second.Claimed}
	if second.Claimed == 0 {
		r.Rejected = slices.Clone(first.Rejected)
	}
	kept := map[place]Item{}
	for _, item := range second.Items {
		kept[place{item.Class, span{item.Start, item.End}}] = item
	}
	for _, item := range first.Items {
		switch same, ok := kept[place{item.Class, span{item.Start, item.End}}]; {
		case !ok:
			r.Items = append(r.Items, item)
		case string(same.Attributes) != string(item.Attributes):
			r.Rejected = append(r.Rejected, Rejection{item.Class, oneline.Cut(item.Quote, 200), Conflict})
		}
	}
	slices.SortFunc(r.Items, compareItems)
	return r
}

// Part is the reading of one shard.
type Part struct {
	Shard   Shard
	Reading Reading
}

// FoundItem is an item that was found in a document.
type FoundItem struct {
	Class string `json:"class"`
	// Quote is the given text from Start to End. Both offsets count the requested unit.
	Quote      string          `json:"quote"`
	Start      int             `json:"start"`
	End        int             `json:"end"`
	Line       int             `json:"line"` // line in which the item begins, from 1
	Match      string          `json:"match"`
	Attributes json.RawMessage `json:"attributes"`
	Inferred   bool            `json:"inferred"`
	Shard      int             `json:"shard"`
}

// Refusal is a rejection in a shard.
type Refusal struct {
	Shard int `json:"shard"`
	Rejection
}

// Merge combines the readings of all shards of a text. It returns the items sorted by start, end and class, and the
// rejections sorted by shard. The offsets count u. The order of the parts does not matter.
func Merge(t *Text, u Unit, parts []Part) ([]FoundItem, []Refusal) {
	parts = slices.Clone(parts)
	slices.SortStableFunc(parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Shard.Start, b.Shard.Start), cmp.Compare(a.Shard.End, b.Shard.End))
	})
	units, lines := t.Index(u), t.Lines()
	found, refused := []FoundItem{}, []Refusal{}
	kept := map[place]json.RawMessage{}
	for _, part := range parts {
		for _, rejected := range part.Reading.Rejected {
			refused = append(refused, Refusal{part.Shard.Index, rejected})
		}
		offset := part.Shard.Start - len(part.Shard.Before)
		for _, item := range part.Reading.Items {
			at := span{item.Start + offset, item.End + offset}
			key := place{item.Class, at}
			if attributes, ok := kept[key]; ok {
				if string(attributes) != string(item.Attributes) {
					refused = append(refused, Refusal{part.Shard.Index, Rejection{item.Class, oneline.Cut(item.Quote, 200), Conflict}})
				}
				continue
			}
			kept[key] = item.Attributes
			start, end := t.Given(at.start), t.Given(at.end)
			found = append(found, FoundItem{
				Class: item.Class, Quote: t.given[start:end], Start: units.At(start), End: units.At(end),
				Line:  lines.At(at.start) + 1,
				Match: item.Match, Attributes: item.Attributes, Inferred: item.Inferred, Shard: part.Shard.Index,
			})
		}
	}
	slices.SortStableFunc(found, func(a, b FoundItem) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Class, b.Class))
	})
	return found, refused
}

// Covered returns the share of the body's lines that an item touches, from 0 to 1, rounded to thousandths. It ignores
// blank lines. The items must be sorted by start.
func Covered(w Window, items []Item) float64 {
	begin := len(w.Before)
	// items[:next] begin before the end of the line, and reach is their greatest end
	lines, touched, next, reach := 0, 0, 0, 0
	for at := 0; at < len(w.Body); {
		line, _, _ := strings.Cut(w.Body[at:], "\n")
		start, end := begin+at, begin+at+len(line)
		at += len(line) + 1
		for next < len(items) && items[next].Start < end {
			reach = max(reach, items[next].End)
			next++
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		lines++
		if reach > start {
			touched++
		}
	}
	if lines == 0 {
		return 0
	}
	return math.Round(1000*float64(touched)/float64(lines)) / 1000
}

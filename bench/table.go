package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
)

// printTable prints a line for each row, and a blank line between measures.
func printTable(to io.Writer, rows []row) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "measure\tcontestant\tmedian\tspread\tp99\tworst\tunit\tto river-receipt\tto floor")
	for i, r := range rows {
		if i > 0 && rows[i-1].Measure != r.Measure {
			fmt.Fprintln(t, "\t\t\t\t\t\t\t\t")
		}
		p99, worst := "", ""
		if r.P99 != nil {
			p99, worst = number(*r.P99), number(r.Max)
		}
		spread := ""
		if len(r.Rounds) > 1 {
			spread = number(slices.Min(r.Rounds)) + "–" + number(slices.Max(r.Rounds))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Measure, r.Contestant, number(r.Median), spread, p99, worst,
			r.Unit,
			ratio(rows, r, "river-receipt"), ratio(rows, r, "floor"))
	}
	return t.Flush()
}

// ratio returns the row's median divided by that of another contestant in the same measure, or "" if there is none.
func ratio(rows []row, r row, contestant string) string {
	other := slices.IndexFunc(rows, func(o row) bool { return o.Measure == r.Measure && o.Contestant == contestant })
	if other < 0 || r.Contestant == contestant || rows[other].Median == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", r.Median/rows[other].Median)
}

// number formats a value with three significant digits, or with all digits before the decimal point if there are more.
func number(v float64) string {
	switch size := math.Abs(v); {
	case size >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func writeJSON(path string, rows []row) error {
	if rows == nil {
		rows = []row{}
	}
	encoded, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(encoded, '\n'), 0o644)
}

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTheRatioOfTwoProgramsIsThatOfEachRound(t *testing.T) {
	figure := func(measure string, v float64) row {
		return row{Measure: measure, Contestant: "gem", Unit: "µs/call", Median: v}
	}
	var all []pairs
	// In the second round the machine was busy.
	for _, round := range []struct{ here, there float64 }{{90, 100}, {190, 200}, {96, 120}} {
		all = addPairs(all, []row{figure("cpu", round.here), figure("only-here", 1)},
			[]row{figure("only-there", 1), figure("cpu", round.there)})
	}
	var table bytes.Buffer
	if err := printPairs(&table, all); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(table.String()), " ")
	if want := "cpu gem 96.0 90.0–190 120 100–200 µs/call 0.900 0.800–0.950"; !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want the end %q", got, want)
	}
	if strings.Contains(got, "only-") {
		t.Errorf("%q has a figure that one of them does not have", got)
	}
}

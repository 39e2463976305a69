package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestMedianAndPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"median of one", median([]float64{7}), 7},
		{"median of an odd count", median([]float64{9, 1, 4}), 4},
		{"median of an even count", median([]float64{9, 1, 4, 6}), 5},
		{"p99 of a hundred", worstPercent(hundred), 99},
		{"p99 of a few is the worst", worstPercent([]float64{3, 1, 2}), 3},
		{"last third to first, without the first second", lastToFirst([]float64{0, 10, 10, 10, 7, 5, 5, 5}), 0.5},
		{"last ten to first ten", lastToFirst(append(append([]float64{99}, hundred...), hundred...)), 55.0 / 955},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, c.got, c.want)
		}
	}
}

func TestARowStandsForItsRounds(t *testing.T) {
	rows := summarise([]figure{
		{measure: "throughput", contestant: "floor", unit: "calls/s", value: 400},
		{measure: "latency-1", contestant: "gem", unit: "ms", value: 2, singles: []float64{1, 2, 9}},
		{measure: "throughput", contestant: "gem", unit: "calls/s", value: 300},
		{measure: "latency-1", contestant: "gem", unit: "ms", value: 3, singles: []float64{3, 3, 3}},
		{measure: "throughput", contestant: "gem", unit: "calls/s", value: 200},
		{measure: "throughput", contestant: "gem", unit: "calls/s", value: 100},
	})
	var table bytes.Buffer
	if err := printTable(&table, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"throughput gem 200 100–300 calls/s 0.50",
		"throughput floor 400 calls/s",
		"latency-1 gem 2.50 2.00–3.00 9.00 9.00 ms",
	} {
		if !strings.Contains(strings.Join(strings.Fields(table.String()), " "), want) {
			t.Errorf("the table has no line %q:\n%s", want, table.String())
		}
	}
}

func TestOnlyTakesNamesAndBeginnings(t *testing.T) {
	for list, want := range map[string]int{
		"":                        len(measureNames()),
		"throughput":              1, // and not throughput-norow
		"cpu,cpu-":                18,
		"latency, throughput":     5,
		"inserts-wake,inserts-no": 3,
	} {
		if wanted, err := choose(list); err != nil || len(wanted) != want {
			t.Errorf("choose(%q): got %v, %v; want %d measures", list, wanted, err, want)
		}
	}
	if _, err := choose("throughput,speed"); err == nil {
		t.Error("a name that no measure has was taken")
	}
}

func TestContestantsAreChosenByName(t *testing.T) {
	for list, want := range map[string]int{"": 14, "gem": 1, "gem, floor": 2} {
		if wanted, err := chooseContestants(list); err != nil || len(wanted) != want {
			t.Errorf("chooseContestants(%q): got %v, %v; want %d contestants", list, wanted, err, want)
		}
	}
	for _, e := range experiments {
		for _, c := range e.contestants {
			if !slices.Contains(contestantNames, c.Name()) {
				t.Errorf("%s never runs: contestantNames lacks it", c.Name())
			}
		}
	}
	if _, err := chooseContestants("gem,lake"); err == nil {
		t.Error("a name that no contestant has was taken")
	}
}

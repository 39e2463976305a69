package prose_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/receipts"
)

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second:                         "less than 1 ms",
		12 * time.Millisecond:                "12 ms",
		3249 * time.Millisecond:              "3.2 s",
		15 * time.Second:                     "15 s",
		59*time.Second + 999e6:               "1 min",
		4*time.Minute + 10*time.Second:       "4 min 10 s",
		10 * time.Minute:                     "10 min",
		2*time.Hour + 5*time.Minute:          "2 h 5 min",
		76*time.Hour + 30*time.Minute:        "3 d 5 h",
		24*time.Hour - 29*time.Second:        "1 d",
		time.Minute + 499*time.Millisecond:   "1 min",
		999*time.Millisecond + 999_999:       "1 s",
		366 * 24 * time.Hour:                 "366 d",
		time.Hour + 59*time.Second + 1*1e9:   "1 h 1 min",
		60*time.Second - 60*time.Millisecond: "59.9 s",
	} {
		if got := prose.Span(d); got != want {
			t.Errorf("span(%d ns): got %q, want %q", d, got, want)
		}
	}
}

func TestUpshotFitsOnOneLine(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		`{"lead_id": "L-1"}`:                       "lead_id L-1",
		`{"results": [{}, {}], "total": 12345678}`: "results 2 entries, total 12345678",
		`{"checks": {"a": 1}, "status": "ok"}`:     "checks {…}, status ok",
		`{"a": null, "b": "", "c": []}`:            `a null, b "", c 0 entries`,
		`{}`:                                       "{}",
		`[1]`:                                      "[1]",
	} {
		got := prose.Upshot(&receipts.Receipt{Status: receipts.Succeeded, Result: json.RawMessage(result)})
		if got != want {
			t.Errorf("upshot of %s: got %q, want %q", result, got, want)
		}
	}
	hidden, shown := "a\u115fb\ufe01c\U000e0041d\ue000e\tf\u200dg", "a b c d e f\u200dg"
	if got := prose.Printable(hidden); got != shown {
		t.Errorf("%q, want %q", got, shown)
	}
	if got, want := prose.Cut("a\x1b[31m\nb\u0085c", 100), "a [31m b c"; got != want {
		t.Errorf("cut: got %q, want %q", got, want)
	}
	if got, want := prose.Cut("ééééé", 3), "éé…"; got != want {
		t.Errorf("cut: got %q, want %q", got, want)
	}
}

package dashboard

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDeepValuesAreLaidOutWithinBounds(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 99) + strings.Repeat("[],", 20_000) + "[]" + strings.Repeat("]", 99)
	if n := len(indented(json.RawMessage(deep))); n > mostIndent {
		t.Errorf("%d bytes become %d", len(deep), n)
	}
	deep = strings.Repeat(`{"a":`, 150) + "1" + strings.Repeat("}", 150)
	var marked []string
	for _, p := range printed(deep, map[string]string{strings.Repeat("/a", 100): "deep",
		strings.Repeat("/a", 150): "too deep", "": "root"}) {
		if p.N > 0 {
			marked = append(marked, p.Note)
		}
	}
	if got := strings.Join(marked, ", "); got != "root, deep" {
		t.Errorf("marked: %s", got)
	}
}

func TestMoneyIsShownWithItsSignificantDigits(t *testing.T) {
	t.Parallel()
	for amount, want := range map[int64]string{
		0: "$0", 1: "$0.000000001", 12: "$0.000000012", 18_000: "$0.000018", 1_234_567: "$0.00123", 999_999: "$0.001",
		20_253_000: "$0.0203", 99_999_999: "$0.10", 100_000_000: "$0.10", 123_456_789: "$0.123", 999_999_999: "$1.00",
		1_000_000_000: "$1.00", 1_234_567_890: "$1.23", 1_234_567_891_234_567: "$1,234,567.89", -1_500_000_000: "-$1.50",
		-18_000: "-$0.000018",
	} {
		if got := usd(amount); got != want {
			t.Errorf("%d: %s, want %s", amount, got, want)
		}
	}
	for text, want := range map[string]string{"0": "$0", "0.004629": "$0.00463", "12.5": "$12.50", "free": "free"} {
		if got := usdText(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

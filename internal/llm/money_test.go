package llm_test

import (
	"math"
	"testing"

	"github.com/gemworker/gem/internal/llm"
)

func TestMoneyIsWrittenAsItWasRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "1", "0.5", "20", "0.000000001", "999999999.999999999", "3.75"} {
		m, err := llm.ParseMoney(text)
		if err != nil || m.String() != text {
			t.Errorf("%s: %s, %v", text, m, err)
		}
	}
	for _, text := range []string{"", "-1", "1e3", ".5", "5.", "1,5", "0.0000000001", "1234567890", "NaN", " 1"} {
		if m, err := llm.ParseMoney(text); err == nil {
			t.Errorf("%q is %s", text, m)
		}
	}
}

func TestCachedInputIsChargedOnceAndByItsTier(t *testing.T) {
	t.Parallel()
	read, write := llm.USD*3/10, llm.USD*15/4
	prices := []llm.Price{{Input: 3 * llm.USD, Output: 15 * llm.USD, CacheRead: &read, CacheWrite: &write}, {AboveInput: 200_000, Input: 6 * llm.USD, Output: 22 * llm.USD}}
	for _, test := range []struct {
		usage llm.Usage
		want  string
	}{
		{llm.Usage{Input: 1_000_000 / 10, Output: 1000}, "0.315"},
		{llm.Usage{Input: 1000, CacheRead: 400, CacheWrite: 100}, "0.001995"}, // 500 at 3, 400 at 0.30, 100 at 3.75
		{llm.Usage{Input: 200_000}, "0.6"},
		{llm.Usage{Input: 200_001, CacheRead: 1}, "1.200006"},
		{llm.Usage{}, "0"},
	} {
		if cost, known := llm.Cost(prices, test.usage); !known || cost.String() != test.want {
			t.Errorf("%+v costs %s, not %s", test.usage, cost, test.want)
		}
	}
	if _, known := llm.Cost(nil, llm.Usage{Input: 1}); known {
		t.Error("without a price the cost is known")
	}
}

func TestWhatAProviderSaysOfItsUsageNeverMakesACostNegative(t *testing.T) {
	t.Parallel()
	prices := []llm.Price{{Input: 600 * llm.USD, Output: 600 * llm.USD}}
	for _, test := range []struct {
		usage llm.Usage
		want  llm.Money
	}{
		{llm.Usage{Input: 10_000_000, Output: 10_000_000}, 12_000 * llm.USD}, // a sum beyond 64 bits before it is divided
		{llm.Usage{Input: math.MaxInt64, Output: math.MaxInt64}, llm.MaxCost},
		{llm.Usage{Input: -5, Output: -5, CacheRead: -5}, 0},
	} {
		if cost, known := llm.Cost(prices, test.usage); !known || cost != test.want {
			t.Errorf("%+v costs %s, not %s", test.usage, cost, test.want)
		}
	}
}

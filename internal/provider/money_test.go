package provider_test

import (
	"math"
	"testing"

	"github.com/gemworker/gem/internal/provider"
)

func TestMoneyIsWrittenAsItWasRead(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "1", "0.5", "20", "0.000000001", "999999999.999999999", "3.75"} {
		m, err := provider.ParseMoney(text)
		if err != nil || m.String() != text {
			t.Errorf("%s: %s, %v", text, m, err)
		}
	}
	for _, text := range []string{"", "-1", "1e3", ".5", "5.", "1,5", "0.0000000001", "1234567890", "NaN", " 1"} {
		if m, err := provider.ParseMoney(text); err == nil {
			t.Errorf("%q is %s", text, m)
		}
	}
}

func TestCachedInputIsChargedOnceAndByItsTier(t *testing.T) {
	t.Parallel()
	read, write := provider.USD*3/10, provider.USD*15/4
	prices := []provider.Price{{Input: 3 * provider.USD, Output: 15 * provider.USD, CacheRead: &read, CacheWrite: &write},
		{AboveInput: 200_000, Input: 6 * provider.USD, Output: 22 * provider.USD}}
	for _, test := range []struct {
		usage provider.Usage
		want  string
	}{
		{provider.Usage{Input: 1_000_000 / 10, Output: 1000}, "0.315"},
		{provider.Usage{Input: 1000, CacheRead: 400, CacheWrite: 100}, "0.001995"}, // 500 at 3, 400 at 0.30, 100 at 3.75
		{provider.Usage{Input: 200_000}, "0.6"},
		{provider.Usage{Input: 200_001, CacheRead: 1}, "1.200006"},
		{provider.Usage{}, "0"},
	} {
		if cost, known := provider.Cost(prices, test.usage); !known || cost.String() != test.want {
			t.Errorf("%+v costs %s, not %s", test.usage, cost, test.want)
		}
	}
	if _, known := provider.Cost(nil, provider.Usage{Input: 1}); known {
		t.Error("without a price the cost is known")
	}
}

func TestWhatAProviderSaysOfItsUsageNeverMakesACostNegative(t *testing.T) {
	t.Parallel()
	prices := []provider.Price{{Input: 600 * provider.USD, Output: 600 * provider.USD}}
	for _, test := range []struct {
		usage provider.Usage
		want  provider.Money
	}{
		// a sum beyond 64 bits before it is divided
		{provider.Usage{Input: 10_000_000, Output: 10_000_000}, 12_000 * provider.USD},
		{provider.Usage{Input: math.MaxInt64, Output: math.MaxInt64}, provider.MaxCost},
		{provider.Usage{Input: -5, Output: -5, CacheRead: -5}, 0},
	} {
		if cost, known := provider.Cost(prices, test.usage); !known || cost != test.want {
			t.Errorf("%+v costs %s, not %s", test.usage, cost, test.want)
		}
	}
}

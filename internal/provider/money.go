package provider

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// Money is an amount in units of 10⁻⁹ USD. In JSON and as text it is USD in decimal digits, such as "0.0125".
type Money int64

// USD is a dollar.
const USD Money = 1_000_000_000

// MaxCost is the maximum cost of a request, even if its provider reports more, so that the sum of thousands of requests
// can be stored.
const MaxCost = 1_000_000 * USD

var decimal = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)

// ParseMoney reads USD in decimal digits, with at most nine before and nine after the point.
func ParseMoney(text string) (Money, error) {
	if !decimal.MatchString(text) {
		return 0, fmt.Errorf("%q is no amount: write USD in decimal digits, such as \"0.50\"", text)
	}
	whole, part, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole+(part + "000000000")[:9], 10, 64)
	return Money(n), err
}

// String returns the amount without zeros at its end.
func (m Money) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	text := fmt.Sprintf("%s%d.%09d", sign, m/USD, m%USD)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// MarshalJSON writes the text.
func (m Money) MarshalJSON() ([]byte, error) { return json.Marshal(m.String()) }

// UnmarshalJSON reads the text.
func (m *Money) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parsed, err := ParseMoney(text)
	*m = parsed
	return err
}

// Price is the price of 10⁶ tokens, for inputs above a size. CacheRead and CacheWrite are nil if they cost as much as
// other input.
type Price struct {
	AboveInput int64  `json:"above_input,omitempty"`
	Input      Money  `json:"input"`
	Output     Money  `json:"output"`
	CacheRead  *Money `json:"cache_read,omitempty"`
	CacheWrite *Money `json:"cache_write,omitempty"`
}

// Cost returns what usage costs, by the price of its tier, rounded up to 10⁻⁹ USD once. Cached input is charged once,
// at its own price. prices are ordered by AboveInput. Without a price the cost is unknown. The usage comes from the
// provider, so a negative number of tokens costs nothing, and no request costs more than [MaxCost].
func Cost(prices []Price, u Usage) (cost Money, known bool) {
	var p *Price
	for i := range prices {
		if prices[i].AboveInput == 0 || u.Input > prices[i].AboveInput {
			p = &prices[i]
		}
	}
	if p == nil {
		return 0, false
	}
	orInput := func(m *Money) Money {
		if m == nil {
			return p.Input
		}
		return *m
	}
	sum := big.NewInt(999_999) // which rounds up
	for _, part := range []struct {
		tokens int64
		price  Money
	}{
		{u.Input - u.CacheRead - u.CacheWrite, p.Input}, {u.CacheRead, orInput(p.CacheRead)},
		{u.CacheWrite, orInput(p.CacheWrite)}, {u.Output, p.Output},
	} {
		tokens := big.NewInt(max(0, part.tokens))
		sum.Add(sum, tokens.Mul(tokens, big.NewInt(int64(part.price))))
	}
	if sum.Div(sum, big.NewInt(1_000_000)); sum.Cmp(big.NewInt(int64(MaxCost))) > 0 {
		return MaxCost, true
	}
	return Money(sum.Int64()), true
}

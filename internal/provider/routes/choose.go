package routes

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/provider"
)

// Need has the requirements of a request for a target.
type Need struct {
	Tools, Thinking, Structured bool
	// InputTokens is an estimate: see [Estimate]. [Usable] corrects it by the figures of each target.
	InputTokens int
	// MaxOutput is the maximum number of tokens in the answer.
	MaxOutput int
	// MaxCost is the remaining maximum cost of the call, or nil. The route may allow less.
	MaxCost *provider.Money
	// CallID determines the order of a weighted route, so that it is always the same for a call.
	CallID string
}

// Estimate returns an estimate of the tokens in a number of bytes of text.
func Estimate(bytes int) int { return (bytes + 2) / 3 }

// Stats has the known figures of a target. The zero value means that nothing is known.
type Stats struct {
	// Samples is the number of answers behind the following figures.
	Samples int
	// InputRatio is the number of actual input tokens per estimated token; 0: unknown.
	InputRatio float64
	// MeanOutput is the mean number of tokens in an answer; 0: unknown.
	MeanOutput float64
	// FirstContentMS and TokensPerSecond are moving averages.
	FirstContentMS, TokensPerSecond float64
}

// Candidate is a target that can serve a request.
type Candidate struct {
	Target   *Target
	Provider *Provider
	Model    string
	// InputTokens is the estimate, corrected.
	InputTokens int
	// Reserve is the maximum cost of the request if its input has at most InputTokens. ReserveKnown is false for a target
	// without a price.
	Reserve      provider.Money
	ReserveKnown bool
}

// Lack is a requirement that a target does not meet.
type Lack string

// The requirements that a target can lack, in the order of the checks.
const (
	LacksCapability Lack = "capability"
	LacksContext    Lack = "context" // the input and the output do not fit
	LacksPrice      Lack = "price"   // the target has no price, and the call has a maximum cost
	LacksRoom       Lack = "cost"    // it may cost more than the maximum
	LacksKey        Lack = "key"     // and lacks nothing else
)

// SkippedTarget is a target that cannot serve a request.
type SkippedTarget struct {
	Target *Target
	Lack   Lack
	// Why is the reason in words, such as "it has no tools".
	Why string
}

// Usable returns the targets of a route that can serve a request, in the order in which to try them, and the others
// with their reasons, as listed. hasKey reports whether a variable holds a key; stats returns the figures of a target,
// by its name.
func Usable(route *Route, need Need, hasKey func(variable string) bool,
	stats func(target string) Stats) (usable []Candidate, skipped []SkippedTarget) {
	var options []option
	for i, target := range route.Targets {
		seen := stats(target.Name)
		o := option{seen: seen, weight: 1, Candidate: Candidate{Target: target, Provider: target.Provider,
			Model:       target.Model,
			InputTokens: corrected(need.InputTokens, seen.InputRatio)}}
		o.Reserve, o.ReserveKnown = reserve(target.Prices, o.InputTokens, need.MaxOutput)
		if route.Weights != nil {
			o.weight = route.Weights[i]
		}
		if lack, why := lacks(route, &o.Candidate, need, hasKey); lack != "" {
			skipped = append(skipped, SkippedTarget{Target: target, Lack: lack, Why: why})
			continue
		}
		options = append(options, o)
	}
	sortOptions(options, route.Order, need)
	for _, o := range options {
		usable = append(usable, o.Candidate)
	}
	return usable, skipped
}

// MissingKeys returns the variables of the targets that lack only a key, in the order of the list: any one of them is
// sufficient.
func MissingKeys(skipped []SkippedTarget) (variables []string) {
	for _, s := range skipped {
		if s.Lack == LacksKey && !slices.Contains(variables, s.Target.Provider.KeyEnv) {
			variables = append(variables, s.Target.Provider.KeyEnv)
		}
	}
	return variables
}

// lacks returns the requirements of a request that a target does not meet. The key is checked last, so a target that
// lacks a key lacks nothing else.
func lacks(route *Route, c *Candidate, need Need, hasKey func(string) bool) (lack Lack, why string) {
	var missing []string
	for _, capability := range []struct {
		needed, has bool
		name        string
	}{{need.Tools, c.Target.Tools, "tools"}, {need.Thinking, c.Target.Thinking, "thinking"},
		{need.Structured, c.Target.Structured, "structured"}} {
		if capability.needed && !capability.has {
			missing = append(missing, capability.name)
		}
	}
	most, capped := maxCost(route, need)
	key := c.Provider.KeyEnv
	switch {
	case len(missing) > 0:
		return LacksCapability, "its capabilities lack " + strings.Join(missing, " and ")
	case need.MaxOutput > c.Target.MaxOutput:
		return LacksContext, fmt.Sprintf("its max_output is %d, and the request asks for %d", c.Target.MaxOutput,
			need.MaxOutput)
	case c.InputTokens > c.Target.Context-need.MaxOutput:
		return LacksContext, fmt.Sprintf("its context is %d tokens, and the request needs some %d of input and %d of output",
			c.Target.Context, c.InputTokens, need.MaxOutput)
	case capped && !c.ReserveKnown:
		return LacksPrice, "it has no price, and the call may cost at most " + most.String() + " USD"
	case capped && c.Reserve > most:
		return LacksRoom, fmt.Sprintf("the request may cost %s USD, and the call may cost at most %s USD", c.Reserve, most)
	case key != "" && !hasKey(key):
		return LacksKey, key + " is not set"
	}
	return "", ""
}

// maxCost returns the lower of the route's maximum cost and the call's.
func maxCost(route *Route, need Need) (most provider.Money, capped bool) {
	switch {
	case route.MaxCost != nil && need.MaxCost != nil:
		return min(*route.MaxCost, *need.MaxCost), true
	case route.MaxCost != nil:
		return *route.MaxCost, true
	case need.MaxCost != nil:
		return *need.MaxCost, true
	}
	return 0, false
}

// corrected multiplies an estimate by the known ratio, within limits, and rounds up.
func corrected(tokens int, ratio float64) int {
	if !(ratio > 0) { // nor is it a number
		return tokens
	}
	const least, most = 0.25, 4
	return int(math.Ceil(float64(tokens) * min(max(ratio, least), most)))
}

// reserve returns the maximum cost of a request with limited tokens of input and output. Within a tier the cost grows
// with the tokens, and cached input may be the most expensive, so the ends of the tiers decide.
func reserve(prices []provider.Price, input, output int) (most provider.Money, known bool) {
	for i := range prices {
		if i > 0 && int64(input) <= prices[i].AboveInput {
			break
		}
		n := int64(input)
		if i+1 < len(prices) {
			n = min(n, prices[i+1].AboveInput)
		}
		for _, u := range []provider.Usage{{Input: n}, {Input: n, CacheRead: n}, {Input: n, CacheWrite: n}} {
			u.Output = int64(output)
			cost, _ := provider.Cost(prices, u)
			most = max(most, cost)
		}
	}
	return most, len(prices) > 0
}

// option is a candidate with the values that determine its place in the order.
type option struct {
	Candidate
	seen   Stats
	weight int
}

// fewest is the number of answers after which the speed of a target is known.
const fewest = 3

// sortOptions sorts targets by the order of their route. Equal targets keep the order of the list.
func sortOptions(options []option, order Order, need Need) {
	var place func(o *option) float64
	switch order {
	case Cheapest:
		place = func(o *option) float64 { return o.expectedCost(need) }
	case Fastest:
		place = func(o *option) float64 { return o.expectedMS(need) }
	case Weighted:
		place = func(o *option) float64 { return o.drawn(need.CallID) }
	default:
		return
	}
	slices.SortStableFunc(options, func(a, b option) int { return cmp.Compare(place(&a), place(&b)) })
}

// expectedOutput returns the expected number of tokens in an answer: the mean of earlier answers, but at most the
// maximum, or the maximum without earlier answers.
func (o *option) expectedOutput(need Need) float64 {
	if !(o.seen.MeanOutput > 0) {
		return float64(need.MaxOutput)
	}
	return min(o.seen.MeanOutput, float64(need.MaxOutput))
}

// expectedCost puts a target without a price last.
func (o *option) expectedCost(need Need) float64 {
	cost, known := provider.Cost(o.Target.Prices, provider.Usage{Input: int64(o.InputTokens),
		Output: int64(math.Ceil(o.expectedOutput(need)))})
	if !known {
		return math.Inf(1)
	}
	return float64(cost)
}

// expectedMS returns the expected time until an answer is complete. A target with too few answers comes first, so that
// its speed becomes known.
func (o *option) expectedMS(need Need) float64 {
	if o.seen.Samples < fewest || !(o.seen.FirstContentMS >= 0 && o.seen.TokensPerSecond > 0) {
		return math.Inf(-1)
	}
	return o.seen.FirstContentMS + 1000*o.expectedOutput(need)/o.seen.TokensPerSecond
}

// drawn returns an exponentially distributed value with the target's weight as its rate, from a hash of the call and
// the target. Each target has the smallest value with a probability in proportion to its weight, and so on among the
// rest.
func (o *option) drawn(call string) float64 {
	sum := sha256.Sum256([]byte(call + "\x00" + o.Target.Name))
	uniform := (float64(binary.BigEndian.Uint64(sum[:8])>>11) + 0.5) / (1 << 53)
	return -math.Log(uniform) / float64(o.weight)
}

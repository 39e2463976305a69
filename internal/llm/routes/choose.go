package routes

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/llm"
)

// Need is what a request needs of an arm.
type Need struct {
	Tools, Thinking, Structured bool
	// InputTokens is an estimate: see [Estimate]. [Usable] corrects it by what was seen of each arm.
	InputTokens int
	// MaxOutput is how many tokens the answer may have.
	MaxOutput int
	// MaxCost is what the call may still cost, or nil. The route may allow less.
	MaxCost *llm.Money
	// CallID decides the order of a weighted route: that of a call is always the same.
	CallID string
}

// Estimate returns how many tokens so many bytes of text may be.
func Estimate(bytes int) int { return (bytes + 2) / 3 }

// Stats is what was seen of an arm. The zero value means nothing was.
type Stats struct {
	// Samples is how many answers the figures below are from.
	Samples int
	// InputRatio is how many input tokens were counted for each that was estimated; 0: not known.
	InputRatio float64
	// MeanOutput is how many tokens an answer had; 0: not known.
	MeanOutput float64
	// FirstContentMS and TokensPerSecond are moving averages.
	FirstContentMS, TokensPerSecond float64
}

// Candidate is an arm that can serve a request.
type Candidate struct {
	Arm      *Arm
	Provider *Provider
	Model    string
	// InputTokens is the estimate, corrected.
	InputTokens int
	// Reserve is the most that the request may cost if its input has no more tokens than InputTokens. ReserveKnown is false for an arm without a price.
	Reserve      llm.Money
	ReserveKnown bool
}

// Lack says what an arm lacks.
type Lack string

// What an arm can lack, in the order in which it is looked for.
const (
	LacksCapability Lack = "capability"
	LacksContext    Lack = "context" // the input and the output do not fit
	LacksPrice      Lack = "price"   // it has none, and the call has a cap
	LacksRoom       Lack = "cost"    // it may cost more than the cap
	LacksKey        Lack = "key"     // and nothing else
)

// Skipped is an arm that cannot serve a request.
type Skipped struct {
	Arm  *Arm
	Lack Lack
	// Why is the reason in words, such as "it has no tools".
	Why string
}

// Usable returns the arms of a route that can serve a request, in the order in which to try them, and the others with their reasons, as listed.
// hasKey reports whether a variable holds a key; stats returns what was seen of an arm, by its name.
func Usable(route *Route, need Need, hasKey func(variable string) bool, stats func(arm string) Stats) (usable []Candidate, skipped []Skipped) {
	var options []option
	for i, arm := range route.Arms {
		seen := stats(arm.Name)
		o := option{seen: seen, weight: 1, Candidate: Candidate{Arm: arm, Provider: arm.Provider, Model: arm.Model, InputTokens: corrected(need.InputTokens, seen.InputRatio)}}
		o.Reserve, o.ReserveKnown = reserve(arm.Prices, o.InputTokens, need.MaxOutput)
		if route.Weights != nil {
			o.weight = route.Weights[i]
		}
		if lack, why := lacks(route, &o.Candidate, need, hasKey); lack != "" {
			skipped = append(skipped, Skipped{Arm: arm, Lack: lack, Why: why})
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

// MissingKeys returns the variables of the arms that lack nothing but a key, as listed: any one of them would do.
func MissingKeys(skipped []Skipped) (variables []string) {
	for _, s := range skipped {
		if s.Lack == LacksKey && !slices.Contains(variables, s.Arm.Provider.KeyEnv) {
			variables = append(variables, s.Arm.Provider.KeyEnv)
		}
	}
	return variables
}

// lacks says what a request needs and an arm does not have. The key comes last, so that whoever lacks one lacks nothing else.
func lacks(route *Route, c *Candidate, need Need, hasKey func(string) bool) (lack Lack, why string) {
	var missing []string
	for _, capability := range []struct {
		needed, has bool
		name        string
	}{{need.Tools, c.Arm.Tools, "tools"}, {need.Thinking, c.Arm.Thinking, "thinking"}, {need.Structured, c.Arm.Structured, "structured"}} {
		if capability.needed && !capability.has {
			missing = append(missing, capability.name)
		}
	}
	most, capped := maxCost(route, need)
	key := c.Provider.KeyEnv
	switch {
	case len(missing) > 0:
		return LacksCapability, "its capabilities lack " + strings.Join(missing, " and ")
	case need.MaxOutput > c.Arm.MaxOutput:
		return LacksContext, fmt.Sprintf("its max_output is %d, and the request asks for %d", c.Arm.MaxOutput, need.MaxOutput)
	case c.InputTokens > c.Arm.Context-need.MaxOutput:
		return LacksContext, fmt.Sprintf("its context is %d tokens, and the request needs some %d of input and %d of output", c.Arm.Context, c.InputTokens, need.MaxOutput)
	case capped && !c.ReserveKnown:
		return LacksPrice, "it has no price, and the call may cost at most " + most.String() + " USD"
	case capped && c.Reserve > most:
		return LacksRoom, fmt.Sprintf("the request may cost %s USD, and the call may cost at most %s USD", c.Reserve, most)
	case key != "" && !hasKey(key):
		return LacksKey, key + " is not set"
	}
	return "", ""
}

// maxCost is the lower of the route's cap and the call's.
func maxCost(route *Route, need Need) (most llm.Money, capped bool) {
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

// corrected multiplies an estimate by what was seen, within bounds, and rounds up.
func corrected(tokens int, ratio float64) int {
	if !(ratio > 0) { // nor is it a number
		return tokens
	}
	const least, most = 0.25, 4
	return int(math.Ceil(float64(tokens) * min(max(ratio, least), most)))
}

// reserve returns the most that a request costs with at most so many tokens of input and output: within a tier the cost grows with the
// tokens, and cached input may be the dearest, so that the ends of the tiers decide.
func reserve(prices []llm.Price, input, output int) (most llm.Money, known bool) {
	for i := range prices {
		if i > 0 && int64(input) <= prices[i].AboveInput {
			break
		}
		n := int64(input)
		if i+1 < len(prices) {
			n = min(n, prices[i+1].AboveInput)
		}
		for _, u := range []llm.Usage{{Input: n}, {Input: n, CacheRead: n}, {Input: n, CacheWrite: n}} {
			u.Output = int64(output)
			cost, _ := llm.Cost(prices, u)
			most = max(most, cost)
		}
	}
	return most, len(prices) > 0
}

// option is a candidate with what its place in the order depends on.
type option struct {
	Candidate
	seen   Stats
	weight int
}

// fewest is how many answers it takes to know how fast an arm is.
const fewest = 3

// sortOptions orders arms as their route says. Those that are alike stay as listed.
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

// expectedOutput is how many tokens an answer will have: as many as others had, or the most that it may.
func (o *option) expectedOutput(need Need) float64 {
	if !(o.seen.MeanOutput > 0) {
		return float64(need.MaxOutput)
	}
	return min(o.seen.MeanOutput, float64(need.MaxOutput))
}

// expectedCost puts an arm without a price last.
func (o *option) expectedCost(need Need) float64 {
	cost, known := llm.Cost(o.Arm.Prices, llm.Usage{Input: int64(o.InputTokens), Output: int64(math.Ceil(o.expectedOutput(need)))})
	if !known {
		return math.Inf(1)
	}
	return float64(cost)
}

// expectedMS is when an answer will be whole. It puts an arm first that too little was seen of, so that it comes to be known.
func (o *option) expectedMS(need Need) float64 {
	if o.seen.Samples < fewest || !(o.seen.FirstContentMS >= 0 && o.seen.TokensPerSecond > 0) {
		return math.Inf(-1)
	}
	return o.seen.FirstContentMS + 1000*o.expectedOutput(need)/o.seen.TokensPerSecond
}

// drawn is exponentially distributed with the arm's weight as its rate, by a hash of the call and the arm: the least of several is each with a
// probability in proportion to its weight, and so on among the rest.
func (o *option) drawn(call string) float64 {
	sum := sha256.Sum256([]byte(call + "\x00" + o.Arm.Name))
	uniform := (float64(binary.BigEndian.Uint64(sum[:8])>>11) + 0.5) / (1 << 53)
	return -math.Log(uniform) / float64(o.weight)
}

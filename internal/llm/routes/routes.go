// Package routes reads llm.routes.json, in which an operator says which models may be asked, what they cost, and which of them serve a
// call. [Usable] chooses for a call; it looks at nothing but its arguments.
package routes

import (
	"slices"
	"time"

	"github.com/gemworker/gem/internal/llm"
)

// Dialect is what a provider speaks. It names the package below internal/llm.
type Dialect string

// The dialects.
const (
	Anthropic Dialect = "anthropic"
	OpenAI    Dialect = "openai"
	Gemini    Dialect = "gemini"
)

// Provider is a service that has models. Callers must not change its fields.
type Provider struct {
	// Name is the provider's in the file.
	Name    string
	Dialect Dialect
	// BaseURL is https unless the provider is local. It has no user, query, fragment or slash at its end.
	BaseURL string
	// KeyEnv is the variable that holds the key; empty: no key is sent. It ends with _API_KEY.
	KeyEnv string
	// Local: it runs on this machine or in this network, so that its URL may be http.
	Local bool
	// Label names it in traces and metrics, such as mistral_ai: the file's "name", or what its host is known as, or Name.
	Label string
}

// Arm is a model of a provider. Callers must not change its fields.
type Arm struct {
	Name     string
	Provider *Provider
	// Model is the name that is sent to the provider.
	Model string
	// Context is how many tokens the input and the output may have together, MaxOutput how many the output.
	Context, MaxOutput int
	// Tools, Thinking and Structured are its capabilities.
	Tools, Thinking, Structured bool
	// MaxConcurrent is how many requests all workers together may have under way; 0: as many as they have slots.
	MaxConcurrent int
	// FirstContent and Idle are how long the first and each further content may take; 60 s each by default.
	FirstContent, Idle time.Duration
	// Prices are ordered by AboveInput, the first of which is 0. Without any the cost of a request is not known.
	Prices []llm.Price
}

// Order says in which order the arms of a route are tried.
type Order string

// The orders.
const (
	Listed   Order = "listed"
	Cheapest Order = "cheapest"
	Fastest  Order = "fastest"
	Weighted Order = "weighted"
)

// Route is what a call names: the arms that may serve it. Callers must not change its fields.
type Route struct {
	Name string
	// Arms stand in the order of the file. There is at least one.
	Arms  []*Arm
	Order Order
	// Weights are those of Arms, at least 1 each; nil unless Order is weighted.
	Weights []int
	// MaxCost is what one call may cost, or nil. Each of Arms then has a price.
	MaxCost *llm.Money
}

// Scope says whose requests a budget counts together.
type Scope string

// The scopes: all requests, or those of each user, session, route or arm by itself.
const (
	OfAll     Scope = "all"
	OfUser    Scope = "user"
	OfSession Scope = "session"
	OfRoute   Scope = "route"
	OfArm     Scope = "arm"
)

// Period is how long a budget lasts, from the start of the hour, day or month in UTC.
type Period string

// The periods.
const (
	Hour  Period = "hour"
	Day   Period = "day"
	Month Period = "month"
)

// Budget bounds what requests may cost in a period. Every arm that a route names has a price if there is one.
type Budget struct {
	// Name is what was spent is kept under.
	Name   string
	Scope  Scope
	Period Period
	USD    llm.Money
}

// Routes is a valid routes file. It never changes; many goroutines can use it.
type Routes struct {
	// Version names the contents: other contents need another version. See [CheckUpgrade].
	Version string

	doc       map[string]any
	json      []byte
	providers []*Provider
	arms      []*Arm
	routes    []*Route
	budgets   []Budget
	notes     []string
}

// Providers returns the providers, sorted by name.
func (r *Routes) Providers() []*Provider { return slices.Clone(r.providers) }

// Arms returns the arms, sorted by name.
func (r *Routes) Arms() []*Arm { return slices.Clone(r.arms) }

// Routes returns the routes, sorted by name.
func (r *Routes) Routes() []*Route { return slices.Clone(r.routes) }

// Budgets returns the budgets in the order of the file.
func (r *Routes) Budgets() []Budget { return slices.Clone(r.budgets) }

// Route returns the route with a name.
func (r *Routes) Route(name string) (*Route, bool) {
	for _, route := range r.routes {
		if route.Name == name {
			return route, true
		}
	}
	return nil, false
}

// Arm returns the arm with a name.
func (r *Routes) Arm(name string) (*Arm, bool) {
	for _, arm := range r.arms {
		if arm.Name == name {
			return arm, true
		}
	}
	return nil, false
}

// Notes are sentences on what is allowed and may surprise.
func (r *Routes) Notes() []string { return slices.Clone(r.notes) }

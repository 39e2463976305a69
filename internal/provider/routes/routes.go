// Package routes reads llm.routes.json, in which an operator defines the available models, their prices, and the models
// for each call. [Usable] chooses for a call; its result depends only on its arguments.
package routes

import (
	"slices"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// Dialect is the API of a provider. It is the name of the package below internal/provider.
type Dialect string

// The dialects.
const (
	Anthropic Dialect = "anthropic"
	OpenAI    Dialect = "openai"
	Gemini    Dialect = "gemini"
)

// Provider is a service that has models. Callers must not change its fields.
type Provider struct {
	// Name is the provider's name in the file.
	Name    string
	Dialect Dialect
	// BaseURL is https unless the provider is local. It has no user, query, fragment or slash at its end.
	BaseURL string
	// KeyEnv is the variable with the key; empty: no key is sent. It ends with _API_KEY.
	KeyEnv string
	// Local means that it runs on this machine or in this network, so that its URL may be http.
	Local bool
	// Label is its name in traces and metrics, such as mistral_ai: the file's "name", or the known name of its host, or
	// Name.
	Label string
}

// Target is a model of a provider. Callers must not change its fields.
type Target struct {
	Name     string
	Provider *Provider
	// Model is the name that is sent to the provider.
	Model string
	// Context is the maximum number of tokens of input and output together, and MaxOutput the maximum for the output.
	Context, MaxOutput int
	// Tools, Thinking and Structured are its capabilities.
	Tools, Thinking, Structured bool
	// MaxConcurrent is the maximum number of concurrent requests of all workers together; 0: as many as they have slots.
	MaxConcurrent int
	// FirstContent and Idle are how long the first and each further content may take; 60 s each by default.
	FirstContent, Idle time.Duration
	// Cache means that requests may ask the provider to keep their beginning for the next request.
	Cache bool
	// Prices are ordered by AboveInput; the first has 0. Without prices the cost of a request is unknown.
	Prices []provider.Price
}

// Order is the order in which the targets of a route are tried.
type Order string

// The orders.
const (
	Listed   Order = "listed"
	Cheapest Order = "cheapest"
	Fastest  Order = "fastest"
	Weighted Order = "weighted"
)

// Route has the targets that may serve the calls which name it. Callers must not change its fields.
type Route struct {
	Name string
	// Targets are in the order of the file. There is at least one.
	Targets []*Target
	Order   Order
	// Weights are the weights of Targets, at least 1 each; nil unless Order is weighted.
	Weights []int
	// MaxCost is the maximum cost of one call, or nil. If it is set, each of Targets has a price.
	MaxCost *provider.Money
}

// Scope determines which requests a budget counts together.
type Scope string

// The scopes: all requests, or the requests of each user, session, route or target separately.
const (
	OfAll     Scope = "all"
	OfUser    Scope = "user"
	OfSession Scope = "session"
	OfRoute   Scope = "route"
	OfTarget  Scope = "target"
)

// Period is how long a budget lasts, from the start of the hour, day or month in UTC.
type Period string

// The periods.
const (
	Hour  Period = "hour"
	Day   Period = "day"
	Month Period = "month"
)

// Budget limits the cost of requests in a period. If there is a budget, every target of a route has a price.
type Budget struct {
	// Name is the key of the spending in the ledger.
	Name   string
	Scope  Scope
	Period Period
	USD    provider.Money
}

// Routes is a valid routes file. It never changes; many goroutines can use it.
type Routes struct {
	// Version identifies the contents: changed contents need a new version. See [CheckUpgrade].
	Version string

	doc       map[string]any
	json      []byte
	providers []*Provider
	targets   []*Target
	routes    []*Route
	budgets   []Budget
	notes     []string
}

// Providers returns the providers, sorted by name.
func (r *Routes) Providers() []*Provider { return slices.Clone(r.providers) }

// Targets returns the targets, sorted by name.
func (r *Routes) Targets() []*Target { return slices.Clone(r.targets) }

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

// Target returns the target with a name.
func (r *Routes) Target(name string) (*Target, bool) {
	for _, target := range r.targets {
		if target.Name == name {
			return target, true
		}
	}
	return nil, false
}

// Notes are sentences about settings that are allowed but may surprise.
func (r *Routes) Notes() []string { return slices.Clone(r.notes) }

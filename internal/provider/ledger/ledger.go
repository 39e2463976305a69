// Package ledger records the requests to models in Postgres: the maximum cost of each before it is sent, and its actual
// cost. The budgets and the cooldowns of targets follow from these. It stores no prompts and no answers.
//
// [Begin] begins a request in a separate statement. [End] ends it: in a separate statement, or as the first statement
// of the transaction that stores its answer. A request that was begun and never ended is lost: its reserve counts as
// spent.
package ledger

import (
	"errors"
	"time"

	"github.com/gemworker/gem/internal/provider"
)

// MaxRequests is the maximum number of requests of a call, over all its attempts.
const MaxRequests = 1000

// The errors of [Begin.Send].
var (
	// ErrNotHeld: the attempt no longer holds its call. It must end.
	ErrNotHeld = errors.New("this attempt no longer holds its call")
	// ErrTooMany: the call has made MaxRequests requests.
	ErrTooMany = errors.New("the call has made 1000 requests to models")
)

// Status is the state of a request.
type Status string

// The states. A request is first sent, and then has one of the other states forever.
const (
	Sent      Status = "sent"
	Done      Status = "done"      // a whole answer
	Failed    Status = "failed"    // before any content
	Cut       Status = "cut"       // after content
	Cancelled Status = "cancelled" // by its caller, a deadline or a stopping worker
	Lost      Status = "lost"      // its attempt ended first
)

// Begin is a request that is about to be sent, with the targets that may serve it. The call's owner is in the
// call's row.
//
// The attempt's number, without the worker's name, shows that the attempt holds the call: each claim increments it.
// Only after a failover may two workers have had it.
type Begin struct {
	CallID  string
	Attempt int
	// Label is the purpose of the request within the call: main, member n, judge, repair n, or the name of a step.
	Label, Route, RoutesVersion string
	// MaxCost, if set, is the maximum cost of all requests of the call together.
	MaxCost *provider.Money
	// Targets are tried in their order.
	Targets []Target
}

// Target is a model that may serve a request.
type Target struct {
	Target   string `json:"target"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
	// MaxConcurrent is the maximum number of concurrent requests of all workers; 0: no limit.
	MaxConcurrent int `json:"max_concurrent,omitempty"`
	// Reserve is the maximum cost of the request.
	Reserve provider.Money `json:"-"`
	// Priced means that the target has a price. A target without one is not used under a budget or a MaxCost.
	Priced bool `json:"priced"`
	// EstimatedInput is the estimated number of input tokens, before the correction by the target's ratio.
	EstimatedInput int64 `json:"estimated_input"`
	// Budgets are all budgets that apply.
	Budgets []Budget `json:"-"`
}

// Budget is a limit of money for a period in UTC.
type Budget struct {
	Name    string // of the routes file
	Subject string // the value that it counts for, such as a user; empty: for all
	Period  Period
	Limit   provider.Money
}

// Period is a part of UTC's calendar.
type Period string

// The periods.
const (
	Hour  Period = "hour"
	Day   Period = "day"
	Month Period = "month"
)

// Begun has the target for the request, or the reasons if no target may serve it.
type Begun struct {
	// ID is the row's id; 0 if no target may serve.
	ID int64
	// At is when the request began; nil if no target may serve. After a failover, another request may have its id.
	At *time.Time
	// N numbers the requests of the call, from 1.
	N      int
	Target string
	// Skipped are the targets before it that may not serve, or all.
	Skipped []SkippedTarget
	// Exceeded are the budgets that have too little left for a target that was skipped.
	Exceeded []Exceeded
	// Wait is the time until the shortest cooldown ends; 0 unless no target may serve and one is cooling down.
	Wait time.Duration
}

// Why a target was skipped.
type Why string

// The reasons.
const (
	Cooldown Why = "cooldown"
	Busy     Why = "busy"     // at MaxConcurrent
	OverCost Why = "max_cost" // the call's
	OverSum  Why = "budget"
	Unpriced Why = "unpriced"
)

// SkippedTarget is a target that may not serve a request now.
type SkippedTarget struct {
	Target string `json:"target"`
	Why    Why    `json:"why"`
	// Until is the end of its cooldown by Postgres's clock, WaitMS is the time until then, and Reason is the reason for
	// the cooldown.
	Until  time.Time `json:"until,omitzero"`
	WaitMS int64     `json:"wait_ms,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Wait returns the remaining cooldown of the target; 0 if there is none.
func (s *SkippedTarget) Wait() time.Duration { return time.Duration(s.WaitMS) * time.Millisecond }

// Exceeded is a budget that has too little left.
type Exceeded struct {
	Budget   string         `json:"budget"`
	Limit    provider.Money `json:"limit_usd"`
	Spent    provider.Money `json:"spent_usd"`
	Reserved provider.Money `json:"reserved_usd"`
	ResetsAt time.Time      `json:"resets_at"`
}

// End is the end of a request.
type End struct {
	ID     int64
	Began  *time.Time // [Begun.At]; nil if no failover can have come since
	Status Status     // not Sent
	// Kind is empty for a complete answer.
	Kind       provider.ErrorKind
	HTTPStatus int
	// RequestID and Model come from the provider.
	RequestID, Model string
	Usage            provider.Usage
	// Estimated means that the usage does not come from the provider.
	Estimated bool
	// Reported, if set, is the provider's usage, and Usage is the possible part of it.
	Reported *provider.Usage
	// Cost is the cost of the request; nil if unknown, and its reserve then counts as spent.
	Cost *provider.Money
	// ProviderCost is the provider's own figure.
	ProviderCost *provider.Money
	// FirstContent is 0 if there was none.
	FirstContent, Took time.Duration
	// Cooldown, if not 0, is the minimum cooldown of the target, and CooldownWhy is the reason. Without it a failure of
	// the provider counts: three within a minute make the target cool down.
	Cooldown    time.Duration
	CooldownWhy string
}

// Request is a row of the ledger.
type Request struct {
	ID                                                         int64
	CallID                                                     string
	Attempt, N                                                 int
	Label, Tool, Route, RoutesVersion, Target, Provider, Model string
	CreatedBy, SessionID                                       string
	Status                                                     Status
	At                                                         time.Time
	EndedAt                                                    time.Time // zero while it is sent
	Reserved                                                   provider.Money
	Cost, ProviderCost                                         *provider.Money
	Usage                                                      provider.Usage
	Estimated                                                  bool
	Reported                                                   *provider.Usage // set if Usage was limited
	HTTPStatus                                                 int
	RequestID, Answered                                        string // Answered is the model that the provider named
	Kind                                                       provider.ErrorKind
	FirstContent, Took                                         time.Duration
}

// Total is the sum of the requests of a call, or of a group.
type Total struct {
	Requests int64 `json:"requests"`
	// Cost is the sum of the known costs; nil if none is known, 0 without requests.
	Cost *provider.Money `json:"cost_usd"`
	// Unknown is the number of requests with unknown cost.
	Unknown int64 `json:"unknown_requests"`
}

// Filter selects requests by owner and time.
type Filter struct {
	// CreatedBy is the caller; nil means all callers.
	CreatedBy *string
	// From and To are the first and the last day, in UTC. A zero To means no limit.
	From, To time.Time
}

// DayUsage is the usage of a route and target on one day.
type DayUsage struct {
	Day    string `json:"day"` // 2006-01-02, in UTC
	Route  string `json:"route"`
	Target string `json:"target"`
	Total
	provider.Usage
}

// TargetState is the known state of a target.
type TargetState struct {
	Target string
	// CooldownUntil is zero or in the future, and Why is the reason.
	CooldownUntil time.Time
	Why           string
	// Samples is the number of complete answers behind the following figures; with 0 they mean nothing.
	Samples      int64
	FirstContent time.Duration // a moving mean
	TokensPerSec float64       // a moving mean
	MeanOutput   float64       // tokens of output, of all samples
	InputRatio   float64       // actual input tokens per estimated token; 1 until known
}

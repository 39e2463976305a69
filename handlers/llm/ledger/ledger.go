// Package ledger keeps the requests to models in Postgres: what each may cost before it is sent, and what it did cost. From that follow
// the budgets, and which arms rest. It holds no prompts and no answers.
//
// A request is begun with [Begin], by itself, and ended with [End]: by itself, or as the first statement of the transaction
// that keeps its answer. What was begun and never ended is lost: its reserve counts as spent.
package ledger

import (
	"errors"
	"time"

	"github.com/gemworker/gem/internal/llm"
)

// MaxRequests is how many requests a call may make, over all its attempts.
const MaxRequests = 1000

// The errors of [Begin.Send].
var (
	// ErrNotHeld: the attempt no longer holds its call. It must end.
	ErrNotHeld = errors.New("this attempt no longer holds its call")
	// ErrTooMany: the call has made MaxRequests requests.
	ErrTooMany = errors.New("the call has made 1000 requests to models")
)

// Status says where a request stands.
type Status string

// The states. A request is sent, and then one of the others for ever.
const (
	Sent      Status = "sent"
	Done      Status = "done"      // a whole answer
	Failed    Status = "failed"    // before any content
	Cut       Status = "cut"       // after content
	Cancelled Status = "cancelled" // by its caller, a deadline or a stop
	Lost      Status = "lost"      // its attempt ended before it did
)

// Begin is a request that is about to be sent, with the arms that may serve it. Whose call it is stands in the call's row.
//
// The attempt's number proves that the call is held, without the worker's name: each claim counts it up, so only one worker ever has it.
type Begin struct {
	CallID  string
	Attempt int
	// Label says which request of the call it is: main, member n, judge, repair n, or the name of a step.
	Label, Route, RoutesVersion string
	// MaxCost, if set, is what all requests of the call may cost together.
	MaxCost *llm.Money
	// Arms are tried in their order.
	Arms []Arm
}

// Arm is a model that may serve a request.
type Arm struct {
	Arm      string `json:"arm"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
	// MaxConcurrent is how many requests it takes at once, of all workers; 0: any number.
	MaxConcurrent int `json:"max_concurrent,omitempty"`
	// Reserve is the most that the request may cost.
	Reserve llm.Money `json:"-"`
	// Priced: the arm has a price. One without is not used under a budget or a MaxCost.
	Priced bool `json:"priced"`
	// EstimatedInput is how many tokens the input may have, before it is corrected by the arm's ratio.
	EstimatedInput int64 `json:"estimated_input"`
	// Budgets are all that apply.
	Budgets []Budget `json:"-"`
}

// Budget is a limit of money for a period in UTC.
type Budget struct {
	Name    string // of the routes file
	Subject string // what it is counted for, such as a user; empty: for all
	Period  Period
	Limit   llm.Money
}

// Period is a part of UTC's calendar.
type Period string

// The periods.
const (
	Hour  Period = "hour"
	Day   Period = "day"
	Month Period = "month"
)

// Begun says which arm is to serve the request, or why none may.
type Begun struct {
	// ID is the row's; 0 where no arm may serve.
	ID int64
	// N numbers the requests of the call, from 1.
	N   int
	Arm string
	// Skipped are the arms before it that may not serve, or all.
	Skipped []Skipped
	// Exceeded are the budgets that have too little left for an arm that was skipped.
	Exceeded []Exceeded
	// Wait is how long the arm rests that comes back first; 0 unless no arm may serve and one rests.
	Wait time.Duration
}

// Why an arm was skipped.
type Why string

// The reasons.
const (
	Rests    Why = "resting"
	Busy     Why = "busy"     // at MaxConcurrent
	OverCost Why = "max_cost" // the call's
	OverSum  Why = "budget"
	Unpriced Why = "unpriced"
)

// Skipped is an arm that may not serve a request now.
type Skipped struct {
	Arm string `json:"arm"`
	Why Why    `json:"why"`
	// Until is when its rest ends by the clock of Postgres, WaitMS how long that is from now, and Reason why it rests.
	Until  time.Time `json:"until,omitzero"`
	WaitMS int64     `json:"wait_ms,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// Wait is how long the arm rests; 0 unless it does.
func (s *Skipped) Wait() time.Duration { return time.Duration(s.WaitMS) * time.Millisecond }

// Exceeded is a budget that has too little left.
type Exceeded struct {
	Budget   string    `json:"budget"`
	Limit    llm.Money `json:"limit_usd"`
	Spent    llm.Money `json:"spent_usd"`
	Reserved llm.Money `json:"reserved_usd"`
	ResetsAt time.Time `json:"resets_at"`
}

// End is how a request ended.
type End struct {
	ID     int64
	Status Status // not Sent
	// Kind is empty for a whole answer.
	Kind       llm.ErrorKind
	HTTPStatus int
	// RequestID and Model are what the provider said.
	RequestID, Model string
	Usage            llm.Usage
	// Estimated: the usage was not the provider's.
	Estimated bool
	// Reported, if set, is what the provider reported, and Usage is the part that the request can explain.
	Reported *llm.Usage
	// Cost is what the request cost; nil if that is not known, and then its reserve counts as spent.
	Cost *llm.Money
	// ProviderCost is the provider's own figure.
	ProviderCost *llm.Money
	// FirstContent is 0 if there was none.
	FirstContent, Took time.Duration
	// RestFor, if not 0, is how long the arm is to rest at least, and RestWhy the reason. Without it a failure of the provider counts:
	// three within a minute make the arm rest.
	RestFor time.Duration
	RestWhy string
}

// Request is a row of the ledger.
type Request struct {
	ID                                                      int64
	CallID                                                  string
	Attempt, N                                              int
	Label, Tool, Route, RoutesVersion, Arm, Provider, Model string
	CreatedBy, SessionID                                    string
	Status                                                  Status
	At                                                      time.Time
	EndedAt                                                 time.Time // zero while it is sent
	Reserved                                                llm.Money
	Cost, ProviderCost                                      *llm.Money
	Usage                                                   llm.Usage
	Estimated                                               bool
	Reported                                                *llm.Usage // set if Usage was bounded
	HTTPStatus                                              int
	RequestID, Answered                                     string // Answered is the model that the provider named
	Kind                                                    llm.ErrorKind
	FirstContent, Took                                      time.Duration
}

// Total is what the requests of a call, or of a group, come to.
type Total struct {
	Requests int64 `json:"requests"`
	// Cost is the sum of what is known; nil if nothing is, 0 without requests.
	Cost *llm.Money `json:"cost_usd"`
	// Unknown is how many requests have a cost that is not known.
	Unknown int64 `json:"unknown_requests"`
}

// Filter says whose requests of which time are asked for.
type Filter struct {
	// CreatedBy is whose; nil: of all.
	CreatedBy *string
	// From and To are the first and the last day, in UTC. A zero To is no bound.
	From, To time.Time
}

// DayUsage is what the requests of a day by one route and arm came to.
type DayUsage struct {
	Day   string `json:"day"` // 2006-01-02, in UTC
	Route string `json:"route"`
	Arm   string `json:"arm"`
	Total
	llm.Usage
}

// ArmState is what is known of an arm.
type ArmState struct {
	Arm string
	// RestsUntil is zero, or in the future, and Why says why.
	RestsUntil time.Time
	Why        string
	// Samples is how many whole answers the figures below are of, 0: they say nothing.
	Samples      int64
	FirstContent time.Duration // a moving mean
	TokensPerSec float64       // a moving mean
	MeanOutput   float64       // tokens of output, of all samples
	InputRatio   float64       // true tokens of input for each estimated one; 1 until known
}

package watch

import (
	"context"
	"time"
)

// SessionPage is a conversation, or a part of it: its calls in the order in which they were made, children behind their parents.
type SessionPage struct {
	ID    string        `json:"id"`
	Calls []SessionCall `json:"calls"` // at most 200
	// Total is how many calls the session has. AtLeast says that there may be more: 5,000 are looked at.
	Total   int  `json:"total"`
	AtLeast bool `json:"at_least,omitempty"`
	Open    int  `json:"open"`   // of Total, those that have not ended
	Failed  int  `json:"failed"` // of Total
	// Callers are the created_by of its calls, at most 10.
	Callers     []string  `json:"callers,omitempty"`
	First, Last time.Time `json:"-"`
	Usage       Usage     `json:"usage"` // of the calls of this page
	// Earlier and Later are the before of the page before this one and behind it; empty if there is none.
	Earlier string `json:"earlier,omitempty"`
	Later   string `json:"later,omitempty"`
}

// SessionCall is a call of a session.
type SessionCall struct {
	Call
	Depth int    `json:"depth"`           // 0, or one more than that of its parent on this page
	Usage *Usage `json:"usage,omitempty"` // nil if it asked no model
}

// Usage is what requests to models took.
type Usage struct {
	Requests     int   `json:"requests"`
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	Cost         int64 `json:"cost"` // in 10⁻⁹ USD: what providers took, and what is reserved where that is not known
}

// Session returns the last page of a session, or the one before a cursor: its Earlier or its Later.
func Session(ctx context.Context, db DB, id, before string) (*SessionPage, error) {
	return &SessionPage{}, nil
}

// Request is a request to a model: a row of the view gem.model_requests.
type Request struct {
	CallID  string `json:"call_id"`
	N       int    `json:"n"` // numbers the requests of the call
	Attempt int    `json:"attempt"`
	Label   string `json:"label"` // main, member n, judge, repair n, or a step's name
	Route   string `json:"route"`
	Arm     string `json:"arm"`
	// Provider and Model are as the routes file has them; Answered is the model that answered, as the provider names it.
	Provider         string    `json:"provider"`
	Model            string    `json:"model"`
	Answered         string    `json:"answered,omitempty"`
	Status           string    `json:"status"` // sent, done, failed, cut, cancelled, lost
	ErrorKind        string    `json:"error_kind,omitempty"`
	HTTPStatus       int       `json:"http_status,omitempty"`
	At               time.Time `json:"at"`
	EndedAt          time.Time `json:"ended_at,omitzero"`
	FirstContentMS   *int64    `json:"first_content_ms,omitempty"`
	MS               *int64    `json:"ms,omitempty"`
	InputTokens      *int64    `json:"input_tokens,omitempty"`
	OutputTokens     *int64    `json:"output_tokens,omitempty"`
	CacheReadTokens  *int64    `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens *int64    `json:"cache_write_tokens,omitempty"`
	ReasoningTokens  *int64    `json:"reasoning_tokens,omitempty"`
	Reserved         int64     `json:"reserved"`       // in 10⁻⁹ USD
	Cost             *int64    `json:"cost,omitempty"` // in 10⁻⁹ USD; nil: not known, and the reserve counts as spent
	RoutesVersion    string    `json:"routes_version"`
}

// Requests returns the requests of a call to models, in order, at most 1,000.
func Requests(ctx context.Context, db DB, callID string) ([]Request, error) { return nil, nil }

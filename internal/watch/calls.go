package watch

import (
	"context"
	"time"
)

// Call is a row of the view gem.calls: a call, and how it ended. Nothing of its input, its result and the details of its error is in it.
type Call struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	// Status is queued, running, waiting, succeeded, failed or not_configured.
	Status string `json:"status"`
	// WaitsFor says what a waiting call waits for: key, call, answer, time or code. Otherwise it is empty.
	WaitsFor string `json:"waits_for,omitempty"`
	// Scheduled is true for a queued call whose RunAt has not come.
	Scheduled bool `json:"scheduled,omitempty"`
	// ErrorCode and Message say why a call failed. Of not_configured, Message is the reason.
	ErrorCode string `json:"error_code,omitempty"`
	Message   string `json:"message,omitempty"` // at most 1,000 characters
	CreatedBy string `json:"created_by,omitempty"`
	SignedIn  bool   `json:"signed_in,omitempty"`
	SessionID string `json:"session_id,omitempty"`
	// ParentID is the call on whose behalf it was made, and ParentStep the name under which that one's handler made it; empty for none.
	ParentID   string `json:"parent_id,omitempty"`
	ParentStep string `json:"parent_step,omitempty"`
	// WorkerID is the worker of the current or last attempt.
	WorkerID string `json:"worker_id,omitempty"`
	// Key is the computed key that the call holds, waits for or ended with. ClientKey is the one that its client chose.
	Key       string `json:"key,omitempty"`
	ClientKey string `json:"client_key,omitempty"`
	Needs     string `json:"needs,omitempty"` // what a worker must have to claim it, such as `tool leads.create`
	// ReceiptID is empty until the call has ended. ReplayOf is the receipt that its own repeats: then Hit is true.
	ReceiptID       string `json:"receipt_id,omitempty"`
	ReplayOf        string `json:"replay_of,omitempty"`
	Hit             bool   `json:"hit,omitempty"`
	RegistryVersion string `json:"registry_version,omitempty"` // that it was validated against
	Traceparent     string `json:"traceparent,omitempty"`
	Priority        int    `json:"priority"`
	Level           int    `json:"level"`   // the priority, or -500 and less while its caller crowds
	Attempt         int    `json:"attempt"` // claims so far
	Retries         int    `json:"retries,omitempty"`
	Losses          int    `json:"losses,omitempty"` // attempts whose worker died
	Steps           int    `json:"steps,omitempty"`  // steps, children and waits in its journal
	Events          int    `json:"events"`           // the length of its journal
	Seq             int64  `json:"seq"`              // rises in the order of inserts
	// CancelRequested is true once someone asked for its end.
	CancelRequested bool      `json:"cancel_requested,omitempty"`
	CreatedAt       time.Time `json:"created_at"`
	UpdatedAt       time.Time `json:"updated_at"`
	RunAt           time.Time `json:"run_at"`
	ClaimedAt       time.Time `json:"claimed_at,omitzero"`
	EndedAt         time.Time `json:"ended_at,omitzero"`
	WakeAt          time.Time `json:"wake_at,omitzero"` // when a waiting call goes on in any case
	// DurationMS is from the claim of the last attempt to the receipt; nil for a call that has not ended, or that no worker ran.
	DurationMS *float64 `json:"duration_ms,omitempty"`
}

// Page is a list of calls, the newest first by the time that By names. Calls that are queued or scheduled come with the one that is due first.
type Page struct {
	Calls []Call `json:"calls"`
	// By is the time by which the list is ordered, which From and To of the filter bound: created, ended or due.
	By string `json:"by"`
	// Next is the Before of the next page; empty if this is the last.
	Next string `json:"next,omitempty"`
	// Looked is how many calls were looked at, where no index has those that the filter wants. AtLeast says that the calls behind those were
	// not, and LookFurther is the Before that looks at the next: use it when Calls has too few.
	Looked      int       `json:"looked,omitempty"`
	AtLeast     bool      `json:"at_least,omitempty"`
	LookFurther string    `json:"look_further,omitempty"`
	At          time.Time `json:"at"` // when this was read, by Postgres's clock
}

// Calls lists the calls that a filter wants.
func Calls(ctx context.Context, db DB, f Filter) (*Page, error) { return &Page{}, nil }

// Get returns one call, or a [*client.NotFoundError].
func Get(ctx context.Context, db DB, id string) (*Call, error) { return nil, nil }

// Children returns the calls that the handler of a call made or that name it as their parent, in order, up to a limit.
func Children(ctx context.Context, db DB, id string, limit int) ([]Call, error) { return nil, nil }

// Found is what a text names exactly. All of it is empty if it names nothing.
type Found struct {
	CallID    string `json:"call_id,omitempty"`    // of that id, or whose receipt has it
	ReceiptID string `json:"receipt_id,omitempty"` // if it was a receipt's
	Session   string `json:"session,omitempty"`
	Key       string `json:"key,omitempty"`
	Tool      string `json:"tool,omitempty"` // a tool of the registry in force
	Caller    string `json:"caller,omitempty"`
}

// Find finds what a text names: a call's id, a receipt's id, a session, a computed key, a tool or a caller.
func Find(ctx context.Context, db DB, text string) (found Found, err error) { return found, nil }

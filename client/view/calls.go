package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Call is a row of the view gem.calls: a call, and how it ended. It contains no input, no result and no details of an
// error.
type Call struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	// Status is queued, running, waiting, succeeded, failed or not_configured.
	Status string `json:"status"`
	// Outcome is the status of a finished call, or refused or cancelled if it failed with a code of that kind. It is
	// empty before the end.
	Outcome string `json:"outcome,omitempty"`
	// Decision is the decision on a call to wait.approval: approved, denied or expired. It is empty for a reader who
	// may not read results.
	Decision string `json:"decision,omitempty"`
	// WaitsFor is why a waiting call waits: key, call, answer, time or code. Otherwise it is empty.
	WaitsFor string `json:"waits_for,omitempty"`
	// Approval means that the call waits for approvals that rules ask for. WaitsFor is then call, since the questions
	// are calls.
	Approval bool `json:"awaits_approval,omitempty"`
	// Asks, in a list, is the tool of an open question that the handler of a waiting call asks. WaitsFor is then
	// call.
	Asks string `json:"asks,omitempty"`
	// Scheduled is true for a queued call whose RunAt is in the future.
	Scheduled bool `json:"scheduled,omitempty"`
	// ErrorCode and Message are the error of a failed call. For not_configured, Message is the reason.
	ErrorCode string `json:"error_code,omitempty"`
	Message   string `json:"message,omitempty"` // at most 1,000 characters
	CreatedBy string `json:"created_by,omitempty"`
	SignedIn  bool   `json:"signed_in,omitempty"`
	SessionID string `json:"session_id,omitempty"`
	// ParentID is the call on whose behalf it was made, and ParentStep the name under which the parent's handler made
	// it. Both may be empty.
	ParentID   string `json:"parent_id,omitempty"`
	ParentStep string `json:"parent_step,omitempty"`
	// WorkerID is the worker of the current or last attempt.
	WorkerID string `json:"worker_id,omitempty"`
	// Key is the computed key that the call holds, waits for or ended with. ClientKey is the key that its client
	// chose.
	Key       string `json:"key,omitempty"`
	ClientKey string `json:"client_key,omitempty"`
	// the capability that a worker needs to claim it, such as `tool leads.create`
	Needs string `json:"needs,omitempty"`
	// ReceiptID is empty until the call has ended. ReplayOf is the receipt that its own receipt repeats: then Hit is
	// true.
	ReceiptID       string `json:"receipt_id,omitempty"`
	ReplayOf        string `json:"replay_of,omitempty"`
	Hit             bool   `json:"hit,omitempty"`
	RegistryVersion string `json:"registry_version,omitempty"` // that validated it
	Traceparent     string `json:"traceparent,omitempty"`
	Priority        int    `json:"priority"`
	Level           int    `json:"level"`   // the priority, or -500 and less while its caller crowds
	Attempt         int    `json:"attempt"` // claims so far
	Retries         int    `json:"retries,omitempty"`
	Losses          int    `json:"losses,omitempty"` // attempts whose worker died
	Steps           int    `json:"steps,omitempty"`  // steps, children and waits in its journal
	Events          int    `json:"events"`           // the length of its journal
	Seq             int64  `json:"seq"`              // rises in the order of inserts
	// CancelRequested is true once someone has asked to cancel it.
	CancelRequested bool      `json:"cancel_requested,omitempty"`
	CreatedAt       time.Time `json:"created_at"`
	UpdatedAt       time.Time `json:"updated_at"`
	RunAt           time.Time `json:"run_at"`
	ClaimedAt       time.Time `json:"claimed_at,omitzero"`
	EndedAt         time.Time `json:"ended_at,omitzero"`
	WakeAt          time.Time `json:"wake_at,omitzero"` // when a waiting call continues at the latest
	// DurationMS is the time from the claim of the last attempt to the receipt; nil for a call that has not ended, or
	// that no worker ran.
	DurationMS *float64 `json:"duration_ms,omitempty"`
}

// Page is a list of calls, the newest first by the time that By names; if By is due, in the order in which workers
// claim them.
type Page struct {
	Calls []Call `json:"calls"`
	// By is the time that orders the list and that From and To of the filter limit: ended for the states succeeded,
	// failed, refused, cancelled, not_configured and ended and for a code, due for queued and scheduled, otherwise
	// created. With a key, a session or a caller it is always created.
	By string `json:"by"`
	// Next is the Before of the next page; empty on the last page.
	Next string `json:"next,omitempty"`
	// Looked is the number of calls that were read, if no index fits the filter. AtLeast means that there are more
	// calls, which were not read. LookFurther is the Before that reads the next ones: use it if Calls has too few.
	Looked      int       `json:"looked,omitempty"`
	AtLeast     bool      `json:"at_least,omitempty"`
	LookFurther string    `json:"look_further,omitempty"`
	At          time.Time `json:"at"` // the time of the read, on Postgres's clock
}

// columns are the columns of gem.calls, in the order of scanCall.
const columns = `c.id::text, coalesce(c.tool_name, ''), c.status, c.waits_for, c.status = 'queued'
	and c.run_at > (select gem.now()), c.error_code, c.message,
	c.created_by, c.signed_in, c.session_id, c.parent_call_id::text, c.parent_step, c.claimed_by, c.computed_key,
		c.idempotency_key, c.needs, c.receipt_id::text,
	c.replay_of::text, c.replay_of is not null, c.registry_version, c.traceparent, c.priority, c.level, c.attempt,
		c.retries, c.losses, c.steps, c.events, c.seq,
	c.cancel_requested_at is not null, c.created_at, c.updated_at, c.run_at, c.claimed_at, c.ended_at, c.wake_at,
	(extract(epoch from c.duration) * 1000)::float8, c.awaits_approval`

// scanCall reads the columns of a call, and further columns into more.
func scanCall(row pgx.Row, more ...any) (c Call, err error) {
	err = row.Scan(append([]any{&c.ID, &c.Tool, &c.Status, (*zeronull.Text)(&c.WaitsFor), &c.Scheduled,
		(*zeronull.Text)(&c.ErrorCode),
		(*zeronull.Text)(&c.Message), (*zeronull.Text)(&c.CreatedBy), &c.SignedIn, (*zeronull.Text)(&c.SessionID),
		(*zeronull.Text)(&c.ParentID),
		(*zeronull.Text)(&c.ParentStep), (*zeronull.Text)(&c.WorkerID), (*zeronull.Text)(&c.Key),
		(*zeronull.Text)(&c.ClientKey), (*zeronull.Text)(&c.Needs),
		(*zeronull.Text)(&c.ReceiptID), (*zeronull.Text)(&c.ReplayOf), &c.Hit, (*zeronull.Text)(&c.RegistryVersion),
		(*zeronull.Text)(&c.Traceparent),
		&c.Priority, &c.Level, &c.Attempt, &c.Retries, &c.Losses, &c.Steps, &c.Events, &c.Seq, &c.CancelRequested,
		&c.CreatedAt, &c.UpdatedAt, &c.RunAt,
		(*zeronull.Timestamptz)(&c.ClaimedAt), (*zeronull.Timestamptz)(&c.EndedAt), (*zeronull.Timestamptz)(&c.WakeAt),
		&c.DurationMS,
		&c.Approval}, more...)...)
	if !c.EndedAt.IsZero() {
		c.Outcome = receipts.Ended(c.Status, receipts.Code(c.ErrorCode))
	}
	if c.Status != "waiting" {
		c.WaitsFor, c.WakeAt = "", time.Time{} // in a finished call they concern the report to its parent
	}
	return c, err
}

// Get returns one call, or a [*client.NotFoundError].
func Get(ctx context.Context, db DB, id string) (*Call, error) {
	c, err := scanCall(db.QueryRow(ctx, "select "+columns+" from gem.calls c where c.id = $1", id))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		missing := &client.NotFoundError{ID: id}
		err = db.QueryRow(ctx, "select call_id::text from gem.receipts where id = $1", id).Scan(&missing.ReceiptOf)
		if err == nil || errors.Is(err, pgx.ErrNoRows) {
			err = missing
		}
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("read call %s: %w", id, err)
	}
	return &c, nil
}

// Children returns the calls that name a call as their parent, in the order of their creation, up to a limit. Calls
// that the parent's handler made have a ParentStep.
func Children(ctx context.Context, db DB, id string, limit int) ([]Call, error) {
	rows, err := db.Query(ctx, `select `+columns+` from (
			select k.id, k.seq from gem.calls k where k.parent_call_id = $1 limit 5000) k
		cross join lateral (select * from gem.calls c where c.id = k.id offset 0) c order by k.seq limit $2`, id, limit)
	return collect(rows, err, "read the calls below call "+id)
}

func collect(rows pgx.Rows, err error, doing string) ([]Call, error) {
	if err == nil {
		var all []Call
		if all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Call, error) { return scanCall(row) }); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", doing, err)
}

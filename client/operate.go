package client

import (
	"context"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Operator is a person who acts on others' calls. The connection's login must be a member of gem_operator, or have
// the rights of the owner of the tables.
type Operator struct {
	// By is the person's name for the journal: at most 255 characters; empty means the connection's login. Take it from
	// the sign-in, never from what the person typed.
	By string
	// Reason is the reason for the journal: at most 1,000 characters; it may be empty.
	Reason string
}

// Act names the person who acted on a call, according to its journal. It is zero if the journal names nobody.
type Act struct {
	By     string `json:"by"`     // the subject of the token, or for an operator the name in Operator.By
	Login  string `json:"login"`  // the login role of the person's connection; empty if it is the same as By
	Reason string `json:"reason"` // as given; may be empty
}

// The outcomes that only [OperatorCancel] returns.
const (
	// CancelBusy means that another transaction had locked the call: try again.
	CancelBusy Cancellation = "busy"
	// CancelUnknown means that the call does not exist.
	CancelUnknown Cancellation = "unknown"
)

// CancelOutcome is the outcome of a request to cancel a call.
type CancelOutcome struct {
	ID      string       `json:"id"`
	Outcome Cancellation `json:"outcome"`
}

// MaxCancel is the largest number of calls for [OperatorCancel].
const MaxCancel = 500

// OperatorCancel cancels up to [MaxCancel] calls, and returns one outcome for each distinct id, sorted by id. If
// cancellation was already requested, the outcome is [CancelRequested] again, since the handler may be cleaning up.
// With atOnce, the call ends without cleaning up, unless a worker is running it.
func OperatorCancel(ctx context.Context, db DB, ids []string, who Operator, atOnce bool) ([]CancelOutcome, error) {
	rows, err := db.Query(ctx, "select id::text, outcome from gem.operator_cancel($1::uuid[], $2, $3, $4)", ids, who.By,
		who.Reason, atOnce)
	if err == nil {
		var all []CancelOutcome
		if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[CancelOutcome]); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("cancel %d calls: %w", len(ids), err)
}

// RepeatPreview describes what repeating a call would do, according to the registry that workers recorded last.
type RepeatPreview struct {
	ID        string `json:"id"`
	Tool      string `json:"tool"`
	Status    string `json:"status"`
	ErrorCode string `json:"error_code,omitempty"`
	// Mode is the mode of the tool's idempotency; empty if the latest registry of the workers does not have the tool.
	Mode string `json:"mode,omitempty"`
	// Succeeded is the call that has succeeded with the key: its result would be repeated, and nothing would run. It
	// may be empty.
	Succeeded   string    `json:"succeeded,omitempty"`
	SucceededAt time.Time `json:"succeeded_at,omitzero"`
	// Holder is an open call that holds the key, for which the new one would wait; it may be empty.
	Holder string `json:"holder,omitempty"`
	// MayHappenTwice means that the call may have had effects, and that the new one may repeat them. Then
	// [RepeatOptions.Confirm] must be the tool's name.
	MayHappenTwice bool `json:"may_happen_twice"`
	// Refused says why the call cannot be repeated; empty if it can.
	Refused string `json:"refused,omitempty"`
}

// PreviewRepeat describes what [OperatorRepeat] would do with a call.
func PreviewRepeat(ctx context.Context, db DB, id string) (*RepeatPreview, error) {
	all, err := PreviewRepeats(ctx, db, []string{id})
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, notFound(ctx, db, id)
	}
	return &all[0], nil
}

// PreviewRepeats is [PreviewRepeat] for several calls, in their order. It skips calls that do not exist.
func PreviewRepeats(ctx context.Context, db DB, ids []string) ([]RepeatPreview, error) {
	rows, err := db.Query(ctx, `
		select m.id::text, m.tool, m.status, m.error_code, m.mode, m.succeeded::text, m.succeeded_at, m.holder::text,
			m.may_happen_twice, m.refused
		from pg_catalog.unnest($1::uuid[]) with ordinality u (id, n), gem.operator_again_means(u.id) m order by u.n`, ids)
	if err == nil {
		var all []RepeatPreview
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m RepeatPreview, err error) {
			return m, row.Scan(&m.ID, &m.Tool, &m.Status, (*zeronull.Text)(&m.ErrorCode), (*zeronull.Text)(&m.Mode),
				(*zeronull.Text)(&m.Succeeded),
				(*zeronull.Timestamptz)(&m.SucceededAt), (*zeronull.Text)(&m.Holder), &m.MayHappenTwice,
				(*zeronull.Text)(&m.Refused))
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the effects of repeating calls: %w", err)
}

// RepeatOptions are the options for repeating a call.
type RepeatOptions struct {
	Operator
	// Confirm is the name of the call's tool, typed by the operator. It is required if something may happen twice.
	Confirm string
	// NewID is the new call's id, a UUID that the caller chooses: requests with the same NewID repeat the call once.
	// Empty means that Postgres generates one.
	NewID string
}

// OperatorRepeat makes a new call with the tool, input, session, created_by, idempotency_key and priority of a finished
// one, for the same caller, and returns its id. If a signed-in user made the old call, the new one counts as made by
// that user, too. Rules judge it like any other. The old call and its receipt do not change. Errors of Postgres have
// the codes PT409 (it cannot be repeated, and the message gives the reason), PT428 (something may happen twice, and
// Confirm is not the tool's name) and 23505 (NewID belongs to another call).
func OperatorRepeat(ctx context.Context, db DB, id string, a RepeatOptions) (newID string, err error) {
	err = db.QueryRow(ctx, "select gem.operator_again($1, $2, $3, $4, $5)::text", id, a.By, a.Reason, a.Confirm,
		zeronull.Text(a.NewID)).Scan(&newID)
	switch {
	case store.HasCode(err, "PT404"):
		return "", notFound(ctx, db, id)
	case err != nil:
		return "", fmt.Errorf("repeat call %s: %w", id, err)
	}
	return newID, nil
}

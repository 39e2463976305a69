package client

import (
	"context"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Operator is a person who acts on the calls of others. The connection's login is a member of gem_operator, or has the rights of the owner of
// the tables.
type Operator struct {
	// By is the person's name, which the journal keeps: at most 255 characters; empty means the connection's login. Whoever signs people in says
	// it, and never the person itself.
	By string
	// Reason is why, for the journal: at most 1,000 characters; empty means none.
	Reason string
}

// Act is who did something to a call, as its journal says. It is zero where nobody is named.
type Act struct {
	By     string `json:"by"`     // the subject, or the person whom an operator's connection named
	Login  string `json:"login"`  // the login role of that connection; empty where it is By itself
	Reason string `json:"reason"` // as given; empty for none
}

// The outcomes of [OperatorCancel] beside those of [Cancel].
const (
	// CancelBusy means that another transaction had the call locked: try again.
	CancelBusy Cancellation = "busy"
	// CancelUnknown means that there is no such call.
	CancelUnknown Cancellation = "unknown"
)

// CancelOutcome is what came of the end that was asked for a call.
type CancelOutcome struct {
	ID      string       `json:"id"`
	Outcome Cancellation `json:"outcome"`
}

// MaxCancel is how many calls [OperatorCancel] takes.
const MaxCancel = 500

// OperatorCancel asks for the ends of up to [MaxCancel] calls, and says of each what came of it, in the order of their ids. A call whose end was
// asked for before stays [CancelRequested], since its handler may be cleaning up; atOnce ends it without that where no worker runs it.
func OperatorCancel(ctx context.Context, db DB, ids []string, who Operator, atOnce bool) ([]CancelOutcome, error) {
	rows, err := db.Query(ctx, "select id::text, outcome from gem.operator_cancel($1::uuid[], $2, $3, $4)", ids, who.By, who.Reason, atOnce)
	if err == nil {
		var all []CancelOutcome
		if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[CancelOutcome]); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("cancel %d calls: %w", len(ids), err)
}

// AgainMeans is what it would mean to make a call again, by the registry in force.
type AgainMeans struct {
	ID        string `json:"id"`
	Tool      string `json:"tool"`
	Status    string `json:"status"`
	ErrorCode string `json:"error_code,omitempty"`
	// Mode is the mode of the tool's idempotency; empty if no registry in force has the tool.
	Mode string `json:"mode,omitempty"`
	// Succeeded is the call that has succeeded with the key: its result would be repeated, and nothing would run. Empty for none.
	Succeeded   string    `json:"succeeded,omitempty"`
	SucceededAt time.Time `json:"succeeded_at,omitzero"`
	// Holder is an open call that holds the key, for which the new one would wait; empty for none.
	Holder string `json:"holder,omitempty"`
	// MayHappenTwice means that the call may have done something, and nothing keeps the new one from doing it once more. [Again.Confirm] must be
	// the tool's name then.
	MayHappenTwice bool `json:"may_happen_twice"`
	// Refused says why the call cannot be made again; empty if it can.
	Refused string `json:"refused,omitempty"`
}

// AgainWouldMean says what [OperatorAgain] would do.
func AgainWouldMean(ctx context.Context, db DB, id string) (*AgainMeans, error) {
	all, err := AgainsWouldMean(ctx, db, []string{id})
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, notFound(ctx, db, id)
	}
	return &all[0], nil
}

// AgainsWouldMean is [AgainWouldMean] of several calls, in their order; those that there are not are left out.
func AgainsWouldMean(ctx context.Context, db DB, ids []string) ([]AgainMeans, error) {
	rows, err := db.Query(ctx, `
		select m.id::text, m.tool, m.status, m.error_code, m.mode, m.succeeded::text, m.succeeded_at, m.holder::text, m.may_happen_twice, m.refused
		from unnest($1::uuid[]) with ordinality u (id, n), gem.operator_again_means(u.id) m order by u.n`, ids)
	if err == nil {
		var all []AgainMeans
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m AgainMeans, err error) {
			return m, row.Scan(&m.ID, &m.Tool, &m.Status, (*zeronull.Text)(&m.ErrorCode), (*zeronull.Text)(&m.Mode), (*zeronull.Text)(&m.Succeeded),
				(*zeronull.Timestamptz)(&m.SucceededAt), (*zeronull.Text)(&m.Holder), &m.MayHappenTwice, (*zeronull.Text)(&m.Refused))
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("ask what it means to make calls again: %w", err)
}

// Again says how a call is made again.
type Again struct {
	Operator
	// Confirm is the name of the call's tool, typed by the operator: needed where something may happen twice.
	Confirm string
	// NewID is the new call's id, a UUID that the caller chose: with the same one the call is made again once, however often it is asked for. Empty
	// means that Postgres makes one.
	NewID string
}

// OperatorAgain makes a new call with the tool, input, session, created_by, idempotency_key and priority of one that has ended, on its behalf, and
// returns its id. Rules judge it like any other. The old call and its receipt stay as they are. Errors of Postgres have the codes PT409 (it cannot
// be made again, and the message says why), PT428 (something may happen twice, and Confirm is not the tool's name) and 23505 (NewID is another call's).
func OperatorAgain(ctx context.Context, db DB, id string, a Again) (newID string, err error) {
	err = db.QueryRow(ctx, "select gem.operator_again($1, $2, $3, $4, $5)::text", id, a.By, a.Reason, a.Confirm, zeronull.Text(a.NewID)).Scan(&newID)
	switch {
	case store.HasCode(err, "PT404"):
		return "", notFound(ctx, db, id)
	case err != nil:
		return "", fmt.Errorf("make call %s again: %w", id, err)
	}
	return newID, nil
}

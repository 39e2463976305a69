package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
)

// Call is a row of core_tool_calls.
type Call struct {
	ID    string
	Tool  string
	Input json.RawMessage
	// Status is queued, running, waiting, succeeded, failed or not_configured.
	Status string
	// SessionID, CreatedBy and IdempotencyKey are the frontend's; empty for none.
	SessionID, CreatedBy, IdempotencyKey string
	// Key is the computed key that the call holds while it runs, or waits for: see receipts.Key. It is empty for none.
	Key      string
	Priority int       // -1000 to 1000; calls of a higher one run first
	RunAt    time.Time // the earliest time to run
	Seq      int64     // rises in the order of inserts
	// Attempt counts the claims so far, Retries the attempts that ended with a transient error, and Losses those whose worker
	// died.
	Attempt, Retries, Losses int
	// WorkerID and ClaimedAt are those of the current or last attempt. They are zero while the call is queued or waiting.
	WorkerID        string
	ClaimedAt       time.Time
	CancelRequested bool // someone asked to cancel it
	CreatedAt       time.Time
}

// Get returns the call of an id.
func Get(ctx context.Context, db DB, id string) (*Call, error) {
	c, _, err := getAt(ctx, db, id)
	return c, err
}

// getAt also returns Postgres's clock.
func getAt(ctx context.Context, db DB, id string) (*Call, time.Time, error) {
	row, now, err := store.ReadCall(ctx, db, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, now, notFound(ctx, db, id)
	}
	if err != nil {
		return nil, now, fmt.Errorf("read call %s: %w", id, err)
	}
	return (*Call)(&row), now, nil
}

// Receipt returns the receipt of a call, or [ErrNoReceipt].
func Receipt(ctx context.Context, db DB, id string) (*receipts.Receipt, error) {
	r, err := store.Receipt(ctx, db, id)
	if errors.Is(err, ErrNoReceipt) {
		if _, err := Get(ctx, db, id); err != nil {
			return nil, err
		}
	}
	return r, err
}

// ErrNoReceipt says that the call has not ended.
var ErrNoReceipt = receipts.ErrNone

// Journal returns what happened to a call, in order.
func Journal(ctx context.Context, db DB, id string) ([]receipts.Event, error) {
	events, err := store.Journal(ctx, db, id)
	if err == nil && len(events) == 0 {
		return nil, notFound(ctx, db, id) // a call has at least the event of its insert
	}
	return events, err
}

// NotFoundError says that the database has no call of that id, or none that this role may see.
type NotFoundError struct {
	ID string
	// ReceiptOf is the call whose receipt has this id; empty if none has. The two are easily confused.
	ReceiptOf string
}

func (e *NotFoundError) Error() string {
	if e.ReceiptOf != "" {
		return fmt.Sprintf("there is no call %s: it is the id of a receipt, and the receipt's call is %s", e.ID, e.ReceiptOf)
	}
	return fmt.Sprintf("there is no call %s in this database", e.ID)
}

func notFound(ctx context.Context, db DB, id string) error {
	call, err := store.CallOfReceipt(ctx, db, id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return &NotFoundError{ID: id, ReceiptOf: call}
}

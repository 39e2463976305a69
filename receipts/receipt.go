// Package receipts is the record of what calls did: the one receipt each, the journal, and the idempotency keys that let a
// call repeat an earlier receipt instead of running. It is the only writer of receipts; the rules are in the SQL functions
// of migrations/00002_state_machine.sql and 00007_hot_path.sql, which it calls.
package receipts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Status is the outcome of a call.
type Status string

// The three outcomes.
const (
	Succeeded     Status = "succeeded"
	Failed        Status = "failed"
	NotConfigured Status = "not_configured"
)

// Code says to a program why a call failed. It stands in result.error.error_code.
type Code string

// The codes that GEM itself gives; a handler may give its own.
const (
	UnknownTool     Code = "unknown_tool"     // the registry has no tool of that name
	ValidationError Code = "validation_error" // the input does not fit its schema; details list {path, keyword, message}
	ExecutionError  Code = "execution_error"  // the handler returned an error
	Timeout         Code = "timeout"          // the handler took longer than the tool's timeout_ms
	Panic           Code = "panic"            // the handler panicked
	OutputInvalid   Code = "output_invalid"   // the output does not fit its schema, or Postgres can not store it
	OutcomeUnknown  Code = "outcome_unknown"  // the worker went away in the middle, and the call may not run twice
	WorkerLost      Code = "worker_lost"      // every attempt lost its worker
	Cancelled       Code = "cancelled"        // someone asked to cancel the call
)

// Receipt is the one final record of a call.
type Receipt struct {
	ID              string          `json:"id"`
	CallID          string          `json:"call_id"`
	ToolName        string          `json:"tool_name"`
	Status          Status          `json:"status"`
	Result          json.RawMessage `json:"result"`
	Effects         json.RawMessage `json:"effects"`
	CreatedAt       time.Time       `json:"created_at"`
	Attempt         int             `json:"attempt"`
	WorkerID        string          `json:"worker_id,omitempty"`
	RegistryVersion string          `json:"registry_version,omitempty"`
	IdempotencyKey  string          `json:"idempotency_key,omitempty"`
	ReplayOf        string          `json:"replay_of,omitempty"`
	DurationMS      float64         `json:"duration_ms"` // from the claim of its attempt; 0 on an imported receipt
}

// Error is the error object of a failed receipt.
type Error struct {
	Code    Code            `json:"error_code"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details"`
}

// Error returns the error of a failed receipt, and false for the other outcomes.
func (r *Receipt) Error() (Error, bool) {
	var result struct {
		Error Error `json:"error"`
	}
	if r.Status != Failed || json.Unmarshal(r.Result, &result) != nil {
		return Error{}, false
	}
	return result.Error, true
}

// Querier reads: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ErrNone says that the call has no receipt yet.
var ErrNone = errors.New("no receipt yet")

// Of returns the receipt of a call, or [ErrNone].
func Of(ctx context.Context, db Querier, callID string) (*Receipt, error) {
	var (
		r        Receipt
		optional [4]pgtype.Text
	)
	err := db.QueryRow(ctx, `
		select id::text, call_id::text, tool_name, status, coalesce(result, 'null')::text, coalesce(effects, '{}')::text, created_at, attempt,
		       worker_id, registry_version, idempotency_key, replay_of::text,
		       coalesce(extract(epoch from duration) * 1000, 0)::float8
		from public.core_tool_receipts where call_id = $1`, callID).
		Scan(&r.ID, &r.CallID, &r.ToolName, &r.Status, &r.Result, &r.Effects, &r.CreatedAt, &r.Attempt,
			&optional[0], &optional[1], &optional[2], &optional[3], &r.DurationMS)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read the receipt of call %s: %w", callID, err)
	}
	r.WorkerID, r.RegistryVersion, r.IdempotencyKey, r.ReplayOf = optional[0].String, optional[1].String, optional[2].String, optional[3].String
	return &r, nil
}

// notHeld is the SQLSTATE of the state machine's functions when an attempt no longer holds its call.
const notHeld = "GM001"

// IsNotHeld reports whether err says that the attempt no longer holds its call: another has it, or it has ended.
func IsNotHeld(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == notHeld
}

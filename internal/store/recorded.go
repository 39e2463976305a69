package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Recorded is a call with the parts of its journal that its handler reads. Its JSON can be stored in a file, and
// replayed later by another program.
type Recorded struct {
	ID        string            `json:"id"`
	Tool      string            `json:"tool"`
	Input     json.RawMessage   `json:"input"`
	SessionID string            `json:"session_id,omitempty"`
	CreatedBy string            `json:"created_by,omitempty"`
	Attempt   int               `json:"attempt"`
	Cancelled bool              `json:"cancelled,omitempty"` // cancellation was requested
	Events    []Event           `json:"events"`
	Receipt   *receipts.Receipt `json:"receipt,omitempty"` // nil if the call has not ended
}

// Record reads a call. It returns an error if the call does not exist. The results of the call's children must fit into
// memory.
func Record(ctx context.Context, db DB, callID string) (*Recorded, error) {
	r := Recorded{ID: callID}
	err := db.QueryRow(ctx, `select coalesce(tool_name, ''), coalesce(input, 'null')::text, session_id, created_by,
		attempt, cancel_requested_at is not null
		from public.core_tool_calls where id = $1`, callID).
		Scan(&r.Tool, &r.Input, (*zeronull.Text)(&r.SessionID), (*zeronull.Text)(&r.CreatedBy), &r.Attempt, &r.Cancelled)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("there is no call %s in this database", callID)
	} else if err != nil {
		return nil, fmt.Errorf("read call %s: %w", callID, err)
	}
	if r.Events, err = Steps(ctx, db, callID); err != nil {
		return nil, err
	}
	large := map[string]int{} // by the child's id
	for i, e := range r.Events {
		if e.Large {
			var data struct {
				CallID string `json:"call_id"`
			}
			_ = json.Unmarshal(e.Data, &data)
			large[data.CallID] = i
		}
	}
	results, err := Results(ctx, db, slices.Collect(maps.Keys(large)))
	if err != nil {
		return nil, err
	}
	for id, result := range results {
		e := &r.Events[large[id]]
		e.Status, e.Result, e.Large = result.Status, result.Result, false
	}
	if r.Receipt, err = Receipt(ctx, db, callID); errors.Is(err, receipts.ErrNone) {
		err = nil
	}
	return &r, err
}

package receipts

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Event is an entry of a call's journal. Its names are explained in migrations/00001_calls.sql.
type Event struct {
	Seq      int             `json:"seq"` // 1, 2, 3 … per call
	At       time.Time       `json:"at"`
	Event    string          `json:"event"`
	Attempt  int             `json:"attempt"`
	WorkerID string          `json:"worker_id,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
}

// Journal returns what happened to a call, in order; none for a call that does not exist.
func Journal(ctx context.Context, db Querier, callID string) ([]Event, error) {
	rows, err := db.Query(ctx, `
		select seq, at, event, attempt, coalesce(worker_id, ''), data::text
		from public.core_tool_events where call_id = $1 order by seq`, callID)
	if err == nil {
		var events []Event
		events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Event])
		if err == nil {
			return events, nil
		}
	}
	return nil, fmt.Errorf("read the journal of call %s: %w", callID, err)
}

package handlers

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// AuditLogSearch looks through the journal. Without a call_id it looks at the 5,000 calls that were made last, of those that
// it may see and whatever its other conditions, so that its cost does not grow with the journal.
type AuditLogSearch struct {
	Query     string `json:"query"` // each word occurs in the tool's name, the event or its data
	EventType string `json:"event_type"`
	CallID    string `json:"call_id"`
	Since     *Time  `json:"since"`
	Limit     Limit  `json:"limit"` // 50 by default
}

// AuditLog is the answer to [AuditLogSearch].
type AuditLog struct {
	Items []AuditItem `json:"items"`
}

// AuditItem is one event of a call.
type AuditItem struct {
	CallID    string          `json:"call_id"`
	Seq       int             `json:"seq"`
	At        Time            `json:"at"`
	EventType string          `json:"event_type"`
	Attempt   int             `json:"attempt"`
	WorkerID  *string         `json:"worker_id,omitempty"`
	ToolName  string          `json:"tool_name"`
	Data      json.RawMessage `json:"data,omitempty"`
}

// AuditLogSearch is os.audit_log_search, the newest event first. A call that was made by a user sees that user's calls
// alone; one that the database knows no user of, such as one of the service itself, sees all.
func (OS) AuditLogSearch(ctx context.Context, tx Tx, call *Call, in AuditLogSearch) (AuditLog, error) {
	// The first event of each call is indexed by its time. The fences (offset 0) keep each lookup one by the call's id, and
	// never a scan of a whole table.
	calls, args := `select call_id from core_tool_events where seq = 1 order by at desc limit 5000`, []any{}
	switch {
	case in.CallID != "":
		id, err := rowID("core_tool_calls", in.CallID)
		if err != nil {
			return AuditLog{}, err
		}
		calls, args = `select $6::uuid as call_id`, append(args, id)
	case call.CreatedBy != "":
		calls = `select id as call_id from core_tool_calls where created_by = $2 order by created_at desc limit 5000`
	}
	rows, err := tx.Query(ctx, `with calls as materialized (`+calls+`)
		select e.call_id::text, e.seq, e.at, e.event, e.attempt, e.worker_id, c.tool_name, e.data
		from calls
		cross join lateral (select coalesce(tool_name, '') as tool_name, created_by from core_tool_calls where id = calls.call_id offset 0) c
		cross join lateral (select * from core_tool_events where call_id = calls.call_id offset 0) e
		where ($2 = '' or c.created_by = $2) and ($3 = '' or e.event = $3) and e.at >= coalesce($5, '-infinity'::timestamptz)
			and (c.tool_name || ' ' || e.event || ' ' || coalesce(e.data::text, '')) ilike all ($1::text[])
		order by e.at desc, e.call_id, e.seq desc limit $4`,
		append([]any{words(in.Query), call.CreatedBy, in.EventType, in.Limit.or(50, 100), in.Since}, args...)...)
	if err != nil {
		return AuditLog{}, fmt.Errorf("search the journal: %w", err)
	}
	items, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AuditItem])
	if err != nil {
		return AuditLog{}, fmt.Errorf("search the journal: %w", err)
	}
	call.Read("core_tool_events", len(items))
	return AuditLog{Items: items}, nil
}

package os

import (
	"context"
	"encoding/json"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
)

// AuditLogSearch searches the journal. Without a call_id it searches only the 5,000 newest calls that the caller may
// see, so that its cost does not grow with the journal.
type AuditLogSearch struct {
	Query     string      `json:"query"` // each word occurs in the tool's name, the event or its data
	EventType string      `json:"event_type"`
	CallID    string      `json:"call_id"`
	Since     *value.Time `json:"since"`
	Limit     value.Limit `json:"limit"` // 50 by default
}

// AuditLog is the result of [AuditLogSearch].
type AuditLog struct {
	Items []AuditItem `json:"items"`
}

// AuditItem is one event of a call.
type AuditItem struct {
	CallID    string          `json:"call_id"`
	Seq       int             `json:"seq"`
	At        value.Time      `json:"at"`
	EventType string          `json:"event_type"`
	Attempt   int             `json:"attempt"`
	WorkerID  *string         `json:"worker_id,omitempty"`
	ToolName  string          `json:"tool_name"`
	Data      json.RawMessage `json:"data,omitempty"`
}

// AuditLogSearch is os.audit_log_search, the newest event first. A call that a user made sees only that user's calls; a
// call without a user, such as one of the service itself, sees all. A signed-in user does not see workers, or the calls
// of others that waited for a call.
func (*OS) AuditLogSearch(ctx context.Context, tx handlers.Tx, call *handlers.Call, in AuditLogSearch) (AuditLog,
	error) {
	// The first event of each call is indexed by its time. The fences (offset 0) make each lookup use the call's id, and
	// prevent scans of whole tables.
	calls := `select call_id from public.core_tool_events where seq = 1 order by at desc limit 5000`
	args := []any{value.Words(in.Query), call.CreatedBy, in.EventType, in.Limit.Or(50, 100), in.Since, call.SignedIn}
	switch {
	case in.CallID != "":
		if !value.IsUUID(in.CallID) {
			return AuditLog{}, handlers.NotFound("core_tool_calls", receipts.Shorten(in.CallID, 100))
		}
		calls, args = `select $7::uuid as call_id`, append(args, in.CallID)
	case call.SignedIn || call.CreatedBy != "":
		calls = `select id as call_id from public.core_tool_calls where created_by = $2 order by created_at desc limit 5000`
	}
	items, err := table.List[AuditItem](ctx, tx, call, "core_tool_events", `with calls as materialized (`+calls+`)
		select e.call_id::text, e.seq, e.at, e.event, e.attempt, e.worker_id, c.tool_name, e.data
		from calls
		cross join lateral (select coalesce(tool_name, '') as tool_name, created_by from public.core_tool_calls
			where id = calls.call_id offset 0) c
		cross join lateral (
			select call_id, seq, at, event, attempt, case when not $6 then worker_id end as worker_id,
				case when $6 then nullif(data - 'lost_worker' - 'held_by', '{}') else data end as data
			from public.core_tool_events where call_id = calls.call_id offset 0) e
		where (not $6 and $2 = '' or c.created_by = $2) and ($3 = '' or e.event = $3)
			and e.at >= coalesce($5, '-infinity'::timestamptz)
			and (c.tool_name || ' ' || e.event || ' ' || coalesce(e.data::text, '')) ilike all ($1::text[])
		order by e.at desc, e.call_id, e.seq desc limit $4`, args...)
	return AuditLog{Items: items}, err
}

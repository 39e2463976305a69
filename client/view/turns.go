package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Turn is the requests of a call to models under one label, such as a turn of an agent: one answer, and the requests
// for it.
type Turn struct {
	CallID string `json:"call_id"`
	Label  string `json:"label"` // such as turn 3
	Model  string `json:"model"` // of the last request
	// Status and ErrorKind belong to the last request: sent, done, failed, cut, cancelled or lost.
	Status    string    `json:"status"`
	ErrorKind string    `json:"error_kind,omitempty"`
	At        time.Time `json:"at"`
	EndedAt   time.Time `json:"ended_at,omitzero"` // zero while a request is in progress
	Usage
	// Unknown is the number of requests without a known cost, whose reserve counts.
	Unknown int `json:"unknown_requests,omitempty"`
}

// mostTurnRequests limits the requests that Turns reads: those of a call, and of many calls of a page.
const mostTurnRequests = 2000

// Turns returns the turns of calls, by call and in order.
func Turns(ctx context.Context, db DB, callIDs []string) ([]Turn, error) {
	rows, err := db.Query(ctx, `
		select call_id::text, label, (array_agg(coalesce(answered, model) order by n desc))[1],
			(array_agg(status order by n desc))[1],
			(array_agg(error_kind order by n desc))[1], min(at), case when bool_and(ended_at is not null) then max(ended_at) end,
				count(*),
			coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint,
				coalesce(sum(coalesce(cost, reserved)), 0)::bigint,
			count(*) filter (where cost is null)
		from (select * from gem.model_requests where call_id = any ($1::uuid[]) order by call_id, n limit $2) q
		group by call_id, label order by call_id, min(n)`, callIDs, mostTurnRequests)
	if err == nil {
		var all []Turn
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Turn, err error) {
			return t, row.Scan(&t.CallID, &t.Label, &t.Model, &t.Status, (*zeronull.Text)(&t.ErrorKind), &t.At,
				(*zeronull.Timestamptz)(&t.EndedAt), &t.Requests,
				&t.InputTokens, &t.OutputTokens, &t.Cost, &t.Unknown)
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the requests to models: %w", err)
}

// UnmadeCall is a call that a handler requested and that was not made, for example because an agent does not have the
// tool.
type UnmadeCall struct {
	CallID    string    `json:"call_id"` // of the handler
	Name      string    `json:"name"`    // under which the handler requested it
	At        time.Time `json:"at"`
	ErrorCode string    `json:"error_code"`
	Message   string    `json:"message"`
}

// mostNotMade limits the result of CallsNotMade.
const mostNotMade = 500

// CallsNotMade returns the calls that the handlers of some calls requested and that were not made, by call and in
// order.
func CallsNotMade(ctx context.Context, db DB, callIDs []string) ([]UnmadeCall, error) {
	rows, err := db.Query(ctx, `
		select call_id::text, data ->> 'name', at, coalesce(data -> 'error' ->> 'error_code', ''),
			coalesce(data -> 'error' ->> 'message', '')
		from gem.journal where call_id = any ($1::uuid[]) and event = 'step' and data ->> 'kind' = 'call' and data ? 'error'
		order by call_id, seq limit $2`, callIDs, mostNotMade)
	if err == nil {
		var all []UnmadeCall
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (n UnmadeCall, err error) {
			return n, row.Scan(&n.CallID, &n.Name, &n.At, &n.ErrorCode, &n.Message)
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the calls that were not made: %w", err)
}

// StepCalls returns the calls that the handler of a call made under some names, in order, at most 1,000.
func StepCalls(ctx context.Context, db DB, callID string, names []string) ([]Call, error) {
	rows, err := db.Query(ctx,
		"select "+columns+
			` from gem.calls c where c.parent_call_id = $1 and c.parent_step = any ($2::text[]) order by c.seq limit 1000`,
		callID, names)
	return collect(rows, err, "read the calls below call "+callID)
}

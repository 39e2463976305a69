package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// The events of a journal that a durable handler replays.
const (
	StepBegan = "began"
	StepEnded = "step"
	Called    = "called"
	Returned  = "returned"
	Answered  = "answered"
	TimedOut  = "timed_out"
	Parked    = "waiting" // not for a key
	Ruled     = "ruled"   // by the rules, before its first step
	Holds     = "holds"   // the key that the call holds; not an event
)

// Step is an event of a step.
type Step struct {
	Event string
	Data  json.RawMessage // an object with the step's name
	Key   string          // see [Final]
}

// StepSQL writes an event of a step. If the step has a transaction, it is the transaction's last statement.
const StepSQL = "select gem.step($1, $2, $3, $4, $5, $6, $7, $8)"

// Statement returns the statement that writes the event if the journal has exactly before events of steps. again means
// that an earlier try may have written it.
func (s Step) Statement(a Attempt, before int, again bool) Statement {
	return Statement{StepSQL, []any{a.CallID, a.Number, a.WorkerID, s.Event, string(s.Data), before, again,
		zeronull.Text(s.Key)}, nil}
}

// HasStep reports whether the attempt, which must hold its call, has ended a step. It waits for a transaction of the
// attempt that is about to commit.
func HasStep(ctx context.Context, db DB, a Attempt, name string) (there bool, err error) {
	err = db.QueryRow(ctx, "select gem.has_step($1, $2, $3, 'step', $4)", a.CallID, a.Number, a.WorkerID,
		name).Scan(&there)
	return there, err
}

// ExchangeToken returns the token with which a service may write steps of the attempt, which must hold its call.
func ExchangeToken(ctx context.Context, db DB, a Attempt) (token string, err error) {
	err = db.QueryRow(ctx, "select gem.exchange_token($1, $2, $3)", a.CallID, a.Number, a.WorkerID).Scan(&token)
	return token, err
}

// StepsOf returns the number of steps and waits in the journal of the attempt's call. It waits for a transaction of the
// attempt that is about to commit.
func StepsOf(ctx context.Context, db DB, a Attempt) (steps int, err error) {
	err = db.QueryRow(ctx, "select gem.steps_of($1, $2, $3)", a.CallID, a.Number, a.WorkerID).Scan(&steps)
	return steps, err
}

// Event is an event of a call's journal.
type Event struct {
	Seq    int             `json:"seq"`
	Event  string          `json:"event"`
	Data   json.RawMessage `json:"data"`
	Status string          `json:"status,omitempty"` // of a child that returned
	Result json.RawMessage `json:"result,omitempty"` // from the child's receipt; nil if Large
	// Large reports that the result was omitted, because the earlier results together are too large.
	Large bool `json:"-"`
	// InputDiffers reports that a child repeated the result of an earlier call with the same key and another input.
	InputDiffers bool `json:"input_differs,omitempty"`
}

// maxResults limits the results of children that are read together, in bytes.
const maxResults = 8 << 20

// Steps returns the events of a call's steps and waits, and the ends of attempts with effects of steps that were not
// kept, in order.
func Steps(ctx context.Context, db DB, callID string) ([]Event, error) {
	return events(ctx, db, callID, 0, `e.event in ('began', 'step', 'called', 'returned', 'answered', 'timed_out', 'ruled')
		or e.event = 'waiting' and e.data ? 'for' or e.event in ('retried', 'released', 'waiting') and e.data ? 'effects'`)
}

// Came returns the arrivals in a call's journal after an event.
func Came(ctx context.Context, db DB, callID string, after int) ([]Event, error) {
	return events(ctx, db, callID, after, "e.event in ('returned', 'answered', 'timed_out')")
}

func events(ctx context.Context, db DB, callID string, after int, which string) ([]Event, error) {
	rows, err := db.Query(ctx, `select seq, event, data, status, case when stored <= $3 then result::text end,
		coalesce(stored > $3, false),
			differs
		from (
			select e.seq, e.event, (case when e.event = 'answered' then e.data || pg_catalog.jsonb_build_object('at', e.at)
				else e.data end)::text as data, coalesce(r.status, '') as status, r.result,
				sum(octet_length(r.result::text)) over (order by e.seq) as stored,
				r.replay_of is not null and coalesce(r.effects #> '{idempotency,input_differs}' = 'true', false) as differs
			from public.core_tool_events e
			left join public.core_tool_receipts r on e.event = 'returned' and r.call_id = (e.data ->> 'call_id')::uuid
			where e.call_id = $1 and e.seq > $2 and (`+which+`)
				and coalesce(e.data ->> 'name', e.data -> 'for' ->> 0, '') not like '##%' -- what the rules ask is not the handler's
			union all
			select 0, 'holds', pg_catalog.jsonb_build_object('key', c.computed_key)::text, '', null, null, false
			from public.core_tool_calls c where c.id = $1 and $2 = 0 and c.computed_key is not null) event
		order by seq`, callID, after, maxResults)
	if err == nil {
		var events []Event
		if events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Event]); err == nil {
			return events, nil
		}
	}
	return nil, fmt.Errorf("read the journal of call %s: %w", callID, err)
}

// Results returns the status and the result of receipts, by the ids of their calls.
func Results(ctx context.Context, db DB, callIDs []string) (map[string]Event, error) {
	rows, err := db.Query(ctx, "select call_id::text, status, result::text from public.core_tool_receipts where call_id "+
		"= any ($1::uuid[])", callIDs)
	if err != nil {
		return nil, err
	}
	found := map[string]Event{}
	var id string
	var e Event
	_, err = pgx.ForEachRow(rows, []any{&id, &e.Status, &e.Result}, func() error {
		found[id] = e
		e.Result = nil
		return nil
	})
	return found, err
}

package client

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// WaitsFor names the thing that a call needs next. It is more detailed than [Call.WaitsFor], and has different values.
type WaitsFor string

const (
	// ForNothing means that the call has ended.
	ForNothing WaitsFor = ""
	// ForTime means that the call is queued and its RunAt is in the future, or that its handler sleeps.
	ForTime WaitsFor = "time"
	// ForWorker means that no worker is alive.
	ForWorker WaitsFor = "worker"
	// ForCapability means that the call is queued, and no living worker has the capability that it needs: see
	// [Call.Needs].
	ForCapability WaitsFor = "capability"
	// ForSlot means that the call is queued and a worker claims it when it is next in line and a slot is free.
	ForSlot WaitsFor = "slot"
	// ForIdleWorker means that the call is queued and may have killed two or more workers. It waits for a worker that
	// runs no other such call.
	ForIdleWorker WaitsFor = "idle worker"
	// ForHandler means that a living worker has claimed the call.
	ForHandler WaitsFor = "handler"
	// ForRecovery means that the call runs on a dead worker while others are alive: one of them requeues it within
	// seconds.
	ForRecovery WaitsFor = "recovery"
	// ForKey means that another call holds the idempotency key that this one needs.
	ForKey WaitsFor = "key"
	// ForCalls means that the call waits for calls that its handler made.
	ForCalls WaitsFor = "calls"
	// ForAnswer means that the call waits for somebody's answer.
	ForAnswer WaitsFor = "answer"
	// ForApproval means that rules have asked people whether the call may run. [Explanation.Approvals] has the open
	// questions.
	ForApproval WaitsFor = "approval"
	// ForLimit means that the limit of a rule delays the call, in the queue, until RunAt.
	ForLimit WaitsFor = "limit"
	// ForPlace means that a rule's limit on calls that run at the same time is reached. Place names the rule.
	ForPlace WaitsFor = "place"
	// ForCode means that no program that claimed the call could continue it. Misfit gives the reason.
	ForCode WaitsFor = "code"
)

// Explanation describes the state of a call, and why it is in that state.
type Explanation struct {
	Call     Call
	At       time.Time // the time of the read, on Postgres's clock
	WaitsFor WaitsFor

	// Place is the rule that limits how many calls run at the same time, and its limit, if the call waits for a place
	// under that rule.
	Place struct {
		Rule string
		Max  int
	}
	// CameBack is the event that requeued a queued call: retried, delayed, released, lost or woken. It is nil for a
	// call that was never claimed.
	CameBack *receipts.Event
	// Ahead is the number of calls that workers will claim before this one, if it waits for a slot. [MaxAhead]+1 means
	// that there are more than MaxAhead.
	Ahead int
	// ClockBack is how far Postgres's clock was set back, if the call waits for a time and the clock has not caught
	// up since; otherwise 0.
	ClockBack time.Duration
	// Workers are the workers that could claim the call. It is set if the call waits for a worker, a slot, an idle
	// worker or its recovery.
	Workers Workers
	// Worker is the worker of a running call; nil if the database does not know it.
	Worker *Worker
	// Timeout is how long a running call may take, according to the registry of its worker; 0 if unknown.
	Timeout time.Duration
	// KeyHolder is the call that holds the key that a waiting call waits for. It is nil if no call holds it any more:
	// a worker then claims the call within seconds.
	KeyHolder *Call
	// Children are the first open calls, up to [MaxChildren], that the call's handler made, if the call waits for them.
	Children []Call
	// Asked has the first open calls, up to [MaxChildren], that wait for somebody's answer. They were made by the call's
	// handler, or by the handlers of the calls below it.
	Asked []WaitingCall
	// Misfit says why no worker's program could continue the call, if it waits for one that can. Message is the reason,
	// and Name the entry of the journal that the code contradicts. Name is empty if the tool or its handler is missing.
	Misfit struct{ Name, Message string }
	// Answers are the names under which the call waits for answers: see [Answer].
	Answers []string
	// AskedFor is the kind of asker, if the call is a question that waits for answers. AskedInside reports whether
	// another call waits for its answer.
	AskedFor    Asker
	AskedInside bool
	// Rules are the rules that ask people about the call, or that delayed it. RulesVersion is their version; it is empty
	// if the database no longer has it.
	Rules        []string
	RulesVersion string
	// Approvals are the open questions to people.
	Approvals []Question
	// Cancel is the person who requested the cancellation, and CancelAt the time. CancelAt is zero if the call ended at
	// once. Both are zero without a request.
	Cancel   Act
	CancelAt time.Time
	// If an operator made this call by repeating another, AgainOf is that other call, and Again the operator.
	AgainOf string
	Again   Act
	// Context is Postgres's message about a failed function in SQL, with the place in the function. For a queued
	// call, it is about its last attempt. It may contain code, so only operators may see it. It may be empty.
	Context string
	// Receipt is the receipt of the call; nil before its end.
	Receipt *receipts.Receipt
	// If this call's receipt repeats that of an earlier call, RepeatedCall is that call's id. It is empty if the receipt
	// repeats none.
	RepeatedCall string
}

// MaxAhead limits [Explanation.Ahead].
const MaxAhead = 1000

// MaxChildren limits [Explanation.Children]: there may be more.
const MaxChildren = 10

// Explain returns why a call waits, or how it ended.
func Explain(ctx context.Context, db DB, id string) (*Explanation, error) {
	c, at, err := getAt(ctx, db, id)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Call: *c, At: at}
	if err := e.readActs(ctx, db); err != nil {
		return nil, err
	}
	switch c.Status {
	case "queued":
		return e, e.queued(ctx, db)
	case "running":
		return e, e.running(ctx, db)
	case "waiting":
		return e, e.waiting(ctx, db)
	}
	if e.Receipt, err = Receipt(ctx, db, id); err != nil {
		return nil, err
	}
	if e.Receipt.Status == receipts.Failed {
		err = db.QueryRow(ctx, `select coalesce(max(data ->> 'context'), '') from public.core_tool_events
			where call_id = $1 and event = 'failed'`, id).Scan(&e.Context)
	}
	if e.Receipt.ReplayOf != "" {
		e.RepeatedCall, err = callOfReceipt(ctx, db, e.Receipt.ReplayOf)
		if errors.Is(err, pgx.ErrNoRows) { // it was pruned, and its key kept
			err = nil
		}
	}
	return e, err
}

// readActs reads from the journal who repeated the call or asked to cancel it.
func (e *Explanation) readActs(ctx context.Context, db DB) error {
	rows, err := db.Query(ctx, `select event, at, coalesce(data ->> 'again_of', ''), coalesce(data ->> 'by', ''),
		coalesce(data ->> 'login', ''),
			coalesce(data ->> 'reason', '')
		from public.core_tool_events
		where call_id = $1 and (event in ('queued', 'failed') and data ? 'by' or event = 'cancel_requested') order by seq`,
		e.Call.ID)
	if err != nil {
		return err
	}
	var event, of string
	var at time.Time
	var act Act
	_, err = pgx.ForEachRow(rows, []any{&event, &at, &of, &act.By, &act.Login, &act.Reason}, func() error {
		switch event {
		case "queued":
			e.AgainOf, e.Again = of, act
		case "cancel_requested":
			e.Cancel, e.CancelAt = act, at
		default:
			e.Cancel = act
		}
		return nil
	})
	return err
}

func (e *Explanation) waiting(ctx context.Context, db DB) (err error) {
	switch e.Call.WaitsFor {
	case "time":
		e.WaitsFor = ForTime
	case "code":
		e.WaitsFor = ForCode
		return db.QueryRow(ctx, `select coalesce(data #>> '{code,name}', ''), coalesce(data #>> '{code,message}', '')
			from public.core_tool_events
			where call_id = $1 and event = 'waiting' order by seq desc limit 1`, e.Call.ID).Scan(&e.Misfit.Name,
			&e.Misfit.Message)
	case "place":
		e.WaitsFor = ForPlace
		return db.QueryRow(ctx, `select data ->> 'place', (data ->> 'max')::integer from public.core_tool_events
			where call_id = $1 and event = 'waiting' order by seq desc limit 1`, e.Call.ID).Scan(&e.Place.Rule, &e.Place.Max)
	case "answer":
		e.WaitsFor = ForAnswer
		return db.QueryRow(ctx, `select array(select ltrim(n, '#') from pg_catalog.unnest(waits) n where n like '#%'),
			coalesce(asked_for, ''),
				parent_step is not null from public.core_tool_calls where id = $1`, e.Call.ID).Scan(&e.Answers, &e.AskedFor,
			&e.AskedInside)
	case "call":
		if asks, err := e.asking(ctx, db); asks || err != nil {
			return err
		}
		e.WaitsFor = ForCalls
		rows, err := db.Query(ctx, `select id::text, tool_name, status from public.core_tool_calls
			where parent_call_id = $1 and parent_step is not null and status in ('queued', 'running', 'waiting')
				order by id limit $2`, e.Call.ID, MaxChildren)
		if err != nil {
			return err
		}
		e.Children, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Call, err error) {
			return c, row.Scan(&c.ID, &c.Tool, &c.Status)
		})
		if err != nil {
			return err
		}
		e.Asked, err = AskedFor(ctx, db, e.Call.ID, MaxChildren)
		return err
	default:
		e.WaitsFor = ForKey
		e.KeyHolder, _, err = readCall(ctx, db, "(status in ('running', 'queued') or status = 'waiting' and waits_for <> "+
			"'key') and computed_key = $1", e.Call.Key)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
	}
	return err
}

// asking reports whether the call waits for people whom rules ask, and reads their questions.
func (e *Explanation) asking(ctx context.Context, db DB) (asks bool, err error) {
	err = db.QueryRow(ctx, "select coalesce(waits[1] like '##%', false) from public.core_tool_calls where id = $1",
		e.Call.ID).Scan(&asks)
	if err != nil || !asks {
		return false, err
	}
	e.WaitsFor = ForApproval
	if err = e.readRules(ctx, db, "waiting"); err != nil {
		return true, err
	}
	rows, err := db.Query(ctx, `select id::text, tool_name, coalesce(input ->> 'text', ''),
		array(select jsonb_array_elements_text(input -> 'by')),
			created_at, (input ->> 'until')::timestamptz, parent_call_id::text, input::text, coalesce(input ->> 'tool', ''),
			coalesce(input -> 'input', 'null')::text, created_by
		from public.core_tool_calls where parent_call_id = $1 and parent_step like '##%'
			and status in ('queued', 'running', 'waiting') order by id`, e.Call.ID)
	if err != nil {
		return true, err
	}
	e.Approvals, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q Question, err error) {
		err = row.Scan(&q.ID, &q.Tool, &q.Text, &q.By, &q.Since, (*zeronull.Timestamptz)(&q.Until), &q.CallID, &q.Input,
			&q.About, &q.Arguments, (*zeronull.Text)(&q.AskedBy))
		q.Root, q.AskedFor = q.CallID, AskerRule
		return q, err
	})
	return true, err
}

// readRules reads the rules in the last event of a name.
func (e *Explanation) readRules(ctx context.Context, db DB, event string) error {
	return db.QueryRow(ctx, `
		select array(select jsonb_array_elements_text(j.data -> 'rules')), coalesce(w.rules_version, '')
		from public.core_tool_events j left join public.core_workers w on w.worker_id = j.worker_id
		where j.call_id = $1 and j.event = $2 order by j.seq desc limit 1`, e.Call.ID, event).Scan(&e.Rules, &e.RulesVersion)
}

func (e *Explanation) queued(ctx context.Context, db DB) error {
	rows, err := db.Query(ctx, `select seq, at, event, attempt, coalesce(worker_id, ''), data from public.core_tool_events
		where call_id = $1 and seq > 1 order by seq desc limit 1`, e.Call.ID) // the first is queued or imported
	if err != nil {
		return err
	}
	if e.CameBack, err = pgx.CollectOneRow(rows, pgx.RowToAddrOfStructByPos[receipts.Event]); errors.Is(err,
		pgx.ErrNoRows) {
		e.CameBack = nil
	} else if err != nil {
		return err
	} else {
		var data struct {
			Error struct {
				Context string `json:"context"`
			} `json:"error"`
		}
		_ = json.Unmarshal(e.CameBack.Data, &data) // most events have no error
		e.Context = data.Error.Context
	}
	delayed := e.CameBack != nil && e.CameBack.Event == "delayed"
	if delayed {
		if err := e.readRules(ctx, db, "delayed"); err != nil {
			return err
		}
	}
	if e.Call.RunAt.After(e.At) {
		e.WaitsFor = ForTime
		if delayed {
			e.WaitsFor = ForLimit
		}
		return db.QueryRow(ctx, "select coalesce(max(clock_back), '0') from public.core_workers where clock_until > "+
			"clock_timestamp()").Scan(&e.ClockBack)
	}
	if e.Workers, err = ReadWorkers(ctx, db); err != nil {
		return err
	}
	capable := e.Call.Needs == ""
	if !capable {
		err = db.QueryRow(ctx, "select exists (select from public.core_workers where "+alive+" and $1 = any (can))",
			e.Call.Needs).Scan(&capable)
	}
	switch {
	case e.Workers.Alive == 0:
		e.WaitsFor = ForWorker
	case !capable:
		e.WaitsFor = ForCapability
	case e.Call.Kills >= 2: // as in gem.claim
		e.WaitsFor = ForIdleWorker
	default:
		e.WaitsFor = ForSlot
		err = db.QueryRow(ctx, `
			select count(*) from (
				(select from public.core_tool_calls
				 where status = 'queued' and level > $1 and run_at <= (select clock_timestamp()) limit $4)
				union all
				(select from public.core_tool_calls
				 where status = 'queued' and level = $1 and (run_at, seq) < ($2, $3) limit $4)
				limit $4
			) ahead`, e.Call.Level, e.Call.RunAt, e.Call.Seq, MaxAhead+1).Scan(&e.Ahead)
	}
	return err
}

func (e *Explanation) running(ctx context.Context, db DB) error {
	var w Worker
	err := db.QueryRow(ctx, `
		select worker_id, `+alive+`, stopped_at, clock_timestamp() - heartbeat_at,
		       coalesce((select (tool ->> 'timeout_ms')::float8 * interval '1 millisecond'
		        from public.core_registry_versions v, jsonb_array_elements(v.registry -> 'tools') tool
		        where v.version = w.registry_version and tool ->> 'name' = $2 limit 1), '0')
		from public.core_workers w where worker_id = $1`, e.Call.WorkerID, e.Call.Tool).
		Scan(&w.ID, &w.Alive, (*zeronull.Timestamptz)(&w.StoppedAt), &w.Silent, &e.Timeout)
	switch {
	case err == nil:
		e.Worker = &w
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	if w.Alive {
		e.WaitsFor = ForHandler
		return nil
	}
	if e.Workers, err = ReadWorkers(ctx, db); err != nil {
		return err
	}
	e.WaitsFor = ForRecovery
	if e.Workers.Alive == 0 {
		e.WaitsFor = ForWorker
	}
	return nil
}

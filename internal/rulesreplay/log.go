package rulesreplay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// log is the database's record of calls and rules, in one snapshot. Inputs are read when they are needed: see
// [log.each].
type log struct {
	tx       pgx.Tx
	since    time.Time
	calls    []string  // ids, in the order in which they were first judged: claimed, or asked by a handler
	pruned   bool      // calls may be missing
	complete time.Time // rows of counters from this time on are complete
	workers  map[string]program
	rules    map[string]*version
	latest   string // registry
	tools    map[string]*registry.Registry
	judges   map[program]*rules.Judge
	runs     map[string][]run              // by counter, in order
	places   map[string]map[string]int     // the index of its row in runs, by call and counter
	ends     map[[2]string][]rules.CallEnd // by session and caller, in order
	of       map[string]rules.CallEnd      // the ends that counters of failures count, by call
}

// program is the configuration of a worker's judge: the rules of a version, or none, and a registry.
type program struct{ rules, registry string }

// version is a recorded version of the rules.
type version struct {
	set  *rules.Set
	from time.Time
}

// run is a row of gem.rule_runs.
type run struct {
	rules.Place
	n       int64
	version string
	// written is when the call was counted; it is before At if At is delayed.
	written time.Time
	delayed bool // the call was requeued for it
}

// call is a call with the parts of its journal and its receipt that concern rules.
type call struct {
	ID, Tool, Session, Caller string
	Input                     json.RawMessage
	SignedIn, Child           bool
	CreatedAt                 time.Time
	Status                    string
	// Claims has, of a question that a handler asked, first its beginning: the worker of the handler judged it. Events are
	// the delays and the waits for people.
	Claims, Events []event
	Questions      []question
	Receipt        *receipt // nil if it has none yet
}

// event is an event of the journal.
type event struct {
	Event  string    `json:"event"`
	At     time.Time `json:"at"`
	Worker string    `json:"worker_id"`
	Data   struct {
		Rules []string  `json:"rules"`
		RunAt time.Time `json:"run_at"`
		Begun bool      `json:"begun"` // of a claim: the call had made progress, and was not judged again
	} `json:"data"`
}

// question is a call to wait.approval that the rules made.
type question struct {
	Rule      string    `json:"rule"`
	Digest    string    `json:"digest"`
	ID        string    `json:"id"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"created_at"`
	EndedAt   time.Time `json:"ended_at"`
	Result    struct {
		Approved bool      `json:"approved"`
		By       string    `json:"by"`
		At       time.Time `json:"at"`
		Reason   string    `json:"reason"`
		Error    struct {
			Code    string `json:"error_code"`
			Message string `json:"message"`
		} `json:"error"`
	} `json:"result"`
	Answer struct { // accepted, possibly before the question ended
		By    string    `json:"by"`
		At    time.Time `json:"at"`
		Value struct {
			Approved bool   `json:"approved"`
			Reason   string `json:"reason"`
		} `json:"value"`
	} `json:"answer"`
}

type receipt struct {
	ID        string          `json:"id"`
	Status    string          `json:"status"`
	Code      string          `json:"code"`
	Registry  string          `json:"registry_version"`
	Worker    string          `json:"worker_id"`
	ReplayOf  string          `json:"replay_of"`
	CreatedAt time.Time       `json:"created_at"`
	Result    json.RawMessage `json:"result"` // of a success
	Effects   json.RawMessage `json:"effects"`
}

// read reads everything except the calls themselves.
func read(ctx context.Context, tx pgx.Tx, since time.Time) (*log, error) {
	l := &log{tx: tx, since: since, workers: map[string]program{}, rules: map[string]*version{},
		tools:  map[string]*registry.Registry{},
		judges: map[program]*rules.Judge{}, runs: map[string][]run{}, places: map[string]map[string]int{},
		ends: map[[2]string][]rules.CallEnd{}, of: map[string]rules.CallEnd{}}
	for _, part := range []func(context.Context) error{l.readVersions, l.readRuns, l.readEnds, l.readCalls} {
		if err := part(ctx); err != nil {
			return nil, fmt.Errorf("read the log of calls: %w", err)
		}
	}
	return l, nil
}

func (l *log) readVersions(ctx context.Context) error {
	var (
		name, other string
		text        []byte
		at          time.Time
	)
	rows, _ := l.tx.Query(ctx, "select version, rules::text, recorded_at from public.core_rules_versions order by version")
	if _, err := pgx.ForEachRow(rows, []any{&name, &text, &at}, func() error {
		set, err := rules.Parse(text)
		if err != nil {
			return fmt.Errorf("rules %s, which this program cannot read: %w", name, err)
		}
		l.rules[name] = &version{set: set, from: at}
		return nil
	}); err != nil {
		return err
	}
	rows, _ = l.tx.Query(ctx, "select version, registry::text from public.core_registry_versions order by recorded_at, "+
		"version")
	if _, err := pgx.ForEachRow(rows, []any{&name, &text}, func() error {
		r, err := registry.ParseRecorded(text)
		if err != nil {
			return nil //nolint:nilerr // calls of a registry that this program cannot read are not computed again
		}
		l.tools[name], l.latest = r, name
		return nil
	}); err != nil {
		return err
	}
	var id string
	rows, _ = l.tx.Query(ctx, "select worker_id, coalesce(rules_version, ''), registry_version from public.core_workers")
	_, err := pgx.ForEachRow(rows, []any{&id, &name, &other}, func() error {
		l.workers[id] = program{rules: name, registry: other}
		return nil
	})
	return err
}

func (l *log) readRuns(ctx context.Context) error {
	var (
		counter string
		r       run
		amount  *string
		booked  *time.Time
	)
	rows, _ := l.tx.Query(ctx, `
		with booked as (
		  select e.call_id, (e.data ->> 'run_at')::timestamptz as starts_at, min(e.at) as at from public.core_tool_events e
		  where e.event = 'delayed' and e.call_id in (select call_id from gem.rule_runs
		    where strpos(counter, '/starts per ') > 0)
		  group by 1, 2)
		select r.counter, r.n, r.at, r.call_id::text, r.amount::text, r.rules_version, r.over, b.at
		from gem.rule_runs r left join booked b on b.call_id = r.call_id and b.starts_at = r.at
			and strpos(r.counter, '/starts per ') > 0
		order by r.counter, r.n`)
	_, err := pgx.ForEachRow(rows, []any{&counter, &r.n, &r.At, &r.CallID, &amount, &r.version, &r.Over, &booked},
		func() error {
			row := r
			if amount != nil {
				row.Amount = json.Number(*amount)
			}
			if row.delayed, row.written = booked != nil, row.At; row.delayed {
				row.written = *booked
			}
			if l.places[row.CallID] == nil {
				l.places[row.CallID] = map[string]int{}
			}
			l.places[row.CallID][counter] = len(l.runs[counter])
			l.runs[counter] = append(l.runs[counter], row)
			return nil
		})
	return err
}

// readEnds reads how calls ended: in the sessions of the calls to judge, and for counters of failures.
func (l *log) readEnds(ctx context.Context) error {
	var e rules.CallEnd
	var counted bool
	var receiptAt *time.Time
	rows, _ := l.tx.Query(ctx, `
		with counted as materialized (
		  select distinct call_id from gem.rule_runs where strpos(counter, '/failures per ') > 0
		), sessions as materialized (
		  select distinct session_id from public.core_tool_calls where created_at >= $1 and session_id is not null)
		select c.id::text, coalesce(c.tool_name, ''), c.status, coalesce(c.error ->> 'error_code', ''),
			coalesce(r.id::text, ''), coalesce(c.session_id, ''),
		  coalesce(c.created_by, ''), c.updated_at, c.id in (select call_id from counted), r.created_at
		from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id
		where c.status in ('succeeded', 'failed', 'not_configured')
		  and (c.session_id in (select session_id from sessions) or c.id in (select call_id from counted))
		order by c.updated_at, c.id`, l.since)
	_, err := pgx.ForEachRow(rows, []any{&e.CallID, &e.Tool, &e.Status, &e.Code, &e.ReceiptID, &e.SessionID, &e.CreatedBy,
		&e.At, &counted, &receiptAt}, func() error {
		if e.SessionID != "" {
			key := [2]string{e.SessionID, e.CreatedBy}
			l.ends[key] = append(l.ends[key], e)
		}
		if counted && receiptAt != nil {
			of := e
			of.At = *receiptAt
			l.of[e.CallID] = of
		}
		return nil
	})
	return err
}

func (l *log) readCalls(ctx context.Context) error {
	var first *int64
	if err := l.tx.QueryRow(ctx, "select min(seq) from public.core_tool_calls").Scan(&first); err != nil {
		return err
	}
	l.pruned = first != nil && *first > 1
	var now time.Time
	if err := l.tx.QueryRow(ctx, "select gem.now()").Scan(&now); err != nil {
		return err
	}
	var longest time.Duration
	for _, v := range l.rules {
		longest = max(longest, v.set.Longest())
	}
	l.complete = now.Add(-2 * longest)
	rows, _ := l.tx.Query(ctx, `
		select c.id::text from public.core_tool_calls c
		join lateral (select e.at from public.core_tool_events e
			where e.call_id = c.id and (e.event = 'claimed' or e.event = 'waiting' and e.attempt = 0)
			order by e.seq limit 1) claimed on true
		where c.created_at >= $1 and (c.parent_step is null or c.parent_step not like '##%')
		order by claimed.at, c.seq`, l.since)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	l.calls = ids
	return err
}

// batch is the number of calls that are in memory at once.
const batch = 500

// each calls do with each call, in the order in which the calls were first judged.
func (l *log) each(ctx context.Context, do func(*call) error) error {
	for ids := range slices.Chunk(l.calls, batch) {
		rows, _ := l.tx.Query(ctx, `
			select c.id::text, coalesce(c.tool_name, ''), coalesce(c.input, 'null')::text, c.session_id, c.created_by,
				c.signed_in, c.parent_step is not null,
			  c.created_at, c.status,
			  (select jsonb_agg(jsonb_build_object('event', case when e.attempt = 0 then 'claimed' else e.event end,
			      'at', e.at, 'worker_id', e.worker_id,
			      'data', jsonb_build_object('rules', e.data -> 'rules', 'run_at', e.data -> 'run_at', 'begun',
			        e.event = 'claimed' and e.seq > begun.seq)) order by e.seq)
			   from public.core_tool_events e where e.call_id = c.id
			     and (e.event = 'claimed' or e.event in ('delayed', 'waiting') and e.data ? 'rules'
			       or e.event = 'waiting' and e.attempt = 0))::text,
			  (select jsonb_agg(jsonb_build_object('digest', split_part(k.parent_step, '#', 3), 'rule',
			    k.input #>> '{rules,0,name}', 'id', k.id, 'status', k.status, 'created_at', k.created_at,
			      'ended_at', k.updated_at, 'result', coalesce(a.result, '{}'),
			      'answer', coalesce((select e.data || jsonb_build_object('at', e.at) from public.core_tool_events e
			        where e.call_id = k.id and e.event = 'answered' limit 1), '{}')) order by k.created_at, k.id)
			   from public.core_tool_calls k left join public.core_tool_receipts a on a.call_id = k.id
			   where k.parent_call_id = c.id and k.parent_step like '##%')::text,
			  (select jsonb_build_object('id', r.id, 'status', r.status, 'code', r.result #>> '{error,error_code}',
			    'registry_version', r.registry_version,
			      'worker_id', r.worker_id, 'replay_of', r.replay_of, 'created_at', r.created_at,
			      'result', case when r.status = 'succeeded' then r.result end, 'effects', r.effects)
			   from public.core_tool_receipts r where r.call_id = c.id)::text
			from unnest($1::uuid[]) with ordinality o (id, place) join public.core_tool_calls c on c.id = o.id
			left join lateral (
			  select e.seq from public.core_tool_events e
			  where e.call_id = c.id and c.steps > 0 and (e.event in ('began', 'step') or e.event = 'called'
			    and e.data ->> 'name' not like '##%'
			    or e.event = 'waiting' and e.data ? 'for' and not e.data ? 'rules')
			  order by e.seq limit 1) begun on true
			order by o.place`, ids)
		calls, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*call, error) {
			var c call
			var events, questions, written []byte
			err := row.Scan(&c.ID, &c.Tool, &c.Input, (*zeronull.Text)(&c.Session), (*zeronull.Text)(&c.Caller), &c.SignedIn,
				&c.Child, &c.CreatedAt, &c.Status,
				&events, &questions, &written)
			if err != nil {
				return nil, err
			}
			var all []event
			err = errors.Join(readJSON(events, &all), readJSON(questions, &c.Questions), readJSON(written, &c.Receipt))
			for _, e := range all {
				if e.Event == "claimed" {
					c.Claims = append(c.Claims, e)
				} else {
					c.Events = append(c.Events, e)
				}
			}
			return &c, err
		})
		if err != nil {
			return fmt.Errorf("read the calls: %w", err)
		}
		for _, c := range calls {
			if err := do(c); err != nil {
				return err
			}
		}
	}
	return nil
}

func readJSON(text []byte, into any) error {
	if text == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// judge returns the judge of a program, or nil without rules. known reports whether the program's files are known.
func (l *log) judge(p program) (j *rules.Judge, known bool) {
	tools := l.tools[p.registry]
	v := l.rules[p.rules]
	switch {
	case p.rules == "":
		return nil, true
	case tools == nil || v == nil:
		return nil, false
	case l.judges[p] == nil:
		l.judges[p] = v.set.For(tools)
	}
	return l.judges[p], true
}

// own returns the row of a call in a counter.
func (l *log) own(counter, callID string) (r run, found bool) {
	i, found := l.places[callID][counter]
	if found {
		r = l.runs[counter][i]
	}
	return r, found
}

// before returns how many rows a counter had at a time.
func (l *log) before(counter string, at time.Time) int {
	rows := l.runs[counter]
	return sort.Search(len(rows), func(i int) bool { return !rows[i].written.Before(at) })
}

package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Whole is one call with everything that belongs to it.
type Whole struct {
	At   time.Time `json:"at"` // the time of the read, on Postgres's clock
	Call Call      `json:"call"`
	// Journal are the first and the last events, or the events of the requested window.
	Journal []Entry `json:"journal"`
	// Ancestors are its parent, the parent's parent, and so on, the nearest first, at most 20.
	Ancestors []Call `json:"ancestors,omitempty"`
	// Children are calls that its handler made, in order, at most 50, after AfterChild. NextChild is the AfterChild
	// of the next page, or 0.
	Children  []Call `json:"children,omitempty"`
	NextChild int64  `json:"next_child,omitempty"`
	// Questions are at most 10 open questions that its handler or rules ask.
	Questions []Call `json:"questions,omitempty"`
	// Later are the last 20 calls that others made on its behalf, for example to repeat it.
	Later []Call `json:"later,omitempty"`
	// Replays are at most 20 calls whose receipts repeat its own. Repeats is the call whose receipt its own repeats,
	// or nil.
	Replays []Call `json:"replays,omitempty"`
	Repeats *Call  `json:"repeats,omitempty"`
	// KeyHolder is the open call that holds the key that it waits for, or nil.
	KeyHolder *Call `json:"key_holder,omitempty"`
	// Usage is the total of its requests to models.
	Usage Usage `json:"usage"`
	// AgainOf is the call that Again repeated with this one. Cancel is the person who asked to cancel it. They may be
	// empty and zero.
	AgainOf string     `json:"again_of,omitempty"`
	Again   client.Act `json:"again,omitzero"`
	Cancel  client.Act `json:"cancel,omitzero"`
	// Payload is nil for readers who may not see it.
	Payload *Payload `json:"payload,omitempty"`
}

// Entry is an event of a journal. Data is that of the view gem.journal.
type Entry struct {
	Event
	// Whole is all of its data, up to 2,000 characters, if the reader may see it. Bytes is its stored size, or 0
	// without data.
	Whole string `json:"whole,omitempty"`
	Bytes int    `json:"bytes,omitempty"`
}

// Payload is the input of a call and its outcome.
type Payload struct {
	Input, Result, Effects Value
	// Progress is the progress that it has shown so far, while it runs: the last 300 rows of its attempt.
	Progress []Progress `json:",omitempty"`
	// Context is where a function in SQL last failed, up to 4,000 characters: see [client.Explanation].
	Context string `json:",omitempty"`
}

// Value is a JSON value in Postgres's format.
type Value struct {
	Text  string // the beginning, if the value is cut
	Bytes int    // of the whole; 0 if there is none
	Cut   bool
}

// Progress is a row of a call's progress before its receipt.
type Progress struct {
	At   time.Time       `json:"at"`
	Kind string          `json:"kind"` // text, thinking, tool_call or status
	Data json.RawMessage `json:"data"`
}

// WholeOptions configure [ReadWhole].
type WholeOptions struct {
	// Payload means to read inputs, results, effects and the data of events too: the role must be a member of
	// gem_operator.
	Payload bool
	// From is the first event of the window; 0 means the first and the last EventsShown / 2 events.
	From int
	// AfterChild is the Seq after which the children are listed.
	AfterChild int64
}

// The limits of ReadWhole.
const (
	EventsShown   = 100
	childrenShown = 50
	ValueShown    = 64 << 10 // characters of a value
)

// The window, and the people whom the journal names: for a repetition or a cancellation.
const journalWindow = `
	with picked as (
		(select j.* from gem.journal j where j.call_id = $1 and j.seq >= $2 order by j.seq limit $3)
		union all
		(select j.* from gem.journal j where j.call_id = $1 and $4 > 0
			and j.seq > greatest((select c.events from gem.calls c where c.id = $1) - $4::integer, $3::integer))
	)
	select false as act, p.seq, p.at, p.event, p.attempt, p.worker_id, p.data::text, PAYLOAD from picked p OF
	union all
	select true, j.seq, j.at, j.event, j.attempt, j.worker_id, j.data::text, null, 0
	from gem.journal j where j.call_id = $1 and j.event in ('queued', 'cancel_requested', 'failed') and j.data ? 'by'
	order by act, seq`

// Only values of few stored bytes become text: the results of a hundred steps may be large.
var (
	journalOfViewer   = strings.NewReplacer("PAYLOAD", "null::text, 0", "OF", "").Replace(journalWindow)
	journalOfOperator = strings.NewReplacer("PAYLOAD", "case when pg_column_size(e.data) < 2000 then left(e.data::text, "+
		"2001) end, coalesce(pg_column_size(e.data), 0)",
		"OF", "join public.core_tool_events e on e.call_id = $1 and e.seq = p.seq").Replace(journalWindow)
)

// The call itself, with its requests to models, and the calls that are related to it.
const related = `
	with recursive this as materialized (
		select c.id, c.parent_call_id, c.computed_key, c.status, c.waits_for, c.receipt_id, c.replay_of from gem.calls c
			where c.id = $1
	), line (id, place) as (
		select t.parent_call_id, 1 from this t where t.parent_call_id is not null
		union all
		select p.parent_call_id, l.place + 1 from line l join gem.calls p on p.id = l.id where l.place < 20
			and p.parent_call_id is not null
	), kin (rel, place, id) as (
		select 'itself', 0::bigint, t.id from this t
		union all
		select 'ancestor', l.place::bigint, l.id from line l
		union all
		(select 'child', k.seq, k.id from gem.calls k where k.parent_call_id = $1 and k.parent_step is not null and k.seq > $2
			order by k.seq limit $3)
		union all
		(select 'question', k.seq, k.id from gem.calls k where k.parent_call_id = $1 and k.parent_step is not null
			and k.tool_name = any ($4)
			and k.status in ('queued', 'running', 'waiting') order by k.seq limit 10)
		union all
		(select 'later', -k.seq, k.id from (select k.seq, k.id from gem.calls k where k.parent_call_id = $1
			and k.parent_step is null limit 1000) k order by k.seq desc limit 20)
		union all
		select 'replay', 0, r.call_id from this t cross join lateral (
			select r.call_id from gem.receipts r where r.replay_of = t.receipt_id
				and r.replay_of is not null limit 20) r -- as its index has it
		union all
		select 'repeated', 0, r.call_id from this t join gem.receipts r on r.id = t.replay_of
		union all
		select 'holder', 0, h.id from this t join gem.calls h on h.computed_key = t.computed_key
			and (h.status in ('running', 'queued') or h.status = 'waiting' and h.waits_for <> 'key')
		where t.status = 'waiting' and t.waits_for = 'key'
	)
	select ` + columns +
	`, kin.rel, gem.now(), u.requests, u.input, u.output, u.cost from kin cross
		join lateral (select * from gem.calls c where c.id = kin.id offset 0) c
	cross join lateral (
		select count(*) as requests, coalesce(sum(q.input_tokens), 0)::bigint as input,
			coalesce(sum(q.output_tokens), 0)::bigint as output,
			coalesce(sum(coalesce(q.cost, q.reserved)), 0)::bigint as cost
		from gem.model_requests q where q.call_id = kin.id and kin.rel = 'itself') u
	order by kin.rel, kin.place, c.seq`

const payload = `
	select left(c.input::text, $2), coalesce(octet_length(c.input::text), 0), left(r.result::text, $2),
		coalesce(octet_length(r.result::text), 0),
		left(r.effects::text, $2), coalesce(octet_length(r.effects::text), 0), (
			select json_agg(json_build_object('at', p.at, 'kind', p.kind, 'data', p.data) order by p.seq)
			from (select p.seq, p.at, p.kind, p.data, p.attempt from public.core_tool_progress p where p.call_id = $1
				order by p.seq desc limit 300) p
			where c.status = 'running' and p.attempt = c.attempt), (
			select left(coalesce(e.data ->> 'context', e.data #>> '{error,context}'), 4000) from public.core_tool_events e
			where e.call_id = $1 and e.event in ('failed', 'retried') and c.status <> 'succeeded' order by e.seq desc limit 1)
	from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id where c.id = $1`

// ReadWhole reads a call with everything that belongs to it, in one round trip, or returns a [*client.NotFoundError].
// db must be a pool, a connection or a transaction of pgx itself.
func ReadWhole(ctx context.Context, db DB, id string, o WholeOptions) (*Whole, error) {
	from, first, last := max(o.From, 1), EventsShown, 0
	journal := journalOfViewer
	if o.From == 0 {
		first, last = EventsShown/2, EventsShown/2
	}
	if o.Payload {
		journal = journalOfOperator
	}
	var w Whole
	var batch pgx.Batch
	batch.Queue(related, id, o.AfterChild, childrenShown+1, registry.Asking).Query(w.readRelated)
	batch.Queue(journal, id, from, first, last).Query(w.readJournal)
	if o.Payload {
		w.Payload = &Payload{}
		batch.Queue(payload, id, ValueShown).QueryRow(w.Payload.read)
	}
	sender, ok := db.(interface {
		SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	})
	if !ok {
		return nil, errors.New("ReadWhole needs a connection of pgx itself")
	}
	err := sender.SendBatch(ctx, &batch).Close()
	switch {
	case err == nil && w.Call.ID == "", errors.Is(err, pgx.ErrNoRows):
		return nil, missing(ctx, db, id)
	case err != nil:
		return nil, fmt.Errorf("read call %s: %w", id, err)
	}
	this := []Call{w.Call}
	if err := findDecisions(ctx, db, this, w.Children, w.Ancestors); err != nil {
		return nil, fmt.Errorf("read the decisions of call %s: %w", id, err)
	}
	w.Call = this[0]
	return &w, nil
}

// GapAfter returns the number of missing events after one of the events that were read.
func (w *Whole) GapAfter(i int) int {
	if i+1 < len(w.Journal) {
		return w.Journal[i+1].Seq - w.Journal[i].Seq - 1
	}
	return 0
}

func (w *Whole) readJournal(rows pgx.Rows) error {
	var act bool
	var e Entry
	var data *string
	_, err := pgx.ForEachRow(rows, []any{&act, &e.Seq, &e.At, &e.Event.Event, &e.Attempt, (*zeronull.Text)(&e.WorkerID),
		&data, (*zeronull.Text)(&e.Whole), &e.Bytes}, func() error {
		e.Data = nil
		if data != nil {
			e.Data = json.RawMessage(*data)
		}
		if act {
			w.readAct(e)
			return nil
		}
		if len([]rune(e.Whole)) > 2000 {
			e.Whole = ""
		}
		w.Journal = append(w.Journal, e)
		return nil
	})
	return err
}

func (w *Whole) readAct(e Entry) {
	var data struct {
		client.Act
		AgainOf string `json:"again_of"`
	}
	_ = json.Unmarshal(e.Data, &data) // an imported journal may have another form
	if e.Event.Event == "queued" {
		w.AgainOf, w.Again = data.AgainOf, data.Act
	} else {
		w.Cancel = data.Act
	}
}

func (w *Whole) readRelated(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		var rel string
		var usage Usage
		c, err := scanCall(rows, &rel, &w.At, &usage.Requests, &usage.InputTokens, &usage.OutputTokens, &usage.Cost)
		if err != nil {
			return err
		}
		switch rel {
		case "itself":
			w.Call, w.Usage = c, usage
		case "ancestor":
			w.Ancestors = append(w.Ancestors, c)
		case "child":
			w.Children = append(w.Children, c)
		case "question":
			w.Questions = append(w.Questions, c)
		case "later":
			w.Later = append(w.Later, c)
		case "replay":
			w.Replays = append(w.Replays, c)
		case "repeated":
			w.Repeats = &c
		case "holder":
			w.KeyHolder = &c
		}
	}
	if len(w.Children) > childrenShown {
		w.Children = w.Children[:childrenShown]
		w.NextChild = w.Children[childrenShown-1].Seq
	}
	return rows.Err()
}

func (p *Payload) read(row pgx.Row) error {
	err := row.Scan((*zeronull.Text)(&p.Input.Text), &p.Input.Bytes, (*zeronull.Text)(&p.Result.Text), &p.Result.Bytes,
		(*zeronull.Text)(&p.Effects.Text), &p.Effects.Bytes,
		&p.Progress, (*zeronull.Text)(&p.Context))
	for _, v := range []*Value{&p.Input, &p.Result, &p.Effects} {
		v.Cut = len(v.Text) < v.Bytes
	}
	return err
}

// missing returns the error for a call that does not exist.
func missing(ctx context.Context, db DB, id string) error {
	none := &client.NotFoundError{ID: id}
	err := db.QueryRow(ctx, "select call_id::text from gem.receipts where id = $1", id).Scan(&none.ReceiptOf)
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return none
	}
	return err
}

// Part returns a complete value of a call, as text: its input, its result, its effects or the data of an event. It
// returns false if there is none.
func Part(ctx context.Context, db DB, id, part string, seq int) (text []byte, found bool, err error) {
	statement, args := "", []any{id}
	switch part {
	case "input":
		statement = "select input::text from public.core_tool_calls where id = $1"
	case "result", "effects":
		statement = "select " + part + "::text from public.core_tool_receipts where call_id = $1"
	case "event":
		statement, args = "select data::text from public.core_tool_events where call_id = $1 and seq = $2", []any{id, seq}
	}
	err = db.QueryRow(ctx, statement, args...).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	return text, text != nil, err
}

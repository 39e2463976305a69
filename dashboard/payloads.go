package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Inputs and results are read here, from the tables: only operators may, so client/view does not contain them.

// payload is a call's input and its receipt's result, each cut.
type payload struct {
	Input, Result string
	// stored sizes in bytes of a value that is too large to show; 0 if it is shown
	InputSize, ResultSize int
	Verdicts              []receipts.Verdict
}

// Larger values are shown only on the call's page. They are compressed, so a value that is shown may be ten times as
// large.
const mostStored = 8 << 10

// readPayloads reads the beginnings of the payloads of calls, by their ids.
func readPayloads(ctx context.Context, db view.DB, ids []string, most int) (map[string]payload, error) {
	rows, err := db.Query(ctx, `
		select c.id::text,
			case when pg_column_size(c.input) <= $3 then left(c.input::text, $2) end, case
				when pg_column_size(c.input) > $3 then pg_column_size(c.input) else 0 end,
			case when pg_column_size(r.result) <= $3 then left(r.result::text, $2) end, case
				when pg_column_size(r.result) > $3 then pg_column_size(r.result) else 0 end,
			case when pg_column_size(r.effects) <= $3 then r.effects -> 'rules' -> 'verdicts' end
		from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id
		where c.id = any ($1::uuid[])`, ids, most+1, mostStored)
	if err == nil {
		all := map[string]payload{}
		var id string
		var p payload
		var verdicts json.RawMessage
		_, err = pgx.ForEachRow(rows, []any{&id, (*zeronull.Text)(&p.Input), &p.InputSize, (*zeronull.Text)(&p.Result),
			&p.ResultSize, &verdicts}, func() error {
			p.Verdicts = nil
			_ = json.Unmarshal(verdicts, &p.Verdicts) // null where there are none
			all[id] = p
			return nil
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read inputs and results: %w", err)
}

// modelAnswer is a model's answer in a turn of an agent: a step of its journal.
type modelAnswer struct {
	Parts []answerPart
	Stop  string // why it stopped: end_turn, tool_use, max_tokens, refusal …
	// ErrorCode and Message are the reason for a missing answer.
	ErrorCode, Message string
}

// answerPart is a text, a thought, or a call to a tool, cut.
type answerPart struct {
	Type string // text, thinking, tool_call
	Name string // of the called tool, as the model names it
	Text string // or the arguments
	Size int    // of the whole, in characters
}

const (
	mostAnswers = 200 // turns of a page
	mostParts   = 50  // of a turn: 32 calls, and texts around them
)

// readModelAnswers reads the models' answers in the turns of agents, by the agent's id and the turn's name, such as
// turn 3. names are those of the turns; nil means the first ones.
func readModelAnswers(ctx context.Context, db view.DB, ids, names []string, most int) (map[[2]string]modelAnswer,
	error) {
	rows, err := db.Query(ctx, `
		select e.id, e.name, coalesce(e.data -> 'result' ->> 'stop_reason', ''),
			coalesce(e.data -> 'error' ->> 'error_code', ''),
			left(coalesce(e.data -> 'error' ->> 'message', ''), 1000), coalesce(p.type, ''), coalesce(left(p.name, 200), ''),
				coalesce(left(p.text, $4), ''), coalesce(length(p.text), 0)
		from (
			select e.call_id::text as id, e.seq, e.data ->> 'name' as name, e.data from public.core_tool_events e
			where e.call_id = any ($1::uuid[]) and e.event = 'step' and case
				when $2::text[] is null then e.data ->> 'name' like 'turn %' else e.data ->> 'name' = any ($2) end
				and e.data ->> 'kind' is distinct from 'call'
			order by e.call_id, e.seq limit $3) e
		left join lateral (
			select p.n, p.part ->> 'type' as type, p.part ->> 'name' as name,
				coalesce(p.part ->> 'text', p.part ->> 'arguments_raw', p.part ->> 'arguments') as text
			from jsonb_array_elements(case when jsonb_typeof(e.data -> 'result' -> 'parts') = 'array' then
				e.data -> 'result' -> 'parts' else '[]' end)
				with ordinality p (part, n) limit $5) p on true
		order by e.id, e.seq, p.n`, ids, names, mostAnswers, most+1, mostParts)
	if err == nil {
		all := map[[2]string]modelAnswer{}
		var key [2]string
		var s modelAnswer
		var p answerPart
		_, err = pgx.ForEachRow(rows, []any{&key[0], &key[1], &s.Stop, &s.ErrorCode, &s.Message, &p.Type, &p.Name, &p.Text,
			&p.Size}, func() error {
			before := all[key]
			s.Parts = before.Parts
			if p.Type != "" {
				s.Parts = append(s.Parts, p)
			}
			all[key] = s
			return nil
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the models' answers: %w", err)
}

// hookFact is an action of a coding agent that its hook reported.
type hookFact struct {
	Source  string
	Kind    string // read, edit, write, change, test
	Path    string
	Command string
	Outcome string   // of a test run
	Failed  []string // names of tests
	At      time.Time
}

// mostFacts is how many facts a page shows: the last ones.
const mostFacts = 100

// readFacts reads the facts that hooks of coding agents reported for a session. The table's key begins with the kind
// of agent. There are few kinds, so they are read one after the other.
func readFacts(ctx context.Context, db view.DB, session string) ([]hookFact, error) {
	rows, err := db.Query(ctx, `
		with recursive sources (source) as (
			(select source from public.core_hook_events order by source limit 1)
			union all
			select (select h.source from public.core_hook_events h where h.source > s.source order by h.source limit 1)
				from sources s where s.source is not null
		)
		select h.source, h.kind, coalesce(h.path, ''), coalesce(h.command, ''), coalesce(h.outcome, ''), h.failed[1:10], h.at
		from (select source from sources where source is not null limit 20) s, lateral (
			select * from public.core_hook_events h where h.source = s.source and h.session_id = $1
				order by h.seq desc limit $2) h
		order by h.seq desc limit $2`, session, mostFacts)
	if err == nil {
		var all []hookFact
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f hookFact, err error) {
			return f, row.Scan(&f.Source, &f.Kind, &f.Path, &f.Command, &f.Outcome, &f.Failed, &f.At)
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the reports of hooks: %w", err)
}

// agentTask is the task of an agent, and its answer, cut.
type agentTask struct {
	Task, Instructions, Route, Tools, Limits, Answer string
	NotOffered                                       []struct{ Tool, Why string }
}

// readTask reads the input and the result of a call to agent.run.
func readTask(ctx context.Context, db view.DB, id string) (*agentTask, error) {
	var t agentTask
	var notOffered json.RawMessage
	err := db.QueryRow(ctx, `
		select coalesce(left(c.input ->> 'task', $2), ''), coalesce(left(c.input ->> 'instructions', $2), ''),
			coalesce(left(c.input ->> 'route', 200), ''),
			coalesce(left(array_to_string(array(select jsonb_array_elements_text(case
				when jsonb_typeof(c.input -> 'tools') = 'array' then c.input -> 'tools' end)), ', '), $2), ''),
			left(concat_ws(', ', c.input ->> 'max_turns' || ' turns', c.input ->> 'max_output_tokens' || ' tokens a turn',
				c.input ->> 'max_cost_usd' || ' USD'), 200),
			coalesce(left(r.result ->> 'answer', $2), ''), case
				when pg_column_size(r.result) <= $3 then coalesce(r.result, '{}') -> 'not_offered' end
		from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id
		where c.id = $1`, id, textShown+1, mostStored).Scan(&t.Task, &t.Instructions, &t.Route, &t.Tools, &t.Limits,
		&t.Answer, &notOffered)
	_ = json.Unmarshal(notOffered, &t.NotOffered)
	if err != nil {
		return nil, fmt.Errorf("read the task: %w", err)
	}
	return &t, nil
}

// readResult reads a call's result, or the details of its failure.
func readResult(ctx context.Context, db view.DB, id string) (raw json.RawMessage, err error) {
	err = db.QueryRow(ctx, `select coalesce(case when r.status = 'failed' then r.result -> 'error' -> 'details'
		else r.result end, 'null')
		from public.core_tool_receipts r where r.call_id = $1`, id).Scan(&raw)
	if err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	return raw, nil
}

// readDocument reads the text for a call to extract.run: from its input, or the document of an id. It returns "" if
// the text no longer exists. The tables of documents belong to the domain extract, which not every program has.
func readDocument(ctx context.Context, db view.DB, callID, documentID string) (text string, err error) {
	if !view.IsID(documentID) {
		err = db.QueryRow(ctx, "select coalesce(c.input ->> 'text', '') from public.core_tool_calls c where c.id = $1",
			callID).Scan(&text)
	} else {
		var there bool
		err = db.QueryRow(ctx, "select to_regclass('public.extract_document_parts') is not null").Scan(&there)
		if err == nil && there {
			err = db.QueryRow(ctx, `select coalesce(string_agg(p.text, '' order by p.seq), '')
				from public.extract_document_parts p where p.document_id = $1`,
				documentID).Scan(&text)
		}
	}
	if err != nil {
		return "", fmt.Errorf("read the document: %w", err)
	}
	return text, nil
}

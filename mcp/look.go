package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/prose"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// view is a call as its caller may see it, with what it waits for.
type view struct {
	state
	now, runAt time.Time // now is Postgres's
	wakeAt     time.Time // zero for a call that waits for nothing, or without end
	retries    int
	cancelling bool
	questions  []question
	// onlyPeople means that the call does not continue before a person has answered: every open call made on its behalf waits for that.
	onlyPeople bool
}

// question is an open call of wait.answer, wait.approval or wait.event that a handler or a rule made on behalf of a call.
type question struct {
	id, tool, text string
	schema         json.RawMessage // what an answer must be; null: a text
	by             []string
	moves          bool   // something else is running on behalf of the call
	mine           bool   // the caller may answer it
	about          string // the tool of the call to approve
	arguments      string // its input, or the beginning of it
	askedFor       client.Asker
	askedBy        string // the created_by of its call; empty for none
	since, until   time.Time
}

const approval = "wait.approval"

// maxQuestions bounds the number of questions that are read for a call, and maxArguments the characters of the arguments
// to approve.
const maxQuestions, maxArguments = 100, 2000

// look reads a call with its open questions. Another user's call is not found.
func (d *Door) look(ctx context.Context, c caller, id string) (v view, err error) {
	err = d.as(ctx, c, func(db client.DB) error {
		seen, err := client.See(ctx, db, id)
		if err != nil {
			return err
		}
		v.Seen, v.now = *seen, seen.UpdatedAt
		if v.ended() {
			return nil
		}
		err = db.QueryRow(ctx, `select clock_timestamp(), run_at, wake_at, retries, cancel_requested_at is not null,
				exists (select from public.core_tool_calls k where k.parent_call_id = c.id and k.parent_step like '##%' and k.status in ('queued', 'running', 'waiting'))
			from public.core_tool_calls c where id = $1`, id).
			Scan(&v.now, &v.runAt, (*zeronull.Timestamptz)(&v.wakeAt), &v.retries, &v.cancelling, &v.approval)
		v.onlyPeople = v.Status == "waiting" && v.WaitsFor == "answer" && prose.IsQuestion(v.Tool) && v.Tool != "wait.event" // others wait for systems, too
		if err != nil || v.Status != "waiting" || v.WaitsFor != "call" {
			return err
		}
		// Questions have the created_by of the call that they are asked for: if the caller has none open, nothing is read. For most questions, the row itself
		// shows whether the caller may answer; the view, which reads all that the caller may answer, is used only for the rest.
		rows, err := db.Query(ctx, `
			with recursive below (id, depth, moves) as (
				select $1::uuid, 0, false where exists (select from public.core_tool_calls q
					where q.created_by = (select public.gem_caller()) and q.waits_for = 'answer' and q.status in ('queued', 'waiting', 'running'))
				union all
				select c.id, b.depth + 1, not (c.status = 'waiting' and c.waits_for in ('call', 'answer'))
				from below b join public.core_tool_calls c on c.parent_call_id = b.id
				where c.parent_step is not null and c.status in ('queued', 'running', 'waiting') and b.depth < 20)
			select q.id::text, q.tool_name, coalesce(q.input ->> 'text', ''), coalesce(q.input -> 'schema', 'null')::text,
			       case when q.tool_name = 'wait.answer' and coalesce(q.input -> 'others', 'false') = 'false'
			                 and coalesce(q.input -> 'by', '["owner"]') ?| array['owner', 'user:' || public.gem_caller()] then true
			            else exists (select from public.open_questions o where o.id = q.id) end,
			       array(select jsonb_array_elements_text(case when jsonb_typeof(q.input -> 'by') = 'array' then q.input -> 'by' else '[]' end)),
			       coalesce(q.input ->> 'tool', ''), coalesce(left((q.input -> 'input')::text, $3), ''),
			       q.asked_for, coalesce(q.created_by, ''), q.created_at, coalesce(q.input ->> 'until', ''), (select bool_or(m.moves) from below m)
			from below b join public.core_tool_calls q on q.id = b.id
			where b.depth > 0 and q.waits_for = 'answer' and q.tool_name in ('wait.answer', 'wait.approval', 'wait.event')
			order by q.asked_for = 'user', q.id limit $2`, id, maxQuestions, maxArguments+1)
		if err != nil {
			return err
		}
		v.questions, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q question, err error) {
			var until string
			err = row.Scan(&q.id, &q.tool, &q.text, &q.schema, &q.mine, &q.by, &q.about, &q.arguments, &q.askedFor, &q.askedBy, &q.since,
				&until, &q.moves)
			q.until, _ = time.Parse(time.RFC3339, until) // it may have any form until a worker validates it
			return q, err
		})
		v.onlyPeople = err == nil && len(v.questions) > 0 && !slices.ContainsFunc(v.questions, func(q question) bool { return q.moves || !q.forPeople() })
		return err
	})
	var none *client.NotFoundError
	if errors.As(err, &none) {
		err = noCall(id)
	}
	asked := make([]string, len(v.questions))
	for i, q := range v.questions {
		asked[i] = q.line(d.o.DashboardURL)
	}
	if v.asks = strings.Join(asked, " "); v.Status == "waiting" && v.WaitsFor == "answer" {
		v.asks = v.line()
	}
	return v, err
}

// line describes what an open call waits for, as gem explain does, but without workers and calls of others, which its caller may not see.
func (v view) line() string {
	said := ""
	if v.cancelling {
		said = "It is being cancelled. "
	}
	switch {
	case v.ended():
		return ""
	case v.Status == "running":
		return said + fmt.Sprintf("It runs, in attempt %d.", v.Attempt)
	case v.Status == "queued" && v.runAt.After(v.now):
		if v.retries > 0 {
			said += fmt.Sprintf("Attempt %d ended with an error that may pass. ", v.Attempt)
		}
		return said + "It runs at " + moment(v.runAt) + "."
	case v.Status == "queued":
		return said + "It waits for a worker."
	}
	switch v.WaitsFor {
	case "key":
		return said + "It waits for another call, which holds the same key."
	case "time":
		return said + "Its handler sleeps until " + moment(v.wakeAt) + "."
	case "answer":
		return said + fmt.Sprintf("It waits for an answer: gem answer %s VALUE", v.ID)
	case "code":
		return said + "It waits for a program that can continue it."
	}
	if v.asks != "" {
		return said + v.asks
	}
	return said + "Its handler waits for calls that it made."
}

// forPeople reports whether a person may answer: systems report events, and services answer questions that only services may answer.
func (q question) forPeople() bool {
	return q.tool != "wait.event" && (len(q.by) == 0 || slices.ContainsFunc(q.by, func(who string) bool { return who != "service" }))
}

// line describes a question, the people who may answer it, and how.
func (q question) line(dashboard string) string {
	by := slices.Clone(q.by)
	if len(by) == 0 && q.tool == "wait.answer" {
		by = []string{"owner"}
	}
	if i := slices.Index(by, "owner"); i >= 0 && q.askedBy != "" {
		by[i] = "user:" + q.askedBy
	}
	said := prose.AskedFor(client.Asked{ID: q.id, Tool: q.tool, Text: q.text, By: by, About: q.about,
		AskedFor: q.askedFor, AskedBy: q.askedBy, Inside: true}, dashboard)
	if !strings.HasSuffix(said, ".”") && !strings.HasSuffix(said, "?”") {
		said = prose.Sentence(said)
	}
	if !q.until.IsZero() {
		said += " It can be answered until " + moment(q.until) + "."
	}
	return said
}

// who describes who asks: a call waits for the answer to each of these questions.
func (q question) who() string { return prose.Asker(q.askedFor, q.askedBy, true) }

// link is where people answer the question; empty without a dashboard.
func (q question) link(dashboard string) string { return prose.QuestionLink(dashboard, q.id) }

// moment writes a time as tasks do, to the millisecond.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// cut shortens a text to so many characters.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

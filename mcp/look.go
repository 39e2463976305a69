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

// view is a call as its caller may see it, with the questions that it waits for.
type view struct {
	state
	now, runAt time.Time // now is Postgres's
	wakeAt     time.Time // zero for a call that waits for nothing, or without a limit
	moves      time.Time // the earliest such time of the call and of the open calls below it
	retries    int
	cancelling bool
	questions  []question
	// onlyPeople means that the call cannot continue before a person has answered: every open call made on its behalf
	// waits for a person.
	onlyPeople bool
}

// question is an open call to wait.answer, wait.approval or wait.event that a handler or a rule made on behalf of a
// call, or a call that waits for an answer itself.
type question struct {
	id, tool, text string
	schema         json.RawMessage // of the answer; null means a text
	by             []string
	moves          bool   // something else is running on behalf of the call
	mine           bool   // the caller may answer it
	inside         bool   // another call waits for the answer
	about          string // the tool of the call to approve
	arguments      string // its input, or the beginning of it
	askedFor       client.Asker
	askedBy        string // the created_by of its call; may be empty
	since, until   time.Time
}

const approval = "wait.approval"

// maxQuestions limits the questions that are read for a call, and maxArguments the characters of the arguments to
// approve.
const maxQuestions, maxArguments = 100, 2000

// look reads a call with its open questions. Another user's call is not found.
func (d *Server) look(ctx context.Context, c caller, id string) (v view, err error) {
	err = d.as(ctx, c, func(db client.DB) error {
		seen, err := client.GetVisible(ctx, db, id)
		if err != nil {
			return err
		}
		v.VisibleCall, v.now = *seen, seen.UpdatedAt
		if v.ended() {
			return nil
		}
		itself := question{id: id, tool: v.Tool}
		err = db.QueryRow(ctx, `select clock_timestamp(), run_at, wake_at, retries, cancel_requested_at is not null,
				exists (select from public.core_tool_calls k where k.parent_call_id = c.id and k.parent_step like '##%'
					and k.status in ('queued', 'running', 'waiting')),
				coalesce(input ->> 'text', ''), coalesce(input ->> 'tool', ''), answer_by, coalesce(asked_for, ''),
				coalesce(created_by, ''), parent_step is not null, answer_until
			from public.core_tool_calls c where id = $1`, id).
			Scan(&v.now, &v.runAt, (*zeronull.Timestamptz)(&v.wakeAt), &v.retries, &v.cancelling, &v.approval, &itself.text,
				&itself.about, &itself.by, &itself.askedFor, &itself.askedBy, &itself.inside,
				(*zeronull.Timestamptz)(&itself.until))
		if v.Status == "waiting" && v.WaitsFor == "answer" {
			v.asks = itself.line(d.o.DashboardURL)
		}
		// other calls wait for systems, too
		v.onlyPeople = v.Status == "waiting" && v.WaitsFor == "answer" && prose.IsQuestion(v.Tool) && v.Tool != "wait.event"
		v.moves = v.wakeAt
		if err != nil || v.Status != "waiting" || v.WaitsFor != "call" {
			return err
		}
		// Questions have the created_by of the call that they are asked for: if the caller has no open ones, nothing
		// more is read. For most questions, the row itself shows whether the caller may answer; the database checks
		// only the rest.
		rows, err := db.Query(ctx, `
			with recursive below (id, depth, moves, wake_at) as (
				select $1::uuid, 0, false, null::timestamptz where exists (select from public.core_tool_calls q
					where q.created_by = (select public.gem_caller()) and q.waits_for = 'answer'
						and q.status in ('queued', 'waiting', 'running'))
				union all
				select c.id, b.depth + 1, not (c.status = 'waiting' and c.waits_for in ('call', 'answer')), c.wake_at
				from below b join public.core_tool_calls c on c.parent_call_id = b.id
				where c.parent_step is not null and c.status in ('queued', 'running', 'waiting') and b.depth < 20)
			select q.id::text, q.tool_name, coalesce(q.input ->> 'text', ''), coalesce(q.input -> 'schema', 'null')::text,
			       case when q.tool_name = 'wait.answer' and not q.answer_others
			                 and q.answer_by && array['owner', 'user:' || public.gem_caller()] then true
			            else exists (select from public.find_open_questions(array[q.id])) end,
			       q.answer_by,
			       coalesce(q.input ->> 'tool', ''), coalesce(left((q.input -> 'input')::text, $3), ''),
			       q.asked_for, coalesce(q.created_by, ''), q.created_at, q.answer_until,
			       (select bool_or(m.moves) from below m), (select min(m.wake_at) from below m)
			from (select q.id, q.tool_name, q.input, q.answer_by, q.answer_others, q.answer_until, q.asked_for, q.created_by,
				q.created_at
				from below b join public.core_tool_calls q on q.id = b.id
				where b.depth > 0 and q.waits_for = 'answer' and q.tool_name in ('wait.answer', 'wait.approval', 'wait.event')
				order by q.asked_for = 'user', q.id limit $2) q
			order by q.asked_for = 'user', q.id`, id, maxQuestions, maxArguments+1)
		if err != nil {
			return err
		}
		v.questions, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q question, err error) {
			q.inside = true
			var wakes time.Time
			err = row.Scan(&q.id, &q.tool, &q.text, &q.schema, &q.mine, &q.by, &q.about, &q.arguments, &q.askedFor, &q.askedBy,
				&q.since, (*zeronull.Timestamptz)(&q.until), &q.moves, (*zeronull.Timestamptz)(&wakes))
			if !wakes.IsZero() && (v.moves.IsZero() || wakes.Before(v.moves)) {
				v.moves = wakes
			}
			return q, err
		})
		v.onlyPeople = err == nil && len(v.questions) > 0 &&
			!slices.ContainsFunc(v.questions, func(q question) bool { return q.moves || !q.forPeople() })
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
	if len(asked) > 0 {
		v.asks = strings.Join(asked, " ")
	}
	return v, err
}

// movesBy reports whether the call, or one below it, continues on its own by a deadline.
func (v view) movesBy(at time.Time) bool {
	return !v.moves.IsZero() && v.moves.Sub(v.now) < time.Until(at)
}

// line describes what an open call waits for, like gem explain, but without workers and others' calls, which the
// caller may not see.
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
			said += fmt.Sprintf("Attempt %d ended with a temporary error. ", v.Attempt)
		}
		return said + "It is scheduled for " + moment(v.runAt) + "."
	case v.Status == "queued":
		return said + "It waits for a worker."
	}
	switch v.WaitsFor {
	case "key":
		return said + "It waits for another call, which holds the same key."
	case "time":
		return said + "Its handler sleeps until " + moment(v.wakeAt) + "."
	case "code":
		return said + "It waits for a program that can continue it."
	}
	if v.asks != "" {
		return said + v.asks
	}
	return said + "Its handler waits for calls that it made."
}

// forPeople reports whether a person may answer: systems report events, and services answer questions that only
// services may answer.
func (q question) forPeople() bool {
	return q.tool != "wait.event" && (len(q.by) == 0 ||
		slices.ContainsFunc(q.by, func(who string) bool { return who != "service" }))
}

// line describes a question, the people who may answer it, and how.
func (q question) line(dashboard string) string {
	by := slices.Clone(q.by)
	if i := slices.Index(by, "owner"); i >= 0 && q.askedBy != "" {
		by[i] = "user:" + q.askedBy
	}
	said := prose.AskedFor(client.WaitingCall{ID: q.id, Tool: q.tool, Text: q.text, By: by, About: q.about,
		AskedFor: q.askedFor, AskedBy: q.askedBy, Inside: q.inside}, dashboard)
	if !strings.HasSuffix(said, ".”") && !strings.HasSuffix(said, "?”") {
		said = prose.Sentence(said)
	}
	if !q.until.IsZero() {
		said += " It can be answered until " + moment(q.until) + "."
	}
	return said
}

// who describes the asker: a person, a handler or a rule.
func (q question) who() string { return prose.Asker(q.askedFor, q.askedBy, true) }

// link returns the page where people answer the question, or "" without a dashboard.
func (q question) link(dashboard string) string { return prose.QuestionLink(dashboard, q.id) }

// moment formats a time for tasks, to the millisecond.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

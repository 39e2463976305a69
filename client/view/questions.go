package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Question is a row of the view gem.questions: a call to wait.answer, wait.approval or wait.event, without the
// question's text and its answer.
type Question struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
	// Status is the status of the call: waiting while it waits for the answer.
	Status string `json:"status"`
	// By lists who may answer: owner, user:SUBJECT, role:ROLE, service. Others excludes CreatedBy, and everyone who
	// made a call above it or repeated one.
	By        []string `json:"by"`
	Others    bool     `json:"others"`
	CreatedBy string   `json:"created_by,omitempty"`
	SessionID string   `json:"session_id,omitempty"`
	// AskedFor is the kind of asker: rule, handler or user. A user or a model wrote a user's question: everything in
	// it is unverified.
	AskedFor string `json:"asked_for"`
	// ParentID is the call on whose behalf it asks; it may be empty. OfHandler reports whether that call waits for
	// the answer: its handler, or rules, made the question.
	ParentID  string    `json:"parent_id,omitempty"`
	OfHandler bool      `json:"of_handler,omitempty"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until,omitzero"` // zero means no limit
	Cancelled time.Time `json:"cancel_requested_at,omitzero"`
	// AnsweredBy is the person who answered; empty before that.
	AnsweredBy string    `json:"answered_by,omitempty"`
	AnsweredAt time.Time `json:"answered_at,omitzero"`
	// OfAsker numbers the open questions of one CreatedBy, separately for users; AskerOpen is the number of them that
	// were read.
	OfAsker   int `json:"of_asker,omitempty"`
	AskerOpen int `json:"asker_open,omitempty"`
}

// mostNumbered limits the questions that a list numbers, like gem.open_questions.
const mostNumbered = 5000

// MaxPerAsker is how many questions of one asker a list shows; it only counts the rest.
const MaxPerAsker = 5

// More returns how many questions of its asker a list leaves out after this one.
func (q Question) More() int {
	if q.OfAsker != MaxPerAsker {
		return 0
	}
	return q.AskerOpen - q.OfAsker
}

const questionColumns = `q.call_id::text, q.tool_name, q.status, q.by, q.others, q.created_by, q.session_id, q.parent_call_id::text, q.asked_for, q.of_handler,
	q.since, q.until, q.cancel_requested_at, q.answered_by, q.answered_at`

func scanQuestion(row pgx.CollectableRow) (q Question, err error) {
	return q, row.Scan(columnsOf(&q)...)
}

func columnsOf(q *Question) []any {
	return []any{&q.CallID, &q.Tool, &q.Status, &q.By, &q.Others, (*zeronull.Text)(&q.CreatedBy),
		(*zeronull.Text)(&q.SessionID),
		(*zeronull.Text)(&q.ParentID), (*zeronull.Text)(&q.AskedFor), &q.OfHandler, &q.Since,
		(*zeronull.Timestamptz)(&q.Until), (*zeronull.Timestamptz)(&q.Cancelled),
		(*zeronull.Text)(&q.AnsweredBy), (*zeronull.Timestamptz)(&q.AnsweredAt)}
}

// The list numbers the questions before it leaves any out, so that an asker with many questions does not hide others.
const listQuestions = `
	with waiting as materialized (
		select w.id, kind.kind = 'user' as of_user, kind.kind, coalesce(w.created_by, w.id::text) as asker, w.created_at
		from unnest(array['rule', 'handler', 'user']) kind (kind),
			unnest(array['wait.approval', 'wait.answer', 'wait.event']) tool, lateral (
			select c.id, c.created_by, c.created_at from gem.calls c
			where c.status = 'waiting' and c.waits_for = 'answer' and c.computed_key is null and c.tool_name = tool
				and c.asked_for = kind.kind
			order by c.computed_key, c.level desc, c.seq limit $2) w
	), numbered as (
		select w.*, row_number() over (partition by w.of_user, w.asker order by w.created_at, w.id) as of_asker,
			count(*) over (partition by w.of_user, w.asker) as asker_open
		from waiting w
	), placed as materialized (
		select n.*, row_number() over (partition by n.kind order by n.of_asker > 5, n.created_at, n.id) as place
		from numbered n
	)
	select ` + questionColumns + `, p.of_asker, p.asker_open
	from placed p, lateral (select * from gem.questions one where one.call_id = p.id offset 0) q -- by id: many may wait
	where p.place <= $1
	order by p.of_user, p.of_asker > 5, p.created_at, p.id`

// Questions returns the questions that wait for anyone's answer, up to a limit for each AskedFor. Users' questions
// are last, and an asker's sixth follows the first five of others. It numbers the first 5,000 in the queue of each of
// the three tools and each AskedFor.
func Questions(ctx context.Context, db DB, limit int) ([]Question, error) {
	rows, err := db.Query(ctx, listQuestions, limit, mostNumbered)
	if err == nil {
		var all []Question
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q Question, err error) {
			return q, row.Scan(append(columnsOf(&q), &q.OfAsker, &q.AskerOpen)...)
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the questions: %w", err)
}

// CountQuestions counts the questions that wait for an answer, up to a limit.
func CountQuestions(ctx context.Context, db DB, limit int) (n int, err error) {
	err = db.QueryRow(ctx, `select count(*) from (
		select from gem.calls c where c.status = 'waiting' and c.waits_for = 'answer' and c.computed_key is null
			and c.tool_name = any ('{wait.answer,wait.approval,wait.event}') limit $1) q`, limit).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the questions: %w", err)
	}
	return n, nil
}

// QuestionsAmong returns the given calls that wait for an answer, the oldest first.
func QuestionsAmong(ctx context.Context, db DB, ids []string) ([]Question, error) {
	rows, err := db.Query(ctx, "select "+questionColumns+` from gem.questions q
		where q.call_id = any ($1::text[]::uuid[]) and q.status = 'waiting' and q.waits_for = 'answer' order by q.since, q.call_id`, ids)
	if err == nil {
		var all []Question
		if all, err = pgx.CollectRows(rows, scanQuestion); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the questions of a call: %w", err)
}

// OneQuestion returns the question of a call, open or not; nil if the call asks nothing or does not exist.
func OneQuestion(ctx context.Context, db DB, callID string) (*Question, error) {
	rows, err := db.Query(ctx, "select "+questionColumns+" from gem.questions q where q.call_id = $1", callID)
	if err != nil {
		return nil, fmt.Errorf("read the question %s: %w", callID, err)
	}
	q, err := pgx.CollectExactlyOneRow(rows, scanQuestion)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the question %s: %w", callID, err)
	}
	return &q, nil
}

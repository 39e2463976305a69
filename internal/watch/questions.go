package watch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Question is a row of the view gem.questions: a call of wait.answer, wait.approval or wait.event, without what it asks and what was answered.
type Question struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
	// Status is that of the call: waiting while it waits for the answer.
	Status string `json:"status"`
	// By are those who may answer: owner, user:SUBJECT, role:ROLE, service. Others says that CreatedBy, and whoever made a call above it or had one
	// made again, may not.
	By        []string `json:"by"`
	Others    bool     `json:"others"`
	CreatedBy string   `json:"created_by,omitempty"`
	SessionID string   `json:"session_id,omitempty"`
	// AskedFor is who asks: rule, handler or user. A user or a model wrote a user's question: everything in it is unverified.
	AskedFor string `json:"asked_for"`
	// ParentID is the call on whose behalf it asks; empty for none. OfHandler reports whether that call waits for the answer: its handler,
	// or rules, made the question.
	ParentID  string    `json:"parent_id,omitempty"`
	OfHandler bool      `json:"of_handler,omitempty"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until,omitzero"` // zero: without end
	Cancelled time.Time `json:"cancel_requested_at,omitzero"`
	// AnsweredBy is who has answered; empty while nobody has.
	AnsweredBy string    `json:"answered_by,omitempty"`
	AnsweredAt time.Time `json:"answered_at,omitzero"`
	// OfAsker numbers the open questions of one CreatedBy, separately for users; AskerOpen is how many of them were read.
	OfAsker   int `json:"of_asker,omitempty"`
	AskerOpen int `json:"asker_open,omitempty"`
}

// MostOfAsker is how many questions of one asker a list shows; it only counts the rest.
const MostOfAsker = 5

// More returns how many questions of its asker a list leaves out after this one.
func (q Question) More() int {
	if q.OfAsker != MostOfAsker {
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
	return []any{&q.CallID, &q.Tool, &q.Status, &q.By, &q.Others, (*zeronull.Text)(&q.CreatedBy), (*zeronull.Text)(&q.SessionID),
		(*zeronull.Text)(&q.ParentID), (*zeronull.Text)(&q.AskedFor), &q.OfHandler, &q.Since, (*zeronull.Timestamptz)(&q.Until), (*zeronull.Timestamptz)(&q.Cancelled),
		(*zeronull.Text)(&q.AnsweredBy), (*zeronull.Timestamptz)(&q.AnsweredAt)}
}

const listQuestions = "select " + questionColumns + `, q.of_asker, q.asker_open from (
	select r.*, row_number() over (partition by r.asked_for = 'user', r.asker order by r.since, r.call_id) as of_asker,
		count(*) over (partition by r.asked_for = 'user', r.asker) as asker_open
	from (select w.*, coalesce(w.created_by, w.call_id::text) as asker
		from unnest(array['rule', 'handler', 'user']) kind, unnest(array['wait.approval', 'wait.answer', 'wait.event']) tool, lateral (
			select * from gem.questions w
			where w.status = 'waiting' and w.waits_for = 'answer' and w.computed_key is null and w.tool_name = tool and w.asked_for = kind
			order by w.computed_key, w.level desc, w.seq limit $1) w) r) q
	order by q.asked_for = 'user', q.of_asker > 5, q.since, q.call_id`

// Questions returns the questions that wait for an answer of anyone: for each of the three tools and each AskedFor, the first in the queue, up to
// a limit. Users' questions come last, and an asker's sixth comes after the first five of others.
func Questions(ctx context.Context, db DB, limit int) ([]Question, error) {
	rows, err := db.Query(ctx, listQuestions, limit)
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

// CountQuestions counts the calls that wait for an answer, up to a limit.
func CountQuestions(ctx context.Context, db DB, limit int) (n int, err error) {
	err = db.QueryRow(ctx, `select count(*) from (
		select from gem.calls c where c.status = 'waiting' and c.waits_for = 'answer' limit $1) q`, limit).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the questions: %w", err)
	}
	return n, nil
}

// QuestionsAmong returns the calls, among some, that wait for an answer, the oldest first.
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

// OneQuestion returns the question of a call, whether it is open or not; nil if the call asks nothing, or there is none.
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

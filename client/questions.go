package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Question is a row of the view open_questions: a call to wait.answer, wait.approval or wait.event that waits for an
// answer which the caller may give.
type Question struct {
	ID    string          `json:"id"`     // of the question, which is itself a call, to Tool
	Tool  string          `json:"tool"`   // wait.answer, wait.approval or wait.event
	Text  string          `json:"text"`   // if an approval has none, GEM derives it from the call to approve
	Asks  json.RawMessage `json:"schema"` // JSON Schema of an answer; null allows anything
	By    []string        `json:"by"`     // who may answer: owner, user:SUBJECT, role:ROLE, service
	Since time.Time       `json:"since"`
	Until time.Time       `json:"until,omitzero"` // zero means no limit
	// the topmost ancestor, a call that no other call made; it may be the question itself
	Root  string          `json:"root"`
	Input json.RawMessage `json:"input"` // the input, if the question is a call to wait.approval; otherwise null
	// About and Arguments are the tool and the input of the call to approve; empty and null for other
	// questions.
	About     string          `json:"about,omitempty"`
	Arguments json.RawMessage `json:"arguments"`
	// CallID is the call that waits for the answer; empty for a question that a frontend inserted.
	CallID string `json:"call_id,omitempty"`
	// AskedBy is the created_by of the question's call; it may be empty. AskedFor is the kind of asker.
	AskedBy  string `json:"asked_by,omitempty"`
	AskedFor Asker  `json:"asked_for"`
	// OfAsker is the question's position among the open questions with the same AskedBy, and AskerOpen is the number of
	// these: see gem.open_questions.
	OfAsker   int `json:"of_asker"`
	AskerOpen int `json:"asker_open"`
}

// Asker says who chose a question: a rule, a handler's code, or a user or a model. See gem.asked_for in
// migrations/functions/answers.sql.
type Asker string

// The askers.
const (
	AskerRule    Asker = "rule"
	AskerHandler Asker = "handler"
	AskerUser    Asker = "user" // a user or a model: nothing in the question is verified
)

// MaxPerAsker is the largest number of questions of one asker that [FirstQuestions] returns. [Question.More] counts the
// others.
const MaxPerAsker = 5

// OpenQuestions returns the questions that the caller may answer, up to a limit, in the order of gem.open_questions:
// questions of rules and handlers first.
func OpenQuestions(ctx context.Context, db DB, limit int) ([]Question, error) {
	return readQuestions(ctx, db, "order by place limit $1", limit)
}

// FirstQuestions is [OpenQuestions] with at most [MaxPerAsker] questions of each asker.
func FirstQuestions(ctx context.Context, db DB, limit int) ([]Question, error) {
	return readQuestions(ctx, db, "where of_asker <= $1 order by place limit $2", MaxPerAsker, limit)
}

// More returns the number of questions of the same asker that [FirstQuestions] left out. It is above 0 only for the
// last question that FirstQuestions returns of that asker.
func (q Question) More() int {
	if q.OfAsker != MaxPerAsker {
		return 0
	}
	return q.AskerOpen - q.OfAsker
}

// OpenQuestionsAbout returns, up to a limit, the questions asked on behalf of a call, if the caller may answer them.
// For a call without a parent, they include the questions of all calls below it.
func OpenQuestionsAbout(ctx context.Context, db DB, id string, limit int) ([]Question, error) {
	return readQuestions(ctx, db, "where call_id = $1 or root = $1 order by place limit $2", id, limit)
}

// OpenQuestion returns the question with an id. It returns nil if the call with that id is not an open question, or if
// the role of db may not answer it.
func OpenQuestion(ctx context.Context, db DB, id string) (*Question, error) {
	found, err := OpenQuestionsAmong(ctx, db, []string{id})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// OpenQuestionsAmong returns the questions among the given calls that the caller may answer. It takes at most a
// thousand calls. It does not read other questions, so OfAsker and AskerOpen count only these calls.
func OpenQuestionsAmong(ctx context.Context, db DB, ids []string) ([]Question, error) {
	return readFrom(ctx, db, "public.find_open_questions($1::text[]::uuid[]) order by place", ids)
}

func readQuestions(ctx context.Context, db DB, which string, args ...any) ([]Question, error) {
	return readFrom(ctx, db, "public.open_questions "+which, args...)
}

func readFrom(ctx context.Context, db DB, from string, args ...any) ([]Question, error) {
	rows, err := db.Query(ctx, `select id::text, tool, coalesce(text, ''), coalesce(schema, 'null')::text, by, since,
		until, root::text,
		coalesce(input, 'null')::text, about, coalesce(arguments, 'null')::text, call_id::text, asked_by, asked_for,
		of_asker, asker_open
		from `+from, args...)
	if err == nil {
		var all []Question
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q Question, err error) {
			err = row.Scan(&q.ID, &q.Tool, &q.Text, &q.Asks, &q.By, &q.Since, (*zeronull.Timestamptz)(&q.Until), &q.Root,
				&q.Input, (*zeronull.Text)(&q.About), &q.Arguments, (*zeronull.Text)(&q.CallID), (*zeronull.Text)(&q.AskedBy),
				&q.AskedFor, &q.OfAsker, &q.AskerOpen)
			if q.Text == "" && q.Tool == "wait.approval" {
				q.Text = oneline.CallOf(q.About, q.Arguments) + "."
			}
			return q, err
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the open questions: %w", err)
}

// WaitingCall is a call that waits for somebody's answer.
type WaitingCall struct {
	ID, Tool string
	Text     string   // the question, for wait.answer and wait.approval; may be empty
	By       []string // who may answer, if the input names them: owner, user:SUBJECT, role:ROLE, service
	About    string   // of wait.approval: the tool of the call to approve
	// AskedFor is the kind of asker. AskedBy is the created_by of the question's call: the user on whose behalf it was
	// made. Both are empty if unknown. Inside means that another call waits for the answer.
	AskedFor Asker
	AskedBy  string
	Inside   bool
	// Names are the names under which the call waits for answers: see [Answer]. A call to wait.answer, wait.approval or
	// wait.event has one name, `answer`.
	Names []string
}

// AskedFor looks at a call and at the calls that handlers and rules made on its behalf. It returns the ones that wait
// for somebody's answer, whether or not the caller may give it. It returns the first ones, up to a limit.
func AskedFor(ctx context.Context, db DB, id string, limit int) ([]WaitingCall, error) {
	rows, err := db.Query(ctx, `
		with recursive below (id, waits_for, depth) as (
			select c.id, c.waits_for, 0 from public.core_tool_calls c where c.id = $1 and c.status = 'waiting'
				and c.waits_for in ('call', 'answer')
			union all
			select c.id, c.waits_for, b.depth + 1 from below b join public.core_tool_calls c on c.parent_call_id = b.id
			where c.parent_step is not null and c.status = 'waiting' and c.waits_for in ('call', 'answer')
				and b.waits_for = 'call' and b.depth < 20)
		select q.id::text, q.tool_name, coalesce(q.input ->> 'text', ''),
			array(select jsonb_array_elements_text(case when jsonb_typeof(q.input -> 'by') = 'array' then q.input -> 'by'
				else '[]' end)),
			coalesce(q.input ->> 'tool', ''), array(select ltrim(n, '#') from pg_catalog.unnest(q.waits) n where n like '#%'),
			coalesce(q.asked_for, ''), coalesce(q.created_by, ''), b.depth > 0
		from below b join public.core_tool_calls q on q.id = b.id where b.waits_for = 'answer'
			order by q.asked_for is not distinct from 'user', q.id limit $2`, id, limit)
	if err == nil {
		var all []WaitingCall
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a WaitingCall, err error) {
			return a, row.Scan(&a.ID, &a.Tool, &a.Text, &a.By, &a.About, &a.Names, &a.AskedFor, &a.AskedBy, &a.Inside)
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the questions of call %s: %w", id, err)
}

// ErrMayNotAnswer means that the call exists, but the caller may not answer it.
var ErrMayNotAnswer = errors.New("you may not answer this call")

// Answer sends a call an answer: JSON of at most 64 KiB, under the name that its handler waits for. An empty name means
// `answer`. Repeating the same answer is allowed. Errors of Postgres have the codes PT409 (the call has another answer,
// has ended, or is a question that is scheduled for later), PT410 (its deadline has passed) and PT422 (the answer does
// not fit, as the message explains).
func Answer(ctx context.Context, db DB, id string, answer any, name string) error {
	encoded, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode the answer to call %s: %w", id, err)
	}
	if name == "" {
		name = "answer"
	}
	_, err = db.Exec(ctx, "select public.answer_tool_call($1, $2, $3)", id, string(encoded), name)
	switch {
	case store.HasCode(err, "PT404"):
		// the failed statement broke the transaction
		if _, err := Get(ctx, db, id); err != nil && !store.HasCode(err, "25P02") {
			return err
		}
		return ErrMayNotAnswer
	case err != nil:
		return fmt.Errorf("answer call %s: %w", id, err)
	}
	return nil
}

// Resume lets a waiting call check again whether it can continue. It returns false if the call does not wait, or
// waits for a key.
func Resume(ctx context.Context, db DB, id string) (resumed bool, err error) {
	if _, err = Get(ctx, db, id); err != nil {
		return false, err
	}
	if err = db.QueryRow(ctx, "select gem.resume($1)", id).Scan(&resumed); err != nil {
		return false, fmt.Errorf("resume call %s: %w", id, err)
	}
	return resumed, nil
}

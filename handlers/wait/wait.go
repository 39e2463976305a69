// Package wait has the tools that ask questions: wait.answer, wait.approval and wait.event. Each waits for one answer
// to its own call, which frontends see in the view open_questions and give with the function answer_tool_call. Every
// program has them. Their entries are in package registry.
//
// Most questions of handlers and rules do not run here: gem.end_question in SQL ends them, with the same results.
package wait

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/gemworker/gem/handlers"
)

// Wait is the domain.
type Wait struct{}

// Domain returns the domain for a program.
func Domain() any { return Wait{} }

type question struct {
	Text   string          `json:"text"`
	Schema json.RawMessage `json:"schema"`
	By     []string        `json:"by"`
	Others bool            `json:"others"`
	Until  *time.Time      `json:"until"`
}

type answerOutput struct {
	Answer json.RawMessage `json:"answer"`
	By     string          `json:"by"`
	At     time.Time       `json:"at"`
}

// Answer waits for the answer to a question. The database has checked the answer against the question's schema, and the
// person's rights.
func (Wait) Answer(ctx context.Context, call *handlers.Durable, in question) (out answerOutput, err error) {
	out.Answer, out.By, out.At, err = receive[json.RawMessage](ctx, call, in.Until)
	return out, err
}

type eventInput struct {
	Text   string          `json:"text"`
	Schema json.RawMessage `json:"schema"`
	By     []string        `json:"by"`
	Until  *time.Time      `json:"until"`
}

type eventOutput struct {
	Event json.RawMessage `json:"event"`
	By    string          `json:"by"`
	At    time.Time       `json:"at"`
}

// Event waits for an external event.
func (Wait) Event(ctx context.Context, call *handlers.Durable, in eventInput) (out eventOutput, err error) {
	out.Event, out.By, out.At, err = receive[json.RawMessage](ctx, call, in.Until)
	return out, err
}

type approval struct {
	Tool   string          `json:"tool"`
	Input  json.RawMessage `json:"input"`
	Text   string          `json:"text"`
	By     []string        `json:"by"`
	Others bool            `json:"others"`
	Until  *time.Time      `json:"until"`
	Digest string          `json:"digest"`
	CallID string          `json:"call_id"`
	Rules  []struct {
		Name    string `json:"name"`
		Message string `json:"message"`
	} `json:"rules"`
	Before []struct {
		Tool      string    `json:"tool"`
		Status    string    `json:"status"`
		ErrorCode string    `json:"error_code"`
		At        time.Time `json:"at"`
	} `json:"before"`
}

// Approval waits for a person who approves or denies a call. A denial is a success of this tool, and so is an approval
// that nobody decided in time.
func (Wait) Approval(ctx context.Context, call *handlers.Durable, in approval) (handlers.Decision, error) {
	decision, by, at, err := receive[handlers.Decision](ctx, call, in.Until)
	if errors.Is(err, handlers.ErrTimeout) {
		return handlers.Decision{Reason: "expired", At: *in.Until, Digest: in.Digest}, nil
	}
	return handlers.Decision{Approved: decision.Approved, Reason: decision.Reason, By: by, At: at, Digest: in.Digest}, err
}

func receive[T any](ctx context.Context, call *handlers.Durable, until *time.Time) (value T, by string, at time.Time,
	err error) {
	answer := handlers.Receive[T](call, "answer")
	if until != nil {
		answer.Until(*until)
	}
	if value, err = answer.Wait(ctx); err == nil {
		by, at = answer.By()
	}
	return value, by, at, err
}

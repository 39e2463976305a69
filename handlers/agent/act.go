package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/llm"
)

// maxCalls is how many calls of one turn are made.
const maxCalls = 32

// act makes the calls of a turn, side by side, and returns what each came to, in their order.
func (b *toolbox) act(ctx context.Context, call *handlers.Durable, turn int, calls []llm.Part) ([]llm.Part, error) {
	made := make([]*handlers.Child[json.RawMessage], min(len(calls), maxCalls))
	for i := range made {
		p := calls[i]
		tool := value.Shorten(p.Name, 100) // of which there is none, if it is cut
		if t, ok := b.find(p.Name); ok {
			tool = t.Name
		}
		name := fmt.Sprintf("turn %d call %d", turn, i+1)
		made[i] = handlers.StartWith[json.RawMessage](call, name, tool, func() (json.RawMessage, error) { return b.input(call, tool, &p) })
	}
	if err := handlers.All(ctx, made...); err != nil {
		return nil, err
	}
	results := make([]llm.Part, len(calls))
	for i, p := range calls {
		var result json.RawMessage
		err := error(tooMany)
		if i < len(made) {
			result, err = made[i].Wait(ctx) // which has come
		}
		text, isError := observation(result, err)
		results[i] = llm.Part{Type: llm.ToolResult, ToolCallID: p.ID, Content: text, IsError: isError}
	}
	return results, nil
}

var tooMany = &handlers.Failure{Code: "too_many_calls", Message: fmt.Sprintf("This call was not made: a turn has at most %d.", maxCalls)}

// input returns the input of a call that the model wants, or why it is not made.
func (b *toolbox) input(call *handlers.Durable, tool string, p *llm.Part) (json.RawMessage, error) {
	refuse := func(code, message string) (json.RawMessage, error) {
		return nil, &handlers.Failure{Code: code, Message: message}
	}
	if _, ok := b.find(tool); !ok {
		for _, l := range b.NotOffered {
			if l.Tool == tool || underscored(l.Tool) == tool {
				return refuse("not_allowed", fmt.Sprintf("The user may not call %s: it %s.", l.Tool, l.Why))
			}
		}
		return refuse("unknown_tool", fmt.Sprintf("You have no tool %q. You have: %s.", tool, b.names()))
	}
	for _, t := range handlers.Tools(call) {
		if t.Name == tool && t.Closed != "" {
			return refuse("not_allowed", fmt.Sprintf("The user may not call %s: it %s.", tool, t.Closed))
		}
	}
	if p.RawArguments != "" {
		return refuse("validation_error", "The arguments are no JSON object, or have what cannot be stored. Write one object.")
	}
	if other := b.notOwn(p.Arguments); tool == call.Tool && other != "" {
		return refuse("not_allowed", fmt.Sprintf("An agent that you start may have the tools that you have yourself, by their names: %s is none of them.", other))
	}
	if who := stranger(call, tool, p.Arguments); who != "" {
		return refuse("not_allowed", fmt.Sprintf("A model may put a question to owner, service and roles: %s is none of them.", who))
	}
	return p.Arguments, nil
}

// stranger returns a single user whom a question is to be put to, other than the one that the agent works for: a question shows that user what the
// model puts into it, and a text that the model has read may have told it whom to ask. Who has a role, the operator says.
func stranger(call *handlers.Durable, tool string, input json.RawMessage) string {
	var (
		question map[string]json.RawMessage // whose names Postgres compares exactly
		by       []string
	)
	if tool != "wait.answer" && tool != "wait.event" || json.Unmarshal(input, &question) != nil || json.Unmarshal(question["by"], &by) != nil {
		return "" // the owner is asked, or the tool refuses what is no question
	}
	for _, who := range by {
		if user, one := strings.CutPrefix(who, "user:"); one && user != call.CreatedBy {
			return value.Shorten(who, 100)
		}
	}
	return ""
}

// notOwn returns a tool that the input of another agent names, and this one does not have. Whoever limits an agent's tools limits those of its
// agents too. No other field is read: the worker of the call, to which Postgres hands its numbers as 10 for 1e1, may read what this one could not.
func (b *toolbox) notOwn(input json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(input, &fields) != nil {
		return "its input"
	}
	for name, list := range fields {
		if !strings.EqualFold(name, "tools") { // as encoding/json takes it for the field
			continue
		}
		if other := b.notAmong(list); other != "" {
			return other
		}
	}
	return ""
}

func (b *toolbox) notAmong(list json.RawMessage) string {
	var patterns []string
	if json.Unmarshal(list, &patterns) != nil {
		return "" // which the schema refuses, and the handler cannot read
	}
	for _, pattern := range patterns {
		own := slices.ContainsFunc(b.Tools, func(t offered) bool { return t.Name == pattern })
		if !own && !slices.Contains(b.patterns, pattern) {
			return value.Shorten(cmp.Or(pattern, "an empty name"), 100)
		}
	}
	return ""
}

func (b *toolbox) names() string {
	if len(b.Tools) == 0 {
		return "none"
	}
	var names []string
	for _, t := range b.Tools {
		names = append(names, t.As)
	}
	return strings.Join(names, ", ")
}

// maxSeen is how many bytes of JSON an observation may have.
const maxSeen = 32 << 10

// seen is an observation: what a call came to, as the model reads it. It is JSON, so that nothing in a result or a message can end it or stand beside it.
type seen struct {
	Status  string          `json:"status"`
	Result  json.RawMessage `json:"result,omitempty"`
	Code    string          `json:"error_code,omitempty"`
	Message string          `json:"message,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
	Advice  handlers.Advice `json:"advice,omitempty"`
	Cut     *cut            `json:"cut,omitempty"`
}

// cut stands in place of what is too large.
type cut struct {
	Bytes     int    `json:"bytes"`
	Beginning string `json:"beginning"`
}

// observation returns what the model reads of a call's end, and whether it is an error.
func observation(result json.RawMessage, err error) (text string, isError bool) {
	var (
		s       = seen{Status: "succeeded", Result: result}
		failure *handlers.Failure
		missing *handlers.NotConfigured
	)
	switch {
	case err == nil:
	case errors.As(err, &missing):
		s = seen{Status: "not_configured", Message: missing.Reason}
	case errors.As(err, &failure):
		s = seen{Status: "failed", Code: failure.Code, Message: failure.Message, Details: detailsOf(failure)}
		s.Advice = adviceIn(s.Details)
	default:
		s = seen{Status: "failed", Code: "execution_error", Message: err.Error()}
	}
	encoded := encode(s)
	if len(encoded) > maxSeen {
		encoded = encode(s.shortened())
	}
	return encoded, err != nil
}

// adviceIn returns the tool's advice about a new call, which is kept even if the details are cut.
func adviceIn(details json.RawMessage) handlers.Advice {
	var of struct {
		Advice handlers.Advice `json:"advice"`
	}
	if json.Unmarshal(details, &of) != nil || !of.Advice.Valid() {
		return ""
	}
	return of.Advice
}

func detailsOf(f *handlers.Failure) json.RawMessage {
	encoded, err := json.Marshal(f.Details)
	if err != nil || string(encoded) == "null" {
		return nil
	}
	return encoded
}

// shortened returns an observation with the beginning of its result, or of its details, as a text.
func (s seen) shortened() seen {
	whole := string(slices.Concat(s.Result, s.Details))
	s.Result, s.Details, s.Message = nil, nil, value.Shorten(s.Message, maxSeen/16)
	for n := maxSeen - maxSeen/8; ; n /= 2 { // as a text it takes more
		s.Cut = &cut{len(whole), value.Cut(whole, n)}
		if len(encode(s)) <= maxSeen {
			return s
		}
	}
}

func encode(s seen) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil { // of texts, and of JSON that was stored
		return `{"status":"failed","message":"The result cannot be read."}`
	}
	return strings.TrimSpace(b.String())
}

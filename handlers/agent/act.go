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
	"github.com/gemworker/gem/internal/plainjson"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/receipts"
)

// maxCalls is the maximum number of calls of one turn.
const maxCalls = 32

// act makes the calls of a turn in parallel, and returns their results, in order.
func (b *toolbox) act(ctx context.Context, call *handlers.Durable, turn int, calls []provider.Part) ([]provider.Part,
	error) {
	made := make([]*handlers.Child[json.RawMessage], min(len(calls), maxCalls))
	for i := range made {
		p := calls[i]
		tool := receipts.Shorten(p.Name, 100) // a cut name matches no tool
		if t, ok := b.find(p.Name); ok {
			tool = t.Name
		}
		name := fmt.Sprintf("turn %d call %d", turn, i+1)
		made[i] = handlers.StartWith[json.RawMessage](call, name, tool,
			func() (json.RawMessage, error) { return b.input(call, tool, &p) })
	}
	if err := handlers.All(ctx, made...); err != nil {
		return nil, err
	}
	results := make([]provider.Part, len(calls))
	for i, p := range calls {
		var (
			result json.RawMessage
			note   string
		)
		err := error(tooMany)
		if i < len(made) {
			result, err = made[i].Wait(ctx) // it has arrived
			if made[i].InputDiffers() {
				note = otherInput
			}
		}
		text, isError := observation(result, note, err)
		results[i] = provider.Part{Type: provider.ToolResult, ToolCallID: p.ID, Content: text, IsError: isError}
	}
	return results, nil
}

var tooMany = &handlers.Failure{Code: "too_many_calls", Message: fmt.Sprintf("This call was not made: a turn has at "+
	"most %d.", maxCalls)}

// input returns the input of a call that the model wants, or why it is not made.
func (b *toolbox) input(call *handlers.Durable, tool string, p *provider.Part) (json.RawMessage, error) {
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
	if p.RawArguments != "" {
		return refuse("validation_error", "The arguments are not a JSON object, or contain something that cannot be "+
			"stored. Write one object.")
	}
	if other := b.notOwn(p.Arguments); tool == call.Tool && other != "" {
		return refuse("not_allowed", fmt.Sprintf("An agent that you start may have the tools that you have yourself, by "+
			"their names: %s is none of them.", other))
	}
	if who := stranger(call, tool, p.Arguments); who != "" {
		return refuse("not_allowed", fmt.Sprintf("A model may put a question to owner, service and roles: %s is none of "+
			"them.", who))
	}
	return p.Arguments, nil
}

// stranger returns a user whom a question names, other than the agent's own user. Such a question would show that user
// the model's text, and a text that the model has read may have chosen the user. Roles are allowed, because the
// operator assigns them.
func stranger(call *handlers.Durable, tool string, input json.RawMessage) string {
	var (
		question map[string]json.RawMessage // whose names Postgres compares exactly
		by       []string
	)
	if tool != "wait.answer" && tool != "wait.event" || json.Unmarshal(input, &question) != nil ||
		json.Unmarshal(question["by"], &by) != nil {
		return "" // the owner is asked, or the tool refuses it
	}
	for _, who := range by {
		if user, one := strings.CutPrefix(who, "user:"); one && user != call.CreatedBy {
			return receipts.Shorten(who, 100)
		}
	}
	return ""
}

// notOwn returns a tool that the input of another agent names but this agent does not have: a limit on an agent's tools
// also limits its own agents. It reads no other field, because the worker of the call may be able to read values that
// this worker cannot, since Postgres returns 1e1 as 10.
func (b *toolbox) notOwn(input json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(input, &fields) != nil {
		return "its input"
	}
	for name, list := range fields {
		if !strings.EqualFold(name, "tools") { // as encoding/json matches the field
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
		return "" // the schema rejects it, and the handler cannot read it
	}
	for _, pattern := range patterns {
		own := slices.ContainsFunc(b.Tools, func(t offeredTool) bool { return t.Name == pattern })
		if !own && !slices.Contains(b.patterns, pattern) {
			return receipts.Shorten(cmp.Or(pattern, "an empty name"), 100)
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

// maxSeen is the maximum size of an observation, in bytes of JSON.
const maxSeen = 32 << 10

// seen is an observation: the result of a call for the model. It is JSON, so that no text in a result or a message can
// end or extend it.
type seen struct {
	Status  string          `json:"status"`
	Result  json.RawMessage `json:"result,omitempty"`
	Code    string          `json:"error_code,omitempty"`
	Message string          `json:"message,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
	Advice  handlers.Advice `json:"advice,omitempty"`
	Cut     *cut            `json:"cut,omitempty"`
}

// cut replaces a value that is too large.
type cut struct {
	Bytes     int    `json:"bytes"`
	Beginning string `json:"beginning"`
}

// otherInput tells the model that its input took no effect.
const otherInput = "This call did nothing. Its result is that of an earlier call with the same idempotency key " +
	"and a different input: do not report it as the result of what you sent."

// observation returns the model's view of a call's end, and whether it is an error. A note may accompany a result.
func observation(result json.RawMessage, note string, err error) (text string, isError bool) {
	var (
		s       = seen{Status: "succeeded", Result: result, Message: note}
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

// adviceIn returns the tool's advice about a new call, which remains even if the details are cut.
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
	s.Result, s.Details, s.Message = nil, nil, receipts.Shorten(s.Message, maxSeen/16)
	for n := maxSeen - maxSeen/8; ; n /= 2 { // as a text it takes more
		s.Cut = &cut{len(whole), receipts.Truncate(whole, n)}
		if len(encode(s)) <= maxSeen {
			return s
		}
	}
}

func encode(s seen) string {
	encoded, err := plainjson.Encode(s)
	if err != nil { // of texts, and of JSON that was stored
		return `{"status":"failed","message":"The result cannot be read."}`
	}
	return string(encoded)
}

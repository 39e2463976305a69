package llm

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/router"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/receipts"
)

type chat struct {
	ask
	Tools      []provider.Tool     `json:"tools,omitempty"`
	ToolChoice provider.ToolChoice `json:"tool_choice,omitempty"`
	Stop       []string            `json:"stop,omitempty"`
	Progress   bool                `json:"progress,omitempty"`
}

// maxResult is the maximum size of a call's result, in bytes.
const maxResult = 1 << 20

type chatOutput struct {
	Text         string          `json:"text"`
	Parts        []provider.Part `json:"parts"`
	ToolCalls    []proposedCall  `json:"tool_calls"`
	StopReason   provider.Stop   `json:"stop_reason"`
	ProviderStop string          `json:"provider_stop,omitempty"`
	Model        string          `json:"model"`
	Usage        router.Usage    `json:"usage"`
	Routing      router.Routing  `json:"routing"`
}

// proposedCall is a tool call that the model wants. Only the caller makes it.
type proposedCall struct {
	ID           string           `json:"id"`
	Name         string           `json:"name"`
	Arguments    json.RawMessage  `json:"arguments"`
	ArgumentsRaw string           `json:"arguments_raw,omitempty"` // what the model wrote, if it is not an object
	Faults       []receipts.Fault `json:"faults,omitempty"`        // against the tool's parameters
}

// Chat asks a model.
func (l *LLM) Chat(ctx context.Context, call *handlers.Durable, in chat) (chatOutput, error) {
	m, err := l.asked()
	if err != nil {
		return chatOutput{}, err
	}
	if err := in.check(); err != nil {
		return chatOutput{}, err
	}
	tools, err := compileTools(in.Tools)
	if err != nil {
		return chatOutput{}, err
	}
	q := in.question()
	q.Tools, q.ToolChoice, q.Stop, q.Progress = in.Tools, in.ToolChoice, in.Stop, in.Progress
	a, err := m.Ask(ctx, call, "main", q)
	if err != nil {
		return chatOutput{}, err
	}
	out := chatOutput{Text: textOf(&a), Parts: a.Parts, ToolCalls: []proposedCall{}, StopReason: a.Stop,
		ProviderStop: a.ProviderStop, Model: a.Model, Usage: a.Usage, Routing: a.Routing}
	for _, p := range a.Parts {
		if p.Type == provider.ToolCall {
			out.ToolCalls = append(out.ToolCalls, tools.propose(p))
		}
	}
	return out, tooLarge(out, &a)
}

// tooLarge returns the failure for a result that is larger than a receipt may have, or nil.
func tooLarge(result any, a *router.Answer) error {
	size := value.Size(result)
	if size <= maxResult {
		return nil
	}
	return unusable(router.AnswerTooLarge, fmt.Sprintf("The answer takes %d bytes as a result, which may have %d: lower "+
		"max_output_tokens.", size, maxResult), a, nil)
}

// tools are the schemas of the tools that were described, by name.
type tools map[string]*schema.Schema

func compileTools(described []provider.Tool) (tools, error) {
	all, patterns := tools{}, 0
	for i, t := range described {
		patterns += patternsIn(t.Parameters)
		if patterns > maxPatterns {
			return nil, tooManyPatterns(fmt.Sprintf("/tools/%d/parameters", i))
		}
		s, err := compile("the arguments", fmt.Sprintf("/tools/%d/parameters", i), t.Parameters)
		if err != nil {
			return nil, err
		}
		s.Object = true
		if all[t.Name] != nil {
			return nil, invalid(fmt.Sprintf("/tools/%d/name", i), fmt.Sprintf("there are two tools of the name %s", t.Name))
		}
		all[t.Name] = s
	}
	return all, nil
}

func (t tools) propose(p provider.Part) proposedCall {
	c := proposedCall{ID: p.ID, Name: p.Name, Arguments: p.Arguments, ArgumentsRaw: p.RawArguments}
	s, known := t[p.Name]
	switch {
	case !known:
		c.Faults = []receipts.Fault{{Keyword: "name", Message: "no tool of this name was described"}}
	case p.RawArguments != "":
		c.Faults = []receipts.Fault{{Keyword: "json", Message: "the arguments are not a JSON object that can be stored"}}
	default:
		c.Faults, _ = s.Check(p.Arguments, true)
	}
	return c
}

// maxSchema is the maximum size of a caller's schema, in bytes, and maxLevels the maximum number of nested objects and
// lists.
const (
	maxSchema = 32 << 10
	maxLevels = 32
)

// compile compiles a schema of the caller, at a path of the input.
func compile(noun, path string, raw json.RawMessage) (*schema.Schema, error) {
	if len(raw) > maxSchema {
		return nil, invalid(path, fmt.Sprintf("the schema has %d bytes and may have at most %d", len(raw), maxSchema))
	}
	doc, err := schema.Read("the schema", raw)
	if err != nil {
		return nil, invalid(path, err.Error())
	}
	if patternSize(doc.Value()) > maxPatterns {
		return nil, tooManyPatterns(path)
	}
	if levels(doc.Value()) > maxLevels {
		return nil, invalid(path, fmt.Sprintf("the schema has more than %d levels", maxLevels))
	}
	s, problems := schema.New(noun, doc.Value())
	if len(problems) > 0 {
		return nil, invalid(path+problems[0].Pointer, problems[0].Text)
	}
	return s, nil
}

// invalid returns the failure of an input that its tool's schema cannot check.
func invalid(path, message string) error {
	return &handlers.Failure{Code: "validation_error",
		Message: fmt.Sprintf("The input does not fit: %s: %s", path, message),
		Details: []receipts.Fault{{Path: path, Keyword: "schema", Message: message}}}
}

// levels returns the depth of a document's nesting.
func levels(v any) (deepest int) {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			deepest = max(deepest, levels(inner))
		}
		return deepest + 1
	case []any:
		for _, inner := range v {
			deepest = max(deepest, levels(inner))
		}
		return deepest + 1
	}
	return 0
}

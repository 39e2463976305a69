package llm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/oneline"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/router"
	"github.com/gemworker/gem/internal/schema"
	"github.com/gemworker/gem/receipts"
)

type structured struct {
	ask
	Schema     json.RawMessage `json:"schema"`
	Name       string          `json:"name,omitempty"`
	MaxRepairs *int            `json:"max_repairs,omitempty"`
}

type fitting struct {
	Output  json.RawMessage `json:"output"`
	Repairs int             `json:"repairs"`
	Model   string          `json:"model"`
	Usage   router.Usage    `json:"usage"`
	Routing router.Routing  `json:"routing"`
}

// Structured asks a model for an output that fits a schema. If an output does not fit, the same model gets it with the
// faults.
func (l *LLM) Structured(ctx context.Context, call *handlers.Durable, in structured) (fitting, error) {
	m, err := l.asked()
	if err != nil {
		return fitting{}, err
	}
	if err := in.check(); err != nil {
		return fitting{}, err
	}
	s, err := compile("the output", "/schema", in.Schema)
	if err != nil {
		return fitting{}, err
	}
	q := in.question()
	q.Schema, q.SchemaName = in.Schema, in.Name
	if q.SchemaName == "" {
		q.SchemaName = "output"
	}
	repairs := 1
	if in.MaxRepairs != nil {
		repairs = *in.MaxRepairs
	}
	for n := 0; ; n++ {
		step := "main"
		if n > 0 {
			step = fmt.Sprintf("repair %d", n)
		}
		a, err := m.Ask(ctx, call, step, q)
		if err != nil {
			return fitting{}, err
		}
		output, faults, err := read(&a, s)
		if err != nil {
			return fitting{}, err
		}
		if faults == nil {
			out := fitting{Output: output, Repairs: n, Model: a.Model, Usage: a.Usage, Routing: a.Routing}
			if !schema.Storable(output, 1) {
				return fitting{}, unusable(router.AnswerTooLarge,
					"The output has too many values or levels for a receipt: ask for less.", &a, nil)
			}
			return out, tooLarge(out, &a)
		}
		if n == repairs {
			return fitting{}, unusable("output_schema_mismatch",
				"The model's output does not fit the schema: "+faults[0].Message, &a, faults)
		}
		q.Target = a.Routing.Target
		q.Messages = append(q.Messages[:len(q.Messages):len(q.Messages)],
			provider.Message{Role: provider.Assistant, Content: provider.Content{{Type: provider.Text,
				Text: orNothing(textOf(&a))}}},
			provider.Message{Role: provider.User, Content: provider.Content{{Type: provider.Text, Text: complaint(faults)}}})
	}
}

// read extracts the output from an answer: all of it, or the contents of its only code fence.
func read(a *router.Answer, s *schema.Schema) (json.RawMessage, []receipts.Fault, error) {
	switch a.Stop {
	case provider.Refusal:
		return nil, nil, unusable("refused", "The model refused to answer.", a, nil)
	case provider.MaxTokens:
		return nil, nil, unusable("output_truncated", "The output was cut off: it needs more than max_output_tokens.", a, nil)
	case provider.EndTurn, provider.ToolUse, provider.StopSequence:
	}
	text := strings.TrimSpace(textOf(a))
	if inner, fenced := unfence(text); fenced {
		text = inner
	}
	if faults, _ := s.Check([]byte(text), true); len(faults) > 0 {
		return nil, faults, nil
	}
	return json.RawMessage(text), nil, nil
}

// unfence returns the contents of the only code fence of a text.
func unfence(text string) (string, bool) {
	before, rest, found := strings.Cut(text, "```")
	inner, after, closed := strings.Cut(rest, "```")
	if !found || !closed || strings.Contains(after, "```") || strings.HasPrefix(strings.TrimSpace(before), "{") {
		return "", false
	}
	if line, body, ok := strings.Cut(inner, "\n"); ok && !strings.ContainsAny(line, "{[\"") {
		inner = body
	}
	return strings.TrimSpace(inner), true
}

// mostComplaints is the maximum number of faults that a model gets.
const mostComplaints = 20

func complaint(faults []receipts.Fault) string {
	var b strings.Builder
	b.WriteString("That does not fit the JSON Schema:\n")
	for _, f := range faults[:min(len(faults), mostComplaints)] {
		path := f.Path
		if path == "" {
			path = "the document"
		}
		fmt.Fprintf(&b, "- %s: %s\n", path, f.Message)
	}
	b.WriteString("Answer again with the whole JSON document, mended, and nothing else.")
	return b.String()
}

func orNothing(text string) string {
	if strings.TrimSpace(text) == "" { // providers reject empty messages
		return "(nothing)"
	}
	return text
}

// maxShown is the maximum length of an answer in a failure.
const maxShown = 4000

// unusable returns the failure for an unusable answer.
func unusable(code, message string, a *router.Answer, faults []receipts.Fault) error {
	details := map[string]any{"usage": a.Usage, "routing": a.Routing, "text": oneline.Cut(textOf(a), maxShown)}
	if faults != nil {
		details["faults"] = faults
	}
	return &handlers.Failure{Code: code, Message: message, Details: details}
}

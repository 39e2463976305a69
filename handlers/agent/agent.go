// Package agent is the domain agent: agent.run lets a model work at a task with tools, until it answers. Each turn is a step, and each call
// of a tool a child, so that the whole conversation stands in the journal of the call and on the receipts of its children.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/handlers/llm/models"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/llm"
)

// Agent has the tools of the domain.
type Agent struct{ models models.Source }

// Domain returns the domain agent. It asks the models of the domain llm: see llm.DomainAndModels.
func Domain(asked models.Source) handlers.Domain { return handlers.Domain{Tools: Agent{asked}} }

type task struct {
	Task            string     `json:"task"`
	Instructions    string     `json:"instructions"`
	Route           string     `json:"route"`
	Tools           []string   `json:"tools"`
	MaxTurns        int        `json:"max_turns"`
	MaxOutputTokens int        `json:"max_output_tokens"`
	MaxCostUSD      *llm.Money `json:"max_cost_usd"`
}

// The defaults of an input.
const (
	defaultTurns = 20
	defaultRoute = "default"
)

// ran is the result of a call.
type ran struct {
	Answer string `json:"answer"`
	work
}

// work is what an agent did, and what its own requests to models came to. It stands in the result, and in the details of a failure.
type work struct {
	Turns      int       `json:"turns"`
	ToolCalls  int       `json:"tool_calls"` // that the model asked for, also those that were refused
	Models     []string  `json:"models"`     // that answered
	Usage      usage     `json:"usage"`
	NotOffered []leftOut `json:"not_offered,omitempty"`
}

type usage struct {
	Input  int64 `json:"input_tokens"` // of the answers, as the next
	Output int64 `json:"output_tokens"`
	ledger.Total
}

// The codes of failures, besides those of package models.
const (
	turnLimit       = "turn_limit"
	refused         = "refused"
	outputTruncated = "output_truncated"
	noAnswer        = "no_answer"
	talkTooLong     = "conversation_too_long"
)

// maxTalk is how many bytes of texts, arguments and results a conversation may have, and maxResult how many a result takes as JSON.
const (
	maxTalk   = 4 << 20
	maxResult = 1 << 20
)

// Run thinks, acts and observes until the model answers without a call of a tool.
func (a Agent) Run(ctx context.Context, call *handlers.Durable, in task) (ran, error) {
	asked, missing := a.models()
	box, err := in.toolbox(ctx, call)
	if err != nil {
		return ran{}, err
	}
	did := work{Models: []string{}, Usage: usage{Total: ledger.Sum(nil)}, NotOffered: box.NotOffered}
	t, tools := newTalk(in.Task), box.described(call)
	limit := cmp.Or(in.MaxTurns, defaultTurns)
	for turn := 1; turn <= limit; turn++ {
		if t.size > maxTalk {
			return ran{}, did.fail(talkTooLong, fmt.Sprintf("The conversation has %d bytes, and may have %d: give the agent a smaller task, or tools with smaller results.",
				t.size, maxTalk))
		}
		question := models.Question{Route: cmp.Or(in.Route, defaultRoute), System: prompt(in.Instructions), Messages: t.messages, Tools: tools,
			MaxOutputTokens: in.MaxOutputTokens, MaxCost: in.MaxCostUSD}
		name := fmt.Sprintf("turn %d", turn)
		answer, err := think(ctx, call, name, asked, missing, question)
		if errors.Is(err, handlers.ErrCancelled) && asked != nil {
			did.cancelled(ctx, call, asked, name)
		}
		if err != nil {
			return ran{}, did.failed(err)
		}
		did.thought(turn, &answer)
		switch answer.Stop {
		case llm.Refusal:
			return ran{}, did.fail(refused, fmt.Sprintf("The model refused to go on in turn %d.", turn))
		case llm.MaxTokens:
			return ran{}, did.fail(outputTruncated, fmt.Sprintf("The answer of turn %d was cut off: it needs more than max_output_tokens.", turn))
		case llm.EndTurn, llm.ToolUse, llm.StopSequence:
		}
		calls := t.say(turn, answer.Parts, box)
		if len(calls) == 0 {
			return did.answered((&llm.Answer{Parts: answer.Parts}).Text())
		}
		did.ToolCalls += len(calls)
		results, err := box.act(ctx, call, turn, calls)
		if err != nil {
			return ran{}, did.failed(err)
		}
		t.add(llm.FromTool, results)
	}
	return ran{}, did.fail(turnLimit, fmt.Sprintf("The agent was not done after %d turns. What its tools did stays. Raise max_turns, or give it a smaller task.", limit))
}

// think asks for a turn. Turns that are in the journal need no models: missing says why there are none.
func think(ctx context.Context, call *handlers.Durable, step string, asked *models.Models, missing error, q models.Question) (models.Answer, error) {
	if missing != nil {
		return handlers.StepTx(ctx, call, step, func(context.Context, handlers.Tx) (models.Answer, error) { return models.Answer{}, missing })
	}
	return asked.Ask(ctx, call, step, q)
}

// thought counts the answer of a turn.
func (w *work) thought(turn int, a *models.Answer) {
	w.Turns = turn
	if !slices.Contains(w.Models, a.Model) {
		w.Models = append(w.Models, a.Model)
	}
	w.Usage.Input += a.Usage.Input
	w.Usage.Output += a.Usage.Output
	w.Usage.Total = a.Usage.Call
}

// answered is the end of an agent that calls no more tools.
func (w *work) answered(text string) (ran, error) {
	if isBlank(text) {
		return ran{}, w.fail(noAnswer, fmt.Sprintf("The model ended with turn %d, and said nothing.", w.Turns))
	}
	out := ran{text, *w}
	if n := value.Size(out); n > maxResult {
		return ran{}, w.fail(models.AnswerTooLarge, fmt.Sprintf("The answer takes %d bytes as a result, which may have %d: lower max_output_tokens.", n, maxResult))
	}
	return out, nil
}

func (w *work) fail(code, message string) error {
	return &handlers.Failure{Code: code, Message: message, Details: *w}
}

// stuck are the details of an agent whose request to a model failed, with those of the request as llm.chat has them.
type stuck struct {
	work
	Request any `json:"request,omitempty"`
}

// failed adds what the agent did to the failure of an operation. Where models are missing only now, the call has failed: it is not one that was
// never begun.
func (w *work) failed(err error) error {
	if missing, ok := errors.AsType[*handlers.NotConfigured](err); ok && w.Turns > 0 {
		return w.fail("not_configured", fmt.Sprintf("The agent could not go on after turn %d, and what its tools did stays. %s", w.Turns, missing.Reason)+needs(missing))
	}
	failure, ok := errors.AsType[*handlers.Failure](err)
	if _, again := errors.AsType[*handlers.TransientError](err); !ok || again {
		return err
	}
	if total := models.TotalOf(failure); total != nil {
		w.Usage.Total = *total
	}
	return &handlers.Failure{Code: failure.Code, Message: failure.Message, Details: stuck{*w, failure.Details}}
}

// cancelled counts the requests for an answer that did not come.
func (w *work) cancelled(ctx context.Context, call *handlers.Durable, asked *models.Models, answer string) {
	if total, err := asked.Spent(context.WithoutCancel(ctx), call, answer); err == nil {
		w.Usage.Total = total
	}
}

func needs(m *handlers.NotConfigured) string {
	if len(m.RequiredEnv) == 0 {
		return ""
	}
	return " The worker needs " + strings.Join(m.RequiredEnv, " or ") + "."
}

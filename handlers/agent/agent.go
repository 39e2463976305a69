// Package agent is the domain agent: agent.run lets a model work on a task with tools until it answers. Each turn is a
// step, and each call to a tool a child, so that the whole conversation is in the journal of the call and on the
// receipts of its children.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/router"
)

// Agent has the tools of the domain.
type Agent struct{ models router.Source }

// Domain returns the domain agent. It uses the models of llm, the program's domain llm.
func Domain(llm handlers.Domain) handlers.Domain {
	return handlers.Domain{Tools: Agent{router.From(llm)}}
}

type task struct {
	Name            string          `json:"name"`
	Task            string          `json:"task"`
	Instructions    string          `json:"instructions"`
	Route           string          `json:"route"`
	Tools           []string        `json:"tools"`
	MaxTurns        int             `json:"max_turns"`
	MaxOutputTokens int             `json:"max_output_tokens"`
	MaxCostUSD      *provider.Money `json:"max_cost_usd"`
}

// The defaults of an input.
const (
	defaultTurns = 20
	defaultRoute = "default"
)

// ran is the result of agent.run.
type ran struct {
	Answer string `json:"answer"`
	work
}

// work counts an agent's turns and calls, and the usage of its own requests to models. The result and the details of a
// failure contain it.
type work struct {
	Turns      int       `json:"turns"`
	ToolCalls  int       `json:"tool_calls"` // calls that the model requested, including refused ones
	Models     []string  `json:"models"`     // the models that answered
	Usage      usage     `json:"usage"`
	NotOffered []leftOut `json:"not_offered,omitempty"`
}

type usage struct {
	Input      int64 `json:"input_tokens"` // of the answers, as the next three; it includes the cached ones
	Output     int64 `json:"output_tokens"`
	CacheRead  int64 `json:"cache_read_tokens"`
	CacheWrite int64 `json:"cache_write_tokens"`
	ledger.Total
}

// The codes of failures, in addition to the codes of package router.
const (
	turnLimit       = "turn_limit"
	refused         = "refused"
	outputTruncated = "output_truncated"
	noAnswer        = "no_answer"
	talkTooLong     = "conversation_too_long"
)

// maxTalk is the maximum size of a conversation's texts, arguments and results, in bytes, and maxResult the maximum
// size of a result as JSON.
const (
	maxTalk   = 4 << 20
	maxResult = 1 << 20
)

// Run thinks, acts and observes until the model answers without a tool call.
func (a Agent) Run(ctx context.Context, call *handlers.Durable, in task) (_ ran, err error) {
	ctx, span := in.span(ctx)
	defer func() { endSpan(span, err) }() // err is nil if the attempt ends in the middle
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
			return ran{}, did.fail(talkTooLong, fmt.Sprintf("The conversation has %d bytes, and may have %d: give the agent a "+
				"smaller task, or tools with smaller results.",
				t.size, maxTalk))
		}
		question := router.Question{Route: cmp.Or(in.Route, defaultRoute), System: prompt(in.Instructions),
			Messages: t.messages, Tools: tools, Cache: true,
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
		case provider.Refusal:
			return ran{}, did.fail(refused, fmt.Sprintf("The model refused to go on in turn %d.", turn))
		case provider.MaxTokens:
			return ran{}, did.fail(outputTruncated, fmt.Sprintf(
				"The answer of turn %d was cut off: it needs more than max_output_tokens.", turn))
		case provider.EndTurn, provider.ToolUse, provider.StopSequence:
		}
		calls := t.say(turn, answer.Parts, box)
		if len(calls) == 0 {
			return did.answered((&provider.Answer{Parts: answer.Parts}).Text())
		}
		did.ToolCalls += len(calls)
		results, err := box.act(ctx, call, turn, calls)
		if err != nil {
			return ran{}, did.failed(err)
		}
		t.add(provider.FromTool, results)
	}
	return ran{}, did.fail(turnLimit, fmt.Sprintf("The agent was not done after %d turns. What its tools did stays. "+
		"Raise max_turns, or give it a smaller task.", limit))
}

// think requests a turn. Turns in the journal need no models; missing is the error if models are unavailable.
func think(ctx context.Context, call *handlers.Durable, step string, asked *router.Models, missing error,
	q router.Question) (router.Answer, error) {
	if missing != nil {
		return handlers.StepTx(ctx, call, step, func(context.Context, handlers.Tx) (router.Answer, error) {
			return router.Answer{}, missing
		})
	}
	return asked.Ask(ctx, call, step, q)
}

// thought counts the answer of a turn.
func (w *work) thought(turn int, a *router.Answer) {
	w.Turns = turn
	if !slices.Contains(w.Models, a.Model) {
		w.Models = append(w.Models, a.Model)
	}
	w.Usage.Input += a.Usage.Input
	w.Usage.Output += a.Usage.Output
	w.Usage.CacheRead += a.Usage.CacheRead
	w.Usage.CacheWrite += a.Usage.CacheWrite
	w.Usage.Total = a.Usage.Call
}

// answered ends an agent that calls no more tools.
func (w *work) answered(text string) (ran, error) {
	if isBlank(text) {
		return ran{}, w.fail(noAnswer, fmt.Sprintf("The model ended with turn %d, and said nothing.", w.Turns))
	}
	out := ran{text, *w}
	if n := value.Size(out); n > maxResult {
		return ran{}, w.fail(router.AnswerTooLarge, fmt.Sprintf(
			"The answer takes %d bytes as a result, which may have %d: lower max_output_tokens.", n, maxResult))
	}
	return out, nil
}

func (w *work) fail(code, message string) error {
	return &handlers.Failure{Code: code, Message: message, Details: *w}
}

// stuck returns the details of an agent whose request to a model failed, together with the details of the request in
// the form of llm.chat.
type stuck struct {
	work
	Request any `json:"request,omitempty"`
}

// failed adds the agent's work to the failure of an operation. If models became unavailable after the beginning, the
// call fails instead of ending as not_configured.
func (w *work) failed(err error) error {
	if missing, ok := errors.AsType[*handlers.NotConfigured](err); ok && w.Turns > 0 {
		return w.fail("not_configured", fmt.Sprintf("The agent could not go on after turn %d, and what its tools did "+
			"stays. %s", w.Turns, missing.Reason)+needs(missing))
	}
	failure, ok := errors.AsType[*handlers.Failure](err)
	if _, again := errors.AsType[*handlers.TransientError](err); !ok || again {
		return err
	}
	if total := router.TotalOf(failure); total != nil {
		w.Usage.Total = *total
	}
	return &handlers.Failure{Code: failure.Code, Message: failure.Message, Details: stuck{*w, failure.Details}}
}

// cancelled counts the requests for an answer that did not arrive.
func (w *work) cancelled(ctx context.Context, call *handlers.Durable, asked *router.Models, answer string) {
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

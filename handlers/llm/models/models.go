// Package models asks the models of a routes file for a call: it chooses an arm, reserves what the request may cost, reads the answer, and
// settles. An answer is a step of the call, so that it is not bought again once it is in the journal.
package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/handlers/llm/progress"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/routes"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// Models are those of a routes file. They are safe for concurrent use.
type Models struct {
	Routes *routes.Routes
	// Providers are those that can be asked, by name: their keys are set, or they need none.
	Providers map[string]llm.Provider
	// Keys are those of all providers. None stays in what one of them says.
	Keys      []string
	DB        handlers.DB
	Telemetry *Telemetry
	// Progress shows answers while they come, where the question says so.
	Progress *progress.Writer
	Log      *zap.Logger

	refused sync.Map // the names of arms whose last failure an operator has to mend
}

// Source returns the models that a program can ask, or a [handlers.NotConfigured] that says why there are none.
type Source func() (*Models, error)

// Question is what a model is asked.
type Question struct {
	Route      string
	System     string
	Messages   []llm.Message
	Tools      []llm.Tool
	ToolChoice llm.ToolChoice
	// MaxOutputTokens is 0 for the default: 4,096, or what the smallest arm of the route has.
	MaxOutputTokens   int
	Temperature, TopP *float64
	Stop              []string
	Effort            llm.Effort
	// Schema, if set, is what the answer's text must fit. It is only asked for: nothing is checked here.
	Schema     json.RawMessage
	SchemaName string
	// MaxCost, if set, is what all requests of the call may cost.
	MaxCost *llm.Money
	// Arm, if set, is the only one that may answer.
	Arm string
	// Progress: the answer is shown while it comes, in core_tool_progress.
	Progress bool
}

// Answer is a model's whole answer.
type Answer struct {
	Parts        []llm.Part `json:"parts"`
	Stop         llm.Stop   `json:"stop_reason"`
	ProviderStop string     `json:"provider_stop"`
	Model        string     `json:"model"`
	Usage        Usage      `json:"usage"`
	Routing      Routing    `json:"routing"`
}

// Usage is what an answer took and cost.
type Usage struct {
	llm.Usage
	Source string       `json:"source"` // provider, estimated
	Cost   *llm.Money   `json:"cost_usd"`
	Call   ledger.Total `json:"call"` // all requests of the call, of all attempts
}

// Routing says who answered, and who did not.
type Routing struct {
	Route   string    `json:"route"`
	Arm     string    `json:"arm,omitempty"`
	Version string    `json:"routes_version"`
	Tried   []Tried   `json:"tried,omitempty"`
	Skipped []Skipped `json:"skipped,omitempty"`
}

// Tried is an arm that was asked in this attempt and did not answer.
type Tried struct {
	Arm     string        `json:"arm"`
	Outcome llm.ErrorKind `json:"outcome"`
	Status  int           `json:"status,omitempty"`
	Message string        `json:"message,omitempty"`
}

// Skipped is an arm that was not asked.
type Skipped struct {
	Arm   string    `json:"arm"`
	Why   string    `json:"why"`
	Until time.Time `json:"until,omitzero"`
}

// mostArms is how many arms an attempt asks for one answer.
const mostArms = 4

// defaultOutput is how many tokens an answer may have unless the caller says.
const defaultOutput = 4096

// Ask returns a model's answer, as the step of that name. Its error is a [handlers.Failure] with a code of this package's file decide.go, a
// [handlers.NotConfigured], or one that ends the attempt.
func (m *Models) Ask(ctx context.Context, call *handlers.Durable, step string, q Question) (Answer, error) {
	attempt := ctx
	return handlers.StepTx(ctx, call, step, func(ctx context.Context, tx handlers.Tx) (Answer, error) {
		r, err := m.round(ctx, call, step, q)
		if err != nil {
			return Answer{}, err
		}
		if q.Progress {
			r.shown = m.Progress.Open(attempt, call.ID, call.Attempt)
		}
		a, err := r.ask(ctx, tx)
		if err != nil {
			r.tell(ctx, err)
		}
		return a, err
	})
}

// Spent returns what all requests of a call came to so far, and lists those for an answer among its effects, as a step. It is for a call that was
// cancelled before Ask had that answer: such an Ask says nothing of requests whose worker was lost.
func (m *Models) Spent(ctx context.Context, call *handlers.Durable, answer string) (ledger.Total, error) {
	return handlers.Step(ctx, call, answer+" was cancelled", func(ctx context.Context) (ledger.Total, error) {
		all, err := ledger.Requests(ctx, m.DB, call.ID)
		for _, req := range all {
			if req.Label == answer {
				m.called(call, &req)
			}
		}
		return ledger.Sum(all), unreached(err)
	})
}

// round is one attempt at an answer.
type round struct {
	*Models
	call  *handlers.Durable
	label string
	q     Question
	route *routes.Route
	// arms are those that can still be asked, in order.
	arms    []routes.Candidate
	routing Routing
	// failed are the arms that were asked in vain.
	failed []*failed
	// later are the arms that may serve another attempt.
	later []comeback
	// unmended are the arms that rest since an earlier request was refused: someone has to mend that, so no call waits for them.
	unmended []ledger.Skipped
	// earlier are the call's requests of earlier attempts.
	earlier []ledger.Request
	// shown is nil where no progress is.
	shown *progress.Stream
}

func (m *Models) round(ctx context.Context, call *handlers.Durable, label string, q Question) (*round, error) {
	route, ok := m.Routes.Route(q.Route)
	if !ok {
		return nil, unknownRoute(m.Routes, q.Route)
	}
	r := &round{Models: m, call: call, label: label, q: q, route: route, routing: Routing{Route: route.Name, Version: m.Routes.Version}}
	if r.q.MaxOutputTokens == 0 {
		r.q.MaxOutputTokens = defaultOutput
		for _, arm := range route.Arms {
			r.q.MaxOutputTokens = min(r.q.MaxOutputTokens, arm.MaxOutput)
		}
	}
	stats, err := m.stats(ctx, route)
	if err != nil {
		return nil, unreached(err)
	}
	need := routes.Need{Tools: len(q.Tools) > 0, InputTokens: routes.Estimate(q.size()), MaxOutput: r.q.MaxOutputTokens, MaxCost: q.MaxCost, CallID: call.ID}
	usable, skipped := routes.Usable(route, need, m.hasKey, stats)
	for _, s := range skipped {
		r.routing.Skipped = append(r.routing.Skipped, Skipped{Arm: s.Arm.Name, Why: s.Why})
	}
	r.arms = usable
	if q.Arm != "" {
		r.arms = slices.DeleteFunc(usable, func(c routes.Candidate) bool { return c.Arm.Name != q.Arm })
		skipped = slices.DeleteFunc(skipped, func(s routes.Skipped) bool { return s.Arm.Name != q.Arm })
	}
	if len(r.arms) == 0 {
		return nil, r.noArm(skipped)
	}
	if call.Attempt > 1 {
		if r.earlier, err = ledger.Requests(ctx, m.DB, call.ID); err != nil {
			return nil, unreached(err)
		}
		r.putCutLast()
	}
	return r, nil
}

// unreached marks the error of a statement that Postgres has not refused: its connection broke, or there was none, and another attempt may
// have one. What Postgres says, the worker judges.
func unreached(err error) error {
	if refused := (*pgconn.PgError)(nil); err == nil || errors.As(err, &refused) || errors.Is(err, ledger.ErrNotHeld) {
		return err
	}
	return handlers.Transient(err)
}

// putCutLast moves arms whose answer to this question broke off in an earlier attempt behind the others.
func (r *round) putCutLast() {
	var first, last []routes.Candidate
	for _, c := range r.arms {
		cut := false
		for _, e := range r.earlier {
			cut = cut || e.Arm == c.Arm.Name && e.Label == r.label && e.Status == ledger.Cut
		}
		if cut {
			last = append(last, c)
		} else {
			first = append(first, c)
		}
	}
	r.arms = slices.Concat(first, last)
}

// stats returns what was seen of the arms of a route whose order needs that.
func (m *Models) stats(ctx context.Context, route *routes.Route) (func(string) routes.Stats, error) {
	seen := map[string]routes.Stats{}
	if route.Order == routes.Cheapest || route.Order == routes.Fastest {
		names := make([]string, len(route.Arms))
		for i, arm := range route.Arms {
			names[i] = arm.Name
		}
		states, err := ledger.Arms(ctx, m.DB, names...)
		if err != nil {
			return nil, err
		}
		for _, s := range states {
			seen[s.Arm] = routes.Stats{Samples: int(s.Samples), InputRatio: s.InputRatio, MeanOutput: s.MeanOutput,
				FirstContentMS: float64(s.FirstContent.Milliseconds()), TokensPerSecond: s.TokensPerSec}
		}
	}
	return func(arm string) routes.Stats { return seen[arm] }, nil
}

// warn logs once that an arm needs its operator: its key does not work, or its model does not exist.
func (m *Models) warn(c routes.Candidate, e *llm.Error) {
	switch e.Kind {
	case llm.Unauthorized, llm.NotFound:
	default:
		return
	}
	if _, known := m.refused.Swap(c.Arm.Name, true); !known {
		m.Log.Warn("a provider refuses an arm, which rests: look at its key, and at its model's name", zap.String("arm", c.Arm.Name),
			zap.String("provider", c.Provider.Name), zap.String("model", c.Model), zap.String("key_env", c.Provider.KeyEnv), zap.Int("http_status", e.Status))
	}
}

// Names returns the models of a route's arms, in the order of the file and joined by commas. Its error says that there is no such route, or that
// none of its arms has a key, as that of [Models.Ask] would.
func (m *Models) Names(route string) (string, error) {
	r, ok := m.Routes.Route(route)
	if !ok {
		return "", unknownRoute(m.Routes, route)
	}
	var names, missing []string
	for _, arm := range r.Arms {
		names = append(names, arm.Model)
		if key := arm.Provider.KeyEnv; m.Providers[arm.Provider.Name] == nil && !slices.Contains(missing, key) {
			missing = append(missing, key)
		}
	}
	if !slices.ContainsFunc(r.Arms, func(arm *routes.Arm) bool { return m.Providers[arm.Provider.Name] != nil }) {
		return "", noKey(route, missing)
	}
	return strings.Join(names, ","), nil
}

// hasKey reports whether the providers with the key of a variable can be asked.
func (m *Models) hasKey(variable string) bool {
	for _, p := range m.Routes.Providers() {
		if p.KeyEnv == variable {
			return m.Providers[p.Name] != nil
		}
	}
	return false
}

// size is how many bytes the model has to read.
func (q *Question) size() int {
	n := len(q.System) + len(q.Schema)
	for _, m := range q.Messages {
		for _, p := range m.Content {
			n += len(p.Text) + len(p.Arguments) + len(p.Content) + len(p.Name) + len(p.ID) + len(p.ToolCallID)
			if p.Redacted {
				n += len(p.Signature) // in which the thought is
			}
		}
	}
	for _, t := range q.Tools {
		n += len(t.Name) + len(t.Description) + len(t.Parameters)
	}
	return n
}

// signatures is the number of bytes of the signatures that [Question.size] leaves out: a provider may count the thoughts that they represent.
func (q *Question) signatures() (n int) {
	for _, m := range q.Messages {
		for _, p := range m.Content {
			if !p.Redacted {
				n += len(p.Signature)
			}
		}
	}
	return n
}

// request is what an arm is sent.
func (q *Question) request(arm *routes.Arm) *llm.Request {
	r := &llm.Request{Model: arm.Model, System: q.System, Messages: q.Messages, Tools: q.Tools, ToolChoice: q.ToolChoice, MaxOutputTokens: q.MaxOutputTokens,
		Temperature: q.Temperature, TopP: q.TopP, Stop: q.Stop, Effort: q.Effort, Thinks: arm.Thinking, Arm: arm.Name}
	switch {
	case q.Schema == nil:
	case arm.Structured:
		r.Schema, r.SchemaName = q.Schema, q.SchemaName
	default:
		if r.System != "" {
			r.System += "\n\n"
		}
		r.System += "Answer with one JSON document and nothing else: no words before or behind it. It must fit this JSON Schema:\n" + string(q.Schema)
	}
	return r
}

// endpoint is what a receipt calls the place that was asked.
func endpoint(p *routes.Provider) string { return http.MethodPost + " " + p.BaseURL }

// Package router asks the models of a routes file for a call: it chooses a target, reserves the maximum cost, reads the
// answer, and settles the cost. An answer is a step of the call, so that it is not bought again once it is in the
// journal.
package router

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
	"github.com/gemworker/gem/internal/batch"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/progress"
	"github.com/gemworker/gem/internal/provider/routes"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// Models are the models of a routes file. They are safe for concurrent use.
type Models struct {
	Routes *routes.Routes
	// Providers are the usable ones by name: their keys are set, or they need none.
	Providers map[string]provider.Provider
	// Keys are the keys of all providers. They are cut out of every provider's texts.
	Keys      []string
	DB        handlers.DB
	Telemetry *Telemetry
	// Progress shows answers while they arrive, if the question requests it.
	Progress *progress.Writer
	Log      *zap.Logger

	refused sync.Map // the names of targets whose last failure an operator must fix

	queueing sync.Once
	begins   *batch.Queue[string, *ledger.Begun]
}

const beginTimeout = 30 * time.Second // of a statement that begins requests

// begin begins a request, in one statement with others that wait for theirs.
func (m *Models) begin(ctx context.Context, b ledger.Begin) (ledger.Begun, error) {
	item, err := b.Item()
	if err != nil {
		return ledger.Begun{}, err
	}
	if item != "" {
		m.queueing.Do(func() {
			m.begins = batch.NewQueue(func(item string) int { return len(item) }, func(items []string) ([]*ledger.Begun, error) {
				sending, cancel := context.WithTimeout(context.Background(), beginTimeout)
				defer cancel()
				m.Telemetry.begun.Record(sending, int64(len(items)))
				return ledger.SendAll(sending, m.DB, items)
			})
		})
		begun, _, err := m.begins.Do(ctx, item)
		switch {
		case err == nil && begun != nil: // even if ctx has ended, so that it is settled
			return *begun, nil
		case ctx.Err() != nil:
			return ledger.Begun{}, context.Cause(ctx)
		}
		if refused := (*pgconn.PgError)(nil); err != nil && !errors.As(err, &refused) { // the request may have begun
			return ledger.Begun{}, err
		}
	}
	return b.Send(ctx, m.DB)
}

// Source returns the models that a program can ask, or a [handlers.NotConfigured] with the reason if there are none.
type Source func() (*Models, error)

// From returns the models of the domain llm.
func From(llm handlers.Domain) Source {
	if config, ok := llm.Config.(interface{ Models() (*Models, error) }); ok {
		return config.Models
	}
	return func() (*Models, error) {
		return nil, &handlers.NotConfigured{Reason: "The program was built without the domain llm, whose models it asks.",
			NextSteps: []string{"Pass llm.Domain() to the domain, and list it in the program too."}}
	}
}

// Question is a question to a model.
type Question struct {
	Route      string
	System     string
	Messages   []provider.Message
	Tools      []provider.Tool
	ToolChoice provider.ToolChoice
	// MaxOutputTokens is 0 for the default: 4,096, or the maximum of the smallest target of the route.
	MaxOutputTokens   int
	Temperature, TopP *float64
	Stop              []string
	Effort            provider.Effort
	// Schema, if set, is the schema of the answer's text. It is only requested: this package does not check the answer.
	Schema     json.RawMessage
	SchemaName string
	// Cache means that the beginning of the conversation will be sent again: see [provider.Request].
	Cache bool
	// MaxCost, if set, is the maximum cost of all requests of the call.
	MaxCost *provider.Money
	// Target, if set, is the only one that may answer.
	Target string
	// Progress shows the answer while it arrives, in core_tool_progress.
	Progress bool
}

// Answer is a model's complete answer.
type Answer struct {
	Parts        []provider.Part `json:"parts"`
	Stop         provider.Stop   `json:"stop_reason"`
	ProviderStop string          `json:"provider_stop"`
	Model        string          `json:"model"`
	Usage        Usage           `json:"usage"`
	Routing      Routing         `json:"routing"`
}

// Usage is the tokens and the cost of an answer.
type Usage struct {
	provider.Usage
	Source string          `json:"source"` // provider, estimated
	Cost   *provider.Money `json:"cost_usd"`
	Call   ledger.Total    `json:"call"` // all requests of the call, of all attempts
}

// Routing has the target that answered, and the targets that did not.
type Routing struct {
	Route   string          `json:"route"`
	Target  string          `json:"target,omitempty"`
	Version string          `json:"routes_version"`
	Tried   []FailedTarget  `json:"tried,omitempty"`
	Skipped []SkippedTarget `json:"skipped,omitempty"`
}

// FailedTarget is a target that was asked in this attempt and did not answer.
type FailedTarget struct {
	Target  string             `json:"target"`
	Outcome provider.ErrorKind `json:"outcome"`
	Status  int                `json:"status,omitempty"`
	Message string             `json:"message,omitempty"`
}

// SkippedTarget is a target that was not asked.
type SkippedTarget struct {
	Target string    `json:"target"`
	Why    string    `json:"why"`
	Until  time.Time `json:"until,omitzero"`
}

// mostTargets is the maximum number of targets that an attempt asks for one answer.
const mostTargets = 4

// defaultOutput is the maximum number of tokens in an answer unless the caller sets another.
const defaultOutput = 4096

// Ask returns a model's answer, as the step of that name. Its error is a [handlers.Failure] with a code of this
// package's file decide.go, a [handlers.NotConfigured], or one that ends the attempt.
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

// Spent returns the usage of a call so far, and adds the requests for an answer to its effects, as a step. Use it for a
// call that was cancelled before Ask had the answer: such an Ask does not report requests whose worker was lost.
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
	// targets are the targets that can still be asked, in order.
	targets []routes.Candidate
	routing Routing
	// failed are the targets that were asked without success.
	failed []*failed
	// later are the targets that may serve another attempt.
	later []comeback
	// unmended are the targets that are cooling down because an earlier request was refused: someone has to fix it, so
	// no call waits for them.
	unmended []ledger.SkippedTarget
	// earlier are the call's requests of earlier attempts.
	earlier []ledger.Request
	// shown is nil without progress.
	shown *progress.Stream
}

func (m *Models) round(ctx context.Context, call *handlers.Durable, label string, q Question) (*round, error) {
	route, ok := m.Routes.Route(q.Route)
	if !ok {
		return nil, unknownRoute(m.Routes, q.Route)
	}
	r := &round{Models: m, call: call, label: label, q: q, route: route,
		routing: Routing{Route: route.Name, Version: m.Routes.Version}}
	if r.q.MaxOutputTokens == 0 {
		r.q.MaxOutputTokens = defaultOutput
		for _, target := range route.Targets {
			r.q.MaxOutputTokens = min(r.q.MaxOutputTokens, target.MaxOutput)
		}
	}
	stats, err := m.stats(ctx, route)
	if err != nil {
		return nil, unreached(err)
	}
	need := routes.Need{Tools: len(q.Tools) > 0, InputTokens: routes.Estimate(q.size()), MaxOutput: r.q.MaxOutputTokens,
		MaxCost: q.MaxCost, CallID: call.ID}
	usable, skipped := routes.Usable(route, need, m.hasKey, stats)
	for _, s := range skipped {
		r.routing.Skipped = append(r.routing.Skipped, SkippedTarget{Target: s.Target.Name, Why: s.Why})
	}
	r.targets = usable
	if q.Target != "" {
		r.targets = slices.DeleteFunc(usable, func(c routes.Candidate) bool { return c.Target.Name != q.Target })
		skipped = slices.DeleteFunc(skipped, func(s routes.SkippedTarget) bool { return s.Target.Name != q.Target })
	}
	if len(r.targets) == 0 {
		return nil, r.noTarget(skipped)
	}
	if call.Attempt > 1 {
		if r.earlier, err = ledger.Requests(ctx, m.DB, call.ID); err != nil {
			return nil, unreached(err)
		}
		r.putCutLast()
	}
	return r, nil
}

// unreached marks the error of a statement that Postgres did not reject: its connection broke, or there was none, and
// another attempt may have one. The worker judges errors of Postgres.
func unreached(err error) error {
	if refused := (*pgconn.PgError)(nil); err == nil || errors.As(err, &refused) || errors.Is(err, ledger.ErrNotHeld) {
		return err
	}
	return handlers.Transient(err)
}

// putCutLast moves targets whose answer to this question broke off in an earlier attempt behind the others.
func (r *round) putCutLast() {
	var first, last []routes.Candidate
	for _, c := range r.targets {
		cut := false
		for _, e := range r.earlier {
			cut = cut || e.Target == c.Target.Name && e.Label == r.label && e.Status == ledger.Cut
		}
		if cut {
			last = append(last, c)
		} else {
			first = append(first, c)
		}
	}
	r.targets = slices.Concat(first, last)
}

// stats returns the known figures of a route's targets, if its order needs them.
func (m *Models) stats(ctx context.Context, route *routes.Route) (func(string) routes.Stats, error) {
	seen := map[string]routes.Stats{}
	if route.Order == routes.Cheapest || route.Order == routes.Fastest {
		names := make([]string, len(route.Targets))
		for i, target := range route.Targets {
			names[i] = target.Name
		}
		states, err := ledger.Targets(ctx, m.DB, names...)
		if err != nil {
			return nil, err
		}
		for _, s := range states {
			seen[s.Target] = routes.Stats{Samples: int(s.Samples), InputRatio: s.InputRatio, MeanOutput: s.MeanOutput,
				FirstContentMS: float64(s.FirstContent.Milliseconds()), TokensPerSecond: s.TokensPerSec}
		}
	}
	return func(target string) routes.Stats { return seen[target] }, nil
}

// warn logs once that an operator must fix a target: its key does not work, or its model does not exist.
func (m *Models) warn(c routes.Candidate, e *provider.Error) {
	if !provider.Judge(e.Kind).Operator {
		return
	}
	if _, known := m.refused.Swap(c.Target.Name, true); !known {
		m.Log.Warn("a provider refused a target, which is now cooling down: look at its key, and at its model's name",
			zap.String("target", c.Target.Name),
			zap.String("provider", c.Provider.Name), zap.String("model", c.Model), zap.String("key_env", c.Provider.KeyEnv),
			zap.Int("http_status", e.Status))
	}
}

// Names returns the models of a route's targets, in the order of the file and joined by commas. It returns an error if
// the route does not exist, or none of its targets has a key, as [Models.Ask] does.
func (m *Models) Names(route string) (string, error) {
	r, ok := m.Routes.Route(route)
	if !ok {
		return "", unknownRoute(m.Routes, route)
	}
	var names, missing []string
	for _, target := range r.Targets {
		names = append(names, target.Model)
		if key := target.Provider.KeyEnv; m.Providers[target.Provider.Name] == nil && !slices.Contains(missing, key) {
			missing = append(missing, key)
		}
	}
	if !slices.ContainsFunc(r.Targets, func(target *routes.Target) bool {
		return m.Providers[target.Provider.Name] != nil
	}) {
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

// size returns the number of bytes that the model must read.
func (q *Question) size() int {
	n := len(q.System) + len(q.Schema)
	for _, m := range q.Messages {
		for _, p := range m.Content {
			n += len(p.Text) + len(p.Arguments) + len(p.Content) + len(p.Name) + len(p.ID) + len(p.ToolCallID)
			if p.Redacted {
				n += len(p.Signature) // the thought is in it
			}
		}
	}
	for _, t := range q.Tools {
		n += len(t.Name) + len(t.Description) + len(t.Parameters)
	}
	return n
}

// signatures is the number of bytes of the signatures that [Question.size] leaves out: a provider may count the
// thoughts that they represent.
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

// request returns the request for a target.
func (q *Question) request(target *routes.Target) *provider.Request {
	r := &provider.Request{Model: target.Model, System: q.System, Messages: q.Messages, Tools: q.Tools,
		ToolChoice: q.ToolChoice, MaxOutputTokens: q.MaxOutputTokens,
		Temperature: q.Temperature, TopP: q.TopP, Stop: q.Stop, Effort: q.Effort, Thinks: target.Thinking,
		Cache: q.Cache && target.Cache, Target: target.Name}
	switch {
	case q.Schema == nil:
	case target.Structured:
		r.Schema, r.SchemaName = q.Schema, q.SchemaName
	default:
		if r.System != "" {
			r.System += "\n\n"
		}
		r.System += "Answer with one JSON document and nothing else: no words before or behind it. It must fit this JSON " +
			"Schema:\n" + string(q.Schema)
	}
	return r
}

// endpoint returns the endpoint for a receipt.
func endpoint(p *routes.Provider) string { return http.MethodPost + " " + p.BaseURL }

package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/routes"
	"go.uber.org/zap"
)

// ask asks the targets in turn until one answers, and settles the request in the transaction of the answer's step.
func (r *round) ask(ctx context.Context, tx handlers.Tx) (Answer, error) {
	var before *request // whose target did not answer
	for len(r.routing.Tried) < mostTargets && len(r.targets) > 0 {
		begun, err := r.begin(ctx)
		if err != nil {
			return Answer{}, err
		}
		if begun.ID == 0 {
			r.shown.Flush(ctx)
			return Answer{}, r.noneServes(begun)
		}
		before.failedOver()
		target := r.take(begun.Target)
		r.shown.Asked(r.label, target.Target.Name)
		asking, span := r.span(ctx, begun, target)
		got := r.send(asking, target)
		end := r.endOf(begun, target, got)
		span.end(&end, got.answer)
		if got.err == nil {
			r.refused.Delete(target.Target.Name)
			r.shown.Flush(ctx) // before the transaction of the step begins
			return r.settle(ctx, tx, begun, end, target, got)
		}
		if err := r.settleFailed(ctx, end); err != nil {
			return Answer{}, err
		}
		wrong, ok := errors.AsType[*provider.Error](got.err)
		switch {
		case ok:
		case errors.Is(got.err, errTimeout):
			return Answer{}, r.fail(Timeout, "The answer of "+target.Target.Name+" took as long as the whole call may take.",
				nil)
		default:
			return Answer{}, got.err // the call was cancelled, or its deadline has passed
		}
		r.routing.Tried = append(r.routing.Tried, FailedTarget{Target: target.Target.Name, Outcome: wrong.Kind,
			Status: wrong.Status, Message: said(wrong, target.Provider)})
		f := &failed{wrong, got.content}
		r.learn(f, target)
		r.warn(target, wrong)
		r.shown.Failed(r.label, target.Target.Name, wrong.Kind)
		if !f.mayFailOver() {
			break
		}
		before = span
	}
	r.shown.Flush(ctx)
	return Answer{}, r.failure()
}

// begin reserves money for the first target that may serve.
func (r *round) begin(ctx context.Context) (ledger.Begun, error) {
	b := ledger.Begin{CallID: r.call.ID, Attempt: r.call.Attempt, Label: r.label, Route: r.route.Name,
		RoutesVersion: r.Routes.Version, MaxCost: lower(r.q.MaxCost, r.route.MaxCost)}
	for _, c := range r.targets {
		b.Targets = append(b.Targets, ledger.Target{Target: c.Target.Name, Provider: c.Provider.Name, Model: c.Model,
			MaxConcurrent: c.Target.MaxConcurrent, Reserve: c.Reserve,
			Priced: c.ReserveKnown, EstimatedInput: int64(routes.Estimate(r.q.size())), Budgets: r.budgets(c.Target)})
	}
	begun, err := r.Models.begin(ctx, b)
	if errors.Is(err, ledger.ErrTooMany) {
		return begun, r.fail(ProviderUnavailable, fmt.Sprintf(
			"The call has made %d requests to models, which is the most that one may make.", ledger.MaxRequests), nil)
	}
	for _, s := range begun.Skipped {
		if s.Why == ledger.Cooldown {
			r.Telemetry.coolsDown(ctx, s.Target)
		}
		why := string(s.Why)
		if s.Reason != "" {
			why += ": " + s.Reason
		}
		r.routing.Skipped = append(r.routing.Skipped, SkippedTarget{Target: s.Target, Why: why, Until: s.Until})
		if target, ok := r.Routes.Target(s.Target); ok {
			r.skip(target, &s)
		}
	}
	return begun, unreached(err)
}

// skip records when a target that the ledger skipped may be asked again.
func (r *round) skip(target *routes.Target, s *ledger.SkippedTarget) {
	j := provider.Judge(provider.ErrorKind(s.Reason))
	switch {
	case s.Why == ledger.Busy:
		r.comesBack(target, whileBusy, ProviderUnavailable)
	case s.Why == ledger.Cooldown && j.Operator:
		r.unmended = append(r.unmended, *s)
	case s.Why == ledger.Cooldown && j.Code == RateLimited:
		r.comesBack(target, s.Wait(), RateLimited)
	case s.Why == ledger.Cooldown: // another request caused its last failure
		r.comesBack(target, s.Wait(), ProviderUnavailable)
	}
}

// budgets returns the budgets that count the requests of this call to a target.
func (r *round) budgets(target *routes.Target) (all []ledger.Budget) {
	for _, b := range r.Routes.Budgets() {
		subject := ""
		switch b.Scope {
		case routes.OfUser:
			subject = r.call.CreatedBy
		case routes.OfSession:
			subject = r.call.SessionID
		case routes.OfRoute:
			subject = r.route.Name
		case routes.OfTarget:
			subject = target.Name
		case routes.OfAll:
		}
		all = append(all, ledger.Budget{Name: b.Name, Subject: subject, Period: ledger.Period(b.Period), Limit: b.USD})
	}
	return all
}

// take removes a target, and the targets skipped before it, from the list.
func (r *round) take(name string) routes.Candidate {
	for i, c := range r.targets {
		if c.Target.Name == name {
			r.targets = r.targets[i+1:]
			return c
		}
	}
	panic("the ledger chose a target that it was not given: " + name)
}

// came is the result of a request.
type came struct {
	answer       *provider.Answer
	err          error
	content      bool
	firstContent time.Duration
	took         time.Duration
}

var (
	errLate = &provider.Error{Kind: provider.Late, Message: "no content came in the time that the target has for its " +
		"first"}
	errTimeout = errors.New("the time of the call is nearly over")
	errStalled = &provider.Error{Kind: provider.Stalled, Message: "no further content came in the time that the target " +
		"has"}
)

// settleTime is reserved from a step's time, so that its request is settled by the end. From a short step, a quarter is
// reserved.
const settleTime = 3 * time.Second

// send asks a target, and reads its answer. It holds no connection to Postgres.
func (r *round) send(ctx context.Context, c routes.Candidate) (got came) {
	began := time.Now()
	limited, stop := ctx, context.CancelFunc(func() {})
	if deadline, ok := ctx.Deadline(); ok {
		limited, stop = context.WithDeadlineCause(ctx, deadline.Add(-min(settleTime, time.Until(deadline)/4)), errTimeout)
	}
	defer stop()
	asked, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	var content atomic.Bool
	clock := time.AfterFunc(c.Target.FirstContent, func() {
		if content.Load() {
			cancel(errStalled)
		} else {
			cancel(errLate)
		}
	})
	defer clock.Stop()
	got.answer = &provider.Answer{}
	stream, err := r.Providers[c.Provider.Name].Stream(asked, r.q.request(c.Target))
	if err == nil {
		got.answer, err = provider.Collect(stream, func(e *provider.Event) {
			r.shown.Seen(e)
			if !e.IsContent() {
				return
			}
			if !content.Swap(true) {
				got.firstContent = time.Since(began)
			}
			clock.Reset(c.Target.Idle)
		})
	}
	got.answer.CutKeys(r.Keys...)
	if err == nil && value.Size(got.answer.Parts) > mostEncoded {
		err = &provider.Error{Kind: provider.AnswerTooBig, Status: 200, RequestID: got.answer.RequestID,
			Message: fmt.Sprintf("the answer takes more than %d bytes as JSON", mostEncoded)}
	}
	got.took, got.content, got.err = time.Since(began), content.Load(), err
	if err != nil && asked.Err() != nil {
		got.err = context.Cause(asked)
	}
	for i, p := range got.answer.Parts {
		if p.Type == provider.Thinking || p.Signature != "" {
			got.answer.Parts[i].Target = c.Target.Name
		}
	}
	return got
}

// mostEncoded is the maximum size of an answer's parts, in bytes of JSON: with the other fields they are the result of
// a step.
const mostEncoded = 1<<20 - 64<<10

// endOf returns the end of a request.
func (r *round) endOf(begun ledger.Begun, c routes.Candidate, got came) ledger.End {
	end := ledger.End{ID: begun.ID, Began: begun.At, Status: ledger.Done, RequestID: got.answer.RequestID,
		Model:        got.answer.Model,
		Usage:        got.answer.Usage,
		FirstContent: got.firstContent, Took: got.took, HTTPStatus: 200}
	wrong, ok := errors.AsType[*provider.Error](got.err)
	switch {
	case got.err == nil:
	case !ok:
		end.Status = ledger.Cancelled
	case got.content:
		end.Status = ledger.Cut
	default:
		end.Status = ledger.Failed
	}
	if ok {
		end.Kind, end.HTTPStatus = wrong.Kind, wrong.Status
		if end.RequestID == "" {
			end.RequestID = wrong.RequestID
		}
		end.Cooldown, end.CooldownWhy = cooldown(wrong)
	}
	r.estimate(&end, c, got)
	r.bound(&end, c, got)
	if cost, known := provider.Cost(c.Target.Prices, end.Usage); known {
		end.Cost = &cost
	}
	if cost, err := provider.ParseMoney(got.answer.Usage.CostUSD); err == nil {
		end.ProviderCost = &cost
	}
	return end
}

// estimate fills in the usage that the provider did not report: input, output or both. If an answer broke off, the last
// report may be from its beginning. A rejected request costs nothing. An accepted request without content costs its
// input.
func (r *round) estimate(end *ledger.End, c routes.Candidate, got came) {
	u, output := &end.Usage, int64(routes.Estimate(size(got.answer)))
	if !u.Known {
		*u, end.Estimated = provider.Usage{NoInput: true, NoOutput: true}, true
	}
	if u.NoInput && (end.Status != ledger.Failed || provider.Judge(end.Kind).Taken) {
		u.Input, end.Estimated = int64(c.InputTokens), true
	}
	if (u.NoOutput || got.answer.Stop == "") && u.Output < output {
		u.Output, end.Estimated = output, true
	}
}

// added is the number of input tokens that a provider may count in addition to what was sent, such as for its templates
// and instructions for tools; addedForEach is added for each message and tool.
const (
	added        = 4096
	addedForEach = 64
)

// bound limits a provider's usage to the possible values for the request: the input has at most one token for each byte
// sent, and the output at most the allowed number of tokens or one for each byte received. The ledger keeps the
// provider's figures.
func (r *round) bound(end *ledger.End, c routes.Candidate, got came) {
	if !end.Usage.Known {
		return
	}
	sent := r.q.size() + r.q.signatures() + added + addedForEach*(len(r.q.Messages)+len(r.q.Tools))
	reported := end.Usage
	end.Usage = reported.Within(int64(sent), int64(max(r.q.MaxOutputTokens, size(got.answer))))
	if end.Usage == reported {
		return
	}
	end.Reported = &reported
	r.Log.Warn("a provider reported more tokens than its request can have: the cost was bounded",
		zap.String("call_id", r.call.ID),
		zap.String("target", c.Target.Name), zap.Int64("reported_input", reported.Input),
		zap.Int64("reported_output", reported.Output),
		zap.Int64("input", end.Usage.Input), zap.Int64("output", end.Usage.Output))
}

func size(a *provider.Answer) (n int) {
	for _, p := range a.Parts {
		n += len(p.Text) + len(p.Arguments) + len(p.RawArguments) + len(p.Name)
	}
	return n
}

// settle ends the request of a complete answer in the transaction of its step.
func (r *round) settle(ctx context.Context, tx handlers.Tx, begun ledger.Begun, end ledger.End, c routes.Candidate,
	got came) (Answer, error) {
	if _, err := end.Settle(ctx, tx); err != nil {
		return Answer{}, err
	}
	var total ledger.Total
	if begun.N == 1 { // no query is needed
		first := ledger.Request{N: 1, Target: c.Target.Name, Provider: c.Provider.Name, Model: c.Model, Answered: end.Model,
			Status: end.Status, HTTPStatus: end.HTTPStatus,
			RequestID: end.RequestID, Usage: end.Usage, Reported: end.Reported, Cost: end.Cost, FirstContent: end.FirstContent,
			Took: end.Took}
		r.called(r.call, &first)
		total = ledger.Sum([]ledger.Request{first})
	} else {
		var err error
		if total, err = r.record(ctx, tx); err != nil {
			return Answer{}, err
		}
	}
	r.routing.Target = c.Target.Name
	a := Answer{Parts: got.answer.Parts, Stop: got.answer.Stop, ProviderStop: got.answer.ProviderStop,
		Model: got.answer.Model, Routing: r.routing,
		Usage: Usage{Usage: end.Usage, Source: "provider", Cost: end.Cost, Call: total}}
	if end.Estimated {
		a.Usage.Source = "estimated"
	}
	if a.Parts == nil {
		a.Parts = []provider.Part{}
	}
	return a, nil
}

// settlePatience limits the time to settle a failed request; the handler has a second after the end of its context.
const settlePatience = 800 * time.Millisecond

// settleFailed ends a request without an answer, in a separate statement. If it cannot be settled now, it is lost
// later.
func (r *round) settleFailed(ctx context.Context, end ledger.End) error {
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	_, err := end.Settle(settling, r.DB)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return unreached(err)
}

// tell lists the targets that were asked without success, and adds the total of the call's requests to the details of a
// failure. If the total cannot be read now, it is only in the ledger.
func (r *round) tell(ctx context.Context, err error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	total, unread := r.record(asking, r.DB)
	failure, ok := errors.AsType[*handlers.Failure](err)
	if !ok || unread != nil {
		return
	}
	if details, ok := failure.Details.(map[string]any); ok {
		details["usage"] = map[string]any{"call": total}
	}
}

// TotalOf returns the total of a call's requests from the details of a failure of [Models.Ask], or nil if they have
// none. The details may come from the journal.
func TotalOf(f *handlers.Failure) *ledger.Total {
	var told struct {
		Usage struct {
			Call *ledger.Total `json:"call"`
		} `json:"usage"`
	}
	if encoded, err := json.Marshal(f.Details); err == nil {
		_ = json.Unmarshal(encoded, &told)
	}
	return told.Usage.Call
}

// record lists the requests for this answer, of all attempts, among the call's effects, and returns the total of the
// call's requests.
func (r *round) record(ctx context.Context, db handlers.DB) (ledger.Total, error) {
	all, err := ledger.Requests(ctx, db, r.call.ID)
	if err != nil {
		return ledger.Total{}, err
	}
	for _, req := range all {
		if req.Label == r.label && req.Status != ledger.Sent {
			r.called(r.call, &req)
		}
	}
	return ledger.Sum(all), nil
}

func lower(a, b *provider.Money) *provider.Money {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

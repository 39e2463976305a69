package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/routes"
	"go.uber.org/zap"
)

// ask asks one arm after the other until one answers, and settles with the answer in the transaction of its step.
func (r *round) ask(ctx context.Context, tx handlers.Tx) (Answer, error) {
	var before *request // whose arm did not answer
	for len(r.routing.Tried) < mostArms && len(r.arms) > 0 {
		begun, err := r.begin(ctx)
		if err != nil {
			return Answer{}, err
		}
		if begun.ID == 0 {
			r.shown.Flush(ctx)
			return Answer{}, r.noneServes(begun)
		}
		before.failedOver()
		arm := r.take(begun.Arm)
		r.shown.Asked(r.label, arm.Arm.Name)
		asking, span := r.span(ctx, begun, arm)
		got := r.send(asking, arm)
		end := r.endOf(begun, arm, got)
		span.end(&end, got.answer)
		if got.err == nil {
			r.refused.Delete(arm.Arm.Name)
			r.shown.Flush(ctx) // before the transaction of the step begins
			return r.settle(ctx, tx, begun, end, arm, got)
		}
		if err := r.settleFailed(ctx, end); err != nil {
			return Answer{}, err
		}
		wrong, ok := errors.AsType[*llm.Error](got.err)
		switch {
		case ok:
		case errors.Is(got.err, errTimeout):
			return Answer{}, r.fail(Timeout, "The answer of "+arm.Arm.Name+" took as long as the whole call may take.", nil)
		default:
			return Answer{}, got.err // the call was cancelled, or its time is over
		}
		r.routing.Tried = append(r.routing.Tried, Tried{Arm: arm.Arm.Name, Outcome: wrong.Kind, Status: wrong.Status, Message: said(wrong, arm.Provider)})
		f := &failed{wrong, got.content}
		r.learn(f, arm)
		r.warn(arm, wrong)
		r.shown.Failed(r.label, arm.Arm.Name, wrong.Kind)
		if !f.mayFailOver() {
			break
		}
		before = span
	}
	r.shown.Flush(ctx)
	return Answer{}, r.failure()
}

// begin reserves money for the first arm that may serve.
func (r *round) begin(ctx context.Context) (ledger.Begun, error) {
	b := ledger.Begin{CallID: r.call.ID, Attempt: r.call.Attempt, Label: r.label, Route: r.route.Name, RoutesVersion: r.Routes.Version, MaxCost: lower(r.q.MaxCost, r.route.MaxCost)}
	for _, c := range r.arms {
		b.Arms = append(b.Arms, ledger.Arm{Arm: c.Arm.Name, Provider: c.Provider.Name, Model: c.Model, MaxConcurrent: c.Arm.MaxConcurrent, Reserve: c.Reserve,
			Priced: c.ReserveKnown, EstimatedInput: int64(routes.Estimate(r.q.size())), Budgets: r.budgets(c.Arm)})
	}
	begun, err := b.Send(ctx, r.DB)
	if errors.Is(err, ledger.ErrTooMany) {
		return begun, r.fail(ProviderUnavailable, fmt.Sprintf("The call has made %d requests to models, which is the most that one may make.", ledger.MaxRequests), nil)
	}
	for _, s := range begun.Skipped {
		if s.Why == ledger.Rests {
			r.Telemetry.rests(ctx, s.Arm)
		}
		why := string(s.Why)
		if s.Reason != "" {
			why += ": " + s.Reason
		}
		r.routing.Skipped = append(r.routing.Skipped, Skipped{Arm: s.Arm, Why: why, Until: s.Until})
		if arm, ok := r.Routes.Arm(s.Arm); ok {
			r.skip(arm, &s)
		}
	}
	return begun, unreached(err)
}

// skip keeps when an arm comes back that the ledger skipped.
func (r *round) skip(arm *routes.Arm, s *ledger.Skipped) {
	switch {
	case s.Why == ledger.Busy:
		r.comesBack(arm, whileBusy, ProviderUnavailable)
	case s.Why == ledger.Rests && s.Reason == string(llm.RateLimited):
		r.comesBack(arm, s.Wait(), RateLimited)
	case s.Why == ledger.Rests && (s.Reason == string(llm.Unauthorized) || s.Reason == string(llm.NotFound)):
		r.unmended = append(r.unmended, *s)
	case s.Why == ledger.Rests:
		r.comesBack(arm, s.Wait(), ProviderUnavailable)
	}
}

// budgets are those that count the requests of this call to an arm.
func (r *round) budgets(arm *routes.Arm) (all []ledger.Budget) {
	for _, b := range r.Routes.Budgets() {
		subject := ""
		switch b.Scope {
		case routes.OfUser:
			subject = r.call.CreatedBy
		case routes.OfSession:
			subject = r.call.SessionID
		case routes.OfRoute:
			subject = r.route.Name
		case routes.OfArm:
			subject = arm.Name
		case routes.OfAll:
		}
		all = append(all, ledger.Budget{Name: b.Name, Subject: subject, Period: ledger.Period(b.Period), Limit: b.USD})
	}
	return all
}

// take takes an arm, and those that were skipped before it, from the list.
func (r *round) take(name string) routes.Candidate {
	for i, c := range r.arms {
		if c.Arm.Name == name {
			r.arms = r.arms[i+1:]
			return c
		}
	}
	panic("the ledger chose an arm that it was not given: " + name)
}

// came is what a request brought.
type came struct {
	answer       *llm.Answer
	err          error
	content      bool
	firstContent time.Duration
	took         time.Duration
}

var (
	errLate    = &llm.Error{Kind: llm.Late, Message: "no content came in the time that the arm has for its first"}
	errTimeout = errors.New("the time of the call is nearly over")
	errStalled = &llm.Error{Kind: llm.Stalled, Message: "no further content came in the time that the arm has"}
)

// settleTime is left of a step's time, so that its request is settled by the end; of a short one a quarter is.
const settleTime = 3 * time.Second

// send asks an arm, and reads its answer. It holds no connection to Postgres.
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
	clock := time.AfterFunc(c.Arm.FirstContent, func() {
		if content.Load() {
			cancel(errStalled)
		} else {
			cancel(errLate)
		}
	})
	defer clock.Stop()
	got.answer = &llm.Answer{}
	stream, err := r.Providers[c.Provider.Name].Stream(asked, r.q.request(c.Arm))
	if err == nil {
		got.answer, err = llm.Collect(stream, func(e *llm.Event) {
			r.shown.Seen(e)
			if !e.IsContent() {
				return
			}
			if !content.Swap(true) {
				got.firstContent = time.Since(began)
			}
			clock.Reset(c.Arm.Idle)
		})
	}
	got.answer.CutKeys(r.Keys...)
	if err == nil && value.Size(got.answer.Parts) > mostEncoded {
		err = &llm.Error{Kind: llm.AnswerTooBig, Status: 200, RequestID: got.answer.RequestID, Message: fmt.Sprintf("the answer takes more than %d bytes as JSON", mostEncoded)}
	}
	got.took, got.content, got.err = time.Since(began), content.Load(), err
	if err != nil && asked.Err() != nil {
		got.err = context.Cause(asked)
	}
	for i, p := range got.answer.Parts {
		if p.Type == llm.Thinking || p.Signature != "" {
			got.answer.Parts[i].Arm = c.Arm.Name
		}
	}
	return got
}

// mostEncoded is how many bytes of JSON the parts of an answer may take: with what stands beside them they are the result of a step.
const mostEncoded = 1<<20 - 64<<10

// endOf says what a request came to.
func (r *round) endOf(begun ledger.Begun, c routes.Candidate, got came) ledger.End {
	end := ledger.End{ID: begun.ID, Status: ledger.Done, RequestID: got.answer.RequestID, Model: got.answer.Model, Usage: got.answer.Usage,
		FirstContent: got.firstContent, Took: got.took, HTTPStatus: 200}
	wrong, ok := errors.AsType[*llm.Error](got.err)
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
		end.RestFor, end.RestWhy = rest(wrong)
	}
	r.estimate(&end, c, got)
	r.bound(&end, c, got)
	if cost, known := llm.Cost(c.Arm.Prices, end.Usage); known {
		end.Cost = &cost
	}
	if cost, err := llm.ParseMoney(got.answer.Usage.CostUSD); err == nil {
		end.ProviderCost = &cost
	}
	return end
}

// estimate fills in what the provider did not say: of an answer that broke off, its last word may be from the beginning. A request that was
// refused costs nothing; one that was taken, and brought no content, costs its input.
func (r *round) estimate(end *ledger.End, c routes.Candidate, got came) {
	output := int64(routes.Estimate(size(got.answer)))
	switch {
	case end.Usage.Known && got.answer.Stop == "" && end.Usage.Output < output:
		end.Usage.Output, end.Estimated = output, true
	case end.Usage.Known:
	case end.Status != ledger.Failed, end.Kind == llm.Late, end.Kind == llm.Cut, end.Kind == llm.Garbled, end.Kind == llm.AnswerTooBig:
		end.Usage, end.Estimated = llm.Usage{Input: int64(c.InputTokens), Output: output}, true
	default:
		end.Usage, end.Estimated = llm.Usage{}, true
	}
}

// added is the number of input tokens that a provider may count in addition to what was sent, such as for its templates and instructions for tools;
// addedForEach is added for each message and tool.
const (
	added        = 4096
	addedForEach = 64
)

// bound cuts a provider's usage to what the request can explain: the input has at most one token for each byte sent, and the output at most the
// allowed number of tokens or one for each byte received. The ledger keeps the provider's figures.
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
	r.Log.Warn("a provider reported more tokens than its request can have: the cost was bounded", zap.String("call_id", r.call.ID),
		zap.String("arm", c.Arm.Name), zap.Int64("reported_input", reported.Input), zap.Int64("reported_output", reported.Output),
		zap.Int64("input", end.Usage.Input), zap.Int64("output", end.Usage.Output))
}

func size(a *llm.Answer) (n int) {
	for _, p := range a.Parts {
		n += len(p.Text) + len(p.Arguments) + len(p.RawArguments) + len(p.Name)
	}
	return n
}

// settle ends the request of a whole answer in the transaction of its step.
func (r *round) settle(ctx context.Context, tx handlers.Tx, begun ledger.Begun, end ledger.End, c routes.Candidate, got came) (Answer, error) {
	if _, err := end.Settle(ctx, tx); err != nil {
		return Answer{}, err
	}
	var total ledger.Total
	if begun.N == 1 { // nobody has to be asked
		first := ledger.Request{N: 1, Arm: c.Arm.Name, Provider: c.Provider.Name, Model: c.Model, Answered: end.Model, Status: end.Status, HTTPStatus: end.HTTPStatus,
			RequestID: end.RequestID, Usage: end.Usage, Reported: end.Reported, Cost: end.Cost, FirstContent: end.FirstContent, Took: end.Took}
		r.called(r.call, &first)
		total = ledger.Sum([]ledger.Request{first})
	} else {
		var err error
		if total, err = r.record(ctx, tx); err != nil {
			return Answer{}, err
		}
	}
	r.routing.Arm = c.Arm.Name
	a := Answer{Parts: got.answer.Parts, Stop: got.answer.Stop, ProviderStop: got.answer.ProviderStop, Model: got.answer.Model, Routing: r.routing,
		Usage: Usage{Usage: end.Usage, Source: "provider", Cost: end.Cost, Call: total}}
	if end.Estimated {
		a.Usage.Source = "estimated"
	}
	if a.Parts == nil {
		a.Parts = []llm.Part{}
	}
	return a, nil
}

// settlePatience is how long a request that failed is settled; the handler has a second after the end of its context.
const settlePatience = 800 * time.Millisecond

// settleFailed ends a request that brought no answer, by itself. What cannot be settled now is lost later.
func (r *round) settleFailed(ctx context.Context, end ledger.End) error {
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	_, err := end.Settle(settling, r.DB)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return unreached(err)
}

// tell lists what was asked in vain, and puts what all requests of the call come to into the details of a failure. What cannot be read now is
// in the ledger alone.
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

// TotalOf returns what all requests of a call come to, as the details of a failure of [Models.Ask] say; nil if they do not. They may have been in
// the journal.
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

// record lists the requests for this answer, of all attempts, among the call's effects, and returns what all requests of the call come to.
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

func lower(a, b *llm.Money) *llm.Money {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

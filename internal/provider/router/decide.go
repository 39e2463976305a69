package router

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/routes"
)

// The codes of failures.
const (
	UnknownRoute        = "unknown_route"
	NoCapableTarget     = "no_capable_target"
	ContextTooLong      = provider.CodeContextTooLong
	RequestTooLarge     = provider.CodeRequestTooLarge
	ProviderRefused     = provider.CodeProviderRefused
	ProviderAuth        = provider.CodeProviderAuth
	RateLimited         = provider.CodeRateLimited
	ProviderUnavailable = provider.CodeProviderUnavailable
	StreamCut           = provider.CodeStreamCut
	FirstContentLate    = provider.CodeFirstContentLate
	AnswerTooLarge      = provider.CodeAnswerTooLarge
	BudgetExceeded      = "budget_exceeded"
	Timeout             = "timeout" // as GEM has it for every tool
)

// failed is the failure of the request to a target.
type failed struct {
	*provider.Error
	content bool
}

// comeback is the time at which an unavailable target may serve, and the code with which the call fails without another
// attempt.
type comeback struct {
	target *routes.Target
	at     time.Time
	code   string
}

// whileBusy is the pause before a target with too many requests is asked again.
const whileBusy = time.Second

// cooldown returns the cooldown of a target after an error, and the reason. The ledger counts other failures of the
// provider.
func cooldown(e *provider.Error) (d time.Duration, why string) {
	if d = e.Cooldown(); d > 0 {
		why = string(e.Kind)
	}
	return d, why
}

// judged returns the judgment of a failure.
func (f *failed) judged() provider.Judgment {
	j := provider.Judge(f.Kind)
	if f.content {
		j = j.AfterContent()
	}
	return j
}

// mayFailOver reports whether another target may be asked in this attempt.
func (f *failed) mayFailOver() bool { return f.judged().Failover != provider.ToNone }

// learn records the consequences of a failure for the call's next requests: which targets may serve them, and when.
func (r *round) learn(f *failed, c routes.Candidate) {
	r.failed = append(r.failed, f)
	j := f.judged()
	if j.Failover == provider.ToLarger {
		larger := func(target *routes.Target) bool { return target.Context > c.Target.Context }
		r.targets = slices.DeleteFunc(slices.Clone(r.targets),
			func(other routes.Candidate) bool { return !larger(other.Target) })
		r.later = slices.DeleteFunc(r.later, func(other comeback) bool { return !larger(other.target) })
	}
	if j.Retry && !f.Final {
		r.comesBack(c.Target, max(f.Cooldown(), f.RetryAfter), j.Code)
	}
}

func (r *round) comesBack(target *routes.Target, after time.Duration, code string) {
	r.later = append(r.later, comeback{target, time.Now().Add(after), code})
}

// soonest returns the target that may be asked first, or nil if none may.
func (r *round) soonest() (first *comeback) {
	for i := range r.later {
		if first == nil || r.later[i].at.Before(first.at) {
			first = &r.later[i]
		}
	}
	return first
}

// failure returns the error of a round in which no target answered. If one of them may answer later, the call is
// retried.
func (r *round) failure() error {
	last := r.failed[len(r.failed)-1]
	j := last.judged()
	code, again := j.Code, j.Retry
	if !again && j.Failover == provider.ToNone { // with any target
		return r.fail(code, r.summary(), nil)
	}
	first := r.soonest()
	if first != nil && (!again || last.Final) {
		code = first.code
	}
	switch {
	case len(r.targets) > 0: // more than an attempt asks, or left alone since something was said
		return handlers.Transient(r.fail(code, r.summary(), nil))
	case first == nil:
		return r.fail(code, r.summary(), nil)
	}
	return r.again(code, r.summary(), first.at)
}

// again returns the error that leads to another attempt, unless that attempt is too far off.
func (r *round) again(code, message string, at time.Time) error {
	pause := max(time.Until(at), 0)
	if pause > handlers.MaxPause {
		code = RateLimited
	}
	var details map[string]any
	if pause > 0 {
		details = map[string]any{"retry_after_s": int(math.Ceil(pause.Seconds()))}
	}
	return handlers.TransientAfter(r.fail(code, message, details), pause)
}

// summary lists the targets that were asked, each with its outcome.
func (r *round) summary() string {
	var told []string
	for _, t := range r.routing.Tried {
		text := fmt.Sprintf("%s: %s", t.Target, t.Outcome)
		if t.Status != 0 {
			text += fmt.Sprintf(" (HTTP %d)", t.Status)
		}
		if t.Message != "" {
			text += ": " + t.Message
		}
		told = append(told, text)
	}
	return "No model of the route " + r.route.Name + " answered. " + strings.Join(told, "; ") + "."
}

// said returns the text about a failure for the receipt: the provider's words or, if they may contain the key, advice.
func said(e *provider.Error, p *routes.Provider) string {
	switch {
	case e.Kind != provider.Unauthorized:
		return e.Message
	case p.KeyEnv == "":
		return "it may want a key, and the provider " + p.Name + " has no key_env in the routes file"
	}
	return "look at the key in " + p.KeyEnv + ", its rights and the account's credit"
}

// fail returns a failure with the routing in its details.
func (r *round) fail(code, message string, details map[string]any) error {
	all := map[string]any{"routing": r.routing}
	for k, v := range details {
		all[k] = v
	}
	return &handlers.Failure{Code: code, Message: message, Details: all}
}

// noneServes returns the error for the case that no target may be asked now.
func (r *round) noneServes(b ledger.Begun) error {
	r.targets = nil
	first := r.soonest()
	switch {
	case len(r.failed) > 0:
		return r.failure()
	case first != nil:
		code := ProviderUnavailable
		for _, c := range r.later {
			if c.code == RateLimited {
				code = RateLimited
			}
		}
		return r.again(code, "No model of the route "+r.route.Name+" may be asked now. "+reasons(r.routing.Skipped), first.at)
	case len(b.Exceeded) > 0:
		return r.exceeded(b.Exceeded)
	case len(r.unmended) > 0:
		return r.refusedEarlier()
	}
	return r.fail(BudgetExceeded, "The request may cost more than what is left of max_cost_usd. See details.routing.", nil)
}

// exceeded returns the error of budgets that have too little left. It does not reveal what others have spent of a
// shared budget.
func (r *round) exceeded(all []ledger.Exceeded) error {
	shown := make([]any, len(all))
	so := ""
	for i, e := range all {
		whose := slices.IndexFunc(r.Routes.Budgets(), func(b routes.Budget) bool {
			return b.Name == e.Budget && b.Scope == routes.OfUser
		})
		if r.call.CreatedBy != "" && whose < 0 {
			shown[i] = map[string]any{"budget": e.Budget, "limit_usd": e.Limit, "resets_at": e.ResetsAt}
			continue
		}
		shown[i] = e
		if i == 0 {
			so = fmt.Sprintf(", with %s spent and %s reserved", e.Spent, e.Reserved)
		}
	}
	return r.fail(BudgetExceeded, fmt.Sprintf("The budget %s has %s USD%s: too little is left for this request. It "+
		"starts over at %s.",
		all[0].Budget, all[0].Limit, so, all[0].ResetsAt.UTC().Format(time.RFC3339)), map[string]any{"exceeded": shown})
}

// refusedEarlier returns the error for the case that providers rejected earlier requests, and no other target may
// serve. Time alone does not correct a key or the name of a model: the call ends like the rejected one, and does not
// wait for the end of the cooldown.
func (r *round) refusedEarlier() error {
	first, code := r.unmended[0], ProviderRefused
	for _, s := range r.unmended {
		if s.Wait() < first.Wait() {
			first = s
		}
		if provider.Judge(provider.ErrorKind(s.Reason)).Code == ProviderAuth {
			code = ProviderAuth
		}
	}
	return r.fail(code, fmt.Sprintf("No model of the route %s may be asked until %s, since an earlier request was "+
		"refused. %s Correct the key (unauthorized) or the model and base_url "+
		"(not_found), and end the cooldown as docs/llm.md says, or wait.", r.route.Name,
		first.Until.UTC().Format(time.RFC3339),
		reasons(r.routing.Skipped)),
		map[string]any{"retry_after_s": int(math.Ceil(first.Wait().Seconds()))})
}

// noTarget returns the error for the case that no target of the route can serve the request.
func (r *round) noTarget(skipped []routes.SkippedTarget) error {
	if missing := routes.MissingKeys(skipped); len(missing) > 0 {
		return noKey(r.route.Name, missing)
	}
	code := NoCapableTarget
	tooLong := len(skipped) > 0
	dear := len(skipped) > 0
	for _, s := range skipped {
		tooLong = tooLong && s.Lack == routes.LacksContext
		dear = dear && (s.Lack == routes.LacksRoom || s.Lack == routes.LacksPrice)
	}
	advice := ""
	switch {
	case tooLong:
		code = ContextTooLong
	case dear:
		code = BudgetExceeded
		if slices.ContainsFunc(skipped, func(s routes.SkippedTarget) bool { return s.Lack == routes.LacksRoom }) {
			advice = " All of max_output_tokens is reckoned: lower it, or raise max_cost_usd."
		}
	}
	return r.fail(code, "No model of the route "+r.route.Name+" can serve the request. "+reasons(r.routing.Skipped)+advice,
		nil)
}

// noKey returns the error of a route without a key for any of its targets.
func noKey(route string, missing []string) error {
	list := strings.Join(missing, " or ")
	return &handlers.NotConfigured{
		Reason:      "No model of the route " + route + " has a key. Missing: " + list + ".",
		RequiredEnv: missing,
		NextSteps: []string{"Get a key from one of the providers.",
			"Set " + list + " in the worker's environment, restart the worker and make the call again."},
	}
}

func reasons(skipped []SkippedTarget) string {
	var all []string
	for _, s := range skipped {
		all = append(all, s.Target+": "+s.Why)
	}
	return strings.Join(all, "; ") + "."
}

func unknownRoute(all *routes.Routes, name string) error {
	var names []string
	for _, r := range all.Routes() {
		names = append(names, r.Name)
	}
	return &handlers.Failure{Code: UnknownRoute, Message: fmt.Sprintf("There is no route %q. There are: %s.", name,
		strings.Join(names, ", ")),
		Details: map[string]any{"routes": names}}
}

package models

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/routes"
)

// The codes of failures.
const (
	UnknownRoute        = "unknown_route"
	NoCapableArm        = "no_capable_arm"
	ContextTooLong      = "context_too_long"
	RequestTooLarge     = "request_too_large"
	ProviderRefused     = "provider_refused"
	ProviderAuth        = "provider_auth"
	RateLimited         = "rate_limited"
	ProviderUnavailable = "provider_unavailable"
	StreamCut           = "stream_cut"
	FirstContentLate    = "first_content_late"
	AnswerTooLarge      = "answer_too_large"
	BudgetExceeded      = "budget_exceeded"
	Timeout             = "timeout" // as GEM has it for every tool
)

// The pauses of an arm after a failure.
const (
	restAfterLimit   = 30 * time.Second // where the provider does not say
	restAfterRefusal = 10 * time.Minute // a key that does not work, or a model that does not exist
)

// failed is how the request to an arm failed.
type failed struct {
	*llm.Error
	content bool
}

// comeback is when an arm may serve that could not in this attempt, and with what code the call fails if there is no other attempt.
type comeback struct {
	arm  *routes.Arm
	at   time.Time
	code string
}

// whileBusy is when an arm is asked again that had as many requests as it takes.
const whileBusy = time.Second

// rest says how long an arm rests after an error. Other failures of the provider are counted by the ledger.
func rest(e *llm.Error) (d time.Duration, why string) {
	switch e.Kind {
	case llm.RateLimited, llm.Overloaded:
		if e.RetryAfter > 0 {
			return e.RetryAfter, string(e.Kind)
		}
		if e.Kind == llm.RateLimited || e.Status != http.StatusServiceUnavailable { // a 529, also where an event says so
			return restAfterLimit, string(e.Kind)
		}
	case llm.Unauthorized, llm.NotFound:
		return restAfterRefusal, string(e.Kind)
	}
	return 0, ""
}

// mayFailOver reports whether another arm may be asked in this attempt. After content there is none: what was seen must not be mixed with
// another answer.
func (f *failed) mayFailOver() bool { return !f.content && !f.final() }

// learn keeps what a failure says of the call's next requests: which arms may serve them, and when.
func (r *round) learn(f *failed, c routes.Candidate) {
	r.failed = append(r.failed, f)
	if f.Kind == llm.ContextLength && !f.content {
		larger := func(arm *routes.Arm) bool { return arm.Context > c.Arm.Context }
		r.arms = slices.DeleteFunc(slices.Clone(r.arms), func(other routes.Candidate) bool { return !larger(other.Arm) })
		r.later = slices.DeleteFunc(r.later, func(other comeback) bool { return !larger(other.arm) })
	}
	if code, again := classify(f); again && !f.Final {
		pause, _ := rest(f.Error)
		r.comesBack(c.Arm, max(pause, f.RetryAfter), code)
	}
}

func (r *round) comesBack(arm *routes.Arm, after time.Duration, code string) {
	r.later = append(r.later, comeback{arm, time.Now().Add(after), code})
}

// soonest returns the arm that comes back first; nil if none does.
func (r *round) soonest() (first *comeback) {
	for i := range r.later {
		if first == nil || r.later[i].at.Before(first.at) {
			first = &r.later[i]
		}
	}
	return first
}

// failure is the error of a round in which no arm answered. Where one of them may answer later, the call is tried again.
func (r *round) failure() error {
	last := r.failed[len(r.failed)-1]
	code, again := classify(last)
	if last.final() {
		return r.fail(code, r.story(), nil)
	}
	first := r.soonest()
	if first != nil && (!again || last.Final) {
		code = first.code
	}
	switch {
	case len(r.arms) > 0: // more than an attempt asks, or left alone since something was said
		return handlers.Transient(r.fail(code, r.story(), nil))
	case first == nil:
		return r.fail(code, r.story(), nil)
	}
	return r.again(code, r.story(), first.at)
}

// again is the error of an attempt after which there is another, unless that is too far off.
func (r *round) again(code, message string, at time.Time) error {
	pause := max(time.Until(at), 0)
	if pause > handlers.MostAfter {
		code = RateLimited
	}
	var details map[string]any
	if pause > 0 {
		details = map[string]any{"retry_after_s": int(math.Ceil(pause.Seconds()))}
	}
	return handlers.TransientAfter(r.fail(code, message, details), pause)
}

// classify returns the code of a failure, and whether the same request may succeed later.
func classify(f *failed) (code string, transient bool) {
	if f.content && f.Kind != llm.AnswerTooBig {
		return StreamCut, true
	}
	switch f.Kind {
	case llm.Unauthorized:
		return ProviderAuth, false
	case llm.NotFound, llm.BadRequest:
		return ProviderRefused, false
	case llm.TooLarge:
		return RequestTooLarge, false
	case llm.ContextLength:
		return ContextTooLong, false
	case llm.AnswerTooBig:
		return AnswerTooLarge, false
	case llm.RateLimited:
		return RateLimited, true
	case llm.Late:
		return FirstContentLate, true
	case llm.Cut:
		return StreamCut, true
	}
	return ProviderUnavailable, true
}

// final reports whether the request itself cannot succeed, whoever is asked.
func (f *failed) final() bool {
	switch f.Kind {
	case llm.BadRequest, llm.TooLarge:
		return !f.content
	case llm.AnswerTooBig:
		return true
	}
	return false
}

// story tells what each arm that was asked came to.
func (r *round) story() string {
	var told []string
	for _, t := range r.routing.Tried {
		text := fmt.Sprintf("%s: %s", t.Arm, t.Outcome)
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

// said is what the receipt tells of a failure: the provider's words, or, where they may have the key, what to look at.
func said(e *llm.Error, p *routes.Provider) string {
	switch {
	case e.Kind != llm.Unauthorized:
		return e.Message
	case p.KeyEnv == "":
		return "it may want a key, and the provider " + p.Name + " has no key_env in the routes file"
	}
	return "look at the key in " + p.KeyEnv + ", its rights and the account's credit"
}

// fail is a failure with the routing in its details.
func (r *round) fail(code, message string, details map[string]any) error {
	all := map[string]any{"routing": r.routing}
	for k, v := range details {
		all[k] = v
	}
	return &handlers.Failure{Code: code, Message: message, Details: all}
}

// noneServes is the error where no arm may be asked now.
func (r *round) noneServes(b ledger.Begun) error {
	r.arms = nil
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

// exceeded returns the error of budgets that have too little left. It does not reveal what others have spent of a shared budget.
func (r *round) exceeded(all []ledger.Exceeded) error {
	shown := make([]any, len(all))
	so := ""
	for i, e := range all {
		whose := slices.IndexFunc(r.Routes.Budgets(), func(b routes.Budget) bool { return b.Name == e.Budget && b.Scope == routes.OfUser })
		if r.call.CreatedBy != "" && whose < 0 {
			shown[i] = map[string]any{"budget": e.Budget, "limit_usd": e.Limit, "resets_at": e.ResetsAt}
			continue
		}
		shown[i] = e
		if i == 0 {
			so = fmt.Sprintf(", with %s spent and %s reserved", e.Spent, e.Reserved)
		}
	}
	return r.fail(BudgetExceeded, fmt.Sprintf("The budget %s has %s USD%s: too little is left for this request. It starts over at %s.",
		all[0].Budget, all[0].Limit, so, all[0].ResetsAt.UTC().Format(time.RFC3339)), map[string]any{"exceeded": shown})
}

// refusedEarlier is the error where providers refused earlier requests, and no other arm may serve. Time alone mends no key and no name of a
// model: the call ends as the one that was refused did, and does not wait for the rest to end.
func (r *round) refusedEarlier() error {
	first, code := r.unmended[0], ProviderRefused
	for _, s := range r.unmended {
		if s.Wait() < first.Wait() {
			first = s
		}
		if s.Reason == string(llm.Unauthorized) {
			code = ProviderAuth
		}
	}
	return r.fail(code, fmt.Sprintf("No model of the route %s may be asked until %s, since an earlier request was refused. %s Correct the key (unauthorized) or the model and base_url "+
		"(not_found), and end the rest as docs/llm.md says, or wait.", r.route.Name, first.Until.UTC().Format(time.RFC3339), reasons(r.routing.Skipped)),
		map[string]any{"retry_after_s": int(math.Ceil(first.Wait().Seconds()))})
}

// noArm is the error where no arm of the route can serve the request.
func (r *round) noArm(skipped []routes.Skipped) error {
	if missing := routes.MissingKeys(skipped); len(missing) > 0 {
		return noKey(r.route.Name, missing)
	}
	code := NoCapableArm
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
		if slices.ContainsFunc(skipped, func(s routes.Skipped) bool { return s.Lack == routes.LacksRoom }) {
			advice = " All of max_output_tokens is reckoned: lower it, or raise max_cost_usd."
		}
	}
	return r.fail(code, "No model of the route "+r.route.Name+" can serve the request. "+reasons(r.routing.Skipped)+advice, nil)
}

// noKey is the error of a route of which no arm has a key.
func noKey(route string, missing []string) error {
	list := strings.Join(missing, " or ")
	return &handlers.NotConfigured{
		Reason:      "No model of the route " + route + " has a key. Missing: " + list + ".",
		RequiredEnv: missing,
		NextSteps:   []string{"Get a key from one of the providers.", "Set " + list + " in the worker's environment, restart the worker and make the call again."},
	}
}

func reasons(skipped []Skipped) string {
	var all []string
	for _, s := range skipped {
		all = append(all, s.Arm+": "+s.Why)
	}
	return strings.Join(all, "; ") + "."
}

func unknownRoute(all *routes.Routes, name string) error {
	var names []string
	for _, r := range all.Routes() {
		names = append(names, r.Name)
	}
	return &handlers.Failure{Code: UnknownRoute, Message: fmt.Sprintf("There is no route %q. There are: %s.", name, strings.Join(names, ", ")),
		Details: map[string]any{"routes": names}}
}

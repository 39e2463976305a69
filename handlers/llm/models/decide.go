package models

import (
	"fmt"
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

// rest says how long an arm rests after an error. Other failures of the provider are counted by the ledger.
func rest(e *llm.Error) (d time.Duration, why string) {
	switch e.Kind {
	case llm.RateLimited, llm.Overloaded:
		if e.RetryAfter > 0 {
			return e.RetryAfter, string(e.Kind)
		}
		if e.Kind == llm.RateLimited || e.Status == 529 {
			return restAfterLimit, string(e.Kind)
		}
	case llm.Unauthorized, llm.NotFound:
		return restAfterRefusal, string(e.Kind)
	}
	return 0, ""
}

// mayFailOver reports whether another arm may be asked in this attempt, and leaves only those that may. After content there is none: what
// was seen must not be mixed with another answer.
func (r *round) mayFailOver(f *failed, c routes.Candidate) bool {
	if f.content {
		return false
	}
	switch f.Kind {
	case llm.BadRequest, llm.TooLarge, llm.AnswerTooBig:
		return false
	case llm.ContextLength:
		var larger []routes.Candidate
		for _, other := range r.arms {
			if other.Arm.Context > c.Arm.Context {
				larger = append(larger, other)
			}
		}
		r.arms = larger
	}
	return true
}

// failure is the error of a round in which no arm answered. Where one of them may answer later, the call is tried again.
func (r *round) failure() error {
	last := r.failed[len(r.failed)-1]
	code, again := classify(last)
	again = again && !last.Final
	pause := last.RetryAfter
	if !again && !last.content && !final(last.Kind) {
		for _, f := range r.failed {
			if other, passes := classify(f); passes && !f.Final && (!again || f.RetryAfter < pause) {
				code, again, pause = other, true, f.RetryAfter
			}
		}
	}
	switch {
	case !again:
		return r.fail(code, r.story(), nil)
	case pause > handlers.MostAfter:
		return r.fail(RateLimited, r.story(), map[string]any{"retry_after_s": int(pause.Seconds())})
	}
	return handlers.TransientAfter(r.fail(code, r.story(), nil), pause)
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

// final reports whether a kind of error says that the request itself cannot succeed.
func final(k llm.ErrorKind) bool {
	switch k {
	case llm.BadRequest, llm.TooLarge, llm.ContextLength, llm.AnswerTooBig:
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
	code, busy := ProviderUnavailable, false
	for _, s := range b.Skipped {
		if s.Reason == string(llm.RateLimited) {
			code = RateLimited
		}
		busy = busy || s.Why == ledger.Busy
	}
	switch {
	case len(r.failed) > 0 && r.failed[len(r.failed)-1].RetryAfter == 0:
		return r.failure()
	case b.Wait > 0:
		failure := r.fail(code, "No model of the route "+r.route.Name+" may be asked now: see details.routing for how long each rests.", map[string]any{"retry_after_s": int(b.Wait.Seconds() + 0.999)})
		return handlers.TransientAfter(failure, b.Wait)
	case busy:
		return handlers.TransientAfter(r.fail(ProviderUnavailable, "Every model of the route "+r.route.Name+" has as many requests as it takes at once.", nil), time.Second)
	case len(b.Exceeded) > 0:
		e := b.Exceeded[0]
		return r.fail(BudgetExceeded, fmt.Sprintf("The budget %s has %s USD, of which %s are spent and %s reserved: too little is left for this request. It begins anew at %s.",
			e.Budget, e.Limit, e.Spent, e.Reserved, e.ResetsAt.UTC().Format(time.RFC3339)), map[string]any{"exceeded": b.Exceeded})
	}
	return r.fail(BudgetExceeded, "The request may cost more than what is left of max_cost_usd. See details.routing.", nil)
}

// noArm is the error where no arm of the route can serve the request.
func (r *round) noArm(skipped []routes.Skipped) error {
	if missing := routes.MissingKeys(skipped); len(missing) > 0 {
		list := strings.Join(missing, " or ")
		return &handlers.NotConfigured{
			Reason:      "No model of the route " + r.route.Name + " has a key. Missing: " + list + ".",
			RequiredEnv: missing,
			NextSteps:   []string{"Get a key from one of the providers.", "Set " + list + " in the worker's environment, restart the worker and make the call again."},
		}
	}
	code := NoCapableArm
	tooLong := len(skipped) > 0
	dear := len(skipped) > 0
	for _, s := range skipped {
		tooLong = tooLong && s.Lack == routes.LacksContext
		dear = dear && (s.Lack == routes.LacksRoom || s.Lack == routes.LacksPrice)
	}
	switch {
	case tooLong:
		code = ContextTooLong
	case dear:
		code = BudgetExceeded
	}
	return r.fail(code, "No model of the route "+r.route.Name+" can serve the request. "+reasons(r.routing.Skipped), nil)
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

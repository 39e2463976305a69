package router

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/routes"
)

// became is the outcome of an attempt.
type became struct {
	code string
	// again: there is another attempt, after a pause of so many seconds at least.
	again bool
	pause int
	// says is what the details have as retry_after_s; 0: nothing.
	says int
}

func read(t *testing.T, err error) (b became) {
	t.Helper()
	if transient := (*handlers.TransientError)(nil); errors.As(err, &transient) {
		b.again, b.pause = true, int(math.Ceil(transient.After.Seconds()))
	}
	var f *handlers.Failure
	if !errors.As(err, &f) {
		t.Fatalf("%T: %v", err, err)
	}
	details := f.Details.(map[string]any)
	b.code = f.Code
	b.says, _ = details["retry_after_s"].(int)
	if _, ok := details["routing"]; !ok || f.Message == "" {
		t.Errorf("%q has the details %v", f.Message, details)
	}
	return b
}

// scene is a round over targets with the names a, b, c …, whose contexts grow if larger is set.
type scene struct {
	*round
	t *testing.T
}

func newScene(t *testing.T, larger bool, names ...string) *scene {
	t.Helper()
	route := &routes.Route{Name: "default"}
	s := &scene{&round{Models: &Models{Routes: &routes.Routes{}}, call: &handlers.Durable{Call: &handlers.Call{}},
		route: route, routing: Routing{Route: "default"}}, t}
	for i, name := range names {
		target := &routes.Target{Name: name, Provider: &routes.Provider{Name: name}, Context: 1000}
		if larger {
			target.Context *= i + 1
		}
		route.Targets = append(route.Targets, target)
		s.targets = append(s.targets, routes.Candidate{Target: target, Provider: target.Provider})
	}
	return s
}

// asked is how a target failed.
func (s *scene) asked(name string, e provider.Error, content bool) (failsOver bool) {
	c := s.take(name)
	s.routing.Tried = append(s.routing.Tried, FailedTarget{Target: name, Outcome: e.Kind, Status: e.Status})
	f := &failed{&e, content}
	s.learn(f, c)
	return f.mayFailOver()
}

// skips is a target that the ledger skips.
func (s *scene) skips(name string, why ledger.Why, wait time.Duration, reason provider.ErrorKind) {
	for _, target := range s.route.Targets {
		if target.Name == name {
			skipped := ledger.SkippedTarget{Target: name, Why: why, WaitMS: wait.Milliseconds(), Reason: string(reason)}
			s.routing.Skipped = append(s.routing.Skipped, SkippedTarget{Target: name, Why: string(why)})
			s.skip(target, &skipped)
		}
	}
}

func (s *scene) want(what string, err error, want became) {
	s.t.Helper()
	if got := read(s.t, err); got != want {
		s.t.Errorf("%s: got %+v, want %+v: %v", what, got, want, err)
	}
}

func TestEachFailureHasItsCodeItsPauseAndItsCooldown(t *testing.T) {
	t.Parallel()
	const quarter = 15 * time.Minute
	for _, test := range []struct {
		what     string
		err      provider.Error
		content  bool
		want     became
		failOver bool
		cooldown time.Duration
	}{
		{"408", provider.Error{Kind: provider.Unavailable, Status: 408}, false, became{ProviderUnavailable, true, 0, 0}, true,
			0},
		{"429", provider.Error{Kind: provider.RateLimited, Status: 429}, false, became{RateLimited, true, 30, 30}, true,
			30 * time.Second},
		{"429 with a pause", provider.Error{Kind: provider.RateLimited, Status: 429, RetryAfter: 7 * time.Second}, false,
			became{RateLimited, true, 7, 7}, true, 7 * time.Second},
		{"429 in an event", provider.Error{Kind: provider.RateLimited, Status: 200}, false, became{RateLimited, true, 30, 30},
			true, 30 * time.Second},
		{"429 with the longest pause", provider.Error{Kind: provider.RateLimited, Status: 429, RetryAfter: quarter}, false,
			became{RateLimited, true, 900, 900}, true, quarter},
		{"429 with too long a pause", provider.Error{Kind: provider.RateLimited, Status: 429,
			RetryAfter: quarter + time.Minute}, false, became{RateLimited, false, 0, 960}, true, quarter + time.Minute},
		{"500", provider.Error{Kind: provider.Unavailable, Status: 500}, false, became{ProviderUnavailable, true, 0, 0}, true,
			0},
		{"500 with a pause", provider.Error{Kind: provider.Unavailable, Status: 500, RetryAfter: 4 * time.Second}, false,
			became{ProviderUnavailable, true, 4, 4}, true, 0},
		{"503", provider.Error{Kind: provider.Overloaded, Status: 503}, false, became{ProviderUnavailable, true, 0, 0}, true,
			0},
		{"503 with a pause", provider.Error{Kind: provider.Overloaded, Status: 503, RetryAfter: 9 * time.Second}, false,
			became{ProviderUnavailable, true, 9, 9}, true, 9 * time.Second},
		{"503 with too long a pause", provider.Error{Kind: provider.Overloaded, Status: 503, RetryAfter: time.Hour}, false,
			became{RateLimited, false, 0, 3600}, true, time.Hour},
		{"529", provider.Error{Kind: provider.Overloaded, Status: 529}, false, became{ProviderUnavailable, true, 30, 30},
			true, 30 * time.Second},
		{"529 in an event", provider.Error{Kind: provider.Overloaded, Status: 200}, false,
			became{ProviderUnavailable, true, 30, 30}, true, 30 * time.Second},
		{"no connection", provider.Error{Kind: provider.Unreachable}, false, became{ProviderUnavailable, true, 0, 0}, true,
			0},
		{"no content in time", provider.Error{Kind: provider.Late}, false, became{FirstContentLate, true, 0, 0}, true, 0},
		{"a cut before content", provider.Error{Kind: provider.Cut, Status: 200}, false, became{StreamCut, true, 0, 0}, true,
			0},
		{"garbage before content", provider.Error{Kind: provider.Garbled, Status: 200}, false,
			became{ProviderUnavailable, true, 0, 0}, true, 0},
		{"401", provider.Error{Kind: provider.Unauthorized, Status: 401}, false, became{ProviderAuth, false, 0, 0}, true,
			10 * time.Minute},
		{"402", provider.Error{Kind: provider.Unauthorized, Status: 402}, false, became{ProviderAuth, false, 0, 0}, true,
			10 * time.Minute},
		{"403", provider.Error{Kind: provider.Unauthorized, Status: 403}, false, became{ProviderAuth, false, 0, 0}, true,
			10 * time.Minute},
		{"404", provider.Error{Kind: provider.NotFound, Status: 404}, false, became{ProviderRefused, false, 0, 0}, true,
			10 * time.Minute},
		{"307", provider.Error{Kind: provider.NotFound, Status: 307}, false, became{ProviderRefused, false, 0, 0}, true,
			10 * time.Minute},
		{"400", provider.Error{Kind: provider.BadRequest, Status: 400}, false, became{ProviderRefused, false, 0, 0}, false,
			0},
		{"422", provider.Error{Kind: provider.BadRequest, Status: 422}, false, became{ProviderRefused, false, 0, 0}, false,
			0},
		{"413", provider.Error{Kind: provider.TooLarge, Status: 413}, false, became{RequestTooLarge, false, 0, 0}, false, 0},
		{"the prompt is too long", provider.Error{Kind: provider.ContextLength, Status: 400}, false,
			became{ContextTooLong, false, 0, 0}, true, 0},
		{"an endless line", provider.Error{Kind: provider.AnswerTooBig, Status: 200}, false,
			became{AnswerTooLarge, false, 0, 0}, false, 0},
		{"an endless answer", provider.Error{Kind: provider.AnswerTooBig, Status: 200}, true,
			became{AnswerTooLarge, false, 0, 0}, false, 0},
		{"do not try again", provider.Error{Kind: provider.Unavailable, Status: 500, Final: true}, false,
			became{ProviderUnavailable, false, 0, 0}, true, 0},
		{"do not try again, limited", provider.Error{Kind: provider.RateLimited, Status: 429, Final: true}, false,
			became{RateLimited, false, 0, 0}, true, 30 * time.Second},
		{"a cut after content", provider.Error{Kind: provider.Cut, Status: 200}, true, became{StreamCut, true, 0, 0}, false,
			0},
		{"a stall after content", provider.Error{Kind: provider.Stalled}, true, became{StreamCut, true, 0, 0}, false, 0},
		{"garbage after content", provider.Error{Kind: provider.Garbled, Status: 200}, true, became{StreamCut, true, 0, 0},
			false, 0},
		{"an overload after content", provider.Error{Kind: provider.Overloaded, Status: 200}, true,
			became{StreamCut, true, 30, 30}, false, 30 * time.Second},
		{"a 400 after content", provider.Error{Kind: provider.BadRequest, Status: 200}, true, became{StreamCut, true, 0, 0},
			false, 0},
	} {
		s := newScene(t, false, "a")
		if got := s.asked("a", test.err, test.content); got != test.failOver {
			t.Errorf("%s: another target: %t", test.what, got)
		}
		s.want(test.what, s.failure(), test.want)
		if got, why := cooldown(&test.err); got != test.cooldown || (why == "") != (got == 0) {
			t.Errorf("%s: it cools down for %s, because %q", test.what, got, why)
		}
	}
}

func TestTheCodeWhereEachTargetCoolsDown(t *testing.T) {
	t.Parallel()
	for reason, want := range map[provider.ErrorKind]became{
		provider.RateLimited: {RateLimited, true, 5, 5}, provider.Overloaded: {ProviderUnavailable, true, 5, 5},
		provider.Late: {ProviderUnavailable, true, 5, 5}, provider.Cut: {ProviderUnavailable, true, 5, 5},
		provider.Garbled: {ProviderUnavailable, true, 5, 5}, "": {ProviderUnavailable, true, 5, 5},
		provider.Unauthorized: {ProviderAuth, false, 0, 5}, provider.NotFound: {ProviderRefused, false, 0, 5},
	} {
		s := newScene(t, false, "a")
		s.skips("a", ledger.Cooldown, 5*time.Second, reason)
		s.want(string(reason), s.noneServes(ledger.Begun{}), want)
	}
}

// One target that may serve later is enough for another attempt, at its time.
func TestACallIsTriedAgainWhenTheFirstTargetComesBack(t *testing.T) {
	t.Parallel()
	down := provider.Error{Kind: provider.Unavailable, Status: 500}
	limited := func(d time.Duration) provider.Error {
		return provider.Error{Kind: provider.RateLimited, Status: 429, RetryAfter: d}
	}
	wrongKey := provider.Error{Kind: provider.Unauthorized, Status: 401}
	tooLong := provider.Error{Kind: provider.ContextLength, Status: 400}
	final := provider.Error{Kind: provider.Unavailable, Status: 500, Final: true}
	for _, test := range []struct {
		what    string
		targets string
		does    func(s *scene) error
		want    became
	}{
		{"limited, then a wrong key", "ab", func(s *scene) error {
			s.asked("a", limited(7*time.Second), false)
			s.asked("b", wrongKey, false)
			return s.failure()
		}, became{RateLimited, true, 7, 7}},
		{"down, then limited", "ab", func(s *scene) error {
			s.asked("a", down, false)
			s.asked("b", limited(time.Hour), false)
			return s.failure()
		}, became{RateLimited, true, 0, 0}},
		{"limited for longer and shorter", "ab", func(s *scene) error {
			s.asked("a", limited(time.Minute), false)
			s.asked("b", limited(time.Hour), false)
			return s.failure()
		}, became{RateLimited, true, 60, 60}},
		{"two of no use, one of which says so", "ab", func(s *scene) error {
			s.asked("a", final, false)
			s.asked("b", wrongKey, false)
			return s.failure()
		}, became{ProviderAuth, false, 0, 0}},
		{"down, then one that says that it is of no use", "ab", func(s *scene) error {
			s.asked("a", down, false)
			s.asked("b", final, false)
			return s.failure()
		}, became{ProviderUnavailable, true, 0, 0}},
		{"one is cooling down, the other has a wrong key", "ab", func(s *scene) error {
			s.skips("a", ledger.Cooldown, 7*time.Second, provider.RateLimited)
			s.asked("b", wrongKey, false)
			return s.failure()
		}, became{RateLimited, true, 7, 7}},
		{"a wrong key, the other is cooling down", "ab", func(s *scene) error {
			s.asked("a", wrongKey, false)
			s.skips("b", ledger.Cooldown, 7*time.Second, provider.Unavailable)
			return s.noneServes(ledger.Begun{})
		}, became{ProviderUnavailable, true, 7, 7}},
		{"limited, the other is cooling down for longer", "ab", func(s *scene) error {
			s.asked("a", limited(7*time.Second), false)
			s.skips("b", ledger.Cooldown, time.Hour, provider.Unauthorized)
			return s.noneServes(ledger.Begun{})
		}, became{RateLimited, true, 7, 7}},
		{"limited, the other has no money left", "ab", func(s *scene) error {
			s.asked("a", limited(7*time.Second), false)
			s.skips("b", ledger.OverSum, 0, "")
			return s.noneServes(ledger.Begun{Exceeded: []ledger.Exceeded{{Budget: "all"}}})
		}, became{RateLimited, true, 7, 7}},
		{"a wrong key, the other is busy", "ab", func(s *scene) error {
			s.asked("a", wrongKey, false)
			s.skips("b", ledger.Busy, 0, "")
			return s.noneServes(ledger.Begun{})
		}, became{ProviderUnavailable, true, 1, 1}},
		{"all are cooling down", "abc", func(s *scene) error {
			s.skips("a", ledger.Cooldown, time.Minute, provider.RateLimited)
			s.skips("b", ledger.Cooldown, 20*time.Second, provider.Unavailable)
			s.skips("c", ledger.OverSum, 0, "")
			return s.noneServes(ledger.Begun{Exceeded: []ledger.Exceeded{{Budget: "all"}}})
		}, became{RateLimited, true, 20, 20}},
		{"all are cooling down for too long", "ab", func(s *scene) error {
			s.skips("a", ledger.Cooldown, time.Hour, provider.Overloaded)
			s.skips("b", ledger.Cooldown, 2*time.Hour, provider.Overloaded)
			return s.noneServes(ledger.Begun{})
		}, became{RateLimited, false, 0, 3600}},
		{"all are cooling down after a refusal", "ab", func(s *scene) error {
			s.skips("a", ledger.Cooldown, 10*time.Minute, provider.NotFound)
			s.skips("b", ledger.Cooldown, 9*time.Minute, provider.Unauthorized)
			return s.noneServes(ledger.Begun{})
		}, became{ProviderAuth, false, 0, 540}},
		{"one is cooling down after a refusal, the other for less", "ab", func(s *scene) error {
			s.skips("a", ledger.Cooldown, time.Second, provider.NotFound)
			s.skips("b", ledger.Cooldown, 20*time.Second, provider.Unavailable)
			return s.noneServes(ledger.Begun{})
		}, became{ProviderUnavailable, true, 20, 20}},
		{"all are busy", "ab", func(s *scene) error {
			s.skips("a", ledger.Busy, 0, "")
			s.skips("b", ledger.Busy, 0, "")
			return s.noneServes(ledger.Begun{})
		}, became{ProviderUnavailable, true, 1, 1}},
		{"no money is left", "ab", func(s *scene) error {
			s.skips("a", ledger.OverSum, 0, "")
			s.skips("b", ledger.OverCost, 0, "")
			return s.noneServes(ledger.Begun{Exceeded: []ledger.Exceeded{{Budget: "all"}}})
		}, became{BudgetExceeded, false, 0, 0}},
		{"none of the call's money is left", "a", func(s *scene) error {
			s.skips("a", ledger.OverCost, 0, "")
			return s.noneServes(ledger.Begun{})
		}, became{BudgetExceeded, false, 0, 0}},
		{"a refusal after one that was down", "ab", func(s *scene) error {
			s.asked("a", down, false)
			s.asked("b", provider.Error{Kind: provider.BadRequest, Status: 400}, false)
			return s.failure()
		}, became{ProviderRefused, false, 0, 0}},
		{"the prompt is too long for the larger too", "ab", func(s *scene) error {
			s.asked("a", down, false)
			s.asked("b", tooLong, false)
			return s.failure()
		}, became{ContextTooLong, false, 0, 0}},
		{"the prompt is too long, and the larger is cooling down", "ab", func(s *scene) error {
			s.asked("a", tooLong, false)
			s.skips("b", ledger.Cooldown, 7*time.Second, provider.RateLimited)
			return s.noneServes(ledger.Begun{})
		}, became{RateLimited, true, 7, 7}},
		{"an answer breaks off while another target is there", "ab", func(s *scene) error {
			s.asked("a", provider.Error{Kind: provider.RateLimited, Status: 200}, true)
			return s.failure()
		}, became{StreamCut, true, 0, 0}},
		{"the account is empty in the midst of an answer", "a", func(s *scene) error {
			s.asked("a", provider.Error{Kind: provider.RateLimited, Status: 200, Final: true}, true)
			return s.failure()
		}, became{StreamCut, false, 0, 0}},
		{"more targets than an attempt asks have wrong keys", "abcde", func(s *scene) error {
			for _, name := range []string{"a", "b", "c", "d"} {
				s.asked(name, wrongKey, false)
			}
			return s.failure()
		}, became{ProviderAuth, true, 0, 0}},
	} {
		s := newScene(t, true, strings.Split(test.targets, "")...)
		s.want(test.what, test.does(s), test.want)
	}
}

func TestAPromptThatIsTooLongLeavesTheLargerTargets(t *testing.T) {
	t.Parallel()
	s := newScene(t, true, "b", "a", "c", "d") // b has the smallest context
	s.targets[0], s.targets[1] = s.targets[1], s.targets[0]
	s.asked("a", provider.Error{Kind: provider.ContextLength, Status: 400}, false)
	var left []string
	for _, c := range s.targets {
		left = append(left, c.Target.Name)
	}
	if got := strings.Join(left, ""); got != "cd" {
		t.Errorf("%s may be asked", got)
	}
}

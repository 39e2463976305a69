package models

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/routes"
)

// became is what an attempt came to.
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

// scene is a round over arms of the names a, b, c …, of which the contexts grow where larger.
type scene struct {
	*round
	t *testing.T
}

func newScene(t *testing.T, larger bool, names ...string) *scene {
	t.Helper()
	route := &routes.Route{Name: "default"}
	s := &scene{&round{Models: &Models{Routes: &routes.Routes{}}, call: &handlers.Durable{Call: &handlers.Call{}}, route: route, routing: Routing{Route: "default"}}, t}
	for i, name := range names {
		arm := &routes.Arm{Name: name, Provider: &routes.Provider{Name: name}, Context: 1000}
		if larger {
			arm.Context *= i + 1
		}
		route.Arms = append(route.Arms, arm)
		s.arms = append(s.arms, routes.Candidate{Arm: arm, Provider: arm.Provider})
	}
	return s
}

// asked is how an arm failed.
func (s *scene) asked(name string, e llm.Error, content bool) (failsOver bool) {
	c := s.take(name)
	s.routing.Tried = append(s.routing.Tried, Tried{Arm: name, Outcome: e.Kind, Status: e.Status})
	f := &failed{&e, content}
	s.learn(f, c)
	return f.mayFailOver()
}

// rests is an arm that the ledger skips.
func (s *scene) skips(name string, why ledger.Why, wait time.Duration, reason llm.ErrorKind) {
	for _, arm := range s.route.Arms {
		if arm.Name == name {
			skipped := ledger.Skipped{Arm: name, Why: why, WaitMS: wait.Milliseconds(), Reason: string(reason)}
			s.routing.Skipped = append(s.routing.Skipped, Skipped{Arm: name, Why: string(why)})
			s.skip(arm, &skipped)
		}
	}
}

func (s *scene) want(what string, err error, want became) {
	s.t.Helper()
	if got := read(s.t, err); got != want {
		s.t.Errorf("%s: got %+v, want %+v: %v", what, got, want, err)
	}
}

func TestEachFailureHasItsCodeItsPauseAndItsRest(t *testing.T) {
	t.Parallel()
	const quarter = 15 * time.Minute
	for _, test := range []struct {
		what     string
		err      llm.Error
		content  bool
		want     became
		failOver bool
		rest     time.Duration
	}{
		{"408", llm.Error{Kind: llm.Unavailable, Status: 408}, false, became{ProviderUnavailable, true, 0, 0}, true, 0},
		{"429", llm.Error{Kind: llm.RateLimited, Status: 429}, false, became{RateLimited, true, 30, 30}, true, 30 * time.Second},
		{"429 with a pause", llm.Error{Kind: llm.RateLimited, Status: 429, RetryAfter: 7 * time.Second}, false, became{RateLimited, true, 7, 7}, true, 7 * time.Second},
		{"429 in an event", llm.Error{Kind: llm.RateLimited, Status: 200}, false, became{RateLimited, true, 30, 30}, true, 30 * time.Second},
		{"429 with the longest pause", llm.Error{Kind: llm.RateLimited, Status: 429, RetryAfter: quarter}, false, became{RateLimited, true, 900, 900}, true, quarter},
		{"429 with too long a pause", llm.Error{Kind: llm.RateLimited, Status: 429, RetryAfter: quarter + time.Minute}, false, became{RateLimited, false, 0, 960}, true, quarter + time.Minute},
		{"500", llm.Error{Kind: llm.Unavailable, Status: 500}, false, became{ProviderUnavailable, true, 0, 0}, true, 0},
		{"500 with a pause", llm.Error{Kind: llm.Unavailable, Status: 500, RetryAfter: 4 * time.Second}, false, became{ProviderUnavailable, true, 4, 4}, true, 0},
		{"503", llm.Error{Kind: llm.Overloaded, Status: 503}, false, became{ProviderUnavailable, true, 0, 0}, true, 0},
		{"503 with a pause", llm.Error{Kind: llm.Overloaded, Status: 503, RetryAfter: 9 * time.Second}, false, became{ProviderUnavailable, true, 9, 9}, true, 9 * time.Second},
		{"503 with too long a pause", llm.Error{Kind: llm.Overloaded, Status: 503, RetryAfter: time.Hour}, false, became{RateLimited, false, 0, 3600}, true, time.Hour},
		{"529", llm.Error{Kind: llm.Overloaded, Status: 529}, false, became{ProviderUnavailable, true, 30, 30}, true, 30 * time.Second},
		{"529 in an event", llm.Error{Kind: llm.Overloaded, Status: 200}, false, became{ProviderUnavailable, true, 30, 30}, true, 30 * time.Second},
		{"no connection", llm.Error{Kind: llm.Unreachable}, false, became{ProviderUnavailable, true, 0, 0}, true, 0},
		{"no content in time", llm.Error{Kind: llm.Late}, false, became{FirstContentLate, true, 0, 0}, true, 0},
		{"a cut before content", llm.Error{Kind: llm.Cut, Status: 200}, false, became{StreamCut, true, 0, 0}, true, 0},
		{"garbage before content", llm.Error{Kind: llm.Garbled, Status: 200}, false, became{ProviderUnavailable, true, 0, 0}, true, 0},
		{"401", llm.Error{Kind: llm.Unauthorized, Status: 401}, false, became{ProviderAuth, false, 0, 0}, true, 10 * time.Minute},
		{"402", llm.Error{Kind: llm.Unauthorized, Status: 402}, false, became{ProviderAuth, false, 0, 0}, true, 10 * time.Minute},
		{"403", llm.Error{Kind: llm.Unauthorized, Status: 403}, false, became{ProviderAuth, false, 0, 0}, true, 10 * time.Minute},
		{"404", llm.Error{Kind: llm.NotFound, Status: 404}, false, became{ProviderRefused, false, 0, 0}, true, 10 * time.Minute},
		{"307", llm.Error{Kind: llm.NotFound, Status: 307}, false, became{ProviderRefused, false, 0, 0}, true, 10 * time.Minute},
		{"400", llm.Error{Kind: llm.BadRequest, Status: 400}, false, became{ProviderRefused, false, 0, 0}, false, 0},
		{"422", llm.Error{Kind: llm.BadRequest, Status: 422}, false, became{ProviderRefused, false, 0, 0}, false, 0},
		{"413", llm.Error{Kind: llm.TooLarge, Status: 413}, false, became{RequestTooLarge, false, 0, 0}, false, 0},
		{"the prompt is too long", llm.Error{Kind: llm.ContextLength, Status: 400}, false, became{ContextTooLong, false, 0, 0}, true, 0},
		{"an endless line", llm.Error{Kind: llm.AnswerTooBig, Status: 200}, false, became{AnswerTooLarge, false, 0, 0}, false, 0},
		{"an endless answer", llm.Error{Kind: llm.AnswerTooBig, Status: 200}, true, became{AnswerTooLarge, false, 0, 0}, false, 0},
		{"do not try again", llm.Error{Kind: llm.Unavailable, Status: 500, Final: true}, false, became{ProviderUnavailable, false, 0, 0}, true, 0},
		{"do not try again, limited", llm.Error{Kind: llm.RateLimited, Status: 429, Final: true}, false, became{RateLimited, false, 0, 0}, true, 30 * time.Second},
		{"a cut after content", llm.Error{Kind: llm.Cut, Status: 200}, true, became{StreamCut, true, 0, 0}, false, 0},
		{"a stall after content", llm.Error{Kind: llm.Stalled}, true, became{StreamCut, true, 0, 0}, false, 0},
		{"garbage after content", llm.Error{Kind: llm.Garbled, Status: 200}, true, became{StreamCut, true, 0, 0}, false, 0},
		{"an overload after content", llm.Error{Kind: llm.Overloaded, Status: 200}, true, became{StreamCut, true, 30, 30}, false, 30 * time.Second},
		{"a 400 after content", llm.Error{Kind: llm.BadRequest, Status: 200}, true, became{StreamCut, true, 0, 0}, false, 0},
	} {
		s := newScene(t, false, "a")
		if got := s.asked("a", test.err, test.content); got != test.failOver {
			t.Errorf("%s: another arm: %t", test.what, got)
		}
		s.want(test.what, s.failure(), test.want)
		if got, why := rest(&test.err); got != test.rest || (why == "") != (got == 0) {
			t.Errorf("%s: it rests for %s, because %q", test.what, got, why)
		}
	}
}

// One arm that may serve later is enough for another attempt, at its time.
func TestACallIsTriedAgainWhenTheFirstArmComesBack(t *testing.T) {
	t.Parallel()
	down := llm.Error{Kind: llm.Unavailable, Status: 500}
	limited := func(d time.Duration) llm.Error { return llm.Error{Kind: llm.RateLimited, Status: 429, RetryAfter: d} }
	wrongKey := llm.Error{Kind: llm.Unauthorized, Status: 401}
	tooLong := llm.Error{Kind: llm.ContextLength, Status: 400}
	final := llm.Error{Kind: llm.Unavailable, Status: 500, Final: true}
	for _, test := range []struct {
		what string
		arms string
		does func(s *scene) error
		want became
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
		{"one rests, the other has a wrong key", "ab", func(s *scene) error {
			s.skips("a", ledger.Rests, 7*time.Second, llm.RateLimited)
			s.asked("b", wrongKey, false)
			return s.failure()
		}, became{RateLimited, true, 7, 7}},
		{"a wrong key, the other rests", "ab", func(s *scene) error {
			s.asked("a", wrongKey, false)
			s.skips("b", ledger.Rests, 7*time.Second, llm.Unavailable)
			return s.noneServes(ledger.Begun{})
		}, became{ProviderUnavailable, true, 7, 7}},
		{"limited, the other rests for longer", "ab", func(s *scene) error {
			s.asked("a", limited(7*time.Second), false)
			s.skips("b", ledger.Rests, time.Hour, llm.Unauthorized)
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
		{"all rest", "abc", func(s *scene) error {
			s.skips("a", ledger.Rests, time.Minute, llm.RateLimited)
			s.skips("b", ledger.Rests, 20*time.Second, llm.Unavailable)
			s.skips("c", ledger.OverSum, 0, "")
			return s.noneServes(ledger.Begun{Exceeded: []ledger.Exceeded{{Budget: "all"}}})
		}, became{RateLimited, true, 20, 20}},
		{"all rest for too long", "ab", func(s *scene) error {
			s.skips("a", ledger.Rests, time.Hour, llm.Overloaded)
			s.skips("b", ledger.Rests, 2*time.Hour, llm.Overloaded)
			return s.noneServes(ledger.Begun{})
		}, became{RateLimited, false, 0, 3600}},
		{"all rest for a refusal", "ab", func(s *scene) error {
			s.skips("a", ledger.Rests, 10*time.Minute, llm.NotFound)
			s.skips("b", ledger.Rests, 9*time.Minute, llm.Unauthorized)
			return s.noneServes(ledger.Begun{})
		}, became{ProviderAuth, false, 0, 540}},
		{"one rests for a refusal, the other for less", "ab", func(s *scene) error {
			s.skips("a", ledger.Rests, time.Second, llm.NotFound)
			s.skips("b", ledger.Rests, 20*time.Second, llm.Unavailable)
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
			s.asked("b", llm.Error{Kind: llm.BadRequest, Status: 400}, false)
			return s.failure()
		}, became{ProviderRefused, false, 0, 0}},
		{"the prompt is too long for the larger too", "ab", func(s *scene) error {
			s.asked("a", down, false)
			s.asked("b", tooLong, false)
			return s.failure()
		}, became{ContextTooLong, false, 0, 0}},
		{"the prompt is too long, and the larger rests", "ab", func(s *scene) error {
			s.asked("a", tooLong, false)
			s.skips("b", ledger.Rests, 7*time.Second, llm.RateLimited)
			return s.noneServes(ledger.Begun{})
		}, became{RateLimited, true, 7, 7}},
		{"an answer breaks off while another arm is there", "ab", func(s *scene) error {
			s.asked("a", llm.Error{Kind: llm.RateLimited, Status: 200}, true)
			return s.failure()
		}, became{StreamCut, true, 0, 0}},
		{"the account is empty in the midst of an answer", "a", func(s *scene) error {
			s.asked("a", llm.Error{Kind: llm.RateLimited, Status: 200, Final: true}, true)
			return s.failure()
		}, became{StreamCut, false, 0, 0}},
		{"more arms than an attempt asks have wrong keys", "abcde", func(s *scene) error {
			for _, name := range []string{"a", "b", "c", "d"} {
				s.asked(name, wrongKey, false)
			}
			return s.failure()
		}, became{ProviderAuth, true, 0, 0}},
	} {
		s := newScene(t, true, strings.Split(test.arms, "")...)
		s.want(test.what, test.does(s), test.want)
	}
}

func TestAPromptThatIsTooLongLeavesTheLargerArms(t *testing.T) {
	t.Parallel()
	s := newScene(t, true, "b", "a", "c", "d") // b has the smallest context
	s.arms[0], s.arms[1] = s.arms[1], s.arms[0]
	s.asked("a", llm.Error{Kind: llm.ContextLength, Status: 400}, false)
	var left []string
	for _, c := range s.arms {
		left = append(left, c.Arm.Name)
	}
	if got := strings.Join(left, ""); got != "cd" {
		t.Errorf("%s may be asked", got)
	}
}

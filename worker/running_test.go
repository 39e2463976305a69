package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

const twoAtOnce = `{"name": "two", "tools": ["lab.send"], "action": "wait", "running": {"max": 2}}`

// gated is a call whose handler waits at the gate g.
func gated(text string) handlertest.Call {
	return handlertest.Call{Tool: "lab.send", Input: task(Task{Text: text, Gate: "g"}), CreatedBy: "ada"}
}

// succeed waits for calls, and expects successes.
func succeed(t *testing.T, env *handlertest.Env, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if r := env.Await(id); r.Status != receipts.Succeeded {
			t.Errorf("%s %s", r.Status, r.Result)
		}
	}
}

// places describes the rows of all counters: the texts of the calls, what they did, and how many held places then.
func places(t *testing.T, env *handlertest.Env) []string {
	t.Helper()
	return testdb.Value[[]string](t, env.DB, `select coalesce(array_agg(concat_ws(' ', c.input ->> 'text', r.action,
		cardinality(r.holders)) order by r.counter, r.n), '{}') from gem.rule_places r
		join core_tool_calls c on c.id = r.call_id`)
}

// untilParked waits until that many calls wait for places.
func untilParked(env *handlertest.Env, n int) {
	env.Until(fmt.Sprint(n, " calls wait for places"), func() bool {
		var is int
		err := env.DB.QueryRow(context.Background(),
			"select count(*) from core_tool_calls where status = 'waiting' and waits_for = 'place'").Scan(&is)
		return err == nil && is == n
	})
}

func TestAsManyCallsRunAsARuleHasPlaces(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t, twoAtOnce))
	var ids []string
	for i := range 6 {
		ids = append(ids, env.Insert(gated(fmt.Sprint(i))))
	}
	env.StartWorker() // it admits several in one statement
	env.StartWorker()
	var began []string
	for range 6 {
		began = append(began, lab.awaitBegin(t))
		if len(began) < 2 {
			continue
		}
		untilParked(env, 6-len(began))
		lab.tell(t, "g", Order{})
	}
	lab.tell(t, "g", Order{})
	succeed(t, env, ids...)
	sound(t, env)
	queued := []string{}
	for _, row := range places(t, env) {
		if text, is := strings.CutSuffix(row, " queued 2"); is {
			queued = append(queued, text)
		}
		if strings.HasSuffix(row, " 3") {
			t.Error(row)
		}
	}
	if len(queued) != 4 || !slices.Equal(queued, began[2:]) {
		t.Errorf("%q were queued, and %q began", queued, began)
	}
}

const oneAtOnce = `{"name": "one", "tools": ["lab.*"], "action": "wait", "running": {"max": 1}, "at_most": "1h"}`

// However an attempt ends, the next call in the queue gets its place.
func TestAPlaceIsFreeAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then string
		end  func(t *testing.T, env *handlertest.Env, lab *Lab, first string, on *handlertest.Running)
	}{
		"after a success": {"", func(t *testing.T, _ *handlertest.Env, lab *Lab, _ string, _ *handlertest.Running) {
			lab.tell(t, "g", Order{})
		}},
		"after a failure": {"", func(t *testing.T, _ *handlertest.Env, lab *Lab, _ string, _ *handlertest.Running) {
			lab.tell(t, "g", Order{errors.New("it failed")})
		}},
		"while a call pauses before its next attempt": {"transient after an hour",
			func(t *testing.T, _ *handlertest.Env, lab *Lab, _ string, _ *handlertest.Running) {
				lab.tell(t, "g", Order{})
			}},
		"after a cancellation": {"", func(t *testing.T, env *handlertest.Env, _ *Lab, id string, _ *handlertest.Running) {
			testdb.Exec(t, env.DB, "select cancel_tool_call($1)", id)
		}},
		"when its worker is lost": {"", func(_ *testing.T, env *handlertest.Env, _ *Lab, _ string, on *handlertest.Running) {
			on.Kill()
			env.StartWorker()
		}},
		"when its worker stops": {"", func(_ *testing.T, env *handlertest.Env, _ *Lab, _ string, on *handlertest.Running) {
			env.StartWorker()
			on.Stop()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startRuledLab(t, ruledBy(t, oneAtOnce))
			on := env.StartWorker()
			first := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "first", Gate: "g", Then: c.then})})
			lab.awaitBegin(t)
			second := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "second"})})
			untilParked(env, 1)
			c.end(t, env, lab, first, on)
			succeed(t, env, second)
			sound(t, env)
		})
	}
}

func TestARunningRuleThatBlocksEndsCallsWithoutAPlace(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t, strings.Replace(oneAtOnce, `"wait"`, `"block"`, 1)[:len(oneAtOnce)-17]+"}"))
	env.StartWorker()
	first := env.Insert(gated("first"))
	lab.awaitBegin(t)
	failure, _ := env.Run(gated("second")).Error()
	if failure.Code != receipts.LimitReached || !strings.Contains(string(failure.Details), `"kind": "running"`) ||
		!strings.Contains(failure.Message, "it lets 1 call run at the same time") {
		t.Errorf("%+v %s", failure, failure.Details)
	}
	lab.tell(t, "g", Order{})
	env.Await(first)
	sound(t, env)
}

func TestACallWaitsForAPlaceNoLongerThanItsRuleSays(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t, strings.Replace(oneAtOnce, "1h", "1s", 1)))
	env.StartWorker()
	first := env.Insert(gated("first"))
	lab.awaitBegin(t)
	failure, _ := env.Run(gated("second")).Error()
	if failure.Code != receipts.LimitReached || !strings.Contains(failure.Message, "no place was free for it") {
		t.Errorf("%+v", failure)
	}
	lab.tell(t, "g", Order{})
	env.Await(first)
	sound(t, env)
}

func TestACallThatIsCancelledInTheQueueKeepsNobodyBehindIt(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t, oneAtOnce))
	env.StartWorker()
	first := env.Insert(gated("first"))
	lab.awaitBegin(t)
	second := env.Insert(gated("second"))
	untilParked(env, 1)
	third := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "third"})})
	untilParked(env, 2)
	if got := testdb.Value[string](t, env.DB, "select cancel_tool_call($1)", second); got != "requested" {
		t.Error(got)
	}
	if code := codeOf(env.Await(second)); code != "cancelled" {
		t.Error(code)
	}
	lab.tell(t, "g", Order{})
	succeed(t, env, third)
	env.Await(first)
	sound(t, env)
}

// A waiting call has no place, so that its child under the same rule can take it.
func TestACallThatWaitsForItsChildHasNoPlace(t *testing.T) {
	t.Parallel()
	env, _ := startRuledLab(t, ruledBy(t, strings.Replace(oneAtOnce, `"lab.*"`, `"lab.*", "tree.*"`, 1)))
	env.StartWorker()
	if r := runTree(env, "start a lab.send; wait a; start b lab.send; wait b"); r.Status != receipts.Succeeded {
		t.Error(string(r.Result))
	}
	took := 0
	for _, row := range places(t, env) {
		if strings.HasSuffix(row, " took 1") {
			took++
		}
	}
	if took < 5 { // the parent three times, and each child
		t.Errorf("%q", places(t, env))
	}
	sound(t, env)
}

// A call that has one of two places gives it back while it waits for the other.
func TestACallTakesThePlacesOfAllRulesOrNone(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t,
		`{"name": "a", "tools": ["lab.send", "lab.write"], "action": "wait", "running": {"max": 2}}`,
		`{"name": "b", "tools": ["lab.send"], "action": "wait", "running": {"max": 1}}`))
	env.StartWorker()
	ids := []string{env.Insert(gated("first"))}
	lab.awaitBegin(t)
	ids = append(ids, env.Insert(gated("second")))
	untilParked(env, 1)
	ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "third", Gate: "w"})}))
	if text := lab.awaitBegin(t); text != "third" { // it has the place of a that the second gave back
		t.Error(text)
	}
	lab.tell(t, "g", Order{})
	if text := lab.awaitBegin(t); text != "second" {
		t.Error(text)
	}
	lab.tell(t, "g", Order{})
	lab.tell(t, "w", Order{})
	succeed(t, env, ids...)
	sound(t, env)
}

// A call that gives a place back waits no longer in all than its rule says.
func TestTheTimeInSeveralQueuesCountsTogether(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t,
		`{"name": "b", "tools": ["lab.send"], "action": "wait", "running": {"max": 1}}`,
		`{"name": "a", "tools": ["lab.send", "lab.write"], "action": "wait", "running": {"max": 1}}`))
	env.StartWorker()
	ids := []string{env.Insert(gated("first"))}
	lab.awaitBegin(t)
	ids = append(ids, env.Insert(gated("second"))) // waits for b
	untilParked(env, 1)
	ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "third", Gate: "w"})}))
	untilParked(env, 2) // for a
	lab.tell(t, "g", Order{})
	if text := lab.awaitBegin(t); text != "third" {
		t.Error(text)
	}
	untilParked(env, 1) // the second, for a
	if n := testdb.Value[int](t, env.DB, "select count(distinct data ->> 'expires_at') + 10 * count(*) from "+
		"core_tool_events where call_id = $1 and event = 'waiting'", ids[1]); n != 21 {
		t.Errorf("it waited %d times, until %d times", n/10, n%10)
	}
	lab.tell(t, "w", Order{})
	lab.awaitBegin(t)
	lab.tell(t, "g", Order{})
	succeed(t, env, ids...)
	sound(t, env)
}

// A call that has made progress loses it if it fails, so it waits although the rule blocks others.
func TestARuleThatBlocksLetsACallThatMadeProgressWait(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t,
		`{"name": "one", "tools": ["lab.send", "tree.run"], "action": "block", "running": {"max": 1}}`))
	env.StartWorker()
	parent := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "hear e; wait e"})})
	env.UntilItWaits(parent, "answer")
	first := env.Insert(gated("first"))
	lab.awaitBegin(t)
	env.Answer(parent, "x", "e")
	untilParked(env, 1)
	lab.tell(t, "g", Order{})
	succeed(t, env, first, parent)
	sound(t, env)
}

// Somebody else may have locked the row of the call that gets a place.
func TestACallWhoseRowIsLockedGetsItsPlaceAndWakesLater(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t, oneAtOnce))
	env.StartWorker()
	first := env.Insert(gated("first"))
	lab.awaitBegin(t)
	second := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "second"})})
	untilParked(env, 1)
	locks, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Exec(t.Context(), "select from core_tool_calls where id = $1 for update", second); err != nil {
		t.Fatal(err)
	}
	lab.tell(t, "g", Order{})
	env.Await(first)
	if got := places(t, env); got[len(got)-1] != "second took 1" {
		t.Errorf("%q", got)
	}
	if err := locks.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	succeed(t, env, second)
	sound(t, env)
}

// A key is free while its call waits for a place, and a call that waits counts in no limit.
func TestACallThatWaitsForAPlaceHoldsNoKeyAndCountsNowhere(t *testing.T) {
	t.Parallel()
	env, lab := startRuledLab(t, ruledBy(t, oneAtOnce,
		`{"name": "many", "tools": ["lab.*"], "action": "block", "limit": {"max": 9, "within": "1h"}}`))
	env.StartWorker()
	first := env.Insert(gated("first"))
	lab.awaitBegin(t)
	second := env.Insert(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "second", Key: "k"})})
	untilParked(env, 1)
	if got := testdb.Value[string](t, env.DB, "select concat_ws(' ', (select count(*) from gem.held_keys), "+
		"(select count(*) from gem.rule_runs))"); got != "0 1" {
		t.Error("keys and counted calls:", got)
	}
	lab.tell(t, "g", Order{})
	env.Await(first)
	if r := env.Await(second); r.Status != receipts.Succeeded || r.IdempotencyKey == "" {
		t.Error(r)
	}
	sound(t, env)
}

// A deploy may change or remove a rule while calls have places or wait for them.
func TestPlacesFollowTheRulesOfTheNextDeploy(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"more places": strings.Replace(oneAtOnce, `"max": 1`, `"max": 3`, 1),
		"no rule":     `{"name": "other", "tools": ["lab.*"], "action": "warn", "limit": {"max": 9, "within": "1h"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startRuledLab(t, ruledBy(t, oneAtOnce))
			old := env.StartWorker()
			env.Insert(gated("first")) // ends with its worker
			lab.awaitBegin(t)
			ids := []string{env.Insert(gated("second"))}
			untilParked(env, 1)
			set, err := rules.Parse([]byte(`{"version": "2.0.0", "rules": [` + rule + `]}`))
			if err != nil {
				t.Fatal(err)
			}
			env.StartWorker(func(o *worker.Options) { o.Rules = set })
			old.Stop()
			ids = append(ids, env.Insert(gated("third")))
			for range 2 {
				lab.awaitBegin(t)
				sound(t, env)
				lab.tell(t, "g", Order{})
			}
			succeed(t, env, ids...)
			sound(t, env)
		})
	}
}

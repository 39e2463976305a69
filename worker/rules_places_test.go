package worker_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgconn"
)

// stopsAt halts a worker the first time it reaches a point: reached is closed then, and the worker continues when
// goOn is called.
func stopsAt(t *testing.T, point string) (change func(*worker.Options), reached chan struct{}, goOn func()) {
	t.Helper()
	reached = make(chan struct{})
	free := make(chan struct{})
	var once sync.Once
	return func(o *worker.Options) {
		worker.SetHook(o, func(at string) {
			if at != point {
				return
			}
			once.Do(func() {
				close(reached)
				select {
				case <-free:
				case <-t.Context().Done():
				}
			})
		})
	}, reached, func() { close(free) }
}

func await(t *testing.T, what string, c chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("%s never happened", what)
	}
}

// A worker dies after the gate let a call through: on the next one the call has the place that it took.
func TestACallThatLostItsWorkerKeepsItsPlace(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "one", "tools": ["lab.write"], "action": "block", "limit": {"max": 1, "within": "1h"}}`))
	stops, counted, goOn := stopsAt(t, "after gate")
	first := env.StartWorker(stops)
	id := env.Insert(inSession("s", "lab.write", "x"))
	await(t, "the gate", counted)
	first.Kill()
	goOn()
	env.StartWorker()
	if r := env.Await(id); codeOf(r) != "succeeded" || r.Attempt != 2 || rowsWith(t, env, "x") != 1 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 1 {
		t.Errorf("the counter has %d rows", n)
	}
	sound(t, env)
}

// A call whose key is another's is counted when it runs, and not when it comes to wait.
func TestACallThatWaitedForItsKeyIsCountedOnce(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "two", "tools": ["lab.nothing"], "action": "block", "limit": {"max": 2, "within": "1h"}}`))
	stops, runs, goOn := stopsAt(t, "before handler")
	env.StartWorker(stops)
	fails := handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "k", Then: "fail"})}
	first := env.Insert(fails)
	await(t, "the first call", runs)
	second := env.Insert(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "k"})})
	env.Until("the second to wait", func() bool { return slices.Contains(env.Journal(second), "waiting") })
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 1 {
		t.Errorf("while one runs and one waits the counter has %d rows", n)
	}
	goOn()
	if a, b := env.Await(first), env.Await(second); codeOf(a) != "execution_error" || codeOf(b) != "succeeded" {
		t.Errorf("got %s, %s", a.Result, b.Result)
	}
	third := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "l"})})
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 2 || codeOf(third) != "limit_reached" {
		t.Errorf("the counter has %d rows, and the third call is told %s", n, third.Result)
	}
	sound(t, env)
}

// While people are asked others take the places: what they approved is then told that there is none.
func TestACallThatWaitsForPeopleTakesNoPlace(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, asks, `{"name": "one", "tools": ["lab.write"], "action": "block", "limit": {"max": 1, "within": "1h"}}`))
	financed(t, env)
	env.StartWorker()
	dear := env.Insert(inSession("s", "lab.write", "dear"))
	question := questionOf(t, env, dear)
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 0 {
		t.Errorf("the counter has %d rows", n)
	}
	if r := env.Run(inSession("s", "lab.write", "cheap")); codeOf(r) != "succeeded" {
		t.Errorf("got %s", r.Result)
	}
	// Nobody is asked in vain: the limit comes first.
	if r := env.Run(inSession("s", "lab.write", "dear, and too late")); codeOf(r) != "limit_reached" {
		t.Errorf("got %s", r.Result)
	}
	if err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, ""); err != nil {
		t.Fatal(err)
	}
	if r := env.Await(dear); codeOf(r) != "limit_reached" {
		t.Errorf("got %s", r.Result)
	}
	if n := number(t, env, "select count(*) from core_tool_calls where tool_name = 'wait.approval'"); n != 1 {
		t.Errorf("people were asked %d times", n)
	}
	sound(t, env)
}

// A turn that was cancelled is given to nobody else, and no later one comes earlier for it.
func TestACancelledTurnIsNobodyElses(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "pace", "tools": ["lab.write"], "action": "wait", "at_most": "24h", "limit": {"max": 1, "within": "1h"}}`))
	env.StartWorker()
	env.Run(inSession("s", "lab.write", "0"))
	turn := func() (id string) {
		id = env.Insert(inSession("s", "lab.write", "x"))
		env.Until("it to have a turn", func() bool { return slices.Contains(env.Journal(id), "delayed") })
		return id
	}
	second, third := turn(), turn()
	if _, err := client.Cancel(t.Context(), env.DB, second); err != nil {
		t.Fatal(err)
	}
	if r := env.Await(second); codeOf(r) != "cancelled" {
		t.Errorf("got %s", r.Result)
	}
	fourth := turn()
	var apart []int
	if err := env.DB.QueryRow(t.Context(), `select array_agg(round(extract(epoch from r.at - first.at) / 3600)::int
		order by array_position($1, r.call_id))
		from gem.rule_runs r, gem.rule_runs first where first.n = 1 and r.call_id = any ($1)`,
		[]string{second, third, fourth}).Scan(&apart); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(apart, []int{1, 2, 3}) {
		t.Errorf("the turns come %v hours after the first call", apart)
	}
	if n := number(t, env, "select count(*) from core_tool_calls c join gem.rule_runs r on r.call_id = c.id where "+
		"c.status = 'queued' and c.run_at = r.at"); n != 2 {
		t.Errorf("%d calls are in the queue for their turns", n)
	}
	sound(t, env)
}

// An approval outlives every worker: the workers that asked die, and so does one that was about to run the call.
func TestAnApprovalOutlivesWorkers(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, asks))
	financed(t, env)
	asking, other := env.StartWorker(), env.StartWorker()
	id := env.Insert(inSession("s", "lab.write", "dear"))
	question := questionOf(t, env, id)
	asking.Kill()
	other.Kill()
	stops, approved, goOn := stopsAt(t, "after gate")
	third := env.StartWorker(stops)
	env.Run(inSession("s", "lab.write", "cheap")) // and so the worker lives, and has not run the other
	if n := rowsWith(t, env, "dear"); n != 0 {
		t.Errorf("it ran %d times, and nobody has decided", n)
	}
	if err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, ""); err != nil {
		t.Fatal(err)
	}
	await(t, "the gate of the approved call", approved)
	third.Kill()
	goOn()
	env.StartWorker()
	if r := env.Await(id); codeOf(r) != "succeeded" || rowsWith(t, env, "dear") != 1 {
		t.Errorf("got %s", r.Result)
	}
	sound(t, env)
}

// An approval is of the call, its input, its tool's entry and the rule. Another version of both files that touches none
// of these leaves it open.
func TestADeployAsksAnewWhereItConcernsTheCall(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		entry, field string // what changes
		to           any
		anew         bool
	}{
		"another tool's entry":   {"lab.send", "permissions", []string{"send:any"}, false},
		"the tool's description": {"lab.write", "description", "It says it in other words.", false},
		"the tool's permissions": {"lab.write", "permissions", []string{"send:any"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, id, question := askedAndStopped(t)
			env.StartWorker(ruledAs(t, "2.0.0", asks, `{"name": "other", "tools": ["lab.send"], "action": "warn"}`),
				func(o *worker.Options) {
					o.Registry = changed(t, o.Registry, test.entry, test.field, test.to)
				})
			if err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, ""); err != nil {
				t.Fatal(err)
			}
			if test.anew {
				again := questionOf(t, env, id)
				if again == question || rowsWith(t, env, "dear") != 0 {
					t.Errorf("it was approved as another tool, and ran %d times", rowsWith(t, env, "dear"))
				}
				if err := answerAs(t, env, "carol", again, map[string]any{"approved": true}, ""); err != nil {
					t.Fatal(err)
				}
			}
			if r := env.Await(id); codeOf(r) != "succeeded" || rowsWith(t, env, "dear") != 1 {
				t.Errorf("got %s", r.Result)
			}
			n := number(t, env, "select count(*) from core_tool_calls where tool_name = 'wait.approval'")
			if (n == 2) != test.anew {
				t.Errorf("people were asked %d times", n)
			}
			sound(t, env)
		})
	}
}

// changed returns the next version of a registry, with another value in a field of an entry.
func changed(t *testing.T, r *registry.Registry, name, field string, to any) *registry.Registry {
	t.Helper()
	var of map[string]any
	if err := json.Unmarshal(r.JSON(), &of); err != nil {
		t.Fatal(err)
	}
	of["version"] = "1.1.0"
	for _, entry := range of["tools"].([]any) {
		if tool := entry.(map[string]any); tool["name"] == name {
			tool[field] = to
		}
	}
	text, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	next, err := registry.ParseRecorded(text)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// People who approve and deny at the same moment: one of them is heard, and the call comes to what that one said.
func TestOneOfTwoDecisionsCounts(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, asks))
	financed(t, env)
	if _, err := env.DB.Exec(t.Context(), "insert into gem.roles values ('dan', 'finance')"); err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	for range 5 {
		id := env.Insert(inSession("s", "lab.write", "dear"))
		question := questionOf(t, env, id)
		var approved, denied atomic.Int64
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				yes := i%2 == 0
				err := answerAs(t, env, []string{"carol", "dan"}[i%2], question, map[string]any{"approved": yes}, "")
				var refused *pgconn.PgError
				switch {
				case err == nil && yes:
					approved.Add(1)
				case err == nil:
					denied.Add(1)
				case !errors.As(err, &refused) || refused.Code != "PT409":
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		want := "approval_denied"
		if approved.Load() > 0 {
			want = "succeeded"
		}
		if r := env.Await(id); codeOf(r) != want || min(approved.Load(), denied.Load()) != 0 {
			t.Errorf("%d approvals and %d denials were taken: %s", approved.Load(), denied.Load(), r.Result)
		}
	}
	sound(t, env)
}

// A decision at the end of its time counts, or comes too late: never both.
func TestADecisionAtItsExpiryCountsOrIsRefused(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, asks))
	financed(t, env)
	env.StartWorker()
	for range 3 {
		id := env.Insert(inSession("s", "lab.write", "dear"))
		question := questionOf(t, env, id)
		var all sync.WaitGroup
		var err error
		all.Go(func() { err = answerAs(t, env, "carol", question, map[string]any{"approved": true}, "") })
		env.Pass(25 * time.Hour)
		all.Wait()
		want := "approval_expired"
		if err == nil {
			want = "succeeded"
		}
		if r := env.Await(id); codeOf(r) != want {
			t.Errorf("the decision was answered with %v, and the call with %s", err, r.Result)
		}
	}
	sound(t, env)
}

// Two calls with one key are approved: the second finds that the first has succeeded.
func TestAnApprovedCallWhoseKeySucceededRunsNothing(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, strings.Replace(asks, `"lab.write"`, `"lab.nothing"`, 1),
		`{"name": "many", "tools": ["lab.nothing"], "action": "block", "limit": {"max": 9, "within": "1h"}}`))
	financed(t, env)
	env.StartWorker()
	dear := handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "dear", Key: "k"}), CreatedBy: "ada"}
	first, second := env.Insert(dear), env.Insert(dear)
	questions := []string{questionOf(t, env, first), questionOf(t, env, second)}
	for i, id := range []string{first, second} {
		if err := answerAs(t, env, "carol", questions[i], map[string]any{"approved": true}, ""); err != nil {
			t.Fatal(err)
		}
		env.Await(id)
	}
	ran, hit := env.Await(first), env.Await(second)
	if codeOf(ran) != "succeeded" || ran.ReplayOf != "" || hit.ReplayOf != ran.ID || !idempotency(t, hit).Hit {
		t.Errorf("got %s, %s, a replay of %q", ran.Result, hit.Result, hit.ReplayOf)
	}
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 1 {
		t.Errorf("the counter has %d rows", n)
	}
	sound(t, env)
}

// A call that waits for people, and the answers that it has so far, are not old calls. They leave together, after its
// end.
func TestACallThatWaitsForPeopleIsNotPruned(t *testing.T) {
	t.Parallel()
	second := strings.Replace(asks, `"dear"`, `"twice"`, 1)
	env := startRuled(t, ruledBy(t, asks, second))
	financed(t, env)
	env.StartWorker()
	id := env.Insert(inSession("s", "lab.write", "dear"))
	var questions []string
	env.Until("two questions", func() bool {
		err := env.DB.QueryRow(t.Context(), `select array_agg(k.id::text) from core_tool_calls k
			join core_tool_calls c on c.id = k.parent_call_id
			where c.id = $1 and c.status = 'waiting' and k.status = 'waiting'`, id).Scan(&questions)
		return err == nil && len(questions) == 2
	})
	approve := func(question string) {
		t.Helper()
		if err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, ""); err != nil {
			t.Fatal(err)
		}
	}
	approve(questions[0])
	env.Await(questions[0])
	family := append(slices.Clone(questions), id)
	if n := number(t, env, "select count(*) from gem.prune($1)", family); n != 0 {
		t.Errorf("%d calls were pruned while one of them waits", n)
	}
	approve(questions[1])
	if r := env.Await(id); codeOf(r) != "succeeded" {
		t.Errorf("got %s", r.Result)
	}
	pruned := 0 // the worker's timers may lock a row meanwhile
	env.Until("all three are pruned after the end", func() bool {
		pruned += number(t, env, "select count(*) from gem.prune($1)", family)
		return pruned == 3
	})
	sound(t, env)
}

// What a call is judged by was there when it was made, whichever call a worker takes first.
func TestTheOrderOfClaimsChangesNoVerdict(t *testing.T) {
	t.Parallel()
	for name, priorities := range map[string][3]int{"as they were made": {3, 2, 1}, "the last first": {1, 2, 3},
		"the one that is looked for first": {1, 3, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := startRuled(t,
				ruledBy(t, `{"name": "look", "tools": ["lab.write"], "action": "block", "requires": {"tool": "lab.send"}}`,
					`{"name": "never_after", "tools": ["lab.nothing"], "action": "block", "after": {"tools": ["lab.send"], "ended": ["succeeded"]}}`))
			var ids []string
			for i, tool := range []string{"lab.write", "lab.send", "lab.nothing"} {
				ids = append(ids, env.Insert(handlertest.Call{Tool: tool, Input: task(Task{Text: "x", Key: "a"}), CreatedBy: "ada",
					Session: "s", Priority: priorities[i]}))
			}
			w := env.StartWorker(one)
			var ends []string
			for _, id := range ids {
				ends = append(ends, codeOf(env.Await(id)))
			}
			for _, tool := range []string{"lab.write", "lab.nothing"} { // made after it
				ends = append(ends, codeOf(env.Run(handlertest.Call{Tool: tool, Input: task(Task{Text: "x", Key: "b"}),
					CreatedBy: "ada", Session: "s"})))
			}
			w.Stop()
			if want := []string{"rule_blocked", "succeeded", "succeeded", "succeeded", "rule_blocked"}; !slices.Equal(ends,
				want) {
				t.Errorf("got %v", ends)
			}
			sound(t, env)
		})
	}
}

package worker_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

// questionUnder returns the open question that a call asks.
func questionUnder(t *testing.T, env *handlertest.Env, id string) (question string) {
	t.Helper()
	env.Until("the question", func() bool {
		return env.DB.QueryRow(t.Context(), `select id::text from core_tool_calls where parent_call_id = $1
			and waits_for = 'answer'`, id).Scan(&question) == nil
	})
	return question
}

// claimsOf returns how often a call and the questions under it were claimed.
func claimsOf(t *testing.T, env *handlertest.Env, id string) (own, ofQuestions int) {
	t.Helper()
	const claims = `select count(*) from core_tool_events e join core_tool_calls c on c.id = e.call_id
		where e.event = 'claimed' and `
	return number(t, env, claims+"c.id = $1", id),
		number(t, env, claims+"c.parent_call_id = $1 and c.tool_name like 'wait.%'", id)
}

// Its parent is claimed to ask, and to continue.
func TestAQuestionThatAHandlerOrARuleAsksIsNotClaimed(t *testing.T) {
	t.Parallel()
	yes, no := map[string]any{"approved": true}, map[string]any{"approved": false, "reason": "too dear"}
	for name, test := range map[string]struct {
		script  string // of tree.run; empty: a call about which a rule asks
		wrong   any    // an answer that is refused
		answer  any    // by carol; nil: none
		instead func(t *testing.T, env *handlertest.Env, id, question string)
		want    string // the text of the result, or the error code
		journal []string
	}{
		"an answer": {script: "step x; ask a user:carol; wait a; step y", wrong: 1, answer: "blue",
			want: "x, blue by carol, y", journal: []string{"queued", "waiting", "answered", "succeeded"}},
		"an event": {script: "event a user:carol; wait a", answer: "paid", want: "paid by carol",
			journal: []string{"queued", "waiting", "answered", "succeeded"}},
		"an approval": {script: "approve a lab.send role:finance; wait a; approved b a", wrong: map[string]any{"approved": 1},
			answer: yes, want: "true by carol", journal: []string{"queued", "waiting", "answered", "succeeded"}},
		"a denial": {script: "approve a lab.send role:finance; wait a; approved b a; wait b", answer: no,
			want:    "false by carol too dear, not_allowed",
			journal: []string{"queued", "waiting", "answered", "succeeded"}},
		"an approval for a rule": {answer: yes, wrong: "yes", want: "dear",
			journal: []string{"queued", "waiting", "answered", "succeeded"}},
		"a denial for a rule": {answer: no, want: "approval_denied",
			journal: []string{"queued", "waiting", "answered", "succeeded"}},
		"an answer that does not come": {script: "until 50; ask a; wait a; step y", want: "timeout, y",
			journal: []string{"queued", "waiting", "timed_out", "failed"}},
		"an approval that does not come": {script: "until 50; approve a lab.send role:finance; wait a",
			want: "false by  expired", journal: []string{"queued", "waiting", "timed_out", "succeeded"}},
		"an approval for a rule that does not come": {instead: passADay, want: "approval_expired",
			journal: []string{"queued", "waiting", "timed_out", "succeeded"}},
		"a cancellation of the question": {script: "ask a; wait a; step y", want: "cancelled, y",
			instead: func(t *testing.T, env *handlertest.Env, _, question string) {
				t.Helper()
				if got, err := client.Cancel(t.Context(), env.DB, question); got != "cancelled" || err != nil {
					t.Errorf("cancelling the question returns %s (%v)", got, err)
				}
			},
			journal: []string{"queued", "waiting", "failed"}},
		"a cancellation of its parent": {script: "ask a; wait a; step y", want: "cancelled",
			instead: func(t *testing.T, env *handlertest.Env, id, _ string) {
				t.Helper()
				if _, err := client.Cancel(t.Context(), env.DB, id); err != nil {
					t.Fatal(err)
				}
			},
			journal: []string{"queued", "waiting", "failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var env *handlertest.Env
			call := inSession("s", "lab.write", "dear")
			if test.script == "" {
				env = startRuled(t, ruledBy(t, asks))
			} else {
				call = inSession("s", "tree.run", test.script)
				env, _ = startTree(t, nil)
			}
			financed(t, env)
			env.StartWorker()
			id := env.Insert(call)
			if test.answer != nil || test.instead != nil {
				question := questionUnder(t, env, id)
				env.UntilItWaits(id, "call")
				if test.wrong != nil {
					if err := answerAs(t, env, "carol", question, test.wrong, ""); !store.HasCode(err, "PT422") {
						t.Errorf("an answer that does not fit: %v", err)
					}
				}
				switch {
				case test.instead != nil:
					test.instead(t, env, id, question)
				default:
					if err := answerAs(t, env, "carol", question, test.answer, ""); err != nil {
						t.Fatal(err)
					}
				}
			}
			r := env.Await(id)
			if r.Status == receipts.Succeeded {
				if got := textOf(t, r); got != test.want {
					t.Errorf("got %q, want %q", got, test.want)
				}
			} else if got := codeOf(r); got != test.want {
				t.Errorf("it ended as %s: %s", got, r.Result)
			}
			var question string
			if err := env.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where parent_call_id = $1 and "+
				"tool_name like 'wait.%'", id).Scan(&question); err != nil {
				t.Fatal(err)
			}
			asked := env.Await(question)
			if diff := cmp.Diff(test.journal, env.Journal(question)); diff != "" {
				t.Error(diff)
			}
			if own, of := claimsOf(t, env, id); own != 2 || of != 0 {
				t.Errorf("it was claimed %d times, and its question %d times", own, of)
			}
			if asked.Attempt != 0 || asked.WorkerID != "" || asked.RegistryVersion != r.RegistryVersion ||
				asked.RegistryVersion == "" || asked.DurationMS != 0 {
				t.Errorf("the receipt of the question is %+v", asked)
			}
			env.Until("its parent to be notified", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where waits_for = 'parent'") == 0
			})
			sound(t, env)
		})
	}
}

func passADay(t *testing.T, env *handlertest.Env, _, _ string) {
	t.Helper()
	env.Pass(25 * time.Hour)
}

// The parent's journal has the answer before its handler waits for it, so that it need not be claimed again.
func TestAnAnswerMayComeWhileTheHandlerThatAskedRuns(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil)
	env.StartWorker()
	id := startTreeCall(env, "ask a; step x; start b lab.nothing; first a b; gate c; wait a")
	lab.awaitBegin(t)
	if err := answerAs(t, env, "ada", questionUnder(t, env, id), "early", ""); err != nil {
		t.Fatal(err)
	}
	env.Until("its handler to be able to read it", func() bool {
		return number(t, env, `select count(*) from core_tool_events
			where call_id = $1 and event = 'returned' and data ->> 'name' = 'a'`, id) == 1
	})
	lab.tell(t, "c", Order{})
	if got := textOf(t, env.Await(id)); got != "x, first b, early by ada" {
		t.Errorf("got %q", got)
	}
	if own, of := claimsOf(t, env, id); own != 2 || of != 0 {
		t.Errorf("it was claimed %d times, and its question %d times", own, of)
	}
	sound(t, env)
}

// A question of a handler and the same question of a frontend end with the same result.
func TestAQuestionEndsAlikeWhetherItWasClaimedOrNot(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	financed(t, env)
	env.StartWorker()
	for name, test := range map[string]struct {
		script string
		answer any
	}{
		"an answer": {"ask a role:finance; wait a", "blue"},
		"an event":  {"event a role:finance; wait a", "paid"},
		"an approval": {"approve a lab.send role:finance; wait a",
			map[string]any{"approved": true, "reason": ""}},
		"a denial": {"approve a lab.send role:finance; wait a",
			map[string]any{"approved": false, "reason": "no"}},
		"an answer that does not come":   {"until 50; ask a; wait a", nil},
		"an approval that does not come": {"until 50; approve a lab.send role:finance; wait a", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := startTreeCall(env, test.script)
			var question string
			env.Until("the question", func() bool {
				return env.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where parent_call_id = $1",
					id).Scan(&question) == nil
			})
			var inserted string // by a frontend
			if err := env.DB.QueryRow(t.Context(), `insert into core_tool_calls (tool_name, input, created_by)
				select tool_name, input, created_by from core_tool_calls where id = $1 returning id::text`, question).
				Scan(&inserted); err != nil {
				t.Fatal(err)
			}
			var results [2]map[string]any
			for i, of := range []string{question, inserted} {
				if test.answer != nil {
					if err := answerAs(t, env, "carol", of, test.answer, ""); err != nil {
						t.Fatal(err)
					}
				}
				r := env.Await(of)
				if err := json.Unmarshal(r.Result, &results[i]); err != nil {
					t.Fatal(err)
				}
				if test.answer != nil {
					delete(results[i], "at")
				}
				if results[i]["at"] != nil { // that of the input, or its microsecond
					at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(results[i]["at"]))
					if err != nil {
						t.Fatal(err)
					}
					results[i]["at"] = at.Round(time.Microsecond).UTC()
				}
				if (r.Attempt == 0) != (i == 0) {
					t.Errorf("%s ended in attempt %d", r.ToolName, r.Attempt)
				}
			}
			if diff := cmp.Diff(results[1], results[0]); diff != "" {
				t.Errorf("claimed (-) and not claimed (+):\n%s", diff)
			}
			env.Await(id)
		})
	}
}

// Whatever may keep a question from being asked, or is to be recorded about it, is decided by a worker that claims it.
func TestAQuestionThatMayNotBeAskedIsClaimed(t *testing.T) {
	t.Parallel()
	questionsBy := func(action string) string {
		return `{"name": "hush", "tools": ["wait.answer"], "action": ` + action + `}`
	}
	for name, test := range map[string]struct {
		rule   string
		script string
		want   string
		claims int
	}{
		"a rule blocks it": {questionsBy(`"block"`), "ask a; wait a", "rule_blocked", 1},
		"a rule limits it": {questionsBy(`"block", "limit": {"max": 1, "within": "1h"}`),
			"ask a; wait a; ask b; wait b", "yes by postgres, limit_reached", 3},
		"a rule warns of it": {questionsBy(`"warn"`), "ask a; wait a", "yes by postgres", 2},
		"a rule looks at its result": {questionsBy(`"warn", "when": {"result": {"by": {"const": "postgres"}}}`),
			"ask a; wait a", "yes by postgres", 2},
		"a rule about other questions": {`{"name": "hush", "tools": ["wait.event"], "action": "block"}`,
			"ask a; wait a", "yes by postgres", 0},
		"its input is not valid": {questionsBy(`"block"`), "approve a lab.send; wait a", "validation_error", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := startRuled(t, ruledBy(t, test.rule))
			env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: test.script})})
			if strings.Contains(test.want, "yes") {
				env.Answer(questionUnder(t, env, id), "yes")
			}
			if got := textOf(t, env.Await(id)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if _, of := claimsOf(t, env, id); of != test.claims {
				t.Errorf("its questions were claimed %d times, want %d", of, test.claims)
			}
			sound(t, env)
		})
	}
}

// Parents learn of answers without notifications too.
func TestAnswersArriveByPollingAlone(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, func(o *worker.Options) { o.ListenURL = "" })
	env.StartWorker()
	answers := map[string]string{}
	for i := range 3 {
		answers[startTreeCall(env, "ask a; wait a")] = fmt.Sprint("answer ", i)
	}
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		env.Answer(questionUnder(t, env, id), answers[id])
	}
	for id, answer := range answers {
		if got := textOf(t, env.Await(id)); got != answer+" by postgres" {
			t.Errorf("got %q", got)
		}
	}
	sound(t, env)
}

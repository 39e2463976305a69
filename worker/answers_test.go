package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func startTreeCall(env *handlertest.Env, script string) string {
	return env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: script}), CreatedBy: "ada"})
}

// answerAs answers as a signed-in user does.
func answerAs(t *testing.T, env *handlertest.Env, subject, callID string, answer any, name string) error {
	t.Helper()
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "select set_config('request.jwt.claims', jsonb_build_object('role', "+
		"'authenticated', 'sub', $1::text)::text, true)", subject); err != nil {
		t.Fatal(err)
	}
	if err := client.Answer(t.Context(), tx, callID, answer, name); err != nil {
		return err
	}
	return tx.Commit(t.Context())
}

func TestAHandlerAsksAndIsAnswered(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, func(o *worker.Options) { o.Concurrency = 1 })
	first := env.StartWorker()
	id := startTreeCall(env, "step x; ask color; wait color; step y")
	q := env.Question(id)
	if q.Text != "color?" || string(q.Asks) != `{"type": "string"}` || !slices.Equal(q.By, []string{"owner"}) ||
		q.Tool != "wait.answer" {
		t.Errorf("the question is %+v", q)
	}
	first.Stop()
	env.StartWorker()
	if err := answerAs(t, env, "bob", q.ID, "red", ""); err == nil {
		t.Error("someone else answered it")
	}
	if err := answerAs(t, env, "ada", q.ID, "blue", ""); err != nil {
		t.Fatal(err)
	}
	if got := textOf(t, env.Await(id)); got != "x, blue by ada, y" {
		t.Errorf("got %q", got)
	}
	if sent := lab.sentSoFar(); !slices.Equal(sent, []string{"x", "y"}) {
		t.Errorf("the steps did %v", sent)
	}
	want := []string{"queued", "waiting", "answered", "succeeded"}
	if diff := cmp.Diff(want, env.Journal(q.ID)); diff != "" {
		t.Error(diff)
	}
	sound(t, env)
}

// An answer is kept that comes before it is waited for, and one under a name of something else passes for nothing.
func TestAnAnswerMayComeFirst(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	id := startTreeCall(env, "hear a; wait a; start b lab.send; wait b; sleep c 60000 1; hear a; wait a")
	for name, answer := range map[string]string{"a": "one", "a#2": "two", "b": "forged", "c": "forged"} {
		if err := answerAs(t, env, "ada", id, answer, name); err != nil {
			t.Fatal(err)
		}
	}
	env.StartWorker()
	env.Until("it to sleep", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where id = $1 and waits_for = 'time'", id) == 1
	})
	if _, err := env.DB.Exec(t.Context(), "update core_tool_calls set wake_at = now() where id = $1", id); err != nil {
		t.Fatal(err)
	}
	if n := number(t, env, "select count(*) from core_tool_events where call_id = $1 and event = 'woken'", id); n > 1 {
		t.Errorf("an answer woke it from its sleep: %d", n)
	}
	if _, err := client.Cancel(t.Context(), env.DB, id); err != nil {
		t.Fatal(err)
	}
	sound(t, env)
}

func TestAWaitForAnAnswerEndsInTime(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	env.StartWorker()
	id := startTreeCall(env, "hear a; wait a 30; hear a; wait a")
	env.Until("its time to come", func() bool { return slices.Contains(env.Journal(id), "timed_out") })
	if err := answerAs(t, env, "ada", id, "late", "a"); !store.HasCode(err, "PT410") {
		t.Errorf("a late answer: %v", err)
	}
	if err := answerAs(t, env, "ada", id, "in time", "a#2"); err != nil {
		t.Error(err)
	}
	if got := textOf(t, env.Await(id)); got != "timeout, in time by ada" {
		t.Errorf("got %q", got)
	}
	sound(t, env)
}

// The first by the journal's order, whatever it is.
func TestAnAnswerOrACallWhicheverIsFirst(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil)
	env.StartWorker()
	id := startTreeCall(env, "start a lab.send gate; hear b; first a b; all a b; first a b")
	lab.awaitBegin(t)
	env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
	if err := answerAs(t, env, "ada", id, "now", "b"); err != nil {
		t.Fatal(err)
	}
	env.Until("it to go on", func() bool {
		return number(t, env, "select count(*) from core_tool_events where call_id = $1 and event = 'claimed'", id) == 2
	})
	lab.tell(t, "a", Order{})
	if got := textOf(t, env.Await(id)); got != "first b, first b" {
		t.Errorf("got %q", got)
	}
	sound(t, env)
}

func TestWhatWasApprovedRuns(t *testing.T) {
	t.Parallel()
	var much strings.Builder // more than is read with the journal
	for i := range 10 {
		fmt.Fprintf(&much, "start c%d lab.nothing large;", i)
	}
	much.WriteString("all c0 c1 c2 c3 c4 c5 c6 c7 c8 c9;")
	for name, c := range map[string]struct {
		script string
		answer map[string]any
		want   string
	}{
		"behind much": {much.String() + "approve a lab.send role:boss; wait a; wait c9; approved b a; wait b",
			map[string]any{"approved": true}, "true by bea, 900000, a"},
		"approved": {"approve a lab.send role:boss; wait a; approved b a; wait b",
			map[string]any{"approved": true}, "true by bea, a"},
		"denied": {"approve a lab.send role:boss; wait a; approved b a; wait b",
			map[string]any{"approved": false, "reason": "too dear"}, "false by bea too dear, not_allowed"},
		"not waited for": {"approve a lab.send role:boss; approved b a; wait b; wait a",
			map[string]any{"approved": true}, "not_allowed, true by bea"},
		"of a tool not listed": {"approve a comms.send role:boss; approved b a; wait b; ask c; wait c", nil,
			"not_allowed, ok by owner"},
		"without anyone": {"approve a lab.send; wait a; approved b a; wait b; ask c; wait c", nil,
			"validation_error, validation_error, ok by owner"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := startTree(t, nil)
			if _, err := env.DB.Exec(t.Context(), "insert into gem.roles values ('bea', 'boss'), ('ada', 'boss')"); err != nil {
				t.Fatal(err)
			}
			env.StartWorker()
			id := startTreeCall(env, c.script)
			if c.answer == nil {
				env.Answer(env.Question(id).ID, "ok")
			} else {
				var question string
				env.Until("the approval", func() bool {
					_ = env.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where tool_name = 'wait.approval' and "+
						"status = 'waiting'").Scan(&question)
					return question != ""
				})
				if err := answerAs(t, env, "ada", question, c.answer, ""); err == nil {
					t.Error("the one who asks approved it")
				}
				if err := answerAs(t, env, "bea", question, c.answer, ""); err != nil {
					t.Fatal(err)
				}
			}
			got := textOf(t, env.Await(id))
			if got = strings.Replace(got, "ok by postgres", "ok by owner", 1); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			sound(t, env)
		})
	}
}

// A question is a call that any frontend may make.
func TestAFrontendAsksToo(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	env.StartWorker()
	for name, c := range map[string]struct{ tool, input, answer, want string }{
		"a number": {"wait.answer", `{"text": "How many?", "schema": {"type": "integer", "minimum": 1}}`, `3`,
			`"answer": 3`},
		"an object": {"wait.answer",
			`{"text": "Which?", "schema": {"type": "object", "properties": {"size": {"type": "string", "enum": ["s", "m"]}}, "required": ["size"]}}`, `{"size": "m"}`, `"answer": {"size": "m"}`},
		"an event": {"wait.event", `{}`, `{"paid": [1, 2]}`, `"event": {"paid": [1, 2]}`},
		"its time has come": {"wait.answer", `{"text": "When?", "until": "2020-01-01T00:00:00Z"}`, ``,
			`"error_code": "timeout"`},
		"an approval that expired": {"wait.approval",
			`{"tool": "a.b", "input": {}, "by": ["role:x"], "until": "2020-01-01T00:00:00Z", "digest": "` +
				strings.Repeat("0", 64) + `"}`,
			``, `"reason": "expired"`},
		"a schema that is not flat": {"wait.answer", `{"text": "What?", "schema": {"type": "array"}}`, ``,
			`"error_code": "validation_error"`},
		"nobody who may answer": {"wait.answer", `{"text": "What?", "by": []}`, ``, `"error_code": "validation_error"`},
		"a time that is none": {"wait.answer", `{"text": "What?", "until": "tomorrow"}`, ``,
			`"error_code": "validation_error"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := env.Insert(handlertest.Call{Tool: c.tool, Input: c.input, CreatedBy: "ada", SignedIn: true})
			if c.answer != "" {
				q := env.Question(id)
				env.Answer(q.ID, json.RawMessage(c.answer))
			}
			if r := env.Await(id); !strings.Contains(string(r.Result), c.want) {
				t.Errorf("%s: %s", r.Status, r.Result)
			}
		})
	}
}

// A resumed call looks again, and waits again, with one question.
func TestAResumedCallWaitsAgain(t *testing.T) {
	t.Parallel()
	env, lab := startTree(t, nil)
	env.StartWorker()
	id := startTreeCall(env, "step x; ask a; wait a")
	q := env.Question(id)
	env.UntilItWaits(id, "call")
	for _, call := range []string{id, q.ID} {
		waits := number(t, env, "select count(*) from core_tool_events where call_id = $1 and event = 'waiting'", call)
		if resumed, err := client.Resume(t.Context(), env.DB, call); err != nil || !resumed {
			t.Fatalf("resumed %t, %v", resumed, err)
		}
		env.Until("it to wait again", func() bool {
			return number(t, env, "select count(*) from core_tool_events where call_id = $1 and event = 'waiting'",
				call) == waits+1
		})
	}
	if n := number(t, env, "select count(*) from core_tool_calls where tool_name = 'wait.answer'"); n != 1 {
		t.Errorf("%d questions", n)
	}
	env.Answer(q.ID, "b")
	env.Await(id)
	if sent := lab.sentSoFar(); !slices.Equal(sent, []string{"x"}) {
		t.Errorf("the steps did %v", sent)
	}
	if resumed, err := client.Resume(t.Context(), env.DB, id); err != nil || resumed {
		t.Errorf("an ended call was resumed: %t, %v", resumed, err)
	}
	sound(t, env)
}

// Two waiting calls of one user: each answer reaches its own.
func TestEachAnswerReachesItsOwnQuestion(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	env.StartWorker()
	one, two := startTreeCall(env, "ask a; wait a"), startTreeCall(env, "ask a; wait a")
	q2, q1 := env.Question(two), env.Question(one)
	env.Answer(q2.ID, "second")
	env.Answer(q1.ID, "first")
	for id, want := range map[string]string{one: "first by", two: "second by"} {
		if got := textOf(t, env.Await(id)); !strings.HasPrefix(got, want) {
			t.Errorf("got %q", got)
		}
	}
}

// Answers, cancellations and the deadline of a question happen at the same moment, on two workers. Exactly one wins,
// and every caller learns the truth.
func TestAnAnswerAtTheMomentOfAnotherEnd(t *testing.T) {
	t.Parallel()
	calls := 150
	if os.Getenv("GEM_TEST_LONG") != "" {
		calls = 10_000
	}
	env, _ := startTree(t, nil)
	env.StartWorker()
	env.StartWorker()
	rows, err := env.DB.Query(t.Context(), `insert into core_tool_calls (tool_name, input)
		select 'wait.answer', jsonb_build_object('text', '?', 'until',
			to_char((now() + interval '1 hour') at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
		from generate_series(1, $1) returning id::text`, calls)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	env.Until("all to wait", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where status = 'waiting'") == calls
	})

	var told sync.Map // the answer that was taken, by call
	var all sync.WaitGroup
	for part := range 8 {
		all.Go(func() {
			for i := part / 4; i < len(ids); i += 2 { // four at each call
				switch id := ids[i]; part % 4 {
				case 0, 1:
					answer := fmt.Sprint("from ", part)
					if err := client.Answer(context.Background(), env.DB, id, answer, ""); err == nil {
						if _, twice := told.Swap(id, answer); twice {
							t.Errorf("two answers to %s were taken", id)
						}
					}
				case 2:
					if i%3 == 0 {
						_, _ = client.Cancel(context.Background(), env.DB, id)
					}
				case 3:
					if i == len(ids)/2&^1 {
						env.Pass(time.Hour)
					}
				}
			}
		})
	}
	all.Wait()
	env.Until("all to end", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting')") == 0
	})
	for _, id := range ids {
		r := env.Await(id)
		answer, taken := told.Load(id)
		var result struct{ Answer string }
		_ = json.Unmarshal(r.Result, &result)
		if r.Status == receipts.Succeeded && (!taken || result.Answer != answer) {
			t.Errorf("%s succeeded with %q, and the answer that was taken is %v", id, result.Answer, answer)
		}
		if code := errorCode(r); taken && r.Status != receipts.Succeeded && code != receipts.Cancelled {
			t.Errorf("the answer to %s was taken, and it ended as %s", id, code)
		}
	}
	sound(t, env)
}

func errorCode(r *receipts.Receipt) receipts.Code {
	e, _ := r.Error()
	return e.Code
}

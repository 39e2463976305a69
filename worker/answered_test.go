package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

// An answer that was accepted before someone cancels the question counts. It ends a question that no worker has
// claimed. One that someone resumed ends with its next claim.
func TestAnAcceptedAnswerOutlivesTheCancellationOfItsQuestion(t *testing.T) {
	t.Parallel()
	const cancel = "select string_agg(outcome, ' ') from gem.operator_cancel(array[$1]::uuid[], 'oscar', null, true)"
	for name, test := range map[string]struct {
		resumed  bool
		status   string // of the question when it is answered
		decision bool
		want     string
	}{
		"denied, unclaimed":          {true, "queued", false, "approval_denied"},
		"approved, unclaimed":        {true, "queued", true, "succeeded"},
		"denied, waiting, claimed":   {true, "waiting", false, "approval_denied"},
		"approved, waiting, claimed": {true, "waiting", true, "succeeded"},
		"denied, waiting":            {false, "waiting", false, "approval_denied"},
		"approved, waiting":          {false, "waiting", true, "succeeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := startRuled(t, ruledBy(t, asks))
			financed(t, env)
			first := env.StartWorker()
			id := env.Insert(inSession("s", "lab.write", "dear"))
			question, claims := questionUnder(t, env, id), 0
			if test.status == "queued" {
				first.Stop()
			}
			if test.resumed {
				if resumed, err := client.Resume(t.Context(), env.DB, question); err != nil || !resumed {
					t.Fatalf("resumed %t, %v", resumed, err)
				}
				claims = map[string]int{"queued": 0, "waiting": 1}[test.status]
			}
			env.Until("the question", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where id = $1 and status = $2 and attempt = $3",
					question, test.status, claims) == 1
			})
			first.Stop()
			if err := answerAs(t, env, "carol", question, map[string]any{"approved": test.decision}, ""); err != nil {
				t.Fatal(err)
			}
			cancelled := "requested"
			if !test.resumed {
				cancelled = "succeeded"
			}
			for range 2 {
				if got := testdb.Value[string](t, env.DB, cancel, question); got != cancelled {
					t.Errorf("cancelling the question returns %q", got)
				}
			}
			env.Pass(2 * time.Hour)
			env.StartWorker()
			if got := codeOf(env.Await(id)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if n := number(t, env, "select count(*) from core_tool_calls where parent_call_id = $1", id); n != 1 {
				t.Errorf("people were asked %d times", n)
			}
			sound(t, env)
		})
	}
	t.Run("of a call of its own", func(t *testing.T) {
		t.Parallel()
		env := startRuled(t, nil)
		id := env.Insert(handlertest.Call{Tool: "wait.answer", Input: `{"text": "When?"}`, CreatedBy: "ada"})
		if err := answerAs(t, env, "ada", id, "now", ""); err != nil {
			t.Fatal(err)
		}
		if got := testdb.Value[string](t, env.DB, cancel, id); got != "requested" {
			t.Errorf("cancelling the question returns %q", got)
		}
		env.StartWorker()
		if r := env.Await(id); r.Status != receipts.Succeeded {
			t.Errorf("%s: %s", r.Status, r.Result)
		}
		sound(t, env)
	})
}

// A question that a frontend scheduled opens at its time, as other calls run at theirs. Until then no worker has
// checked its input, so an accepted answer could end as a validation error.
func TestAScheduledQuestionTakesNoAnswerBeforeItOpens(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ input, want string }{
		"valid":                  {`{"text": "When?"}`, "succeeded"},
		"without a text":         {`{"by": ["owner"]}`, "validation_error"},
		"whose form is not flat": {`{"text": "When?", "schema": {"type": "string", "pattern": "^1"}}`, "validation_error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := startRuled(t, nil)
			id := testdb.Value[string](t, env.DB, `insert into core_tool_calls (tool_name, input, created_by, run_at) values
				('wait.answer', $1, 'ada', date_trunc('minute', gem.now()) + interval '1 day') returning id::text`, test.input)
			opens := testdb.Value[string](t, env.DB, `select to_char(run_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC')
				from core_tool_calls where id = $1`, id)
			err := answerAs(t, env, "ada", id, "now", "")
			if !store.HasCode(err, "PT409") || !strings.Contains(err.Error(), "opens at "+opens+", and takes no answer before") {
				t.Errorf("an early answer: %v", err)
			}
			if err := answerAs(t, env, "bob", id, "now", ""); err == nil || strings.Contains(err.Error(), "opens") {
				t.Errorf("an early answer of someone who may not answer: %v", err)
			}
			env.Pass(25 * time.Hour)
			env.StartWorker()
			if test.want == "succeeded" {
				env.Until("the question", func() bool {
					return number(t, env, "select count(*) from core_tool_calls where id = $1 and waits_for = 'answer'", id) == 1
				})
				if err := answerAs(t, env, "ada", id, "now", ""); err != nil {
					t.Errorf("an answer in time: %v", err)
				}
			}
			if got := codeOf(env.Await(id)); got != test.want {
				t.Errorf("it ended as %s, want %s", got, test.want)
			}
			sound(t, env)
		})
	}
}

// A worker may have put the question back for a while. Once it is answered nothing is left to wait for, and nobody can
// cancel it any more.
func TestAnAnswerMakesAQuestionDueThatPauses(t *testing.T) {
	t.Parallel()
	env := startRuled(t, nil)
	id := env.Insert(handlertest.Call{Tool: "wait.answer", Input: `{"text": "When?"}`, CreatedBy: "ada"})
	for _, sql := range []string{"select gem.start_worker('w', 1, '', '', '1 hour', '{steps}')",
		"select gem.claim('w', 1, true)", `select gem.retry(id, 1, 'w',
			'{"error_code": "execution_error", "message": "not yet", "details": null}', 9, '15 minutes') from core_tool_calls`,
		"select gem.stop_worker('w')"} {
		if _, err := env.DB.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if n := number(t, env, "select count(*) from core_tool_calls where id = $1 and run_at > gem.now()", id); n != 1 {
		t.Fatal("the question does not pause")
	}
	if err := answerAs(t, env, "ada", id, "now", ""); err != nil {
		t.Fatal(err)
	}
	sound(t, env) // run_at is what the journal says
	if n := number(t, env, "select count(*) from core_tool_calls where id = $1 and run_at <= gem.now()", id); n != 1 {
		t.Fatal("the question is not due")
	}
	env.StartWorker()
	if r := env.Await(id); r.Status != receipts.Succeeded {
		t.Errorf("%s: %s", r.Status, r.Result)
	}
	sound(t, env)
}

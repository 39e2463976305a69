package sdks

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/npmrig"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

// each runs a test with the service of each language.
func each(t *testing.T, test func(t *testing.T, env *handlertest.Env, s *service)) {
	t.Helper()
	t.Parallel()
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			env, s := begin(t, language)
			test(t, env, s)
		})
	}
}

// A refund asks a question and for an approval, and then makes exactly the approved call.
func TestAServiceAsksAndMakesTheApprovedCall(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		testdb.Exec(t, env.DB, "insert into gem.roles (subject, role) values ('boss', 'boss')")
		id := env.Insert(handlertest.Call{Tool: "remote.refund", Input: `{"order": "A7"}`, CreatedBy: "ann"})
		question := child(t, env, id, "reason")
		testdb.Exec(t, env.DB, `select answer_tool_call($1, '"broken"')`, question)
		approval := child(t, env, id, "approval")
		if text := testdb.Value[string](t, env.DB, "select input ->> 'text' from core_tool_calls where id = $1",
			approval); text != "broken" {
			t.Errorf("the approval asks %q", text)
		}
		testdb.Exec(t, env.DB, `begin; set local role gem_frontend;
			set local request.jwt.claims = '{"sub": "boss", "role": "gem_frontend"}';
			select answer_tool_call('`+approval+`', '{"approved": true}'); commit`)
		if got := told(env.Await(id)); got != `succeeded {"paid": 4200}` {
			t.Error(got)
		}
		if pay := child(t, env, id, "pay"); testdb.Value[string](t, env.DB,
			"select input::text from core_tool_calls where id = $1", pay) != `{"cents": 4200, "order": "A7"}` {
			t.Error("the call has another input")
		}
	})
}

// child waits for a child of a call, and returns its id.
func child(t *testing.T, env *handlertest.Env, parent, step string) (id string) {
	t.Helper()
	env.Until("the child "+step, func() bool {
		return env.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where parent_call_id = $1 and "+
			"parent_step = $2 and status <> 'queued'", parent, step).Scan(&id) == nil
	})
	return id
}

func TestAServiceCannotForgeAnApproval(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		if got := told(env.Run(handlertest.Call{Tool: "remote.forge"})); !strings.Contains(got, `"not_allowed"`) {
			t.Error(got)
		}
	})
}

// play runs a program of operations.
func play(t *testing.T, env *handlertest.Env, program string) string {
	t.Helper()
	return told(env.Run(handlertest.Call{Tool: "remote.play", Input: `{"program": ` + program + `}`}))
}

func TestOperationsReturnWhatTheJournalHas(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		for program, want := range map[string]string{
			`[]`: `{"out": []}`,
			`[{"do": "step", "name": "a", "value": 1}, {"do": "step", "name": "a", "value": 2}]`: `{"out": [1, 2]}`,
			`[{"do": "once", "name": "a", "value": {"x": null}}]`:                                `{"out": [{"x": null}]}`,
			`[{"do": "call", "name": "c", "value": "é"}]`:                                        `{"out": ["é"]}`,
			`[{"do": "all", "of": [{"name": "c", "value": 1}, {"name": "c", "value": 2}]}]`:      `{"out": [[1, 2]]}`,
			`[{"do": "together", "ops": [{"do": "step", "name": "a", "value": 1}, {"do": "call", "name": "c", "value": 2},
				{"do": "sleep", "name": "s"}, {"do": "once", "name": "o", "value": 3}]}]`: `{"out": [[1, 2, null, 3]]}`,
			`[{"do": "step", "name": "a", "error": "no"}, {"do": "step", "name": "b", "value": 1}]`: `{"out": ["of_mine: no", 1]}`,
			`[{"do": "step", "name": "a", "transient": 2, "value": 1}]`:                             `{"out": [1]}`,
			`[{"do": "late", "name": "a"}]`:                                                         `{"out": ["timeout: Nothing arrived within the time limit of the wait."]}`,
			`[{"do": "version", "name": "v", "value": 3}]`:                                          `{"out": [3]}`,
			`[{"do": "tools", "name": "t"}]`:                                                        `{"out": [["go.echo", "remote.pay", "wait.answer", "wait.approval"]]}`,
		} {
			if got := play(t, env, program); got != "succeeded "+want {
				t.Errorf("%s: %s", program, got)
			}
		}
		failed := play(t, env, `[{"do": "fail", "error": "no", "fatal": true}]`)
		var got struct{ Error map[string]any }
		if err := json.Unmarshal([]byte(strings.TrimPrefix(failed, "failed ")), &got); err != nil {
			t.Fatal(failed, err)
		}
		if diff := cmp.Diff(map[string]any{"error_code": "of_mine", "message": "no", "details": []any{1.0}},
			got.Error); diff != "" {
			t.Error(diff)
		}
	})
}

// A service that dies in a step that must not run twice does not run it again.
func TestAStepThatMustNotRunTwiceIsUnknownAfterItsServiceDied(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, s *service) {
		id := env.Insert(handlertest.Call{Tool: "remote.unknown"})
		env.Until("the service is gone", func() bool {
			return strings.Contains(strings.Join(env.Journal(id), " "), "retried")
		})
		s.kill()
		s.start()
		env.Pass(2 * time.Minute) // the attempts may be used up by now
		if got := told(env.Await(id)); got != `succeeded "unknown"` {
			t.Error(got)
		}
	})
}

// The rows and the end of a stepTx commit together, once, whatever the service says afterwards.
func TestRowsAndTheirStepCommitTogether(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		if _, err := exec.LookPath("psql"); err != nil {
			npmrig.Missing(t, "psql is missing: install postgresql-client")
		}
		for input, want := range map[string]string{
			`{}`:                `succeeded "x"`,
			`{"text": "it's"}`:  `succeeded "it's"`,
			`{"then": "throw"}`: `succeeded "x"`, // the step has ended
			`{"then": "twice"}`: `this transaction has ended a step already`,
		} {
			before := testdb.Value[int](t, env.DB, "select count(*) from things")
			r := env.Run(handlertest.Call{Tool: "remote.book", Input: input})
			if got := told(r); !strings.Contains(got, want) {
				t.Errorf("%s: %s", input, got)
			}
			rows := testdb.Value[int](t, env.DB, "select count(*) from things") - before
			if ended := r.Status == receipts.Succeeded; ended != (rows == 1) || rows > 1 {
				t.Errorf("%s: %d rows, %s", input, rows, r.Status)
			}
			if effects := string(r.Effects); r.Status == receipts.Succeeded &&
				(!strings.Contains(effects, `"things"`) || !strings.Contains(effects, `"bank"`)) {
				t.Errorf("%s: the effects are %s", input, effects)
			}
		}
	})
}

// A service that does not end the step in its transaction, or does not commit, has made no progress.
func TestAStepWithoutItsEndWaitsForCode(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		id := env.Insert(handlertest.Call{Tool: "remote.book", Input: `{"forget": true}`})
		env.Until("it waits for code", func() bool {
			return testdb.Value[string](t, env.DB, "select coalesce(waits_for, '') from core_tool_calls where id = $1",
				id) == "code"
		})
		if journal := strings.Join(env.Journal(id), " "); strings.Contains(journal, "step") {
			t.Error(journal)
		}
	})
}

func inCase(name string) handlertest.Call {
	return handlertest.Call{Tool: "remote.case", Input: fmt.Sprintf(`{"case": %q}`, name), CreatedBy: "ann"}
}

func TestHandlersThatAreUnusualEnd(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		for name, want := range map[string]string{
			"a clean-up that always runs":         `succeeded "done"`,
			"a beginning beside a failure":        `succeeded "once"`,
			"a result that is too large":          `bytes as JSON; the limit is 1048576`,
			"results that are too large together": `succeeded 4`,
			"a result that is no JSON":            `cannot be written as JSON`,
			"a step inside a step":                `b was begun inside of the step a`,
			"one child twice":                     `succeeded 2`,
			"effects outside of steps":            `succeeded "done"`,
		} {
			r := env.Run(inCase(name))
			if got := told(r); !strings.Contains(got, want) {
				t.Errorf("%s: %.300s", name, got)
			}
			if n := strings.Count(string(r.Effects), "bank.example.com"); name == "effects outside of steps" && n != 1 {
				t.Errorf("%s: recorded %d times: %s", name, n, r.Effects)
			}
		}
	})
}

// A step that begins together with a question does not wait for its answer.
func TestAStepBesideAQuestionRuns(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		id := env.Insert(inCase("a step beside a question"))
		question := child(t, env, id, "q")
		env.Until("it waits", func() bool {
			return testdb.Value[string](t, env.DB, "select coalesce(waits_for, '') from core_tool_calls where id = $1",
				id) == "call"
		})
		if journal := strings.Join(env.Journal(id), " "); !strings.Contains(journal, "step") {
			t.Errorf("the link was not sent: %s", journal)
		}
		testdb.Exec(t, env.DB, `select answer_tool_call($1, '"yes"')`, question)
		env.Await(id)
	})
}

// A wait that a cancellation ended stays cancelled, although its answer arrives during the clean-up.
func TestAnAnswerDuringTheCleanUpChangesNothing(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, _ *service) {
		id := env.Insert(inCase("a wait that was cancelled"))
		waits := func(name string) func() bool {
			return func() bool {
				return testdb.Value[string](t, env.DB, "select coalesce(waits::text, '') from core_tool_calls where id = $1",
					id) == "{#"+name+"}"
			}
		}
		env.Until("it waits", waits("x"))
		testdb.Exec(t, env.DB, "select gem.cancel($1)", id)
		env.Until("it cleans up", waits("y"))
		testdb.Exec(t, env.DB, `select answer_tool_call($1, '"late"', 'x')`, id)
		testdb.Exec(t, env.DB, `select answer_tool_call($1, '"now"', 'y')`, id)
		if got := told(env.Await(id)); got != `succeeded "cleaned"` {
			t.Error(got)
		}
	})
}

// Strangers who reach the service cannot end it.
func TestRequestsOfStrangersEndNoService(t *testing.T) {
	each(t, func(t *testing.T, env *handlertest.Env, s *service) {
		for _, text := range []string{"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
			"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " +
				"9999999999\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nwebhook-id: a\r\nwebhook-timestamp: \u00b2\r\n" +
				"webhook-signature: v1,x\r\nContent-Length: 1\r\n\r\na", "\x00\x01"} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url(), "http://"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write([]byte(text))
			_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			_, _ = conn.Read(make([]byte, 1000))
			_ = conn.Close()
		}
		if got := told(env.Run(inCase("one child twice"))); got != "succeeded 2" {
			t.Error(got)
		}
	})
}

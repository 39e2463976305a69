package sdks

import (
	"slices"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

// These tests run the acceptance scenarios A1 to A12 of durable handlers with agents in TypeScript and Python. The
// scenarios that kill or stop the process of a worker are in internal/cli/services_test.go.

const (
	twoTurns = `[{"actions": [{"tool": "remote.act", "input": {"text": "one"}}]}, {"content": "done"}]`
	asks     = `[{"actions": [{"tool": "wait.answer", "input": {"text": "Which color?",
		"schema": {"type": "string", "enum": ["blue", "red"]}, "until": "2200-01-01T00:00:00+00:00"}}]}, {"content": "done"}]`
)

// A1: the service is killed after the effect of a step, before the step is in the journal.
func TestAStepRunsAgainAfterItsServiceWasKilled(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		free := s.effects.hold("think 2")
		s.env.StartWorker()
		id := s.insert(twoTurns)
		s.untilDone("think 2", 1)
		s.restart()
		free()
		ran := s.ran(id)
		ran.saw(t, `"one"`)
		if ran.Answer != "done" || ran.Turns != 2 {
			t.Errorf("%+v", ran)
		}
		for what, times := range map[string]int{"think 1": 1, "one": 1, "think 2": 2} {
			if n := s.effects.count(what); n != times {
				t.Errorf("%s: %d times, want %d", what, n, times)
			}
		}
		steps := testdb.Value[[]string](t, s.env.DB, `select array_agg(data ->> 'name' order by seq) from core_tool_events
			where call_id = $1 and event = 'step'`, id)
		if want := []string{"tools", "think", "think#2"}; !slices.Equal(steps, want) {
			t.Errorf("the journal has the steps %v, want %v", steps, want)
		}
	})
}

// A3: an agent asks a person. While it waits for the answer, it needs neither a worker nor the service.
func TestAnAgentWaitsForAnAnswerWithoutAnyProcess(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		w := s.env.StartWorker(func(o *worker.Options) { o.Concurrency = 1 })
		id := s.insert(asks)
		q := s.env.Question(id)
		s.env.UntilItWaits(id, "call")
		s.env.UntilItWaits(q.ID, "answer")
		if got := told(s.env.Run(handlertest.Call{Tool: "go.echo"})); got != `succeeded {"value": null}` {
			t.Errorf("another call in the worker's only slot: %s", got)
		}
		before := s.env.Journal(id)
		w.Stop()
		s.service.kill()
		if after := s.env.Journal(id); !slices.Equal(before, after) {
			t.Errorf("the journal changed while no process ran: %v, then %v", before, after)
		}
		c, err := client.Get(t.Context(), s.env.DB, id)
		if err != nil || c.Status != "waiting" {
			t.Errorf("%+v, %v", c, err)
		}
		if held := testdb.Value[int](t, s.env.DB,
			"select count(*) from core_tool_calls where claimed_by is not null and status in ('running', 'waiting')"); held > 0 {
			t.Errorf("%d calls are still claimed", held)
		}
		if q.Text != "Which color?" || string(q.Asks) != `{"enum": ["blue", "red"], "type": "string"}` ||
			!slices.Equal(q.By, []string{"owner"}) || !q.Until.Equal(time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)) ||
			q.Since.Before(c.CreatedAt) || q.Since.After(testdb.Value[time.Time](t, s.env.DB, "select gem.now()")) ||
			q.CallID != id {
			t.Errorf("%+v", q)
		}
	})
}

// A4: the answer arrives after the worker and the service were restarted.
func TestAnAnswerAfterRestartsReachesTheAgent(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		id, q := s.asked()
		s.restart()
		s.env.StartWorker()
		if state := s.answer(q.ID, "blue", ""); state != "" {
			t.Fatal(state)
		}
		s.ran(id).saw(t, `"blue"`)
		if s.events(q.ID, "answered") != 1 || s.effects.count("think 1") != 1 || s.effects.count("think 2") != 1 {
			t.Errorf("the journals are %v and %v", s.env.Journal(q.ID), s.env.Journal(id))
		}
		if !testdb.Value[bool](t, s.env.DB, `select (select at from core_tool_events where call_id = $2 and event =
			'answered') <= (select at from core_tool_events where call_id = $1 and event = 'step' and
			data ->> 'name' = 'think#2')`, id, q.ID) {
			t.Error("the agent's next step ended before the answer arrived")
		}
		if open, err := client.OpenQuestions(t.Context(), s.env.DB, 10); err != nil || len(open) > 0 {
			t.Errorf("open questions: %+v, %v", open, err)
		}
	})
}

// A5: a question accepts only one answer, and only an answer that fits its schema.
func TestAQuestionOfAnAgentAcceptsOneAnswer(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		id, q := s.asked() // no worker runs, so the call does not end before the second answer
		refused := func(want, call, answer, user string) {
			t.Helper()
			if got := s.answer(call, answer, user); got != want {
				t.Errorf("%s as the answer to %s by %q: %q, want %q", answer, call, user, got, want)
			}
		}
		refused("PT422", q.ID, "green", "ada")
		refused("PT404", q.ID, "blue", "bob")
		refused("PT404", "00000000-0000-0000-0000-000000000000", "blue", "ada")
		for range 2 {
			refused("", q.ID, "blue", "ada")
		}
		refused("PT409", q.ID, "red", "ada")
		s.env.StartWorker()
		s.ran(id).saw(t, `"blue"`)
		refused("", q.ID, "blue", "ada") // the same answer after the end
		refused("PT409", q.ID, "red", "ada")
		refused("PT409", id, "blue", "ada")
		if n := s.events(q.ID, "answered"); n != 1 {
			t.Errorf("the journal of the question has %d answers, want 1", n)
		}
	})
}

// A6: an agent that is resumed before the answer arrives waits again for the answer to the same question.
func TestAnAgentThatIsResumedWithoutAnAnswerWaitsAgain(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		s.env.StartWorker()
		id := s.insert(asks)
		q := s.env.Question(id)
		for wakes := 1; wakes <= 2; wakes++ {
			for _, call := range []string{id, q.ID} {
				s.env.UntilItWaits(call, map[bool]string{true: "call", false: "answer"}[call == id])
				if resumed, err := client.Resume(t.Context(), s.env.DB, call); err != nil || !resumed {
					t.Fatalf("resumed: %v, %v", resumed, err)
				}
				s.env.Until("the resumed call to wait again", func() bool { return s.events(call, "waiting") > wakes })
			}
		}
		s.env.UntilItWaits(id, "call")
		s.env.UntilItWaits(q.ID, "answer")
		if n := s.questions(); n != 1 || s.effects.count("think 1") != 1 {
			t.Errorf("%d questions, and %d runs of the first step; want 1 each", n, s.effects.count("think 1"))
		}
		s.answer(q.ID, "red", "")
		s.ran(id).saw(t, `"red"`)
	})
}

// A7: the limit of an agent's turns also counts the turns before restarts.
func TestTheTurnLimitOfAnAgentCountsAcrossRestarts(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		w := s.env.StartWorker()
		killWorker := func() {
			w.Kill()
			w = s.env.StartWorker()
		}
		free := s.effects.hold("think 1")
		id := s.insert(`[{"actions": [{"tool": "remote.act", "input": {"text": "more"}}]}]`)
		s.untilDone("think 1", 1)
		s.restart()
		freeNext := s.effects.hold("think 2")
		free()
		s.untilDone("think 2", 1)
		killWorker()
		freeLast := s.effects.hold("think 3")
		freeNext()
		s.untilDone("think 3", 1)
		killWorker()
		s.restart()
		freeLast()
		e := handlertest.ErrorOf(t, s.env.Await(id))
		if e.Code != "turn_limit" || string(e.Details) != `{"turns": 3}` {
			t.Errorf("%+v", e)
		}
		for what, times := range map[string]int{"more": 3, "think 1": 2, "think 4": 0} {
			if n := s.effects.count(what); n != times {
				t.Errorf("%s: %d times, want %d", what, n, times)
			}
		}
	})
}

// A8: if a tool fails, the agent sees the error and continues. If the model fails, the agent fails with the same error.
func TestAnAgentSeesTheFailureOfATool(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		s.env.StartWorker()
		ran := s.ran(s.insert(`[
			{"actions": [{"tool": "remote.act", "input": {"text": "x", "fail": true}}]},
			{"actions": [{"tool": "remote.unlisted", "input": {}}, {"tool": "remote.unset", "input": {}},
				{"tool": "remote.pay", "input": {}}, {"tool": "remote.act", "input": {"text": "y"}}]},
			{"content": "done"}]`))
		ran.saw(t, `{"error": "no_luck"}`, `{"error": "unknown_tool"}`, `{"error": "not_configured"}`,
			`{"error": "not_allowed"}`, `"y"`)
		if ran.Answer != "done" || ran.Turns != 3 || s.effects.count("x") != 0 || s.effects.count("y") != 1 {
			t.Errorf("%+v", ran)
		}
		if want := []string{"remote.act", "remote.unset", "wait.answer", "wait.approval"}; !slices.Equal(ran.Offered, want) {
			t.Errorf("call.tools returned %v, want %v", ran.Offered, want)
		}
		r := s.env.Await(s.insert(`[{"refuses": true}]`))
		if e := handlertest.ErrorOf(t, r); e.Code != "model_refused" || e.Message != "The model does not answer." {
			t.Errorf("%+v", e)
		}
	})
}

// A9: an agent that starts several actions in one turn continues after all of them have ended, and gets their results
// in the order in which it started them.
func TestAnAgentGetsTheResultsOfParallelActionsTogether(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		s.env.StartWorker()
		free := s.effects.hold("first")
		id := s.insert(`[{"actions": [{"tool": "remote.act", "input": {"text": "first"}},
			{"tool": "wait.answer", "input": {"text": "?"}}, {"tool": "remote.act", "input": {"text": "last"}}]},
			{"content": "done"}]`)
		q := s.env.Question(id)
		s.env.UntilItWaits(id, "call")
		s.env.Until("the last action to return", func() bool { return s.events(id, "returned") == 1 })
		free()
		s.env.Until("the first action to return", func() bool { return s.events(id, "returned") == 2 })
		s.answer(q.ID, "yes", "")
		ran := s.ran(id)
		ran.saw(t, `"first"`, `"yes"`, `"last"`)
		if woken := s.events(id, "woken"); woken != 1 || s.effects.count("think 2") != 1 || ran.Turns != 2 {
			t.Errorf("the agent was woken %d times and took %d turns: %v", woken, ran.Turns, s.env.Journal(id))
		}
	})
}

// A10: with two open questions, each answer reaches the agent that asked.
func TestAnswersReachTheAgentThatAsked(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		s.env.StartWorker()
		one, two := s.insert(asks), s.insert(asks)
		first, second := s.env.Question(one), s.env.Question(two)
		s.answer(second.ID, "red", "ada")
		s.answer(first.ID, "blue", "ada")
		s.ran(one).saw(t, `"blue"`)
		s.ran(two).saw(t, `"red"`)
	})
}

// A10: many resumes at the same time start one attempt.
func TestConcurrentResumesStartOneAttempt(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		id, q := s.asked() // no worker runs, so no attempt ends between two resumes
		resumed := make(chan bool, 8)
		for range cap(resumed) {
			go func() {
				did, err := client.Resume(t.Context(), s.env.DB, id)
				if err != nil {
					t.Error(err)
				}
				resumed <- did
			}()
		}
		did := 0
		for range cap(resumed) {
			if <-resumed {
				did++
			}
		}
		s.env.StartWorker()
		s.env.UntilItWaits(id, "call")
		if claims := s.events(id, "claimed"); did != 1 || claims != 2 {
			t.Errorf("%d resumes had an effect, want 1; %d attempts ran, want 2: %v", did, claims, s.env.Journal(id))
		}
		s.answer(q.ID, "blue", "ada")
		s.ran(id).saw(t, `"blue"`)
	})
}

// A11: after an agent has ended, a new call with its id, an answer and an event are rejected.
func TestAnAgentThatHasEndedRejectsAnswersAndEvents(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		s.env.StartWorker()
		id := s.insert(`[{"content": "done"}]`)
		s.ran(id)
		before := s.env.Journal(id)
		for _, sql := range []string{`select enqueue_tool_call('remote.agent', '{"script": []}', id => $1)`,
			`select answer_tool_call($1, '"x"')`, `select answer_tool_call($1, '"x"', 'paid')`} {
			if _, err := s.env.DB.Exec(t.Context(), sql, id); err == nil {
				t.Errorf("%s succeeded", sql)
			}
		}
		if after := s.env.Journal(id); !slices.Equal(before, after) || s.effects.count("think 1") != 1 {
			t.Errorf("the journal changed from %v to %v", before, after)
		}
	})
}

// A12: if the code of a service does not fit the journal of a call, the call waits for code and its steps stay in the
// journal. The call continues when the right code runs again.
func TestACallContinuesAfterCodeThatDidNotFitItsJournal(t *testing.T) {
	eachScene(t, func(t *testing.T, s scene) {
		s.env.StartWorker()
		id := s.insert(asks)
		q := s.env.Question(id)
		s.env.UntilItWaits(id, "call")
		for i, c := range []struct{ program, name, says string }{
			{"another kind", "think", "The journal has an entry of the kind step under this name, and the handler asks for " +
				"one of the kind once."},
			{"another tool", "act", "The journal has a call to wait.answer under this name, and the handler asks for a call " +
				"to remote.act."},
		} {
			s.restart("AGENT_VERSION=" + c.program)
			if i == 0 {
				s.answer(q.ID, "blue", "ada")
			} else if _, err := client.Resume(t.Context(), s.env.DB, id); err != nil {
				t.Fatal(err)
			}
			s.env.Until("the call to wait after a run of "+c.program, func() bool { return s.events(id, "waiting") >= i+2 })
			s.env.UntilItWaits(id, "code")
			e, err := client.Explain(t.Context(), s.env.DB, id)
			if err != nil || e.Misfit.Name != c.name || e.Misfit.Message != c.says {
				t.Errorf("%s: %+v, %v", c.program, e, err)
			}
			if !testdb.Value[bool](t, s.env.DB, `select (select (data #>> '{code,seq}')::int from core_tool_events where
				call_id = $1 and event = 'waiting' order by seq desc limit 1) = (select seq from core_tool_events where
				call_id = $1 and event in ('step', 'called') and data ->> 'name' = $2)`, id, c.name) {
				t.Errorf("%s: the event does not give the number of the journal entry that does not fit", c.program)
			}
		}
		if n := testdb.Value[int](t, s.env.DB, "select count(*) from core_tool_receipts where call_id = $1", id); n > 0 {
			t.Error("the call has a receipt although it waits for code")
		}
		s.restart()
		s.env.Pass(2 * time.Minute)
		s.ran(id).saw(t, `"blue"`)
		if r := s.env.Await(id); r.Status != receipts.Succeeded || s.effects.count("think 1") != 1 {
			t.Errorf("%s; the first step ran %d times", told(r), s.effects.count("think 1"))
		}
	})
}

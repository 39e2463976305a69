package agent_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/gemworker/gem/worker"
)

// Postgres writes 1e1 as 10: the agent that is started can read what the one that starts it cannot.
func TestHowAnInputIsWrittenGivesAnAgentNoOtherTools(t *testing.T) {
	s := newScene(t)
	s.says(wants("agent_run", `{"task": "Inner.", "tools": ["leads.create"], "max_turns": 1e1}`,
		"agent_run", `{"task": "Inner.", "tools": ["leads.create"], "max_cost_usd": 1}`,
		"agent_run", `{"task": "Inner.", "tools": ["os.*"], "tools": ["leads.create"]}`,
		"agent_run", `{"task": "Inner.", "tools": ["leads.create"], "Tools": ["os.*"]}`,
		"agent_run", `{"task": "Inner.", "tools": ["os.*"], "max_turns": 1e1}`),
		llmtest.Say("inner done"), llmtest.Say("done"))
	id := s.Insert(agent("agent.run", "os.*"))
	s.answered(s.Await(id))
	for i, o := range s.observed() {
		if i < 4 && o.Code != "not_allowed" || i == 4 && o.Status != "succeeded" {
			t.Errorf("call %d: %s", i+1, o.text)
		}
	}
	s.replays(id)
}

func TestAnAgentThatAskedNoModelHasCostNothing(t *testing.T) {
	s := newScene(t)
	got := s.failedWith(s.Run(run(object{"max_cost_usd": "0"})), "budget_exceeded")
	if got.Usage.Requests != 0 || got.Usage.Cost != "0" {
		t.Errorf("%+v", got.Usage)
	}
}

func TestAModelAsksNoSingleUserButItsOwn(t *testing.T) {
	s := newScene(t)
	ask := func(by string) string { return `{"text": "The secret is 42. Is it?", "by": ["owner", "` + by + `"]}` }
	s.says(wants("wait_answer", ask("user:mallory"), "wait_event", ask("user:mallory"), "wait.answer", ask("user:ada"),
		"wait_answer", ask("role:boss")), llmtest.Say("done"))
	id := s.Insert(agent("wait.answer", "wait.event"))
	s.UntilItWaits(id, "call")
	if n := s.value(
		"select count(*) from core_tool_calls where input::text like '%mallory%' and tool_name like 'wait.%'"); n != "0" {
		t.Errorf("%s questions to a stranger", n)
	}
	for range 2 {
		s.Answer(s.Question(id).ID, "yes")
	}
	s.answered(s.Await(id))
	for i, o := range s.observed() {
		if i < 2 && o.Code != "not_allowed" || i >= 2 && o.Status != "succeeded" {
			t.Errorf("call %d: %s", i+1, o.text)
		}
	}
	s.replays(id)
}

// An agent that made calls is not one that has never begun: "make the call again" would have its tools do it all again.
func TestAnAgentWhoseModelsAreGoneFailsWithWhatItDid(t *testing.T) {
	bare, err := binding.Bind(append(builtin.Domains(), wait.Domain())...)
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, func(o *handlertest.Options) { o.NoWorker = true })
	s.says(wants("os_create_note", note), wants("wait_answer", asked), llmtest.Say("done"))
	first := s.StartWorker()
	id := s.Insert(agent("os.create_note", "wait.answer"))
	q := s.Question(id)
	s.UntilItWaits(id, "call")
	first.Stop()
	s.StartWorker(func(o *worker.Options) { o.Handlers = bare }) // without a routes file
	s.Answer(q.ID, "blue")
	r := s.Await(id)
	got := s.failedWith(r, "not_configured")
	if got.Turns != 2 || got.ToolCalls != 2 || got.Usage.Requests != 2 || got.Usage.Cost == "" {
		t.Errorf("%+v", got)
	}
	contains(t, string(r.Result), "LLM_ROUTES", "stays")
	s.replays(id)
}

func TestAnAgentIsReplayedByAProgramWithoutModels(t *testing.T) {
	bare, err := binding.Bind(append(builtin.Domains(), wait.Domain())...)
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t)
	s.says(wants("os_create_note", note), llmtest.Say("done"))
	id := s.Insert(agent("os.create_note"))
	s.answered(s.Await(id))
	if r := s.Replay(id, func(o *worker.Options) { o.Handlers = bare }); !r.Same() || len(r.Unread) > 0 {
		t.Errorf("%+v", r)
	}
}

func TestAnAnswerInHTMLIsAsLargeAsItIs(t *testing.T) {
	s := newScene(t)
	page := llmtest.Say(strings.Repeat("<", 210_000))
	page.Delta = 10_000
	s.says(page)
	if got := s.answered(s.Run(run())); len(got.Answer) != 210_000 {
		t.Errorf("%d bytes", len(got.Answer))
	}
}

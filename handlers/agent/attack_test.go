package agent_test

import (
	"testing"

	"github.com/gemworker/gem/internal/llm/llmtest"
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
	s.says(wants("wait_answer", ask("user:mallory"), "wait_event", ask("user:mallory"), "wait.answer", ask("user:ada"), "wait_answer", ask("role:boss")), llmtest.Say("done"))
	id := s.Insert(agent("wait.answer", "wait.event"))
	s.UntilItWaits(id, "call")
	if n := s.value("select count(*) from core_tool_calls where input::text like '%mallory%' and tool_name like 'wait.%'"); n != "0" {
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

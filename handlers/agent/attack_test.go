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

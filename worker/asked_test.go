package worker_test

import (
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
)

// A call that waited, for people or for its turn, is counted where it runs. What others counted meanwhile had no part
// in its wait.
func TestACallThatWaitedIsReplayedByWhatWasCountedBefore(t *testing.T) {
	t.Parallel()
	one := `{"name": "one", "tools": ["lab.*"], "action": "block", "limit": {"max": 1, "within": "1h"}}`
	t.Run("for people", func(t *testing.T) {
		t.Parallel()
		env := startRuled(t, ruledBy(t, one, asks))
		financed(t, env)
		env.StartWorker()
		id := env.Insert(inSession("s", "lab.write", "dear"))
		question := questionOf(t, env, id)
		between(t, env)
		if err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, ""); err != nil {
			t.Fatal(err)
		}
		if got := codeOf(env.Await(id)); got != "succeeded" {
			t.Errorf("it ended with %s", got)
		}
		sound(t, env)
	})
	t.Run("for its turn", func(t *testing.T) {
		t.Parallel()
		env := startRuled(t,
			ruledBy(t, one,
				`{"name": "pace", "tools": ["lab.write"], "action": "wait", "limit": {"max": 1, "within": "90m"}, "at_most": "2h"}`))
		env.StartWorker()
		env.Run(inSession("s", "lab.write", "x"))
		env.Pass(80 * time.Minute)
		id := env.Insert(inSession("s", "lab.write", "y"))
		env.Until("it has a turn", func() bool {
			return number(t, env, "select count(*) from core_tool_events where call_id = $1 and event = 'delayed'", id) == 1
		})
		between(t, env)
		if got := codeOf(env.Await(id)); got != "succeeded" {
			t.Errorf("it ended with %s", got)
		}
		sound(t, env)
	})
}

// between lets another call be counted, and leave the window.
func between(t *testing.T, env *handlertest.Env) {
	t.Helper()
	if got := codeOf(env.Run(inSession("s", "lab.send", "x"))); got != "succeeded" {
		t.Errorf("the other call ended with %s", got)
	}
	env.Pass(61 * time.Minute)
}

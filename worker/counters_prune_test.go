package worker_test

import (
	"testing"
	"time"
)

// A counter that callers name would stay forever. What hung on it is then neither guessed nor a difference.
func TestACounterLeavesWithItsLastCall(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "once", "tools": ["lab.write"], "action": "block", "limit": {"max": 1, "within": "1h", "per": ["session"]}}`))
	env.StartWorker()
	first := env.Run(inSession("s", "lab.write", "x"))
	if got := codeOf(env.Run(inSession("s", "lab.write", "x"))); got != "limit_reached" {
		t.Fatalf("the second is %s", got)
	}
	env.Pass(3 * time.Hour)
	number(t, env, "select gem.prune_rule_runs(1000)")
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 1 {
		t.Errorf("the call is there, and its counter has %d rows", n)
	}
	number(t, env, "select count(*) from gem.prune(array[$1::uuid])", first.CallID)
	number(t, env, "select gem.prune_rule_runs(1000)")
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 0 {
		t.Errorf("the call is gone, and its counter has %d rows", n)
	}
	if report := replayed(t, env); len(report.Differences) > 0 || report.Unknown["rows of a counter were pruned"] != 1 {
		t.Errorf("%+v", report)
	}
	for _, want := range []string{"succeeded", "limit_reached"} {
		if got := codeOf(env.Run(inSession("s", "lab.write", "x"))); got != want {
			t.Errorf("once more: %s, want %s", got, want)
		}
	}
	sound(t, env)
}

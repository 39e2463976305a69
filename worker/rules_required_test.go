package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"go.uber.org/zap/zaptest/observer"
)

// A rules file that was forgotten lets nothing through: the worker says so until it may claim.
func TestAWorkerWithoutRulesSaysThatTheyAreRequired(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"})
	admin := connection(t, env)
	runSQL(t, admin, "update gem.limits set rules_required = true")
	env.StartWorker(func(o *worker.Options) { o.PollInterval = 20 * time.Millisecond })
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	env.Until("the worker to say why it claims nothing", func() bool {
		said := env.Logs.Filter(func(e observer.LoggedEntry) bool {
			why, _ := e.ContextMap()["error"].(string)
			return e.Message == "could not claim calls" && strings.Contains(why, "TOOLS_RULES") &&
				strings.Contains(why, "gem rules require --off")
		})
		return said.Len() > 0
	})
	if sent := lab.sentSoFar(); len(sent) > 0 {
		t.Errorf("sent %q", sent)
	}
	runSQL(t, admin, "update gem.limits set rules_required = false")
	if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 1 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
}

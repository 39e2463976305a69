package audit_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// What a worker asks of gem.gate, by the rules below.
const (
	few    = `{"rule": "few", "action": "block", "kind": "count", "counter": "few/calls per caller [\"/starts per x\"]", "max": 2, "within_ms": 86400000}`
	budget = `{"rule": "budget", "action": "block", "kind": "sum", "counter": "budget/sum:/amount per  []", "max": 100, "within_ms": 604800000, "add": 40}`
	pace   = `{"rule": "pace", "action": "wait", "kind": "count", "counter": "pace/starts per tool [\"a.b\"]", "max": 1, "within_ms": 3000, "at_most_ms": 3600000}`
	slow   = `{"rule": "slow", "action": "wait", "kind": "count", "counter": "slow/starts per tool [\"a.b\"]", "max": 1, "within_ms": 600000, "at_most_ms": 3600000}`
	narrow = `{"rule": "narrow", "action": "wait", "kind": "running", "counter": "narrow/running per tool [\"a.b\"]", "max": 1, "at_most_ms": 3600000}`
	big    = `{"rule": "big", "action": "ask", "kind": "call", "digest": "DIGEST", "ask_ms": 86400000,
		"question": {"tool": "a.b", "input": {}, "text": "May it?", "by": ["user:ME"], "digest": "DIGEST"}}`
	theRules = `{"version": "1", "rules": [
		{"name": "few", "action": "block", "limit": {"max": 2, "within": "24h", "per": ["caller"]}},
		{"name": "budget", "action": "block", "limit": {"max": 100, "sum": "/amount", "within": "7d"}},
		{"name": "pace", "action": "wait", "limit": {"max": 1, "within": "3s", "per": ["tool"]}},
		{"name": "slow", "action": "wait", "limit": {"max": 1, "within": "10m", "per": ["tool"]}},
		{"name": "narrow", "action": "wait", "running": {"max": 1, "per": ["tool"]}},
		{"name": "big", "action": "ask", "ask": {"of": ["x"]}}]}`
)

var digests = map[string]string{"big": strings.Repeat("b", 64), "huge": strings.Repeat("c", 64)}

// gate asks the rules whether the handler's call may run, under a key if there is one.
func (h *handler) gate(want, key string, again bool, checks ...string) {
	h.t.Helper()
	var got string
	if err := h.env.DB.QueryRow(context.Background(), `select coalesce(g.outcome, g.verdict)
		from core_tool_calls c, gem.gate(c.id, c.attempt, 'd', nullif($2, ''), replace($3, 'ME', session_user)::jsonb, '1',
			$4, 3600000) g where c.id = $1`,
		h.call, key, "["+strings.Join(checks, ",")+"]", again).Scan(&got); err != nil || got != want {
		h.t.Fatalf("got %s, %v, want %s", got, err, want)
	}
}

// ask is a check that asks people for this.
func ask(what string) string { return strings.ReplaceAll(big, "DIGEST", digests[what]) }

// no ends the question $1, which has no answer then.
const no = `select gem.finish($1, 1, 'd', 'failed', '{"error": {"error_code": "x", "message": "y", "details": null}}',
	'{}', 'x')`

// judged inserts calls that rules judge. It returns the two that a worker should run: one has a turn, the other asks.
func judged(t *testing.T, env *handlertest.Env) (delayed, asking string) {
	t.Helper()
	testdb.Exec(t, env.DB, "select gem.record_rules('1', repeat('a', 64), $1, '7 days')", theRules)
	h := handler{t: t, env: env}
	for range 2 {
		h.begin(700)
		h.gate("run", "", false, few, budget)
		h.gate("run", "", true, few, budget) // the answer was lost
		h.do("select gem.note_ruling(id, attempt, 'd', '{\"version\": \"1\", \"verdicts\": []}') from core_tool_calls " +
			"where id = $1")
		h.do(end)
	}
	h.begin(700)
	h.gate("stopped", "", false, few, budget)
	h.do(`select gem.finish($1, 1, 'd', 'failed',
		'{"error": {"error_code": "limit_reached", "message": "no", "details": null}}', '{}', 'x')`)

	h.begin(700)
	h.gate("run", "", false, pace)
	h.do(end)
	h.begin(700)
	h.gate("delayed", "", false, pace)
	delayed = h.call
	h.begin(700)
	h.gate("delayed", "key of a turn", false, pace)
	h.do("select cancel_tool_call($1)")

	h.begin(700)
	h.gate("run", "", false, narrow)
	first := h.call
	h.begin(700)
	h.gate("parked", "key of a place", false, narrow)
	second := h.call
	h.call = first
	h.do(end)
	h.call = second
	h.claim()
	h.gate("run", "key of a place", true, narrow)
	h.do(end)

	// One question is withdrawn, since what it asked about has changed, while the other waits for its answer.
	h.begin(700)
	h.gate("asked", "key of a question", false, ask("big"), ask("huge"))
	h.of("##"+digests["huge"], "select cancel_tool_call($1)")
	testdb.Exec(t, env.DB, "select gem.run_timers('d', 9)")
	h.claim() // the call
	h.gate("asked", "key of a question", true, ask("big"))
	h.claim() // the question
	h.of("##"+digests["big"], "select gem.release($1, 1, 'd')")
	return delayed, h.call
}

// Whatever a call under rules waits for, its journal has nothing that the next event may not follow.
func TestCallsUnderRulesHaveNoFaultOnTheirWay(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry,
		NoWorker: true})
	testdb.Exec(t, env.DB, "select gem.record_registry('x', repeat('0', 64), '{}')")
	testdb.Exec(t, env.DB, "select gem.record_rules('1', repeat('a', 64), $1, '7 days')", theRules)
	testdb.Exec(t, env.DB, "select gem.start_worker('d', 9, '', 'x', '1 hour', '{steps}', '1')")
	sound := func(after string) {
		t.Helper()
		report, err := audit.Database(t.Context(), env.DB, audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if found := reported(report); len(found) > 0 {
			t.Errorf("after %s: %v", after, found)
		}
	}
	h := handler{t: t, env: env}
	h.begin(0)
	h.gate("run", "", false, slow)
	h.do(end)
	sound("a call that was counted")
	h.begin(0)
	h.gate("asked", "K", false, slow, ask("big"), ask("huge"))
	sound("people were asked")
	h.claim()
	h.of("##"+digests["big"], no)
	sound("one of them answered")
	h.claim() // the call, before the other question
	h.do(`select gem.retry($1, 2, 'd', '{"error_code": "execution_error", "message": "later"}', 3, '0')`)
	h.claim() // the other question
	h.claim()
	h.gate("asked", "K", true, slow, ask("huge"))
	sound("they were asked again")
	h.of("##"+digests["huge"], no)
	h.claim()
	h.gate("delayed", "K", true, slow)
	sound("it got its turn")
	env.Pass(11 * time.Minute)
	h.claim()
	h.gate("run", "K", true, slow)
	h.do("select gem.note_ruling(id, attempt, 'd', '{}') from core_tool_calls where id = $1")
	h.do(`select gem.step(id, attempt, 'd', 'step', '{"name": "sent"}', 0, false) from core_tool_calls where id = $1`)
	sound("its turn came")
	h.do(end)
	sound("its end")

	h.begin(0)
	h.gate("asked", "", false, ask("big"))
	h.do("select cancel_tool_call($1)")
	testdb.Exec(t, env.DB, "select gem.run_timers('d', 9)")
	sound("a call that asks was cancelled")
}

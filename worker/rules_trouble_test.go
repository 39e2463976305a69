package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

// ofCaller is a call of somebody.
func ofCaller(who, tool, text string) handlertest.Call {
	return handlertest.Call{Tool: tool, Input: task(Task{Text: text}), CreatedBy: who, Session: "s"}
}

// A caller who waits for room of her own keeps nobody else waiting: the pace of all has room.
func TestTheTurnsOfOneCallerKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t,
		`{"name": "own", "tools": ["lab.write"], "action": "wait", "at_most": "24h", "limit": {"max": 1, "within": "30m", "per": ["caller"]}}`,
		`{"name": "all", "tools": ["lab.write"], "action": "wait", "at_most": "24h", "limit": {"max": 100, "within": "1s"}}`))
	env.StartWorker()
	env.Run(ofCaller("ada", "lab.write", "1"))
	second := env.Insert(ofCaller("ada", "lab.write", "2"))
	env.Until("ada's second call to have a turn", func() bool { return slices.Contains(env.Journal(second), "delayed") })
	other := env.Insert(ofCaller("bob", "lab.write", "3"))
	env.Until("bob's call to have come to the rules", func() bool { return len(env.Journal(other)) > 2 })
	if got := env.Journal(other); slices.Contains(got, "delayed") {
		t.Errorf("bob's only call, of one in a second where a hundred may run, has its turn in %d minutes: %v",
			number(t, env, "select (extract(epoch from run_at - gem.now()) / 60)::int from core_tool_calls where id = $1",
				other), got)
	}
}

// A replay of the rules reads the journal: a later time may lie behind the start that the decision found free.
func TestADelayHasTheTimeOfItsDecision(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t,
		`{"name": "pace", "tools": ["lab.write"], "action": "wait", "at_most": "24h", "limit": {"max": 1, "within": "1h"}}`))
	if _, err := env.DB.Exec(t.Context(), `
		create table counted (call_id uuid, at timestamptz);
		create function note() returns trigger language plpgsql security definer as $$
		begin insert into public.counted values (new.call_id, clock_timestamp()); return new; end $$;
		create trigger note before insert on gem.rule_runs for each row execute function note()`); err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	env.Run(inSession("s", "lab.write", "0"))
	id := env.Insert(inSession("s", "lab.write", "1"))
	env.Until("it to have a turn", func() bool { return slices.Contains(env.Journal(id), "delayed") })
	if n := number(t, env, "select count(*) from counted n join core_tool_events e using (call_id) where call_id = $1 "+
		"and e.event = 'delayed' and e.at < n.at", id); n != 1 {
		t.Error("the event has a later time than its row in the counter")
	}
}

// No window has more calls than its limit, even if no worker ran them at their turns.
func TestAPaceHoldsAfterAnOutage(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "pace", "tools": ["lab.write"], "action": "wait", "at_most": "24h", "limit": {"max": 1, "within": "1h"}}`))
	w := env.StartWorker()
	env.Run(inSession("s", "lab.write", "0"))
	var ids []string
	for i := range 5 {
		id := env.Insert(inSession("s", "lab.write", fmt.Sprint(i+1)))
		env.Until("it to have a turn", func() bool { return slices.Contains(env.Journal(id), "delayed") })
		ids = append(ids, id)
	}
	w.Stop()
	env.Pass(7 * time.Hour)
	env.StartWorker()
	env.Until("each to run, or to have another turn", func() bool {
		return number(t, env, `select count(*) from core_tool_calls c where id = any ($1) and (status = 'succeeded'
			or (select count(*) from core_tool_events e where e.call_id = c.id and e.event = 'delayed') = 2)`, ids) == 5
	})
	if n := number(t, env, "select count(*) from core_tool_calls where id = any ($1) and status = 'succeeded'",
		ids); n != 1 {
		t.Errorf("%d calls ran at once, and one an hour may", n)
	}
}

// Rules that were rolled back ask again what they had asked: nobody has said no.
func TestAWithdrawnQuestionIsNoDenial(t *testing.T) {
	t.Parallel()
	env := startRuled(t, nil)
	financed(t, env)
	rule := func(say string) string {
		return `{"name": "dear", "tools": ["lab.write"], "action": "ask", "say": "` + say +
			`", "ask": {"of": ["finance"], "within": "24h"}}`
	}
	first := env.StartWorker(ruledBy(t, rule("a")))
	id := env.Insert(inSession("s", "lab.write", "dear"))
	question := questionOf(t, env, id)
	first.Stop()
	second := env.StartWorker(ruledAs(t, "2.0.0", rule("b")))
	resume(t, env, id)
	env.Until("the new rules to ask", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where parent_call_id = $1 and id <> $2 and status = "+
			"'waiting'", id, question) == 1
	})
	second.Stop()
	env.StartWorker(ruledBy(t, rule("a")))
	resume(t, env, id)
	env.Until("an open question, or an end", func() bool {
		return number(t, env, `select count(*) from core_tool_calls c where c.id = $1
			and (c.status = 'failed' or c.attempt >= 3 and exists (
			select from core_tool_calls k where k.parent_call_id = c.id and k.status = 'waiting'
				and k.parent_step = any (c.waits)))`, id) == 1
	})
	if n := number(t, env, "select count(*) from core_tool_calls where id = $1 and status = 'failed'", id); n == 1 {
		t.Errorf("nobody was asked or said anything: %s", env.Await(id).Result)
	}
}

func parsed(t *testing.T, version string, entries ...string) *rules.Set {
	t.Helper()
	set, err := rules.Parse([]byte(`{"version": "` + version + `", "rules": [` + strings.Join(entries, ", ") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func ruledAs(t *testing.T, version string, entries ...string) func(*worker.Options) {
	t.Helper()
	return func(o *worker.Options) { o.Rules = parsed(t, version, entries...) }
}

func resume(t *testing.T, env *handlertest.Env, id string) {
	t.Helper()
	if resumed, err := client.Resume(t.Context(), env.DB, id); err != nil || !resumed {
		t.Fatal(resumed, err)
	}
}

// A question is withdrawn with the end of its call, however that ended.
func TestAQuestionEndsWithItsCall(t *testing.T) {
	t.Parallel()
	ask := `{"name": "dear", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["finance"], "within": "24h"}}`
	for name, anew := range map[string][]string{
		"the rules are gone":      {},
		"the rules block it now":  {`{"name": "never", "tools": ["lab.write"], "action": "block"}`, ask},
		"another limit blocks it": {`{"name": "none", "tools": ["lab.write"], "action": "block", "limit": {"max": 0, "within": "1h"}}`, ask},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := startRuled(t, nil)
			financed(t, env)
			w := env.StartWorker(ruledBy(t, ask))
			id := env.Insert(inSession("s", "lab.write", "x"))
			question := questionOf(t, env, id)
			w.Stop()
			env.StartWorker(ruledAs(t, "2.0.0", anew...))
			resume(t, env, id)
			env.Await(id)
			time.Sleep(3 * time.Second)
			if n := number(t, env, "select count(*) from core_tool_calls where id = $1 and status = 'waiting'",
				question); n > 0 {
				err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, "")
				t.Errorf("the call has ended, and its question is open; to approve it gives %v", err)
			}
		})
	}
}

// A sum may be of any size, and gem audit reads it.
func TestAuditReadsALargeSum(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "budget", "tools": ["lab.pay"], "action": "block", "limit": {"max": 1e30, "sum": "/amount", "within": "1h"}}`))
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "lab.pay", Input: `{"text": "a", "amount": 1e29}`, CreatedBy: "ada"})
	if codeOf(r) != "succeeded" {
		t.Errorf("got %s", r.Result)
	}
	sound(t, env)
}

// A cancelled question does not count as an answer.
func TestACancelledQuestionIsAskedAnew(t *testing.T) {
	t.Parallel()
	env := startRuled(t, nil)
	financed(t, env)
	env.StartWorker(
		ruledBy(t, `{"name": "dear", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["finance"], "within": "24h"}}`,
			`{"name": "mute", "tools": ["wait.*"], "action": "block"}`))
	id := env.Insert(inSession("s", "lab.write", "x"))
	question := questionOf(t, env, id)
	if _, err := client.Cancel(t.Context(), env.DB, question); err != nil {
		t.Fatal(err)
	}
	env.Until("people to be asked anew", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where parent_call_id = $1 and parent_step like '##%#2' "+
			"and status = 'waiting'", id) == 1
	})
}

// A call whose turn would come after its deadline could only end then, so it is blocked at once.
func TestACallGetsNoTurnBeyondItsDeadline(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "pace", "tools": ["tree.run"], "action": "wait", "at_most": "365d", "limit": {"max": 1, "within": "60d"}}`))
	env.StartWorker()
	env.Await(startTreeCall(env, "step x"))
	id := startTreeCall(env, "step x") // its tool has a deadline of thirty days
	env.Until("it to have come to the rules", func() bool { return len(env.Journal(id)) > 2 })
	if got := env.Journal(id); slices.Contains(got, "delayed") {
		t.Errorf("it has its turn %d days from now, and a deadline of thirty: %v", number(t, env, "select extract(day from "+
			"run_at - gem.now())::int from core_tool_calls where id = $1", id), got)
	}
}

// A warning is on the receipt even if the call was retried.
func TestAWarningStaysThroughARetry(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "warned", "tools": ["lab.write"], "action": "warn", "limit": {"max": 0, "within": "1h"}}`))
	env.StartWorker()
	once := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	twice := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "y", Then: "transient once"})})
	if !strings.Contains(string(once.Effects), `"warned"`) || twice.Attempt != 2 ||
		!strings.Contains(string(twice.Effects), `"warned"`) {
		t.Errorf("tried once: %s\ntwice: %s", once.Effects, twice.Effects)
	}
	sound(t, env)
}

// A call that was cancelled while an attempt looked at it takes its other question with it.
func TestACancelledCallLeavesNoQuestion(t *testing.T) {
	t.Parallel()
	ask := func(name string) string {
		return `{"name": "` + name +
			`", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["finance"], "within": "24h"}}`
	}
	env := startRuled(t, ruledBy(t, ask("one"), ask("two")))
	financed(t, env)
	w := env.StartWorker()
	id := env.Insert(inSession("s", "lab.write", "x"))
	env.Until("two questions", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where parent_call_id = $1 and status = 'waiting'",
			id) == 2
	})
	w.Stop()
	resume(t, env, id)
	if _, err := client.Cancel(t.Context(), env.DB, id); err != nil { // while it is in the queue
		t.Fatal(err)
	}
	env.StartWorker()
	env.Await(id)
	time.Sleep(3 * time.Second)
	if n := number(t, env, "select count(*) from core_tool_calls where parent_call_id = $1 and status = 'waiting'",
		id); n > 0 {
		t.Errorf("%d questions are open", n)
	}
	sound(t, env)
}

// What a counter was named after leaves with the calls: it may be a telephone number.
func TestWhatACounterIsNamedAfterLeaves(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "once", "tools": ["lab.write"], "action": "block", "limit": {"max": 1, "within": "1h", "per": ["input:/text"]}}`))
	env.StartWorker()
	env.Run(inSession("s", "lab.write", "+49 170 1234567"))
	env.Pass(365 * 24 * time.Hour)
	number(t, env, "select gem.prune_rule_runs(1000)")
	if n := number(t, env, "select count(*) from gem.rule_runs where counter like '%1234567%'"); n > 0 {
		t.Errorf("a year later %d rows name it", n)
	}
}

// One rule changes while its question is open, and another does not. Workers of both versions run, and all people say
// yes.
func TestAllApproveWhileTwoVersionsRun(t *testing.T) {
	t.Parallel()
	rule := func(name, say string) string {
		return `{"name": "` + name + `", "tools": ["lab.write"], "action": "ask", "say": "` + say +
			`", "ask": {"of": ["finance"], "within": "24h"}}`
	}
	env := startRuled(t, nil)
	financed(t, env)
	open := func(id string, n int, but string) (ids []string) {
		env.Until(fmt.Sprint(n, " questions that the call waits for"), func() bool {
			ids = nil
			rows, err := env.DB.Query(t.Context(), `select k.id::text from core_tool_calls c
				join core_tool_calls k on k.parent_call_id = c.id
				where c.id = $1 and c.status = 'waiting' and k.status = 'waiting' and k.cancel_requested_at is null
					and k.parent_step = any (c.waits) and k.id::text <> $2 order by k.input ->> 'text'`, id, but)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var k string
				if err := rows.Scan(&k); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, k)
			}
			return len(ids) == n
		})
		return ids
	}
	yes := func(question string) {
		if err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, ""); err != nil {
			t.Fatal(err)
		}
	}
	old := env.StartWorker(ruledBy(t, rule("changed", "a"), rule("same", "s")))
	id := env.Insert(inSession("s", "lab.write", "x"))
	questions := open(id, 2, "") // of changed, and of same
	old.Stop()
	fresh := env.StartWorker(ruledAs(t, "2.0.0", rule("changed", "b"), rule("same", "s")))
	yes(questions[1])
	anew := open(id, 1, questions[0]) // the worker of the new version asks again for the rule that changed
	fresh.Stop()
	env.StartWorker(ruledBy(t, rule("changed", "a"), rule("same", "s")))
	yes(anew[0])
	env.Until("the end, or a question", func() bool {
		return number(t, env, "select count(*) from core_tool_calls where id = $1 and (status in ('succeeded', 'failed') "+
			"or status = 'waiting' and attempt >= 3)", id) == 1
	})
	time.Sleep(time.Second)
	if n := number(t, env, "select count(*) from core_tool_calls where id = $1 and status = 'failed'", id); n > 0 {
		t.Errorf("everyone who was asked said yes: %s", env.Await(id).Result)
	}
}

package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/rulesreplay"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
)

// allWords are rules with each word of memory, and each action.
var allWords = []string{
	`{"name": "few", "tools": ["lab.write"], "action": "block", "limit": {"max": 4, "within": "1h", "per": ["session"]}}`,
	`{"name": "many", "tools": ["lab.*"], "action": "warn", "limit": {"max": 6, "within": "1h", "per": ["caller"]}, "say": "Slow down."}`,
	`{"name": "budget", "tools": ["lab.pay"], "action": "block", "limit": {"max": 25.50, "sum": "/amount", "within": "1h", "per": ["caller"]}}`,
	`{"name": "pace", "tools": ["lab.nothing"], "action": "wait", "limit": {"max": 2, "within": "1s"}}`,
	`{"name": "look", "tools": ["lab.pay"], "action": "block", "requires": {"tool": "lab.send", "within": "30m"}}`,
	`{"name": "no_more", "tools": ["lab.send"], "action": "block", "after": {"tools": ["lab.pay"], "ended": ["limit_reached"]}}`,
	`{"name": "hm", "tools": ["lab.write"], "action": "warn", "after": {"tools": ["lab.*"], "ended": ["failed"]}}`,
	`{"name": "strikes", "tools": ["lab.write"], "action": "block", "failures": {"in_a_row": 2, "per": ["caller"], "cooldown": "5m"}}`,
	`{"name": "secret", "tools": ["lab.*"], "action": "block", "when": {"input": {"text": {"const": "secret"}}}}`,
	`{"name": "loud", "tools": ["lab.send"], "action": "warn", "when": {"result": {"text": {"const": "loud"}}}}`,
	`{"name": "rows", "tools": ["lab.write"], "action": "block", "when": {"input": {"text": {"const": "undone"}}, "effects": {"db_writes": {"minItems": 1}}}}`,
	`{"name": "dear", "tools": ["lab.write"], "action": "ask", "when": {"input": {"text": {"pattern": "dear"}}}, "ask": {"of": ["finance"], "within": "24h"}}`,
}

// busy makes calls of each sort under allWords.
func busy(t *testing.T, env *handlertest.Env) {
	t.Helper()
	financed(t, env)
	write := func(caller, session, text, then string) handlertest.Call {
		return handlertest.Call{Tool: "lab.write", Input: task(Task{Text: text, Then: then}), CreatedBy: caller,
			Session: session}
	}
	pay := func(session, amount string) handlertest.Call {
		return handlertest.Call{Tool: "lab.pay", Input: `{"text": "x", "amount": ` + amount + `}`, CreatedBy: "ada",
			Session: session}
	}
	var ids []string
	for i := range 12 { // at once
		ids = append(ids, env.Insert(inSession("at once", "lab.write", "x")))
		ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.nothing",
			Input: task(Task{Text: "x", Key: fmt.Sprint(i % 7)}), CreatedBy: "bob", Session: "at once"}))
	}
	first := env.StartWorker()
	env.StartWorker()
	for _, id := range ids {
		env.Await(id)
	}
	for _, c := range []handlertest.Call{
		pay("s", "10"), inSession("s", "lab.send", "loud"), pay("s", "10.25"), pay("s", "20"), pay("s", "15.25"),
		pay("s", "1"), inSession("s", "lab.send", "x"),
		write("eve", "e", "a", "fail"), write("eve", "e", "b", "transient once"), write("eve", "e", "c", "fail"),
		write("eve", "e", "d", "fail"), write("eve", "e", "e", ""),
		write("mia", "m", "secret", ""), write("mia", "m", "undone", ""), write("mia", "", "x", ""),
		write("mia", "m", "fine", ""),
		{Tool: "lab.missing", Input: "{}"}, {Tool: "lab.write", Input: `{"nothing": 1}`, CreatedBy: "mia"},
	} {
		env.Run(c)
	}
	for _, decision := range []map[string]any{{"approved": true}, {"approved": false, "reason": "too dear"}} {
		id := env.Insert(write("zoe", "z", "dear", ""))
		question := questionOf(t, env, id)
		first.Stop()
		first = env.StartWorker()
		if err := answerAs(t, env, "carol", question, decision, ""); err != nil {
			t.Fatal(err)
		}
		env.Await(id)
	}
	late := env.Insert(write("zoe", "z", "dear", ""))
	questionOf(t, env, late)
	env.Pass(25 * time.Hour)
	env.Await(late)
	env.Run(write("eve", "e", "after the rest", ""))
	// its turn is at once
	env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "late"}), CreatedBy: "bob"})
	open := env.Insert(write("zoe", "z", "dear", ""))
	questionOf(t, env, open)
}

// replayed judges the calls of the last three days again.
func replayed(t *testing.T, env *handlertest.Env) *rulesreplay.Report {
	t.Helper()
	report, err := rulesreplay.Recorded(t.Context(), env.DB, time.Now().Add(-72*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestWhatRulesDecidedComesOutAgain(t *testing.T) {
	t.Parallel()
	env := startRuled(t, func(o *worker.Options) { o.Concurrency = 8; ruledBy(t, allWords...)(o) })
	// A worker's row, which names its rules, may be removed an hour after its end, and the test moves the clock by a day.
	testdb.Exec(t, env.DB, `create function keep() returns trigger language plpgsql as 'begin return null; end';
		create trigger keep before delete on core_workers for each row execute function keep()`)
	busy(t, env)
	times := 10
	if testdb.IsLong() {
		times = 100
	}
	for range times { // whatever the order of maps
		report := replayed(t, env)
		if report.Calls < 40 || report.Decisions < report.Calls || len(report.Differences) > 0 {
			t.Fatalf("%d calls, %d decisions: %+v", report.Calls, report.Decisions, report.Differences)
		}
		if len(report.Unknown) > 1 || report.Unknown["its handler's result was not kept"] != 1 {
			t.Errorf("not computed again: %v", report.Unknown)
		}
	}
	sound(t, env)
}

// within begins transactions in another.
type within struct{ pgx.Tx }

func (w within) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return w.Begin(ctx) }

// forged judges the calls of the last three days again after a change that GEM refuses, and undoes the change.
func forged(t *testing.T, env *handlertest.Env, change string) *rulesreplay.Report {
	t.Helper()
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "set local session_replication_role = replica"); err != nil {
		t.Fatal(err)
	}
	tag, err := tx.Exec(t.Context(), change)
	if err != nil || tag.RowsAffected() == 0 {
		t.Fatalf("%s: %d rows, %v", change, tag.RowsAffected(), err)
	}
	report, err := rulesreplay.Recorded(t.Context(), within{tx}, time.Now().Add(-72*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return report
}

func TestADecisionThatWasForgedComesOutOtherwise(t *testing.T) {
	testdb.Long(t, "TestWhatRulesDecidedComesOutAgain")
	t.Parallel()
	env := startRuled(t, func(o *worker.Options) { o.Concurrency = 8; ruledBy(t, allWords...)(o) })
	busy(t, env)
	const stopped = `(select call_id from core_tool_receipts where result #>> '{error,error_code}' = 'limit_reached'
		and tool_name = 'lab.write' order by id limit 1)`
	for name, test := range map[string]struct{ forge, says string }{
		"who said it": {`update core_tool_receipts set effects = jsonb_set(effects, '{rules,verdicts,0,rule}', '"many"') where call_id = ` + stopped, "few"},
		"when it is free": {`update core_tool_receipts set effects = jsonb_set(effects, '{rules,verdicts,0,seen,free_at}', '"2020-01-01T00:00:00Z"')
			where call_id = ` + stopped, "2020-01-01"},
		"a warning that is gone": {`update core_tool_receipts set effects = effects - 'rules' where status = 'succeeded' and tool_name = 'lab.send'
			and effects #>> '{rules,verdicts,0,rule}' = 'loud'`, "loud"},
		"a call that was stopped": {`update core_tool_receipts set status = 'succeeded', result = '{"text": "x"}', effects = effects - 'rules' where call_id = ` + stopped, "few"},
		"a turn": {`update gem.rule_runs set at = at + interval '1 hour'
			where (counter, n) = (select r.counter, r.n from gem.rule_runs r
			where r.counter like 'pace/%' and exists (select from core_tool_events e where e.call_id = r.call_id
				and e.event = 'delayed') order by r.n desc limit 1)`, "pace"},
		"the turn of a call that did not wait": {`update gem.rule_runs set at = at + interval '1 hour'
			where counter like 'pace/%' and n = (select max(n) from gem.rule_runs where counter like 'pace/%')`,
			"pace"},
		"a place that is gone": {`delete from gem.rule_runs where counter like 'budget/%'
			and n = (select max(n) from gem.rule_runs where counter like 'budget/%')`, "budget/sum"},
		"who approved": {`update core_tool_receipts set effects = jsonb_set(effects, '{rules,approvals,0,by}', '"ada"') where effects #> '{rules,approvals}' is not null`, "approved for dear by ada"},
	} {
		report := forged(t, env, test.forge)
		if len(report.Differences) == 0 || !strings.Contains(fmt.Sprint(report.Differences), test.says) {
			t.Errorf("%s: %+v", name, report.Differences)
		}
	}
}

// Ends are not committed in the order of their times: a gate may know two failures, and not the success between them.
func TestAnEndThatTheGateDidNotKnowExplainsItsDecision(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, `{"name": "strikes", "tools": ["lab.write"], "action": "block",
		"failures": {"in_a_row": 2, "per": ["caller"], "cooldown": "5m"}}`))
	env.StartWorker()
	var last *receipts.Receipt
	for _, then := range []string{"", "fail", "fail", ""} {
		last = env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: then}), CreatedBy: "eve"})
	}
	if e, _ := last.Error(); e.Code != receipts.RuleBlocked {
		t.Fatalf("%+v", last)
	}
	for ago, explains := range map[string]bool{"1 millisecond": true, "2 minutes": false} {
		// The success and the first failure change places.
		report := forged(t, env, `
			update gem.rule_runs set n = n + 10;
			update gem.rule_runs set n = case n when 11 then 2 when 12 then 1 else 3 end;
			update gem.rule_runs r set at = o.at
			  from (select at, row_number() over (order by at) as n from gem.rule_runs) o where o.n = r.n;
			update core_tool_receipts r set created_at = f.created_at - interval '`+ago+`'
			  from gem.rule_runs s, gem.rule_runs l, core_tool_receipts f
			  where s.n = 2 and r.call_id = s.call_id and l.n = 3 and f.call_id = l.call_id`)
		if explained := len(report.Differences) == 0; explained != explains {
			t.Errorf("the success ended %s before the second failure: %+v", ago, report.Differences)
		}
	}
}

// A gate that judges a call long after its insert knows what ended shortly before the insert.
func TestAnEndThatTheGateOfALateCallKnewExplainsNothing(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, `{"name": "sent", "tools": ["lab.write"], "action": "block",
		"requires": {"tool": "lab.send"}}`))
	env.StartWorker()
	blocked := env.Run(inSession("s", "lab.write", "x"))
	if e, _ := blocked.Error(); e.Code != receipts.RuleBlocked {
		t.Fatalf("%+v", blocked)
	}
	sent := env.Run(inSession("s", "lab.send", "x"))
	for waited, explains := range map[string]bool{"1 second": true, "10 minutes": false} {
		report := forged(t, env, `
			update core_tool_calls c set created_at = e.at - interval '`+waited+`' from core_tool_events e
			  where c.id = '`+blocked.CallID+`' and e.call_id = c.id and e.event = 'claimed';
			update core_tool_calls s set updated_at = c.created_at - interval '1 second'
			  from core_tool_calls c where c.id = '`+blocked.CallID+`' and s.id = '`+sent.CallID+`'`)
		if explained := len(report.Differences) == 0; explained != explains {
			t.Errorf("the call waited %s: %+v", waited, report.Differences)
		}
	}
}

// Ends in a session are not committed in the order of their times either.
func TestAnEndThatTheGateMissedBetweenOthersExplainsItsDecision(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, `{"name": "sent", "tools": ["lab.write"], "action": "block",
		"requires": {"tool": "lab.send"}}`, `{"name": "paid", "tools": ["lab.write"], "action": "warn",
		"after": {"tools": ["lab.pay"], "ended": ["succeeded"]}}`))
	env.StartWorker()
	call := handlertest.Call{Tool: "lab.pay", Input: `{"text": "x", "amount": 1}`, CreatedBy: "ada", Session: "s"}
	pay := env.Run(call)
	for range 7 { // more ends than are tried in combination
		env.Run(call)
	}
	blocked := env.Run(inSession("s", "lab.write", "x"))
	if e, _ := blocked.Error(); e.Code != receipts.RuleBlocked || len(e.Details) == 0 {
		t.Fatalf("%+v", blocked)
	}
	sent := env.Run(inSession("s", "lab.send", "x"))
	for earlier, explains := range map[string]bool{"1 millisecond": true, "10 minutes": false} {
		report := forged(t, env, `update core_tool_calls s set updated_at = p.updated_at - interval '`+earlier+`'
			from core_tool_calls p where p.id = '`+pay.CallID+`' and s.id = '`+sent.CallID+`'`)
		if explained := len(report.Differences) == 0; explained != explains {
			t.Errorf("lab.send ended %s before lab.pay: %+v", earlier, report.Differences)
		}
	}
}

// An answer takes its time before it is committed, and a gate in between does not see it.
func TestAnAnswerThatTheGateDidNotKnowExplainsItsDecision(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t,
		`{"name": "dear", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["finance"], "within": "1h"}}`,
		`{"name": "chief", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["boss"], "within": "1h"}}`,
		`{"name": "law", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["legal"], "within": "1h"}}`))
	financed(t, env)
	testdb.Exec(t, env.DB, "insert into gem.roles values ('bob', 'boss'), ('dan', 'legal')")
	env.StartWorker()
	id := env.Insert(inSession("s", "lab.write", "x"))
	question := func(role string) (question string) {
		env.Until("people are asked as "+role, func() bool {
			return env.DB.QueryRow(t.Context(), `select id::text from core_tool_calls where parent_call_id = $1 and
				waits_for = 'answer' and answer_by = array['role:' || $2]`, id, role).Scan(&question) == nil
		})
		return question
	}
	yes := map[string]any{"approved": true}
	dear, chief, law := question("finance"), question("boss"), question("legal")
	if err := answerAs(t, env, "carol", dear, yes, ""); err != nil {
		t.Fatal(err)
	}
	env.Until("the call waits for the other answers", func() bool {
		return number(t, env, "select count(*) from core_tool_events where event = 'waiting' and call_id = $1", id) == 2
	})
	for by, question := range map[string]string{"bob": chief, "dan": law} {
		if err := answerAs(t, env, by, question, yes, ""); err != nil {
			t.Fatal(err)
		}
	}
	if r := env.Await(id); r.Status != receipts.Succeeded {
		t.Fatalf("%s", r.Result)
	}
	for ago, explains := range map[string]bool{"1 millisecond": true, "2 minutes": false} {
		report := forged(t, env, `update core_tool_calls q set updated_at = w.at - interval '`+ago+`', created_at =
				q.created_at - interval '1 hour'
			from (select updated_at as at from core_tool_calls where id = '`+dear+`') w
			where q.id in ('`+chief+`', '`+law+`')`)
		if explained := len(report.Differences) == 0; explained != explains {
			t.Errorf("the other answers were given %s before the one that the gate knew: %+v", ago, report.Differences)
		}
	}
}

// A draft judges calls that no rules had judged.
func TestADraftIsTriedOnTheCallsThatWereMade(t *testing.T) {
	t.Parallel()
	env := startRuled(t, nil)
	env.StartWorker()
	var ids []string
	run := func(c handlertest.Call) {
		ids = append(ids, env.Run(c).CallID)
	}
	for i := range 5 {
		run(inSession("s", "lab.write", fmt.Sprint("w", i)))
	}
	run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "fail"}), CreatedBy: "ada", Session: "t"})
	run(inSession("t", "lab.write", "y"))
	run(inSession("s", "lab.send", "loud"))
	run(inSession("s", "lab.send", "dear"))
	run(handlertest.Call{Tool: "lab.pay", Input: `{"text": "x", "amount": 3}`, CreatedBy: "ada", Session: "s"})
	run(handlertest.Call{Tool: "lab.pay", Input: `{"text": "x", "amount": 3}`, CreatedBy: "ada", Session: "u"})
	env.Run(handlertest.Call{Tool: "lab.missing", Input: "{}"})
	set, err := rules.Parse([]byte(`{"version": "2.0.0", "rules": [` + strings.Join([]string{
		`{"name": "three", "tools": ["lab.write"], "action": "block", "limit": {"max": 3, "within": "1h", "per": ["session"]}}`,
		`{"name": "sent", "tools": ["lab.write"], "action": "warn", "failures": {"in_a_row": 1, "per": ["session"], "cooldown": "1h"}}`,
		`{"name": "pace", "tools": ["lab.send"], "action": "wait", "limit": {"max": 1, "within": "1h"}}`,
		`{"name": "loud", "tools": ["lab.send"], "action": "warn", "when": {"result": {"text": {"const": "loud"}}}}`,
		`{"name": "dear", "tools": ["lab.send"], "action": "ask", "when": {"input": {"text": {"const": "dear"}}}, "ask": {"of": ["finance"]}}`,
		`{"name": "then", "tools": ["lab.pay"], "action": "block", "requires": {"tool": "lab.send"}}`,
		`{"name": "never", "tools": ["lab.*"], "action": "off", "limit": {"max": 0, "within": "1h"}}`,
	}, ", ") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		got, err := rulesreplay.Draft(t.Context(), env.DB, time.Now().Add(-time.Hour), set, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Rules[2].MedianDelayMS < 3_500_000 || got.Rules[2].MedianDelayMS > 3_600_000 {
			t.Errorf("the delay is %d ms", got.Rules[2].MedianDelayMS)
		}
		got.Rules[2].MedianDelayMS = 0
		want := []rulesreplay.Effect{
			{Rule: "three", Action: "block", Met: 2, Blocked: 2, Succeeded: 2, Examples: ids[3:5]},
			{Rule: "sent", Action: "warn", Met: 1, Warned: 1, Succeeded: 1, Examples: ids[6:7]},
			{Rule: "pace", Action: "wait", Met: 1, Delayed: 1, Succeeded: 1, Examples: ids[8:9]},
			{Rule: "loud", Action: "warn", Met: 1, Warned: 1, Succeeded: 1, Examples: ids[7:8]},
			{Rule: "dear", Action: "ask", Met: 1, Asked: 1, Succeeded: 1, Examples: ids[8:9]},
			{Rule: "then", Action: "block", Met: 1, Blocked: 1, Succeeded: 1, Examples: ids[10:11]},
		}
		if diff := cmp.Diff(want, got.Rules, cmpopts.IgnoreUnexported(rulesreplay.Effect{})); diff != "" || got.Calls != 11 ||
			got.Stopped != 3 || len(got.Unknown) > 0 {
			t.Errorf("%d calls, %d stopped, %v: %s", got.Calls, got.Stopped, got.Unknown, diff)
		}
	}
}

// What gem prune removed is neither guessed nor a difference.
func TestWhatHangsOnRowsThatArePrunedIsNotComputedAgain(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, fiveASession))
	env.StartWorker()
	for range 6 {
		env.Run(inSession("s", "lab.write", "x"))
	}
	env.Run(inSession("another", "lab.write", "x"))
	if report := replayed(t, env); report.Decisions != 13 || len(report.Differences)+len(report.Unknown) > 0 {
		t.Fatalf("%+v", report)
	}
	if _, err := env.DB.Exec(t.Context(),
		"delete from gem.rule_runs where n <= 3 and counter like '%[[\"s\",%'"); err != nil {
		t.Fatal(err)
	}
	report := replayed(t, env)
	if len(report.Differences) > 0 || report.Unknown["rows of a counter were pruned"] != 6 {
		t.Errorf("%+v", report)
	}
}

// Each decision is computed again by the version that made it.
func TestDecisionsOfSeveralVersionsComeOutAgain(t *testing.T) {
	t.Parallel()
	env := startRuled(t, nil)
	financed(t, env)
	version := func(v string, entries ...string) func(*worker.Options) {
		set, err := rules.Parse([]byte(`{"version": "` + v + `", "rules": [` + strings.Join(entries, ", ") + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		return func(o *worker.Options) { o.Rules = set }
	}
	first := env.StartWorker(version("1", fiveASession, asks))
	id := env.Insert(inSession("s", "lab.write", "dear"))
	question := questionOf(t, env, id)
	for range 3 {
		env.Run(inSession("s", "lab.write", "x"))
	}
	first.Stop()
	second := env.StartWorker(version("2", strings.Replace(fiveASession, `"max": 5`, `"max": 4`, 1), asks,
		`{"name": "many", "tools": ["lab.*"], "action": "warn", "limit": {"max": 1, "within": "1h"}}`))
	if err := answerAs(t, env, "carol", question, map[string]any{"approved": true}, ""); err != nil {
		t.Fatal(err)
	}
	if got := codeOf(env.Await(id)) + " " + codeOf(
		env.Run(inSession("s", "lab.write", "x"))); got != "succeeded limit_reached" {
		t.Errorf("got %s", got)
	}
	second.Stop()
	env.StartWorker() // without rules
	env.Run(inSession("s", "lab.write", "x"))
	if report := replayed(t, env); report.Calls != 6 || len(report.Differences)+len(report.Unknown) > 0 {
		t.Errorf("%+v", report)
	}
}

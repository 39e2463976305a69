package worker_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/notify"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
)

// toldBy makes lab.send the tool of two channels, and lab.write that of a third. rules are those of notify.json.
func toldBy(t *testing.T, rules ...string) func(*worker.Options) {
	t.Helper()
	set, err := notify.Parse(fmt.Appendf(nil, `{"version": "1", "rules": [%s], "channels": {
		"ops": {"tool": "lab.send", "input": {"text": "{title} / {text} / {link}"}},
		"boss": {"tool": "lab.send", "text": true, "escape": "slack", "input": {"text": "boss: {title} / {text}"}},
		"broken": {"tool": "lab.write", "input": {"text": "{title}", "then": "fail"}}}}`, strings.Join(rules, ",")))
	if err != nil {
		t.Fatal(err)
	}
	return func(o *worker.Options) { o.Notify, o.Dashboard = set, "https://ops.example.com/gem/" }
}

// told returns the texts of the deliveries, in the order of their calls.
func told(t *testing.T, env *handlertest.Env) []string {
	t.Helper()
	return column(t, env, `select c.input ->> 'text' from gem.notice_calls n
		join core_tool_calls c on c.id = n.call_id order by c.id`)
}

func column(t *testing.T, env *handlertest.Env, sql string) []string {
	t.Helper()
	rows, _ := env.DB.Query(t.Context(), sql)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nothingLeft waits until no notice is undelivered and all deliveries have ended.
func nothingLeft(t *testing.T, env *handlertest.Env) {
	t.Helper()
	env.Until("all notices to be delivered", func() bool {
		return number(t, env, `select (select count(*) from gem.notices)
			+ (select count(*) from gem.notice_batches where count > 0 and sent_at is null)
			+ (select count(*) from gem.notice_calls n join core_tool_calls c on c.id = n.call_id
				where c.status in ('queued', 'running'))`) == 0
	})
}

func TestPeopleAreToldOfWhatHappens(t *testing.T) {
	t.Parallel()
	env := startRuled(t, func(o *worker.Options) {
		ruledBy(t,
			`{"name": "dear", "tools": ["lab.pay"], "action": "ask", "ask": {"of": ["finance"], "within": "1h", "question": "Pay <{text}>?"}}`,
			`{"name": "never", "tools": ["lab.nothing"], "action": "block"}`)(o)
		toldBy(t,
			`{"when": "question", "roles": ["finance"], "to": ["ops", "boss"]}`,
			`{"when": "question", "roles": ["others"], "to": ["broken"]}`,
			`{"when": "failed", "tools": ["lab.write"], "to": ["ops"], "every": "1h"}`,
			`{"when": "failed", "tools": ["lab.*"], "to": ["ops"], "every": "1h"}`,
			`{"when": "refused", "codes": ["rule_blocked"], "to": ["ops"]}`)(o)
	})
	financed(t, env)
	env.StartWorker()
	pay := env.Insert(handlertest.Call{Tool: "lab.pay", Input: `{"text": "a & b", "amount": 3}`, CreatedBy: "ada"})
	question := questionOf(t, env, pay)
	failed := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "fail"})})
	refused := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "k"})})
	env.Run(handlertest.Call{Tool: "other.missing", Input: "{}"}) // no rule is about it
	env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	later := time.Now().Add(time.Hour)
	cancelled := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"}), RunAt: later})
	testdb.Exec(t, env.DB, "select gem.cancel($1)", cancelled)
	nothingLeft(t, env)
	const gem = "https://ops.example.com/gem/"
	want := []string{
		"Approval needed: lab.pay / A rule asks for it. / " + gem + "questions/" + question,
		"boss: Approval needed: lab.pay / Pay &lt;\"a &amp; b\"&gt;?",
		"lab.write failed: execution_error / The first call is " + failed.CallID + ". / " + gem + "calls/" + failed.CallID,
		"lab.nothing was refused: rule_blocked / The first call is " + refused.CallID + ". / " + gem + "calls/" + refused.CallID,
	}
	if diff := cmp.Diff(want, told(t, env), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Error(diff)
	}
	sound(t, env)
}

// A storm becomes a number, and each notice is counted once, whichever worker takes it.
func TestAStormBecomesANumber(t *testing.T) {
	t.Parallel()
	env := startRuled(t, toldBy(t, `{"when": "failed", "to": ["ops"], "every": "1s"}`,
		`{"when": "failing", "failed": 100, "within": "1h", "to": ["boss"]}`))
	env.StartWorker()
	env.StartWorker()
	const calls = 500
	for i := range calls {
		env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: fmt.Sprint(i), Then: "fail"})})
	}
	env.Until("all calls to be told of", func() bool {
		return number(t, env, `select coalesce(sum((notice ->> 'count')::int), 0) from gem.notice_calls
			where channel = 'ops'`) == calls
	})
	nothingLeft(t, env)
	if n := number(t, env, "select count(*) from gem.notice_calls where channel = 'ops'"); n < 2 || n > calls/10 {
		t.Errorf("%d deliveries for %d failures", n, calls)
	}
	if n := number(t, env, "select count(*) from gem.notice_calls where channel = 'boss'"); n != 1 {
		t.Errorf("%d deliveries that the tool keeps failing", n)
	}
	sound(t, env)
}

// If a delivery fails, the other channel delivers the notice once, and the failure itself makes no notice.
func TestAFailedDeliveryIsToldElsewhereAndNeverOfItself(t *testing.T) {
	t.Parallel()
	env := startRuled(t, toldBy(t, `{"when": "failed", "to": ["broken"], "every": "0s", "else": "ops"}`,
		`{"when": "refused", "to": ["broken"], "every": "0s"}`))
	env.StartWorker()
	env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "fail"})})
	nothingLeft(t, env)
	env.Until("two deliveries", func() bool { return len(told(t, env)) == 2 })
	nothingLeft(t, env)
	want := []string{"", "The channel broken did not deliver this. / https://ops.example.com/gem/calls/"}
	for i, text := range told(t, env) {
		if !strings.HasPrefix(text, "lab.write failed: execution_error") || !strings.Contains(text, want[i]) {
			t.Errorf("got %q, want %q", text, want[i])
		}
	}
	if n := number(t, env, "select count(*) from gem.notices"); n != 0 {
		t.Errorf("%d notices are left", n)
	}
}

// Each end that is not a success makes a notice, with or without a worker, and only if a file asks for it.
func TestEachCauseMakesOneNotice(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, `{"name": "never", "tools": ["lab.nothing"], "action": "block"}`))
	notices := func() []string {
		return column(t, env, "select concat_ws(' ', kind, tool, code) from gem.notices order by id")
	}
	fail := handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "fail"})}
	env.StartWorker()
	env.Run(fail)
	if got := notices(); len(got) > 0 {
		t.Errorf("nobody wants %q", got)
	}
	testdb.Exec(t, env.DB, "select gem.want_notices('{question,failed,refused,budget,schedule}', '{80,100}')")
	env.Run(fail)
	env.Run(handlertest.Call{Tool: "lab.missing", Input: "{}"})
	env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "k"})})
	env.Run(handlertest.Call{Tool: "lab.write", Input: `{"text": 1}`})
	question := env.Insert(handlertest.Call{Tool: "wait.answer", Input: `{"text": "Which?"}`})
	env.UntilItWaits(question, "answer")
	testdb.Exec(t, env.DB, `select gem.save_schedule('a', '@yearly', 'lab.send', p_options => '{"missed": "skip"}');
		update gem.schedules set since = now() - interval '3 years', next_at = now() - interval '2 years', look_at = now()`)
	env.Until("the schedule to be told of", func() bool { return len(notices()) == 6 })
	testdb.Exec(t, env.DB, `insert into gem.llm_spend (budget, subject, period, starts, "limit", spent)
			values ('team', '', 'day', now(), 1000, 700);
		update gem.llm_spend set spent = 790; update gem.llm_spend set spent = 1000; update gem.llm_spend set spent = 1200`)
	want := []string{"failed lab.write execution_error", "failed  unknown_tool",
		"refused lab.nothing rule_blocked", "failed lab.write validation_error", "question wait.answer ", "schedule lab.send missed",
		"budget  80", "budget  100"}
	if diff := cmp.Diff(want, notices()); diff != "" {
		t.Error(diff)
	}
}

func TestNoticesNeedAnotherVersionForOtherContents(t *testing.T) {
	t.Parallel()
	env := startRuled(t, toldBy(t, `{"when": "failed", "to": ["ops"]}`))
	env.StartWorker()
	env.Until("the notices to be recorded", func() bool {
		return number(t, env, "select count(*) from gem.notice_kinds") == 1
	})
	other := env.NewWorker(toldBy(t, `{"when": "refused", "to": ["ops"]}`))
	if err := other.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("got %v", err)
	}
	kinds, _ := json.Marshal(column(t, env, "select kind from gem.notice_kinds"))
	if string(kinds) != `["failed"]` {
		t.Errorf("got %s", kinds)
	}
}

// During a deployment, a worker with the earlier file leaves what only the new rules match.
func TestAnEarlierFileTakesNoNotices(t *testing.T) {
	t.Parallel()
	env := startRuled(t, toldBy(t, `{"when": "refused", "to": ["ops"]}`))
	env.StartWorker()
	env.Until("the first file to be used", func() bool {
		return number(t, env, "select count(*) from gem.notice_kinds") == 1
	})
	testdb.Exec(t, env.DB, "select gem.record_notify('2', repeat('a', 64), '{}'), gem.want_notices('{failed}', '{}')")
	for range 5 {
		env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "fail"})})
	}
	env.Run(handlertest.Call{Tool: "<!channel> @everyone", Input: "{}"})
	got := column(t, env, "select distinct concat_ws(' ', kind, tool, code) from gem.notices order by 1")
	if diff := cmp.Diff([]string{"failed  unknown_tool", "failed lab.write execution_error"}, got); diff != "" {
		t.Error(diff)
	}
	if n := number(t, env, "select count(*) from gem.notices"); n != 6 {
		t.Errorf("%d notices wait", n)
	}
	later := `{"version": "3", "rules": [{"when": "failed", "to": ["ops"]}],
		"channels": {"ops": {"tool": "lab.send", "input": {"text": "{title}"}}}}`
	set, err := notify.Parse([]byte(later))
	if err != nil {
		t.Fatal(err)
	}
	env.StartWorker(func(o *worker.Options) { o.Notify = set })
	nothingLeft(t, env)
	want := []string{"lab.write failed 5 times: execution_error", "A call named an unknown tool"}
	if diff := cmp.Diff(want, told(t, env), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Error(diff)
	}
}

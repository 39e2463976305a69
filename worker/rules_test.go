package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

// ruledBy gives a worker these rules, in the form of a file.
func ruledBy(t *testing.T, entries ...string) func(*worker.Options) {
	t.Helper()
	set, err := rules.Parse([]byte(`{"version": "1.0.0", "rules": [` + strings.Join(entries, ", ") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return func(o *worker.Options) { o.Rules = set }
}

// inSession is a call of ada in a session.
func inSession(session, tool, text string) handlertest.Call {
	return handlertest.Call{Tool: tool, Input: task(Task{Text: text}), CreatedBy: "ada", Session: session}
}

// codeOf is how a call ended: its status, or the code of its error.
func codeOf(r *receipts.Receipt) string {
	if failure, failed := r.Error(); failed {
		return string(failure.Code)
	}
	return string(r.Status)
}

const fiveASession = `{"name": "five", "tools": ["lab.*"], "action": "block", "limit": {"max": 5, "within": "1h", "per": ["session"]}}`

func TestALimitHoldsOnTwoWorkers(t *testing.T) {
	t.Parallel()
	sums := `{"name": "budget", "tools": ["lab.pay"], "action": "block", "limit": {"max": 50, "sum": "/amount", "within": "1h", "per": ["caller"]}}`
	for name, test := range map[string]struct {
		rules []string
		input string
		runs  map[string]int // by tool
	}{
		"counted": {[]string{fiveASession}, `{"text": "a"}`, map[string]int{"lab.write": 5}},
		"summed":  {[]string{sums}, `{"text": "a", "amount": 10}`, map[string]int{"lab.pay": 5}},
		"two rules that share": {[]string{fiveASession,
			`{"name": "seven", "tools": ["lab.*"], "action": "block", "limit": {"max": 7, "within": "1h"}}`},
			`{"text": "a"}`, map[string]int{"lab.write": 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := startRuled(t, func(o *worker.Options) { o.Concurrency = 10; ruledBy(t, test.rules...)(o) })
			for tool, want := range test.runs {
				ids := make([]string, 200)
				for i := range ids {
					ids[i] = env.Insert(handlertest.Call{Tool: tool, Input: test.input, CreatedBy: "ada", Session: "s"})
				}
				env.StartWorker()
				env.StartWorker()
				ends := map[string]int{}
				for _, id := range ids {
					ends[codeOf(env.Await(id))]++
				}
				if diff := cmp.Diff(map[string]int{"succeeded": want, "limit_reached": 200 - want}, ends); diff != "" {
					t.Error(diff)
				}
				if n := number(t, env, "select count(*) from gem.rule_runs where n <= 5"); n != want*len(test.rules) {
					t.Errorf("the counters have %d rows", n)
				}
			}
			sound(t, env)
		})
	}
}

// startRuled starts no worker, on a database for the lab's tools and lab.pay, whose input has an amount.
func startRuled(t *testing.T, change func(*worker.Options)) *handlertest.Env {
	t.Helper()
	env, _ := startRuledLab(t, change)
	return env
}

func startRuledLab(t *testing.T, change func(*worker.Options)) (*handlertest.Env, *Lab) {
	t.Helper()
	lab := NewLab()
	var of struct {
		Version string           `json:"version"`
		Tools   []map[string]any `json:"tools"`
	}
	if err := json.Unmarshal(asking(labRegistry("1.0.0", tool{name: "tree.run", calls: []string{"lab.*"}},
		tool{name: "lab.send"}, tool{name: "lab.write"},
		tool{name: "lab.nothing", mode: "keyed", keyField: "key"}, tool{name: "lab.pay"})), &of); err != nil {
		t.Fatal(err)
	}
	for _, entry := range of.Tools {
		if entry["name"] == "lab.pay" {
			schema := entry["input_schema"].(map[string]any)
			schema["properties"].(map[string]any)["amount"] = map[string]any{"type": "number", "minimum": 0}
			schema["required"] = []string{"text", "amount"}
		}
	}
	registry, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	env := handlertest.Start(t, handlertest.Options{Registry: registry, Domains: []any{lab, Tree{lab}}, Worker: change,
		NoWorker: true})
	if _, err := env.DB.Exec(t.Context(), "create table lab_rows (id bigint generated always as identity primary key, "+
		"text text)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(lab.gate("never")) })
	return env, lab
}

// Pay is what a budget counts.
func (l *Lab) Pay(_ context.Context, _ *handlers.Call, in struct {
	Text   string  `json:"text"`
	Amount float64 `json:"amount"`
}) (Done, error) {
	return Done{Text: in.Text}, nil
}

func TestABlockSaysWhatToDoAndCountsNothing(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, fiveASession,
		`{"name": "no_secrets", "tools": ["lab.*"], "action": "block", "when": {"input": {"text": {"const": "secret"}}}, "say": "Leave it out."}`,
		`{"name": "hm", "tools": ["lab.send"], "action": "warn", "say": "Think twice."}`))
	env.StartWorker()
	blocked := env.Run(inSession("s", "lab.write", "secret"))
	if failure := handlertest.ErrorOf(t, blocked); failure.Code != receipts.RuleBlocked ||
		!strings.Contains(failure.Message, "no_secrets") ||
		!strings.Contains(failure.Message, "Leave it out.") ||
		!strings.Contains(string(failure.Details), `"rules_version": "1.0.0"`) {
		t.Errorf("got %+v", failure)
	}
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 0 {
		t.Errorf("the blocked call was counted: %d", n)
	}
	warned := env.Run(inSession("s", "lab.send", "x"))
	var effects receipts.Effects
	if err := json.Unmarshal(warned.Effects, &effects); err != nil || warned.Status != receipts.Succeeded ||
		effects.Rules == nil ||
		len(effects.Rules.Verdicts) != 1 || effects.Rules.Verdicts[0].Action != rules.Warn ||
		!strings.Contains(effects.Rules.Verdicts[0].Message, "Think twice.") {
		t.Errorf("the warning: %s, %s %v", warned.Status, warned.Effects, err)
	}
	if r := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"}), CreatedBy: "ada"}); codeOf(
		r) != "rule_blocked" ||
		!strings.Contains(handlertest.ErrorOf(t, r).Message, "session") {
		t.Errorf("without a session: %s", r.Result)
	}
	sound(t, env)
}

// A hit of a key runs nothing, and is counted nowhere.
func TestAHitIsNotCounted(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "one", "tools": ["lab.nothing"], "action": "block", "limit": {"max": 1, "within": "1h"}}`))
	env.StartWorker()
	keyed := func(key string) handlertest.Call {
		return handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: key}), CreatedBy: "ada"}
	}
	first, hit, other := env.Run(keyed("k")), env.Run(keyed("k")), env.Run(keyed("l"))
	if first.Status != receipts.Succeeded || hit.ReplayOf != first.ID || codeOf(other) != "limit_reached" {
		t.Errorf("got %s, %s, %s", first.Result, hit.Result, other.Result)
	}
	var details struct {
		FreeAt time.Time `json:"free_at"`
		After  int64     `json:"retry_after_ms"`
	}
	if err := json.Unmarshal(handlertest.ErrorOf(t, other).Details, &details); err != nil || details.After <= 3_500_000 ||
		details.After > 3_780_000 {
		t.Errorf("it says %s %v", other.Result, err)
	}
	if n := number(t, env, "select count(*) from gem.rule_runs"); n != 1 {
		t.Errorf("the counter has %d rows", n)
	}
	sound(t, env)
}

// A shared counter reveals to a caller neither the exact time of another's call, nor what that call added, nor its
// receipts.
func TestASharedCounterTellsNoCallerWhatAnotherDid(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t,
		`{"name": "one", "tools": ["lab.nothing"], "action": "block", "limit": {"max": 1, "within": "1h"}}`,
		`{"name": "own", "tools": ["lab.send"], "action": "block", "limit": {"max": 1, "within": "1h", "per": ["caller"]}}`,
		`{"name": "pace", "tools": ["lab.write"], "action": "wait", "limit": {"max": 1, "within": "20m"}}`,
		`{"name": "money", "tools": ["lab.pay"], "action": "block", "limit": {"max": 10, "sum": "/amount", "within": "1h"}}`))
	env.StartWorker()
	call := func(caller, tool, more string) handlertest.Call {
		return handlertest.Call{Tool: tool, Input: more, CreatedBy: caller, SignedIn: true}
	}
	exact := func(r *receipts.Receipt) bool {
		var details struct {
			FreeAt time.Time `json:"free_at"`
			Seen   struct {
				FreeAt time.Time `json:"free_at"`
				Total  string    `json:"total"`
			} `json:"seen"`
		}
		if err := json.Unmarshal(handlertest.ErrorOf(t, r).Details, &details); err != nil || details.FreeAt.IsZero() ||
			!details.FreeAt.Equal(details.Seen.FreeAt) {
			t.Fatalf("%s: %v", r.Result, err)
		}
		if !strings.Contains(string(r.Result), details.FreeAt.UTC().Format("2006-01-02T15:04:05.999Z07:00")) {
			t.Errorf("its message names another time: %s", r.Result)
		}
		return details.FreeAt.UnixMicro()%180_000_000 != 0 || details.Seen.Total != ""
	}
	nothing := func(key string) string { return task(Task{Text: "x", Key: key}) }
	env.Run(call("eve", "lab.nothing", nothing("k")))
	env.Run(call("ada", "lab.send", task(Task{Text: "x"})))
	env.Run(call("eve", "lab.pay", `{"text": "a", "amount": 7}`))
	env.Run(call("eve", "lab.write", task(Task{Text: "x"})))
	for what, c := range map[string]struct {
		call  handlertest.Call
		exact bool
	}{
		"a shared limit":                   {call("ada", "lab.nothing", nothing("l")), false},
		"a shared limit, again":            {call("ada", "lab.nothing", nothing("m")), false},
		"a shared sum":                     {call("ada", "lab.pay", `{"text": "a", "amount": 5}`), false},
		"the caller's own limit":           {call("ada", "lab.send", task(Task{Text: "y"})), true},
		"a call that nobody signed in for": {handlertest.Call{Tool: "lab.nothing", Input: nothing("n")}, true},
	} {
		if got := exact(env.Run(c.call)); got != c.exact {
			t.Errorf("%s: to the microsecond %t, want %t", what, got, c.exact)
		}
	}
	waits := env.Insert(call("ada", "lab.write", task(Task{Text: "y"})))
	env.Until("a turn", func() bool {
		return number(t, env, "select count(*) from core_tool_events where call_id = '"+waits+"' and event = 'delayed'") == 1
	})
	if n := number(t, env, "select count(*) from core_tool_calls where id = '"+waits+
		"' and extract(epoch from run_at) * 1000000 % 60000000 = 0"); n != 1 {
		t.Error("its turn reveals when the other call ran")
	}
}

// A call that is tried again keeps the place that it has.
func TestACallIsCountedOnce(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "two", "tools": ["lab.write"], "action": "block", "limit": {"max": 2, "within": "1h"}}`))
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: "transient once"})})
	second, third := env.Run(inSession("", "lab.write", "y")), env.Run(inSession("", "lab.write", "z"))
	if r.Attempt != 2 || r.Status != receipts.Succeeded || second.Status != receipts.Succeeded ||
		codeOf(third) != "limit_reached" {
		t.Errorf("got %+v, %s, %s", r, second.Result, third.Result)
	}
	sound(t, env)
}

func TestWaitingCallsRunInOrderEachAtItsTurn(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "pace", "tools": ["lab.write"], "action": "wait", "limit": {"max": 5, "within": "1s"}}`))
	ids := make([]string, 20)
	if testdb.IsLong() {
		ids = make([]string, 50)
	}
	for i := range ids {
		ids[i] = env.Insert(inSession("s", "lab.write", fmt.Sprint(i)))
	}
	env.StartWorker()
	env.StartWorker()
	for _, id := range ids {
		r := env.Await(id)
		if delays := slices.DeleteFunc(env.Journal(id),
			func(e string) bool { return e != "delayed" }); r.Status != receipts.Succeeded || len(delays) > 1 {
			t.Errorf("%s, put back %d times", r.Result, len(delays))
		}
	}
	if n := number(t, env, "select count(*) from gem.rule_runs a join gem.rule_runs b on b.counter = a.counter and b.n "+
		"= a.n + 5 where b.at - a.at < '1s'"); n != 0 {
		t.Errorf("%d windows have six calls", n)
	}
	sound(t, env)
}

// A limit besides a pace counts the call when it runs, and not when it gets its turn.
func TestALimitCountsACallThatWaitedWhenItRuns(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "pace", "tools": ["lab.write"], "action": "wait", "limit": {"max": 1, "within": "1s"}}`,
			`{"name": "two", "tools": ["lab.write"], "action": "block", "limit": {"max": 2, "within": "1h"}}`))
	env.StartWorker()
	ids := []string{env.Insert(inSession("s", "lab.write", "a")), env.Insert(inSession("s", "lab.write", "b")),
		env.Insert(inSession("s", "lab.write", "c"))}
	ends := map[string]int{}
	for _, id := range ids {
		ends[codeOf(env.Await(id))]++
	}
	if diff := cmp.Diff(map[string]int{"succeeded": 2, "limit_reached": 1}, ends); diff != "" {
		t.Error(diff)
	}
	sound(t, env)
}

func TestSequencesAreJudgedAsOfWhenTheCallWasMade(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "look", "tools": ["lab.write"], "action": "block", "requires": {"tool": "lab.send", "within": "30m"}}`,
			`{"name": "then_no_more", "tools": ["lab.nothing"], "action": "block", "after": {"tools": ["lab.*"], "ended": ["rule_blocked"]}}`))
	early := env.Insert(inSession("s", "lab.write", "before"))
	send := env.Insert(inSession("s", "lab.send", "x"))
	env.StartWorker()
	env.Await(send)
	for name, test := range map[string]struct {
		r    *receipts.Receipt
		want string
	}{
		"made before the other ended": {env.Await(early), "rule_blocked"},
		"made after":                  {env.Run(inSession("s", "lab.write", "after")), "succeeded"},
		"in another session":          {env.Run(inSession("t", "lab.write", "x")), "rule_blocked"},
		"of another caller": {env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"}),
			CreatedBy: "bob", Session: "s"}), "rule_blocked"},
		"after a block": {env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "k"}),
			CreatedBy: "ada", Session: "s"}), "rule_blocked"},
		"after none": {env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "x", Key: "k"}),
			CreatedBy: "eve", Session: "s"}), "succeeded"},
	} {
		if got := codeOf(test.r); got != test.want {
			t.Errorf("%s: %s, want %s", name, test.r.Result, test.want)
		}
	}
	sound(t, env)
}

func TestFailuresInARowCoolDownTheTool(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "strikes", "tools": ["lab.write"], "action": "block", "failures": {"in_a_row": 3, "per": ["tool"], "cooldown": "5m"}}`))
	env.StartWorker()
	for _, then := range []string{"fail", "fail", "", "fail", "fail", "fail"} {
		env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Then: then})})
	}
	if r := env.Run(inSession("", "lab.write", "y")); codeOf(r) != "rule_blocked" {
		t.Errorf("got %s", r.Result)
	}
	env.Pass(6 * time.Minute)
	if r := env.Run(inSession("", "lab.write", "z")); codeOf(r) != "succeeded" {
		t.Errorf("after the rest: %s", r.Result)
	}
	sound(t, env)
}

// A rule on the result takes the rows back.
func TestABlockedResultLeavesNothing(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "few", "tools": ["lab.write"], "action": "block", "when": {"effects": {"db_writes": {"minItems": 1}}}}`,
			`{"name": "told", "tools": ["lab.send"], "action": "warn", "when": {"result": {"text": {"const": "loud"}}}}`))
	env.StartWorker()
	r := env.Run(inSession("", "lab.write", "x"))
	if codeOf(r) != "rule_blocked" || rowsWith(t, env, "x") != 0 {
		t.Errorf("got %s, %d rows", r.Result, rowsWith(t, env, "x"))
	}
	if r := env.Run(inSession("", "lab.send", "loud")); r.Status != receipts.Succeeded ||
		!strings.Contains(string(r.Effects), `"told"`) {
		t.Errorf("got %s", r.Effects)
	}
	sound(t, env)
}

const asks = `{"name": "dear", "tools": ["lab.write", "tree.run"], "action": "ask", "when": {"input": {"text": {"pattern": "dear|step"}}}, "ask": {"of": ["finance"], "within": "24h"}}`

// financed gives carol the role that decides.
func financed(t *testing.T, env *handlertest.Env) {
	t.Helper()
	if _, err := env.DB.Exec(t.Context(),
		"insert into gem.roles values ('carol', 'finance'), ('ada', 'finance')"); err != nil {
		t.Fatal(err)
	}
}

// askedAndStopped starts a worker, which asks people about a call and is then stopped.
func askedAndStopped(t *testing.T) (env *handlertest.Env, id, question string) {
	t.Helper()
	env = startRuled(t, ruledBy(t, asks))
	financed(t, env)
	first := env.StartWorker()
	id = env.Insert(inSession("s", "lab.write", "dear"))
	question = questionOf(t, env, id)
	first.Stop()
	return env, id, question
}

// questionOf is the open approval for which a call waits.
func questionOf(t *testing.T, env *handlertest.Env, callID string) (id string) {
	t.Helper()
	env.Until("the call to ask", func() bool {
		return env.DB.QueryRow(t.Context(), `select k.id::text from core_tool_calls k
			join core_tool_calls c on c.id = k.parent_call_id
			where c.id = $1 and c.status = 'waiting' and k.status = 'waiting' and k.parent_step like '##%'`,
			callID).Scan(&id) == nil
	})
	return id
}

func TestACallRunsOnlyOnceItIsApproved(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		decision map[string]any
		want     string
	}{
		"approved": {map[string]any{"approved": true}, "succeeded"},
		"denied":   {map[string]any{"approved": false, "reason": "too dear"}, "approval_denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, id, question := askedAndStopped(t) // a restart in between
			env.StartWorker()
			for _, who := range []string{"ada", "bob"} { // who made it; who has no role
				if err := answerAs(t, env, who, question, test.decision, ""); err == nil {
					t.Errorf("%s decided", who)
				}
			}
			if err := answerAs(t, env, "carol", question, test.decision, ""); err != nil {
				t.Fatal(err)
			}
			r := env.Await(id)
			if codeOf(r) != test.want || (rowsWith(t, env, "dear") == 1) != (test.want == "succeeded") {
				t.Errorf("got %s", r.Result)
			}
			if test.want == "succeeded" && !strings.Contains(string(r.Effects), `"by": "carol"`) {
				t.Errorf("the receipt does not say who approved: %s", r.Effects)
			} else if test.want != "succeeded" && !strings.Contains(string(r.Result), "too dear") {
				t.Errorf("the receipt does not say why: %s", r.Result)
			}
			want := []string{"queued", "claimed", "called", "waiting", "returned", "woken", "claimed", string(r.Status)}
			if diff := cmp.Diff(want, env.Journal(id)); diff != "" {
				t.Error(diff)
			}
			sound(t, env)
		})
	}
}

func TestNobodyDecidesInTime(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, asks))
	financed(t, env)
	env.StartWorker()
	id := env.Insert(inSession("s", "lab.write", "dear"))
	questionOf(t, env, id)
	env.Pass(25 * time.Hour)
	if r := env.Await(id); codeOf(r) != "approval_expired" {
		t.Errorf("got %s", r.Result)
	}
	sound(t, env)
}

// A denial stays though the limit that asked has room again.
func TestADenialStaysThoughTheLimitHasRoomAgain(t *testing.T) {
	t.Parallel()
	env := startRuled(t,
		ruledBy(t, `{"name": "more", "tools": ["lab.write"], "action": "ask", "limit": {"max": 1, "within": "1h"}, "ask": {"of": ["finance"], "within": "7d"}}`))
	financed(t, env)
	w := env.StartWorker()
	env.Run(inSession("s", "lab.write", "first"))
	id := env.Insert(inSession("s", "lab.write", "second"))
	question := questionOf(t, env, id)
	w.Stop()
	env.Pass(2 * time.Hour)
	if err := answerAs(t, env, "carol", question, map[string]any{"approved": false}, ""); err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	if r := env.Await(id); codeOf(r) != "approval_denied" {
		t.Errorf("got %s", r.Result)
	}
	sound(t, env)
}

// An approval is for one input: another input is asked about again, and the old question is withdrawn.
func TestAChangedInputIsAskedAnew(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, asks))
	financed(t, env)
	w := env.StartWorker()
	id := env.Insert(inSession("s", "lab.write", "dear"))
	old := questionOf(t, env, id)
	if err := answerAs(t, env, "carol", old, map[string]any{"approved": true}, ""); err != nil {
		t.Fatal(err)
	}
	_ = w
	if r := env.Await(id); codeOf(r) != "succeeded" {
		t.Fatalf("got %s", r.Result)
	}
	id = env.Insert(inSession("s", "lab.write", "dear"))
	old = questionOf(t, env, id)
	if _, err := env.DB.Exec(t.Context(), "set session_replication_role = replica; update core_tool_calls set input = "+
		"'{\"text\": \"dearer\"}' where id = '"+id+"'; set session_replication_role = origin"); err != nil {
		t.Fatal(err)
	}
	if resumed, err := client.Resume(t.Context(), env.DB, id); err != nil || !resumed {
		t.Fatal(resumed, err)
	}
	var anew string
	env.Until("a new question", func() bool {
		return env.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where parent_call_id = $1 and id <> $2 "+
			"and status = 'waiting'", id, old).Scan(&anew) == nil
	})
	if r := env.Await(old); codeOf(r) != "cancelled" {
		t.Errorf("the old question: %s", r.Result)
	}
	if err := answerAs(t, env, "carol", anew, map[string]any{"approved": true}, ""); err != nil {
		t.Fatal(err)
	}
	if r := env.Await(id); codeOf(r) != "succeeded" || rowsWith(t, env, "dearer") != 1 {
		t.Errorf("got %s", r.Result)
	}
}

// A call that waits for people is cancelled at once, with its question.
func TestACallThatWaitsForPeopleIsCancelled(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, asks))
	env.StartWorker()
	id := env.Insert(inSession("s", "lab.write", "dear"))
	question := questionOf(t, env, id)
	if _, err := client.Cancel(t.Context(), env.DB, id); err != nil {
		t.Fatal(err)
	}
	if r := env.Await(id); codeOf(r) != "cancelled" {
		t.Errorf("got %s", r.Result)
	}
	if r := env.Await(question); codeOf(r) != "cancelled" {
		t.Errorf("its question: %s", r.Result)
	}
	sound(t, env)
}

// A question of the rules before the first step of a durable call is not a step of its handler, and is on the receipt
// even if another worker writes it.
func TestADurableCallIsAskedAboutOnce(t *testing.T) {
	t.Parallel()
	env := startRuled(t, ruledBy(t, asks))
	financed(t, env)
	w := env.StartWorker()
	id := startTreeCall(env, "step x; ask color; wait color; step y")
	if err := answerAs(t, env, "carol", questionOf(t, env, id), map[string]any{"approved": true}, ""); err != nil {
		t.Fatal(err)
	}
	var color string
	env.Until("the handler to ask", func() bool {
		return env.DB.QueryRow(t.Context(), "select id::text from core_tool_calls where parent_call_id = $1 and tool_name "+
			"= 'wait.answer' and status = 'waiting'", id).Scan(&color) == nil
	})
	w.Stop()
	env.StartWorker(func(o *worker.Options) { o.Rules = nil })
	if err := answerAs(t, env, "ada", color, "blue", ""); err != nil {
		t.Fatal(err)
	}
	r := env.Await(id)
	if got := textOf(t, r); got != "x, blue by ada, y" || !strings.Contains(string(r.Effects), `"by": "carol"`) {
		t.Errorf("got %q, %s", got, r.Effects)
	}
	sound(t, env)
}

// The same version with other contents is refused, and rules that the program cannot keep.
func TestAWorkerRefusesRulesThatAreNotWhatTheySay(t *testing.T) {
	t.Parallel()
	env := startRuled(t, nil)
	first := env.StartWorker(ruledBy(t, fiveASession))
	env.Run(inSession("s", "lab.write", "x"))
	first.Stop()
	if err := env.NewWorker(ruledBy(t, asks)).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "1.0.0") {
		t.Errorf("the same version with other rules: %v", err)
	}
	taken := `{"name": "late", "tools": ["lab.send"], "action": "block", "when": {"result": {"text": {"const": "x"}}}}`
	if err := env.NewWorker(ruledBy(t, taken)).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "late") {
		t.Errorf("a block of effects that cannot be undone: %v", err)
	}
}

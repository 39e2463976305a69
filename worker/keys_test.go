package worker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

func TestAKeyedCallRunsOnceAndThenRepeatsItsReceipt(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "keyed", keyField: "key"})
	env.StartWorker()

	first := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "first", Key: "0412"}), CreatedBy: "ada"})
	second := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "second", Key: "0412"}),
		CreatedBy: "grace"})
	other := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "third", Key: "0413"})})

	if first.Status != receipts.Succeeded || first.ReplayOf != "" || first.IdempotencyKey != `lab.write:key="0412"` {
		t.Errorf("first: %+v", first)
	}
	if second.Status != receipts.Succeeded || second.ReplayOf != first.ID ||
		string(second.Result) != string(first.Result) {
		t.Errorf("second: %+v", second)
	}
	want := `{"idempotency": {"hit": true, "mode": "keyed", "key_field": "key", "key_value": "0412", "input_differs": true}}`
	if string(second.Effects) != want {
		t.Errorf("the effects of a hit\n got %s\nwant %s", second.Effects, want)
	}
	if other.ReplayOf != "" || rowsWith(t, env, "third") != 1 || rowsWith(t, env, "second") != 0 {
		t.Errorf("other: %+v", other)
	}
}

func TestASafeRetryHitsForTheSameClientKeyToolAndCaller(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "safe-retry"}, tool{name: "lab.nothing", mode: "safe-retry"},
		tool{name: "lab.send"})
	env.StartWorker()
	run := func(tool, text, key, caller string) *receipts.Receipt {
		return env.Run(handlertest.Call{Tool: tool, Input: task(Task{Text: text}), Key: key, CreatedBy: caller})
	}
	first := run("lab.write", "1", "k", "ada")
	for _, c := range []struct {
		name              string
		tool, key, caller string
		hit               bool
	}{
		{"same", "lab.write", "k", "ada", true},
		{"another key", "lab.write", "k2", "ada", false},
		{"another caller", "lab.write", "k", "grace", false},
		{"no caller", "lab.write", "k", "", false},
		{"another tool", "lab.nothing", "k", "ada", false},
		{"no key", "lab.write", "", "ada", false},
		{"a tool without idempotency", "lab.send", "k", "ada", false},
	} {
		r := run(c.tool, "1", c.key, c.caller)
		if r.Status != receipts.Succeeded || (r.ReplayOf == first.ID) != c.hit || (r.ReplayOf != "") != c.hit {
			t.Errorf("%s: %s, a replay of %q", c.name, r.Status, r.ReplayOf)
		}
	}
}

func TestAFailureIsNotRepeated(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "keyed", keyField: "key"})
	env.StartWorker()
	if r := env.Run(handlertest.Call{Tool: "lab.write",
		Input: task(Task{Text: "a", Key: "k", Then: "fail"})}); r.Status != receipts.Failed {
		t.Fatalf("%+v", r)
	}
	if r := env.Run(handlertest.Call{Tool: "lab.write",
		Input: task(Task{Text: "b", Key: "k"})}); r.Status != receipts.Succeeded || r.ReplayOf != "" {
		t.Errorf("%+v", r)
	}
}

// Whatever the server's default is: of a success that came while the key was asked for, a later snapshot knows.
func TestAKeySucceedsOnceWhereTransactionsKeepTheirSnapshot(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, func(o *worker.Options) { o.Concurrency = 8 },
		tool{name: "lab.send", mode: "keyed", keyField: "key"})
	if _, err := env.DB.Exec(t.Context(), `do $$ begin
		execute format('alter database %I set default_transaction_isolation = %L', current_database(), 'repeatable read');
			end $$`); err != nil {
		t.Fatal(err)
	}
	env.StartWorker(func(o *worker.Options) { o.Calls, o.Control = env.Pool(4, true), env.Pool(2, true) })
	var ids []string
	keys := 15
	if testdb.IsLong() {
		keys = 60
	}
	for i := range 4 * keys {
		ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.send",
			Input: task(Task{Text: fmt.Sprint(i / 4), Key: fmt.Sprint(i / 4)})}))
	}
	for _, id := range ids {
		if r := env.Await(id); r.Status != receipts.Succeeded {
			t.Errorf("%s: %s", r.Status, r.Result)
		}
	}
	if sent := lab.sentSoFar(); len(sent) != keys {
		t.Errorf("%d were sent for %d keys", len(sent), keys)
	}
}

// The second call with a key that is being run waits, in no slot, and is a hit when the first has succeeded; it runs
// when the first has failed. Both with two workers and inside one.
func TestTwoCallsOfOneKeyAtTheSameTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		workers int
		first   error
	}{
		{"two workers, the first succeeds", 2, nil},
		{"two workers, the first fails", 2, errors.New("no luck")},
		{"one worker, the first succeeds", 1, nil},
		{"one worker, the first fails", 1, errors.New("no luck")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env, lab := startLab(t, func(o *worker.Options) { o.Concurrency = 3 - c.workers },
				tool{name: "lab.send", mode: "keyed", keyField: "key"})
			for range c.workers {
				env.StartWorker()
			}
			first := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "first", Key: "k", Gate: "first"})})
			lab.awaitBegin(t)
			second := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "second", Key: "k"})})
			env.Until("the second call to wait", func() bool { return slices.Contains(env.Journal(second), "waiting") })
			lab.tell(t, "first", Order{Err: c.first})

			a, b := env.Await(first), env.Await(second)
			if c.first == nil {
				if a.Status != receipts.Succeeded || b.ReplayOf != a.ID || len(lab.sentSoFar()) != 1 {
					t.Errorf("first %s, second a replay of %q, sent %v", a.Status, b.ReplayOf, lab.sentSoFar())
				}
			} else if a.Status != receipts.Failed || b.Status != receipts.Succeeded || b.ReplayOf != "" ||
				len(lab.sentSoFar()) != 2 {
				t.Errorf("first %s, second %s, a replay of %q, sent %v", a.Status, b.Status, b.ReplayOf, lab.sentSoFar())
			}
			if diff := cmp.Diff([]string{"queued", "claimed", "waiting", "woken", "claimed", "succeeded"},
				env.Journal(second)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Many calls share few keys, and half of them fail at first: a key never runs twice at once, and succeeds once.
func TestManyCallsOfFewKeysOnTwoWorkers(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "keyed", keyField: "key"})
	env.StartWorker()
	env.StartWorker()
	var ids []string
	for i := range 200 {
		then := ""
		if i%4 == 0 {
			then = "fail"
		}
		ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.write",
			Input: task(Task{Text: "x", Key: fmt.Sprint(i % 5), Then: then})}))
	}
	for _, id := range ids {
		env.Await(id)
	}
	if n := rowsWith(t, env, "x"); n != 5 {
		t.Errorf("%d rows for 5 keys", n)
	}
	var hits int
	err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_receipts r join core_tool_receipts o on o.id = "+
		"r.replay_of and o.status = 'succeeded' and o.result = r.result").Scan(&hits)
	if err != nil || hits < 200*3/4-5 {
		t.Errorf("%d hits %v", hits, err)
	}
}

func TestAKeySucceedsOnceWhileItsCallsArePruned(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "keyed", keyField: "key"})
	env.StartWorker()
	env.StartWorker()
	calls := 150
	if os.Getenv("GEM_TEST_LONG") != "" {
		calls = 10_000
	}
	prune := func() int {
		return number(t, env, `select count(*) from gem.prune(array(select call_id from core_tool_receipts limit 100), false,
			true)`)
	}
	pruned := 0
	for i := range calls {
		then := ""
		if i < 10 {
			then = "fail"
		}
		env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Key: fmt.Sprint(i % 5), Then: then})})
		if i%10 == 9 {
			pruned += prune()
		}
	}
	env.Until("all ended and were pruned", func() bool {
		pruned += prune()
		return number(t, env, "select count(*) from core_tool_calls") == 0
	})
	if n := rowsWith(t, env, "x"); n != 5 || pruned != calls {
		t.Errorf("%d rows for 5 keys, and %d calls pruned", n, pruned)
	}
	if n := number(t, env, "select count(*) from gem.kept_keys"); n != 5 {
		t.Errorf("%d keys are kept", n)
	}
	sound(t, env)
}

func TestAKeyThatNobodyHoldsWakesWhatWaitsForIt(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "keyed", keyField: "key"})
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Key: "k"})})
	_, err := env.DB.Exec(t.Context(),
		`update core_tool_calls set status = 'waiting', waits_for = 'key', computed_key = 'lab.write:key="k"',
		updated_at = now() - interval '1 minute' where id = $1`, id)
	if err != nil {
		t.Fatal(err)
	}
	env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 20 * time.Millisecond })
	if r := env.Await(id); r.Status != receipts.Succeeded {
		t.Errorf("%s", r.Result)
	}
}

// What a call gets whose key succeeded with another input is the tool's to say. Inputs are compared as values: spaces,
// the order of fields and the way that a number is written count for nothing.
func TestAKeyOfAnotherInputIsReplayedOrRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode, onOther string
		refused       bool
		pruned        bool // whether the first call is pruned, with its key kept
	}{{"safe-retry", "", true, false}, {"safe-retry", "replay", false, false}, {"keyed", "", false, false},
		{"keyed", "refuse", true, false}, {"safe-retry", "", true, true}, {"safe-retry", "replay", false, true},
		{"keyed", "", false, true}, {"keyed", "refuse", true, true}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			keyField := ""
			if c.mode == "keyed" {
				keyField = "key"
			}
			env, _ := startLab(t, nil, tool{name: "lab.write", mode: c.mode, keyField: keyField, onOther: c.onOther})
			env.StartWorker()
			run := func(input string) *receipts.Receipt {
				return env.Run(handlertest.Call{Tool: "lab.write", Input: input, Key: "\tv"})
			}
			first := run(`{"text": "a", "key": "v"}`)
			if c.pruned && number(t, env, "select count(*) from gem.prune(array[$1::uuid], true, true)", first.CallID) != 1 {
				t.Fatal("it was not pruned")
			}
			same := run(`{ "key":"v", "text":"a" }`)
			if same.ReplayOf != first.ID || idempotency(t, same).InputDiffers {
				t.Errorf("the same input: %+v, effects %s", same, same.Effects)
			}
			if c.mode == "keyed" {
				if spaced := run(`{"text": "a", "key": " v\n"}`); spaced.ReplayOf != first.ID ||
					idempotency(t, spaced).InputDiffers {
					t.Errorf("the same key with white space around it: %+v, effects %s", spaced, spaced.Effects)
				}
			}
			other := run(`{"text": "b", "key": "v"}`)
			if !idempotency(t, other).InputDiffers {
				t.Errorf("another input: effects %s", other.Effects)
			}
			if !c.refused {
				if other.ReplayOf != first.ID {
					t.Errorf("another input: %+v", other)
				}
			} else if e := handlertest.ErrorOf(t, other); e.Code != receipts.KeyReused ||
				!strings.Contains(string(e.Details), first.ID) {
				t.Errorf("another input: %+v", e)
			}
			if again := run(`{"text": "a", "key": "v"}`); again.ReplayOf != first.ID {
				t.Errorf("the same input, after that: %+v", again)
			}
			if rowsWith(t, env, "b") != 0 || rowsWith(t, env, "a") != 1 {
				t.Error("a call with a key that had succeeded ran")
			}
			sound(t, env)
		})
	}
}

func TestACallWhoseKeyCountsForNothingIsTold(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"}, tool{name: "lab.nothing", mode: "keyed", keyField: "key"})
	env.StartWorker()
	for key, ignored := range map[string]bool{"k": true, "": false} {
		for _, tool := range []string{"lab.write", "lab.nothing"} {
			r := env.Run(handlertest.Call{Tool: tool, Input: task(Task{Text: "x", Key: "y"}), Key: key})
			if got := idempotency(t, r).KeyIgnored; got != ignored {
				t.Errorf("%s, key %q: key_ignored is %t", tool, key, got)
			}
		}
	}
}

func TestAKeyIsBoundedAndItsWhiteSpaceCountsForNothing(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "keyed", keyField: "key"},
		tool{name: "lab.nothing", mode: "safe-retry"})
	env.StartWorker()
	first := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "a", Key: "0412"})})
	if r := env.Run(handlertest.Call{Tool: "lab.write",
		Input: task(Task{Text: "a", Key: "\t 0412\n"})}); r.ReplayOf != first.ID {
		t.Errorf("with spaces around the key: %+v", r)
	}
	client := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "a"}), Key: "k"})
	if r := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{Text: "a"}),
		Key: " k "}); r.ReplayOf != client.ID {
		t.Errorf("with spaces around the client's key: %+v", r)
	}
	for what, key := range map[string]string{"blank": "  \n", "too long": strings.Repeat("k", 2000)} {
		r := env.Run(handlertest.Call{Tool: "lab.write",
			Input: `{"text": "a", "key": "` + strings.ReplaceAll(key, "\n", `\n`) + `"}`})
		if e := handlertest.ErrorOf(t, r); e.Code != receipts.ValidationError {
			t.Errorf("%s: %+v", what, e)
		}
	}
	if report, err := audit.Database(t.Context(), env.DB, audit.Options{}); err != nil || report.Faults != 0 {
		t.Errorf("gem audit: %+v, %v", report, err)
	}
}

func idempotency(t *testing.T, r *receipts.Receipt) receipts.Idempotency {
	t.Helper()
	var e receipts.Effects
	if err := json.Unmarshal(r.Effects, &e); err != nil {
		t.Fatal(err)
	}
	return e.Idempotency
}

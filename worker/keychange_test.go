package worker_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
)

// A deploy changes how the key of a tool is decided while a call waits that has kept its key since its first attempt.
func TestAReceiptShowsTheModeUnderWhichItsKeyWasDecided(t *testing.T) {
	t.Parallel()
	none, safe, keyed := tool{mode: "none"}, tool{mode: "safe-retry"}, tool{mode: "keyed", keyField: "key"}
	for name, test := range map[string]struct {
		before, after tool
		clientKey     string
		want          string
	}{
		"none to keyed":                     {none, keyed, "", `{"hit": false, "mode": "none"}`},
		"none to safe-retry":                {none, safe, "c", `{"hit": false, "mode": "none", "key_ignored": true}`},
		"none to safe-retry, without a key": {none, safe, "", `{"hit": false, "mode": "safe-retry"}`},
		"keyed to none": {keyed, none, "",
			`{"hit": false, "mode": "keyed", "key_field": "key", "key_value": "k"}`},
		"keyed by another field": {keyed, tool{mode: "keyed", keyField: "then"}, "",
			`{"hit": false, "mode": "keyed", "key_field": "key", "key_value": "k"}`},
		"safe-retry to keyed":                {safe, keyed, "c", `{"hit": false, "mode": "safe-retry"}`},
		"safe-retry to keyed, without a key": {safe, keyed, "", `{"hit": false, "mode": "none"}`},
		"none to keyed by a missing field": {none, tool{mode: "keyed", keyField: "gate"}, "",
			`{"hit": false, "mode": "none"}`},
		"keyed, and it stays so": {keyed, keyed, "",
			`{"hit": false, "mode": "keyed", "key_field": "key", "key_value": "k"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.before.name, test.after.name = "tree.run", "tree.run"
			env, _ := startTree(t, nil, test.before)
			w := env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "tree.run",
				Input: task(Task{Text: "step a; hear b; wait b", Key: "k", Then: "t"}), Key: test.clientKey})
			env.UntilItWaits(id, "answer")
			w.Stop()
			env.StartWorker(func(o *worker.Options) {
				reg, err := registry.Parse(asking(labRegistry("1.0.1", test.after)))
				if err != nil {
					t.Fatal(err)
				}
				o.Registry = reg
			})
			env.Answer(id, "go", "b")
			if r := env.Await(id); r.Status != receipts.Succeeded {
				t.Fatalf("%s", r.Result)
			}
			var same bool
			if err := env.DB.QueryRow(t.Context(), "select effects -> 'idempotency' = $2::jsonb from core_tool_receipts where "+
				"call_id = $1", id, test.want).Scan(&same); err != nil || !same {
				t.Errorf("the receipt does not have %s (%v)", test.want, err)
			}
			sound(t, env)
		})
	}
}

// Calls of every kind wait across a deploy that changes how keys are decided. Whatever the pair of modes and whatever
// the input has, an audit finds nothing.
func TestNoChangeOfAModeLeavesAFault(t *testing.T) {
	t.Parallel()
	modes := []tool{{mode: "none"}, {mode: "safe-retry"}, {mode: "keyed", keyField: "key"},
		{mode: "keyed", keyField: "then"}}
	for i, before := range modes {
		for j, after := range modes {
			if i == j || os.Getenv("GEM_TEST_LONG") == "" && (i+j)%3 != 0 {
				continue // the short form has four pairs, with each mode before and after
			}
			t.Run(fmt.Sprint(before.mode, before.keyField, " to ", after.mode, after.keyField), func(t *testing.T) {
				t.Parallel()
				changeTheMode(t, before, after)
			})
		}
	}
}

func changeTheMode(t *testing.T, before, after tool) {
	t.Helper()
	with := func(version string, idempotency tool) []byte {
		var all []tool
		for _, name := range []string{"tree.run", "lab.write", "lab.send"} {
			one := idempotency
			one.name = name
			all = append(all, one)
		}
		return asking(labRegistry(version, all...))
	}
	lab := NewLab()
	env := handlertest.Start(t, handlertest.Options{Registry: with("1.0.0", before), Domains: []any{lab, Tree{lab}},
		NoWorker: true,
		Worker: func(o *worker.Options) {
			o.Concurrency = 50
			ruledBy(t, `{"name": "dear", "tools": ["lab.write"], "action": "ask", "when": {"input": {"text": {"const": "dear"}}},
				"ask": {"of": ["finance"], "within": "24h"}}`)(o)
		}})
	if _, err := env.DB.Exec(t.Context(), "create table lab_rows (id bigint generated always as identity primary key, "+
		"text text)"); err != nil {
		t.Fatal(err)
	}
	financed(t, env)

	calls := map[string][]string{} // by why they wait
	n := 0
	insert := func(why string, c handlertest.Call, in Task) {
		for _, field := range []bool{true, false} {
			for _, clientKey := range []bool{true, false} {
				n++
				in.Key, c.Key, c.CreatedBy = "", "", "ada"
				if field {
					in.Key = fmt.Sprint("k", n)
					if c.Tool == "tree.run" {
						in.Then = fmt.Sprint("t", n)
					}
				}
				if clientKey {
					c.Key = fmt.Sprint("c", n)
				}
				c.Input = task(in)
				calls[why] = append(calls[why], env.Insert(c))
				in.Then = map[bool]string{true: "", false: in.Then}[c.Tool == "tree.run"]
			}
		}
	}
	tree, write := handlertest.Call{Tool: "tree.run"}, handlertest.Call{Tool: "lab.write"}
	insert("wait", tree, Task{Text: "step a; hear b; wait b"})
	insert("wait before any step", tree, Task{Text: "hear b; wait b"})
	insert("cancelled", tree, Task{Text: "step a; hear b; wait b; undo c"})
	insert("lost", tree, Task{Text: "gate g; step a"})
	insert("lost after a step", tree, Task{Text: "step a; gate g; step b"})
	insert("lost without a transaction", handlertest.Call{Tool: "lab.send"}, Task{Text: "x", Gate: "g"})
	insert("retried", write, Task{Text: "x", Then: "transient after a minute once"})
	insert("approved", write, Task{Text: "dear"})
	insert("denied", write, Task{Text: "dear"})
	first := env.StartWorker()
	var gated []string
	for _, why := range []string{"lost", "lost after a step", "lost without a transaction"} {
		gated = append(gated, calls[why]...)
	}
	env.Until("each call to wait", func() bool {
		var moving, running int
		err := env.DB.QueryRow(t.Context(), `select
			count(*) filter (where status = 'queued' and run_at <= gem.now() or status = 'running' and id <> all ($1::uuid[])),
			count(*) filter (where status = 'running') from core_tool_calls`, gated).Scan(&moving, &running)
		if err != nil {
			t.Fatal(err)
		}
		return moving == 0 && len(lab.began) >= running
	})
	first.Kill()
	close(lab.gate("g"))

	decide := func(why string, approved bool) {
		for _, id := range calls[why] {
			var question string
			if env.DB.QueryRow(t.Context(), `select k.id::text from core_tool_calls k
				where k.parent_call_id = $1 and k.parent_step like '##%' and k.status = 'waiting'`, id).Scan(&question) == nil {
				// a question may have been withdrawn meanwhile
				_ = answerAs(t, env, "carol", question, map[string]any{"approved": approved}, "")
			}
		}
	}
	decide("denied", false)
	for _, id := range calls["cancelled"] {
		if _, err := client.Cancel(t.Context(), env.DB, id); err != nil {
			t.Fatal(err)
		}
	}
	for _, why := range []string{"wait", "wait before any step"} {
		for _, id := range calls[why] {
			if _, err := env.DB.Exec(t.Context(), `select public.answer_tool_call(c.id, '"go"', 'b') from core_tool_calls c
				where c.id = $1 and c.status = 'waiting'`, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	env.Pass(2 * time.Minute)
	reg, err := registry.Parse(with("1.0.1", after))
	if err != nil {
		t.Fatal(err)
	}
	env.StartWorker(func(o *worker.Options) { o.Registry = reg })
	env.Until("each call to end", func() bool {
		decide("approved", true)
		return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting')") == 0
	})
	for _, id := range calls["denied"] {
		// one without the key was never asked about
		if got := codeOf(env.Await(id)); got != "approval_denied" && got != "validation_error" {
			t.Errorf("a denied call ended with %s", got)
		}
	}
	sound(t, env)
}

// A worker was lost while it ran a call under mode none. The next deploy promises that running twice is like running
// once, which says nothing about the code that ran.
func TestACallThatWasLostUnderModeNoneDoesNotRunUnderALaterMode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, after tool
		want          string
	}{
		{tool{mode: "none"}, tool{mode: "safe-retry"}, "outcome_unknown"},
		{tool{mode: "none"}, tool{mode: "keyed", keyField: "key"}, "outcome_unknown"},
		{tool{mode: "safe-retry"}, tool{mode: "keyed", keyField: "key"}, "succeeded"},
		{tool{mode: "safe-retry"}, tool{mode: "none"}, "outcome_unknown"},
	} {
		t.Run(c.before.mode+" to "+c.after.mode, func(t *testing.T) {
			t.Parallel()
			c.before.name, c.after.name = "lab.send", "lab.send"
			env, lab := startLab(t, nil, c.before)
			id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g", Key: "k"})})
			first := env.StartWorker()
			<-lab.began
			first.Kill()
			close(lab.gate("g"))
			env.Pass(2 * time.Minute)
			reg, err := registry.Parse(labRegistry("1.0.1", c.after))
			if err != nil {
				t.Fatal(err)
			}
			env.StartWorker(func(o *worker.Options) { o.Registry = reg })
			if got := codeOf(env.Await(id)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			sound(t, env)
		})
	}
}

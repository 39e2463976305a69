package worker_test

import (
	"testing"

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
		"none to keyed":                      {none, keyed, "", `{"hit": false, "mode": "none"}`},
		"none to safe-retry":                 {none, safe, "c", `{"hit": false, "mode": "none", "key_ignored": true}`},
		"none to safe-retry, without a key":  {none, safe, "", `{"hit": false, "mode": "safe-retry"}`},
		"keyed to none":                      {keyed, none, "", `{"hit": false, "mode": "keyed", "key_field": "key", "key_value": "k"}`},
		"keyed by another field":             {keyed, tool{mode: "keyed", keyField: "then"}, "", `{"hit": false, "mode": "keyed", "key_field": "key", "key_value": "k"}`},
		"safe-retry to keyed":                {safe, keyed, "c", `{"hit": false, "mode": "safe-retry"}`},
		"safe-retry to keyed, without a key": {safe, keyed, "", `{"hit": false, "mode": "none"}`},
		"keyed, and it stays so":             {keyed, keyed, "", `{"hit": false, "mode": "keyed", "key_field": "key", "key_value": "k"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.before.name, test.after.name = "tree.run", "tree.run"
			env, _ := startTree(t, nil, test.before)
			w := env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "tree.run", Input: task(Task{Text: "step a; hear b; wait b", Key: "k", Then: "t"}), Key: test.clientKey})
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
			if err := env.DB.QueryRow(t.Context(), "select effects -> 'idempotency' = $2::jsonb from core_tool_receipts where call_id = $1", id, test.want).Scan(&same); err != nil || !same {
				t.Errorf("the receipt does not have %s (%v)", test.want, err)
			}
			sound(t, env)
		})
	}
}

package worker_test

import (
	"bytes"
	"testing"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

// A durable call is judged before its first step, by the registry and the rules of that worker. Replay uses these,
// whatever was deployed until it ended.
func TestADurableCallIsJudgedAgainByTheRegistryThatJudgedIt(t *testing.T) {
	t.Parallel()
	const late = `{"name": "late", "tools": ["tree.run"], "action": "warn", "when": {"result": {"text": true}}}`
	for name, test := range map[string]struct{ old, changed, rules string }{
		"the timeout":       {old: `"timeout_ms":600000`, changed: `"timeout_ms":599999`},
		"the permissions":   {old: `"permissions":[]`, changed: `"permissions":["write:db"]`},
		"a rule is gone":    {rules: `{"name": "no", "tools": ["lab.send"], "action": "block"}`},
		"a rule on results": {rules: asks + ", " + late},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := startRuled(t, ruledBy(t, asks,
				`{"name": "writes", "permissions": ["write:db"], "action": "warn"}`))
			financed(t, env)
			first := env.StartWorker()
			id := env.Insert(inSession("s", "tree.run", "step a; hear b; wait b"))
			if err := answerAs(t, env, "carol", questionOf(t, env, id), map[string]any{"approved": true}, ""); err != nil {
				t.Fatal(err)
			}
			quiet := env.Insert(inSession("s", "tree.run", "hear b; wait b"))
			for _, id := range []string{id, quiet} {
				env.UntilItWaits(id, "answer")
			}
			first.Stop()
			env.StartWorker(func(o *worker.Options) {
				raw := bytes.Replace(o.Registry.JSON(), []byte(`"version":"1.0.0"`), []byte(`"version":"1.0.1"`), 1)
				reg, err := registry.ParseRecorded(changedIn(raw, test.old, test.changed))
				if err != nil {
					t.Fatal(err)
				}
				o.Registry = reg
				if test.rules == "" {
					return
				}
				if o.Rules, err = rules.Parse([]byte(`{"version": "2.0.0", "rules": [` + test.rules + `]}`)); err != nil {
					t.Fatal(err)
				}
			})
			for _, id := range []string{id, quiet} {
				env.Answer(id, "go", "b")
				if r := env.Await(id); r.Status != receipts.Succeeded {
					t.Errorf("%s: %s", r.Status, r.Result)
				}
			}
			sound(t, env)
			if report := replayed(t, env); len(report.Unknown) > 0 {
				t.Errorf("not computed again: %v", report.Unknown)
			}
		})
	}
}

func changedIn(raw []byte, old, changed string) []byte {
	if old == "" {
		return raw
	}
	return bytes.ReplaceAll(raw, []byte(old), []byte(changed))
}

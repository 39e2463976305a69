package worker_test

import (
	"bytes"
	"testing"

	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

// A denial is about the call: whatever a deploy changes before the call is claimed, nobody is asked again and the call
// does not run. An approval is bound to what the tool does: words may change.
func TestADecisionIsKeptAcrossADeploy(t *testing.T) {
	t.Parallel()
	entry := func(old, changed string) func(*testing.T, *worker.Options) {
		return func(t *testing.T, o *worker.Options) {
			t.Helper()
			raw := bytes.Replace(o.Registry.JSON(), []byte(`"version":"1.0.0"`), []byte(`"version":"1.0.1"`), 1)
			reg, err := registry.ParseRecorded(bytes.ReplaceAll(raw, []byte(old), []byte(changed)))
			if err != nil {
				t.Fatal(err)
			}
			o.Registry = reg
		}
	}
	ruled := func(text string) func(*testing.T, *worker.Options) {
		return func(t *testing.T, o *worker.Options) {
			t.Helper()
			set, err := rules.Parse([]byte(`{"version": "2.0.0", "rules": [` + text + `]}`))
			if err != nil {
				t.Fatal(err)
			}
			o.Rules = set
		}
	}
	const again = "asked again"
	for name, test := range map[string]struct {
		deploy   func(*testing.T, *worker.Options)
		approved string
	}{
		"nothing": {func(*testing.T, *worker.Options) {}, "succeeded"},
		"a description": {entry(`"name":"lab.write"`,
			`"name":"lab.write","description":"Other words.","hints":{"title":"T"},"receipt_fields":["result.text"],"x-note":1`),
			"succeeded"},
		"the timeout": {entry(`"timeout_ms":600000`, `"timeout_ms":599999`), again},
		"the rule": {ruled(
			`{"name": "dear", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["finance"], "within": "23h"}}`), again},
		"another rule": {ruled(
			`{"name": "other", "tools": ["lab.write"], "action": "ask", "ask": {"of": ["finance"], "within": "23h"}}`), again},
		"no such rule": {ruled(`{"name": "other", "tools": ["lab.send"], "action": "block"}`), "succeeded"},
		"no rules":     {func(_ *testing.T, o *worker.Options) { o.Rules = nil }, "succeeded"},
	} {
		for _, approved := range []bool{true, false} {
			want := map[bool]string{true: test.approved, false: "approval_denied"}[approved]
			t.Run(name+", "+want, func(t *testing.T) {
				t.Parallel()
				env, id, question := askedAndStopped(t)
				if err := answerAs(t, env, "carol", question, map[string]any{"approved": approved, "reason": "so"},
					""); err != nil {
					t.Fatal(err)
				}
				env.StartWorker(func(o *worker.Options) { test.deploy(t, o) })
				env.Until("an end, or another question", func() bool {
					return number(t, env, `select (select count(*) from core_tool_receipts where call_id = $1)
						+ (select count(*) from core_tool_calls where parent_call_id = $1 and id <> $2 and status = 'waiting')`, id,
						question) > 0
				})
				if asked := number(t, env, "select count(*) - 1 from core_tool_calls where parent_call_id = $1",
					id) > 0; asked != (want == again) {
					t.Errorf("people are asked again: %t", asked)
				} else if !asked {
					if got := codeOf(env.Await(id)); got != want {
						t.Errorf("got %s, want %s", got, want)
					}
				}
				sound(t, env)
			})
		}
	}
}

// The question of a denial ends some time after the denial is accepted. An attempt in between finds it, whatever the
// rules ask by then.
func TestADenialCountsBeforeItsQuestionEnds(t *testing.T) {
	t.Parallel()
	for name, deploy := range map[string]func(*worker.Options){
		"the same rules": func(*worker.Options) {},
		"no rules":       func(o *worker.Options) { o.Rules = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, id, question := askedAndStopped(t)
			decision := map[string]any{"approved": false, "reason": "too dear"}
			if err := answerAs(t, env, "carol", question, decision, ""); err != nil {
				t.Fatal(err)
			}
			if _, err := env.DB.Exec(t.Context(), "select gem.resume($1)", id); err != nil {
				t.Fatal(err)
			}
			// The call came first, so one slot runs it before its question.
			env.StartWorker(deploy, func(o *worker.Options) { o.Concurrency = 1 })
			if got := codeOf(env.Await(id)); got != "approval_denied" {
				t.Errorf("got %s", got)
			}
			if got := codeOf(env.Await(question)); got != "succeeded" {
				t.Errorf("the question ended as %s", got)
			}
			const claims = "select count(*) from core_tool_events where call_id = $1 and event = 'claimed'"
			if n := number(t, env, claims, id); n != 2 {
				t.Errorf("the call was claimed %d times, so it waited for the end of its question", n)
			}
			sound(t, env)
		})
	}
}

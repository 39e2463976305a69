package worker_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
)

// inside is a place where lab.send inserts a row in the transaction of its receipt.
type inside struct{}

func (inside) For(string) (*binding.Handler, bool) {
	return binding.NewHandler("SQL", "tools.lab_send", true,
		func(ctx context.Context, tx handlers.Tx, _ *handlers.Call) (json.RawMessage, error) {
			_, err := tx.Exec(ctx, "insert into lab_rows (text) values ('inside')")
			return json.RawMessage(`{"text": "inside"}`), err
		}), true
}

// The first attempt sends something and does not end the call. Then a deploy changes what the tool promises, or where
// its work is done. Under mode none, then or now, nothing is done twice.
func TestADeployDoesNotLetAnEffectHappenTwice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		how, before, after, want string
		keyAfter                 string // the key field after the deploy; before, it is text
		inside, late             bool
		times                    int // that something was done
	}{
		"lost, and inside since": {how: "lost", before: "none", after: "none", inside: true,
			want: "outcome_unknown", times: 1},
		"lost under safe-retry, and inside since": {how: "lost", before: "safe-retry", after: "none", inside: true,
			want: "outcome_unknown", times: 1},
		"lost under safe-retry, which it still is": {how: "lost", before: "safe-retry", after: "safe-retry",
			want: "succeeded", times: 2},
		"lost under safe-retry during an outage": {how: "lost", before: "safe-retry", after: "safe-retry", late: true,
			want: "succeeded", times: 2},
		"retried under safe-retry": {how: "retried", before: "safe-retry", after: "none",
			want: "outcome_unknown", times: 1},
		"retried, and nothing was sent": {how: "nothing sent", before: "none", after: "none", want: "succeeded",
			times: 2},
		"released under safe-retry": {how: "released", before: "safe-retry", after: "none",
			want: "outcome_unknown", times: 1},
		"lost under one key field, and another since": {how: "lost", before: "keyed", after: "keyed", keyAfter: "key",
			want: "outcome_unknown", times: 1},
		"lost under a key, and inside under another since": {how: "lost", before: "keyed", after: "keyed", keyAfter: "key",
			inside: true, want: "outcome_unknown", times: 1},
		"retried under one key field, and another since": {how: "retried", before: "keyed", after: "keyed", keyAfter: "key",
			want: "outcome_unknown", times: 1},
		"released under one key field, and another since": {how: "released", before: "keyed", after: "keyed",
			keyAfter: "key", want: "outcome_unknown", times: 1},
		"lost under a key that it still has": {how: "lost", before: "keyed", after: "keyed", keyAfter: "text",
			want: "succeeded", times: 2},
		"released under a key, and without one since": {how: "released", before: "keyed", after: "safe-retry",
			want: "succeeded", times: 2},
		"released under safe-retry, which it still is": {how: "released", before: "safe-retry", after: "safe-retry",
			want: "succeeded", times: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			send := func(mode, keyField string) tool {
				if mode != "keyed" {
					keyField = ""
				}
				return tool{name: "lab.send", mode: mode, keyField: keyField}
			}
			env, lab := startLab(t, nil, send(c.before, "text"))
			in := Task{Text: "x", Key: "k"}
			switch c.how {
			case "retried":
				in.Then = "transient after a minute once"
			case "nothing sent":
				in.Then = "nothing sent four times"
			default:
				in.Gate = "g"
			}
			id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(in)})
			first := env.StartWorker()
			if in.Gate != "" {
				<-lab.began
			} else {
				env.Until("the call to be put back", func() bool {
					return number(t, env, "select count(*) from core_tool_events where event = 'retried'") > 0
				})
			}
			if c.how == "lost" {
				first.Kill()
			} else {
				first.Stop()
			}
			if in.Gate != "" {
				close(lab.gate("g"))
			}
			if c.late { // as the heartbeat of a worker that comes back after an hour does
				if _, err := env.DB.Exec(t.Context(), `update core_workers set heartbeat_at = heartbeat_at - interval '2 hours',
					alive_until = alive_until - interval '2 hours'`); err != nil {
					t.Fatal(err)
				}
			}
			env.Pass(2 * time.Minute)
			reg, err := registry.Parse(labRegistry("1.0.1", send(c.after, c.keyAfter)))
			if err != nil {
				t.Fatal(err)
			}
			env.StartWorker(func(o *worker.Options) {
				o.Registry = reg
				if c.inside {
					if o.Handlers, err = binding.Bind(); err != nil {
						t.Fatal(err)
					}
					o.Handlers.Add(inside{})
				}
			})
			got := codeOf(env.Await(id))
			lab.mu.Lock()
			done := len(lab.sent) + number(t, env, "select count(*) from lab_rows")
			lab.mu.Unlock()
			if c.how == "nothing sent" {
				done = min(done, c.times) // lab.send counts attempts that say that they sent nothing
			}
			if got != c.want || done != c.times {
				t.Errorf("the call ended as %s, and its effect happened %d times; want %s and %d", got, done, c.want, c.times)
			}
			sound(t, env)
		})
	}
}

// moving is a place of lab.send: the function of [inside], or a service that gets what is sent.
type moving struct {
	toService *atomic.Bool
	sent      chan struct{}
	gate      chan struct{}
}

func (m moving) For(tool string) (*binding.Handler, bool) {
	if !m.toService.Load() {
		return inside{}.For(tool)
	}
	return binding.NewHandler("HTTP", "https://example.com/lab/send", false,
		func(context.Context, handlers.Tx, *handlers.Call) (json.RawMessage, error) {
			m.sent <- struct{}{}
			<-m.gate
			return json.RawMessage(`{"text": "sent"}`), nil
		}), true
}

// A function of a tool is dropped in favour of a service and created again, while its worker lives. What the service
// got counts, although the worker registered the function.
func TestAnEffectOfAToolThatMovedWhileItsWorkerLivedDoesNotHappenTwice(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.send", mode: "none"})
	m := moving{toService: new(atomic.Bool), sent: make(chan struct{}, 2), gate: make(chan struct{})}
	moves := func(o *worker.Options) {
		o.Handlers, _ = binding.Bind()
		o.Handlers.Add(m)
	}
	first := env.StartWorker(moves)
	if r := env.Run(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})}); r.Status != receipts.Succeeded {
		t.Fatalf("%s", r.Result)
	}
	m.toService.Store(true)
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	<-m.sent
	m.toService.Store(false)
	first.Kill()
	close(m.gate)
	env.Pass(2 * time.Minute)
	env.StartWorker(moves)
	got := codeOf(env.Await(id))
	if rows := number(t, env, "select count(*) from lab_rows"); got != "outcome_unknown" || rows != 1 || len(m.sent) > 0 {
		t.Errorf("the call ended as %s, after %d rows of 1 and %d further requests", got, rows, len(m.sent))
	}
	sound(t, env)
}

// The first attempt sends something under mode none, and its worker is lost. The next worker would end the call for a
// reason of its own, and the receipt still says that the outcome is unknown.
func TestALostCallUnderModeNoneEndsAsUnknownWhateverTheNextWorkerLacks(t *testing.T) {
	t.Parallel()
	for what, next := range map[string]struct {
		unbound     bool
		text        string // the schema of the text
		permissions []string
	}{
		"no handler":     {unbound: true},
		"another schema": {text: `{"type":"string","minLength":5}`},
		"closed":         {permissions: []string{"send:email"}},
	} {
		for _, mode := range []string{"none", "safe-retry"} {
			t.Run(what+", now "+mode, func(t *testing.T) {
				t.Parallel()
				env, lab := startLab(t, nil, tool{name: "lab.send", mode: "none"})
				id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"}), CreatedBy: "bob",
					SignedIn: true})
				first := env.StartWorker()
				<-lab.began
				first.Kill()
				close(lab.gate("g"))
				env.Pass(2 * time.Minute)
				text := string(labRegistry("1.0.1", tool{name: "lab.send", mode: mode, permissions: next.permissions}))
				if next.text != "" {
					text = strings.Replace(text, `"text":{"type":"string"}`, `"text":`+next.text, 1)
				}
				reg, err := registry.Parse([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				env.StartWorker(func(o *worker.Options) {
					o.Registry = reg
					if next.unbound {
						o.Handlers, _ = binding.Bind()
					}
				})
				if got := codeOf(env.Await(id)); got != "outcome_unknown" {
					t.Errorf("the call ended as %s", got)
				}
				sound(t, env)
			})
		}
	}
}

// A call that had no effect outside before its worker was lost ends for the reason that the next worker gives.
func TestALostCallWithoutEffectsOutsideEndsForTheReasonOfTheNextWorker(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write", mode: "none"})
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x", Gate: "g"})})
	first := env.StartWorker()
	<-lab.began
	first.Kill()
	close(lab.gate("g"))
	env.Pass(2 * time.Minute)
	env.StartWorker(func(o *worker.Options) { o.Handlers, _ = binding.Bind() })
	if got := codeOf(env.Await(id)); got != "not_configured" {
		t.Errorf("the call ended as %s", got)
	}
	sound(t, env)
}

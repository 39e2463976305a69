package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
)

// code is what coded.run does, in one version of a program.
type code func(ctx context.Context, d *handlers.Durable) (string, error)

type Coded struct{ code }

func (c Coded) Run(ctx context.Context, d *handlers.Durable, _ Task) (Done, error) {
	text, err := c.code(ctx, d)
	return Done{Text: text}, err
}

// with is a worker of a program with other code; nil: without a handler.
func with(t *testing.T, c code) func(*worker.Options) {
	t.Helper()
	domains := []any{wait.Domain()}
	if c != nil {
		domains = append(domains, Coded{c})
	}
	bound, err := binding.Bind(domains...)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *worker.Options) { o.Handlers = bound }
}

func step[T any](ctx context.Context, d *handlers.Durable, name string, value T) T {
	got, _ := handlers.Step(ctx, d, name, func(context.Context) (T, error) { return value, nil })
	return got
}

// first is the code with which the calls of these tests begin: a step, an answer, a step.
func firstCode(ctx context.Context, d *handlers.Durable) (string, error) {
	a := step(ctx, d, "a", "a")
	x, err := handlers.Receive[string](d, "x").Wait(ctx)
	return a + x + step(ctx, d, "b", "b"), err
}

// startCoded begins a call with firstCode, or other code, up to where it waits.
func startCoded(t *testing.T, other ...code) (env *handlertest.Env, id string) {
	t.Helper()
	env = handlertest.Start(t, handlertest.Options{Registry: labRegistry("1.0.0",
		tool{name: "coded.run", calls: []string{"lab.*"}}, tool{name: "lab.send"}),
		Domains: []any{Coded{append(other, firstCode)[0]}}, NoWorker: true})
	id = env.Insert(handlertest.Call{Tool: "coded.run", Input: task(Task{Text: "x"})})
	w := env.StartWorker()
	env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
	w.Stop()
	return env, id
}

// It loses nothing, and continues on the right program.
func TestACallWhoseJournalDoesNotFitWaitsForCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code code
		says string
	}{
		"another kind": {onceA, "The journal has a Step under this name, and the handler asks for a StepOnce."},
		"another type": {func(ctx context.Context, d *handlers.Durable) (string, error) {
			return fmt.Sprint(step(ctx, d, "a", 1)), nil
		}, "The result of the step does not fit int"},
		"a call in place of a step": {func(_ context.Context, d *handlers.Durable) (string, error) {
			handlers.Start[Done](d, "a", "lab.send", Task{})
			return "", nil
		}, "The journal has a step under this name, and the handler makes a call."},
		"a time in place of a step": {func(ctx context.Context, d *handlers.Durable) (string, error) {
			return "", handlers.Sleep(ctx, d, "a", time.Hour)
		}, "The journal has something else under this name, where the handler sleeps."},
		"no handler": {nil, "The program has no durable handler for coded.run."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, id := startCoded(t)
			env.Answer(id, "x", "x")
			other := env.StartWorker(with(t, c.code))
			var e *client.Explanation
			env.Until("it to wait for code", func() bool {
				var err error
				if e, err = client.Explain(t.Context(), env.DB, id); err != nil {
					t.Fatal(err)
				}
				return e.WaitsFor == client.ForCode
			})
			if !strings.HasPrefix(e.Misfit.Message, c.says) || (e.Misfit.Name == "a") != (c.code != nil) {
				t.Errorf("%+v", e.Misfit)
			}
			sound(t, env)
			attempt := e.Call.Attempt
			env.Pass(time.Minute) // it looks again, and waits for longer
			env.Until("it to wait again", func() bool {
				call, err := client.Get(t.Context(), env.DB, id)
				return err == nil && call.Attempt == attempt+1 && call.Status == "waiting"
			})
			if n := number(t, env, "select extract(epoch from wake_at - updated_at)::int from core_tool_calls where id = $1",
				id); n != 120 {
				t.Errorf("it looks again after %d s", n)
			}
			other.Stop()
			env.StartWorker() // at whose start it looks again
			r := env.Await(id)
			if got := textOf(t, r); got != "axb" {
				t.Errorf("got %q", got)
			}
			sound(t, env)
		})
	}
}

// A name belongs to one step, call, time or version. Code that uses it for another kind waits, and a replay reports
// that before a deploy.
func TestANameStandsForOneKindOfThing(t *testing.T) {
	t.Parallel()
	env, id := startCoded(t, func(ctx context.Context, d *handlers.Durable) (string, error) {
		handlers.Start[Done](d, "child", "lab.send", Task{})
		return "", handlers.Sleep(ctx, d, "nap", time.Hour)
	})
	a := func(name string) code {
		return func(ctx context.Context, d *handlers.Durable) (string, error) { return step(ctx, d, name, ""), nil }
	}
	version := func(name string) code {
		return func(_ context.Context, d *handlers.Durable) (string, error) {
			return fmt.Sprint(handlers.Version(d, name, 1)), nil
		}
	}
	call := func(_ context.Context, d *handlers.Durable) (string, error) {
		handlers.Start[Done](d, "nap", "lab.send", Task{})
		return "", nil
	}
	for says, c := range map[string]code{
		"child: The journal has a call under this name, and the handler asks for a Step.":    a("child"),
		"nap: The journal has a time under this name, and the handler asks for a Step.":      a("nap"),
		"child: The journal has a call under this name, and the handler asks for a Version.": version("child"),
		"nap: The journal has a time under this name, and the handler asks for a Version.":   version("nap"),
		"nap: The journal has a time under this name, and the handler makes a call.":         call,
	} {
		if got := replay(t, env, id, with(t, c)); got.Misfit != says {
			t.Errorf("got %+v, want %s", got, says)
		}
	}
	env.StartWorker(with(t, a("nap")))
	env.Pass(time.Hour)
	env.UntilItWaits(id, "code")
	sound(t, env)
}

// A step that may have taken effect already does not run again because the code now says that it may.
func TestAStepThatBeganAndMustNotRunTwiceStaysOne(t *testing.T) {
	t.Parallel()
	env, id := startCoded(t, func(ctx context.Context, d *handlers.Durable) (string, error) {
		_, err := handlers.Receive[string](d, "x").Wait(ctx)
		return "", err
	})
	env.Answer(id, "x", "x")
	began := make(chan struct{})
	env.StartWorker(with(t, func(ctx context.Context, d *handlers.Durable) (string, error) {
		_, _ = handlers.Receive[string](d, "x").Wait(ctx)
		return handlers.StepOnce(ctx, d, "a", func(ctx context.Context) (string, error) {
			close(began)
			<-ctx.Done()
			return "", ctx.Err()
		})
	}))
	<-began
	got := replay(t, env, id, with(t, func(ctx context.Context, d *handlers.Durable) (string, error) {
		_, _ = handlers.Receive[string](d, "x").Wait(ctx)
		return step(ctx, d, "a", "again"), nil
	}))
	want := "a: The journal has the beginning of a StepOnce under this name, and the handler asks for a Step."
	if got.Misfit != want {
		t.Errorf("%+v", got)
	}
}

// A deploy that is rolled back, or that lacks a tool, while many calls are open: none ends, and all continue on the
// program that knows them.
func TestManyCallsWaitForTheirProgramToComeBack(t *testing.T) {
	t.Parallel()
	calls := 60
	if os.Getenv("GEM_TEST_LONG") != "" {
		calls = 1000
	}
	for name, other := range map[string]func(t *testing.T) func(*worker.Options){
		"without the handler": func(t *testing.T) func(*worker.Options) { t.Helper(); return with(t, nil) },
		"without the tool": func(t *testing.T) func(*worker.Options) {
			t.Helper()
			reg, err := registry.Parse(labRegistry("2.0.0", tool{name: "lab.send"}))
			if err != nil {
				t.Fatal(err)
			}
			return func(o *worker.Options) { with(t, nil)(o); o.Registry = reg }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := handlertest.Start(t, handlertest.Options{Registry: labRegistry("1.0.0", tool{name: "coded.run"}),
				Domains: []any{Coded{firstCode}}, NoWorker: true})
			in := func(state string) func() bool {
				return func() bool { return number(t, env, "select count(*) from core_tool_calls where "+state) == calls }
			}
			if _, err := env.DB.Exec(t.Context(), "insert into core_tool_calls (tool_name, input) select 'coded.run', $1 from "+
				"generate_series(1, $2)", task(Task{Text: "x"}), calls); err != nil {
				t.Fatal(err)
			}
			w := env.StartWorker()
			env.Until("all to wait", in("status = 'waiting' and waits_for = 'answer'"))
			w.Stop()
			// it is long gone
			if _, err := env.DB.Exec(t.Context(),
				"update core_workers set alive_until = alive_until - interval '6 minutes'"); err != nil {
				t.Fatal(err)
			}
			w = env.StartWorker(other(t))
			if _, err := env.DB.Exec(t.Context(), `select answer_tool_call(id, '"x"', 'x') from core_tool_calls`); err != nil {
				t.Fatal(err)
			}
			env.Until("all to wait for code", in("status = 'waiting' and waits_for = 'code'"))
			sound(t, env)
			w.Stop()
			env.StartWorker()
			env.Until("all to end", in("status = 'succeeded'"))
			if n := number(t, env, "select count(*) from core_tool_events where event = 'step'"); n != 2*calls {
				t.Errorf("%d steps were made", n)
			}
			sound(t, env)
		})
	}
}

// Nobody may ever come who knows it.
func TestACallThatWaitsForCodeEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	env, id := startCoded(t)
	env.StartWorker(with(t, nil))
	env.Answer(id, "x", "x")
	env.UntilItWaits(id, "code")
	env.Pass(30 * 24 * time.Hour)
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Timeout {
		t.Errorf("%+v", e)
	}
	sound(t, env)
}

// Its clean-up waits for code as the rest of it does, for an hour: the next deploy may bring it.
func TestACancelledCallWaitsForCodeThatCleansUp(t *testing.T) {
	t.Parallel()
	cleanUp := func(ctx context.Context, d *handlers.Durable) (string, error) {
		a := step(ctx, d, "a", "a")
		_, err := handlers.Receive[string](d, "x").Wait(ctx)
		if errors.Is(err, handlers.ErrCancelled) {
			step(context.WithoutCancel(ctx), d, "undo", a)
		}
		return "", err
	}
	again := func(t *testing.T, env *handlertest.Env, id string) {
		if came := cancelCall(t, env, id); came != string(client.Cancelled) {
			t.Error(came)
		}
	}
	for name, c := range map[string]struct {
		code code // of the program that is there
		then func(t *testing.T, env *handlertest.Env, id string)
		says string
		undo bool
	}{
		"no handler comes": {nil, func(_ *testing.T, env *handlertest.Env, _ string) { env.Pass(time.Hour) },
			"The program has no durable handler for coded.run.", false},
		"no other kind comes": {onceA, func(_ *testing.T, env *handlertest.Env, _ string) { env.Pass(time.Hour) },
			"The journal has a Step under this name, ", false},
		"its program comes": {nil, func(t *testing.T, env *handlertest.Env, _ string) {
			env.StartWorker(with(t, cleanUp))
		}, "The call was cancelled. The effects of its steps remain", true},
		"it is cancelled again": {onceA, again, "The call was cancelled before it continued.", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, id := startCoded(t)
			w := env.StartWorker(with(t, c.code))
			if came := cancelCall(t, env, id); came != string(client.CancelRequested) {
				t.Error(came)
			}
			env.UntilItWaits(id, "code")
			sound(t, env)
			if c.undo {
				w.Stop()
			}
			c.then(t, env, id)
			r := env.Await(id)
			if e := handlertest.ErrorOf(t, r); e.Code != receipts.Cancelled || !strings.Contains(e.Message, c.says) {
				t.Errorf("%+v", e)
			}
			if undone := number(t, env, "select count(*) from core_tool_events where call_id = $1 and data ->> 'name' = 'undo'",
				id) == 1; undone != c.undo {
				t.Errorf("it cleaned up: %t", undone)
			}
			sound(t, env)
		})
	}
}

// onceA does not fit the journal of firstCode.
func onceA(ctx context.Context, d *handlers.Durable) (string, error) {
	return handlers.StepOnce(ctx, d, "a", func(context.Context) (string, error) { return "once", nil })
}

// A time that is further ahead than the deadline is long does not end it before it runs.
func TestTheDeadlineOfAScheduledCallCountsFromItsTime(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Registry: labRegistry("1.0.0", tool{name: "coded.run"}),
		Domains: []any{Coded{func(ctx context.Context, d *handlers.Durable) (string, error) {
			x, err := handlers.Receive[string](d, "x").Wait(ctx)
			return x, err
		}}}})
	var ids []string
	for range 2 {
		id := env.Insert(handlertest.Call{Tool: "coded.run", Input: task(Task{Text: "x"}),
			RunAt: time.Now().Add(40 * 24 * time.Hour)})
		ids = append(ids, id)
	}
	env.Pass(40 * 24 * time.Hour)
	for _, id := range ids {
		env.Until("it to wait", func() bool { return slices.Contains(env.Journal(id), "waiting") })
	}
	env.Pass(29 * 24 * time.Hour)
	env.Answer(ids[0], "x", "x")
	if got := textOf(t, env.Await(ids[0])); got != "x" {
		t.Errorf("got %q", got)
	}
	env.Pass(24 * time.Hour)
	if e := handlertest.ErrorOf(t, env.Await(ids[1])); e.Code != receipts.Timeout ||
		!strings.Contains(e.Message, "within 720h0m0s") {
		t.Errorf("%+v", e)
	}
	sound(t, env)
}

// New code asks for its version: calls that passed there before keep to the old way, in every run.
func TestAVersionIsThatOfTheCodeWithWhichTheCallCameHere(t *testing.T) {
	t.Parallel()
	asks := func(ctx context.Context, d *handlers.Durable) (string, error) {
		a := step(ctx, d, "a", "a")
		v := handlers.Version(d, "v", 2)
		x, err := handlers.Receive[string](d, "x").Wait(ctx)
		y, err2 := handlers.Receive[string](d, "y").Wait(ctx)
		return fmt.Sprint(a, v, x, y, handlers.Version(d, "w", 3), step(ctx, d, "b", "b")), firstOf(err, err2)
	}
	env, old := startCoded(t)
	w := env.StartWorker(with(t, asks))
	young := env.Insert(handlertest.Call{Tool: "coded.run", Input: task(Task{Text: "x"})})
	env.Until("the new one to wait", func() bool { return slices.Contains(env.Journal(young), "waiting") })
	for _, id := range []string{old, young} {
		env.Answer(id, "x", "x")
		env.Until("it to wait again", func() bool {
			return number(t, env, "select count(*) from core_tool_calls where id = $1 and status = 'waiting' and waits = '{#y}'",
				id) == 1
		})
	}
	w.Stop()
	env.StartWorker(with(t, asks))
	for id, want := range map[string]string{old: "a 0 xy 3 b", young: "a 2 xy 3 b"} {
		env.Answer(id, "y", "y")
		if got := textOf(t, env.Await(id)); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	sound(t, env)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// The receipt says which names of the journal the code no longer has.
func TestAReceiptListsTheNamesThatNobodyRead(t *testing.T) {
	t.Parallel()
	env, id := startCoded(t)
	env.StartWorker(with(t, func(ctx context.Context, d *handlers.Durable) (string, error) {
		return step(ctx, d, "new", "new"), nil
	}))
	env.Answer(id, "x", "x")
	var effects receipts.Effects
	if err := json.Unmarshal(env.Await(id).Effects, &effects); err != nil || effects.Durable == nil ||
		!slices.Equal(effects.Durable.Unread, []string{"#x", "a"}) {
		t.Errorf("%+v, %v", effects.Durable, err)
	}
	sound(t, env)
}

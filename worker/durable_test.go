package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Flow is the domain of these tests. The text of a call's input lists what flow.run does: steps of a kind and a name,
// separated by semicolons, with what happens in it at the end, such as "step a; tx b fail; once c". Its output lists
// their results.
type Flow struct{ *Lab }

func (f Flow) Run(ctx context.Context, d *handlers.Durable, in Task) (Done, error) {
	var came []string
	for line := range strings.SplitSeq(in.Text, ";") {
		words := append(strings.Fields(line), "", "")
		kind, name, then := words[0], words[1], words[2]
		switch kind {
		case "defer": // which a transient error or a stop must not keep the attempt from ending
			defer func() {
				_ = recover()
				_, _ = handlers.Step(ctx, d, name, func(context.Context) (string, error) { return f.did(d, name), nil })
			}()
			continue
		case "outside":
			f.did(d, name)
			continue
		case "beside": // a step that must not run twice, next to one that is retried
			var beside sync.WaitGroup
			begun, gone := make(chan struct{}), make(chan struct{})
			beside.Go(func() {
				charged, err := handlers.StepOnce(ctx, d, name+"1", func(ctx context.Context) (string, error) {
					close(begun)
					<-gone
					return f.did(d, name+"1"), ctx.Err()
				})
				came = append(came, fmt.Sprint(charged, err))
			})
			beside.Go(func() {
				defer close(gone)
				_, _ = handlers.Step(ctx, d, name+"2", func(context.Context) (string, error) {
					if d.Attempt == 1 {
						<-begun
						return f.did(d, name+"2"), handlers.Transient(errors.New("come back later"))
					}
					return f.did(d, name+"2"), nil
				})
			})
			beside.Wait()
			continue
		case "stray": // a step for which the handler does not wait
			go func() {
				defer func() { f.began <- "gone" }()
				_, _ = f.step(ctx, d, "tx", name, "gate")
			}()
			f.began <- <-f.began
			continue
		case "repeats": // an object has a key twice
			result, err := handlers.Step(ctx, d, name, func(context.Context) (json.RawMessage, error) {
				return json.RawMessage(`{"a":{"x":1},"a":{"y":1e2}}`), nil
			})
			came = append(came, fmt.Sprint(string(result), err))
			continue
		case "both":
			var both sync.WaitGroup
			for _, n := range []string{name + "1", name + "2"} {
				both.Go(func() {
					_, _ = handlers.Step(ctx, d, n, func(context.Context) (string, error) { return f.did(d, n), nil })
				})
			}
			both.Wait()
			continue
		}
		result, err := f.step(ctx, d, kind, name, then)
		var failure *handlers.Failure
		var missing *handlers.NotConfigured
		switch {
		case errors.As(err, &missing):
			came = append(came, "not configured: "+missing.Reason)
		case errors.Is(err, handlers.ErrCancelled):
			return Done{}, err
		case errors.As(err, &failure):
			came = append(came, strings.TrimSpace(failure.Code+" "+failure.Message))
		case err != nil && ctx.Err() != nil:
			return Done{}, err
		case err != nil:
			came = append(came, err.Error())
		default:
			came = append(came, fmt.Sprint(result))
		}
	}
	return Done{Text: strings.Join(came, "; ")}, nil
}

// did does what a step does, and returns how often it did.
func (f Flow) did(d *handlers.Durable, name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, name)
	d.Sent("test", name, d.ID)
	return fmt.Sprintf("%s in attempt %d", name, d.Attempt)
}

func (f Flow) step(ctx context.Context, d *handlers.Durable, kind, name, then string) (any, error) {
	do := func(ctx context.Context) (any, error) {
		result := f.did(d, name)
		switch then {
		case "fail":
			return nil, &handlers.Failure{Code: "no_luck", Message: "It failed.", Details: map[string]int{"n": 1}}
		case "error":
			return nil, errors.New("an error")
		case "missing":
			return nil, &handlers.NotConfigured{Reason: "no key"}
		case "once": // transient in the first attempt
			if d.Attempt == 1 {
				return nil, handlers.Transient(errors.New("come back later"))
			}
		case "transient":
			return nil, handlers.Transient(errors.New("come back later"))
		case "panic":
			panic("the step has a bug")
		case "nan":
			return math.NaN(), nil
		case "nul":
			return "a\x00b", nil
		case "odd":
			d.Sent("test", "a\x00b", d.ID)
		case "long":
			return strings.Repeat("x", 1<<20), nil
		case "huge": // in Postgres a few bytes, and as text 131,072
			return json.RawMessage("1e131071"), nil
		case "nested":
			_, err := handlers.Step(ctx, d, "inner", func(context.Context) (int, error) { return 1, nil })
			return nil, err
		case "wait":
			if d.Attempt == 1 {
				f.began <- name
				<-ctx.Done()
				return nil, ctx.Err()
			}
		case "gate":
			f.began <- name
			<-f.gate(name)
		case "ignore":
			f.began <- name
			<-f.gate("never")
		}
		return result, nil
	}
	if then == "invalid" {
		name += "\xff"
	}
	switch kind {
	case "tx":
		return handlers.StepTx(ctx, d, name, func(ctx context.Context, tx handlers.Tx) (any, error) {
			if _, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1)", d.ID+name); err != nil {
				return nil, err
			}
			d.Wrote("lab_rows", handlers.Insert, name)
			switch then {
			case "swallow":
				_, _ = tx.Exec(ctx, "select 1/0")
			case "deferred":
				_, err := tx.Exec(ctx, "insert into lab_children (parent) values (-1)")
				return nil, err
			}
			return do(ctx)
		})
	case "once":
		return handlers.StepOnce(ctx, d, name, do)
	}
	return handlers.Step(ctx, d, name, do)
}

// startFlow starts a worker with flow.run.
func startFlow(t *testing.T, tl tool) (*handlertest.Env, Flow) {
	t.Helper()
	flow := Flow{NewLab()}
	tl.name = "flow.run"
	env := handlertest.Start(t, handlertest.Options{Registry: labRegistry("1.0.0", tl), Domains: []any{flow},
		NoWorker: true})
	if _, err := env.DB.Exec(t.Context(), `
		create table lab_rows (id bigint generated always as identity primary key, text text);
		create table lab_children (parent bigint references lab_rows (id) deferrable initially deferred);`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(flow.gate("never")) })
	return env, flow
}

// stepsOf returns the names of the steps in a journal, in order.
func stepsOf(t *testing.T, env *handlertest.Env, id string) (names []string) {
	t.Helper()
	if err := env.DB.QueryRow(t.Context(), `select coalesce(array_agg(data ->> 'name' order by seq), '{}')
		from core_tool_events
		where call_id = $1 and event = 'step'`, id).Scan(&names); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestStepsAreKeptAndDoNotRunAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script string
		want   string // the output
		sent   string // what the steps did, over all attempts
		steps  string // in the journal
		events string // of all kinds, where it matters
		rows   int
	}{
		"one after another": {"step a; tx b; once c", "a in attempt 1; b in attempt 1; c in attempt 1", "a b c", "a b c",
			"queued claimed step step began step succeeded", 1},
		"a transient error": {"step a; tx b; step c once; step d",
			"a in attempt 1; b in attempt 1; c in attempt 2; d in attempt 2", "a b c c d", "a b c d",
			"queued claimed step step retried claimed step step succeeded", 1},
		"a transient error with a transaction": {"step a; tx b once", "a in attempt 1; b in attempt 2", "a b b", "a b",
			"queued claimed step retried claimed step succeeded", 1},
		"errors": {"step a fail; step b error; step c missing; tx d fail; step e once",
			"no_luck It failed.; execution_error an error; not configured: no key; no_luck It failed.; e in attempt 2",
			"a b c d e e", "a b c d e", "queued claimed step step step step retried claimed step succeeded", 0},
		"attempts count from the last progress": {"step a once; step b transient",
			"a in attempt 2; execution_error come back later", "a a b b b", "a b",
			"queued claimed retried claimed step retried claimed retried claimed step succeeded", 0},
		"at most once is not tried again": {"once a transient; step b", "execution_error come back later; b in attempt 1",
			"a b", "a b", "", 0},
		"results that cannot be kept": {"step a nan; step b nul; tx c nul; step d long; tx e huge; step f",
			"output_invalid; output_invalid; output_invalid; output_invalid; output_invalid; f in attempt 1", "a b c d e f",
			"a b c d e f", "", 0},
		"names": {"step a; step a; step a once; step " + strings.Repeat("x", 201) + "; step b#2; step c invalid",
			"a in attempt 1; a in attempt 1; a in attempt 2; 1 to 200 characters; cannot be one; cannot be one", "a a a a",
			"a a#2 a#3", "", 0},
		"a step in step": {"step a nested; step b", "The step inner was begun inside of another step; b in attempt 1", "a b",
			"a b", "", 0},
		"a broken transaction": {"tx a swallow; tx b deferred; tx c", "step a continued after a statement had failed: " +
			"Postgres refused a statement; Postgres refused a statement. Its operators; c in attempt 1",
			"a c", "a b c", "", 1},
		"what the handler does in between counts for nothing": {"defer z; step a; step b once; step c",
			"a in attempt 1; b in attempt 2; c in attempt 2", "a b b c z", "a b c z", "", 0},
		"effects that Postgres cannot store": {"step a odd; tx b odd", "a in attempt 1; b in attempt 1",
			"a b", "a b", "", 1},
		"a key that an object has twice": {"repeats a", `{"a":{"y":1e2}}<nil>`, "", "a", "", 0},
		"beside one that is tried again": {"beside a", "a1 in attempt 1<nil>", "a1 a2 a2", "a1 a2", "",
			0},
		"side by side": {"both a; step b once", "b in attempt 2", "a1 a2 b b",
			"a1 a2 b", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, flow := startFlow(t, tool{})
			env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: test.script})})
			r := env.Await(id)
			if r.Status != receipts.Succeeded {
				t.Fatalf("%s %s", r.Status, r.Result)
			}
			came, want := strings.Split(handlertest.Output[Done](t, r).Text, "; "), strings.Split(test.want, "; ")
			if len(came) != len(want) {
				t.Fatalf("came to %q, want %q", came, want)
			}
			for i := range want {
				if !strings.Contains(came[i], want[i]) {
					t.Errorf("step %d came to %q, want %q", i, came[i], want[i])
				}
			}
			sorted := func(words string, all []string) (string, string) {
				w := strings.Fields(words)
				slices.Sort(w)
				slices.Sort(all)
				return strings.Join(w, " "), strings.Join(all, " ")
			}
			if want, got := sorted(test.sent, flow.sentSoFar()); got != want {
				t.Errorf("the steps did %q, want %q", got, want)
			}
			if want, got := sorted(test.steps, stepsOf(t, env, id)); got != want {
				t.Errorf("the journal has the steps %q, want %q", got, want)
			}
			if got := strings.Join(env.Journal(id), " "); test.events != "" && got != test.events {
				t.Errorf("the journal is %q, want %q", got, test.events)
			}
			var rows int
			if err := env.DB.QueryRow(t.Context(), "select count(*) from lab_rows").Scan(&rows); err != nil ||
				rows != test.rows {
				t.Errorf("%d rows, want %d (%v)", rows, test.rows, err)
			}
			var effects receipts.Effects
			if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.DBWrites) != test.rows {
				t.Errorf("the receipt lists %v, of %d rows (%v)", effects.DBWrites, test.rows, err)
			}
			var told []string
			for _, m := range effects.MessagesSent {
				if m.Recipient != "a\ufffdb" { // of "odd"
					told = append(told, m.Recipient)
				}
			}
			if want, got := sorted(strings.Join(flow.sentSoFar(), " "), told); got != want {
				t.Errorf("the receipt lists %q, of %q", got, want)
			}
		})
	}
}

// A handler that returns the error of a step ends its call as that error says.
func TestTheErrorOfAStepEndsTheCall(t *testing.T) {
	t.Parallel()
	env, _ := startFlow(t, tool{attempts: 2})
	env.StartWorker()
	for script, want := range map[string]receipts.Code{
		"step a; step b panic":      receipts.Panic,
		"step a; tx b panic":        receipts.Panic,
		"step a error; tx b panic":  receipts.Panic,
		"once a panic; step b once": receipts.Panic,
	} {
		id := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: script})})
		r := env.Await(id)
		if e := handlertest.ErrorOf(t, r); e.Code != want {
			t.Errorf("%s: %+v, want %s", script, e, want)
		}
		if strings.Contains(string(r.Effects), "lab_rows") {
			t.Errorf("%s: the receipt lists a row that went with its transaction: %s", script, r.Effects)
		}
	}
}

// A worker that stops hands over its calls: the next one continues them.
func TestAStoppedWorkerHandsOverBetweenSteps(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"step a; step b gate; step c": "a in attempt 1; b in attempt 1; c in attempt 2", // b ends within the grace time
		"step a; step b wait; step c": "a in attempt 1; b in attempt 2; c in attempt 2", // b does not
		"step a; once b wait; step c": "a in attempt 1; outcome_unknown A step that must not run twice had begun when its " +
			"worker was lost: whether it took effect is not known.; c in attempt 2",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			env, flow := startFlow(t, tool{})
			gated := strings.Contains(script, "gate")
			first := env.StartWorker(func(o *worker.Options) {
				if o.ShutdownGrace = 10 * time.Minute; !gated {
					o.ShutdownGrace = 50 * time.Millisecond
				}
			})
			id := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: script})})
			if name := flow.awaitBegin(t); name != "b" {
				t.Fatal(name)
			}
			stopped := make(chan struct{})
			go func() { first.Stop(); close(stopped) }()
			if gated {
				env.Until("the worker to stop", func() bool { return env.Logs.FilterMessageSnippet("stopping").Len() > 0 })
				flow.tell(t, "b", Order{})
			}
			<-stopped
			env.StartWorker()
			if r := env.Await(id); r.Status != receipts.Succeeded || handlertest.Output[Done](t, r).Text != want {
				t.Errorf("%s %s, want %s", r.Status, r.Result, want)
			}
		})
	}
}

// The receipt has the effects of the steps, even if the call ends before it continues.
func TestACancelledCallListsWhatItsStepsDid(t *testing.T) {
	t.Parallel()
	env, flow := startFlow(t, tool{})
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "step a; tx b; step c wait; step d"})})
	flow.awaitBegin(t)
	if _, err := env.DB.Exec(t.Context(), "select cancel_tool_call($1)", id); err != nil {
		t.Fatal(err)
	}
	queued := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "step a; tx b; step c wait; step d"})})
	flow.awaitBegin(t)
	if _, err := env.DB.Exec(t.Context(), "select gem.retry(id, attempt, claimed_by, '{}', 9, '1 hour'), "+
		"cancel_tool_call(id) from core_tool_calls where id = $1", queued); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{id, queued} {
		r := env.Await(id)
		if e := handlertest.ErrorOf(t, r); e.Code != receipts.Cancelled ||
			!strings.Contains(e.Message, "The effects of its steps remain") {
			t.Errorf("%+v", e)
		}
		var effects receipts.Effects
		if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.DBWrites) != 1 ||
			len(effects.MessagesSent) < 2 {
			t.Errorf("%s (%v)", r.Effects, err)
		}
	}
}

// An attempt may have had effects without progress. If a later one ends the call before its handler runs, the receipt
// has them all the same.
func TestTheEffectsOfAnEarlierAttemptAreListedThoughTheHandlerDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	othersOnly := func(t *testing.T, o *worker.Options, entries ...tool) {
		t.Helper()
		var err error
		if o.Registry, err = registry.Parse(labRegistry("2.0.0", entries...)); err != nil {
			t.Fatal(err)
		}
	}
	for want, test := range map[receipts.Code]struct {
		before func(t *testing.T, env *handlertest.Env)
		next   func(t *testing.T, o *worker.Options)
	}{
		receipts.Timeout: {before: func(_ *testing.T, env *handlertest.Env) { env.Pass(31 * 24 * time.Hour) }},
		receipts.WorkerLost: {before: func(t *testing.T, env *handlertest.Env) {
			t.Helper()
			for i := range 2 {
				lost := fmt.Sprint("lost", i)
				for _, sql := range []string{
					"select gem.start_worker($1, 1, '', '1.0.0', '1 hour', '{steps}', null, '{}')",
					"select count(*) from gem.claim($1, 1, false)", "select gem.stop_worker($1)"} {
					if _, err := env.DB.Exec(t.Context(), sql, lost); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := env.DB.Exec(t.Context(), "select gem.recover('test', null)"); err != nil {
					t.Fatal(err)
				}
			}
		}},
		receipts.Cancelled: {before: func(t *testing.T, env *handlertest.Env) {
			t.Helper()
			if _, err := env.DB.Exec(t.Context(), `
				select gem.start_worker('stops', 1, '', '1.0.0', '1 hour', '{steps}', null, '{}');
				select count(*) from gem.claim('stops', 1, false);
				select cancel_tool_call(id), gem.release(id, attempt, claimed_by) from core_tool_calls`); err != nil {
				t.Fatal(err)
			}
		}},
		receipts.RuleBlocked: {next: func(t *testing.T, o *worker.Options) {
			t.Helper()
			ruledBy(t, `{"name": "no_more", "tools": ["flow.*"], "action": "block"}`)(o)
		}},
		receipts.UnknownTool: {
			before: func(t *testing.T, env *handlertest.Env) { // no worker that knows it lived lately
				t.Helper()
				if _, err := env.DB.Exec(t.Context(), "delete from core_workers"); err != nil {
					t.Fatal(err)
				}
			},
			next: func(t *testing.T, o *worker.Options) { t.Helper(); othersOnly(t, o, tool{name: "flow.else"}) },
		},
		receipts.ValidationError: {next: func(t *testing.T, o *worker.Options) {
			t.Helper()
			othersOnly(t, o, tool{name: "flow.run", mode: "keyed", keyField: "key"})
		}},
	} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			env, flow := startFlow(t, tool{attempts: 2})
			first := env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "step a wait"})})
			flow.awaitBegin(t)
			first.Stop()
			if test.before != nil {
				test.before(t, env)
			}
			env.StartWorker(func(o *worker.Options) {
				if test.next != nil {
					test.next(t, o)
				}
			})
			r := env.Await(id)
			if got := handlertest.ErrorOf(t, r).Code; got != want {
				t.Errorf("it ended as %s: %s", got, r.Result)
			}
			var effects receipts.Effects
			if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.MessagesSent) != 1 {
				t.Errorf("the receipt lists %s (%v)", r.Effects, err)
			}
			sound(t, env)
		})
	}
}

// A handler that ignores the end of its context keeps neither its slot nor the connection of its step.
func TestAStepThatIsGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	env, flow := startFlow(t, tool{timeout: 2 * time.Second})
	env.StartWorker(func(o *worker.Options) {
		o.Concurrency, o.Calls, o.Control = 1, env.Pool(1, true),
			env.Pool(2, false)
	})
	id := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "tx a ignore"})})
	flow.awaitBegin(t)
	r := env.Await(id)
	if e := handlertest.ErrorOf(t, r); e.Code != receipts.Timeout || strings.Contains(string(r.Effects), "lab_rows") {
		t.Errorf("%+v %s", e, r.Effects)
	}
	next := env.Run(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "tx b"})})
	if next.Status != receipts.Succeeded {
		t.Errorf("%s %s", next.Status, next.Result)
	}
}

// Each run records it again: the receipt lists it once.
func TestWhatIsRecordedOutsideOfStepsIsListedOnce(t *testing.T) {
	t.Parallel()
	env, _ := startFlow(t, tool{})
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "outside x; step a; outside y; step b once; " +
		"outside z"})})
	var effects receipts.Effects
	if err := json.Unmarshal(r.Effects, &effects); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, m := range effects.MessagesSent {
		count[m.Recipient]++
	}
	for _, name := range []string{"x", "y", "z", "a"} {
		if count[name] != 1 {
			t.Errorf("%s is listed %d times: %s", name, count[name], r.Effects)
		}
	}
}

// forgetful is a connection that can be made to break at the next answer.
type forgetful struct {
	net.Conn
	breaks *atomic.Bool
}

func (c forgetful) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.breaks.CompareAndSwap(true, false) {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// A call that may be tried only once does not fail for that.
func TestAStepWhoseCommitWasNotAnsweredIsLookedFor(t *testing.T) {
	t.Parallel()
	env, flow := startFlow(t, tool{attempts: 1})
	var breaks atomic.Bool
	config, err := pgxpool.ParseConfig(env.URL)
	if err != nil {
		t.Fatal(err)
	}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return forgetful{conn, &breaks}, err
	}
	calls, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(calls.Close)
	env.StartWorker(func(o *worker.Options) {
		o.Calls, o.Control = calls, env.Pool(2, false)
		worker.SetHook(o, func(point string) {
			if point == "before step" {
				breaks.Store(true)
			}
		})
	})
	r := env.Run(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "tx a; tx b"})})
	if r.Status != receipts.Succeeded || handlertest.Output[Done](t, r).Text != "a in attempt 1; b in attempt 1" {
		t.Errorf("%s %s", r.Status, r.Result)
	}
	var rows int
	if err := env.DB.QueryRow(t.Context(), "select count(*) from lab_rows").Scan(&rows); err != nil || rows != 2 ||
		len(flow.sentSoFar()) != 2 || breaks.Load() {
		t.Errorf("%d rows, and %v were sent (%v); a connection that should break: %v", rows, flow.sentSoFar(), err,
			breaks.Load())
	}
}

// The step did what it did, whatever became of its write.
func TestWhatAStepDidIsListedThoughItsHandlerWasGivenUpMeanwhile(t *testing.T) {
	t.Parallel()
	env, flow := startFlow(t, tool{timeout: 2 * time.Second})
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "step a gate"})})
	flow.awaitBegin(t)
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "select from core_tool_calls where id = $1 for update", id); err != nil {
		t.Fatal(err)
	}
	flow.tell(t, "a", Order{})
	reached := false // by the write, before the handler was abandoned
	env.Until("the handler to be given up", func() bool {
		waits := number(t, env, "select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid)) and query "+
			"like '%gem.step%'", tx.Conn().PgConn().PID())
		gone := env.Logs.FilterMessageSnippet("and is abandoned").Len() == 1
		reached = reached || waits > 0 && !gone
		return gone
	})
	// It must wait behind the write. Otherwise it could overtake: Postgres gives a free row to a newcomer, even before
	// it wakes the waiters.
	env.Until("the receipt to wait as well", func() bool {
		return number(t, env, `select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like '%gem.finish%'`) == 1
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := env.Await(id)
	var effects receipts.Effects
	if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.MessagesSent) != 1 ||
		handlertest.ErrorOf(t, r).Code != receipts.Timeout {
		t.Errorf("%s %s (%v)", r.Result, r.Effects, err)
	}
	// Postgres wrote the step as soon as it could, and nobody waited for its answer. On a busy machine the handler may
	// be abandoned before the write has a connection: then the write is never sent.
	kept := stepsOf(t, env, id)
	t.Logf("the write reached Postgres: %t; the journal has %q", reached, kept)
	if reached && len(kept) != 1 || len(kept) > 1 || effects.Durable.Steps != 0 {
		t.Errorf("the journal has %q, and the receipt counts %d", kept, effects.Durable.Steps)
	}
	if report, err := audit.Database(t.Context(), env.DB, audit.Options{}); err != nil || report.Faults != 0 {
		t.Errorf("%+v %v", report, err)
	}
}

func TestAStepThatIsNotWaitedForLeavesNoRowOnTheReceipt(t *testing.T) {
	t.Parallel()
	env, flow := startFlow(t, tool{})
	env.StartWorker(func(o *worker.Options) {
		worker.SetHook(o, func(point string) {
			if point == "before receipt" {
				flow.gate("a") <- Order{}
				for <-flow.began != "gone" {
				}
			}
		})
	})
	r := env.Run(handlertest.Call{Tool: "flow.run", Input: task(Task{Text: "stray a"})})
	var rows int
	if err := env.DB.QueryRow(t.Context(), "select count(*) from lab_rows").Scan(&rows); err != nil || rows != 0 ||
		strings.Contains(string(r.Effects), "lab_rows") {
		t.Errorf("%d rows, and the receipt lists %s (%v)", rows, r.Effects, err)
	}
}

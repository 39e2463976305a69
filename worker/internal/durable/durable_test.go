package durable_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker/internal/durable"
)

// clock fires its timers when the test says so.
type clock struct{ timers []*timer }

type timer struct {
	after   time.Duration
	f       func()
	stopped bool
}

func (c *clock) AfterFunc(d time.Duration, f func()) durable.Timer {
	c.timers = append(c.timers, &timer{after: d, f: f})
	return c.timers[len(c.timers)-1]
}

func (t *timer) Stop() bool                 { t.stopped = true; return true }
func (t *timer) Reset(d time.Duration) bool { t.after = d; return true }

// running returns the durations of the timers that are not stopped.
func (c *clock) running() (all []time.Duration) {
	for _, t := range c.timers {
		if !t.stopped {
			all = append(all, t.after)
		}
	}
	return all
}

// event returns an event of a journal.
func event(seq int, name, data string) store.Event {
	return store.Event{Seq: seq, Event: name, Data: json.RawMessage(data)}
}

// replay begins a run over these events, and ends it after the test.
func replay(t *testing.T, c durable.Clock, change func(*durable.Options), events ...store.Event) (*durable.Run,
	context.Context) {
	t.Helper()
	journal, exit := durable.Read(len(events), events)
	if exit != nil {
		t.Fatalf("the journal was not read: %+v", exit)
	}
	reg, err := registry.Parse([]byte(`{"version": "1", "tools": [{"name": "lab.run", "description": "Runs.",
		"input_schema": {"type": "object"}, "output_schema": {}, "permissions": [], "idempotency": {"mode": "none"},
		"timeout_ms": 7000, "deadline_ms": 60000, "receipt_fields": [], "calls": ["lab.other"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	tool, _ := reg.Tool("lab.run")
	o := durable.Options{Journal: journal, Clock: c, Call: &handlers.Call{ID: "id"}, Tool: tool, Registry: reg,
		Stopping: func() bool { return false }, Replay: true}
	if change != nil {
		change(&o)
	}
	run := durable.New(o)
	life, end := context.WithCancelCause(t.Context())
	t.Cleanup(func() { end(nil) })
	return run, run.Begin(t.Context(), life, end)
}

// A run ends if it makes no progress for the tool's timeout, and at the call's deadline. After a cancellation, it has
// an hour to clean up.
func TestTheClockEndsARun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*durable.Options)
		timers  []time.Duration
		fires   int
		handler error
		whole   error
	}{
		"timeout": {nil, []time.Duration{7 * time.Second, time.Minute}, 0, context.DeadlineExceeded,
			context.DeadlineExceeded},
		"deadline": {nil, []time.Duration{7 * time.Second, time.Minute}, 1, durable.ErrDeadline, durable.ErrDeadline},
		"age": {func(o *durable.Options) { o.Age = time.Minute }, []time.Duration{7 * time.Second}, -1, durable.ErrDeadline,
			durable.ErrDeadline},
		"cancelled": {func(o *durable.Options) { o.Cancelled, o.CancelledFor = true, time.Minute },
			[]time.Duration{7 * time.Second, time.Minute, 59 * time.Minute}, -1, handlers.ErrCancelled, nil},
		"cleaning up is over": {func(o *durable.Options) { o.Cancelled, o.CancelledFor = true, time.Minute },
			[]time.Duration{7 * time.Second, time.Minute, 59 * time.Minute}, 2, handlers.ErrCancelled, handlers.ErrCancelled},
	} {
		clock := &clock{}
		run, ctx := replay(t, clock, c.change)
		if got := clock.running(); !slices.Equal(got, c.timers) {
			t.Errorf("%s: the timers are %v, want %v", name, got, c.timers)
		}
		if c.fires >= 0 {
			clock.timers[c.fires].f()
		}
		if got, whole := context.Cause(ctx), context.Cause(run.Life()); !errors.Is(got, c.handler) ||
			!errors.Is(whole, c.whole) {
			t.Errorf("%s: the handler's context ended with %v, and the run's with %v", name, got, whole)
		}
		if exit := run.Stop(); exit != nil || len(clock.running()) > 0 {
			t.Errorf("%s: the run left with %+v, and %d timers are left", name, exit, len(clock.running()))
		}
	}
}

// operations runs f as a handler, and returns the exit of its run.
func operations(run *durable.Run, f func()) *durable.Exit {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	return run.Stop()
}

func TestAJournalReturnsWhatItHas(t *testing.T) {
	t.Parallel()
	run, ctx := replay(t, &clock{}, nil,
		event(0, store.Holds, `{"key": "k"}`),
		event(1, store.StepEnded, `{"name": "a", "kind": "step", "result": 1, "effects": {"db_writes": [{"table": "t"}]}}`),
		event(2, store.StepEnded, `{"name": "a#2", "kind": "step", "error": {"error_code": "full", "message": "m"}}`),
		event(3, store.StepEnded, `{"name": "gone", "kind": "step", "result": 2}`),
		event(4, store.Called, `{"name": "c", "call_id": "c-id", "tool": "lab.other"}`),
		event(5, store.StepEnded, `{"name": "d", "kind": "call", "tool": "lab.other", "error": {"message": "no"}}`),
		store.Event{Seq: 6, Event: store.Returned, Data: json.RawMessage(`{"name": "c", "call_id": "c-id"}`),
			Status: string(receipts.Succeeded), Result: json.RawMessage(`3`)},
		event(7, store.TimedOut, `{"names": ["c"]}`))
	not := func(context.Context, handlers.Tx) (json.RawMessage, error) {
		t.Error("a step ran whose end is in the journal")
		return nil, nil
	}
	exit := operations(run, func() {
		if got, err := run.Step(ctx, handlers.AtLeastOnce, "a", not); err != nil || string(got) != "1" {
			t.Errorf("the first step returned %s, %v", got, err)
		}
		var failure *handlers.Failure
		if _, err := run.Step(ctx, handlers.AtLeastOnce, "a", not); !errors.As(err, &failure) || failure.Code != "full" {
			t.Errorf("the second step of the name returned %v", err)
		}
		for name, id := range map[string]string{"c": "c-id", "d": ""} {
			if unique, got, err := run.Start(name, "lab.other", false, nil); unique != name || got != id || err != nil {
				t.Errorf("the call %s is %s, %s, %v", name, unique, got, err)
			}
		}
		of := []handlers.Await{{Name: "c"}, {Name: "d"}}
		if err := run.Wait(ctx, 2, of); err != nil {
			t.Error(err)
		}
		if arrival, ok := run.Arrived("c"); !ok || string(arrival.Result) != "3" { // the later timeout is ignored
			t.Errorf("the call returned %+v", arrival)
		}
		if arrival, ok := run.Arrived("d"); !ok || arrival.Err == nil || arrival.Seq >= 0 {
			t.Errorf("the refused call returned %+v", arrival)
		}
		_, _ = run.Step(ctx, handlers.AtLeastOnce, "new", not)
		t.Error("a step returned that the journal lacks")
	})
	if exit == nil || exit.Why != durable.Replayed || exit.Lacks != "the step new" {
		t.Errorf("the run left with %+v", exit)
	}
	got := run.Summary()
	if d := got.Durable; got.Steps != 8 || d.Steps != 3 || d.Calls != 2 || !slices.Equal(d.Unread, []string{"gone"}) ||
		len(got.Effects.DBWrites) != 1 {
		t.Errorf("the summary is %+v, %+v", got, d)
	}
}

func TestCodeThatDoesNotFitTheJournalLeaves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(*durable.Run, context.Context)
		name string
		seq  int
		want string
	}{
		"another kind of step": {func(run *durable.Run, ctx context.Context) {
			_, _ = run.Step(ctx, handlers.WithItsRows, "a", nil)
		}, "a", 3, "The journal has a Step under this name, and the handler asks for a StepTx."},
		"a call for a step": {func(run *durable.Run, _ context.Context) { _, _, _ = run.Start("a", "lab.other", false, nil) },
			"a", 3, "The journal has a step under this name, and the handler makes a call."},
		"a call to another tool": {func(run *durable.Run, _ context.Context) {
			_, _, _ = run.Start("c", "lab.run", false, nil)
		},
			"c", 4, "The journal has a call to lab.other under this name, and the handler makes one of lab.run."},
		"a time for a call": {func(run *durable.Run, _ context.Context) { _, _ = run.Timer("c") },
			"c", 4, "The journal has something else under this name, where the handler sleeps."},
		"a version for a step": {func(run *durable.Run, _ context.Context) { run.Version("a", 1) },
			"a", 3, "The journal has a Step under this name, and the handler asks for a Version."},
	} {
		run, ctx := replay(t, &clock{}, nil, event(3, store.StepEnded, `{"name": "a", "kind": "step", "result": 1}`),
			event(4, store.Called, `{"name": "c", "call_id": "c-id", "tool": "lab.other"}`))
		exit := operations(run, func() { c.do(run, ctx) })
		want := store.Misfit{Name: c.name, Seq: c.seq, Message: c.want}
		if exit == nil || exit.Why != durable.WaitingForCode || exit.Misfit != want {
			t.Errorf("%s: the run left with %+v", name, exit)
		}
	}
}

func TestAJournalThatCannotBeReadWaitsForCode(t *testing.T) {
	t.Parallel()
	_, exit := durable.Read(1, []store.Event{event(5, store.StepEnded, `{"name": 7}`)})
	if exit == nil || exit.Why != durable.WaitingForCode || exit.Misfit.Seq != 5 ||
		!strings.Contains(exit.Misfit.Message, "cannot be read") {
		t.Errorf("it was read: %+v", exit)
	}
}

// If the journal is full before the next step, the call ends and nothing is written.
func TestAFullJournalEndsTheCall(t *testing.T) {
	t.Parallel()
	journal, _ := durable.Read(10_000, nil)
	run, ctx := replay(t, &clock{}, func(o *durable.Options) { o.Journal, o.Replay = journal, false })
	exit := operations(run, func() { _, _ = run.Step(ctx, handlers.AtLeastOnce, "a", nil) })
	if exit == nil || exit.Why != durable.Ended || exit.Outcome.Code != receipts.JournalFull {
		t.Errorf("the run left with %+v", exit)
	}
}

// A stopping worker begins nothing new, but still returns results that are in the journal.
func TestNothingBeginsWhileTheWorkerStops(t *testing.T) {
	t.Parallel()
	run, ctx := replay(t, &clock{}, func(o *durable.Options) { o.Stopping, o.Replay = func() bool { return true }, false },
		event(1, store.StepEnded, `{"name": "a", "kind": "step", "result": 1}`))
	exit := operations(run, func() {
		if got, err := run.Step(ctx, handlers.AtLeastOnce, "a", nil); err != nil || string(got) != "1" {
			t.Errorf("the step in the journal returned %s, %v", got, err)
		}
		_, _ = run.Step(ctx, handlers.AtLeastOnce, "b", nil)
		t.Error("a step ran")
	})
	if exit == nil || exit.Why != durable.Released {
		t.Errorf("the run left with %+v", exit)
	}
}

func TestTheEventsOfCancelledWaitsHaveDifferentNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 190)
	seen := map[string]bool{}
	for _, names := range [][]string{{"a", "b"}, {"b", "a"}, {"a, b"}, {`a" "b`}, {"a"}, {long, long + "a"}, {long + "a", long}} {
		for need := range 2 {
			var of []handlers.Await
			for _, name := range names {
				of = append(of, handlers.Await{Name: name})
			}
			name := durable.CancelledName(need+1, of)
			if seen[name] || len(name) > 200 {
				t.Errorf("the wait for %d of %q has the event %q", need+1, names, name)
			}
			seen[name] = true
		}
	}
}

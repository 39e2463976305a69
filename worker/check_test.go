package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

// large is the text of a call whose input and output are so large that each is checked alone.
var large = strings.Repeat("x", 70_000)

// stops halts a worker's calls at a point: reached reports that one is there, goOn lets it continue.
type stops struct{ reached, goOn chan struct{} }

// startStopping starts a worker whose calls stop at a point.
func startStopping(t *testing.T, env *handlertest.Env, point string) (*handlertest.Running, stops) {
	t.Helper()
	s := stops{make(chan struct{}), make(chan struct{})}
	ended := make(chan struct{})
	w := env.StartWorker(func(o *worker.Options) {
		o.HeartbeatInterval, o.ShutdownGrace = 20*time.Millisecond, 0
		worker.SetHook(o, func(at string) {
			if at != point {
				return
			}
			select {
			case s.reached <- struct{}{}:
				<-s.goOn
			case <-ended:
			}
		})
	})
	t.Cleanup(func() { close(ended); close(s.goOn) })
	return w, s
}

func (s stops) await(t *testing.T) {
	t.Helper()
	select {
	case <-s.reached:
	case <-time.After(30 * time.Second):
		t.Fatal("no call came to the point")
	}
}

// takeTurn keeps all workers of this process from making an expensive check.
func takeTurn(t *testing.T) (giveBack func()) {
	giveBack = worker.TakeTurn()
	t.Cleanup(giveBack)
	return giveBack
}

// cancelHeard cancels a call, and waits until its worker has heard of it.
func cancelHeard(t *testing.T, env *handlertest.Env, id string) {
	t.Helper()
	if came := cancelCall(t, env, id); came != "requested" {
		t.Errorf("it came to %s", came)
	}
	awaitHeartbeat(t, env)
}

// awaitHeartbeat waits until the worker has begun a heartbeat, and read the answer.
func awaitHeartbeat(t *testing.T, env *handlertest.Env) {
	t.Helper()
	beat := func() (at time.Time) {
		if err := env.DB.QueryRow(t.Context(), "select max(alive_until) from core_workers").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for range 3 { // the first may have begun before, and the third says that the second was answered
		last := beat()
		env.Until("a heartbeat", func() bool { return beat() != last })
	}
}

// awaitEndOfGrace waits until a worker that stops has ended the contexts of its calls.
func awaitEndOfGrace(t *testing.T, env *handlertest.Env) {
	t.Helper()
	env.Until("the grace time to end", func() bool {
		return env.Logs.FilterMessage("the grace time is over: ending running calls").Len() == 1
	})
	awaitHeartbeat(t, env) // which waits for the lock under which they are ended
}

// A check that waits for others has begun nothing: neither the input's nor the output's wait is the tool's time.
func TestTheWaitForOtherChecksIsNotTheToolsTime(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	env, _ := startLab(t, nil, tool{name: "lab.write", timeout: timeout})
	_, at := startStopping(t, env, "before turn")
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: large})})
	for range 2 { // the input, and the output
		at.await(t)
		giveBack := takeTurn(t)
		at.goOn <- struct{}{}
		time.Sleep(timeout + timeout/5) // longer than the tool may take
		giveBack()
	}
	if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 1 || rowsWith(t, env, large) != 1 {
		t.Errorf("attempt %d: %.300s", r.Attempt, r.Result)
	}
}

func TestACallWhoseInputWaitsToBeCheckedHasNotRun(t *testing.T) {
	t.Parallel()
	t.Run("the worker stops", func(t *testing.T) {
		t.Parallel()
		env, lab := startLab(t, nil, tool{name: "lab.send"})
		w, at := startStopping(t, env, "before turn")
		id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: large})})
		at.await(t)
		takeTurn(t)
		at.goOn <- struct{}{}
		w.Stop()
		if diff := cmp.Diff([]string{"queued", "claimed", "released"}, env.Journal(id)); diff != "" ||
			len(lab.sentSoFar()) != 0 {
			t.Error(diff, len(lab.sentSoFar()))
		}
	})
	for what, c := range map[string]struct {
		lost bool
		says string
	}{
		"the call is cancelled": {false, "The call was cancelled before it ran."},
		"the call is cancelled after a loss": {true, "The call was cancelled before it ran again, after an attempt that " +
			"lost its worker. It had no effect: its transaction was rolled back."},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			env, _ := startLab(t, nil, tool{name: "lab.write"})
			id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: large})})
			if c.lost {
				loseWorker(t, env)
			}
			_, at := startStopping(t, env, "before turn")
			at.await(t)
			takeTurn(t)
			at.goOn <- struct{}{}
			cancelHeard(t, env, id)
			if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled || e.Message != c.says {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A handler that has run cannot be undone: its output waits for its check as long as it must.
func TestAnOutputThatWaitsToBeCheckedIsNotLost(t *testing.T) {
	t.Parallel()
	for what, meanwhile := range map[string]func(*testing.T, *handlertest.Env, *handlertest.Running, string){
		"the call is cancelled": func(t *testing.T, env *handlertest.Env, _ *handlertest.Running, id string) {
			cancelHeard(t, env, id)
		},
		"the worker stops": func(t *testing.T, env *handlertest.Env, w *handlertest.Running, _ string) {
			stopped := make(chan struct{})
			go func() { w.Stop(); close(stopped) }()
			t.Cleanup(func() { <-stopped })
			awaitEndOfGrace(t, env)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			env, lab := startLab(t, nil, tool{name: "lab.send"})
			w, at := startStopping(t, env, "before turn")
			id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: large})})
			at.await(t) // its input
			at.goOn <- struct{}{}
			at.await(t)
			giveBack := takeTurn(t)
			at.goOn <- struct{}{}
			meanwhile(t, env, w, id)
			giveBack()
			if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 1 || len(lab.sentSoFar()) != 1 {
				t.Errorf("attempt %d, sent %d times: %.300s", r.Attempt, len(lab.sentSoFar()), r.Result)
			}
		})
	}
}

// A receipt does not say that a call ran whose handler had not begun when it was cancelled, and such a call does not
// run.
func TestACallThatIsCancelledJustBeforeItRunsDoesNotRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point, tool string
		lost        bool
		says        string
	}{
		{"before key", "lab.send", false, "The call was cancelled before it ran."},
		{"before handler", "lab.send", false, "The call was cancelled before it ran."},
		{"before gate", "lab.send", true, "The call was cancelled before it ran again, after an attempt that lost its " +
			"worker. Its effects are not known."},
		{"before handler", "lab.nothing", true, "The call was cancelled before it ran again, after an attempt that lost " +
			"its worker. It had no effect: its transaction was rolled back."},
	} {
		name := c.point
		if c.lost {
			name += ", after a loss"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startLab(t, nil, tool{name: c.tool, mode: "keyed", keyField: "key"})
			id := env.Insert(handlertest.Call{Tool: c.tool, Input: task(Task{Text: "x", Key: "k"})})
			if c.lost {
				loseWorker(t, env)
			}
			_, at := startStopping(t, env, c.point)
			at.await(t)
			cancelHeard(t, env, id)
			at.goOn <- struct{}{}
			r := env.Await(id)
			if e := handlertest.ErrorOf(t, r); e.Code != receipts.Cancelled || e.Message != c.says || len(lab.sentSoFar()) != 0 {
				t.Errorf("sent %d times, %+v", len(lab.sentSoFar()), e)
			}
		})
	}
}

// A call that must not run twice is handed over by a worker that stops before its handler has begun: its outcome is
// known.
func TestAWorkerThatStopsJustBeforeACallRunsHandsItOver(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"})
	w, at := startStopping(t, env, "before handler")
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	at.await(t)
	stopped := make(chan struct{})
	go func() { w.Stop(); close(stopped) }()
	awaitEndOfGrace(t, env)
	at.goOn <- struct{}{}
	<-stopped
	if diff := cmp.Diff([]string{"queued", "claimed", "released"}, env.Journal(id)); diff != "" ||
		len(lab.sentSoFar()) != 0 {
		t.Error(diff, lab.sentSoFar())
	}
}

// loseWorker claims a call for a worker that dies with it.
func loseWorker(t *testing.T, env *handlertest.Env) {
	t.Helper()
	for _, sql := range []string{
		"select gem.start_worker('dead', 1, '', '1.0.0', '1 min', p_outside => '{\"lab.send\": \"keyed\"}')",
		"select gem.claim('dead', 1, true)", "select gem.stop_worker('dead')"} {
		if _, err := env.DB.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

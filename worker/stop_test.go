package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

func TestAStoppingWorkerLetsWhatRunsEnd(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, one, tool{name: "lab.send"})
	w := env.StartWorker(func(o *worker.Options) { o.ShutdownGrace = time.Minute })
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "running", Gate: "g"})})
	lab.awaitBegin(t)
	waiting := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "waiting"})})
	stopped := make(chan struct{})
	go func() { w.Stop(); close(stopped) }()
	env.Until("the worker to stop", func() bool {
		return env.Logs.FilterMessage("stopping: waiting for running calls").
			Len() == 1
	})
	lab.tell(t, "g", Order{})
	<-stopped
	if r := env.Await(id); r.Status != receipts.Succeeded {
		t.Errorf("%s", r.Result)
	}
	if diff := cmp.Diff([]string{"queued"}, env.Journal(waiting)); diff != "" {
		t.Errorf("a stopping worker claimed: %s", diff)
	}
	var said bool
	if err := env.DB.QueryRow(t.Context(), "select stopped_at is not null and not wants_wake from core_workers").
		Scan(&said); err != nil || !said {
		t.Errorf("no goodbye: %v", err)
	}
}

// When the grace time is over, what may run again is handed over at once, and what may not gets a receipt that says so.
func TestWhatDoesNotEndInTheGraceTime(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, func(o *worker.Options) { o.ShutdownGrace = 50 * time.Millisecond },
		tool{name: "lab.write"}, tool{name: "lab.nothing"}, tool{name: "lab.send"})
	w := env.StartWorker()
	write := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "write", Gate: "g"})})
	ignore := env.Insert(handlertest.Call{Tool: "lab.write",
		Input: task(Task{Text: "ignore", Then: "ignore the context in a statement"})})
	send := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "send", Gate: "g"})})
	lab.awaitBegin(t)
	lab.awaitBegin(t)
	env.Until("the statement to run", func() bool {
		var n int
		if err := env.DB.QueryRow(t.Context(), "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' "+
			"and state = 'active' and datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	w.Stop()

	for _, id := range []string{write, ignore} {
		if diff := cmp.Diff([]string{"queued", "claimed", "released"}, env.Journal(id)); diff != "" {
			t.Error(diff)
		}
	}
	if e := handlertest.ErrorOf(t, env.Await(send)); e.Code != receipts.OutcomeUnknown {
		t.Errorf("%+v", e)
	}
	if n := rowsWith(t, env, "write") + rowsWith(t, env, "ignore"); n != 0 {
		t.Errorf("%d rows of calls that did not end", n)
	}
	env.StartWorker()
	lab.awaitBegin(t)
	lab.tell(t, "g", Order{})
	if r := env.Await(write); r.Status != receipts.Succeeded || r.Attempt != 2 || rowsWith(t, env, "write") != 1 {
		t.Errorf("%+v", r)
	}
}

// silence stops a worker's heartbeats: to the others it is dead, but it continues to run.
func silence(t *testing.T, env *handlertest.Env, workerID string) {
	t.Helper()
	if _, err := env.DB.Exec(t.Context(), "update core_workers set alive_until = now() where worker_id = $1",
		workerID); err != nil {
		t.Fatal(err)
	}
}

// A worker that others take for dead loses its calls, and what it does with them afterwards is void.
func TestTheCallsOfADeadWorkerRunElsewhereAndItFinishesNothing(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil,
		tool{name: "lab.write"}, tool{name: "lab.nothing", mode: "safe-retry"}, tool{name: "lab.send"})
	mute := env.StartWorker(func(o *worker.Options) {
		o.HeartbeatInterval, o.DeadAfter, o.ListenURL = time.Hour, 2*time.Hour, ""
	})
	write := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "write", Gate: "write"})})
	lab.awaitBegin(t)
	send := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "send", Gate: "send"})})
	lab.awaitBegin(t)
	silence(t, env, mute.ID())

	rescuer := env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 20 * time.Millisecond })
	if e := handlertest.ErrorOf(t, env.Await(send)); e.Code != receipts.OutcomeUnknown {
		t.Errorf("an outside call that may not run twice: %+v", e)
	}
	lab.awaitBegin(t)
	// Two handlers of one call wait at one gate now, the late one among them. Both finish; one counts.
	lab.tell(t, "write", Order{})
	lab.tell(t, "write", Order{})
	lab.tell(t, "send", Order{})
	r := env.Await(write)
	env.Until("both attempts to end", func() bool {
		return env.Logs.FilterMessage("call ended").Len() == 2 && env.Logs.FilterMessage("attempt ended").Len() == 2
	})
	if r.Status != receipts.Succeeded || r.WorkerID != rescuer.ID() || r.Attempt != 2 {
		t.Errorf("%+v", r)
	}
	if n := rowsWith(t, env, "write"); n != 1 {
		t.Errorf("%d rows", n)
	}
	if diff := cmp.Diff([]string{"queued", "claimed", "lost", "claimed", "succeeded"}, env.Journal(write)); diff != "" {
		t.Error(diff)
	}
	if len(lab.sentSoFar()) != 1 {
		t.Errorf("sent twice: %v", lab.sentSoFar())
	}
}

func TestACallThatLosesItsWorkerEveryTimeEnds(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	for i := range 3 { // a worker that claims and dies, three times
		for _, sql := range []string{
			fmt.Sprintf("select gem.start_worker('w%d', 1, '', '', '1 hour')", i),
			fmt.Sprintf("select gem.claim('w%d', 1, true)", i),
			"update core_workers set alive_until = now()", "select gem.recover('other', null)",
		} {
			if _, err := env.DB.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	env.StartWorker()
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.WorkerLost {
		t.Errorf("%+v", e)
	}
	if rowsWith(t, env, "x") != 0 {
		t.Error("it ran once more")
	}
}

// After an outage of the database every worker was silent, and none of them is dead.
func TestAWorkerThatWasSilentItselfJudgesNobody(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	exec := func(sql string) {
		t.Helper()
		if _, err := env.DB.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("select gem.start_worker('a', 1, '', '', '6 s')")
	exec("select gem.start_worker('b', 1, '', '', '6 s')")
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	exec("select gem.claim('a', 1, true)")
	exec("update core_workers set alive_until = now()")
	exec("select gem.heartbeat('b', '6 s', '{}', '{}', true)")
	if diff := cmp.Diff([]string{"queued", "claimed"}, env.Journal(id)); diff != "" {
		t.Errorf("the first heartbeat after the outage took a call: %s", diff)
	}
	exec("update core_workers set steady_since = steady_since - interval '4 s' where worker_id = 'b'")
	exec("select gem.heartbeat('b', '6 s', '{}', '{}', true)") // b has shown for long enough that it lives, and a has not
	if diff := cmp.Diff([]string{"queued", "claimed", "lost"}, env.Journal(id)); diff != "" {
		t.Error(diff)
	}
}

// The database goes away for a while under a running worker, as far as the worker can see: every connection is cut. The
// call that was running, and the next ones, end.
func TestCutConnectionsCostNoCall(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write"}, tool{name: "lab.send"})
	env.StartWorker()
	write := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "write", Gate: "write"})})
	lab.awaitBegin(t)
	send := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "send", Gate: "send"})})
	lab.awaitBegin(t)
	if _, err := env.DB.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where "+
		"application_name like 'gem%' and datname = current_database()"); err != nil {
		t.Fatal(err)
	}
	lab.tell(t, "write", Order{})
	lab.tell(t, "send", Order{})
	lab.awaitBegin(t) // the transaction was lost, and the call runs again
	lab.tell(t, "write", Order{})
	if r := env.Await(write); r.Status != receipts.Succeeded || rowsWith(t, env, "write") != 1 {
		t.Errorf("%s", r.Result)
	}
	if r := env.Await(send); r.Status != receipts.Succeeded || r.Attempt != 1 {
		t.Errorf("%s", r.Result)
	}
}

func TestAWorkerNeedsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := worker.New(worker.Options{}); err == nil {
		t.Error("no error")
	}
}

func TestAWorkerThatIsToldToStopBeforeItBeganStops(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := env.NewWorker().Run(ctx); err != nil {
		t.Error(err)
	}
}

// Calls that died twice next to a call that kills its workers do not die next to it a third time.
func TestCallsThatLostTwoWorkersRunOneAtATime(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write"})
	for i := range 3 {
		env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: fmt.Sprint("suspect ", i), Gate: "g"})})
	}
	for i := range 2 {
		for _, sql := range []string{
			fmt.Sprintf("select gem.start_worker('w%d', 3, '', '', '1 hour')", i),
			fmt.Sprintf("select gem.claim('w%d', 3, true)", i),
			"update core_workers set alive_until = now()", "select gem.recover('other', null)",
		} {
			if _, err := env.DB.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		var ready int
		err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_calls where status = 'queued' and losses = $1",
			i+1).Scan(&ready)
		if err != nil || (i == 0 && ready != 3) {
			t.Fatalf("%d calls after loss %d: %v", ready, i+1, err)
		}
	}
	env.StartWorker()
	fresh := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "fresh"})})
	for range 3 {
		lab.awaitBegin(t)
		env.Await(fresh) // is not held up
		var running int
		if err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_calls where status = 'running'").
			Scan(&running); err != nil || running != 1 {
			t.Errorf("%d suspects run at once, %v", running, err)
		}
		lab.tell(t, "g", Order{})
	}
	env.Until("all to end", func() bool {
		var n int
		if err := env.DB.QueryRow(t.Context(), "select count(*) from core_tool_receipts where status = 'succeeded'").
			Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 4
	})
}

func TestALoopThatStandsStillIsNoticed(t *testing.T) {
	t.Parallel()
	stalled := make(chan time.Duration, 1)
	env, _ := startLab(t, func(o *worker.Options) {
		o.StallLimit, o.OnStall = 200*time.Millisecond, func(d time.Duration) { stalled <- d }
	}, tool{name: "lab.write"})
	// without any call a claim looks at no table of calls
	env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	unlock := lock(t, env, "lock core_tool_calls")
	env.StartWorker()
	select {
	case d := <-stalled:
		if d < 200*time.Millisecond {
			t.Errorf("after %s", d)
		}
	case <-time.After(time.Minute):
		t.Error("nobody noticed")
	}
	unlock()
}

// Otherwise it would be taken for a loop that hangs.
func TestAnIdleLoopGoesRound(t *testing.T) {
	t.Parallel()
	var rounds atomic.Int64
	env, _ := startLab(t, func(o *worker.Options) {
		o.PollInterval, o.StallLimit, o.OnStall = time.Hour, 200*time.Millisecond, func(time.Duration) {}
		worker.SetHook(o, func(point string) {
			if point == "before claim" {
				rounds.Add(1)
			}
		})
	}, tool{name: "lab.write"})
	env.StartWorker(func(o *worker.Options) { o.ListenURL = env.URL })
	env.Until("the loop to need no poll", func() bool { return env.Logs.FilterMessage("notifications arrive").Len() == 1 })
	begun := rounds.Load()
	env.Until("it to go round without a call", func() bool { return rounds.Load() > begun+5 })
}

// The answer to a claim may be lost on the way: the database then has a call as the worker's that the worker knows
// nothing of.
func TestACallWhoseClaimWasLostOnTheWayIsGivenBack(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, one, tool{name: "lab.send"})
	w := env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 20 * time.Millisecond })
	running := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "running", Gate: "g"})})
	lab.awaitBegin(t)
	lost := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "lost"})})
	if _, err := env.DB.Exec(t.Context(), "select gem.claim($1, 1, true)", w.ID()); err != nil {
		t.Fatal(err)
	}
	worker.SweepSoon(w.Worker)
	env.Until("the call to be given back", func() bool { return slices.Contains(env.Journal(lost), "released") })
	lab.tell(t, "g", Order{})
	if r := env.Await(lost); r.Status != receipts.Succeeded || r.Attempt != 2 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
	if r := env.Await(running); r.Status != receipts.Succeeded || r.Attempt != 1 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
	if diff := cmp.Diff([]string{"running", "lost"}, lab.sentSoFar()); diff != "" {
		t.Error(diff)
	}
}

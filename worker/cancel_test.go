package worker_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
)

func cancelCall(t *testing.T, env *handlertest.Env, id string) (came string) {
	t.Helper()
	if err := env.DB.QueryRow(t.Context(), "select cancel_tool_call($1)", id).Scan(&came); err != nil {
		t.Fatal(err)
	}
	return came
}

func TestAQueuedCallIsCancelledAtOnce(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"})
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	if came := cancelCall(t, env, id); came != "cancelled" {
		t.Errorf("it came to %s", came)
	}
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
		t.Errorf("%+v", e)
	}
	if came := cancelCall(t, env, id); came != "failed" {
		t.Errorf("the second time it came to %s", came)
	}
	env.StartWorker()
	env.Run(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "y"})})
	if diff := cmp.Diff([]string{"queued", "failed"}, env.Journal(id)); diff != "" ||
		!slices.Equal(lab.sentSoFar(), []string{"y"}) {
		t.Error(diff, lab.sentSoFar())
	}
}

// A running call's context ends, and its receipt lists what it had done by then.
func TestARunningCallIsCancelled(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"}, tool{name: "lab.write"})
	// So slow a heartbeat that only a notification can have reached the worker.
	env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval, o.DeadAfter = time.Hour, 2*time.Hour })
	send := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"})})
	write := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "y", Gate: "g"})})
	lab.awaitBegin(t)
	lab.awaitBegin(t)
	for _, id := range []string{send, write} {
		if came := cancelCall(t, env, id); came != "requested" {
			t.Errorf("it came to %s", came)
		}
		r := env.Await(id)
		if e := handlertest.ErrorOf(t, r); e.Code != receipts.Cancelled {
			t.Errorf("%+v", e)
		}
		var effects struct {
			Sent    []any `json:"messages_sent"`
			Written []any `json:"db_writes"`
		}
		if err := json.Unmarshal(r.Effects, &effects); err != nil || len(effects.Written) != 0 ||
			(len(effects.Sent) == 1) != (id == send) {
			t.Errorf("effects: %s", r.Effects)
		}
		if diff := cmp.Diff([]string{"queued", "claimed", "cancel_requested", "failed"}, env.Journal(id)); diff != "" {
			t.Error(diff)
		}
	}
	if n := rowsWith(t, env, "y"); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestWithoutNotificationsTheHeartbeatCancels(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, func(o *worker.Options) { o.ListenURL, o.HeartbeatInterval = "", 20*time.Millisecond },
		tool{name: "lab.send"})
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"})})
	lab.awaitBegin(t)
	cancelCall(t, env, id)
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
		t.Errorf("%+v", e)
	}
}

// A handler that succeeds in spite of it has succeeded.
func TestACallThatEndsBeforeItNoticesHasSucceeded(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, func(o *worker.Options) {
		o.ListenURL, o.HeartbeatInterval, o.DeadAfter = "", time.Hour, 2*time.Hour
	}, tool{name: "lab.send"})
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"})})
	lab.awaitBegin(t)
	cancelCall(t, env, id)
	lab.tell(t, "g", Order{})
	if r := env.Await(id); r.Status != receipts.Succeeded {
		t.Errorf("%s", r.Result)
	}
}

// A call that was asked to end, and whose worker died, does not run again.
func TestACancelledCallThatLosesItsWorkerEnds(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	for _, sql := range []string{"select gem.start_worker('dead', 1, '', '', '1 hour')",
		"select gem.claim('dead', 1, true)"} {
		if _, err := env.DB.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	cancelCall(t, env, id)
	if _, err := env.DB.Exec(t.Context(), "select gem.stop_worker('dead')"); err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled || rowsWith(t, env, "x") != 0 {
		t.Errorf("%+v", e)
	}
}

func TestOnlyOnesOwnCallsCanBeCancelled(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.send"})
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"}), CreatedBy: "ada"})
	for _, c := range []struct {
		claims  string
		allowed bool
	}{{`{"sub": "grace", "role": "authenticated"}`, false}, {`{"role": "anon"}`, false},
		{`{"sub": "ada", "role": "authenticated"}`, true}} {
		_, err := env.DB.Exec(t.Context(), "select set_config('request.jwt.claims', $1, true), cancel_tool_call($2)",
			c.claims, id)
		if (err == nil) != c.allowed {
			t.Errorf("%s: %v", c.claims, err)
		}
	}
}

package worker_test

import (
	"context"
	"slices"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/worker"
)

// replay runs a call's handler on its journal.
func replay(t *testing.T, env *handlertest.Env, id string, change ...func(*worker.Options)) *worker.Replayed {
	t.Helper()
	events := number(t, env, "select count(*) from core_tool_events")
	got := env.Replay(id, change...)
	if n := number(t, env, "select count(*) from core_tool_events"); n != events {
		t.Errorf("a replay wrote %d events", n-events)
	}
	return got
}

// A run is a function of input, journal and code: whatever a handler does, its journal gives its receipt again.
func TestAReplayGivesTheReceipt(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"steps":      "step a; step b once",
		"calls":      "start a lab.send; start b lab.send fail; all a b; wait b; first a b; wait a",
		"refused":    "start a no.tool; wait a; step b",
		"times":      "sleep a 5; start b lab.send; wait b 60000",
		"what fails": "step a; down 3",
		"an answer":  "hear a; wait a; step b",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startTree(t, nil)
			env.StartWorker()
			id := startTreeCall(env, script)
			if name == "an answer" {
				env.Answer(id, "yes", "a")
			}
			env.Await(id)
			did := len(lab.sentSoFar())
			got := replay(t, env, id)
			if got.Differs || got.Misfit != "" || got.Stopped != "" || len(got.Unread) > 0 {
				t.Errorf("%+v", got)
			}
			if len(lab.sentSoFar()) != did {
				t.Error("a step ran again")
			}
		})
	}
}

func TestAReplaySaysWhatTheJournalLacks(t *testing.T) {
	t.Parallel()
	env, id := startCoded(t)
	if got := replay(t, env, id); got.Stopped != "the wait for #x" {
		t.Errorf("%+v", got)
	}
	env.StartWorker()
	env.Answer(id, "x", "x")
	env.Await(id)
	for name, c := range map[string]struct {
		code code
		want func(*worker.Replayed) bool
	}{
		"a step more": {func(ctx context.Context, d *handlers.Durable) (string, error) { return step(ctx, d, "new", "new"), nil }, func(r *worker.Replayed) bool { return r.Stopped == "the step new" }},
		"a step less": {func(ctx context.Context, d *handlers.Durable) (string, error) { return step(ctx, d, "a", "axb"), nil }, func(r *worker.Replayed) bool { return r.Differs && slices.Equal(r.Unread, []string{"#x", "b"}) }},
		"another kind": {func(ctx context.Context, d *handlers.Durable) (string, error) {
			return "", handlers.Sleep(ctx, d, "a", 1)
		}, func(r *worker.Replayed) bool { return r.Misfit != "" }},
		"the same again": {firstCode, func(r *worker.Replayed) bool { return !r.Differs && r.Outcome.Status == "succeeded" }},
		"no handler":     {nil, func(r *worker.Replayed) bool { return r.Misfit == "The program has no durable handler for coded.run." }},
	} {
		if got := replay(t, env, id, with(t, c.code)); !c.want(got) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

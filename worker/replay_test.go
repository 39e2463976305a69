package worker_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

// replay runs a call's handler on its journal.
func replay(t *testing.T, env *handlertest.Env, id string, change ...func(*worker.Options)) *worker.ReplayResult {
	t.Helper()
	written := func() int { // and not what children write, which may still run
		return number(t, env, `select (select count(*) from core_tool_calls) +
			(select count(*) from core_tool_events where call_id = $1)`, id)
	}
	before := written()
	got := env.Replay(id, change...)
	if n := written() - before; n != 0 {
		t.Errorf("a replay wrote %d calls and events", n)
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
			if got.Differs || got.Lacks+got.Misfit+got.Stopped != "" || len(got.Unread) > 0 {
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
		want func(*worker.ReplayResult) bool
	}{
		"a step more": {func(ctx context.Context, d *handlers.Durable) (string, error) {
			return step(ctx, d, "new", "new"), nil
		}, func(r *worker.ReplayResult) bool { return r.Stopped == "the step new" }},
		"a step less": {func(ctx context.Context, d *handlers.Durable) (string, error) {
			return step(ctx, d, "a", "axb"), nil
		}, func(r *worker.ReplayResult) bool { return r.Differs && slices.Equal(r.Unread, []string{"#x", "b"}) }},
		"another kind": {func(ctx context.Context, d *handlers.Durable) (string, error) {
			return "", handlers.Sleep(ctx, d, "a", 1)
		}, func(r *worker.ReplayResult) bool { return r.Misfit != "" }},
		"the same again": {firstCode, func(r *worker.ReplayResult) bool { return !r.Differs && r.Outcome.Status == "succeeded" }},
		"no handler": {nil, func(r *worker.ReplayResult) bool {
			return r.Lacks == "The program has no durable handler for coded.run."
		}},
	} {
		if got := replay(t, env, id, with(t, c.code)); !c.want(got) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A journal of the last release is replayed by the next one, without the database in which it came about.
func TestAJournalIsKeptInAFileAndReplayed(t *testing.T) {
	t.Parallel()
	env, _ := startTree(t, nil)
	env.StartWorker()
	id := startTreeCall(env, "start a lab.send; step b; start c lab.send fail; all a c; wait a; sleep d 5; wait c")
	env.Await(id)
	recorded, err := store.Record(t.Context(), env.DB, id)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(recorded)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "journal.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	other, lab := startTree(t, nil)
	if got := other.ReplayFile(file); got.Differs || got.Lacks+got.Misfit+got.Stopped != "" || len(got.Unread) > 0 ||
		got.Outcome.Status != recorded.Receipt.Status {
		t.Errorf("%+v", got)
	}
	if len(lab.sentSoFar()) > 0 || number(t, other, "select count(*) from core_tool_calls") > 0 {
		t.Error("something was done")
	}
}

// Its step took effect, and its journal does not say so: it runs again elsewhere, and the worker that died is heard no
// more.
func TestAKilledWorkerIsHeardNoMore(t *testing.T) {
	t.Parallel()
	env := handlertest.Start(t, handlertest.Options{Registry: labRegistry("1.0.0", tool{name: "coded.run"}),
		NoWorker: true, Domains: []any{Coded{firstCode}}})
	var runs atomic.Int32
	killed, runs1 := make(chan struct{}), make(chan struct{})
	code := func(ctx context.Context, d *handlers.Durable) (string, error) {
		return handlers.Step(ctx, d, "charge", func(context.Context) (string, error) {
			n := runs.Add(1)
			if n == 1 {
				close(runs1)
				<-killed
			}
			return strconv.Itoa(int(n)), nil
		})
	}
	w := env.StartWorker(with(t, code))
	id := env.Insert(handlertest.Call{Tool: "coded.run", Input: task(Task{Text: "x"})})
	<-runs1
	w.Kill()
	close(killed)
	env.StartWorker(with(t, code))
	if got := textOf(t, env.Await(id)); got != "2" || runs.Load() != 2 {
		t.Errorf("got %s after %d runs", got, runs.Load())
	}
	if got := env.Journal(id); !slices.Equal(got, []string{"queued", "claimed", "lost", "claimed", "step", "succeeded"}) {
		t.Error(got)
	}
	sound(t, env)
}

// randomScript is what a handler does: steps, calls, waits for some of them, times, answers that came before.
func randomScript(r *rand.Rand) (script string, steps, answers []string) {
	var lines, open []string
	for i := range 4 + r.IntN(8) {
		n := strconv.Itoa(i)
		switch r.IntN(7) {
		case 0, 1:
			lines, steps = append(lines, "step s"+n+[]string{"", " once"}[r.IntN(2)]), append(steps, "s"+n)
		case 2, 3:
			lines, open = append(lines, "start c"+n+" lab.nothing"), append(open, "c"+n)
		case 4:
			lines = append(lines, "sleep t"+n+" "+strconv.Itoa(r.IntN(30)))
		case 5:
			lines, answers = append(lines, "hear h"+n, "wait h"+n), append(answers, "h"+n)
		case 6:
			if len(open) > 0 {
				lines = append(lines, []string{"all ", "first "}[r.IntN(2)]+strings.Join(open, " "),
					"wait "+open[r.IntN(len(open))])
			}
		}
	}
	return strings.Join(append(lines, "down 1"), "; "), steps, answers
}

// Workers are declared dead at any point, and wake up later. In the end each handler saw the same results in every run,
// a transaction took effect once, and each step at least once.
func TestWhateverRunsAndDiesItsJournalGivesItsReceipt(t *testing.T) {
	t.Parallel()
	seeds := uint64(4)
	if os.Getenv("GEM_TEST_LONG") != "" {
		seeds = 16
	}
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			env, lab := startTree(t, nil, tool{name: "tree.run", calls: []string{"lab.*", "tree.run"}, attempts: 20})
			r := rand.New(rand.NewPCG(seed, 0))
			type flow struct {
				id    string
				steps []string
			}
			var flows []flow
			for range 4 {
				script, steps, answers := randomScript(r)
				id := startTreeCall(env, script)
				for _, name := range answers {
					env.Answer(id, name, name)
				}
				flows = append(flows, flow{id, steps})
			}
			var mu sync.Mutex
			deaths := 30
			for range 3 {
				var id atomic.Value
				w := env.StartWorker(func(o *worker.Options) {
					o.HeartbeatInterval, o.DeadAfter = 50*time.Millisecond, 2*time.Second
					worker.SetHook(o, func(string) {
						mu.Lock()
						dies := deaths > 0 && r.IntN(6) == 0
						if dies {
							deaths--
						}
						mu.Unlock()
						if me, known := id.Load().(string); dies && known {
							_, _ = env.DB.Exec(context.Background(), "update core_workers set alive_until = clock_timestamp() - interval "+
								"'1 ms' where worker_id = $1", me)
							time.Sleep(150 * time.Millisecond)
						}
					})
				})
				id.Store(w.ID())
			}
			for _, f := range flows {
				if receipt := env.Await(f.id); receipt.Status != receipts.Succeeded {
					t.Fatalf("%s: %s", receipt.Status, receipt.Result)
				}
				if got := env.Replay(f.id); got.Differs || got.Lacks+got.Misfit+got.Stopped != "" || len(got.Unread) > 0 {
					t.Errorf("a replay: %+v", got)
				}
				if n := rowsWith(t, env, f.id); n != 1 {
					t.Errorf("%d rows", n)
				}
				for _, step := range f.steps {
					if !slices.Contains(lab.sentSoFar(), step) {
						t.Errorf("the step %s did not run", step)
					}
				}
			}
			env.Until("all to end", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where status in ('queued', 'running', 'waiting')") == 0
			})
			sound(t, env)
		})
	}
}

package sdks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
)

// program is a list of operations. The services and Go run it alike.
type program struct {
	Program []operation `json:"program"`
}

// operation is one of a program.
type operation struct {
	Do        string      `json:"do"`
	Name      string      `json:"name,omitempty"`
	Value     any         `json:"value,omitempty"`
	Error     string      `json:"error,omitempty"`
	Transient int         `json:"transient,omitempty"`
	Wrote     bool        `json:"wrote,omitempty"`
	Fatal     bool        `json:"fatal,omitempty"`
	Of        []operation `json:"of,omitempty"`
	Ops       []operation `json:"ops,omitempty"`
}

var tried sync.Map // how often transient steps were tried, by call and name

// Play runs a program.
func (Go) Play(ctx context.Context, d *handlers.Durable, in program) (map[string]any, error) {
	out := []any{}
	for _, op := range in.Program {
		result, err := perform(ctx, d, op)
		if failure := (*handlers.Failure)(nil); err != nil && !op.Fatal && errors.As(err, &failure) {
			result, err = failure.Code+": "+failure.Message, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, result)
	}
	return map[string]any{"out": out}, nil
}

func perform(ctx context.Context, d *handlers.Durable, op operation) (any, error) {
	type echo struct {
		Value any `json:"value"`
	}
	child := func(of operation) *handlers.Child[echo] {
		return handlers.Start[echo](d, of.Name, "go.echo", map[string]any{"value": of.Value})
	}
	work := func(context.Context) (any, error) {
		n, _ := tried.LoadOrStore(d.ID+" "+op.Name, new(int))
		if *n.(*int)++; *n.(*int) <= op.Transient {
			return nil, handlers.Transient(errors.New("not yet"))
		}
		if op.Error != "" {
			return nil, &handlers.Failure{Code: "of_mine", Message: op.Error, Details: map[string]int{"a": 1}}
		}
		if op.Wrote {
			d.Wrote("things", handlers.Insert, op.Name)
		}
		return op.Value, nil
	}
	switch op.Do {
	case "step":
		return handlers.Step(ctx, d, op.Name, work)
	case "once":
		return handlers.StepOnce(ctx, d, op.Name, work)
	case "call":
		got, err := child(op).Wait(ctx)
		return got.Value, err
	case "all":
		children := make([]*handlers.Child[echo], len(op.Of))
		for i, of := range op.Of {
			children[i] = child(of)
		}
		if err := handlers.All(ctx, children...); err != nil {
			return nil, err
		}
		values := make([]any, len(children))
		for i, c := range children {
			got, err := c.Wait(ctx)
			if err != nil {
				return nil, err
			}
			values[i] = got.Value
		}
		return values, nil
	case "sleep":
		return nil, handlers.Sleep(ctx, d, op.Name, time.Millisecond)
	case "version":
		return handlers.Version(d, op.Name, int(op.Value.(float64))), nil
	case "late":
		_, err := handlers.Receive[any](d, op.Name).Within(time.Millisecond).Wait(ctx)
		return nil, err
	case "fail":
		return nil, &handlers.Failure{Code: "of_mine", Message: op.Error, Details: []int{1}}
	}
	return nil, fmt.Errorf("%s is unknown", op.Do)
}

// draw draws a program.
func draw(r *rand.Rand) (p program) {
	value := func() any {
		return []any{1.0, "é \"x\"", nil, true, []any{1.5}, map[string]any{"k": "v"}}[r.IntN(6)]
	}
	name := func() string { return []string{"a", "b", "c d"}[r.IntN(3)] }
	for range 1 + r.IntN(6) {
		op := operation{Do: []string{"step", "step", "once", "call", "all", "sleep", "late", "fail"}[r.IntN(8)],
			Value: value()}
		op.Name = op.Do + name() // so that a program never uses a name for two kinds
		switch op.Do {
		case "step":
			op.Transient, op.Wrote = []int{0, 0, 1}[r.IntN(3)], r.IntN(2) == 0
			if r.IntN(4) == 0 {
				op.Error = "no"
			}
		case "all":
			op.Of = []operation{{Name: "call" + name(), Value: value()}, {Name: "call" + name(), Value: value()}}
		case "fail":
			op.Error, op.Fatal = "broken", r.IntN(2) == 0
		}
		p.Program = append(p.Program, op)
	}
	return p
}

// journal describes what the journal of a call has, without times and ids.
func journal(t *testing.T, env *handlertest.Env, id string) []string {
	t.Helper()
	return testdb.Value[[]string](t, env.DB, `select coalesce(array_agg(line order by seq), '{}') from (
		select seq, event || ' ' || (data - array['call_id', 'until', 'receipt_id'])::text as line from core_tool_events
		where call_id = $1 and event in ('step', 'began', 'called', 'timed_out')) e`, id)
}

// A program has the same journal and the same receipt in every language.
func TestLanguagesAgree(t *testing.T) {
	t.Parallel()
	seed, programs := uint64(time.Now().UnixNano()), 12
	if testdb.IsLong() {
		programs = 300
	}
	if given := os.Getenv("SDK_SEED"); given != "" {
		seed, _ = strconv.ParseUint(given, 10, 64)
	}
	t.Log("SDK_SEED =", seed)
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			env, _ := begin(t, language)
			r := rand.New(rand.NewPCG(seed, 0))
			for range programs {
				input, err := json.Marshal(draw(r))
				if err != nil {
					t.Fatal(err)
				}
				ours := env.Run(handlertest.Call{Tool: "go.play", Input: string(input)})
				theirs := env.Run(handlertest.Call{Tool: "remote.play", Input: string(input)})
				if diff := cmp.Diff(told(ours), told(theirs)); diff != "" {
					t.Fatalf("%s\nends otherwise than in Go:\n%s", input, diff)
				}
				if diff := cmp.Diff(string(ours.Effects), string(theirs.Effects)); diff != "" {
					t.Fatalf("%s\nhas other effects than in Go:\n%s", input, diff)
				}
				if diff := cmp.Diff(journal(t, env, ours.CallID), journal(t, env, theirs.CallID)); diff != "" {
					t.Fatalf("%s\nhas another journal than in Go:\n%s", input, diff)
				}
			}
		})
	}
}

// points are the places in the handler of remote.mortal at which the service sends a request to the reaper: in the
// step, in the stepOnce, and in the stepTx before and after its transaction.
var points = []string{"step", "once", "tx", "booked"}

// death is the request to kill the service or the worker. If late is false, the reaper holds its answer until the
// process is dead, so the process dies at the point itself. If late is true, the process dies up to 20 ms later:
// during the transaction of the stepTx, after its commit, during the answer, or while the worker writes the journal.
type death struct {
	point          string
	ofWorker, late bool
	done           chan struct{} // closed when the process has died and was started again
}

func (d death) String() string {
	return map[bool]string{true: "worker", false: "service"}[d.ofWorker] + map[bool]string{true: " after ",
		false: " at "}[d.late] + d.point
}

// reaper receives a request from the service at each point, and decides when a process dies. Each call causes one
// death, until there have been enough.
type reaper struct {
	asked chan death

	mu    sync.Mutex
	left  int                       // number of deaths that are still to come
	calls int                       // number of calls that have reached a point
	nth   map[string]int            // the calls that have not caused a death yet, with their numbers
	runs  map[string]map[string]int // how often each point was reached, by call and point
}

// ServeHTTP serves the requests of the service at the points. Their path is /CALL/POINT. The number of the call decides
// which process dies, at which point and whether late.
func (r *reaper) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	id, point, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	d := death{point: point, done: make(chan struct{})}
	r.mu.Lock()
	if r.runs[id] == nil {
		r.runs[id], r.nth[id] = map[string]int{}, r.calls
		r.calls++
	}
	r.runs[id][point]++
	nth, dies := r.nth[id]
	// A call may never reach its point, because a death that another call caused ends its attempt. So a later point also
	// counts.
	if dies = dies && r.left > 0 && slices.Index(points, point) >= nth%4; dies {
		d.ofWorker, d.late = nth/4%2 == 1, nth/8%2 == 1
		r.left--
		delete(r.nth, id)
	}
	r.mu.Unlock()
	switch {
	case dies && d.late:
		time.AfterFunc(rand.N(20*time.Millisecond), func() { r.asked <- d })
	case dies:
		r.asked <- d
		select {
		case <-d.done:
		case <-req.Context().Done():
		}
	}
}

// Services and workers die at all points of the handler. Nevertheless each call ends, the stepTx of each call commits
// one row, and each stepOnce runs at most once.
func TestNothingIsLostWhenServicesAndWorkersDie(t *testing.T) {
	t.Parallel()
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			deaths, limit := 8, 5*time.Minute
			if testdb.IsLong() {
				deaths, limit = 500, 25*time.Minute
			}
			r := &reaper{asked: make(chan death, deaths), left: deaths, nth: map[string]int{},
				runs: map[string]map[string]int{}}
			control := httptest.NewServer(r)
			t.Cleanup(control.Close) // it closes after the service has ended
			database := testdb.New(t)
			s := serve(t, language, loginOf(t, database), "SDK_CONTROL="+control.URL)
			options := optionsAt(database, s.url())
			options.NoWorker = true
			env := handlertest.Start(t, options)
			ids := dieAndRecover(t, env, s, r.asked, deaths, limit)
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, id := range ids {
				runs, got := r.runs[id], told(env.Await(id))
				rows := testdb.Value[int](t, env.DB, "select count(*) from things where call_id like $1 || '.%'", id)
				if runs["step"] < 1 || runs["once"] > 1 || rows != 1 ||
					got != `succeeded "unknown"` && (got != `succeeded "rung"` || runs["once"] != 1) {
					t.Errorf("%s: %s, with %d rows; runs by point: %v; journal: %v", id, got, rows, runs, env.Journal(id))
				}
			}
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults > 0 {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
}

// dieAndRecover makes calls until deaths processes have died and all calls have ended. For each death
// that the reaper requests, it kills the service or the worker and starts it again. It returns the ids of the calls.
func dieAndRecover(t *testing.T, env *handlertest.Env, s *service, asked <-chan death, deaths int,
	limit time.Duration) (ids []string) {
	t.Helper()
	open := func(more string) int {
		return testdb.Value[int](t, env.DB, "select count(*) from core_tool_calls where not gem.is_final(status)"+more)
	}
	began, died, n := time.Now(), map[string]int{}, 0
	w := env.StartWorker()
	for n < deaths {
		for range min(deaths-n, 8) { // more calls at a time would only use up attempts while the service starts
			ids = append(ids, env.Insert(handlertest.Call{Tool: "remote.mortal"}))
		}
		for open("") > 0 {
			if time.Since(began) > limit {
				t.Fatalf("only %d of %d deaths in %v; %d calls, %d of them open", n, deaths, limit, len(ids), open(""))
			}
			select {
			case d := <-asked:
				if d.ofWorker {
					w.Kill()
					go w.Stop() // closes the connections after the database has rejected the last statements of the dead worker
					w = env.StartWorker()
				} else {
					s.kill()
					s.start()
				}
				close(d.done)
				died[d.String()]++
				n++
			case <-time.After(20 * time.Millisecond):
				// all calls pause before their next attempt, and these pauses grow: skip them
				if open(" and not (status = 'queued' and run_at > gem.now() or coalesce(waits_for = 'code', false))") == 0 {
					env.Pass(time.Minute)
				}
			}
		}
	}
	t.Logf("%d deaths of service and worker, with %d calls, in %v: %v", n, len(ids),
		time.Since(began).Round(time.Second), died)
	return ids
}

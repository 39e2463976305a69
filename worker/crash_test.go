package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// These tests end a real process exactly before and after each commit of a call's life, by SIGKILL, and look at what
// becomes of the call on the next worker. The process is this test binary, started again with doomedPoint set.
const (
	doomedPoint = "GEM_TEST_DIE_AT"
	doomedURL   = "GEM_TEST_DATABASE"
	doomedPool  = "GEM_TEST_POOL_MODE"
	doomedMode  = "GEM_TEST_MODE"
	doomedSink  = "GEM_TEST_SINK"
	doomedSlots = "GEM_TEST_SLOTS"
)

func TestMain(m *testing.M) {
	if os.Getenv(doomedPoint) != "" {
		doomed()
		return
	}
	testdb.Main(m)
}

// Crash is the domain of these tests: crash.send sends to a server outside, crash.write writes a row.
type Crash struct {
	sink    string
	waiting func() // called when a handler waits for its context to end
}

func (c Crash) Send(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.sink, strings.NewReader(call.ID))
	if err != nil {
		return Done{}, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return Done{}, err
	}
	_ = answer.Body.Close()
	return c.then(ctx, call, in)
}

func (c Crash) Write(ctx context.Context, tx handlers.Tx, call *handlers.Call, in Task) (Done, error) {
	if _, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1)", in.Text); err != nil {
		return Done{}, err
	}
	return c.then(ctx, call, in)
}

// Flow sends, writes a row and charges, each in a step of its own.
func (c Crash) Flow(ctx context.Context, d *handlers.Durable, in Task) (Done, error) {
	post := func(what string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.sink, strings.NewReader(what))
			if err != nil {
				return "", err
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				return "", err
			}
			d.Called("sink", what, answer.StatusCode)
			return what, answer.Body.Close()
		}
	}
	if _, err := handlers.Step(ctx, d, "send", post("send")); err != nil {
		return Done{}, err
	}
	if _, err := handlers.StepTx(ctx, d, "row", func(ctx context.Context, tx handlers.Tx) (int, error) {
		d.Wrote("lab_rows", handlers.Insert, in.Text)
		_, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1)", in.Text)
		return 1, err
	}); err != nil {
		return Done{}, err
	}
	charged, err := handlers.StepOnce(ctx, d, "charge", post("charge"))
	if errors.Is(err, handlers.ErrUnknown) {
		return Done{Text: "unknown"}, nil
	}
	return Done{Text: charged}, err
}

// Family makes two calls, waits for both, and does a step.
func (c Crash) Family(ctx context.Context, d *handlers.Durable, _ Task) (Done, error) {
	a := handlers.Start[Done](d, "child", "crash.write", Task{Text: "a", Key: "a"})
	b := handlers.Start[Done](d, "child", "crash.write", Task{Text: "b", Key: "b"})
	if err := handlers.All(ctx, a, b); err != nil {
		return Done{}, err
	}
	one, err := a.Wait(ctx)
	if err != nil {
		return Done{}, err
	}
	return handlers.Step(ctx, d, "step", func(ctx context.Context) (Done, error) {
		other, err := b.Wait(ctx)
		if err == nil {
			return Done{}, errors.New("a step waited")
		}
		return Done{Text: one.Text + other.Text}, nil
	})
}

// Ask asks a person.
func (c Crash) Ask(ctx context.Context, d *handlers.Durable, in Task) (Done, error) {
	answer, err := handlers.Ask[string](d, "question", handlers.Question{Text: in.Text}).Wait(ctx)
	return Done{Text: answer}, err
}

func (c Crash) then(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	switch {
	case in.Then == "transient once" && call.Attempt == 1:
		return Done{}, handlers.Transient(fmt.Errorf("come back later"))
	case in.Then == "wait once" && call.Attempt == 1:
		c.waiting()
		<-ctx.Done()
		return Done{}, ctx.Err()
	}
	return Done{Text: in.Text}, nil
}

func crashRegistry(mode string) []byte {
	keyField, onOther := "", ""
	if mode == "safe-retry" {
		onOther = "replay" // the next call of the key has another input
	}
	if mode == "keyed" {
		keyField = "key"
	}
	return asking(labRegistry("1.0.0", tool{name: "crash.send", mode: mode, keyField: keyField, onOther: onOther},
		tool{name: "crash.write", mode: mode, keyField: keyField, onOther: onOther}, tool{name: "crash.flow"},
		tool{name: "crash.ask"}, tool{name: "crash.family", calls: []string{"crash.write"}}))
}

// doomed is the process that dies. It works until its point comes.
func doomed() {
	ctx, stop := context.WithCancel(context.Background())
	point, url := os.Getenv(doomedPoint), os.Getenv(doomedURL)
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); os.Exit(3) }() // dies with its test
	die := func(err error) { fmt.Fprintln(os.Stderr, "doomed:", err); os.Exit(2) }
	file, domains := crashRegistry(os.Getenv(doomedMode)),
		[]any{Crash{sink: os.Getenv(doomedSink), waiting: stop}, wait.Domain()}
	if os.Getenv(doomedMode) == doomedModels {
		l := llm.Domain()
		file, domains = gem.BuiltInRegistry, []any{l, extract.Domain(l), wait.Domain()}
	}
	reg, err := registry.Parse(file)
	if err != nil {
		die(err)
	}
	pool, err := pgpool.Open(ctx, url, pgpool.Options{Mode: pgpool.PoolMode(os.Getenv(doomedPool))})
	if err != nil {
		die(err)
	}
	if err := errors.Join(binding.Configure(os.Getenv, domains...),
		binding.Open(handlers.Env{Pool: pool}, domains...)); err != nil {
		die(err)
	}
	bound, err := binding.Bind(domains...)
	if err != nil {
		die(err)
	}
	options := worker.Options{Calls: pool, Control: pool, Registry: reg, Handlers: bound, Concurrency: 1, Name: "doomed",
		HeartbeatInterval: 50 * time.Millisecond, DeadAfter: 400 * time.Millisecond}
	if slots := os.Getenv(doomedSlots); slots != "" {
		if options.Concurrency, err = strconv.Atoi(slots); err != nil {
			die(err)
		}
	}
	passed := map[string]int{}
	var passing sync.Mutex
	all := sync.NewCond(&passing)
	at := func(p string) {
		passing.Lock()
		defer passing.Unlock()
		passed[p]++
		all.Broadcast()
		for p == "before admission" && passed["before key"] < options.Concurrency { // so that several calls come next
			all.Wait()
		}
		if p == point || fmt.Sprintf("%s %d", p, passed[p]) == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it comes
		}
	}
	worker.SetHook(&options, at)
	options.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(chatPoints{at: at})).Tracer("doomed")
	w, err := worker.New(options)
	if err != nil {
		die(err)
	}
	if err := w.Run(ctx); err != nil {
		die(err)
	}
	die(fmt.Errorf("it was to die at %q and stopped in order", point))
}

func TestAWorkerThatDiesAtAnyPointCostsNoCallAndDoublesNone(t *testing.T) {
	t.Parallel()
	const (
		write, send = "crash.write", "crash.send"
		again       = "again" // runs on the next worker
		stands      = "stands"
		unknown     = "unknown"
	)
	type scenario struct {
		point string
		tool  string
		modes string
		then  string
		end   string
		sent  int // what the server outside got, over all attempts
	}
	all := "none safe-retry keyed"
	scenarios := []scenario{
		{"before claim", write, all, "", again, 0},
		{"after claim", write, all, "", again, 0},
		{"after claim", send, "safe-retry keyed", "", again, 1},
		{"after claim", send, "none", "", unknown, 0}, // claimed is not begun, but only the dead worker knew
		{"before key", write, "safe-retry keyed", "", again, 0},
		{"after key", write, "safe-retry keyed", "", again, 0},
		{"after key", send, "safe-retry keyed", "", again, 1},
		{"before handler", write, all, "", again, 0},
		{"before handler", send, "none", "", unknown, 0},
		{"after handler", write, all, "", again, 0},
		{"after handler", send, "safe-retry keyed", "", again, 2},
		{"after handler", send, "none", "", unknown, 1},
		{"before receipt", write, all, "", again, 0},
		{"after receipt", write, all, "", stands, 0},
		{"before receipt", send, "safe-retry keyed", "", again, 2},
		{"before receipt", send, "none", "", unknown, 1},
		{"after receipt", send, all, "", stands, 1},
		{"before retried", write, all, "transient once", again, 0},
		{"after retried", write, all, "transient once", again, 0},
		{"before retried", send, "safe-retry keyed", "transient once", again, 2},
		{"after retried", send, "safe-retry keyed", "transient once", again, 2},
		{"before released", write, all, "wait once", again, 0},
		{"after released", write, all, "wait once", again, 0},
		{"before released", send, "safe-retry keyed", "wait once", again, 2},
		{"after released", send, "safe-retry keyed", "wait once", again, 2},
	}
	for _, s := range some(scenarios) {
		for mode := range strings.FieldsSeq(s.modes) {
			t.Run(fmt.Sprintf("%s, %s, %s", s.point, s.tool, mode), func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				sent := map[string]int{}
				sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					id, _ := io.ReadAll(r.Body)
					mu.Lock()
					sent[string(id)]++
					mu.Unlock()
				}))
				defer sink.Close()
				defer http.DefaultClient.CloseIdleConnections()
				env := handlertest.Start(t, handlertest.Options{
					Registry: crashRegistry(mode), NoWorker: true,
					Domains: []any{Crash{sink: sink.URL}},
				})
				if _, err := env.DB.Exec(t.Context(), "create table lab_rows (text text)"); err != nil {
					t.Fatal(err)
				}
				id := env.Insert(handlertest.Call{Tool: s.tool, Input: task(Task{Text: "x", Then: s.then, Key: "k"}),
					Key: "client"})
				dieAt(t, s.point, testdb.RouteTo(t, env.URL), mode, sink.URL)

				env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
				r := env.Await(id)
				rows := 0
				if s.tool == write {
					rows = 1
				}
				switch s.end {
				case unknown:
					rows = 0
					if e := handlertest.ErrorOf(t, r); e.Code != receipts.OutcomeUnknown {
						t.Errorf("%+v", e)
					}
				case stands:
					if r.Status != receipts.Succeeded || r.Attempt != 1 || !strings.HasPrefix(r.WorkerID, "doomed-") {
						t.Errorf("%+v", r)
					}
				default:
					if r.Status != receipts.Succeeded || !strings.HasPrefix(r.WorkerID, "test-") {
						t.Errorf("%+v", r)
					}
				}
				if n := rowsWith(t, env, "x"); n != rows {
					t.Errorf("%d rows, want %d", n, rows)
				}
				mu.Lock()
				n := sent[id]
				mu.Unlock()
				if n != s.sent {
					t.Errorf("sent %d times, want %d", n, s.sent)
				}
				// The key is free, or remembers its success.
				next := env.Run(handlertest.Call{Tool: s.tool, Input: task(Task{Text: "x", Key: "k"}), Key: "client"})
				if hit := next.ReplayOf != ""; next.Status != receipts.Succeeded || hit != (mode != "none" && s.end != unknown) {
					t.Errorf("the next call of the key: %+v", next)
				}
			})
		}
	}
}

func TestAWorkerThatDiesAtAnAdmissionOfSeveralCallsCostsNoneAndDoublesNone(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"before admission of several", "after admission of several"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			env := handlertest.Start(t, handlertest.Options{Registry: crashRegistry("keyed"), NoWorker: true,
				Domains: []any{Crash{}}})
			testdb.Exec(t, env.DB, "create table lab_rows (text text)")
			ids := make([]string, 8)
			for i := range ids {
				ids[i] = env.Insert(handlertest.Call{Tool: "crash.write", Input: task(Task{Text: "x", Key: fmt.Sprint(i % 7)}),
					CreatedBy: fmt.Sprint("caller ", i)}) // one caller may not have all slots
			}
			dieOn(t, nil, point, testdb.RouteTo(t, env.URL), "keyed", "", doomedSlots+"=8")
			env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			for _, id := range ids {
				if r := env.Await(id); r.Status != receipts.Succeeded {
					t.Errorf("%s: %s", r.Status, r.Result)
				}
			}
			if n := rowsWith(t, env, "x"); n != 7 {
				t.Errorf("%d rows for 7 keys", n)
			}
			sound(t, env)
		})
	}
}

func TestAFlowWhoseWorkerDiesAtAnyPointGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	for _, s := range some([]struct {
		point           string
		sends, charges  int    // what the server outside got, over all attempts
		charge          string // what the handler knows of it
		steps, attempts int    // that ended on the worker that died; of all
	}{
		{"before work 1", 1, 1, "charge", 0, 2},
		{"after work 1", 2, 1, "charge", 0, 2},
		{"before step 1", 2, 1, "charge", 0, 2},
		{"after step 1", 1, 1, "charge", 1, 2},
		{"before work 2", 1, 1, "charge", 1, 2},
		{"after work 2", 1, 1, "charge", 1, 2},
		{"before step 2", 1, 1, "charge", 1, 2},
		{"after step 2", 1, 1, "charge", 2, 2},
		{"before began", 1, 1, "charge", 2, 2},
		{"after began", 1, 0, "unknown", 2, 2},
		{"before work 3", 1, 0, "unknown", 2, 2},
		{"after work 3", 1, 1, "unknown", 2, 2},
		{"before step 3", 1, 1, "unknown", 2, 2},
		{"after step 3", 1, 1, "charge", 3, 2},
		{"before receipt", 1, 1, "charge", 3, 2},
		{"after receipt", 1, 1, "charge", 3, 1},
	}) {
		t.Run(s.point, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			got := map[string]int{}
			sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				what, _ := io.ReadAll(r.Body)
				mu.Lock()
				got[string(what)]++
				mu.Unlock()
			}))
			defer sink.Close()
			defer http.DefaultClient.CloseIdleConnections()
			env := handlertest.Start(t, handlertest.Options{Registry: crashRegistry("none"), NoWorker: true,
				Domains: []any{Crash{sink: sink.URL}}})
			if _, err := env.DB.Exec(t.Context(), "create table lab_rows (text text)"); err != nil {
				t.Fatal(err)
			}
			id := env.Insert(handlertest.Call{Tool: "crash.flow", Input: task(Task{Text: "x"})})
			dieAt(t, s.point, testdb.RouteTo(t, env.URL), "none", sink.URL)
			if n := len(stepsOf(t, env, id)); n != s.steps {
				t.Errorf("%d steps had ended, want %d", n, s.steps)
			}

			env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			r := env.Await(id)
			if r.Status != receipts.Succeeded || handlertest.Output[Done](t, r).Text != s.charge || r.Attempt != s.attempts {
				t.Errorf("attempt %d: %s %s", r.Attempt, r.Status, r.Result)
			}
			if names := fmt.Sprint(stepsOf(t, env, id)); names != "[send row charge]" {
				t.Errorf("the journal has %s", names)
			}
			if n := rowsWith(t, env, "x"); n != 1 {
				t.Errorf("%d rows", n)
			}
			mu.Lock()
			defer mu.Unlock()
			if got["send"] != s.sends || got["charge"] != s.charges {
				t.Errorf("the server got %v, want %d and %d", got, s.sends, s.charges)
			}
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults != 0 {
				t.Errorf("audit: %+v (%v)", report, err)
			}
		})
	}
}

func TestAFamilyWhoseWorkerDiesAtAnyPointComesTogether(t *testing.T) {
	t.Parallel()
	for _, point := range some([]string{
		// the calls are made; they are waited for
		"before wait 1", "after wait 1", "before wait 2", "after wait 2", "before waiting", "after waiting",
		// of the children; the second wakes the parent
		"before receipt 1", "after receipt 1", "before receipt 2", "after receipt 2",
		"before step 1", "after step 1", "before receipt 3", "after receipt 3",
	}) {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			env := handlertest.Start(t, handlertest.Options{Registry: crashRegistry("none"), NoWorker: true,
				Domains: []any{Crash{}}})
			if _, err := env.DB.Exec(t.Context(), "create table lab_rows (text text)"); err != nil {
				t.Fatal(err)
			}
			id := env.Insert(handlertest.Call{Tool: "crash.family", Input: task(Task{Text: "x"})})
			dieAt(t, point, testdb.RouteTo(t, env.URL), "none", "")

			env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			if r := env.Await(id); r.Status != receipts.Succeeded || handlertest.Output[Done](t, r).Text != "a" {
				t.Errorf("attempt %d: %s %s", r.Attempt, r.Status, r.Result)
			}
			if a, b := rowsWith(t, env, "a"), rowsWith(t, env, "b"); a != 1 || b != 1 {
				t.Errorf("%d and %d rows", a, b)
			}
			count := map[string]int{}
			for _, event := range env.Journal(id) {
				count[event]++
			}
			if count["called"] != 2 || count["returned"] != 2 || count["step"] != 1 || count["succeeded"] != 1 {
				t.Errorf("the journal has %v", count)
			}
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults != 0 {
				t.Errorf("audit: %+v (%v)", report, err)
			}
		})
	}
}

func TestAQuestionWhoseWorkerDiesAtAnyPointIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	for _, point := range some([]string{
		// it asks; it waits for the question, which no worker claims
		"before wait 1", "after wait 1", "before waiting 1", "after waiting 1", "before wait 2", "after wait 2",
		"before receipt 1", "after receipt 1",
	}) {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			env := handlertest.Start(t, handlertest.Options{Registry: crashRegistry("none"), NoWorker: true,
				Domains: []any{Crash{}}})
			id := env.Insert(handlertest.Call{Tool: "crash.ask", Input: task(Task{Text: "Which?"})})
			ctx, stop := context.WithCancel(t.Context())
			var answering sync.WaitGroup
			answering.Go(func() { // answers each question, again and again
				for ctx.Err() == nil {
					_, _ = env.DB.Exec(ctx, `select answer_tool_call(id, '"this"') from open_questions`)
				}
			})
			dieAt(t, point, testdb.RouteTo(t, env.URL), "none", "")
			env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			if r := env.Await(id); r.Status != receipts.Succeeded || handlertest.Output[Done](t, r).Text != "this" {
				t.Errorf("attempt %d: %s %s", r.Attempt, r.Status, r.Result)
			}
			stop()
			answering.Wait()
			for event, want := range map[string]int{"answered": 1, "called": 1, "returned": 1} {
				if n := number(t, env, "select count(*) from core_tool_events where event = $1", event); n != want {
					t.Errorf("%d events %s, want %d", n, event, want)
				}
			}
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults != 0 {
				t.Errorf("audit: %+v (%v)", report, err)
			}
		})
	}
}

func TestAFrontendsQuestionWhoseWorkerDiesAtAnyPointIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	for _, point := range some([]string{"before wait 1", "after wait 1", "before waiting 1", "after waiting 1",
		"before receipt 1", "after receipt 1"}) {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			env := handlertest.Start(t, handlertest.Options{Registry: crashRegistry("none"), NoWorker: true,
				Domains: []any{Crash{}}})
			id := env.Insert(handlertest.Call{Tool: "wait.answer", Input: `{"text": "Which?"}`})
			ctx, stop := context.WithCancel(t.Context())
			var answering sync.WaitGroup
			answering.Go(func() { // again and again
				for ctx.Err() == nil {
					_, _ = env.DB.Exec(ctx, `select answer_tool_call(id, '"this"') from open_questions`)
				}
			})
			dieAt(t, point, testdb.RouteTo(t, env.URL), "none", "")
			env.StartWorker(func(o *worker.Options) { o.HeartbeatInterval = 50 * time.Millisecond })
			if r := env.Await(id); r.Status != receipts.Succeeded || !strings.Contains(string(r.Result), `"answer": "this"`) {
				t.Errorf("attempt %d: %s %s", r.Attempt, r.Status, r.Result)
			}
			stop()
			answering.Wait()
			if n := number(t, env, "select count(*) from core_tool_events where event = 'answered'"); n != 1 {
				t.Errorf("it was answered %d times", n)
			}
			report, err := audit.Database(t.Context(), env.DB, audit.Options{})
			if err != nil || report.Faults != 0 {
				t.Errorf("audit: %+v (%v)", report, err)
			}
		})
	}
}

// some returns every third point: all of them in the long form of the tests.
func some[T any](points []T) (few []T) {
	if os.Getenv("GEM_TEST_LONG") != "" {
		return points
	}
	for i := 0; i < len(points); i += 3 {
		few = append(few, points[i])
	}
	return few
}

// dieAt runs the doomed process until it is dead.
func dieAt(t *testing.T, point string, route testdb.Route, mode, sink string) {
	t.Helper()
	dieOn(t, nil, point, route, mode, sink)
}

// dieOn runs it until it is dead, by itself or by a word of the test's.
func dieOn(t *testing.T, word <-chan struct{}, point string, route testdb.Route, mode, sink string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), doomedPoint+"="+point, doomedURL+"="+route.URL, doomedPool+"="+string(route.Mode),
		doomedMode+"="+mode, doomedSink+"="+sink)
	cmd.Env = append(cmd.Env, env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if _, err := cmd.StdinPipe(); err != nil { // held until the process has ended
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if word != nil {
		select {
		case <-word:
			_ = cmd.Process.Kill()
		case <-ctx.Done():
		}
	}
	_ = cmd.Wait()
	if diff := cmp.Diff(syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()); diff != "" ||
		ctx.Err() != nil {
		t.Fatalf("it did not die at its point: %s %s", cmd.ProcessState, stderr.String())
	}
}

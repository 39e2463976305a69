package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
)

// far is a backend whose tools come and go.
type far struct {
	handler atomic.Pointer[binding.Handler]
}

func (f *far) For(tool string) (*binding.Handler, bool) {
	h := f.handler.Load()
	return h, h != nil && strings.HasPrefix(tool, "far.")
}

// lets makes all tools of the backend do the same.
func (f *far) lets(transactional bool, run func(ctx context.Context, tx handlers.Tx,
	call *handlers.Call) (json.RawMessage, error)) {
	f.handler.Store(binding.NewHandler("FAR", "away", transactional, run))
}

// says returns a text as an output.
func says(text string) json.RawMessage {
	out, _ := json.Marshal(map[string]string{"text": text})
	return out
}

// startFar has a worker with the tools far.do, which must not run twice, and far.again, each with 100 ms.
func startFar(t *testing.T, backend *far, change func(*worker.Options)) *handlertest.Env {
	t.Helper()
	env, _ := startLab(t, change, tool{name: "lab.write"}, tool{name: "far.do", timeout: 100 * time.Millisecond},
		tool{name: "far.again", mode: "safe-retry", timeout: 100 * time.Millisecond})
	env.StartWorker(func(o *worker.Options) { o.Handlers.Add(backend) })
	env.Until("the worker to have started", func() bool { return env.Logs.FilterMessage("worker started").Len() > 0 })
	return env
}

func TestAToolIsServedByItsBackendOnceItIsThere(t *testing.T) {
	t.Parallel()
	var backend far
	env := startFar(t, &backend, nil)
	r := env.Run(handlertest.Call{Tool: "far.do", Input: task(Task{Text: "x"})})
	if r.Status != receipts.NotConfigured {
		t.Fatal(r.Status)
	}
	for _, step := range []string{"SQL: create the function tools.far_do(input jsonb) returns jsonb",
		`HTTP: name the service of far in domains.json, as in {\"far\": {\"http\":`,
		`MCP: name the server of far in domains.json, as in {\"far\": {\"mcp\":`,
		"Go: write the method do of the domain far"} {
		if !strings.Contains(string(r.Result), step) {
			t.Errorf("%s lacks %s", r.Result, step)
		}
	}
	backend.lets(true, func(ctx context.Context, tx handlers.Tx, call *handlers.Call) (json.RawMessage, error) {
		_, err := tx.Exec(ctx, "insert into lab_rows (text) values ($1)", call.ID)
		return says("done"), err
	})
	id := env.Insert(handlertest.Call{Tool: "far.do", Input: task(Task{Text: "x"})})
	if got := codeOf(env.Await(id)); got != "succeeded" {
		t.Error(got)
	}
	var rows int
	if err := env.DB.QueryRow(t.Context(), "select count(*) from lab_rows where text = $1", id).Scan(&rows); err != nil ||
		rows != 1 {
		t.Errorf("%d rows, %v", rows, err)
	}
	backend.lets(true, func(context.Context, handlers.Tx, *handlers.Call) (json.RawMessage, error) {
		return json.RawMessage(`{"text": 1}`), nil
	})
	if got := codeOf(env.Run(handlertest.Call{Tool: "far.do", Input: task(Task{Text: "x"})})); got != "output_invalid" {
		t.Error(got)
	}
	backend.lets(true, func(context.Context, handlers.Tx, *handlers.Call) (json.RawMessage, error) { panic("far away") })
	if got := codeOf(env.Run(handlertest.Call{Tool: "far.do", Input: task(Task{Text: "x"})})); got != "panic" {
		t.Error(got)
	}
}

// A Go method keeps the tool of its name, even if a backend gets it later.
func TestAGoMethodWinsOverABackend(t *testing.T) {
	t.Parallel()
	everywhere := binding.NewHandler("FAR", "away", false, nil)
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	env.StartWorker(func(o *worker.Options) { o.Handlers.Add(always{everywhere}) })
	if got := codeOf(env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})); got != "succeeded" {
		t.Error(got)
	}
}

type always struct{ handler *binding.Handler }

func (a always) For(string) (*binding.Handler, bool) { return a.handler, true }

// Only rows can be taken back. A worker does not start with a rule that blocks the results of a tool outside, and where
// the tool is found later no call runs.
func TestARuleThatBlocksResultsHoldsForTransactionsAlone(t *testing.T) {
	t.Parallel()
	blocks := ruledBy(t,
		`{"name": "late", "tools": ["far.*"], "action": "block", "when": {"result": {"text": {"const": "loud"}}}}`)
	var backend far
	env := startFar(t, &backend, blocks)
	run := func() *receipts.Receipt {
		return env.Run(handlertest.Call{Tool: "far.do", Input: task(Task{Text: "x"})})
	}

	var ran atomic.Int64
	loud := func(context.Context, handlers.Tx, *handlers.Call) (json.RawMessage, error) {
		ran.Add(1)
		return says("loud"), nil
	}
	backend.lets(false, loud)
	if e := handlertest.ErrorOf(t, run()); e.Code != receipts.RuleError ||
		!strings.Contains(e.Message, "The rule late blocks results of far.do, which lives in FAR (away)") || ran.Load() != 0 {
		t.Errorf("%+v, after %d runs", e, ran.Load())
	}
	backend.lets(true, loud)
	if e := handlertest.ErrorOf(t, run()); e.Code != receipts.RuleBlocked || ran.Load() != 1 {
		t.Errorf("%+v, after %d runs", e, ran.Load())
	}

	backend.lets(false, loud)
	late := env.NewWorker(func(o *worker.Options) { o.Handlers.Add(&backend) })
	if err := late.Run(t.Context()); err == nil || !strings.Contains(err.Error(),
		"the rule late blocks results of far.do") {
		t.Errorf("the worker starts: %v", err)
	}
}

func TestAToolThatMustNotRunTwiceSaysThatItsOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	var backend far
	env := startFar(t, &backend, nil)
	for _, c := range []struct {
		tool string
		err  error // with which the handler ends when its time is over
		want receipts.Code
	}{
		{"far.do", &handlers.Failure{Code: "outcome_unknown", Message: "It was sent."}, receipts.OutcomeUnknown},
		{"far.do", handlers.Transient(&handlers.Failure{Code: "outcome_unknown", Message: "It was sent."}),
			receipts.OutcomeUnknown},
		{"far.do", errors.New("not sent"), receipts.Timeout},
		{"far.again", &handlers.Failure{Code: "outcome_unknown", Message: "It was sent."}, receipts.Timeout},
	} {
		backend.lets(false, func(ctx context.Context, _ handlers.Tx, _ *handlers.Call) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, c.err
		})
		if e := handlertest.ErrorOf(t, env.Run(handlertest.Call{Tool: c.tool,
			Input: task(Task{Text: "x"})})); e.Code != c.want {
			t.Errorf("%s, %v: got %s, want %s", c.tool, c.err, e.Code, c.want)
		}
	}
}

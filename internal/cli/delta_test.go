package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Delta is a domain of the program that these tests play. delta.run is an agent's loop: it thinks, acts and observes.
// Its model is a script.
type Delta struct{ pool *pgxpool.Pool }

func deltaDomain() handlers.Domain {
	d := &Delta{}
	return handlers.Domain{Tools: d, Open: func(env handlers.Env) error { d.pool = env.Pool; return nil }}
}

type (
	runAgent struct {
		Script   []thought `json:"script"` // the model's answers, the last one again and again
		MaxTurns int       `json:"max_turns"`
	}
	thought struct {
		Content string   `json:"content"`
		Refuses bool     `json:"refuses"` // the model does not answer
		Actions []action `json:"actions"`
	}
	action struct {
		Tool  string          `json:"tool"`
		Input json.RawMessage `json:"input"`
	}
	agentRan struct {
		Answer string   `json:"answer"`
		Turns  int      `json:"turns"`
		Seen   []string `json:"seen"`
	}
)

// Run is delta.run.
func (d *Delta) Run(ctx context.Context, call *handlers.Durable, in runAgent) (out agentRan, err error) {
	limit := cmp.Or(in.MaxTurns, 30)
	for out.Turns = 1; out.Turns <= limit; out.Turns++ {
		think := func(ctx context.Context) (thought, error) {
			said := in.Script[min(out.Turns, len(in.Script))-1]
			if said.Refuses {
				return said, &handlers.Failure{Code: "model_refused", Message: "The model does not answer."}
			}
			return said, d.do(ctx, call.ID, fmt.Sprintf("think %d", out.Turns))
		}
		var said thought
		if os.Getenv("DELTA_VERSION") == "2" {
			said, err = handlers.StepOnce(ctx, call, "think", think)
		} else {
			said, err = handlers.Step(ctx, call, "think", think)
		}
		if err != nil {
			return out, err
		}
		if len(said.Actions) == 0 {
			out.Answer = said.Content
			return out, nil
		}
		acts := make([]*handlers.Child[json.RawMessage], len(said.Actions))
		for i, a := range said.Actions {
			acts[i] = handlers.Start[json.RawMessage](call, "act", a.Tool, a.Input)
		}
		if err := handlers.All(ctx, acts...); err != nil {
			return out, err
		}
		for _, act := range acts {
			seen, err := act.Wait(ctx)
			var failure *handlers.Failure
			var missing *handlers.NotConfigured
			switch {
			case errors.As(err, &failure):
				seen = []byte(failure.Code)
			case errors.As(err, &missing):
				seen = []byte("not_configured")
			case err != nil:
				return out, err
			}
			out.Seen = append(out.Seen, string(seen))
		}
	}
	return out, &handlers.Failure{Code: "turn_limit",
		Message: fmt.Sprintf("The agent was not done after %d turns.", limit)}
}

// do has an effect that cannot be undone, and waits while a test holds it.
func (d *Delta) do(ctx context.Context, id, what string) error {
	if _, err := d.pool.Exec(ctx, "insert into delta_log (call_id, what) values ($1, $2)", id, what); err != nil {
		return err
	}
	for held := true; held; {
		if err := d.pool.QueryRow(ctx, "select exists (select from delta_hold where what = $1)",
			what).Scan(&held); err != nil {
			return err
		}
	}
	return nil
}

type act struct {
	Text string `json:"text"`
	Fail bool   `json:"fail"`
}

// Act is delta.act.
func (d *Delta) Act(ctx context.Context, call *handlers.Call, in act) (act, error) {
	if in.Fail {
		return in, &handlers.Failure{Code: "no_luck", Message: "It did not work."}
	}
	return in, d.do(ctx, call.ID, in.Text)
}

// deltaRegistry has the tools of the program, and those of Delta.
func deltaRegistry(t *testing.T) string {
	t.Helper()
	var registry map[string]any
	if err := json.Unmarshal(builtIn.Registry, &registry); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"delta.run", "delta.act", "delta.unset"} {
		registry["tools"] = append(registry["tools"].([]any),
			map[string]any{"name": name, "input_schema": map[string]any{"type": "object"}, "output_schema": true,
				"permissions": []string{}, "idempotency": map[string]any{"mode": "safe-retry"}, "timeout_ms": 600000,
				"receipt_fields": []string{},
				"calls":          []string{"delta.act", "delta.unset", "delta.gone"}})
	}
	encoded, err := json.Marshal(registry)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// delta is a database for agents.
type delta struct {
	*testing.T
	url, registry string
	db            *pgxpool.Pool
}

func newDelta(t *testing.T) delta {
	t.Helper()
	t.Parallel()
	url := newDatabase(t)
	d := delta{t, url, deltaRegistry(t), testdb.Pool(t, url)}
	testdb.Exec(t, d.db, "create table delta_log (call_id uuid, what text); create table delta_hold (what text)")
	return d
}

func (d delta) worker(env ...string) *process {
	d.Helper()
	return startWorker(d.T, d.url, append(env, "TOOLS_REGISTRY="+d.registry, "WORKER_SHUTDOWN_GRACE=1s")...)
}

// insert makes a call to delta.run, whose model says this.
func (d delta) insert(script string, maxTurns int) (id string) {
	d.Helper()
	return testdb.Value[string](d.T, d.db,
		"insert into core_tool_calls (tool_name, input, created_by) values ('delta.run', "+
			"jsonb_build_object('script', $1::jsonb, 'max_turns', $2::int), 'ada') returning id::text",
		script, maxTurns)
}

func (d delta) hold(what string) { testdb.Exec(d.T, d.db, "insert into delta_hold values ($1)", what) }
func (d delta) free(what string) {
	testdb.Exec(d.T, d.db, "delete from delta_hold where what = $1", what)
}

func (d delta) did(what string) int {
	d.Helper()
	return testdb.Value[int](d.T, d.db, "select count(*)::int from delta_log where what = $1", what)
}

func (d delta) until(sql string, args ...any) {
	d.Helper()
	for deadline := time.Now().Add(patience); !testdb.Value[bool](d.T, d.db, sql, args...); time.Sleep(
		5 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.Fatalf("still waiting for %s %v", sql, args)
		}
	}
}

// kill kills a worker once something was done a number of times.
func (d delta) kill(p *process, what string, times int) {
	d.Helper()
	d.until("select count(*) >= $2 from delta_log where what = $1", what, times)
	if err := p.cmd.Process.Kill(); err != nil {
		d.Fatal(err)
	}
	_ = p.cmd.Wait()
}

func (d delta) await(id string) *receipts.Receipt {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), patience)
	defer cancel()
	r, err := client.Await(ctx, d.db, id)
	if err != nil {
		d.Fatal(err)
	}
	return r
}

func (d delta) ran(id string) (out agentRan) {
	d.Helper()
	r := d.await(id)
	if err := json.Unmarshal(r.Result, &out); err != nil || r.Status != receipts.Succeeded {
		d.Fatalf("%s: %s", r.Status, r.Result)
	}
	return out
}

// question is the id of the open question that a call asks, once it does.
func (d delta) question(id string) string {
	d.Helper()
	d.until("select exists (select from open_questions where root = $1)", id)
	return testdb.Value[string](d.T, d.db, "select id::text from open_questions where root = $1", id)
}

// sound fails if an audit finds a fault, or the journal has a gap.
func (d delta) sound() {
	d.Helper()
	got := gemWith(d.T, []string{"DATABASE_URL=" + d.url}, "audit")
	if got.code != exitDone {
		d.Errorf("gem audit: %s", got.stdout)
	}
}

const (
	twoTurns = `[{"actions": [{"tool": "delta.act", "input": {"text": "one"}}]}, {"content": "done"}]`
	asks     = `[{"actions": [{"tool": "wait.answer", "input": {"text": "Which color?"}}]}, {"content": "done"}]`
)

// A1: killed between the effect of a step and its memo.
func TestAStepThatWasKilledRunsOnceMore(t *testing.T) {
	d := newDelta(t)
	d.hold("think 2")
	first := d.worker()
	id := d.insert(twoTurns, 0)
	d.kill(first, "think 2", 1)
	d.free("think 2")
	d.worker()
	if ran := d.ran(id); ran.Answer != "done" || ran.Turns != 2 || d.did("think 1") != 1 || d.did("think 2") != 2 ||
		d.did("one") != 1 {
		t.Errorf("%+v; it thought %d and %d times, and acted %d times", ran, d.did("think 1"), d.did("think 2"), d.did("one"))
	}
	d.sound()
}

// A2: stopped in the middle, it continues on another worker.
func TestAnAgentWhoseWorkerIsStoppedGoesOnElsewhere(t *testing.T) {
	testdb.Long(t, "TestAnAgentOfAModelGoesOnElsewhere")
	d := newDelta(t)
	d.hold("think 2")
	first := d.worker()
	id := d.insert(twoTurns, 0)
	d.until("select count(*) > 0 from delta_log where what = 'think 2'")
	second := d.worker()
	first.stop(t)
	d.free("think 2")
	if ran := d.ran(id); ran.Answer != "done" || d.did("think 1") != 1 || d.did("one") != 1 {
		t.Errorf("%+v", ran)
	}
	if !strings.Contains(second.stderr.String(), id) {
		t.Error("the other worker did not have it")
	}
	d.sound()
}

// A3 to A6: it asks, all workers stop, somebody answers, and it continues.
func TestAnAgentAsksAndWaitsInNoProcess(t *testing.T) {
	d := newDelta(t)
	first := d.worker()
	id := d.insert(asks, 0)
	q := d.question(id)
	d.until("select status = 'waiting' and waits_for = 'call' and claimed_by is null from core_tool_calls where id = $1",
		id)
	first.stop(t)
	env := []string{"DATABASE_URL=" + d.url}
	open := gemWith(t, env, "questions")
	wants(t, open.stdout, "Which color?", "gem answer "+q)
	for _, wrong := range [][]string{{"answer", q, "42", "--name", "other"}, {"answer", exampleID, "x"}, {"approve", q}} {
		gemWith(t, env, wrong...).wantCode(t, exitFailed)
	}
	wants(t, gemWith(t, env, "answer", id, "blue").stderr, "call "+id+", of ",
		"is not a question. It waits for the answer to this question:\n", "gem answer "+q)
	wants(t, gemWith(t, env, "explain", id).stdout, "gem answer "+q+" VALUE", "It asks “Which color?”")
	gemWith(t, env, "resume", id).wantCode(t, exitDone)
	gemWith(t, env, "resume", q).wantCode(t, exitDone)
	d.worker()
	d.until("select bool_and(status = 'waiting') from core_tool_calls")
	if n := testdb.Value[int](t, d.db,
		"select count(*)::int from core_tool_calls where tool_name = 'wait.answer'"); n != 1 {
		t.Errorf("%d questions", n)
	}
	for range 2 {
		answered := gemWith(t, env, "answer", q, "blue")
		answered.wantCode(t, exitDone)
		if r := receiptIn(t, answered.stdout); r.CallID != id {
			t.Errorf("the receipt of %s is printed, want that of the call that asked, %s", r.CallID, id)
		}
	}
	gemWith(t, env, "answer", q, "red").wantCode(t, exitFailed)
	ran := d.ran(id)
	if len(ran.Seen) != 1 || !strings.Contains(ran.Seen[0], `"answer": "blue"`) &&
		!strings.Contains(ran.Seen[0], `"answer":"blue"`) || d.did("think 1") != 1 {
		t.Errorf("%+v", ran)
	}
	if n := testdb.Value[int](t, d.db, "select count(*)::int from core_tool_events where event = 'answered'"); n != 1 {
		t.Errorf("%d answers", n)
	}
	gemWith(t, env, "answer", q, "blue").wantCode(t, exitDone) // also after the end
	gemWith(t, env, "answer", id, "blue").wantCode(t, exitFailed)
	d.sound()
}

// A7: its turns are counted over all restarts.
func TestATurnLimitCountsOverRestarts(t *testing.T) {
	testdb.Long(t, "TestTheTurnLimitOfAnAgentCountsAcrossRestarts of package sdks")
	d := newDelta(t)
	id := d.insert(`[{"actions": [{"tool": "delta.act", "input": {"text": "more"}}]}]`, 3)
	for turn := 1; turn <= 3; turn++ {
		what := fmt.Sprintf("think %d", turn)
		d.hold(what)
		d.kill(d.worker(), what, 1)
		d.free(what)
	}
	d.worker()
	r := d.await(id)
	if e, _ := r.Error(); e.Code != "turn_limit" || d.did("more") != 3 || d.did("think 4") != 0 {
		t.Errorf("%s; it acted %d times", r.Result, d.did("more"))
	}
	d.sound()
}

// A8 and A9: the result of a tool is an observation, in the order of the model's tool calls, and the loop continues
// once it has all of them.
func TestWhatAToolComesToIsObserved(t *testing.T) {
	d := newDelta(t)
	d.worker()
	id := d.insert(
		`[{"actions": [{"tool": "delta.act", "input": {"text": "x", "fail": true}}, {"tool": "wait.answer", "input": {"text": "?"}}, {"tool": "delta.gone", "input": {}},
		{"tool": "delta.unset", "input": {}}, {"tool": "comms.send_sms", "input": {}}, {"tool": "delta.act", "input": {"text": "y"}}]}, {"content": "done"}]`, 0)
	q := d.question(id)
	d.until("select count(*) = 4 from core_tool_events where call_id = $1 and event = 'returned'", id)
	gemWith(t, []string{"DATABASE_URL=" + d.url}, "answer", q, "yes").wantCode(t, exitDone)
	ran := d.ran(id)
	want := []string{"no_luck", `"yes"`, "unknown_tool", "not_configured", "not_allowed", `"y"`}
	if len(ran.Seen) != len(want) {
		t.Fatalf("%+v", ran)
	}
	for i := range want {
		if !strings.Contains(ran.Seen[i], want[i]) {
			t.Errorf("it saw %s, want %s", ran.Seen[i], want[i])
		}
	}
	if n := testdb.Value[int](t, d.db, "select count(*)::int from core_tool_events where call_id = $1 and event = 'woken'",
		id); n != 1 {
		t.Errorf("it was woken %d times", n)
	}
	wants(t, gemWith(t, []string{"DATABASE_URL=" + d.url}, "trace", id).stdout, "Its handler made these calls:",
		"  act  failed  delta.act", "  act#2  succeeded  wait.answer")
	refused := d.await(d.insert(`[{"refuses": true}]`, 0))
	if e, _ := refused.Error(); e.Code != "model_refused" {
		t.Errorf("%s", refused.Result)
	}
	d.sound()
}

// A10: each answer reaches its own, and of two resumes one attempt runs.
func TestTwoAgentsOfOneUserWait(t *testing.T) {
	d := newDelta(t)
	d.worker()
	one, two := d.insert(asks, 0), d.insert(asks, 0)
	for id, answer := range map[string]string{one: "first", two: "second"} {
		q := d.question(id)
		testdb.Exec(t, d.db, "select answer_tool_call($1, to_jsonb($2::text))", q, answer)
	}
	for id, answer := range map[string]string{one: "first", two: "second"} {
		if ran := d.ran(id); !strings.Contains(ran.Seen[0], answer) {
			t.Errorf("%+v, want %s", ran, answer)
		}
	}
	id := d.insert(asks, 0)
	q := d.question(id)
	attempts := testdb.Value[int](t, d.db, "select attempt from core_tool_calls where id = $1", q)
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			_, err := client.Resume(context.Background(), d.db, q)
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	d.until("select status = 'waiting' from core_tool_calls where id = $1", q)
	if woken := testdb.Value[int](t, d.db,
		"select count(*)::int from core_tool_events where call_id = $1 and event = 'woken'",
		q); testdb.Value[int](t, d.db, "select attempt from core_tool_calls where id = $1", q) != attempts+woken {
		t.Errorf("it was woken %d times", woken)
	}
	d.sound()
}

// A11: an ended run is not begun again under its id.
func TestAnEndedRunTakesNothingMore(t *testing.T) {
	d := newDelta(t)
	d.worker()
	id := d.insert(`[{"content": "done"}]`, 0)
	d.ran(id)
	_, err := d.db.Exec(t.Context(), "select enqueue_tool_call('delta.run', '{\"script\": []}', id => $1)", id)
	if err == nil || !strings.Contains(err.Error(), "another call") {
		t.Errorf("its id was taken again: %v", err)
	}
	if err := client.Answer(t.Context(), d.db, id, "x", ""); err == nil {
		t.Error("it took an answer")
	}
}

// A12: a program that cannot read its journal leaves it alone.
func TestAProgramThatCannotReadAJournalLeavesItAlone(t *testing.T) {
	d := newDelta(t)
	first := d.worker()
	id := d.insert(asks, 0)
	q := d.question(id)
	first.stop(t)
	other := d.worker("DELTA_VERSION=2")
	testdb.Exec(t, d.db, "select answer_tool_call($1, '\"blue\"')", q)
	d.until("select coalesce(waits_for = 'code', false) from core_tool_calls where id = $1", id)
	wants(t, gemWith(t, []string{"DATABASE_URL=" + d.url}, "explain", id).stdout, `the name "think" in its journal`,
		"gem resume "+id)
	other.stop(t)
	d.worker()
	if ran := d.ran(id); ran.Answer != "done" || d.did("think 1") != 1 {
		t.Errorf("%+v", ran)
	}
	d.sound()
}

package worker_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Sender is a domain whose handler sends within a step that must not run twice, and then waits for an answer.
type Sender struct {
	lab *Lab
}

// Flow is sender.flow.
func (s Sender) Flow(ctx context.Context, d *handlers.Durable, in Task) (Done, error) {
	sent, err := handlers.StepOnce(ctx, d, "send", func(context.Context) (Done, error) {
		s.lab.mu.Lock()
		s.lab.sent = append(s.lab.sent, in.Text)
		s.lab.mu.Unlock()
		return Done{Text: in.Text}, nil
	})
	if err != nil {
		return Done{}, err
	}
	if _, err := handlers.Receive[string](d, "go").Wait(ctx); err != nil {
		return Done{}, err
	}
	return sent, nil
}

// Keyed is sender.keyed: it sends, and its tool has keys.
func (s Sender) Keyed(ctx context.Context, call *handlers.Call, in Task) (Done, error) {
	return s.lab.Send(ctx, call, in)
}

// failoverTools are the tools of these tests.
var failoverTools = labRegistry("1.0.0", tool{name: "lab.send"}, tool{name: "lab.write"}, tool{name: "sender.flow"},
	tool{name: "sender.keyed", mode: "keyed", keyField: "key"})

// cells is a pair of servers with a worker whose claims, keys and handlers a test can hold back, and with calls in each
// state that a failover may meet.
type cells struct {
	*pair
	env    *handlertest.Env
	lab    *Lab
	claims sync.RWMutex
	keys   sync.RWMutex
	starts sync.RWMutex       // of handlers
	at     func(point string) // is called at each point of the worker, unless nil
	ids    map[string]string  // by text
	worker *handlertest.Running
}

func newCells(t *testing.T, change ...func(*worker.Options)) *cells {
	t.Helper()
	c := idleCells(t, newPair(t))
	c.start(change...)
	return c
}

// idleCells returns cells whose worker has not started.
func idleCells(t *testing.T, p *pair) *cells {
	t.Helper()
	return newIdleCells(t, p, failoverTools, func(lab *Lab) any { return Sender{lab} })
}

// newIdleCells is idleCells with other tools, some of a domain besides the lab's.
func newIdleCells(t *testing.T, p *pair, tools []byte, domain func(*Lab) any) *cells {
	t.Helper()
	c := &cells{pair: p, lab: NewLab(), ids: map[string]string{}}
	c.env = handlertest.Start(t, handlertest.Options{Registry: tools, Domains: []any{c.lab, domain(c.lab)},
		NoWorker: true, Database: c.url})
	testdb.Exec(t, c.env.DB, "create table lab_rows (id bigint generated always as identity primary key, text text)")
	t.Cleanup(func() {
		if t.Failed() {
			for _, q := range []string{"gem.epochs", "core_workers", "core_tool_calls", "gem.epoch_calls"} {
				rows, _ := c.env.DB.Query(context.Background(), "select row_to_json(t)::text from "+q+" t")
				all, err := pgx.CollectRows(rows, pgx.RowTo[string])
				t.Log(q, strings.Join(all, "\n"), err)
			}
			for _, e := range c.env.Logs.All() {
				t.Log(e.Time.Format("05.000"), e.Message, e.ContextMap())
			}
		}
	})
	return c
}

func (c *cells) start(change ...func(*worker.Options)) {
	c.Helper()
	c.worker = c.env.StartWorker(append(change, func(o *worker.Options) {
		o.Concurrency = 30 // one caller may not crowd it
		worker.SetHook(o, func(point string) {
			if c.at != nil {
				c.at(point)
			}
			switch point {
			case "before claim":
				c.claims.RLock()
				defer c.claims.RUnlock()
			case "before key":
				c.keys.RLock()
				defer c.keys.RUnlock()
			case "before handler":
				c.starts.RLock()
				defer c.starts.RUnlock()
			}
		})
	})...)
}

// call inserts a call whose text and gate, if it waits, are its name.
func (c *cells) call(toolName, name string, waits bool) {
	in := Task{Text: name}
	if waits {
		in.Gate = name
	}
	c.ids[name] = c.env.Insert(handlertest.Call{Tool: toolName, Input: task(in), CreatedBy: "ada", Session: "s",
		SignedIn: true})
}

// keyed is call for a tool whose calls have keys.
func (c *cells) keyed(name, key, then string, waits bool) {
	in := Task{Text: name, Key: key, Then: then}
	if waits {
		in.Gate = name
	}
	c.ids[name] = c.env.Insert(handlertest.Call{Tool: "sender.keyed", Input: task(in)})
}

func (c *cells) begun(n int) {
	c.Helper()
	for range n {
		c.lab.awaitBegin(c.T)
	}
}

// end waits for the receipts of calls and returns their ids.
func (c *cells) end(names ...string) map[string]string {
	c.Helper()
	receiptIDs := map[string]string{}
	for _, name := range names {
		receiptIDs[name] = c.env.Await(c.ids[name]).ID
	}
	return receiptIDs
}

// kept waits for the receipts of calls, which must have the ids that they had before.
func (c *cells) kept(before map[string]string) {
	c.Helper()
	c.env.Until("the calls are there", func() bool { // after a failover a call may be missing
		for name := range before {
			if number(c.T, c.env, "select count(*) from core_tool_calls where id = '"+c.ids[name]+"'") == 0 {
				return false
			}
		}
		return true
	})
	for name, id := range c.end(slices.Collect(maps.Keys(before))...) {
		if id != before[name] {
			c.Errorf("the receipt of %q was %s, and is %s", name, before[name], id)
		}
	}
}

// A worker that lives on restores what a failover lost, whatever the new server has of a call.
func TestWhatAFailoverLostIsRestored(t *testing.T) {
	t.Parallel()
	c := newCells(t)
	c.call("lab.send", "running, ended", true)
	c.call("lab.send", "running, runs", true)
	c.begun(2)
	c.claims.Lock()
	c.call("lab.send", "queued, ended", false)
	c.call("lab.send", "queued, runs", true)
	c.call("lab.write", "queued, written", false)
	c.call("sender.flow", "queued, step", false)
	c.loseCommits()
	c.claims.Unlock()
	c.begun(1)
	c.call("lab.send", "missing, ended", false)
	c.call("lab.send", "missing, runs", true)
	c.call("lab.write", "missing, written", false)
	c.begun(1)
	c.lab.tell(t, "running, ended", Order{})
	c.env.UntilItWaits(c.ids["queued, step"], "answer")
	before := c.end("running, ended", "queued, ended", "missing, ended")
	c.end("queued, written", "missing, written")

	c.failover()
	c.env.DB.Reset()
	c.kept(before)
	c.end("queued, written")
	for _, name := range []string{"running, runs", "queued, runs", "missing, runs"} {
		c.lab.tell(t, name, Order{})
	}
	c.end("running, runs", "queued, runs", "missing, runs")
	if failed := handlertest.ErrorOf(t, c.env.Await(c.ids["queued, step"])); failed.Code != "outcome_unknown" {
		t.Errorf("the call whose step began ends with %v", failed)
	}

	sent := c.lab.sentSoFar()
	slices.Sort(sent)
	want := "missing, ended; missing, runs; queued, ended; queued, runs; queued, step; running, ended; running, runs"
	if got := strings.Join(sent, "; "); got != want {
		t.Errorf("the effects: %s", got)
	}
	for _, q := range [][2]string{
		{"select string_agg(text, '; ' order by text) from lab_rows", "queued, written"},
		{"select string_agg(format('%s %s', c.input ->> 'text', e.found), '; ' order by c.input ->> 'text') " +
			"from gem.epoch_calls e join core_tool_calls c on c.id = e.call_id where e.what = 'restored'",
			"missing, ended missing; queued, ended queued, attempt 0; running, ended running, attempt 1"},
		{"select count(*)::text from core_tool_calls where created_by = 'ada' and session_id = 's' and signed_in", "8"},
		{"select reran::text from gem.epochs order by epoch desc limit 1", "1"},
		{"select string_agg(tool_name, '; ') from gem.epoch_calls where what = 'missing'", "lab.write"},
	} {
		if got := c.ask(c.standby, q[0]); got != q[1] {
			t.Errorf("%s: %s, want %s", q[0], got, q[1])
		}
	}
	sound(t, c.env)
}

// Of an end that it has no room for, a worker knows that it was. The call does not run again.
func TestAnEndOfWhichLittleIsKnownIsRestoredAsUnknown(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := newCells(t)
	worker.ForgetPayloads(c.worker.Worker)
	c.call("lab.send", "running", true)
	c.begun(1)
	c.claims.Lock()
	c.call("lab.send", "queued", false)
	c.loseCommits()
	c.claims.Unlock()
	c.call("lab.send", "missing", false)
	c.lab.tell(t, "running", Order{})
	before := c.end("running", "queued", "missing")

	c.failover()
	c.env.DB.Reset()
	for _, name := range []string{"running", "queued"} {
		r := c.env.Await(c.ids[name])
		if failed := handlertest.ErrorOf(t, r); failed.Code != "outcome_unknown" || r.ID != before[name] {
			t.Errorf("%s: receipt %s, was %s: %v", name, r.ID, before[name], failed)
		}
	}
	want := "lab.send missing missing; lab.send unknown queued, attempt 0; lab.send unknown running, attempt 1"
	c.env.Until("all are listed", func() bool {
		return c.ask(c.standby, "select coalesce(string_agg(format('%s %s %s', tool_name, what, found), '; ' "+
			"order by tool_name, what, found), '') from gem.epoch_calls") == want
	})
	if sent := c.lab.sentSoFar(); len(sent) != 3 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

// While one worker still has the earlier primary, another takes the calls on the promoted standby. When the first one
// moves over, it lists what ran twice and what had an unknown outcome.
func TestAnEndThatAnotherWorkerDecidedMeanwhileIsListed(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	soon := func(o *worker.Options) { o.DeadAfter, o.HeartbeatInterval = 5*time.Second, time.Second }
	c := newCells(t, soon)
	c.call("lab.send", "running, ended", true)
	c.call("lab.send", "running, runs", true)
	c.begun(2)
	c.claims.Lock()
	c.call("lab.send", "queued, ended", false)
	c.call("lab.send", "queued, runs", true)
	c.loseCommits()
	c.claims.Unlock()
	c.begun(1)
	c.lab.tell(t, "running, ended", Order{})
	c.end("running, ended", "queued, ended")

	c.promote()
	lab := NewLab()
	second := handlertest.Start(t, handlertest.Options{Registry: failoverTools, Domains: []any{lab, Sender{lab}},
		Worker: soon, Database: c.standby})
	second.Await(c.ids["queued, ended"])
	lab.awaitBegin(t)
	lab.tell(t, "queued, runs", Order{})
	second.Await(c.ids["queued, runs"])
	for _, name := range []string{"running, ended", "running, runs"} {
		if failed := handlertest.ErrorOf(t, second.Await(c.ids[name])); failed.Code != "outcome_unknown" {
			t.Errorf("%s: %v", name, failed)
		}
	}
	c.killPrimary()
	c.env.DB.Reset()
	want := "queued, ended ran_twice succeeded, attempt 1; queued, runs ran_twice succeeded, attempt 1; " +
		"running, ended unknown failed, attempt 2; running, runs unknown failed, attempt 2"
	c.env.Until("all are listed", func() bool {
		return c.ask(c.standby, "select coalesce(string_agg(format('%s %s %s', c.input ->> 'text', what, found), '; ' "+
			"order by c.input ->> 'text'), '') from gem.epoch_calls e join core_tool_calls c on c.id = e.call_id") == want
	})
	sound(t, c.env)
}

// The server may lack several attempts of a call, and what let the last one run.
func TestAnEndIsRestoredThoughItsCallStillWaitedOrHadAnEarlierAttempt(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := newCells(t)
	c.keyed("first", "a", "fail", true)
	c.begun(1)
	c.keyed("second", "a", "", false)
	c.env.UntilItWaits(c.ids["second"], "key")
	c.claims.Lock()
	c.keyed("retried", "b", "transient once", false)
	c.loseCommits()
	c.claims.Unlock()
	c.lab.tell(t, "first", Order{})
	before := c.end("first", "second", "retried")

	c.failover()
	c.env.DB.Reset()
	c.kept(before)
	want := "first running, attempt 1; retried queued, attempt 0; second queued, attempt 1"
	if got := c.ask(c.standby, "select string_agg(format('%s %s', c.input ->> 'text', e.found), '; ' order by "+
		"c.input ->> 'text') from gem.epoch_calls e join core_tool_calls c on c.id = e.call_id"); got != want {
		t.Errorf("found: %s", got)
	}
	sound(t, c.env)
}

// The server has the claims of the first two calls, and not their keys.
func TestAnAttemptTakesTheKeyAgainThatAFailoverLost(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := newCells(t)
	c.keys.Lock()
	c.keyed("ended", "a", "", false)
	c.keyed("runs", "b", "", true)
	c.env.Until("both are claimed", func() bool {
		return c.ask(c.primary, "select count(*)::text from core_tool_calls where status = 'running'") == "2"
	})
	c.loseCommits()
	c.keys.Unlock()
	c.begun(1)
	before := c.end("ended")

	c.failover()
	c.env.DB.Reset()
	c.lab.tell(t, "runs", Order{})
	c.kept(before)
	c.end("runs")
	for first, key := range map[string]string{"ended": "a", "runs": "b"} {
		name := "repeats " + first
		c.keyed(name, key, "", false)
		if r := c.env.Await(c.ids[name]); r.ReplayOf != c.env.Await(c.ids[first]).ID {
			t.Errorf("a call with the key of %q repeats %q: %s", first, r.ReplayOf, r.Result)
		}
	}
	if sent := c.lab.sentSoFar(); len(sent) != 2 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

// holdHeartbeats lets no heartbeat arrive on the standby after a worker has met it, until the result is called.
func (c *cells) holdHeartbeats() (letThem func()) {
	c.Helper()
	conn := c.connect(c.standby)
	before := c.at
	c.at = func(point string) {
		if before != nil {
			before(point)
		}
		if point != "after meet" {
			return
		}
		if _, err := conn.Exec(context.Background(), "begin; select from core_workers for update"); err != nil {
			c.Error(err)
		}
	}
	return func() { _ = conn.Close(context.Background()) }
}

// seldom makes the worker send heartbeats only when they are requested.
func seldom(o *worker.Options) { o.HeartbeatInterval, o.DeadAfter = time.Minute, 5*time.Minute }

// The claim is lost before its handler begins. The next one has the same number, and no heartbeat in between tells the
// worker that it no longer holds the call.
func TestAClaimThatAFailoverLostDoesNotBegin(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := idleCells(t, newPair(t))
	defer c.holdHeartbeats()()
	c.start(seldom)
	c.starts.Lock()
	c.claims.Lock()
	c.call("lab.send", "once", false)
	c.loseCommits()
	c.claims.Unlock()
	claimed := func(server string) func() bool {
		return func() bool { return c.ask(server, "select status from core_tool_calls") == "running" }
	}
	c.env.Until("the call is claimed", claimed(c.primary))
	c.failover()
	c.env.DB.Reset()
	c.env.Until("the call is claimed again", claimed(c.standby))
	c.starts.Unlock()
	c.end("once")
	c.worker.Stop()
	if sent := c.lab.sentSoFar(); len(sent) != 1 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

// A durable call is claimed again under the number of an attempt that still runs. Of the two, only one begins the step,
// although the first does not know whether its earlier try to begin it was accepted.
func TestTwoRunsOfAnAttemptAfterAFailoverBeginAStepOnce(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	c := idleCells(t, newPair(t))
	begins, dead, tries, again := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	var first, second sync.Once
	c.at = func(point string) {
		if point == "before began" {
			first.Do(func() { close(begins); <-dead })
		}
	}
	letThem := c.holdHeartbeats()
	defer letThem()
	c.start(seldom, func(o *worker.Options) {
		o.Log = o.Log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
			if strings.Contains(e.Message, "write a step, trying again") {
				second.Do(func() { close(tries); <-again })
			}
			return nil
		}))
	})
	c.claims.Lock()
	c.call("sender.flow", "once", false)
	c.loseCommits()
	c.claims.Unlock()
	<-begins
	c.killPrimary()
	c.signal(c.sender, syscall.SIGKILL)
	close(dead)
	<-tries
	c.promote()
	c.env.DB.Reset()
	c.env.Until("another run has sent and waits", func() bool {
		return c.ask(c.standby, "select status from core_tool_calls") == "waiting"
	})
	close(again)
	letThem()
	c.env.Answer(c.ids["once"], "yes", "go")
	c.end("once")
	c.worker.Stop()
	if sent := c.lab.sentSoFar(); len(sent) != 1 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

package worker_test

import (
	"context"
	"sync"
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/worker"
)

// Kin is a domain of durable handlers that send.
type Kin struct {
	lab *Lab
}

// Parent is kin.parent: its child sends. It waits for an answer, and returns the child's id.
func (k Kin) Parent(ctx context.Context, d *handlers.Durable, in Task) (Done, error) {
	child := handlers.Start[Done](d, "child", "lab.send", Task{Text: "child of " + in.Text})
	if _, err := child.Wait(ctx); err != nil {
		return Done{}, err
	}
	if _, err := handlers.Receive[string](d, "go").Wait(ctx); err != nil {
		return Done{}, err
	}
	return Done{Text: child.ID()}, nil
}

// Twice is kin.twice: it sends twice, and waits for an answer after each.
func (k Kin) Twice(ctx context.Context, d *handlers.Durable, _ Task) (Done, error) {
	for _, name := range []string{"first", "second"} {
		if _, err := handlers.StepOnce(ctx, d, name, func(context.Context) (Done, error) {
			k.lab.mu.Lock()
			defer k.lab.mu.Unlock()
			k.lab.sent = append(k.lab.sent, name)
			return Done{}, nil
		}); err != nil {
			return Done{}, err
		}
		if _, err := handlers.Receive[string](d, "after "+name).Wait(ctx); err != nil {
			return Done{}, err
		}
	}
	return Done{}, nil
}

var kinTools = labRegistry("1.0.0", tool{name: "lab.send"}, tool{name: "kin.parent", calls: []string{"lab.send"}},
	tool{name: "kin.twice"})

// kin returns cells with these tools, whose worker has not started.
func kin(t *testing.T) *cells {
	t.Helper()
	return newIdleCells(t, newPair(t), kinTools, func(lab *Lab) any { return Kin{lab} })
}

// untilListed waits until the last epoch lists these calls, as "tool what".
func (c *cells) untilListed(want string) {
	c.Helper()
	c.env.Until("these are listed: "+want, func() bool {
		return c.ask(c.standby, `select coalesce(string_agg(format('%s %s', tool_name, what), ', '
			order by tool_name, what), '') from gem.epoch_calls`) == want
	})
}

// startTwo starts two workers whose claims are held back. After the failover, the first one does not meet the server
// before the second has reached a point.
func (c *cells) startTwo(point string) (claims *[2]sync.RWMutex) {
	c.Helper()
	claims = new([2]sync.RWMutex)
	reached := make(chan struct{})
	var once sync.Once
	for i := range claims {
		claims[i].Lock()
		c.env.StartWorker(func(o *worker.Options) {
			o.Concurrency = 30
			worker.SetHook(o, func(at string) {
				switch {
				case at == "before claim":
					claims[i].RLock()
					defer claims[i].RUnlock()
				case at == "before meet" && i == 0:
					<-reached
				case at == point && i == 1:
					once.Do(func() { close(reached) })
				}
			})
		})
	}
	return claims
}

// The child is put back, and with it its place in the journal of its parent, which would otherwise make another one.
func TestAChildIsRestoredWithItsPlaceInTheParentsJournal(t *testing.T) {
	t.Parallel()
	c := kin(t)
	c.start()
	c.claims.Lock()
	c.call("kin.parent", "p", false)
	c.loseCommits()
	c.claims.Unlock()
	c.env.UntilItWaits(c.ids["p"], "answer")
	c.failover()
	c.env.DB.Reset()
	c.env.UntilItWaits(c.ids["p"], "answer")
	c.env.Answer(c.ids["p"], "x", "go")
	r := c.env.Await(c.ids["p"])
	child := c.ask(c.standby, "select id::text from core_tool_calls where tool_name = 'lab.send'")
	if got := handlertest.Output[Done](t, r).Text; got != child {
		t.Errorf("the child is %s, and the handler had %s", child, got)
	}
	if sent := c.lab.sentSoFar(); len(sent) != 1 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

func TestAnEndWhoseParentIsMissingTooIsListed(t *testing.T) {
	testdb.Long(t, "TestAChildIsRestoredWithItsPlaceInTheParentsJournal")
	t.Parallel()
	c := kin(t)
	c.start()
	c.loseCommits()
	c.call("kin.parent", "p", false)
	c.env.UntilItWaits(c.ids["p"], "answer")
	c.failover()
	c.env.DB.Reset()
	c.untilListed("lab.send missing")
	sound(t, c.env)
}

// The call ended before the one that it names as its parent.
func TestACallIsRestoredAfterTheParentThatItNames(t *testing.T) {
	testdb.Long(t, "TestAChildIsRestoredWithItsPlaceInTheParentsJournal")
	t.Parallel()
	c := kin(t)
	c.start()
	c.loseCommits()
	c.call("lab.send", "parent", true)
	c.begun(1)
	c.ids["child"] = testdb.Value[string](t, c.env.DB, `insert into core_tool_calls (tool_name, input, parent_call_id)
		values ('lab.send', '{"text": "child"}', $1) returning id::text`, c.ids["parent"])
	before := c.end("child")
	c.lab.tell(t, "parent", Order{})
	before["parent"] = c.end("parent")["parent"]
	c.failover()
	c.env.DB.Reset()
	c.untilListed("lab.send restored, lab.send restored")
	c.kept(before)
	sound(t, c.env)
}

func TestAStepThatRanInAMissingCallIsListed(t *testing.T) {
	testdb.Long(t, "TestAChildIsRestoredWithItsPlaceInTheParentsJournal")
	t.Parallel()
	c := kin(t)
	c.start()
	c.loseCommits()
	c.call("kin.twice", "t", false)
	c.env.UntilItWaits(c.ids["t"], "answer")
	c.failover()
	c.env.DB.Reset()
	c.untilListed("kin.twice missing")
}

// Each worker has run one of the steps, and the later one puts its step back first.
func TestStepsOfTwoWorkersAreRestoredInAnyOrder(t *testing.T) {
	testdb.Long(t, "TestAChildIsRestoredWithItsPlaceInTheParentsJournal")
	t.Parallel()
	c := kin(t)
	claims := c.startTwo("after meeting")
	c.call("kin.twice", "t", false)
	id := c.ids["t"]
	c.loseCommits()
	claims[0].Unlock()
	c.env.UntilItWaits(id, "answer")
	claims[0].Lock()
	claims[1].Unlock()
	c.env.Answer(id, "x", "after first")
	c.env.Until("the second step has run", func() bool {
		return c.ask(c.primary, "select count(*)::text from core_tool_events where event = 'step'") == "2"
	})
	c.failover()
	c.env.DB.Reset()
	claims[0].Unlock()
	c.env.Answer(id, "x", "after first")
	c.env.Answer(id, "x", "after second")
	if e := handlertest.ErrorOf(t, c.env.Await(id)); e.Code != "outcome_unknown" {
		t.Errorf("%+v", e)
	}
	if sent := c.lab.sentSoFar(); len(sent) != 2 {
		t.Errorf("the effects: %v", sent)
	}
	sound(t, c.env)
}

// The first worker knows that the key became free, and the second that its call then succeeded with it.
func TestAKeyThatTwoWorkersHeldInTurnIsRestoredInAnyOrder(t *testing.T) {
	testdb.Long(t, "TestAChildIsRestoredWithItsPlaceInTheParentsJournal")
	t.Parallel()
	c := idleCells(t, newPair(t))
	claims := c.startTwo("after restore")
	claims[0].Unlock()
	c.keyed("first", "a", "fail", true)
	c.begun(1)
	c.keyed("second", "a", "", false)
	c.env.UntilItWaits(c.ids["second"], "key")
	claims[0].Lock()
	claims[1].Unlock()
	c.loseCommits()
	c.lab.tell(t, "first", Order{})
	before := c.end("first", "second")
	c.failover()
	c.env.DB.Reset()
	claims[0].Unlock()
	c.kept(before)
	c.keyed("third", "a", "", false)
	if r := c.env.Await(c.ids["third"]); r.ReplayOf != before["second"] {
		t.Errorf("the third call repeats %q: %s", r.ReplayOf, r.Result)
	}
	sound(t, c.env)
}

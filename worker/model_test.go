package worker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"
)

// The model of a call: what the state machine in SQL must do, said again in the simplest way.
type modelCall struct {
	ID       string
	Status   string
	Attempt  int
	Holder   string
	Priority int
	Key      string // held, or waited for
	Retries  int
	Losses   int
	Kills    int
	Durable  bool
	Cancel   bool
	Journal  []string
	Receipts int

	tool   string
	input  string
	code   string    // of its failure
	runAt  time.Time // its place in its priority: moves when it is retried, and to its turn
	gated  int       // the attempt that was at the gate
	ruled  int       // the attempt that wrote what rules said
	digest string    // of a question that a rule puts
	asked  time.Time // when it asked the question
	hit    string    // the key that was a hit for the attempt that runs
	awaits string    // the name that its handler waits for; sleeping if it does not name a child
	parent *modelCall
	name   string // under which its parent made it
	due    int    // when its parent should learn of its end, or its children should end; 0: neither
	untold bool
	waited string // the key for which it waited last

	answers map[string]int
}

func (c *modelCall) final() bool { return c.Receipts > 0 }

func (c *modelCall) depth() int {
	if c.parent == nil {
		return 0
	}
	return c.parent.depth() + 1
}

// modelAttempt is an attempt that some worker believes it holds.
type modelAttempt struct {
	call   string
	number int
	worker string
}

type model struct {
	calls     []*modelCall
	alive     map[string]bool
	succeeded map[string]bool // keys
	attempts  []modelAttempt  // all that ever were: late ones too
	memory    rules.Memory
	denied    map[string]bool // by call: a person said no
	dues      int
}

func (m *model) children(c *modelCall) (open []*modelCall) {
	for _, child := range m.calls {
		if child.parent == c && !child.final() {
			open = append(open, child)
		}
	}
	return open
}

// end ends a call. Its parent is notified at once, or when the timers run next.
func (m *model) end(c *modelCall, status, code string, told bool) {
	c.awaits = ""
	c.move(status, status)
	c.Receipts, c.code = c.Receipts+1, code
	if len(m.children(c)) > 0 || c.parent != nil && !told {
		m.dues++
		c.due, c.untold = m.dues, c.parent != nil && !told
	}
	if told {
		m.tell(c)
	}
}

// tell tells a call's parent of its end.
func (m *model) tell(c *modelCall) {
	p := c.parent
	if p == nil || p.final() {
		return
	}
	p.Journal = append(p.Journal, "returned")
	if p.Status == "waiting" && p.awaits == c.name {
		m.wake(p)
	}
}

func (m *model) wake(c *modelCall) {
	c.awaits = ""
	c.move("queued", "woken")
}

// cancel asks for a call's end, and returns the result.
func (m *model) cancel(c *modelCall) string {
	if c.digest != "" && len(c.answers) > 0 && !c.final() { // it ends with its answer
		return "requested"
	}
	switch c.Status {
	case "running":
		if !c.Cancel {
			c.Cancel = true
			c.Journal = append(c.Journal, "cancel_requested")
		}
		return "requested"
	case "queued", "waiting":
		// its handler may clean up
		if c.Durable && c.Attempt > 0 && !c.Cancel && (c.Status == "queued" || c.awaits != "") {
			c.Cancel = true
			c.Journal = append(c.Journal, "cancel_requested")
			if c.Status == "waiting" {
				m.wake(c)
			}
			return "requested"
		}
		c.Cancel, c.Key = true, ""
		m.end(c, "failed", "cancelled", false)
		return "cancelled"
	}
	return c.Status
}

// takeKey returns the verdict on an attempt's request for a key.
func (m *model) takeKey(c *modelCall, k string) store.KeyVerdict {
	held := m.held(k, c)
	switch {
	case m.succeeded[k]:
		c.hit = k
		m.free(k, true)
		return store.KeyHit
	case held && slices.ContainsFunc(m.above(c), func(p *modelCall) bool { return m.holdsKey(p, k) }):
		return store.KeyDeadlock
	case held && c.Cancel:
		m.putBack(c, "released")
		return store.KeyBusy
	case held:
		c.Key, c.waited = k, k
		c.move("waiting", "waiting")
		return store.KeyBusy
	}
	c.Key = k
	return store.KeyTaken
}

// question returns what was asked about a call under a name.
func (m *model) question(c *modelCall, name string) *modelCall {
	i := slices.IndexFunc(m.calls, func(q *modelCall) bool { return q.parent == c && q.name == name })
	if i < 0 {
		return nil
	}
	return m.calls[i]
}

// ask lets a call wait for people. It returns the name of the question, and whether it is a new one.
func (m *model) ask(c *modelCall, digest string) (name string, asked bool) {
	name = "##" + digest
	for n := 2; ; n++ {
		if q := m.question(c, name); q == nil || q.code != "cancelled" {
			break
		}
		name = fmt.Sprintf("##%s#%d", digest, n)
	}
	m.withdraw(c, name)
	if asked = m.question(c, name) == nil; asked {
		c.Journal = append(c.Journal, "called ##question")
	}
	freed := c.Key
	c.Key, c.Kills, c.awaits, c.waited = "", 0, name, ""
	c.move("waiting", "waiting")
	m.free(freed, false)
	return name, asked
}

// withdraw ends the open questions about a call, except one.
func (m *model) withdraw(c *modelCall, but string) {
	for _, q := range m.children(c) {
		if q.digest != "" && q.name != but && !q.Cancel {
			m.cancel(q)
		}
	}
}

// held says whether another call has a key.
func (m *model) held(k string, by *modelCall) bool {
	return slices.ContainsFunc(m.calls, func(o *modelCall) bool { return o != by && m.holdsKey(o, k) })
}

func (m *model) holdsKey(c *modelCall, k string) bool {
	return c.Key == k && (c.Status == "running" || c.Status == "queued" || c.Status == "waiting" && c.awaits != "")
}

// above are the calls on whose behalf a call was made.
func (m *model) above(c *modelCall) (all []*modelCall) {
	for p := c.parent; p != nil; p = p.parent {
		all = append(all, p)
	}
	return all
}

// putBack takes a call back into the queue. A durable one keeps its key.
func (m *model) putBack(c *modelCall, event string) {
	freed := c.Key
	c.move("queued", event)
	if c.Durable {
		return
	}
	c.Key = ""
	m.free(freed, false)
}

func (m *model) call(id string) *modelCall {
	i := slices.IndexFunc(m.calls, func(c *modelCall) bool { return c.ID == id })
	return m.calls[i]
}

func (c *modelCall) move(status, event string) {
	c.Status = status
	c.Journal = append(c.Journal, event)
	if status != "running" && status != "failed" && status != "succeeded" && status != "not_configured" {
		c.Holder = ""
	}
}

// free ends a call's hold on its key, and wakes who waits for it: all after a success, else the first.
func (m *model) free(key string, all bool) {
	if key == "" {
		return
	}
	waiting := m.in("waiting", func(c *modelCall) bool { return c.Key == key && c.awaits == "" })
	slices.SortStableFunc(waiting, func(a, b *modelCall) int {
		return cmp.Or(cmp.Compare(a.tool, b.tool), b.Priority-a.Priority)
	})
	if !all && len(waiting) > 1 {
		waiting = waiting[:1]
	}
	for _, c := range waiting {
		c.Key = ""
		c.move("queued", "woken")
	}
}

func (m *model) in(status string, also func(*modelCall) bool) []*modelCall {
	var found []*modelCall
	for _, c := range m.calls {
		if c.Status == status && also(c) {
			found = append(found, c)
		}
	}
	return found
}

// claim says which calls a claim takes: the first in their order, and of suspects at most the first one.
func (m *model) claim(now time.Time, limit int, suspect, steps bool) []*modelCall {
	ready := m.in("queued", func(c *modelCall) bool {
		return !c.runAt.After(now) && (steps || !c.Durable && c.parent == nil)
	})
	slices.SortStableFunc(ready, func(a, b *modelCall) int {
		return cmp.Or(b.Priority-a.Priority, a.runAt.Compare(b.runAt))
	})
	ready = slices.DeleteFunc(ready, func(c *modelCall) bool {
		left := c.Kills >= 2 && !suspect
		suspect = suspect && c.Kills < 2
		return left
	})
	return ready[:min(len(ready), limit)]
}

// holds says whether an attempt may still move its call.
func (m *model) holds(a modelAttempt) bool {
	c := m.call(a.call)
	return c.Status == "running" && c.Attempt == a.number && c.Holder == a.worker
}

// The state machine in SQL does what the model does, whatever happens in whatever order: three workers claim, finish,
// retry, release, lose their heartbeat and come back late, while frontends insert and cancel, and rules block calls,
// let them wait for their turn, and ask.
func TestTheStateMachineFollowsItsModel(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	judges := modelRules(t, db)
	drawMany()
	met := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		emptyDatabase(t, db)
		run(rt, db, judges, met)
		auditJournals(rt, db)
	})
	t.Log("met by rules:", met)
}

// drawMany sets how many random runs a test has, and their length, once for all tests.
var drawMany = sync.OnceFunc(func() {
	checks := "10"
	if testdb.IsLong() {
		checks = "300"
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": "60"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
})

// judging is a version of the rules.
type judging struct {
	version string
	judge   *rules.Judge
	tools   map[string]*registry.Tool
}

// modelRules are the versions by which calls are judged: their third asks no more, and the question of the second is
// another.
func modelRules(t *testing.T, db *pgxpool.Pool) (judges []judging) {
	t.Helper()
	const (
		common = `{"name": "no_secrets", "tools": ["t.*"], "action": "block", "when": {"input": {"text": {"pattern": "secret"}}}},
			{"name": "few", "tools": ["t.*"], "action": "block", "when": {"input": {"text": {"pattern": "some"}}}, "limit": {"max": 1, "within": "1h"}},
			{"name": "pace", "tools": ["t.*"], "action": "wait", "when": {"input": {"text": {"pattern": "slow"}}}, "limit": {"max": 1, "within": "30m"}}`
		asks = `, {"name": "dear", "tools": ["t.*"], "action": "ask", "when": {"input": {"text": {"pattern": "dear"}}}, "ask": {"of": ["finance"], "within": "1h"}, "say": `
	)
	tools, err := registry.Parse(labRegistry("1.0.0", tool{name: "t.x"}, tool{name: "t.y"}))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*registry.Tool{}
	for _, entry := range tools.Tools() {
		byName[entry.Name] = entry
	}
	for version, last := range []string{asks + `"Think."}`, asks + `"Think twice."}`, ""} {
		set, err := rules.Parse(fmt.Appendf(nil, `{"version": "1.0.%d", "rules": [%s%s]}`, version, common, last))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := store.RecordRules(t.Context(), db, set.Version, set.SHA256(), set.JSON(), set.Longest()); err != nil {
			t.Fatal(err)
		}
		judges = append(judges, judging{set.Version, set.For(tools), byName})
	}
	if _, err := db.Exec(t.Context(), `
		insert into gem.roles (subject, role) values (session_user, 'finance');
		create table public.clock as select interval '0' as ahead;
		create or replace function gem.now() returns timestamptz
			language sql volatile as 'select pg_catalog.clock_timestamp() + ahead from public.clock'`); err != nil {
		t.Fatal(err)
	}
	return judges
}

// auditJournals asks whether the journals replay to the rows, and the counters hold what the rules say.
func auditJournals(rt *rapid.T, db *pgxpool.Pool) {
	var skip []string
	for _, c := range audit.Checks {
		if !strings.HasPrefix(c.Name, "journal-") && !strings.HasPrefix(c.Name, "child-") &&
			!strings.HasPrefix(c.Name, "rule-") {
			skip = append(skip, c.Name)
		}
	}
	report, err := audit.Database(context.Background(), db, audit.Options{Skip: skip})
	if err != nil {
		rt.Fatal(err)
	}
	for _, check := range report.Checks {
		if check.Error != "" || check.Found > 0 {
			rt.Fatalf("audit: %+v", check)
		}
	}
}

func emptyDatabase(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	if _, err := db.Exec(t.Context(), `
		set session_replication_role = replica; -- past the guards
		delete from core_tool_receipts; delete from core_tool_events; delete from core_tool_calls; delete
			from core_workers; delete from gem.rule_runs;
		update public.clock set ahead = '0';
		set session_replication_role = origin`); err != nil {
		t.Fatal(err)
	}
}

func run(rt *rapid.T, db *pgxpool.Pool, judges []judging, met map[string]int) {
	ctx := context.Background()
	m := &model{alive: map[string]bool{}, succeeded: map[string]bool{}, denied: map[string]bool{}}
	workers := []string{"a", "b", "c"}
	exec := func(sql string, args ...any) {
		rt.Helper()
		if _, err := db.Exec(ctx, sql, args...); err != nil {
			rt.Fatalf("%s %v: %v", sql, args, err)
		}
	}
	// refused runs a statement of an attempt, and says whether it was refused because the attempt holds nothing.
	refused := func(err error) bool {
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "GM001" {
			return true
		}
		if err != nil {
			rt.Fatal(err)
		}
		return false
	}
	for _, w := range workers {
		exec("select gem.start_worker($1, 5, '', '', '1 hour', case when $1 = 'c' then '{}'::text[] else '{steps}' end)", w)
		m.alive[w] = true
	}
	worker := rapid.SampledFrom(workers)
	answerName := rapid.SampledFrom([]string{"q", "r"})
	attempt := func(rt *rapid.T) modelAttempt {
		if len(m.attempts) == 0 {
			rt.Skip("nobody has claimed yet")
		}
		among := m.attempts
		if holding := slices.DeleteFunc(slices.Clone(among),
			func(a modelAttempt) bool { return !m.holds(a) }); len(holding) > 0 &&
			rapid.IntRange(0, 3).Draw(rt, "late") > 0 {
			among = holding
		}
		return rapid.SampledFrom(among).Draw(rt, "attempt")
	}
	key := rapid.SampledFrom([]string{"k1", "k1", "k2"})
	text := rapid.SampledFrom([]string{"slow some", "dear", "slow", "dear some", "some", "dear slow some", "", "secret"})
	now := func() (now time.Time) {
		rt.Helper()
		if err := db.QueryRow(ctx, "select gem.now()").Scan(&now); err != nil {
			rt.Fatal(err)
		}
		return now
	}
	// finish ends a call by an attempt that holds it.
	finish := func(rt *rapid.T, a modelAttempt, status, code, result string, replay *string) {
		rt.Helper()
		_, err := db.Exec(ctx, "select gem.finish($1, $2, $3, $4, $5, '{}', '1', $6)", a.call, a.number, a.worker, status,
			result, replay)
		if refused(err) != !m.holds(a) {
			rt.Fatalf("%+v: %v", a, err)
		}
		if !m.holds(a) {
			return
		}
		c := m.call(a.call)
		m.end(c, status, code, true)
		if status == "succeeded" && c.Key != "" {
			m.succeeded[c.Key] = true
		}
		m.free(c.Key, status == "succeeded")
		if c.Key == "" && replay == nil && a.number > 1 { // it was woken for a key, and did not take it
			m.free(c.waited, false)
		}
	}

	// gate brings an attempt to the gate, after what rules say of its call alone.
	gate := func(rt *rapid.T, a modelAttempt) {
		versions := []judging{judges[0], judges[0], judges[1], judges[2]}
		if a.number > 1 { // rules have often changed while the call waited
			slices.Reverse(versions)
		}
		k, by := rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(rt, "key"),
			rapid.SampledFrom(versions).Draw(rt, "rules")
		c := m.call(a.call)
		if m.holds(a) {
			k = cmp.Or(c.Key, c.hit, k)
		}
		open := map[bool]time.Duration{true: 366 * 24 * time.Hour}[rapid.IntRange(0, 2).Draw(rt, "its questions wait") > 0]
		judgement := by.judge.Judge(rules.Call{ID: c.ID, Tool: by.tools[c.tool], Input: json.RawMessage(c.input)})
		answer := rules.Answer{Outcome: rules.Passed}
		if len(judgement.Checks) > 0 {
			again := a.number > 1 || c.gated == a.number
			held, got, err := store.Gate{Key: k, Checks: judgement.Checks, Version: by.version, Again: again, Open: open}.Do(
				ctx, db, store.Attempt{CallID: a.call, Number: a.number, WorkerID: a.worker})
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if !m.holds(a) {
				return
			}
			want := store.KeyTaken
			denied := m.denied[c.ID]
			if k != "" && denied {
				met["denied, with a key"]++
			} else if k != "" {
				want = m.takeKey(c, k)
			}
			if held.Verdict != want || (got.Outcome == "") != (want != store.KeyTaken) {
				rt.Fatalf("%s and %s, want %s", held.Verdict, got.Outcome, want)
			}
			if want != store.KeyTaken {
				return
			}
			c.gated, answer = a.number, got
			if c.Cancel && (got.Outcome == rules.Asked || got.Outcome == rules.Delayed) {
				m.putBack(c, "released")
				return
			}
			if want := m.memory.Gate(got.At, rules.MemoryCall{ID: c.ID}, judgement.Checks); got.Outcome != want.Outcome ||
				got.Outcome == rules.Delayed && !got.StartsAt.Equal(want.StartsAt) {
				rt.Fatalf("the gate says %+v, want %+v", got, want)
			}
			if got.Outcome != rules.Asked && got.Outcome != rules.Delayed && (got.Outcome != rules.Passed || again) {
				m.withdraw(c, "")
			}
		}
		if !m.holds(a) {
			return
		}
		met[string(answer.Outcome)]++
		switch ruling := judgement.Rule(by.version, answer); {
		case answer.Outcome == rules.Delayed:
			m.putBack(c, "delayed")
			c.runAt = answer.StartsAt
		case answer.Outcome == rules.Asked:
			digest := judgement.Checks[slices.IndexFunc(judgement.Checks,
				func(k rules.Check) bool { return k.Digest != "" })].Digest
			if name, asked := m.ask(c, digest); asked {
				q := &modelCall{Status: "queued", Priority: c.Priority, Journal: []string{"queued"}, tool: "wait.approval",
					parent: c, name: name, digest: digest}
				if err := db.QueryRow(ctx, "select id::text, run_at from core_tool_calls where parent_call_id = $1 and "+
					"parent_step = $2", c.ID, name).Scan(&q.ID, &q.asked); err != nil {
					rt.Fatalf("the question %s: %v", name, err)
				}
				q.runAt = q.asked
				if open > 0 {
					q.Durable, q.awaits = true, "#answer"
					q.move("waiting", "waiting")
				}
				m.calls = append(m.calls, q)
			} else {
				met["asked, and nothing new"]++
			}
		case ruling.Code != "" && rapid.IntRange(0, 3).Draw(rt, "its worker lives on") > 0:
			met[ruling.Code]++
			finish(rt, a, "failed", ruling.Code, fmt.Sprintf(`{"error": {"error_code": %q, "message": "y"}}`, ruling.Code), nil)
		case ruling.Code == "" && rapid.Bool().Draw(rt, "its handler is durable"):
			if err := store.NoteRuling(ctx, db, store.Attempt{CallID: a.call, Number: a.number, WorkerID: a.worker},
				json.RawMessage("{}")); err != nil {
				rt.Fatal(err)
			}
			if c.ruled != a.number {
				c.ruled = a.number
				c.Journal = append(c.Journal, "ruled")
			}
		}
	}

	// decided ends a question that no worker has claimed: 1 is a yes, 2 a no, 0 that nobody answered in time.
	decided := func(c *modelCall, value int) {
		m.memory.Decided(rules.Decision{CallID: c.parent.ID, Rule: "dear", Digest: c.digest,
			Outcome: [...]rules.Outcome{rules.Expired, rules.Passed, rules.Denied}[value]})
		m.end(c, "succeeded", "", false)
		met[fmt.Sprint("decided without a claim: ", value)]++
	}
	answered := func(c *modelCall, name string, value int) {
		c.answers = maps.Clone(c.answers)
		if c.answers == nil {
			c.answers = map[string]int{}
		}
		c.answers[name] = value
		c.Journal = append(c.Journal, "answered")
		if c.digest != "" && value == 2 {
			m.memory.Denied(rules.Decision{CallID: c.parent.ID, Rule: "dear", Digest: c.digest, Outcome: rules.Denied,
				By: "eve"})
			m.denied[c.parent.ID] = true
		}
		switch {
		case c.Status != "waiting" || c.awaits != "#"+name:
		case c.Attempt == 0:
			decided(c, value)
		default:
			m.wake(c)
		}
	}
	mayAnswer := func(c *modelCall) bool {
		return !c.final() && !c.Cancel && !now().After(c.asked.Add(50*time.Minute)) // its time is not over
	}
	// decide answers a question: 1 is a yes, 2 a no, which counts at once.
	decide := func(rt *rapid.T, c *modelCall, value int) {
		answer := fmt.Sprintf(`{"approved": %t}`, value == 1)
		if _, err := db.Exec(ctx, "select answer_tool_call($1, $2)", c.ID, answer); err != nil {
			rt.Fatalf("the answer to %+v: %v", c, err)
		}
		answered(c, "answer", value)
	}

	// end ends an attempt as its handler may. That of a question decides it.
	end := func(rt *rapid.T, a modelAttempt) {
		status := rapid.SampledFrom([]string{"succeeded", "succeeded", "failed", "not_configured"}).Draw(rt, "status")
		result := map[string]string{"succeeded": `{}`,
			"not_configured": `{"status": "not_configured", "reason": "z"}`}[status]
		var replay *string
		if m.holds(a) && status == "succeeded" && m.call(a.call).hit != "" {
			if err := db.QueryRow(ctx, "select id::text from core_tool_receipts where idempotency_key = $1 and status = "+
				"'succeeded' and replay_of is null", m.call(a.call).hit).Scan(&replay); err != nil {
				rt.Fatal(err)
			}
		}
		code, c := "", m.call(a.call)
		if status == "failed" {
			code = "x"
			if c.Cancel {
				code = "cancelled"
			}
			result = fmt.Sprintf(`{"error": {"error_code": %q, "message": "y"}}`, code)
		}
		if c.digest != "" {
			d := rules.Decision{CallID: c.parent.ID, Rule: "dear", Digest: c.digest, Outcome: rules.Unasked}
			if status == "succeeded" {
				if m.holds(a) && len(c.answers) == 0 && mayAnswer(c) && rapid.IntRange(0, 2).Draw(rt, "someone decides") > 0 {
					decide(rt, c, rapid.IntRange(1, 2).Draw(rt, "decision"))
				}
				d.Outcome = [...]rules.Outcome{rules.Expired, rules.Passed, rules.Denied}[c.answers["answer"]]
				result = map[rules.Outcome]string{rules.Passed: `{"approved": true, "by": "eve"}`,
					rules.Denied:  `{"approved": false, "by": "eve"}`,
					rules.Expired: `{"approved": false, "reason": "expired"}`}[d.Outcome]
			}
			if code != "cancelled" && m.holds(a) {
				m.memory.Decided(d)
			}
		}
		finish(rt, a, status, code, result, replay)
	}

	timers := func() {
		exec("update core_tool_calls set wake_at = now() - interval '1 day' where status = 'waiting' and waits_for = 'time'")
		for left := true; left; { // a run takes a second at most, and may put off what is locked
			exec("select gem.run_timers('a', 1000)")
			err := db.QueryRow(ctx, "select exists (select from core_tool_calls where wake_at < now() + interval '2 s')").
				Scan(&left)
			if err != nil {
				rt.Fatal(err)
			}
		}
		for first := true; ; first = false { // a call that ends by this may have children of its own
			due := slices.DeleteFunc(slices.Clone(m.calls), func(c *modelCall) bool { return c.due == 0 })
			slices.SortFunc(due, func(a, b *modelCall) int { return a.due - b.due })
			for _, c := range due {
				if c.untold {
					m.tell(c)
				}
				for _, child := range m.children(c) {
					if !child.Cancel {
						m.cancel(child)
					}
				}
				c.due, c.untold = 0, false
			}
			for _, c := range m.in("waiting", func(c *modelCall) bool { return first && c.awaits == "a time" }) {
				m.wake(c)
			}
			late := m.in("waiting", func(c *modelCall) bool {
				return c.digest != "" && c.Attempt == 0 && now().After(c.asked.Add(time.Hour))
			})
			for _, c := range late {
				c.Journal = append(c.Journal, "timed_out")
				decided(c, 0)
			}
			if len(due)+len(late) == 0 {
				return
			}
		}
	}

	rt.Repeat(map[string]func(*rapid.T){ // the first names are drawn most often
		"a call comes": func(rt *rapid.T) {
			for range rapid.IntRange(1, 3).Draw(rt, "calls") {
				c := &modelCall{Status: "queued", Priority: rapid.SampledFrom([]int{0, 0, 0, 5, -5}).Draw(rt, "priority"),
					Journal: []string{"queued"},
					tool:    "t.x", input: task(Task{Text: text.Draw(rt, "text")})}
				later := rapid.IntRange(0, 9).Draw(rt, "later") == 9
				if err := db.QueryRow(ctx, `insert into core_tool_calls (tool_name, input, priority, run_at)
					values ($1, $2, $3, gem.now() + make_interval(years => $4))
					returning id::text, run_at`, c.tool, c.input, c.Priority, map[bool]int{true: 1}[later]).Scan(&c.ID,
					&c.runAt); err != nil {
					rt.Fatal(err)
				}
				m.calls = append(m.calls, c)
			}
		},
		"a claim": func(rt *rapid.T) {
			w, limit, suspect := worker.Draw(rt, "worker"), rapid.SampledFrom([]int{3, 4, 2, 1, 0}).Draw(rt, "limit"),
				rapid.Bool().Draw(rt, "suspect")
			at := now()
			rows, err := db.Query(ctx, "select id::text from gem.claim($1, $2, $3)", w, limit, suspect)
			if err != nil {
				rt.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			var pgErr *pgconn.PgError
			if dead := errors.As(err, &pgErr) && pgErr.Code == "GM002"; dead != !m.alive[w] || err != nil && !dead {
				rt.Fatalf("a claim of %s, alive %t: %v", w, m.alive[w], err)
			}
			if !m.alive[w] {
				return
			}
			var want []string
			for _, c := range m.claim(at, limit, suspect, w != "c") {
				c.Holder, c.hit = w, ""
				c.move("running", "claimed")
				c.Attempt++
				m.attempts = append(m.attempts, modelAttempt{c.ID, c.Attempt, w})
				want = append(want, c.ID)
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(want, got) {
				rt.Fatalf("claimed %v, want %v", got, want)
			}
			for _, id := range want {
				switch c, a := m.call(id), (modelAttempt{id, m.call(id).Attempt, w}); {
				case !m.holds(a) || rapid.IntRange(0, 3).Draw(rt, "it goes on at once") == 0:
				case c.digest != "":
					end(rt, a)
				case !c.Durable:
					gate(rt, a)
				}
			}
		},
		"hold key": func(rt *rapid.T) {
			a, k := attempt(rt), key.Draw(rt, "key")
			if c := m.call(a.call); c.digest != "" || m.holds(a) && cmp.Or(c.Key, c.hit, k) != k {
				rt.Skip("a call has one key, and a question none")
			}
			var verdict store.KeyVerdict
			err := db.QueryRow(ctx, "select verdict from gem.hold_key($1, $2, $3, $4)", a.call, a.number, a.worker,
				k).Scan(&verdict)
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if !m.holds(a) {
				return
			}
			if want := m.takeKey(m.call(a.call), k); verdict != want {
				rt.Fatalf("%s, want %s", verdict, want)
			}
		},
		"gate": func(rt *rapid.T) {
			a := attempt(rt)
			if c := m.call(a.call); c.digest != "" || c.Durable {
				rt.Skip("it is a question, or made progress")
			}
			gate(rt, a)
		},
		"step": func(rt *rapid.T) {
			a, event := attempt(rt), rapid.SampledFrom([]string{"began", "step"}).Draw(rt, "event")
			_, err := db.Exec(ctx, "select gem.step($1, $2, $3, $4, jsonb_build_object('name', gen_random_uuid()), (select "+
				"steps from core_tool_calls where id = $1), false)",
				a.call, a.number, a.worker, event)
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if m.holds(a) {
				c := m.call(a.call)
				c.Durable, c.Retries, c.Losses = true, 0, 0
				c.Journal = append(c.Journal, event)
			}
		},
		"finish": func(rt *rapid.T) { end(rt, attempt(rt)) },
		"retry": func(rt *rapid.T) {
			a, attempts := attempt(rt), rapid.IntRange(1, 4).Draw(rt, "max attempts")
			var at *time.Time
			err := db.QueryRow(ctx, "select gem.retry($1, $2, $3, '{}', $4, '0')", a.call, a.number, a.worker,
				attempts).Scan(&at)
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if !m.holds(a) {
				return
			}
			c := m.call(a.call)
			if want := c.Retries+c.Losses+1 < attempts; (at != nil) != want {
				rt.Fatalf("again at %v, want %t", at, want)
			}
			if at != nil {
				c.Retries, c.runAt = c.Retries+1, *at
				m.putBack(c, "retried")
			}
		},
		"release": func(rt *rapid.T) {
			a := attempt(rt)
			_, err := db.Exec(ctx, "select gem.release($1, $2, $3)", a.call, a.number, a.worker)
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if m.holds(a) {
				m.putBack(m.call(a.call), "released")
			}
		},
		"make a call and wait for it": func(rt *rapid.T) {
			a := attempt(rt)
			c := m.call(a.call)
			if c.depth() >= 8 {
				rt.Skip("it may have no children")
			}
			child := &modelCall{Status: "queued", Priority: c.Priority, Journal: []string{"queued"}, parent: c,
				ID: uuid.NewString(), tool: "t.y",
				input: task(Task{Text: text.Draw(rt, "text")})}
			child.name = child.ID
			var verdict string
			err := db.QueryRow(ctx, `select verdict from gem.wait($1, $2, $3,
				jsonb_build_array(jsonb_build_object('id', $4::text, 'name', $4::text, 'tool', 't.y', 'input', $5::jsonb)),
				'call', array[$4::text], 1, '{}', null)`, a.call, a.number, a.worker, child.ID, child.input).Scan(&verdict)
			if refused(err) != !m.holds(a) || err == nil && (verdict == "cancelled") != c.Cancel {
				rt.Fatalf("%+v: %s %v", a, verdict, err)
			}
			if m.holds(a) && !c.Cancel {
				c.Durable, c.Retries, c.Losses, c.Kills, c.awaits, c.waited = true, 0, 0, 0, child.name, ""
				c.Journal = append(c.Journal, "called")
				c.move("waiting", "waiting")
				if err := db.QueryRow(ctx, "select run_at from core_tool_calls where id = $1",
					child.ID).Scan(&child.runAt); err != nil {
					rt.Fatal(err)
				}
				m.calls = append(m.calls, child)
			}
		},
		"sleep": func(rt *rapid.T) {
			a, over := attempt(rt), rapid.Bool().Draw(rt, "over")
			c := m.call(a.call)
			var verdict string
			err := db.QueryRow(ctx, `select verdict from gem.wait($1, $2, $3, '[]', 'time', array[$4::text], 1,
				jsonb_build_object($4::text, $5::bigint), null)`,
				a.call, a.number, a.worker, uuid.NewString(), map[bool]int64{true: 0, false: 365 * 24 * 3600_000}[over]).
				Scan(&verdict)
			if refused(err) != !m.holds(a) || err == nil && (verdict == "cancelled") != c.Cancel || verdict == "here" && !over {
				rt.Fatalf("%+v: %s %v", a, verdict, err)
			}
			switch {
			case !m.holds(a) || c.Cancel:
			case over:
				c.Durable, c.Retries, c.Losses = true, 0, 0
				c.Journal = append(c.Journal, "timed_out")
			default:
				c.Durable, c.Retries, c.Losses, c.Kills, c.awaits, c.waited = true, 0, 0, 0, "a time", ""
				c.move("waiting", "waiting")
			}
		},
		"wait for an answer": func(rt *rapid.T) {
			a, name := attempt(rt), answerName.Draw(rt, "name")
			c := m.call(a.call)
			if c.digest != "" {
				name = "answer"
			}
			_, here := c.answers[name]
			var verdict string
			err := db.QueryRow(ctx, "select verdict from gem.wait($1, $2, $3, '[]', 'answer', array['#' || $4], 1, '{}', null)",
				a.call, a.number, a.worker, name).Scan(&verdict)
			if refused(err) != !m.holds(a) || err == nil && (verdict == "cancelled") != (c.Cancel && !here) || err == nil &&
				(verdict == "here") != here {
				rt.Fatalf("%+v: %s %v", a, verdict, err)
			}
			if m.holds(a) && !c.Cancel && !here {
				c.Durable, c.Retries, c.Losses, c.Kills, c.awaits, c.waited = true, 0, 0, 0, "#"+name, ""
				c.move("waiting", "waiting")
			}
		},
		"answer": func(rt *rapid.T) {
			if len(m.calls) == 0 {
				rt.Skip("no calls")
			}
			among := m.in("waiting", func(c *modelCall) bool { return c.digest != "" })
			if len(among) == 0 || rapid.Bool().Draw(rt, "any call") {
				among = m.calls
			}
			c, name, value := rapid.SampledFrom(among).Draw(rt, "call"), answerName.Draw(rt, "name"),
				rapid.IntRange(1, 2).Draw(rt, "value")
			answer, open := fmt.Sprint(value), !c.final()
			if c.digest != "" {
				name, answer, open = "answer", fmt.Sprintf(`{"approved": %t}`, value == 1), open && !c.Cancel
				if now().After(c.asked.Add(50 * time.Minute)) {
					rt.Skip("its time may be over")
				}
			}
			given, already := c.answers[name]
			_, err := db.Exec(ctx, "select answer_tool_call($1, $2, $3)", c.ID, answer, name)
			taken, want := err == nil, already && given == value || !already && open
			if taken != want || !taken && !store.HasCode(err, "PT409") {
				rt.Fatalf("an answer to %+v: %v", c, err)
			}
			if err != nil || already {
				return
			}
			answered(c, name, value)
		},
		"a call is resumed": func(rt *rapid.T) {
			among := m.in("waiting", func(c *modelCall) bool { return c.awaits != "" })
			if len(among) == 0 || rapid.IntRange(0, 3).Draw(rt, "it waits") == 3 {
				among = m.calls
			}
			if len(among) == 0 {
				rt.Skip("no calls")
			}
			c := rapid.SampledFrom(among).Draw(rt, "call")
			var resumed bool
			if err := db.QueryRow(ctx, "select gem.resume($1)", c.ID).Scan(&resumed); err != nil ||
				resumed != (c.Status == "waiting" && c.awaits != "") {
				rt.Fatalf("resumed %t, %v", resumed, err)
			}
			if resumed {
				m.wake(c)
			}
		},
		"timers": func(*rapid.T) { timers() },
		"time passes": func(*rapid.T) { // what turns wait for, and nothing else here
			timers() // they are looked at more often
			exec(`with passed as (update public.clock set ahead = ahead + interval '40 minutes'),
				workers as (update core_workers set heartbeat_at = heartbeat_at + interval '40 minutes',
					alive_until = alive_until + interval '40 minutes')
				update core_tool_calls set updated_at = updated_at + interval '40 minutes' where status = 'waiting'
					and waits_for = 'key'`)
		},
		"fall silent": func(rt *rapid.T) {
			w := worker.Draw(rt, "worker")
			exec("update core_workers set alive_until = gem.now() where worker_id = $1", w)
			m.alive[w] = false
		},
		"stop": func(rt *rapid.T) {
			w := worker.Draw(rt, "worker")
			exec("select gem.stop_worker($1)", w)
			m.alive[w] = false
		},
		"a heartbeat": func(rt *rapid.T) {
			w := worker.Draw(rt, "worker")
			// A worker that stopped and beats again is one whose last heartbeat was still under way.
			var judges bool
			if err := db.QueryRow(ctx, "select alive_until > gem.now() from core_workers where worker_id = $1",
				w).Scan(&judges); err != nil {
				rt.Fatal(err)
			}
			rows, err := db.Query(ctx, "select call_id::text from gem.heartbeat($1, '1 hour', '{}', '{}', true) where verdict "+
				"= 'unknown'", w)
			if err != nil {
				rt.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				rt.Fatal(err)
			}
			m.alive[w] = true
			// it has been steady for long by its next heartbeat
			exec("update core_workers set steady_since = null where worker_id = $1", w)
			if judges {
				freed := map[string]bool{}
				for _, c := range m.in("running", func(c *modelCall) bool { return !m.alive[c.Holder] }) {
					if c.Key != "" && !c.Durable {
						freed[c.Key], c.Key = true, ""
					}
					c.Losses++
					c.Kills++
					c.move("queued", "lost")
				}
				for _, k := range slices.Sorted(maps.Keys(freed)) {
					m.free(k, false)
				}
			}
			if want := len(m.in("running", func(c *modelCall) bool { return c.Holder == w })); len(got) != want {
				rt.Fatalf("%s holds %d, want %d", w, len(got), want)
			}
		},
		"cancel": func(rt *rapid.T) {
			if len(m.calls) == 0 {
				rt.Skip("no calls")
			}
			c := rapid.SampledFrom(m.calls).Draw(rt, "call")
			var came string
			if err := db.QueryRow(ctx, "select cancel_tool_call($1)", c.ID).Scan(&came); err != nil {
				rt.Fatal(err)
			}
			if want := m.cancel(c); came != want {
				rt.Fatalf("it came to %s, want %s", came, want)
			}
		},
		"": func(rt *rapid.T) { compareWithModel(rt, db, m) },
	})
}

func compareWithModel(rt *rapid.T, db *pgxpool.Pool, m *model) {
	rows, err := db.Query(context.Background(), `
		select c.id::text, c.status, c.attempt, case when c.status = 'running' then c.claimed_by else '' end,
			c.priority, case when c.status in ('queued', 'running', 'waiting') then coalesce(c.computed_key, '') else '' end,
				c.retries, c.losses, c.kills, c.steps > 0,
			c.cancel_requested_at is not null, coalesce(j.events, '{}'), coalesce(c.error ->> 'error_code', ''),
			(select count(*) from core_tool_receipts r where r.call_id = c.id and r.status = c.status)::int
		from core_tool_calls c
		cross join lateral (select array_agg(e.event || case when e.data ->> 'name' like '##%'
			and e.event = 'called' then ' ##question' else '' end order by e.seq) events, count(*) n, max(e.seq) last
				from core_tool_events e where e.call_id = c.id) j
		where j.n = c.events and j.last = c.events order by c.seq`)
	if err != nil {
		rt.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var c modelCall
		err := row.Scan(&c.ID, &c.Status, &c.Attempt, &c.Holder, &c.Priority, &c.Key, &c.Retries, &c.Losses, &c.Kills,
			&c.Durable, &c.Cancel, &c.Journal, &c.code, &c.Receipts)
		return c.line(), err
	})
	if err != nil {
		rt.Fatal(err)
	}
	want := []string{}
	for _, c := range m.calls {
		want = append(want, c.line())
	}
	if diff := gocmp.Diff(want, append([]string{}, got...)); diff != "" {
		rt.Fatalf("model (-) and database (+):\n%s", diff)
	}
}

func (c *modelCall) line() string {
	holder, key := "", ""
	if c.Status == "running" {
		holder = c.Holder
	}
	if !c.final() {
		key = c.Key
	}
	return fmt.Sprint(c.ID, c.Status, c.Attempt, holder, c.Priority, key, c.Retries, c.Losses, c.Kills, c.Durable,
		c.Cancel, c.Journal, c.code, c.Receipts)
}

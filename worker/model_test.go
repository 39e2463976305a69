package worker_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testdb"
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

	place  int // in its priority: moves when it is retried
	later  bool
	hit    string // the key that was a hit for the attempt that runs
	awaits string // the name that its handler waits for; sleeping if it is no child's
	parent *modelCall
	name   string // under which its parent made it
	due    int    // when its parent is to be told of its end, or its children are to end; 0: neither
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
	places    int
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

// end ends a call. Its parent is told at once, or when timers are looked at next.
func (m *model) end(c *modelCall, status string, told bool) {
	c.awaits = ""
	c.move(status, status)
	c.Receipts++
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

// cancel asks for a call's end, and says what it came to.
func (m *model) cancel(c *modelCall) string {
	switch c.Status {
	case "running":
		if !c.Cancel {
			c.Cancel = true
			c.Journal = append(c.Journal, "cancel_requested")
		}
		return "requested"
	case "queued", "waiting":
		if c.Durable && !c.Cancel && (c.Status == "queued" || c.awaits != "") { // its handler may clean up
			c.Cancel = true
			c.Journal = append(c.Journal, "cancel_requested")
			if c.Status == "waiting" {
				m.wake(c)
			}
			return "requested"
		}
		c.Cancel, c.Key = true, ""
		m.end(c, "failed", false)
		return "cancelled"
	}
	return c.Status
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
	slices.SortStableFunc(waiting, func(a, b *modelCall) int { return b.Priority - a.Priority })
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

// claim says which calls a claim takes: one suspect first, then the others in their order.
func (m *model) claim(limit int, suspect, steps bool) []*modelCall {
	order := func(a, b *modelCall) int {
		return cmp.Or(b.Priority-a.Priority, a.place-b.place)
	}
	ready := m.in("queued", func(c *modelCall) bool { return !c.later && c.Kills < 2 && (steps || !c.Durable && c.parent == nil) })
	suspects := m.in("queued", func(c *modelCall) bool { return !c.later && c.Kills >= 2 && (steps || !c.Durable && c.parent == nil) })
	slices.SortFunc(ready, order)
	slices.SortFunc(suspects, order)
	var taken []*modelCall
	if suspect && limit > 0 && len(suspects) > 0 {
		taken = append(taken, suspects[0])
	}
	return append(taken, ready[:min(len(ready), limit-len(taken))]...)
}

// holds says whether an attempt may still move its call.
func (m *model) holds(a modelAttempt) bool {
	c := m.call(a.call)
	return c.Status == "running" && c.Attempt == a.number && c.Holder == a.worker
}

// The state machine in SQL does what the model does, whatever happens in whatever order: three workers claim, finish, retry,
// release, lose their heartbeat and come back late, while frontends insert and cancel.
func TestTheStateMachineFollowsItsModel(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	checks := "50"
	if os.Getenv("GEM_TEST_LONG") != "" {
		checks = "300"
	}
	if err := flag.Set("rapid.checks", checks); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		emptyDatabase(t, db)
		run(t, rt, db)
	})
}

func emptyDatabase(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	if _, err := db.Exec(t.Context(), `
		set session_replication_role = replica; -- past the guards
		delete from core_tool_receipts; delete from core_tool_events; delete from core_tool_calls; delete from core_workers;
		set session_replication_role = origin`); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, rt *rapid.T, db *pgxpool.Pool) {
	ctx := context.Background()
	m := &model{alive: map[string]bool{}, succeeded: map[string]bool{}}
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
		if holding := slices.DeleteFunc(slices.Clone(among), func(a modelAttempt) bool { return !m.holds(a) }); len(holding) > 0 &&
			rapid.IntRange(0, 3).Draw(rt, "late") > 0 {
			among = holding
		}
		return rapid.SampledFrom(among).Draw(rt, "attempt")
	}
	key := rapid.SampledFrom([]string{"k1", "k1", "k2"})

	rt.Repeat(map[string]func(*rapid.T){
		"insert": func(rt *rapid.T) {
			c := &modelCall{Status: "queued", Priority: rapid.SampledFrom([]int{0, 0, 0, 5, -5}).Draw(rt, "priority"),
				later: rapid.Float64Range(0, 1).Draw(rt, "later") < 0.1, Journal: []string{"queued"}, place: m.places}
			m.places++
			if err := db.QueryRow(ctx, "insert into core_tool_calls (tool_name, priority, run_at) values ('t.x', $1, now() + make_interval(hours => $2)) returning id::text",
				c.Priority, map[bool]int{true: 1}[c.later]).Scan(&c.ID); err != nil {
				rt.Fatal(err)
			}
			m.calls = append(m.calls, c)
		},
		"claim": func(rt *rapid.T) {
			w, limit, suspect := worker.Draw(rt, "worker"), rapid.IntRange(0, 4).Draw(rt, "limit"), rapid.Bool().Draw(rt, "suspect")
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
			for _, c := range m.claim(limit, suspect, w != "c") {
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
		},
		"hold key": func(rt *rapid.T) {
			a, k := attempt(rt), key.Draw(rt, "key")
			if c := m.call(a.call); m.holds(a) && c.Key != "" && c.Key != k {
				rt.Skip("a call has one key")
			}
			var verdict string
			err := db.QueryRow(ctx, "select verdict from gem.hold_key($1, $2, $3, $4)", a.call, a.number, a.worker, k).Scan(&verdict)
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if !m.holds(a) {
				return
			}
			c, want := m.call(a.call), "run"
			held := m.held(k, c)
			switch {
			case m.succeeded[k]:
				want, c.hit = "hit", k
				m.free(k, true)
			case held && slices.ContainsFunc(m.above(c), func(p *modelCall) bool { return m.holdsKey(p, k) }):
				want = "deadlock"
			case held && c.Cancel:
				want = "wait"
				m.putBack(c, "released")
			case held:
				want, c.Key, c.waited = "wait", k, k
				c.move("waiting", "waiting")
			default:
				c.Key = k
			}
			if verdict != want {
				rt.Fatalf("%s, want %s", verdict, want)
			}
		},
		"step": func(rt *rapid.T) {
			a, event := attempt(rt), rapid.SampledFrom([]string{"began", "step"}).Draw(rt, "event")
			_, err := db.Exec(ctx, "select gem.step($1, $2, $3, $4, jsonb_build_object('name', gen_random_uuid()), (select steps from core_tool_calls where id = $1), false)",
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
		"finish": func(rt *rapid.T) {
			a := attempt(rt)
			status := rapid.SampledFrom([]string{"succeeded", "succeeded", "failed", "not_configured"}).Draw(rt, "status")
			result := map[string]string{"succeeded": `{}`, "failed": `{"error": {"error_code": "x", "message": "y"}}`, "not_configured": `{"status": "not_configured", "reason": "z"}`}[status]
			var replay *string
			if m.holds(a) && status == "succeeded" && m.call(a.call).hit != "" {
				if err := db.QueryRow(ctx, "select id::text from core_tool_receipts where idempotency_key = $1 and status = 'succeeded' and replay_of is null", m.call(a.call).hit).Scan(&replay); err != nil {
					rt.Fatal(err)
				}
			}
			_, err := db.Exec(ctx, "select gem.finish($1, $2, $3, $4, $5, '{}', '1', $6)", a.call, a.number, a.worker, status, result, replay)
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if !m.holds(a) {
				return
			}
			c := m.call(a.call)
			m.end(c, status, true)
			if status == "succeeded" && c.Key != "" {
				m.succeeded[c.Key] = true
			}
			m.free(c.Key, status == "succeeded")
			if c.Key == "" && replay == nil && a.number > 1 { // it was woken for a key, and did not take it
				m.free(c.waited, false)
			}
		},
		"retry": func(rt *rapid.T) {
			a, attempts := attempt(rt), rapid.IntRange(1, 4).Draw(rt, "max attempts")
			var again bool
			err := db.QueryRow(ctx, "select gem.retry($1, $2, $3, '{}', $4, '0') is not null", a.call, a.number, a.worker, attempts).Scan(&again)
			if refused(err) != !m.holds(a) {
				rt.Fatalf("%+v: %v", a, err)
			}
			if !m.holds(a) {
				return
			}
			c := m.call(a.call)
			if want := c.Retries+c.Losses+1 < attempts; again != want {
				rt.Fatalf("again %t, want %t", again, want)
			}
			if again {
				c.Retries, c.place = c.Retries+1, m.places
				m.places++
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
			child := &modelCall{Status: "queued", Priority: c.Priority, Journal: []string{"queued"}, parent: c, ID: uuid.NewString(), place: m.places}
			child.name = child.ID
			m.places++
			var verdict string
			err := db.QueryRow(ctx, `select verdict from gem.wait($1, $2, $3, jsonb_build_array(jsonb_build_object('id', $4::text, 'name', $4::text, 'tool', 't.y', 'input', '{}'::jsonb)),
				'call', array[$4::text], 1, '{}', null)`, a.call, a.number, a.worker, child.ID).Scan(&verdict)
			if refused(err) != !m.holds(a) || err == nil && (verdict == "cancelled") != c.Cancel {
				rt.Fatalf("%+v: %s %v", a, verdict, err)
			}
			if m.holds(a) && !c.Cancel {
				c.Durable, c.Retries, c.Losses, c.Kills, c.awaits, c.waited = true, 0, 0, 0, child.name, ""
				c.Journal = append(c.Journal, "called")
				c.move("waiting", "waiting")
				m.calls = append(m.calls, child)
			}
		},
		"sleep": func(rt *rapid.T) {
			a, over := attempt(rt), rapid.Bool().Draw(rt, "over")
			c := m.call(a.call)
			var verdict string
			err := db.QueryRow(ctx, `select verdict from gem.wait($1, $2, $3, '[]', 'time', array[$4::text], 1, jsonb_build_object($4::text, $5::int), null)`,
				a.call, a.number, a.worker, uuid.NewString(), map[bool]int{true: 0, false: 3600000}[over]).Scan(&verdict)
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
			_, here := c.answers[name]
			var verdict string
			err := db.QueryRow(ctx, "select verdict from gem.wait($1, $2, $3, '[]', 'answer', array['#' || $4], 1, '{}', null)", a.call, a.number, a.worker, name).Scan(&verdict)
			if refused(err) != !m.holds(a) || err == nil && (verdict == "cancelled") != (c.Cancel && !here) || err == nil && (verdict == "here") != here {
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
			c, name, value := rapid.SampledFrom(m.calls).Draw(rt, "call"), answerName.Draw(rt, "name"), rapid.IntRange(1, 2).Draw(rt, "value")
			given, answered := c.answers[name]
			_, err := db.Exec(ctx, "select answer_tool_call($1, to_jsonb($2::int), $3)", c.ID, value, name)
			if taken := err == nil; taken != (answered && given == value || !answered && !c.final()) || !taken && !store.HasCode(err, "PT409") {
				rt.Fatalf("an answer to %+v: %v", c, err)
			}
			if err != nil || answered {
				return
			}
			c.answers = maps.Clone(c.answers)
			if c.answers == nil {
				c.answers = map[string]int{}
			}
			c.answers[name] = value
			c.Journal = append(c.Journal, "answered")
			if c.Status == "waiting" && c.awaits == "#"+name {
				m.wake(c)
			}
		},
		"resume": func(rt *rapid.T) {
			if len(m.calls) == 0 {
				rt.Skip("no calls")
			}
			c := rapid.SampledFrom(m.calls).Draw(rt, "call")
			var resumed bool
			if err := db.QueryRow(ctx, "select gem.resume($1)", c.ID).Scan(&resumed); err != nil || resumed != (c.Status == "waiting" && c.awaits != "") {
				rt.Fatalf("resumed %t, %v", resumed, err)
			}
			if resumed {
				m.wake(c)
			}
		},
		"timers": func(*rapid.T) {
			exec("update core_tool_calls set wake_at = now() - interval '1 day' where status = 'waiting' and waits_for = 'time'")
			exec("select gem.run_timers('a', 1000)")
			for _, c := range m.in("waiting", func(c *modelCall) bool { return c.awaits == "a time" }) {
				m.wake(c)
			}
			var due []*modelCall
			for _, c := range m.calls {
				if c.due > 0 {
					due = append(due, c)
				}
			}
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
		},
		"fall silent": func(rt *rapid.T) {
			w := worker.Draw(rt, "worker")
			exec("update core_workers set alive_until = clock_timestamp() where worker_id = $1", w)
			m.alive[w] = false
		},
		"stop": func(rt *rapid.T) {
			w := worker.Draw(rt, "worker")
			exec("select gem.stop_worker($1)", w)
			m.alive[w] = false
		},
		"heartbeat": func(rt *rapid.T) {
			w := worker.Draw(rt, "worker")
			// A worker that stopped and beats again is one whose last heartbeat was still under way.
			var judges bool
			if err := db.QueryRow(ctx, "select alive_until > clock_timestamp() from core_workers where worker_id = $1", w).Scan(&judges); err != nil {
				rt.Fatal(err)
			}
			rows, err := db.Query(ctx, "select call_id::text from gem.heartbeat($1, '1 hour', '{}', '{}', true) where verdict = 'unknown'", w)
			if err != nil {
				rt.Fatal(err)
			}
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				rt.Fatal(err)
			}
			m.alive[w] = true
			exec("update core_workers set steady_since = null where worker_id = $1", w) // it has been steady for long by its next heartbeat
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
	_ = t
}

func compareWithModel(rt *rapid.T, db *pgxpool.Pool, m *model) {
	rows, err := db.Query(context.Background(), `
		select c.id::text, c.status, c.attempt, case when c.status = 'running' then c.claimed_by else '' end,
			c.priority, case when c.status in ('queued', 'running', 'waiting') then coalesce(c.computed_key, '') else '' end, c.retries, c.losses, c.kills, c.steps > 0,
			c.cancel_requested_at is not null, coalesce(j.events, '{}'),
			(select count(*) from core_tool_receipts r where r.call_id = c.id and r.status = c.status)::int
		from core_tool_calls c
		cross join lateral (select array_agg(e.event order by e.seq) events, count(*) n, max(e.seq) last from core_tool_events e where e.call_id = c.id) j
		where j.n = c.events and j.last = c.events order by c.seq`)
	if err != nil {
		rt.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var c modelCall
		err := row.Scan(&c.ID, &c.Status, &c.Attempt, &c.Holder, &c.Priority, &c.Key, &c.Retries, &c.Losses, &c.Kills, &c.Durable, &c.Cancel, &c.Journal, &c.Receipts)
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
	return fmt.Sprint(c.ID, c.Status, c.Attempt, holder, c.Priority, key, c.Retries, c.Losses, c.Kills, c.Durable, c.Cancel, c.Journal, c.Receipts)
}

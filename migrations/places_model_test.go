package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/rules"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"
)

// After any history of calls under rules with running, each counter has the holders and the queue of its model, and
// each call the model's status.
func TestPlacesFollowTheirModel(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	drawMany()
	histories := 0
	outcomes := map[rules.Outcome]int{}
	check := func(rt *rapid.T) {
		histories++
		m := &placesModel{rt: rt, db: db, name: fmt.Sprint(histories), lines: map[string]*line{},
			calls: map[string]*parkable{}, outcomes: outcomes}
		m.move(0) // back from where the last history ended
		rt.Repeat(map[string]func(*rapid.T){"call": m.call, "claim": m.next, "end": m.end, "release": m.release,
			"cancel": m.cancel, "time": m.pass, "locked": m.endWhileLocked, "max": m.change, "": m.compare})
		m.ofHistory()
	}
	for len(outcomes) < 3 { // until calls ran, were parked and were stopped
		rapid.Check(t, check)
	}
	t.Log(outcomes)
}

// placesModel is a history of calls in the database and in the model.
type placesModel struct {
	rt       *rapid.T
	db       *pgxpool.Pool
	name     string
	ms       int // of the clock, since it began
	lines    map[string]*line
	calls    map[string]*parkable // that have not ended
	order    []string             // of their beginning
	outcomes map[rules.Outcome]int
}

// line is a counter.
type line struct {
	max            int // of new checks
	lastMax        int // of the last row
	holders, queue []string
}

// parkable is a call.
type parkable struct {
	id      string
	attempt int
	status  string
	checks  []rules.Check
	since   int // when it was first parked since it last began to run or was put back; -1 if it was not
	until   int // when its wait ends
	locked  bool
	// its worker ends it, and does not ask the gate
	cancelled bool
}

func (m *placesModel) exec(sql string, args ...any) {
	m.rt.Helper()
	if _, err := m.db.Exec(context.Background(), sql, args...); err != nil {
		m.rt.Fatalf("%s %v: %v", sql, args, err)
	}
}

func (m *placesModel) texts(sql string, args ...any) (all []string) {
	m.rt.Helper()
	if err := m.db.QueryRow(context.Background(), sql, args...).Scan(&all); err != nil {
		m.rt.Fatalf("%s %v: %v", sql, args, err)
	}
	return all
}

// move lets time pass.
func (m *placesModel) move(ms int) {
	m.ms += ms
	m.exec("update public.clock set at = began + $1 * interval '1 ms'", m.ms)
}

// counter returns the name of a counter, and makes it if it is new.
func (m *placesModel) counter(rt *rapid.T) string {
	name := fmt.Sprintf("r/running %s %d", m.name, rapid.IntRange(0, 2).Draw(rt, "counter"))
	if m.lines[name] == nil {
		m.lines[name] = &line{max: rapid.IntRange(1, 3).Draw(rt, "max")}
	}
	return name
}

// draw draws one of the calls with a status.
func (m *placesModel) draw(rt *rapid.T, status string) *parkable {
	m.rt = rt
	var among []*parkable
	for _, id := range m.order {
		if c := m.calls[id]; c != nil && c.status == status {
			among = append(among, c)
		}
	}
	if len(among) == 0 {
		rt.Skip("there is no such call")
	}
	return rapid.SampledFrom(among).Draw(rt, "call")
}

func (m *placesModel) call(rt *rapid.T) {
	m.rt = rt
	c := &parkable{status: "queued", since: -1}
	for range rapid.IntRange(1, 2).Draw(rt, "checks") {
		k := rules.Check{Counter: m.counter(rt), Kind: rules.AtOnce, Action: rules.Wait,
			AtMostMS: rapid.SampledFrom([]int64{50, 1000}).Draw(rt, "at most")}
		k.Rule = k.Counter[len(k.Counter)-1:]
		if rapid.IntRange(0, 5).Draw(rt, "action") == 0 {
			k.Action, k.AtMostMS = rules.Block, 0
		}
		if !slices.ContainsFunc(c.checks, func(o rules.Check) bool { return o.Counter == k.Counter }) {
			c.checks = append(c.checks, k)
		}
	}
	c.id = m.texts(`with c as (insert into core_tool_calls (tool_name, session_id) values ('t.a', $1) returning id)
		select array_agg(id::text) from c`, m.name)[0]
	m.calls[c.id] = c
	m.order = append(m.order, c.id)
	m.claim(c)
}

func (m *placesModel) next(rt *rapid.T) { m.claim(m.draw(rt, "queued")) }

// claim gives a call to its next attempt and brings it to the gate.
func (m *placesModel) claim(c *parkable) {
	m.exec(`update core_tool_calls set status = 'running', attempt = attempt + 1, claimed_by = 'w', claimed_at = gem.now(),
		waits_for = null where id = $1`, c.id)
	c.attempt++
	if c.cancelled {
		m.fail(c, "cancelled")
		return
	}
	for i := range c.checks {
		c.checks[i].Max = json.Number(strconv.Itoa(m.lines[c.checks[i].Counter].max))
	}
	_, got, err := store.Gate{Checks: c.checks, Version: "1", Again: c.attempt > 1}.Do(context.Background(), m.db,
		store.Attempt{CallID: c.id, Number: c.attempt, WorkerID: "w"})
	if err != nil {
		m.rt.Fatal(err)
	}
	want := m.gate(c)
	if got.Outcome != want {
		m.rt.Fatalf("the gate said %s, and the model %s", got.Outcome, want)
	}
	m.outcomes[want]++
	if want == rules.Stopped {
		m.fail(c, "limit_reached")
	}
}

func (m *placesModel) fail(c *parkable, code string) {
	m.exec(`select gem.finish($1, $2, 'w', 'failed', jsonb_build_object('error', jsonb_build_object('error_code', $3::text,
		'message', 'x')), '{}', '1')`, c.id, c.attempt, code)
	m.ended(c)
}

// gate is the model of gem.gate.
func (m *placesModel) gate(c *parkable) rules.Outcome {
	stops := false
	var lacking *rules.Check
	var kept, free []string
	for _, k := range c.checks {
		l := m.lines[k.Counter]
		m.give(l, l.max)
		switch {
		case slices.Contains(l.holders, c.id):
			kept = append(kept, k.Counter)
		case len(l.holders) < l.max:
			kept, free = append(kept, k.Counter), append(free, k.Counter)
		default:
			until := m.ms
			if c.since >= 0 {
				until = c.since
			}
			until += int(k.AtMostMS)
			if k.Action == rules.Block || until <= m.ms {
				stops = true
			} else if lacking == nil {
				lacking = &k
				c.until = until
			}
		}
	}
	switch {
	case stops:
		return rules.Stopped
	case lacking != nil:
		m.leave(c, []string{lacking.Counter})
		if l := m.lines[lacking.Counter]; !slices.Contains(l.queue, c.id) {
			l.queue, l.lastMax = append(l.queue, c.id), l.max
		}
		if c.since < 0 {
			c.since = m.ms
		}
		c.status = "waiting"
		return rules.Parked
	}
	m.leave(c, kept)
	for _, counter := range free {
		l := m.lines[counter]
		l.holders, l.lastMax = append(l.holders, c.id), l.max
	}
	c.status = "running"
	return rules.Passed
}

// give gives the free places of a counter to its queue.
func (m *placesModel) give(l *line, most int) {
	for len(l.queue) > 0 && len(l.holders) < most {
		c := m.calls[l.queue[0]]
		l.queue, l.holders, l.lastMax = l.queue[1:], append(l.holders, c.id), most
		if c.status == "waiting" && !c.locked {
			c.status = "queued"
		}
	}
}

// leave takes a call out of all counters but some.
func (m *placesModel) leave(c *parkable, keep []string) {
	for _, counter := range slices.Sorted(maps.Keys(m.lines)) {
		l := m.lines[counter]
		is := func(id string) bool { return id == c.id }
		if !slices.Contains(keep, counter) && (slices.ContainsFunc(l.holders, is) || slices.ContainsFunc(l.queue, is)) {
			l.holders, l.queue = slices.DeleteFunc(l.holders, is), slices.DeleteFunc(l.queue, is)
			m.give(l, l.lastMax)
		}
	}
}

func (m *placesModel) ended(c *parkable) {
	m.leave(c, nil)
	delete(m.calls, c.id)
}

func (m *placesModel) end(rt *rapid.T) { m.finish(m.draw(rt, "running")) }

func (m *placesModel) finish(c *parkable) {
	m.exec("select gem.finish($1, $2, 'w', 'succeeded', '{}', '{}', '1')", c.id, c.attempt)
	m.ended(c)
}

// release lets a worker that stops hand over a call. The call may then wait as long as at first.
func (m *placesModel) release(rt *rapid.T) {
	c := m.draw(rt, "running")
	m.exec("select gem.release($1, $2, 'w')", c.id, c.attempt)
	c.status, c.since = "queued", -1
	m.leave(c, nil)
}

func (m *placesModel) cancel(rt *rapid.T) {
	c := m.draw(rt, "waiting")
	m.exec("select gem.cancel($1)", c.id)
	c.status, c.cancelled = "queued", true // the next claim ends it
}

// pass lets time pass, so that waits may end.
func (m *placesModel) pass(rt *rapid.T) {
	m.rt = rt
	m.move(rapid.SampledFrom([]int{10, 30, 60, 1100}).Draw(rt, "ms"))
	m.exec("select gem.run_timers('w', 100, false)")
	for _, c := range m.calls {
		if c.status == "waiting" && c.until <= m.ms {
			c.status = "queued"
		}
	}
}

// endWhileLocked ends a call while another transaction has locked one that waits. That one gets its place anyway, and
// the timers wake it.
func (m *placesModel) endWhileLocked(rt *rapid.T) {
	c, other := m.draw(rt, "running"), m.draw(rt, "waiting")
	tx, err := m.db.Begin(context.Background())
	if err != nil {
		rt.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(context.Background(), "select from core_tool_calls where id = $1 for update",
		other.id); err != nil {
		rt.Fatal(err)
	}
	other.locked = true
	m.finish(c)
	m.compare(rt)
	_ = tx.Rollback(context.Background())
	other.locked = false
	m.exec("select gem.wake_placed('w')")
	for _, l := range m.lines {
		if slices.Contains(l.holders, other.id) && other.status == "waiting" {
			other.status = "queued"
		}
	}
}

// change gives a counter another number of places, as the next rules would.
func (m *placesModel) change(rt *rapid.T) {
	m.rt = rt
	m.lines[m.counter(rt)].max = rapid.IntRange(1, 3).Draw(rt, "max")
}

// compare compares the model with the database.
func (m *placesModel) compare(rt *rapid.T) {
	m.rt = rt
	var want, got []string
	for counter, l := range m.lines {
		want = append(want, fmt.Sprint(counter, " ", l.holders, " ", l.queue))
		holders := m.texts("select coalesce((select holders::text[] from gem.rule_places where counter = $1 "+
			"order by n desc limit 1), '{}')", counter)
		queue := m.texts(`select coalesce(array_agg(q.call_id::text order by q.n), '{}') from gem.rule_places q
			where q.counter = $1 and q.action = 'queued' and not exists (select from gem.rule_places later
				where later.counter = q.counter and later.call_id = q.call_id and later.n > q.n)`, counter)
		got = append(got, fmt.Sprint(counter, " ", holders, " ", queue))
		if waiting := m.texts("select array[coalesce((select waiting from gem.rule_places where counter = $1 "+
			"order by n desc limit 1), 0)::text]", counter)[0]; waiting != fmt.Sprint(len(l.queue)) {
			rt.Fatalf("%s calls wait for %s, and %d in the model", waiting, counter, len(l.queue))
		}
	}
	for id, c := range m.calls {
		want = append(want, id+" "+c.status)
	}
	got = append(got, m.texts(`select coalesce(array_agg(id || ' ' || status), '{}') from core_tool_calls
		where session_id = $1 and not gem.is_final(status)`, m.name)...)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		rt.Fatalf("the database differs from the model (-model +database):\n%s", diff)
	}
}

// ofHistory checks that no call took a place that was not free, and that the rows are numbered.
func (m *placesModel) ofHistory() {
	wrong := m.texts(`select coalesce(array_agg(counter || ' ' || n), '{}') from (
		select counter, n, n = row_number() over w and at >= lag(at, 1, at) over w
			and (action <> 'took' or cardinality(holders) <= max) as right
		from gem.rule_places where split_part(counter, ' ', 2) = $1 window w as (partition by counter order by n)) r
		where not r.right`, m.name)
	if len(wrong) > 0 {
		m.rt.Fatalf("rows of counters are wrong: %v", wrong)
	}
	m.move(int(time.Hour.Milliseconds())) // the next history's timers have nothing of this one
	m.exec("select gem.run_timers('w', 100, false)")
}

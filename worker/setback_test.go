package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// ownServer lets a test decide what the time is and which server runs, whatever a transaction rolls back.
const ownServer = `
	create sequence public.seconds;
	create sequence public.servers;
	create or replace function gem.now() returns timestamptz language sql volatile as
		'select pg_catalog.clock_timestamp() + (select last_value from public.seconds) * interval ''1 second''';
	create or replace function gem.server() returns timestamptz language sql stable as
		'select timestamptz ''2026-01-01'' + (select last_value from public.servers) * interval ''1 day''';
	create or replace function gem.place_of_server(out system_id text, out timeline text) language sql as
		'select ''one'', last_value::text from public.servers'`

// world is a database whose last commits can be undone, and what does not go back with them: the workers, and the
// effects of their handlers.
type world struct {
	*rapid.T
	db      *pgx.Conn // in a transaction, with a savepoint before each commit
	commits int
	workers []*memorable
	effects map[string]int           // of calls to tools of mode none
	ends    map[store.Attempt]string // that succeeded: the key, or ""
	met     map[store.Restored]int   // what was restored
}

// memorable is a worker, with what it knows.
type memorable struct {
	id      string
	knew    time.Time
	met     bool // it has met the present server
	epoch   int64
	running []*believed
	ended   []store.Lost
	later   []store.Lost // what it must restore later
}

// believed is an attempt that a worker runs, whether or not the server has it.
type believed struct {
	store.Call
	key   string
	begun bool
}

func (b *believed) once() bool { return b.Tool == "t.once" }

// lost is the attempt as the worker would describe it to another server.
func (b *believed) lost() store.Lost {
	return store.Lost{Attempt: b.Attempt, Tool: b.Tool, Code: b.Code, Call: &b.Call, Key: b.key}
}

// final is the end of the attempt with an outcome.
func (b *believed) final(o receipts.Outcome) store.Final {
	return store.Final{Attempt: b.Attempt, Outcome: o, Effects: []byte("{}"), RegistryVersion: "1", Key: b.key}
}

// commit runs what one commit does. If it fails, nothing is written.
func (w *world) commit(do func(context.Context) error) error {
	w.Helper()
	w.exec(fmt.Sprintf("savepoint s%d", w.commits))
	if err := do(context.Background()); err != nil {
		w.exec(fmt.Sprintf("rollback to savepoint s%d", w.commits))
		return err
	}
	w.commits++
	return nil
}

// write is a commit of one statement.
func (w *world) write(sql string, args ...any) error {
	w.Helper()
	return w.commit(func(ctx context.Context) error {
		_, err := w.db.Exec(ctx, sql, args...)
		return err
	})
}

func (w *world) exec(sql string) {
	w.Helper()
	if _, err := w.db.Exec(context.Background(), sql); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) ask(sql string, args ...any) (value string) {
	w.Helper()
	if err := w.db.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	return value
}

// held fails the test unless the error is nil or one that the worker expects: it no longer holds the call.
func (w *world) held(err error) bool {
	w.Helper()
	if err != nil && !store.IsNotHeld(err) {
		w.Fatal(err)
	}
	return err == nil
}

func (m *memorable) drop(b *believed) {
	m.running = slices.DeleteFunc(m.running, func(r *believed) bool { return r == b })
}

// claim takes calls, and brings them to where their handlers would begin.
func (w *world) claim(m *memorable, limit int) {
	w.Helper()
	if m.met && w.waits(m) {
		return
	}
	var got []store.Call
	err := w.commit(func(ctx context.Context) (err error) {
		got, err = store.Claim(ctx, w.db, m.id, limit, limit, true, nil)
		return err
	})
	if store.IsNotRegistered(err) { // it has fallen silent
		return
	}
	if (err != nil) != !m.met || err != nil && !store.IsMoved(err) {
		w.Fatalf("a claim by %s, which has met the server: %t: %v", m.id, m.met, err)
	}
	for _, c := range got {
		b := &believed{Call: c}
		if c.Number > 1 {
			if b.once() && c.Losses > 0 || w.mustNotRepeat(b) {
				w.held(w.finish(b, receipts.Failure(receipts.OutcomeUnknown, "It is not known.", nil)))
				continue
			}
		}
		if !b.once() && w.hold(b) != store.KeyTaken {
			continue
		}
		m.running = append(m.running, b)
	}
}

func (w *world) keyOf(b *believed) string { return strings.Split(string(b.Input), `"`)[3] }

func (w *world) mustNotRepeat(b *believed) bool {
	var key *string
	if !b.once() {
		key = new(w.keyOf(b))
	}
	must, err := store.MustNotRepeat(context.Background(), w.db, b.Attempt, b.once(), false, key)
	if err != nil {
		w.Fatal(err)
	}
	return must
}

// hold takes the key of a call; a hit ends it.
func (w *world) hold(b *believed) (verdict store.KeyVerdict) {
	key := w.keyOf(b)
	if !w.held(w.commit(func(ctx context.Context) error {
		k, err := store.HoldKey(ctx, w.db, b.Attempt, key, "", false)
		if verdict = k.Verdict; err != nil || verdict != store.KeyHit {
			return err
		}
		s := b.final(receipts.Replay(k.ReceiptID, k.Result)).Statement(false, nil, nil)
		_, err = w.db.Exec(ctx, s.SQL, s.Args...)
		return err
	})) {
		return ""
	}
	if verdict == store.KeyTaken {
		b.key = key
	}
	return verdict
}

// finish writes an end.
func (w *world) finish(b *believed, o receipts.Outcome) error {
	s := b.final(o).Statement(false, nil, nil)
	return w.write(s.SQL, s.Args...)
}

// begin lets a handler have its effect.
func (w *world) begin(b *believed) {
	b.begun = true
	if b.once() {
		w.effects[b.CallID]++
	}
}

// end ends the call of a handler that has begun. forget is a worker without room for what it wrote.
func (w *world) end(m *memorable, b *believed, o receipts.Outcome, forget bool) {
	w.Helper()
	m.drop(b)
	l := b.lost()
	l.Ended, l.Final = true, new(b.final(o))
	if forget {
		l.Call, l.Final = nil, nil
	}
	if w.held(w.finish(b, o)) {
		if o.Status == receipts.Succeeded {
			w.ends[b.Attempt] = b.key
		}
		l.ReceiptID = w.ask("select id::text from core_tool_receipts where call_id = $1", b.CallID)
		m.ended = append(m.ended, l)
		return
	}
	m.ended = append(m.ended, l)
	if m.epoch > 1 && m.met {
		w.restore(m, l)
	}
}

// meet lets a worker meet the server and restore what it lacks.
func (w *world) meet(m *memorable) {
	w.Helper()
	var epoch store.Epoch
	if err := w.commit(func(ctx context.Context) (err error) {
		epoch, err = store.MeetServer(ctx, w.db, m.id, m.knew)
		return err
	}); err != nil {
		w.Fatal(err)
	}
	m.met, m.knew, m.epoch, m.later = true, epoch.Server, epoch.Number, nil
	m.running = slices.DeleteFunc(m.running, func(b *believed) bool { return !b.begun })
	if !epoch.MayLackCommits {
		w.Fatalf("met %+v", epoch)
	}
	for _, b := range m.running {
		w.restore(m, b.lost())
	}
	ends := make([]store.Attempt, len(m.ended))
	for i, l := range m.ended {
		ends[i] = l.Attempt
	}
	missing, err := store.CompareEnds(context.Background(), w.db, m.id, ends)
	if err != nil {
		w.Fatal(err)
	}
	for _, l := range m.ended {
		if slices.Contains(missing, l.Attempt) {
			w.restore(m, l)
		}
	}
}

// restore restores one attempt, and compares the result with the rules.
func (w *world) restore(m *memorable, l store.Lost) {
	w.Helper()
	want := w.rule(l)
	var got store.Restored
	if err := w.commit(func(ctx context.Context) (err error) {
		got, err = store.Restore(ctx, w.db, m.epoch, l, "1")
		return err
	}); err != nil {
		w.Fatalf("%+v: %v", l, err)
	}
	if got != want {
		w.Fatalf("restored %+v: %q, want %q", l, got, want)
	}
	w.met[got]++
	if got == store.RestoreLater {
		m.later = append(m.later, l)
	}
}

// waits restores what a worker had to leave for later, and reports whether something is left. Meanwhile the worker
// claims no calls.
func (w *world) waits(m *memorable) bool {
	w.Helper()
	later := m.later
	m.later = nil
	for _, l := range later {
		w.restore(m, l)
	}
	return len(m.later) > 0
}

// mayBecomeFree reports whether another worker runs a call with the key of an attempt, and may still end it.
func (w *world) mayBecomeFree(l store.Lost) bool {
	if l.Key == "" || l.Final != nil && l.Final.Status == receipts.Failed {
		return false
	}
	var holder string
	var age float64
	var succeeded bool
	if err := w.db.QueryRow(context.Background(), `
		select coalesce((select claimed_by from core_tool_calls where computed_key = $1 and status = 'running'
				and id <> $2), ''),
			extract(epoch from gem.now() - (select at from gem.epochs order by epoch desc limit 1))::float8,
			exists (select from core_tool_receipts where idempotency_key = $1 and status = 'succeeded'
				and replay_of is null)`, l.Key, l.CallID).Scan(&holder, &age, &succeeded); err != nil {
		w.Fatal(err)
	}
	i := slices.IndexFunc(w.workers, func(m *memorable) bool { return m.id == holder && m.id != l.WorkerID })
	return i >= 0 && !succeeded && (age < 5 || age < 15 && !w.workers[i].met)
}

// rule returns the result that restoring an attempt must have.
func (w *world) rule(l store.Lost) store.Restored {
	var status, code, holder, key string
	var attempt int
	var receipted, conflict bool
	err := w.db.QueryRow(context.Background(), `select c.status, c.attempt, coalesce(c.claimed_by, ''),
		coalesce(c.error ->> 'error_code', ''), coalesce(c.computed_key, '') from core_tool_calls c where c.id = $1`,
		l.CallID).Scan(&status, &attempt, &holder, &code, &key)
	gone := err == pgx.ErrNoRows //nolint:errorlint // it is not wrapped
	if err != nil && !gone {
		w.Fatal(err)
	}
	if err := w.db.QueryRow(context.Background(), `
		select exists (select from core_tool_receipts where call_id = $1 and attempt = $2 and worker_id = $3),
			exists (select from core_tool_receipts where idempotency_key = $4 and status = 'succeeded' and replay_of is null
					and call_id <> $1)
				or exists (select from core_tool_calls where computed_key = $4 and status in ('running', 'queued')
					and id <> $1)`, l.CallID, l.Number, l.WorkerID, l.Key).Scan(&receipted, &conflict); err != nil {
		w.Fatal(err)
	}
	final := status == "succeeded" || status == "failed"
	mine := status == "running" && attempt == l.Number && holder == l.WorkerID
	conflict = conflict && (!mine || key != l.Key)
	switch {
	case receipted:
		return ""
	case w.mayBecomeFree(l):
		return store.RestoreLater
	case gone && l.Call == nil:
		if !l.Ended {
			return ""
		}
		return store.CallMissing
	case gone, !final && attempt < l.Number, mine:
		switch {
		case !l.Ended && conflict:
			return store.RanTwice
		case !l.Ended && mine && key == l.Key:
			return ""
		case !l.Ended:
			return store.ClaimedAgain
		case conflict && (l.Final == nil || l.Final.Status == receipts.Succeeded):
			return store.RanTwice
		case l.Final == nil:
			return store.EndedAsUnknown
		}
		return store.RestoredEnd
	case !l.Ended:
		return ""
	case code == string(receipts.OutcomeUnknown), final && attempt < l.Number:
		return store.EndedAsUnknown
	}
	return store.RanTwice
}

// beat is a heartbeat with all checks.
func (w *world) beat(m *memorable) {
	w.Helper()
	running := make([]store.Attempt, len(m.running))
	for i, b := range m.running {
		running[i] = b.Attempt
	}
	var notices []store.Notice
	if err := w.commit(func(ctx context.Context) (err error) {
		if _, err = w.db.Exec(ctx, "update core_workers set steady_since = null"); err == nil {
			notices, err = store.Heartbeat(ctx, w.db, m.id, time.Hour, running, true)
		}
		return err
	}); err != nil {
		w.Fatal(err)
	}
	if slices.ContainsFunc(notices, func(n store.Notice) bool { return n.Verdict == store.NoticeMoved }) {
		w.meet(m) // the next heartbeat decides about its calls
		return
	}
	for _, n := range notices {
		if n.Verdict != store.NoticeUnknown {
			continue // what was lost ends by itself
		}
		if i := slices.IndexFunc(m.ended, func(l store.Lost) bool { return l.Attempt == n.Attempt }); i >= 0 {
			w.held(w.commit(func(ctx context.Context) error {
				_, err := store.EndAgain(ctx, w.db, m.ended[i], "1")
				return err
			}))
			continue
		}
		w.held(w.commit(func(ctx context.Context) error { return store.Release(ctx, w.db, n.Attempt, nil, "") }))
	}
}

// setBack undoes the last commits. Another server runs from now on.
func (w *world) setBack(commits int) {
	w.commits -= commits
	w.exec(fmt.Sprintf("rollback to savepoint s%d", w.commits))
	w.ask("select nextval('public.servers')::text")
	for _, m := range w.workers {
		m.met = false
	}
}

// A server that lacks the last commits gets them back from the workers, whatever they did and in whatever order they
// meet it: no call of mode none has two effects unless it is listed, and every end is there or listed.
func TestARestoreFollowsItsRules(t *testing.T) {
	testdb.Long(t, "TestWhatAFailoverLostIsRestored")
	t.Parallel()
	at := testdb.New(t)
	conn, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), ownServer); err != nil {
		t.Fatal(err)
	}
	drawMany()
	const least = 300
	runs, met := 0, map[store.Restored]int{}
	for runs < least || len(met) < 7 { // until each result has come, and none
		rapid.Check(t, func(rt *rapid.T) {
			if runs >= least && len(met) == 7 {
				return
			}
			runs++
			setBackAndRestore(rt, conn, met)
		})
	}
	t.Log("runs:", runs, "restored:", met)
}

func setBackAndRestore(rt *rapid.T, conn *pgx.Conn, met map[store.Restored]int) {
	w := &world{T: rt, db: conn, effects: map[string]int{}, ends: map[store.Attempt]string{}, met: met}
	w.exec("begin")
	defer w.exec("rollback")
	w.ask("select setval('public.seconds', 1)::text || setval('public.servers', 1)")
	for _, id := range []string{"a", "b", "c"} {
		server, err := store.StartWorker(context.Background(), conn, store.Worker{ID: id, Concurrency: 5,
			DeadAfter: time.Hour, RegistryVersion: "1", Outside: map[string]string{"t.once": "none", "t.keyed": "keyed"}})
		if err != nil {
			rt.Fatal(err)
		}
		w.workers = append(w.workers, &memorable{id: id, knew: server, met: true, epoch: 1})
	}
	one := rapid.IntRange(0, len(w.workers)-1)
	// pick returns a running attempt, before or after its handler began, and its worker; or nil
	pick := func(begun bool) (of *memorable, b *believed) {
		among := map[*believed]*memorable{}
		var all []*believed
		for _, m := range w.workers {
			for _, b := range m.running {
				if b.begun == begun {
					all, among[b] = append(all, b), m
				}
			}
		}
		if len(all) == 0 {
			return nil, nil
		}
		b = all[rapid.IntRange(0, len(all)-1).Draw(rt, "attempt")]
		return among[b], b
	}
	// More calls have keys than not, since one that must be restored later is rare.
	tools := rapid.SampledFrom([]string{"t.once", "t.keyed", "t.keyed", "t.keyed"})
	keys := rapid.SampledFrom([]string{"k1", "k2"})
	outcomes := rapid.SampledFrom([]receipts.Outcome{{Status: receipts.Succeeded, Result: []byte(`{"ok": true}`)},
		receipts.Failure(receipts.ExecutionError, "No.", nil)})
	end := func(m *memorable, b *believed) {
		w.end(m, b, outcomes.Draw(rt, "outcome"), rapid.IntRange(0, 2).Draw(rt, "forget") == 0)
	}
	actions := map[string]func(){
		"a call comes": func() {
			w.held(w.write("insert into core_tool_calls (tool_name, input) values ($1, jsonb_build_object('key', $2::text))",
				tools.Draw(rt, "tool"), keys.Draw(rt, "key")))
		},
		"a claim": func() {
			m := w.workers[one.Draw(rt, "worker")]
			w.claim(m, rapid.IntRange(1, 3).Draw(rt, "limit"))
			for _, b := range slices.Clone(m.running) {
				if b.begun || rapid.IntRange(0, 4).Draw(rt, "begins later") == 0 {
					continue
				}
				w.begin(b)
				if rapid.Bool().Draw(rt, "ends at once") {
					end(m, b)
				}
			}
		},
		"a beginning": func() {
			if _, b := pick(false); b != nil {
				w.begin(b)
			}
		},
		"an end": func() {
			if m, b := pick(true); b != nil {
				end(m, b)
			}
		},
		"a release": func() {
			if m, b := pick(false); b != nil {
				m.drop(b)
				w.held(w.commit(func(ctx context.Context) error { return store.Release(ctx, w.db, b.Attempt, nil, "") }))
			}
		},
		"a retry": func() {
			if m, b := pick(true); b != nil && !b.once() {
				m.drop(b)
				w.held(w.commit(func(ctx context.Context) error {
					_, err := store.Retry(ctx, w.db, b.Attempt, receipts.Failure(receipts.ExecutionError, "Later.", nil),
						registry.Retry{MaxAttempts: 9}, 0, nil, "keyed")
					return err
				}))
			}
		},
		"a worker is taken for dead": func() {
			n := one.Draw(rt, "worker")
			w.held(w.write("update core_workers set alive_until = gem.now() where worker_id = $1", w.workers[n].id))
			w.beat(w.workers[(n+1)%len(w.workers)])
			w.beat(w.workers[n])
		},
		"heartbeats": func() {
			for _, m := range w.workers {
				w.beat(m)
			}
		},
		"commits are lost": func() {
			if w.commits > 0 {
				w.setBack(min(w.commits, rapid.SampledFrom([]int{1, 2, 3, 5, 8, 13}).Draw(rt, "commits")))
			}
		},
		"a worker meets the server": func() {
			if m := w.workers[one.Draw(rt, "worker")]; !m.met {
				w.meet(m)
			}
		},
		"time passes": func() { w.pass(rapid.SampledFrom([]int{6, 16}).Draw(rt, "seconds")) },
	}
	action := rapid.SampledFrom([]string{"a call comes", "a call comes", "a call comes", "a claim", "a claim", "a claim",
		"a beginning", "a beginning", "an end", "an end", "an end", "a release", "a retry", "a worker is taken for dead",
		"heartbeats", "commits are lost", "a worker meets the server", "a worker meets the server", "time passes"})
	for range 100 {
		actions[action.Draw(rt, "action")]()
	}
	w.settle()
	w.check()
}

func (w *world) pass(seconds int) {
	w.ask("select setval('public.seconds', nextval('public.seconds') + $1)::text", seconds)
}

// settle lets the workers do all that there is to do.
func (w *world) settle() {
	for _, m := range w.workers {
		if !m.met {
			w.meet(m)
		}
	}
	for range 200 {
		w.pass(20)
		for _, m := range w.workers {
			for _, b := range slices.Clone(m.running) {
				if !b.begun {
					w.begin(b)
				}
				w.end(m, b, receipts.Outcome{Status: receipts.Succeeded, Result: []byte(`{"ok": true}`)}, false)
			}
			w.beat(m)
			w.claim(m, 5)
		}
		if w.ask("select count(*)::text from core_tool_calls where status not in ('succeeded', 'failed')") == "0" &&
			!slices.ContainsFunc(w.workers, func(m *memorable) bool { return len(m.running) > 0 }) {
			return
		}
	}
	w.Fatalf("calls are open: %s", w.ask("select jsonb_agg(c)::text from core_tool_calls c "+
		"where status not in ('succeeded', 'failed')"))
}

func (w *world) check() {
	listed := func(a store.Attempt) string {
		return w.ask(`select coalesce((select what from gem.epoch_calls where call_id = $1 and attempt = $2
			and worker_id = $3 order by epoch desc limit 1), '')`, a.CallID, a.Number, a.WorkerID)
	}
	for id, times := range w.effects {
		if times > 1 && w.ask("select count(*)::text from gem.epoch_calls where call_id = $1 and what in ('ran_twice', "+
			"'unknown')", id) == "0" {
			w.Errorf("call %s had %d effects, and is not listed", id, times)
		}
	}
	for _, m := range w.workers {
		for _, l := range m.ended {
			if l.ReceiptID != "" && w.ask(`select count(*)::text from core_tool_receipts where id = $1`, l.ReceiptID) == "0" &&
				listed(l.Attempt) == "" {
				w.Errorf("the receipt of %+v is neither there nor listed", l)
			}
		}
	}
	succeeded := map[string][]store.Attempt{}
	for a, key := range w.ends { // that a server had accepted
		if key != "" && listed(a) != string(store.RanTwice) && listed(a) != string(store.EndedAsUnknown) &&
			listed(a) != string(store.CallMissing) {
			succeeded[key] = append(succeeded[key], a)
		}
	}
	for key, all := range succeeded {
		if len(all) > 1 {
			w.Errorf("%s had its effect %d times, and not all are listed: %v", key, len(all), all)
		}
	}
	if faults := w.ask(`select count(*)::text from core_tool_calls c where (select count(*) from core_tool_receipts r
		where r.call_id = c.id) <> 1`); faults != "0" {
		w.Errorf("%s calls have not one receipt", faults)
	}
}

package worker_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

func one(o *worker.Options) { o.Concurrency = 1 }

func TestHigherPriorityRunsFirstThenFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, one, tool{name: "lab.send"})
	for _, c := range []struct {
		text     string
		priority int
	}{{"d", 0}, {"e", 0}, {"g", -5}, {"b", 10}, {"f", 0}, {"c", 10}, {"a", 500}} {
		env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: c.text}), Priority: c.priority})
	}
	// Rows of one statement come in its order.
	if _, err := env.DB.Exec(t.Context(), `
		insert into core_tool_calls (tool_name, input, priority)
		select 'lab.send', jsonb_build_object('text', 'h' || n), -10 from generate_series(1, 9) n`); err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	env.Until("all to be sent", func() bool { return len(lab.sentSoFar()) == 16 })
	want := strings.Split("a b c d e f g h1 h2 h3 h4 h5 h6 h7 h8 h9", " ")
	if diff := cmp.Diff(want, lab.sentSoFar()); diff != "" {
		t.Error(diff)
	}
}

func TestACallIsNotRunBeforeItsTime(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, func(o *worker.Options) { o.PollInterval = 20 * time.Millisecond }, tool{name: "lab.send"})
	env.StartWorker()
	later := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "later"}),
		RunAt: time.Now().Add(time.Hour), Priority: 100})
	soon := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "soon"}),
		RunAt: time.Now().Add(300 * time.Millisecond)})
	env.Await(soon)
	var early bool
	if err := env.DB.QueryRow(t.Context(), "select claimed_at < run_at from core_tool_calls where id = $1",
		soon).Scan(&early); err != nil || early {
		t.Errorf("claimed before its time: %v", err)
	}
	if diff := cmp.Diff([]string{"queued"}, env.Journal(later)); diff != "" ||
		!slices.Equal(lab.sentSoFar(), []string{"soon"}) {
		t.Error(diff, lab.sentSoFar())
	}
}

// With an hour between polls, only a notification can have brought the call: whether the worker was idle or full, and
// even when an earlier call came back.
func TestANotificationWakesAnIdleWorker(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, func(o *worker.Options) { o.PollInterval = time.Hour }, tool{name: "lab.write"})
	env.StartWorker()
	for i := range 20 {
		if r := env.Run(handlertest.Call{Tool: "lab.write",
			Input: task(Task{Text: fmt.Sprint(i), Then: "transient once"})}); r.Status != receipts.Succeeded {
			t.Fatalf("%s", r.Result)
		}
	}
}

func TestAWorkerWithoutNotificationsPolls(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, func(o *worker.Options) { o.ListenURL = "" }, tool{name: "lab.write"})
	env.StartWorker()
	for range 5 {
		env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	}
}

// While a worker has nothing to do it is to be notified; while it is full it is not, and inserts pay nothing for it.
func TestOnlyIdleWorkersAskForNotifications(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, one, tool{name: "lab.send"})
	env.StartWorker()
	wants := func(wanted bool) func() bool {
		return func() bool {
			var wants bool
			if err := env.DB.QueryRow(t.Context(), "select coalesce(bool_or(wants_wake), false) from core_workers").
				Scan(&wants); err != nil {
				t.Fatal(err)
			}
			return wants == wanted
		}
	}
	env.Until("the worker to ask", wants(true))
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"})})
	env.Until("the full worker to ask no more", wants(false))
	lab.awaitBegin(t)
	lab.tell(t, "g", Order{})
	env.Await(id)
	env.Until("the worker to ask again", wants(true))
}

// A lost listening connection is noticed and replaced.
func TestNotificationsComeBackAfterTheirConnectionIsCut(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	env.StartWorker()
	listeners := func() (n int) {
		err := env.DB.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = 'gem listen' "+
			"and datname = current_database()").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	env.Until("the worker to listen", func() bool { return listeners() == 1 })
	if _, err := env.DB.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where "+
		"application_name = 'gem listen' and datname = current_database()"); err != nil {
		t.Fatal(err)
	}
	env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	env.Until("the worker to listen again", func() bool { return listeners() == 1 })
}

func TestTheSameVersionWithOtherContentsIsRefused(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.send"}, tool{name: "lab.write"})
	env.StartWorker()
	env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})}) // the version is recorded by now

	changed := func(version string) func(*worker.Options) {
		return func(o *worker.Options) {
			var err error
			o.Registry, err = registry.Parse(labRegistry(version, tool{name: "lab.send"},
				tool{name: "lab.write", mode: "safe-retry"}, tool{name: "lab.nothing"}))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	err := env.NewWorker(changed("1.0.0")).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "lab.write") || !strings.Contains(err.Error(), "lab.nothing") ||
		strings.Contains(err.Error(), "lab.send") {
		t.Errorf("got %v", err)
	}
	env.StartWorker(changed("1.1.0"))
	env.Until("the new version to be recorded", func() bool {
		var n int
		if err := env.DB.QueryRow(t.Context(), "select count(*) from core_registry_versions").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 2
	})
}

// Any registry works, whatever its tools: without handlers, valid inputs are not_configured and invalid ones are
// refused.
func TestAHundredToolsWithoutHandlers(t *testing.T) {
	t.Parallel()
	var tools []tool
	for i := range 100 {
		tools = append(tools, tool{name: fmt.Sprintf("domain%d.part_%d.method", i%10, i),
			mode: []string{"none", "safe-retry", "keyed"}[i%3], keyField: []string{"", "", "key"}[i%3]})
	}
	env := handlertest.Start(t, handlertest.Options{Registry: labRegistry("9", tools...)})
	valid, invalid := []string{}, []string{}
	for _, tl := range tools {
		valid = append(valid, env.Insert(handlertest.Call{Tool: tl.name, Input: `{"text": "x", "key": "k"}`}))
		invalid = append(invalid, env.Insert(handlertest.Call{Tool: tl.name, Input: `{"text": 1}`}))
	}
	for i := range tools {
		if r := env.Await(valid[i]); r.Status != receipts.NotConfigured {
			t.Errorf("%s: %s", tools[i].name, r.Result)
		}
		if e := handlertest.ErrorOf(t, env.Await(invalid[i])); e.Code != receipts.ValidationError {
			t.Errorf("%s: %+v", tools[i].name, e)
		}
	}
}

// 800 mixed calls, and 2,000 in the long form, inserted in plain SQL from several connections while workers run.
func TestManyMixedCallsOnSeveralWorkers(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, func(o *worker.Options) { o.Concurrency = 8 },
		tool{name: "lab.write"}, tool{name: "lab.send", mode: "safe-retry"},
		tool{name: "lab.nothing", mode: "keyed", keyField: "key"}, tool{name: "lab.unbuilt"})
	env.StartWorker()
	env.StartWorker()
	const clients = 4
	each := 200
	if os.Getenv("GEM_TEST_LONG") != "" {
		each = 500
	}
	inserted := make(chan error, clients)
	for client := range clients {
		go func() {
			inserted <- func() error {
				conn, err := pgx.Connect(t.Context(), env.URL)
				if err != nil {
					return err
				}
				defer func() { _ = conn.Close(t.Context()) }()
				for i := range each {
					n := client*each + i
					name, input := "lab.write", task(Task{Text: fmt.Sprint(n)})
					switch n % 8 {
					case 1:
						name = "lab.send"
					case 2:
						name, input = "lab.nothing", task(Task{Text: "x", Key: fmt.Sprint(n % 50)})
					case 3:
						name = "lab.unbuilt"
					case 4:
						name = "no.such_tool"
					case 5:
						input = `{"text": 1}`
					case 6:
						input = task(Task{Text: fmt.Sprint(n), Then: "panic"})
					case 7:
						input = task(Task{Text: fmt.Sprint(n), Then: "transient once"})
					}
					if _, err := conn.Exec(t.Context(), "insert into core_tool_calls (tool_name, input) values ($1, $2)", name,
						input); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range clients {
		if err := <-inserted; err != nil {
			t.Fatal(err)
		}
	}
	count := func(sql string) (n int) {
		if err := env.DB.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for n := 100; n <= clients*each; n += 100 {
		env.Until(fmt.Sprint(n, " receipts"), func() bool { return count("select count(*) from core_tool_receipts") >= n })
	}
	for what, sql := range map[string]string{
		"calls that disagree with their receipt": "select count(*) from core_tool_calls c left join core_tool_receipts r " +
			"on r.call_id = c.id where r.status is distinct from c.status",
		"journals with gaps": "select count(*) from core_tool_calls c where c.events <> (select " +
			"count(*) from core_tool_events e where e.call_id = c.id) or c.events <> (select max(seq) from core_tool_events e " +
			"where e.call_id = c.id)",
		"rows that do not belong to one success": "select count(*) from (select text from lab_rows group by text having " +
			"count(*) > 1) twice",
	} {
		if n := count(sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	if got, want := count("select count(*) from lab_rows"), clients*each/4; got != want {
		t.Errorf("%d rows, want %d", got, want)
	}
	for _, entry := range env.Logs.FilterLevelExact(zap.WarnLevel).All() {
		if err, _ := entry.ContextMap()["error"].(string); strings.Contains(err, context.DeadlineExceeded.Error()) {
			continue // the machine was slow
		}
		t.Errorf("warning in the log: %s %v", entry.Message, entry.ContextMap())
	}
	for _, entry := range env.Logs.FilterLevelExact(zap.ErrorLevel).All() {
		if entry.Message != "the handler panicked" {
			t.Errorf("error in the log: %s %v", entry.Message, entry.ContextMap())
		}
	}
}

// Calls that come back to an earlier place in the queue are not starved by a backlog that a claim's cursor has passed.
func TestCallsThatComeBackGoBeforeTheBacklog(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, func(o *worker.Options) { o.Concurrency, o.HeartbeatInterval = 1, 20*time.Millisecond },
		tool{name: "lab.send"})
	exec := func(sql string) {
		t.Helper()
		if _, err := env.DB.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const insert = `insert into core_tool_calls (tool_name, input)
		select 'lab.send', jsonb_build_object('text', '%s', 'then', 'take a while', 'gate', case n when 7 then '%s'
			else '' end)
		from generate_series(1, %d) n`
	exec(fmt.Sprintf(insert, "back", "", 10))
	exec("update core_tool_calls set run_at = run_at - interval '1 minute'")
	exec("select gem.start_worker('holder', 10, '', '', '1 hour')")
	exec("select gem.claim('holder', 10, true)")
	const backlog = 600
	exec(fmt.Sprintf(insert, "new", "g", backlog))
	env.StartWorker()
	lab.awaitBegin(t) // it is on its way, and waits
	exec("select gem.release(id, 1, 'holder') from core_tool_calls where claimed_by = 'holder' and status = 'running'")
	lab.tell(t, "g", Order{})
	env.Until("those that came back to run", func() bool {
		sent := lab.sentSoFar()
		back := len(sent) - len(slices.DeleteFunc(slices.Clone(sent), func(text string) bool { return text == "back" }))
		return back == 10 || len(sent) == backlog+10
	})
	if n := len(lab.sentSoFar()); n > backlog/2 {
		t.Errorf("%d calls ran before the last that had come back", n)
	}
}

// A caller whose calls hang leaves slots for others, however many it made and whatever their priority.
func TestACallerWhoCrowdsLeavesSlotsForOthers(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"}, tool{name: "lab.nothing"})
	env.StartWorker(func(o *worker.Options) { o.Concurrency = 10 })
	insertAll := func(n int) {
		if _, err := env.DB.Exec(t.Context(), `insert into core_tool_calls (tool_name, input, created_by, priority)
			select 'lab.send', '{"text": "hangs", "gate": "g"}', 'grace', 10 from generate_series(1, $1::int)`, n); err != nil {
			t.Fatal(err)
		}
	}
	insertAll(1000)
	for range 8 { // a quarter of ten slots, and five eighths of them for what is background
		lab.awaitBegin(t)
	}
	if r := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{}),
		CreatedBy: "ada"}); r.Status != receipts.Succeeded {
		t.Errorf("%+v", r)
	}
	var running, queued int
	if err := env.DB.QueryRow(t.Context(), `select count(*) filter (where status = 'running'),
		count(*) filter (where status = 'queued' and level = -500)
		from core_tool_calls where created_by = 'grace'`).Scan(&running, &queued); err != nil {
		t.Fatal(err)
	}
	if running != 8 || queued != 992 {
		t.Errorf("%d of the calls of the one who crowds run, and %d wait as background", running, queued)
	}
	// When a background call has ended, the next takes its place; two of the eight are none.
	for range 3 {
		lab.tell(t, "g", Order{})
	}
	lab.awaitBegin(t)
}

// Two programs share a database, and a deploy needs no order: a call goes to a worker whose registry has its tool.
func TestACallIsLeftToAWorkerThatKnowsItsTool(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"})
	other := env.StartWorker(func(o *worker.Options) {
		o.Registry = must(registry.Parse(labRegistry("2.0.0", tool{name: "lab.nothing"})))
	})
	// and is busy
	runSQL(t, connection(t, env), "select gem.start_worker('knows it', 1, '', '1.0.0', '1 hour', '{tool lab.send}')")
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	env.Until("the call to be left to the other", func() bool { return len(env.Journal(id)) == 3 })
	// this worker continues, and does not claim that call again
	env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{})})
	if diff := cmp.Diff([]string{"queued", "claimed", "released"}, env.Journal(id)); diff != "" ||
		len(lab.sentSoFar()) != 0 {
		t.Fatal(diff, lab.sentSoFar())
	}
	if e := handlertest.ErrorOf(t, env.Run(handlertest.Call{Tool: "lab.nothink"})); e.Code != receipts.UnknownTool ||
		!strings.Contains(e.Message, "did you mean lab.nothing?") {
		t.Errorf("a tool that nobody knows: %+v", e)
	}
	env.StartWorker()
	if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 2 || r.WorkerID == other.ID() {
		t.Errorf("%+v", r)
	}
}

// A worker that was suspended for longer than rows of dead workers are kept continues when it wakes up.
func TestAWorkerWhoseRowHasLeftRegistersAgain(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.nothing"})
	w := env.StartWorker()
	env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{})})
	runSQL(t, connection(t, env), "delete from core_workers")
	if r := env.Run(handlertest.Call{Tool: "lab.nothing", Input: task(Task{})}); r.Status != receipts.Succeeded ||
		r.WorkerID != w.ID() {
		t.Errorf("%+v", r)
	}
}

// While a program restarts, another whose registry lacks its tools may claim its calls. No call ends for that, and one
// that had run does not end as if its tool had never been known.
func TestACallOfAToolThatNobodyKnowsAnyMoreSaysWhatMayHaveHappened(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.nothing"})
	db := connection(t, env)
	runSQL(t, db, "select gem.start_worker('stops', 9, '', '1.0.0', '1 hour', '{tool lab.send}')")
	lost := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	runSQL(t, db, "select gem.claim('stops', 1, true)")
	runSQL(t, db, "select gem.stop_worker('stops')")
	fresh := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	env.StartWorker()
	for _, id := range []string{lost, fresh} {
		env.Until("the call to be left to the program that stopped", func() bool {
			journal := env.Journal(id)
			return journal[len(journal)-1] == "released"
		})
	}
	runSQL(t, db, "update core_workers set alive_until = alive_until - interval '6 minutes' where worker_id = 'stops'")
	runSQL(t, db, "update core_tool_calls set needs = null") // as a sweep does
	if e := handlertest.ErrorOf(t, env.Await(lost)); e.Code != receipts.OutcomeUnknown {
		t.Errorf("a call that had run: %+v", e)
	}
	if e := handlertest.ErrorOf(t, env.Await(fresh)); e.Code != receipts.UnknownTool {
		t.Errorf("a call that had not: %+v", e)
	}
}

package worker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
)

// sharing makes a worker run twenty calls at once over the connections given.
func sharing(t *testing.T, env *handlertest.Env, connections int, pooled bool) func(*worker.Options) {
	t.Helper()
	calls, control := env.Pool(connections, pooled), env.Pool(2, pooled)
	return func(o *worker.Options) { o.Calls, o.Control, o.Concurrency = calls, control, 20 }
}

// A failure of one call affects no other call on its connection.
func TestCallsThatShareAConnectionEndEachAsItShould(t *testing.T) {
	t.Parallel()
	ends := []struct {
		tool, then string
		status     receipts.Status
		code       receipts.Code
	}{
		{"lab.write", "", receipts.Succeeded, ""},
		{"lab.write", "another statement", receipts.Succeeded, ""},
		{"lab.write", "swallow", receipts.Failed, receipts.ExecutionError},
		{"lab.write", "deferred constraint", receipts.Failed, receipts.ExecutionError},
		{"lab.write", "nul", receipts.Failed, receipts.OutputInvalid},
		{"lab.write", "panic", receipts.Failed, receipts.Panic},
		{"lab.write", "goexit", receipts.Failed, receipts.Panic},
		{"lab.send", "", receipts.Succeeded, ""},
		{"lab.send", "fail", receipts.Failed, receipts.ExecutionError},
		{"lab.send", "nul", receipts.Failed, receipts.OutputInvalid},
		{"lab.nothing", "", receipts.Succeeded, ""},
		{"lab.nothing", "transient once", receipts.Succeeded, ""},
	}
	for _, connections := range []int{1, 2, 5} {
		for _, pooled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d connections, pooled %v", connections, pooled), func(t *testing.T) {
				t.Parallel()
				env, _ := startLab(t, nil, tool{name: "lab.write"}, tool{name: "lab.send"}, tool{name: "lab.nothing"})
				const each = 8
				ids := map[string]int{}
				for range each {
					for i, e := range ends {
						ids[env.Insert(handlertest.Call{Tool: e.tool, Input: task(Task{Text: e.then + "!", Then: e.then})})] = i
					}
				}
				env.StartWorker(sharing(t, env, connections, pooled))
				for id, i := range ids {
					r := env.Await(id)
					e, _ := r.Error()
					if want := ends[i]; r.Status != want.status || e.Code != want.code {
						t.Errorf("%s %q: %s %s", want.tool, want.then, r.Status, r.Result)
					}
				}
				for then, want := range map[string]int{"": each, "another statement": each, "swallow": 0, "deferred constraint": 0,
					"nul": 0, "panic": 0} {
					if rows := rowsWith(t, env, then+"!"); rows != want {
						t.Errorf("rows of %q: got %d, want %d", then, rows, want)
					}
				}
			})
		}
	}
}

// Preparing a statement takes locks, and may wait for one: receipts do not wait with it.
func TestAStatementThatWaitsToBePreparedHoldsUpNoReceipt(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"}, tool{name: "lab.star"})
	connections := 1
	if !testdb.RouteTo(t, env.URL).Mode.KeepsSession() {
		connections = 2 // nothing is sent together there, and preparing has its connection to itself
	}
	var ending atomic.Int64
	env.StartWorker(func(o *worker.Options) {
		sharing(t, env, connections, false)(o)
		worker.SetHook(o, func(point string) {
			if point == "before receipt" {
				ending.Add(1)
			}
		})
	})
	slow := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "slow", Gate: "g"})})
	lab.awaitBegin(t)
	row, table := lock(t, env, "select from core_tool_calls where id = '"+slow+"' for update"),
		lock(t, env, "lock table lab_rows")
	lab.tell(t, "g", Order{})
	env.Until("the receipt to wait for the lock", func() bool { return waitsForALock(t, env) })
	star := env.Insert(handlertest.Call{Tool: "lab.star", Input: task(Task{Text: "x"})})
	var others []string
	for range 5 {
		others = append(others, env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "other"})}))
	}
	env.Until("the others to end", func() bool { return ending.Load() == 6 })
	time.Sleep(500 * time.Millisecond) // let them come to wait behind it
	row()
	for _, id := range others {
		env.Await(id)
	}
	if n := env.Logs.FilterMessage("could not write the receipt, trying again").Len(); n > 0 {
		t.Errorf("%d receipts waited in vain", n)
	}
	table()
	if r := env.Await(star); r.Status != receipts.Succeeded {
		t.Errorf("%s", r.Result)
	}
}

// What a handler passes to a statement is its own again when the statement returns, whatever has become of it by then.
func TestAnArgumentIsNotUsedAfterItsStatementReturned(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.hasty", attempts: 1})
	env.StartWorker(sharing(t, env, 1, false))
	unlock := lock(t, env, "lock table lab_rows") // which preparing the statement waits for
	id := env.Insert(handlertest.Call{Tool: "lab.hasty", Input: task(Task{Text: "x", Gate: "g"})})
	env.Until("the statement to wait for the lock", func() bool { return waitsForALock(t, env) })
	lab.tell(t, "g", Order{})
	lab.awaitBegin(t) // its handler continues
	unlock()
	env.Await(id)
	if n := lab.trespasses.Load(); n != 0 {
		t.Errorf("an argument was used %d times after its statement had returned", n)
	}
}

// lock runs a statement that locks something, until the function is called that it returns.
func lock(t *testing.T, env *handlertest.Env, sql string) (unlock func()) {
	t.Helper()
	tx, err := env.DB.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock = func() { _ = tx.Rollback(context.Background()) }
	t.Cleanup(unlock)
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return unlock
}

func waitsForALock(t *testing.T, env *handlertest.Env) (waiting bool) {
	t.Helper()
	err := env.DB.QueryRow(t.Context(), "select exists (select from pg_stat_activity where datname = current_database() "+
		"and wait_event_type = 'Lock')").Scan(&waiting)
	return err == nil && waiting
}

// A call that had no connection in all its time ran nothing, and is put back.
func TestACallThatGetsNoConnectionRunsLater(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.write"}, tool{name: "lab.star", timeout: 200 * time.Millisecond})
	putBack, goOn := make(chan struct{}), make(chan struct{})
	hasty := env.StartWorker(sharing(t, env, 1, false), func(o *worker.Options) {
		o.ShutdownGrace = time.Minute
		worker.SetHook(o, func(point string) {
			if point == "before retried" {
				close(putBack)
				<-goOn
			}
		})
	})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	long := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "long", Gate: "g"})})
	lab.awaitBegin(t)
	short := env.Insert(handlertest.Call{Tool: "lab.star", Input: task(Task{Text: "short"})})
	select {
	case <-putBack: // which has to wait for a connection too
	case <-time.After(time.Minute):
		t.Fatal("the short one was not put back")
	}
	lab.tell(t, "g", Order{})
	// It runs again where it has time enough.
	stopped := make(chan struct{})
	go func() { hasty.Stop(); close(stopped) }()
	env.Until("the worker to claim no more", func() bool {
		return env.Logs.FilterMessage("stopping: waiting for running "+
			"calls").Len() == 1
	})
	release()
	<-stopped
	env.StartWorker(func(o *worker.Options) {
		o.Registry = must(registry.Parse(labRegistry("1.0.1", tool{name: "lab.write"}, tool{name: "lab.star"})))
	})
	for id, attempt := range map[string]int{long: 1, short: 2} {
		if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != attempt {
			t.Errorf("attempt %d: %s", r.Attempt, r.Result)
		}
	}
}

// A receipt that Postgres keeps waiting holds up those behind it for some time, and none of them is lost or doubled.
func TestAReceiptThatWaitsForALockLosesNoOther(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"})
	env.StartWorker(sharing(t, env, 1, false))
	slow := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "slow", Gate: "g"})})
	lab.awaitBegin(t)
	tx, err := env.DB.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "select from core_tool_calls where id = $1 for update", slow); err != nil {
		t.Fatal(err)
	}
	lab.tell(t, "g", Order{})
	env.Until("the receipt to wait for the lock", func() bool { return waitsForALock(t, env) })
	others := make([]string, 30)
	for i := range others {
		others[i] = env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "other"})})
	}
	time.Sleep(100 * time.Millisecond) // let them come to wait behind it
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range append(others, slow) {
		if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 1 {
			t.Errorf("attempt %d: %s", r.Attempt, r.Result)
		}
	}
}

// A migration changes the columns of a table while workers run: what was prepared before is prepared again.
func TestColumnsThatChangeCostNoCall(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprint("pooled ", pooled), func(t *testing.T) {
			t.Parallel()
			env, _ := startLab(t, nil, tool{name: "lab.star"})
			env.StartWorker(sharing(t, env, 2, pooled))
			for i := range 4 {
				if r := env.Run(handlertest.Call{Tool: "lab.star", Input: task(Task{Text: "x"})}); r.Status != receipts.Succeeded {
					t.Errorf("after %d changes: %s", i, r.Result)
				}
				if _, err := env.DB.Exec(t.Context(), fmt.Sprintf("alter table lab_rows add column more%d text", i)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Arguments are encoded where other calls are sent too: one that panics there ends its own call.
func TestAnArgumentThatPanicsCostsItsCallAlone(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.bomb"}, tool{name: "lab.write"})
	env.StartWorker(sharing(t, env, 1, false))
	var bombs, others []string
	for range 10 {
		bombs = append(bombs, env.Insert(handlertest.Call{Tool: "lab.bomb", Input: task(Task{Text: "x"})}))
		others = append(others, env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})}))
	}
	for i := range bombs {
		if r := env.Await(bombs[i]); r.Status != receipts.Failed {
			t.Errorf("a bomb: %s", r.Result)
		}
		if r := env.Await(others[i]); r.Status != receipts.Succeeded || r.Attempt != 1 {
			t.Errorf("beside a bomb: attempt %d: %s", r.Attempt, r.Result)
		}
	}
}

// A statement that the server has forgotten, as after `deallocate all`, is prepared again, and the call runs again.
func TestAForgottenStatementCostsNoCall(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"}, tool{name: "lab.send"})
	env.StartWorker(sharing(t, env, 1, false))
	for range 3 {
		for _, c := range []handlertest.Call{
			{Tool: "lab.write", Input: task(Task{Text: "x", Then: "forget"})},
			{Tool: "lab.write", Input: task(Task{Text: "x"})},
			{Tool: "lab.send", Input: task(Task{Text: "x"})},
		} {
			if r := env.Run(c); r.Status != receipts.Succeeded {
				t.Errorf("%s: %s", c.Tool, r.Result)
			}
		}
	}
}

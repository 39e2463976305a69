package worker_test

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A server that takes no receipt, for reasons of its own, gets it when it does again: what a handler did outside is not
// done twice for it, and not reported as the handler's fault.
func TestAServerThatRefusesReceiptsForAWhileGetsThem(t *testing.T) {
	t.Parallel()
	const readOnly = "default_transaction_read_only = on"
	for what, setting := range map[string]string{
		"it takes no writes":              readOnly,
		"it waits for no lock":            "lock_timeout = '50ms'",
		"its statements have little time": "statement_timeout = '50ms'",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			env, lab := startLab(t, nil, tool{name: "lab.send"})
			env.StartWorker()
			id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"})})
			lab.awaitBegin(t)

			admin, lock := connection(t, env), connection(t, env)
			if setting != readOnly {
				runSQL(t, lock, "begin; lock table core_tool_receipts in share mode")
			}
			runSQL(t, admin, "set default_transaction_read_only = off") // for itself
			database := strings.TrimPrefix(must(url.Parse(env.URL)).Path, "/")
			runSQL(t, admin, fmt.Sprintf("alter database %s set %s", database, setting))
			endAll := func() {
				runSQL(t, admin, fmt.Sprintf("select pg_terminate_backend(pid) from pg_stat_activity where datname = '%s' and "+
					"pid not in (%d, %d)",
					database, admin.PgConn().PID(), lock.PgConn().PID()))
			}
			endAll()
			lab.tell(t, "g", Order{})
			refused := func() int { return env.Logs.FilterMessage("could not write the receipt, trying again").Len() }
			before := refused()
			env.Until("the receipt to be refused", func() bool { return refused() > before+2 })
			runSQL(t, admin, fmt.Sprintf("alter database %s reset %s", database, strings.Fields(setting)[0]))
			runSQL(t, lock, "rollback")
			if os.Getenv("GEM_TEST_POOLER") != "" { // which keeps connections as they began
				endAll()
			}
			env.DB.Reset()

			if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 1 {
				t.Errorf("attempt %d: %s", r.Attempt, r.Result)
			}
			if sent := lab.sentSoFar(); len(sent) != 1 {
				t.Errorf("sent %d times", len(sent))
			}
		})
	}
}

// If the database refuses every receipt of a call that ran, the call is not released as if it had not run. Its worker
// keeps trying until a receipt is accepted.
func TestAWorkerGoesOnTryingToWriteAReceiptThatIsRefused(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{"check_violation", "foreign_key_violation"} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			triesToWriteAReceipt(t, condition)
		})
	}
}

func triesToWriteAReceipt(t *testing.T, condition string) {
	t.Helper()
	env, lab := startLab(t, nil, tool{name: "lab.send"})
	admin := connection(t, env)
	runSQL(t, admin, `
		create function refuse() returns trigger language plpgsql as $$ begin
			raise `+condition+` using message = 'no'; end $$;
		create trigger refuse before insert on core_tool_receipts for each row execute function refuse()`)
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	refused := func() int { return env.Logs.FilterMessage("could not write the receipt, trying again").Len() }
	env.Until("the receipt to be refused", func() bool { return refused() > 4 })
	// A worker whose connections were cut looks over all calls that it has: see heartbeat.go.
	runSQL(t, admin, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid "+
		"<> pg_backend_pid()")
	env.DB.Reset()
	before := refused()
	env.Until("it to be refused again", func() bool { return refused() > before+2 })
	runSQL(t, admin, "drop trigger refuse on core_tool_receipts")
	r := env.Await(id)
	if e := handlertest.ErrorOf(t, r); e.Code != receipts.OutputInvalid || r.Attempt != 1 {
		t.Errorf("attempt %d: %+v", r.Attempt, e)
	}
	if sent := lab.sentSoFar(); len(sent) != 1 {
		t.Errorf("sent %d times", len(sent))
	}
}

// What Postgres cannot store with its effects, it gets without.
func TestAReceiptWhoseEffectsAreRefusedIsWrittenWithout(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, nil, tool{name: "lab.send"})
	runSQL(t, connection(t, env), `
		create function refuse() returns trigger language plpgsql as $$ begin raise program_limit_exceeded
			using message = 'too large'; end $$;
		create trigger refuse before insert on core_tool_receipts for each row
			when (new.effects <> '{}') execute function refuse()`)
	env.StartWorker()
	r := env.Run(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	if e := handlertest.ErrorOf(t, r); e.Code != receipts.OutputInvalid || string(r.Effects) != "{}" || r.Attempt != 1 {
		t.Errorf("attempt %d: %+v, effects %s", r.Attempt, e, r.Effects)
	}
	if sent := lab.sentSoFar(); len(sent) != 1 {
		t.Errorf("sent %d times", len(sent))
	}
}

// The receipt that a call was to repeat may be pruned in the moment before: the call is decided again.
func TestACallWhoseHitWasPrunedIsDecidedAgain(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write", mode: "keyed", keyField: "key"})
	env.StartWorker()
	first := env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "first", Key: "k"})})
	admin := connection(t, env)
	// At its first try the second receipt finds that the first has gone, as after gem.prune.
	runSQL(t, admin, `create table public.gone (n int); create function prune_once() returns trigger
		language plpgsql as $$ begin
			if new.replay_of is not null and not exists (select from public.gone) then
				raise foreign_key_violation using message = 'gone';
			end if;
			return new;
		end $$;
		create trigger prune_once before insert on core_tool_receipts for each row execute function prune_once()`)
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "second", Key: "k"})})
	env.Until("the call to be decided again", func() bool { return len(env.Journal(id)) >= 4 })
	runSQL(t, admin, "insert into gone values (1)")
	if r := env.Await(id); r.ReplayOf != first.ID {
		t.Errorf("%+v", r)
	}
}

// A handler's first statement may have to be prepared, and waits for a lock as any other does: as long as its tool may
// take.
func TestAFirstStatementWaitsForALockAsLongAsItsToolMayTake(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	lock := connection(t, env)
	runSQL(t, lock, "begin; lock table lab_rows")
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	env.Until("the statement to wait", func() bool { return waitingForLocks(t, env) == 1 })
	time.Sleep(11 * time.Second) // longer than a statement of the worker's own may take
	runSQL(t, lock, "rollback")
	if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 1 {
		t.Errorf("attempt %d: %s", r.Attempt, r.Result)
	}
}

// What waits to be prepared is cancelled on the server with its call.
func TestAFirstStatementEndsWithItsCall(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	lock := connection(t, env)
	runSQL(t, lock, "begin; lock table lab_rows")
	env.StartWorker()
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	env.Until("the statement to wait", func() bool { return waitingForLocks(t, env) == 1 })
	runSQL(t, connection(t, env), "select cancel_tool_call('"+id+"')")
	if e := handlertest.ErrorOf(t, env.Await(id)); e.Code != receipts.Cancelled {
		t.Errorf("%+v", e)
	}
	env.Until("nothing to wait on the server", func() bool { return waitingForLocks(t, env) == 0 })
}

func waitingForLocks(t *testing.T, env *handlertest.Env) (n int) {
	t.Helper()
	if err := env.DB.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() "+
		"and wait_event_type = 'Lock'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func connection(t *testing.T, env *handlertest.Env) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), env.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

func runSQL(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Each slot, the claims and the heartbeats notice that the server is away.
func TestAnOutageIsOneWarningASecondAtMost(t *testing.T) {
	t.Parallel()
	env, lab := startLab(t, func(o *worker.Options) { o.Concurrency = 8 }, tool{name: "lab.send"})
	env.StartWorker()
	var ids []string
	for n := range 8 {
		ids = append(ids, env.Insert(handlertest.Call{Tool: "lab.send",
			Input: task(Task{Text: fmt.Sprint(n), Gate: fmt.Sprint(n)})}))
		lab.awaitBegin(t)
	}
	admin := connection(t, env)
	database := strings.TrimPrefix(must(url.Parse(env.URL)).Path, "/")
	runSQL(t, admin, "set default_transaction_read_only = off") // for itself
	runSQL(t, admin, "alter database "+database+" set default_transaction_read_only = on")
	runSQL(t, admin, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid "+
		"<> pg_backend_pid()")
	for n := range 8 {
		lab.tell(t, fmt.Sprint(n), Order{})
	}
	troubles := func() []observer.LoggedEntry {
		return env.Logs.Filter(func(e observer.LoggedEntry) bool { return strings.HasPrefix(e.Message, "could not ") }).All()
	}
	env.Until("each slot to have tried three times", func() bool { return len(troubles()) >= 3*8 })
	all, warnings, unsaid := troubles(), 0, int64(0)
	for _, e := range all {
		if e.Level == zap.WarnLevel {
			warnings++
			if left, ok := e.ContextMap()["left_out_before"].(int64); ok {
				unsaid += left
			}
		}
	}
	// Two more: one for rounding, one for a warning whose time was read just before.
	if seconds := int(all[len(all)-1].Time.Sub(all[0].Time).Seconds()); warnings == 0 || warnings > seconds+2 ||
		unsaid > int64(len(all)-warnings) {
		t.Errorf("%d warnings in %d s, which speak of %d of the %d others", warnings, seconds, unsaid, len(all)-warnings)
	}
	runSQL(t, admin, "alter database "+database+" reset default_transaction_read_only")
	// A pooler keeps server connections that were opened while no writes were taken.
	runSQL(t, admin, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid "+
		"<> pg_backend_pid()")
	env.DB.Reset()
	for _, id := range ids {
		if r := env.Await(id); r.Status != receipts.Succeeded || r.Attempt != 1 {
			t.Errorf("attempt %d: %s", r.Attempt, r.Result)
		}
	}
}

// The transaction of a handler does not depend on the server's default, whatever the worker is connected through.
func TestAHandlersTransactionReadsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	admin := connection(t, env)
	runSQL(t, admin, "alter database "+strings.TrimPrefix(must(url.Parse(env.URL)).Path, "/")+
		" set default_transaction_isolation = serializable")
	runSQL(t, admin, `create function look() returns trigger language plpgsql as $$ begin
			new.text = current_setting('transaction_isolation'); return new;
		end $$;
		create trigger look before insert on lab_rows for each row execute function look()`)
	env.StartWorker(sharing(t, env, 4, true))
	env.Run(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	if rowsWith(t, env, "read committed") != 1 {
		t.Error("the transaction has another level")
	}
}

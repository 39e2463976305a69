package worker_test

import (
	"fmt"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
)

// A failover may set the database back while a handler runs, whose attempt then knows of steps and calls that are not
// there. It neither ends the call nor waits for them: the call begins again with what its journal has.
func TestAnAttemptThatKnowsMoreThanTheDatabaseBeginsAgain(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"at its end":      "gate before; down 0; gate after",
		"before it waits": "gate before; down 0; start a lab.write; hear x; wait x; gate after; wait a",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, lab := startTree(t, nil)
			env.StartWorker()
			id := startTreeCall(env, script)
			lab.awaitBegin(t)
			env.Answer(id, "go", "x")
			events := number(t, env, "select events from core_tool_calls")
			lab.tell(t, "before", Order{})
			lab.awaitBegin(t)
			env.Until("its child to end", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where status <> 'succeeded'") == 1
			})

			setBack(t, env, id, events)
			close(lab.gate("after"))
			close(lab.gate("before"))
			textOf(t, env.Await(id))
			if n := rowsWith(t, env, id); n != 1 {
				t.Errorf("its row is there %d times", n)
			}
			sound(t, env)
		})
	}
}

// A worker hears of a failover by the end of its connection for notifications, also while it has nothing to say.
func TestACallWhoseEndTheDatabaseLostRunsAgain(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	env.StartWorker()
	listens := "select count(*) from pg_stat_activity where application_name = 'gem listen' and datname = " +
		"current_database()"
	env.Until("the worker to listen", func() bool { return number(t, env, listens) == 1 })
	id := env.Insert(handlertest.Call{Tool: "lab.write", Input: task(Task{Text: "x"})})
	env.Await(id)

	setBack(t, env, id, 2)
	number(t, env, "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'gem listen' "+
		"and datname = current_database()")
	env.Await(id)
	if n := rowsWith(t, env, "x"); n != 1 {
		t.Errorf("its row is there %d times", n)
	}
	sound(t, env)
}

// setBack restores the state of the database at the first attempt of a call, when the call had this many events, no
// step and no other attempt.
func setBack(t *testing.T, env *handlertest.Env, id string, events int) {
	t.Helper()
	if _, err := env.DB.Exec(t.Context(), fmt.Sprintf(`
		set session_replication_role = replica; -- past the guards
		delete from lab_rows; delete from core_tool_receipts; delete from core_tool_calls where id <> '%[1]s';
		delete from core_tool_events where call_id <> '%[1]s' or seq > %[2]d;
		update core_tool_calls set status = 'running', steps = 0, events = %[2]d;
		set session_replication_role = origin`, id, events)); err != nil {
		t.Fatal(err)
	}
}

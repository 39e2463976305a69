package worker_test

import (
	"fmt"
	"testing"
)

// A failover may set the database back while a handler runs, whose attempt then knows of steps and calls that are not there. It neither ends
// the call nor waits for them: the call begins again with what its journal has.
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
			env.Until("the child ends", func() bool {
				return number(t, env, "select count(*) from core_tool_calls where status <> 'succeeded'") == 1
			})
			if _, err := env.DB.Exec(t.Context(), fmt.Sprintf(`
				set session_replication_role = replica; -- past the guards
				delete from lab_rows; delete from core_tool_receipts; delete from core_tool_calls where id <> '%[1]s';
				delete from core_tool_events where call_id <> '%[1]s' or seq > %[2]d;
				update core_tool_calls set steps = 0, events = %[2]d;
				set session_replication_role = origin`, id, events)); err != nil {
				t.Fatal(err)
			}
			close(lab.gate("after"))
			close(lab.gate("before"))
			textOf(t, env.Await(id))
			if n := number(t, env, "select count(*) from lab_rows where text = $1", id); n != 1 {
				t.Errorf("its row is there %d times", n)
			}
			sound(t, env)
		})
	}
}

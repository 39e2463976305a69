//go:build !windows

package chaos

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// After a failover to a server that lagged, Postgres is in an earlier state while the workers have moved on. Every call
// that it still has must end, including calls that had ended before, and must have its rows once. If the server still
// has the claim of a call with an effect outside, its worker writes the end again.
//
// Two things cannot be repaired, and the test reports how often they happen. A call inserted in the lost time is gone.
// For GEM this is a restart, as when a disk is copied back, so that claims of the lost time are not written again: such
// a request to a server outside is sent again, even if it must not happen twice.
func TestAFailoverThatLosesTheLastCommitsLeavesNoCallOpen(t *testing.T) {
	const few = 2 // calls held in their slots: all together they leave one slot free, even if one worker has them all
	a := startAsking(t, 50)
	if os.Getenv("GEM_TEST_LONG") != "" {
		a.calls = 300
	}
	outside := a.h.outside

	// Before the copy some calls begin to wait, and others run. Then the workers are paused, and the other calls are
	// queued.
	a.insert()
	a.make("waits", flow, few)
	a.until(a.calls+few, isWaiting)
	a.until(few, "session_id = 'waits' and waits_for = 'call'")
	outside.hold(flowStep, send, flowOnce, ping)
	a.make("runs", flow, few)
	a.make("runs", send, few)
	a.arrive(flowStep, 2*few)
	a.arrive(send, few)
	a.until(1, "(select count(*) from core_workers) = 2")
	workers := []*process{a.h.workerAt(0), a.h.workerAt(1)}
	a.signal(workers, syscall.SIGSTOP)
	a.make("queued", ping, few)
	a.make("queued", write, a.calls)
	if err := a.h.server.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	saved := a.receipts()

	// In the lost time the waiting calls are answered and end. The running calls end or continue. The queued calls end or
	// run, and new calls arrive.
	a.signal(workers, syscall.SIGCONT)
	outside.release(flowStep, send)
	a.exec(answerAll + " where tool_name = 'wait.answer' and session_id is distinct from 'runs'")
	a.make("new", write, a.calls)
	a.make("new", ping, 1)
	a.until(a.calls+2*few, "tool_name in ('wait.answer', 'lab.flow') and session_id is distinct from 'runs' and status "+
		"= 'succeeded'")
	a.until(few, "tool_name = 'lab.send' and status = 'succeeded'")
	a.until(2*a.calls, "tool_name = 'lab.write' and session_id in ('queued', 'new') and status = 'succeeded'")
	a.arrive(flowOnce, 2*few)
	a.arrive(ping, few+1)
	lost := slices.DeleteFunc(a.receipts(), func(id string) bool { return slices.Contains(saved, id) })

	if err := a.h.server.goBack(t.Context()); err != nil {
		t.Fatal(err)
	}
	outside.release(flowOnce, ping)
	for deadline := time.Now().Add(3 * patience); a.count("status not in ('succeeded', 'failed')") != 0; sleep(t.Context(),
		50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d calls are open", a.count("status not in ('succeeded', 'failed')"))
		}
		a.exec(answerAll + " where tool_name = 'wait.answer' and status = 'waiting'")
	}

	kept := a.receipts()
	if n := len(slices.DeleteFunc(slices.Clone(lost),
		func(id string) bool { return slices.Contains(kept, id) })); n != len(lost)-few || n < 3*a.calls {
		t.Errorf("%d of %d receipts were lost", n, len(lost))
	}
	for fault, where := range map[string]string{
		"is there, and came after the copy": "session_id = 'new'",
		"did not succeed":                   "status <> 'succeeded'",
		"does not have its row once": `tool_name = 'lab.write'
			and (select count(*) from lab_rows w where w.call_id = core_tool_calls.id) <> 1
			or tool_name = 'lab.flow' and (select count(*) from lab_steps s where s.call_id = core_tool_calls.id) <> 1`,
	} {
		if n := a.count(where); n != 0 {
			t.Errorf("%d times a call %s", n, fault)
		}
	}
	a.reached(map[string]int{
		"waits lab.flow flow.step": 1, "waits lab.flow flow.once": 1, // these are in the copy
		"runs lab.flow flow.step": 2, "runs lab.flow flow.once": 2, "runs lab.send lab.send": 1,
		"queued lab.ping lab.ping": 2,
		"  lab.ping":               1, // of the call that is gone
		// the worker that runs one may claim it again, and end it with the result of the first attempt
	}, "queued lab.ping lab.ping")
	a.sound()
	for slot, w := range workers {
		if a.h.workerAt(slot) != w || !w.runs() {
			t.Errorf("%s has ended: %s", w.name, w.last)
		}
	}
}

// make inserts calls to a tool with the given session.
func (a *asking) make(session, tool string, calls int) {
	a.exec(`insert into core_tool_calls (session_id, tool_name, input) select $1, $2, '{"takes_ms": 0}'
		from generate_series(1, $3)`, session, tool, calls)
}

func (a *asking) signal(workers []*process, signal syscall.Signal) {
	a.t.Helper()
	for _, w := range workers {
		if err := w.cmd.Process.Signal(signal); err != nil {
			a.t.Fatal(err)
		}
	}
}

// arrive waits until calls to a tool have reached the server outside the given number of times in total.
func (a *asking) arrive(tool string, times int) {
	a.t.Helper()
	for deadline := time.Now().Add(patience); ; sleep(a.t.Context(), 5*time.Millisecond) {
		n := 0
		for _, came := range a.h.outside.arrived() {
			if came.Tool == tool {
				n++
			}
		}
		if n >= times {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("%s has arrived %d times, and was to arrive %d times", tool, n, times)
		}
	}
}

// reached compares how often each call has reached the server outside, by its session and tool and by the name that it
// sends there. A call of the kind once may also have arrived once.
func (a *asking) reached(want map[string]int, once string) {
	a.t.Helper()
	times := map[arrival]int{}
	for _, came := range a.h.outside.arrived() {
		times[arrival{CallID: came.CallID, Tool: came.Tool}]++
	}
	for of, got := range times {
		var session, tool string
		err := a.h.server.pool.QueryRow(a.t.Context(), "select session_id, tool_name from core_tool_calls where id = $1",
			of.CallID).Scan(&session, &tool)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			a.t.Fatal(err)
		}
		if kind := fmt.Sprintf("%s %s %s", session, tool, of.Tool); got != want[kind] && (kind != once || got != 1) {
			a.t.Errorf("%q has come %d times of one call, and was to come %d times", kind, got, want[kind])
		}
	}
}

func (a *asking) receipts() []string {
	a.t.Helper()
	rows, err := a.h.server.pool.Query(a.t.Context(), "select id::text from core_tool_receipts")
	if err != nil {
		a.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		a.t.Fatal(err)
	}
	return ids
}

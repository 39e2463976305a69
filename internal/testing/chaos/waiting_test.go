//go:build !windows

package chaos

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
)

// asking is a server of its own with workers, and some calls that ask.
type asking struct {
	t     *testing.T
	h     *harness
	calls int
}

func startAsking(t *testing.T, calls int) *asking {
	t.Helper()
	ctx := t.Context()
	h, err := open(ctx, Options{Workers: 2, Calls: 1}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var staff sync.WaitGroup
	for slot := range h.Workers {
		staff.Go(func() { h.keepWorking(working, slot) })
	}
	t.Cleanup(func() {
		stop()
		staff.Wait()
		if err := h.close(); err != nil {
			t.Error(err)
		}
	})
	return &asking{t, h, calls}
}

func (a *asking) count(where string) (n int) {
	if err := a.h.server.pool.QueryRow(a.t.Context(),
		"select count(*) from core_tool_calls where "+where).Scan(&n); err != nil {
		return -1 // the server is away
	}
	return n
}

func (a *asking) exec(sql string, args ...any) {
	a.t.Helper()
	// older connections are closed
	for deadline := time.Now().Add(patience); ; sleep(a.t.Context(), 50*time.Millisecond) {
		if _, err := a.h.server.pool.Exec(a.t.Context(), sql, args...); err == nil {
			return
		} else if time.Now().After(deadline) {
			a.t.Fatal(err)
		}
	}
}

// until waits until at least the given number of calls match a condition.
func (a *asking) until(least int, where string) {
	a.t.Helper()
	for deadline := time.Now().Add(3 * patience); a.count(where) < least; sleep(a.t.Context(), 5*time.Millisecond) {
		if time.Now().After(deadline) {
			a.t.Fatalf("%d of %d calls are %s", a.count(where), least, where)
		}
	}
}

func (a *asking) insert() {
	a.exec(`insert into core_tool_calls (tool_name, input) select 'wait.answer',
		'{"text": "?", "until": "2200-01-01T00:00:00Z"}' from generate_series(1, $1)`, a.calls)
}

// die crashes the server and starts it again.
func (a *asking) die() {
	a.t.Helper()
	if done, err := a.h.server.restart(a.t.Context(), true, 0); err != nil || !done {
		a.t.Fatal(done, err)
	}
}

func (a *asking) sound() {
	a.t.Helper()
	report, err := audit.Database(a.t.Context(), a.h.server.pool, audit.Options{})
	if err != nil || report.Faults > 0 {
		a.t.Errorf("%+v, %v", report, err)
	}
}

const (
	isWaiting = "status = 'waiting' and waits_for = 'answer'"
	answerAll = "select answer_tool_call(id, to_jsonb('yes'::text)) from core_tool_calls"
)

// Waiting calls are rows, so the server may crash and come back without any worker noticing them. Some are answered
// afterwards, and the others are cancelled.
func TestWhatWaitsOutlivesTheServer(t *testing.T) {
	a := startAsking(t, 100)
	if os.Getenv("GEM_TEST_LONG") != "" {
		a.calls = 10_000
	}
	a.insert()
	a.until(a.calls, isWaiting)
	a.die()
	a.exec(answerAll + " where seq % 2 = 0")
	a.exec("select cancel_tool_call(id) from core_tool_calls where seq % 2 = 1")
	a.until(a.calls, "status = 'succeeded' and seq % 2 = 0 or status = 'failed' and seq % 2 = 1")
	a.sound()
}

package chaos

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
)

// Calls that wait are rows: the server may die and come back without any worker having heard of them. Some are answered afterwards, and the others
// cancelled.
func TestWhatWaitsOutlivesTheServer(t *testing.T) {
	calls := 200
	if os.Getenv("GEM_TEST_LONG") != "" {
		calls = 10_000
	}
	ctx := t.Context()
	h, err := open(ctx, Options{Workers: 2, Calls: 1}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	working, stop := context.WithCancel(ctx)
	var staff sync.WaitGroup
	for slot := range h.Workers {
		staff.Go(func() { h.keepWorking(working, slot) })
	}
	defer func() {
		stop()
		staff.Wait()
		if err := h.close(); err != nil {
			t.Error(err)
		}
	}()
	count := func(where string) (n int) {
		if err := h.server.pool.QueryRow(ctx, "select count(*) from core_tool_calls where "+where).Scan(&n); err != nil {
			return -1 // the server is away
		}
		return n
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; sleep(ctx, 50*time.Millisecond) { // connections of before are closed
			if _, err := h.server.pool.Exec(ctx, sql, args...); err == nil {
				return
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	until := func(where string) {
		t.Helper()
		for deadline := time.Now().Add(3 * patience); count(where) != calls; sleep(ctx, 20*time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d calls are %s", count(where), calls, where)
			}
		}
	}
	exec(`insert into core_tool_calls (tool_name, input) select 'wait.answer', jsonb_build_object('text', '?', 'until', '2200-01-01T00:00:00Z')
		from generate_series(1, $1)`, calls)
	until("status = 'waiting' and waits_for = 'answer'")
	if done, err := h.server.restart(ctx, true, 0); err != nil || !done {
		t.Fatal(done, err)
	}
	exec("select answer_tool_call(id, to_jsonb('yes'::text)) from core_tool_calls where seq % 2 = 0")
	exec("select cancel_tool_call(id) from core_tool_calls where seq % 2 = 1")
	until("status = 'succeeded' and seq % 2 = 0 or status = 'failed' and seq % 2 = 1")
	report, err := audit.Database(ctx, h.server.pool, audit.Options{})
	if err != nil || report.Faults > 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

package migrations_test

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// A call whose own prompt makes a target fail does not keep the others from it.
func TestACallThatFailedAtATargetLeavesTheProbeToOthers(t *testing.T) {
	t.Parallel()
	const bad, good = "00000000-0000-7000-8000-0000000000b1", "00000000-0000-7000-8000-0000000000b2"
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, "insert into core_tool_calls (id, tool_name) values ('"+bad+"', 'llm.chat'), ('"+good+
		"', 'llm.chat')")
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour'); select gem.claim('w', 2, true)")
	begin := func(call string) (target string, wait int64) {
		t.Helper()
		if err := db.QueryRow(t.Context(), `select coalesce(target, ''), coalesce(wait_ms, 0) from gem.llm_begin(
			$1::text::uuid, 1, 'main', 'default', '1', null, '[{"target": "x", "provider": "p", "model": "m", "reserve": 1,
			"priced": true, "estimated_input": 9, "budgets": []}]')`, call).Scan(&target, &wait); err != nil {
			t.Fatal(err)
		}
		return target, wait
	}
	end := func(status string, failure bool) {
		t.Helper()
		testdb.Exec(t, db, "select gem.llm_end(max(id), $1, null, 200, 'req', 'm', 1, 1, 0, 0, 0, 'provider', 1, null, "+
			"1, 2, 0, null, $2) from core_llm_requests", status, failure)
	}
	for range 3 {
		begin(bad)
		end("cut", true)
	}
	setClock(t, db, 30_000)
	if target, wait := begin(bad); target != "" || wait != 10_000 {
		t.Errorf("the call that failed gets %q, or waits for %d ms", target, wait)
	}
	if target, _ := begin(good); target != "x" {
		t.Errorf("the other call gets %q", target)
	}
	end("done", false)
	if target, _ := begin(bad); target != "x" {
		t.Errorf("once the target works, the call gets %q", target)
	}

	// alone, it probes the target a little later
	end("cut", true)
	for range 2 {
		begin(bad)
		end("cut", true)
	}
	setClock(t, db, 60_000)
	if target, wait := begin(bad); target != "" || wait != 10_000 {
		t.Errorf("alone, it gets %q, or waits for %d ms", target, wait)
	}
	setClock(t, db, 70_000)
	if target, _ := begin(bad); target != "x" {
		t.Errorf("ten seconds later it gets %q", target)
	}
}

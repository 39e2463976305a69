package worker_test

import (
	"testing"
	"time"

	"github.com/gemworker/gem/handlers/handlertest"
)

func TestAWorkerCountsWhatHasEnded(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.write"})
	// A minute ago, as its id says too; what ended just now is counted later.
	_, err := env.DB.Exec(t.Context(), `
		update gem.outcomes_counted set upto = gem.first_id_at(now() - interval '2 minutes');
		insert into core_tool_receipts (id, call_id, tool_name, status, result, attempt, created_at, duration)
		select gem.first_id_at(now() - interval '1 minute'), gen_random_uuid(), 'lab.write', 'succeeded', '{}', 1,
			now() - interval '1 minute', '5 ms'`)
	if err != nil {
		t.Fatal(err)
	}
	env.StartWorker()
	env.Run(handlertest.Call{Tool: "lab.write", Input: `{"text": "now"}`})
	deadline := time.Now().Add(time.Minute)
	for counted := 0; counted == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing was counted")
		}
		if err := env.DB.QueryRow(t.Context(), "select coalesce(sum(succeeded + failed + refused + cancelled + "+
			"not_configured), 0) from gem.outcome_counts").Scan(&counted); err != nil {
			t.Fatal(err)
		}
	}
	var calls int
	if err := env.DB.QueryRow(t.Context(), "select sum(calls) from gem.outcomes where tool_name = 'lab.write'").
		Scan(&calls); err != nil || calls != 2 {
		t.Errorf("gem.outcomes has %d calls, %v", calls, err)
	}
}

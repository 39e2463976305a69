//go:build !windows

package chaos

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/handlers/llm"
)

// A run without faults means something only if the checks find the faults that exist.
func TestEachCheckFindsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	outside, err := startOutside(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer outside.close()
	models := startModels(1, false)
	defer models.server.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	env := handlertest.Start(t, handlertest.Options{
		Registry:    labRegistry(),
		Domains:     []any{Lab{outside: outside.url, client: client}, llm.Domain()},
		Environment: map[string]string{"LLM_ROUTES": models.routes()},
	})
	if _, err := env.DB.Exec(t.Context(), labTables); err != nil {
		t.Fatal(err)
	}
	all := plan(1, 120)
	for i := range all {
		all[i].Task.Takes, all[i].Delay = 0, 0
	}
	h := harness{server: &server{pool: env.DB}, counts: map[string]int{}}
	if err := h.insertBatch(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	answering, stop := context.WithCancel(t.Context())
	var answerer sync.WaitGroup
	answerer.Go(func() { h.answer(answering) })
	for _, c := range all {
		env.Await(c.ID)
	}
	stop()
	answerer.Wait()
	if err := record(t.Context(), env.DB, all, outside.arrived(), models.asked()); err != nil {
		t.Fatal(err)
	}
	if faults, _, err := examine(t.Context(), env.DB); err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}
	if faults, err := audited(t.Context(), env.DB); err != nil || len(faults) > 0 {
		t.Fatal(faults, err)
	}

	const success = "(select call_id from core_tool_receipts where status = 'succeeded' and replay_of is null and " +
		"tool_name = "
	planted := []struct{ promise, sql string }{
		{"a call that was inserted is there",
			"insert into lab_plan values (gen_random_uuid(), 'lab.send', '', null, false)"},
		{"a call ends",
			"update core_tool_calls set status = 'queued', claimed_by = null, claimed_at = null where id = " + success +
				"'lab.ping' limit 1)"},
		{"a call that ended has a receipt",
			"delete from core_tool_receipts where call_id = " + success + "'lab.ping' limit 1)"},
		{"a call has no second receipt",
			"drop index gem_receipts_one_per_call; " +
				"insert into core_tool_receipts (id, created_at, call_id, tool_name, status, attempt, result) select " +
				"gen_random_uuid(), created_at, call_id, tool_name, status, attempt, result from core_tool_receipts where " +
				"tool_name = 'lab.send' limit 1"},
		{"a transactional success has its row",
			"delete from lab_rows where call_id = " + success + "'lab.write' limit 1)"},
		{"a transactional success has no second row, and what did not succeed by running has none",
			"insert into lab_rows (call_id, attempt) select call_id, attempt from lab_rows limit 1"},
		{"what did not succeed by running has none",
			"insert into lab_rows (call_id, attempt) select id, attempt from core_tool_calls where status = 'failed' limit 1"},
		{"an effect that may not happen twice happens at most once",
			"insert into lab_arrivals select call_id, attempt + 1, tool from lab_arrivals where tool = 'lab.send' limit 1"},
		{"an attempt has its effect at most once",
			"insert into lab_arrivals select * from lab_arrivals where tool = 'lab.charge' limit 1"},
		{"a success outside is one: its attempt reached the server",
			"delete from lab_arrivals where call_id = " + success + "'lab.send' limit 1)"},
		{"what reached the server is an attempt that was made",
			"update lab_arrivals set attempt = 77"},
		{"a step that must not run twice has its effect at most once",
			"insert into lab_arrivals select call_id, attempt + 1, tool from lab_arrivals where tool = 'flow.once' limit 1"},
		{"the row of a step is there once", "insert into lab_steps select * from lab_steps limit 1"},
		{"a flow that succeeded has the effect of each step",
			"delete from lab_steps where call_id = " + success + "'lab.flow' limit 1)"},
		{"a flow is answered, and by the right answer", "update core_tool_receipts set result = result || '{\"answer\": " +
			"\"no\"}' where tool_name = 'wait.answer' and status = 'succeeded'"},
		{"a call of which people were to decide has an effect only once they approved it",
			"insert into core_rules_versions values ('1.0.0', repeat('0', 64), '{}', '0', now()); update core_tool_calls set " +
				"input = '{\"takes_ms\": 220}' where tool_name = 'lab.charge'"},
		{"a key succeeds once by running",
			"drop index gem_receipts_one_success_per_key; update core_tool_receipts set replay_of = null"},
		{"an attempt that began after its key's success has no effect",
			"insert into lab_arrivals select r.call_id, r.attempt, r.tool_name from core_tool_receipts r " +
				"join core_tool_receipts f on f.id = r.replay_of " +
				"where r.tool_name = 'lab.charge' and exists (select from core_tool_events e where e.call_id = r.call_id and " +
				"e.attempt = r.attempt and e.event = 'claimed' and e.at > f.created_at) limit 1"},
		{"the result of a call that ran is its attempt's own",
			"update core_tool_receipts set result = '{}' where status = 'succeeded' and tool_name = 'lab.send'"},
		{"each failure is in one notice",
			"insert into gem.notify_versions values ('1.0.0', repeat('0', 64), '{}', now(), now())"},
		{"a notice reaches the server outside",
			"insert into gem.notice_calls values (gen_random_uuid(), 'outside', '{}', null, now())"},
		{"nobody has a place, or waits for one, when all calls have ended", "insert into gem.rule_places values ('r/running', " +
			"1, now(), gen_random_uuid(), 'took', array[gen_random_uuid()], 0, 0, 1, '1', null)"},
		{"a request that reached a model is in the ledger", "delete from core_llm_requests where id in (select id from " +
			"core_llm_requests where status = 'done' limit 1)"},
		{"a request of the ledger reached its model, unless its attempt was cut short",
			"delete from lab_requests where n = 1"},
		{"a whole answer is in the ledger as its provider counted it",
			"update lab_requests set output_tokens = output_tokens + 1 where n = 1"},
		{"an answer is bought once", "insert into core_llm_requests (call_id, attempt, n, label, tool_name, route, " +
			"routes_version, target, provider, model, status, at, ended_at, reserved, estimated_input, spends) " +
			"select call_id, attempt, n + 1, label, tool_name, route, routes_version, target, provider, model, status, at, " +
			"ended_at, reserved, estimated_input, spends from core_llm_requests where status = 'done' limit 1"},
		{"a call's answer is that of its request", "update core_tool_receipts set result = result || '{\"text\": " +
			"\"other\"}' where tool_name = 'llm.chat' and status = 'succeeded'"},
		{"a session's models cost no more than it has", "update core_llm_requests set cost = 30000001 where status = 'done'"},
		{"a call ends as it was to end, or with a reason that its journal shows",
			"update lab_plan set ending = 'panic' where tool = 'lab.write'"},
	}
	tried := map[string]bool{}
	for _, p := range planted {
		tried[p.promise] = true
		if !found(t, env, p.sql, p.promise) {
			t.Errorf("%q finds nothing after: %s", p.promise, p.sql)
		}
	}
	for _, c := range checks {
		if !tried[c.promise] {
			t.Errorf("nothing is planted for %q", c.promise)
		}
	}
}

// found reports whether the check finds the violation that the statement makes. The statement is rolled back.
func found(t *testing.T, env *handlertest.Env, sql, promise string) bool {
	t.Helper()
	ctx := context.Background()
	tx, err := env.DB.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	// without triggers
	for statement := range strings.SplitSeq("set local session_replication_role = replica; "+sql, "; ") {
		if tag, err := tx.Exec(ctx, statement); err != nil || tag.RowsAffected() == 0 &&
			!strings.HasPrefix(statement, "set") && !strings.HasPrefix(statement, "drop") {
			t.Fatalf("%s: %v %v", statement, tag, err)
		}
	}
	faults, _, err := examine(ctx, tx)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, promise) })
}

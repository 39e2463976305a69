package migrations_test

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// A cancelled question is asked again. So users who cancel questions about their calls could have people asked
// without end.
func TestAUserCancelsTheCallAndNotTheQuestionAboutIt(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	if _, err := request(t, db, "authenticated", "ada",
		"insert into core_tool_calls (tool_name, session_id) values ('t.a', 's')"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "create view all_calls as select id, parent_call_id from core_tool_calls; grant select on "+
		"all_calls "+
		"to authenticated, service_role;"+
		"update core_tool_calls set status = 'running', attempt = 1, claimed_by = 'w', claimed_at = gem.now()")
	call := texts(t, db, "select id::text from core_tool_calls")[0]
	testdb.Exec(t, db, `select gem.gate('`+call+
		`', 1, 'w', null, '[{"rule": "big", "action": "ask", "kind": "call", "digest": "d", "ask_ms": 60000,
		"question": {"tool": "t.a", "input": {}, "by": ["role:boss"]}}]', '1', false, null)`)
	const (
		cancelQuestion = "select cancel_tool_call(id) from all_calls where parent_call_id is not null"
		open           = "select id::text from core_tool_calls where status = 'queued' and parent_step = '##d'"
	)
	if _, err := request(t, db, "authenticated", "ada", cancelQuestion); code(err) != "PT409" {
		t.Errorf("the question about her own call: %v", err)
	}
	if _, err := request(t, db, "authenticated", "eve", cancelQuestion); code(err) != "PT404" {
		t.Errorf("the question about another's call: %v", err)
	}
	if got := texts(t, db, open); len(got) != 1 {
		t.Errorf("%d questions are open", len(got))
	}
	if _, err := request(t, db, "authenticated", "ada", "select cancel_tool_call('"+call+"')"); err != nil {
		t.Errorf("her call: %v", err)
	}
	testdb.Exec(t, db, "select gem.run_timers('w', 9)")
	if got := texts(t, db, open); len(got) != 0 {
		t.Errorf("the question outlives its call")
	}
	if _, err := request(t, db, "authenticated", "ada", cancelQuestion); err != nil {
		t.Errorf("a question that has ended: %v", err)
	}
	if _, err := request(t, db, "service_role", "", cancelQuestion); err != nil {
		t.Errorf("a server: %v", err)
	}
}

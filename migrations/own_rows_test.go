package migrations_test

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// A user who asks for one receipt or journal pays for that, whatever number of calls the user has made.
func TestAUsersOneReceiptIsReadWithoutTheOtherCalls(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, created_by, run_at) select 'a.b', 'ada',
		now() + interval '1 day' from generate_series(1, 3000)`)
	testdb.Exec(t, db, `select cancel_tool_call(id) from core_tool_calls`)
	testdb.Exec(t, db, "analyze")
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const as = `select id::text from (select id from core_tool_calls order by seq desc limit 1) last,
		lateral (select set_config('request.jwt.claims', '{"sub": "ada", "role": "authenticated"}', true),
			set_config('role', 'gem_frontend', true)) s`
	for what, sql := range map[string]string{
		"the receipt":        "select status from core_tool_receipts where call_id = $1::text::uuid",
		"get_receipt":        "select get_receipt($1::text::uuid) ->> 'status'",
		"the journal":        "select count(*)::text from core_tool_events where call_id = $1::text::uuid",
		"the journal's last": "select event from core_tool_events where call_id = $1::text::uuid order by seq desc limit 1",
		"the receipt by joins": "select r.status from core_tool_calls c join core_tool_receipts r on r.call_id = c.id " +
			"where c.id = $1::text::uuid",
	} {
		read := 0
		for range 7 { // often enough for the plan that a connection keeps
			read = readsOf(t, conn.Conn(), "core_tool_calls", sql, as)
		}
		if read > 20 {
			t.Errorf("%s: %d rows and index entries of calls were read", what, read)
		}
	}
}

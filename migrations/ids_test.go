package migrations_test

import (
	"testing"

	"github.com/gemworker/gem/internal/testdb"
)

// A frontend may choose the ids of its calls, and those of one host may differ in their first half alone, as of version 1.
func TestReceiptsOfOneMomentHaveIdsOfTheirOwn(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	insert(t, db, ownClock)
	insert(t, db, `
		select gem.start_worker('w', 10, '', '', '5 s');
		insert into core_tool_calls (id, tool_name)
		select (lpad(to_hex(n), 8, '0') || '-0000-1000-8000-000000000000')::uuid, 'a.b' from generate_series(1, 2000) n`)
	insert(t, db, "select gem.finish(c.id, c.attempt, 'w', 'succeeded', '{}', '{}', '') from gem.claim('w', 1000, true) c")
	insert(t, db, "select cancel_tool_call(id) from core_tool_calls where status = 'queued'")
	if n := number(t, db, "select count(distinct id) from core_tool_receipts"); n != 2000 {
		t.Errorf("%v receipts", n)
	}
}

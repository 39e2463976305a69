package migrations_test

import (
	"fmt"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// A frontend may choose the ids of its calls, and those of one host may differ in their first half alone, as of version
// 1.
func TestReceiptsOfOneMomentHaveIdsOfTheirOwn(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, ownClock)
	testdb.Exec(t, db, `
		select gem.start_worker('w', 10, '', '', '5 s');
		insert into core_tool_calls (id, tool_name)
		select (lpad(to_hex(n), 8, '0') || '-0000-1000-8000-000000000000')::uuid, 'a.b' from generate_series(1, 2000) n`)
	testdb.Exec(t, db, "select gem.finish(c.id, c.attempt, 'w', 'succeeded', '{}', '{}', '') from gem.claim('w', 1000, "+
		"true) c")
	testdb.Exec(t, db, "select cancel_tool_call(id) from core_tool_calls where status = 'queued'")
	if n := number(t, db, "select count(distinct id) from core_tool_receipts"); n != 2000 {
		t.Errorf("%v receipts", n)
	}
}

// The ids of version 8 are those of keys, and everybody can compute them: a signed-in user gets only those of its own.
func TestASignedInUserChoosesNoIDOfVersion8(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	const id = "0b8f6e1c-3a52-%cc1e-9f63-2d7a1b9c4e55"
	of := func(version rune) string { return fmt.Sprintf(id, version) }
	for _, version := range "1234567" {
		if _, err := request(t, db, "authenticated", "ada",
			"insert into core_tool_calls (id, tool_name) values ('"+of(version)+"', 'a.b')"); err != nil {
			t.Errorf("version %c: %v", version, err)
		}
	}
	for what, sql := range map[string]string{
		"an insert":  "insert into core_tool_calls (id, tool_name) values ('" + of('8') + "', 'a.b')",
		"a function": "select enqueue_tool_call('a.b', id => '" + of('8') + "')",
	} {
		_, err := request(t, db, "authenticated", "ada", sql)
		refusedWith(t, what, err, "23514", "the id "+of('8')+" is a UUID of version 8, which gem mcp derives from keys")
	}
	if _, err := request(t, db, "service_role", "", "insert into core_tool_calls (id, tool_name, created_by) values ('"+
		of('8')+"', 'a.b', 'ada')"); err != nil {
		t.Errorf("a server: %v", err)
	}
}

package migrations_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

// many returns the number of rows that a statement must skip: n in the long form, otherwise a fifth, which is still
// far more than it may read.
func many(n int) int {
	if os.Getenv("GEM_TEST_LONG") != "" {
		return n
	}
	return n / 5
}

// A statement that moves a call reads a handful of rows and index entries, with thousands of calls in the table and
// whatever Postgres believes of them: a plan that walks the table, or the index over running calls, is made with the
// statistics of another hour, kept as long as its connection, and noticed when it is night.
func TestWhatMovesACallReadsAFewRowsWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	var (
		queued = fmt.Sprintf(`insert into core_tool_calls (tool_name, run_at) select 'a.b', now() from generate_series(1, %d);
			insert into core_tool_calls (tool_name, run_at) select 'a.b', now() + interval '1 day' from generate_series(1, %d)`,
			many(10_000), many(5_000))
		// Not claimed: the index entries of calls that were queued before would have to be read once, and so would be
		// counted.
		running = fmt.Sprintf(`set session_replication_role = replica;
			insert into core_tool_calls (id, tool_name, status, attempt, claimed_by, claimed_at, events, run_at, created_at,
				updated_at)
				select gen_random_uuid(), 'a.b', 'running', 1, 'w', now(), 1, now(), now(), now() from generate_series(1, %d);
			set session_replication_role = origin`, many(5_000))
	)
	for name, statistics := range map[string][]string{
		"never taken":                     {queued, running},
		"taken when the table was empty":  {"analyze", queued, running},
		"taken when nothing ran":          {queued, "analyze", running},
		"taken when all was there":        {queued, running, "analyze"},
		"taken when all of the calls ran": {running, "analyze", queued},
		"taken when all of the calls waited": {"insert into core_tool_calls (tool_name, run_at) select 'a.b', now() + " +
			"interval '1 day' from generate_series(1, 9)", "analyze", queued, running},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
			testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour'), gem.start_worker('dead', 9, '', '', '0 s')")
			for _, sql := range statistics {
				testdb.Exec(t, db, sql)
			}
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			for what, sql := range map[string]string{
				"a claim": "select count(*)::text from gem.claim('w', 10, true) where $1 <> ''",
				"a claim with a mark": "select count(*)::text from gem.claim('w', 10, true, jsonb_build_object('0', now() - " +
					"interval '1 hour')) where $1 <> ''",
				"the end of a call": "select gem.finish($1::text::uuid, 1, 'w', 'succeeded', '{}', '{}', '1')::text",
				"a key":             "select gem.hold_key($1::text::uuid, 1, 'w', 'k')::text",
				"a retry":           "select gem.retry($1::text::uuid, 1, 'w', '{}', 3, '1 s')::text",
				"handing over":      "select gem.release($1::text::uuid, 1, 'w')::text",
				"a heartbeat": "select count(*)::text from gem.heartbeat('w', '1 hour', array[$1::text::uuid], '{1}', " +
					"false)",
			} {
				read := 0
				for range 7 { // often enough for the plan that a connection keeps; the first clears what others left
					read = reads(t, conn.Conn(), sql)
				}
				if read > 150 {
					t.Errorf("%s read %d rows and index entries", what, read)
				}
			}
		})
	}
}

// A connection keeps the plans of its first inserts, which it made while the table was small.
func TestAnInsertReadsNoOtherCalls(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, "alter table core_tool_calls set (autovacuum_enabled = off)")
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	inserts := func() (read int) {
		for range 7 { // often enough for the plan that a connection keeps
			read = readsOf(t, conn.Conn(), "core_tool_calls",
				"insert into core_tool_calls (tool_name) values ($1) returning id::text", "select 'a.b'")
		}
		return read
	}
	inserts()
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name) select 'a.b' from generate_series(1, 2000)")
	if read := inserts(); read > 50 {
		t.Errorf("it read %d rows and index entries", read)
	}
}

// What a signed-in user inserts is measured by the limits of an hour: whatever the user did before that hour is not
// read.
func TestASignedInInsertReadsNoHistory(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, status, attempt, events, run_at, created_at, updated_at, created_by)
			select gen_random_uuid(), 'a.b', 'failed', 1, 3, d, d, d, 'ada'
				from (select now() - i * interval '1 minute' as d from generate_series(70, 20000) i) days;
		set session_replication_role = origin;
		analyze core_tool_calls`)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	signIn := `select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "ada"}', true)`
	for range 7 {
		read := readsOf(t, conn.Conn(), "core_tool_calls",
			"insert into core_tool_calls (tool_name) values ($1::text) returning id::text", signIn)
		if read > 150 {
			t.Errorf("an insert read %d rows and index entries", read)
		}
	}
}

// reads returns how many rows and index entries of the calls a statement read. It gets the id of a call that w holds.
func reads(t *testing.T, conn *pgx.Conn, sql string) int {
	t.Helper()
	return readsOf(t, conn, "core_tool_calls", sql, "select id::text from gem.claim('w', 1, true)")
}

// readsOf returns how many rows and index entries of a table a statement read. It gets what the statement before
// returned.
func readsOf(t *testing.T, conn *pgx.Conn, table, sql, before string) int {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	counted := func() (n int) {
		err := tx.QueryRow(t.Context(), `select (pg_stat_get_xact_tuples_returned($1::regclass) +
			pg_stat_get_xact_tuples_fetched($1::regclass)
			+ sum(pg_stat_get_xact_tuples_returned(indexrelid)))::int from pg_index where indrelid = $1::regclass`,
			table).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var given, answer string
	if err := tx.QueryRow(t.Context(), before).Scan(&given); err != nil {
		t.Fatal(err)
	}
	at := counted()
	if err := tx.QueryRow(t.Context(), sql, given).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return counted() - at
}

package view_test

import (
	"context"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestACallIsReadWithoutItsNeighbours(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	// Like hits of others, all have keys, parents and receipts that others do not repeat.
	testdb.Exec(t, db, `begin; set local session_replication_role = replica;
		create temp table made on commit drop as select gen_random_uuid() as id, gen_random_uuid() as receipt,
			now() - n * interval '1 s' as at from generate_series(1, 4000) n;
		insert into core_tool_calls (id, tool_name, run_at, status, attempt, claimed_by, claimed_at, created_at, updated_at,
			events, computed_key, parent_call_id)
		select id, 'a.b', at, 'succeeded', 1, 'w', at, at, at, 3, id::text, receipt from made;
		insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id,
			idempotency_key, replay_of)
		select receipt, id, 'a.b', 'succeeded', '{}', '{}', at, 1, 'w', id::text, gen_random_uuid() from made;
		insert into core_tool_events (call_id, seq, at, event, attempt) select id, n, at, 'queued', 0 from made,
			generate_series(1, 3) n;
		commit; analyze`)
	var id string
	if err := db.QueryRow(t.Context(), "select id::text from core_tool_calls limit 1").Scan(&id); err != nil {
		t.Fatal(err)
	}
	rows := read(t, db, func(ctx context.Context, db view.DB) (rows int, err error) {
		if _, err = view.ReadWhole(ctx, db, id, view.WholeOptions{Payload: true}); err != nil {
			return 0, err
		}
		if _, err = audit.Call(ctx, db, id); err != nil {
			return 0, err
		}
		return rows, db.QueryRow(ctx, "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) from "+
			"pg_stat_xact_user_tables where relname like 'core%'").Scan(&rows)
	})
	if rows < 10 || rows > 100 {
		t.Errorf("%d rows were read", rows)
	}
}

package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/rules"
)

// A transaction that stays open and holds a level of the queue keeps no counter locked.
func TestAQuestionWaitsForNoLevelOfAnother(t *testing.T) {
	t.Parallel()
	url := testdb.New(t)
	db, open := testdb.Pool(t, url), testdb.Pool(t, url)
	// ada has ten calls, and so the eleventh is among background calls; then she has one.
	testdb.Exec(t, db, `insert into core_tool_calls (tool_name, created_by) select 't.b', 'ada' from generate_series(1, 10);
		insert into core_tool_calls (tool_name, created_by, priority) values ('t.a', 'ada', 7);
		update core_tool_calls set status = 'failed', error = '{"error_code": "x", "message": "x"}' where tool_name = 't.b';
		update core_tool_calls set status = 'running', attempt = 1, claimed_by = 'w', claimed_at = gem.now()
			where tool_name = 't.a'`)
	tx, err := open.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "insert into core_tool_calls (tool_name, priority) values ('t.c', 7)"); err != nil {
		t.Fatal(err)
	}
	id := texts(t, db, "select id::text from core_tool_calls where tool_name = 't.a'")[0]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check := rules.Check{Rule: "c", Action: rules.Ask, Kind: rules.Count, Counter: "c/calls", Max: "0", WithinMS: 1000,
		AskMS:  3_600_000,
		Digest: fmt.Sprintf("%064d", 1), Question: json.RawMessage(`{"by": ["role:r"]}`)}
	_, answer, err := (store.Gate{Checks: []rules.Check{check}, Version: "1"}).Do(ctx, db,
		store.Attempt{CallID: id, Number: 1, WorkerID: "w"})
	if !store.HasCode(err, "55P03") || !store.IsTransient(err) { // the worker asks again
		t.Errorf("%v %v", answer.Outcome, err)
	}
}

package audit_test

import (
	"slices"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// ofCall returns what is found about a call.
func ofCall(t *testing.T, db audit.Querier, id string) map[string][]audit.Finding {
	t.Helper()
	report, err := audit.Call(t.Context(), db, id)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]audit.Finding{}
	for _, f := range report.Found {
		found[f.Check] = append(found[f.Check], audit.Finding{ID: id, What: f.What})
	}
	return found
}

// foundOfCall checks that a call by itself has the findings that the whole database has of it.
func foundOfCall(t *testing.T, tx pgx.Tx, check string, all []audit.Finding) {
	t.Helper()
	if !slices.ContainsFunc(audit.ChecksOfCall(), func(c audit.Check) bool { return c.Name == check }) {
		return
	}
	of := map[string][]audit.Finding{}
	for _, f := range all {
		of[f.ID] = append(of[f.ID], f)
	}
	for id, want := range of {
		var there bool
		if err := tx.QueryRow(t.Context(), "select exists (select from core_tool_calls where id = $1)",
			id).Scan(&there); err != nil || !there {
			continue // it is about a call that is gone
		}
		if diff := cmp.Diff(map[string][]audit.Finding{check: want}, ofCall(t, tx, id)); diff != "" {
			t.Errorf("by itself: %s", diff)
		}
	}
}

// healthyByThemselves checks that nothing is found about any call.
func healthyByThemselves(t *testing.T, env *handlertest.Env) {
	t.Helper()
	rows, _ := env.DB.Query(t.Context(), "select id::text from core_tool_calls")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if found := ofCall(t, env.DB, id); len(found) > 0 {
			t.Errorf("%s: %v", id, found)
		}
	}
}

package migrations_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

// A condition on other rows is looked up for each row. Postgres may instead read all of those other rows first, and a
// connection may keep such a plan.
func TestConditionsOnOtherRowsReadAFewRowsWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	const (
		calls = `insert into core_tool_calls (tool_name, created_by, session_id)
			select 'a.b', 'ada', 's' from generate_series(1, %d)`
		// Their receipts and first events are there; the rest is not read.
		ended = `set session_replication_role = replica;
			with old as (
				insert into core_tool_calls (id, tool_name, status, attempt, events, run_at, created_at, updated_at,
					parent_call_id, parent_step)
				select gen_random_uuid(), 'a.old', 'succeeded', 1, 1, now(), now(), now(), gen_random_uuid(), 'a'
				from generate_series(1, %d) returning id, created_at
			), first as (
				insert into core_tool_events (call_id, seq, at, event, attempt) select id, 1, created_at, 'queued', 0 from old
			)
			insert into core_tool_receipts (id, call_id, tool_name, status, result, created_at, attempt)
			select gen_random_uuid(), id, 'a.old', 'succeeded', '{}', created_at, 1 from old;
			set session_replication_role = origin`
		runs = `insert into gem.rule_runs (counter, n, at, call_id, rules_version)
			select 'c' || n / 10, n %% 10, now() - interval '1 day', gen_random_uuid(), '1' from generate_series(1, %d) n`
		parent = `(select id from core_tool_calls where tool_name = 'a.parent')`
		large  = `insert into core_tool_calls (tool_name, parent_call_id)
			select 'a.child', p.id from ` + parent + ` p, generate_series(1, 500)`
		asBob = `select set_config('request.jwt.claims', '{"role": "authenticated", "sub": "bob"}', true)`
		some  = `select array(select id from core_tool_calls where tool_name = 'a.old' limit 100)::text`
	)
	for name, n := range map[string]int{"few": 1000, "thousands": many(20_000)} {
		rows := []string{fmt.Sprintf(calls, n), fmt.Sprintf(ended, n), fmt.Sprintf(runs, n)}
		for when, statements := range map[string][]string{
			"never taken":              rows,
			"taken of the empty table": append([]string{"analyze"}, rows...),
			"taken when all was there": append(rows[:len(rows):len(rows)], "analyze"),
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				db := supabase(t)
				for _, table := range []string{"core_tool_calls", "core_tool_receipts", "core_tool_events", "gem.rule_runs"} {
					testdb.Exec(t, db, "alter table "+table+" set (autovacuum_enabled = off)")
				}
				testdb.Exec(t, db, `insert into core_tool_calls (tool_name) values ('a.parent');
					insert into gem.roles values ('bob', 'boss');
					insert into core_rules_versions values ('1', repeat('0', 64), '{}', '1 second', now())`)
				questionsOf(t, db, "rule", "ada", 100, literal(`{"text": "?", "by": ["role:boss"], "others": true}`))
				for _, sql := range statements {
					testdb.Exec(t, db, sql)
				}
				// In this order: Postgres may read a table whole that is small and has no statistics, and the first case makes it
				// larger.
				for _, c := range []struct {
					what, before, sql string
					first             string // what the connection did before
					most              map[string]int
				}{
					{"a call on behalf of another, after many", "select " + parent + "::text",
						"insert into core_tool_calls (tool_name, parent_call_id) values ('a.child', $1::text::uuid) returning id::text",
						large, map[string]int{"core_tool_calls": 150, "core_tool_events": 150}},
					{"open questions", asBob, "select count(*)::text from open_questions where $1 <> ''", "select",
						map[string]int{"core_tool_events": 500}},
					{"pruning a hundred calls", some, "select count(*)::text from gem.prune($1::text::uuid[])", "select",
						map[string]int{"core_tool_calls": 3000, "core_tool_receipts": 3000}},
					{"pruning limits", "select '10'", "select gem.prune_rule_runs($1::text::integer)::text", "select",
						map[string]int{"core_tool_calls": 100}},
				} {
					for table, most := range c.most {
						conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
						if err != nil {
							t.Fatal(err)
						}
						read := readsAfter(t, conn, table, c.first, c.before, c.sql)
						_ = conn.Close(context.Background())
						if read > most {
							t.Errorf("%s read %d rows and index entries of %s, want at most %d", c.what, read, table, most)
						}
					}
				}
			})
		}
	}
}

// readsAfter is readsOf on a connection that has executed another statement, and rolled it back.
func readsAfter(t *testing.T, conn *pgx.Conn, table, first, before, sql string) (read int) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), first)
		_ = tx.Rollback(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 7 { // often enough for the plan that a connection keeps
		read = readsOf(t, conn, table, sql, before)
	}
	return read
}

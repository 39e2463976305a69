package watch_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testdb"
	"github.com/gemworker/gem/internal/watch"
	"github.com/jackc/pgx/v5"
)

// Of many that wait, for keys and for answers, Postgres reads those that are listed.
func TestQuestionsAreReadInTheOrderOfTheirIndex(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	if _, err := db.Exec(t.Context(), `
		set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, run_at, created_at, updated_at, status, waits_for, waits, need, computed_key, asked_for)
		select gen_random_uuid(), 'wait.answer', '{"by": ["role:boss"]}'::jsonb, now(), now(), now(), 'waiting', 'answer', '{#answer}'::text[], 1, null, 'user' from generate_series(1, 3000) i
		union all
		select gen_random_uuid(), 'a.b', '{}'::jsonb, now(), now(), now(), 'waiting', 'key', null, null, 'k' || i, null from generate_series(1, 3000) i;
		set session_replication_role = origin; analyze core_tool_calls`); err != nil {
		t.Fatal(err)
	}
	err := watch.Read(t.Context(), db, func(ctx context.Context, db watch.DB) error {
		all, err := watch.Questions(ctx, db, 50)
		if err != nil || len(all) != 50 || all[0].By[0] != "role:boss" {
			return fmt.Errorf("%d questions, %w", len(all), err)
		}
		rows, err := db.Query(ctx, "explain (costs off) "+watch.QuestionsSQL, 50)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan := strings.Join(lines, "\n")
		_, listed, _ := strings.Cut(plan, "->  Limit")
		if strings.Contains(listed, "Sort") || strings.Contains(plan, "Seq Scan") || !strings.Contains(listed, "(asked_for = kind.kind)") {
			t.Errorf("it reads more than it lists:\n%s", plan)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The overview names an approval that is about to expire, however many questions users have inserted.
func TestQuestionsOfUsersHideNoneThatIsAboutToExpire(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	if _, err := db.Exec(t.Context(), `
		set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, input, run_at, created_at, updated_at, status, waits_for, waits, need, asked_for, wake_at)
		select gen_random_uuid(), 'wait.answer', '{}'::jsonb, now(), now(), now(), 'waiting', 'answer', '{#answer}'::text[], 1, 'user', null::timestamptz from generate_series(1, 1500) i
		union all
		select gen_random_uuid(), 'wait.approval', '{}'::jsonb, now(), now(), now(), 'waiting', 'answer', '{#answer}'::text[], 1, 'rule', now() + interval '5 minutes';
		set session_replication_role = origin`); err != nil {
		t.Fatal(err)
	}
	err := watch.Read(t.Context(), db, func(ctx context.Context, db watch.DB) error {
		o, err := watch.ReadOpen(ctx, db)
		if err != nil {
			return err
		}
		for _, need := range o.Needs {
			if need.Kind == "expiring" && need.Count == 1 {
				return nil
			}
		}
		return fmt.Errorf("the overview needs %+v", o.Needs)
	})
	if err != nil {
		t.Error(err)
	}
}

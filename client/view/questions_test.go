package view_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Among many waiting calls, Postgres reads only the listed questions.
func TestQuestionsAreReadInTheOrderOfTheirIndex(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	if _, err := db.Exec(t.Context(), `
		set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, answer_by, run_at, created_at, updated_at, status, waits_for, waits, need,
			computed_key, asked_for)
		select gen_random_uuid(), 'wait.answer', '{role:boss}'::text[], now(), now(), now(), 'waiting', 'answer',
			'{#answer}'::text[], 1, null, 'user' from generate_series(1, 3000) i
		union all
		select gen_random_uuid(), 'a.b', null, now(), now(), now(), 'waiting', 'key', null, null, 'k' || i, null
			from generate_series(1, 3000) i;
		set session_replication_role = origin; analyze core_tool_calls`); err != nil {
		t.Fatal(err)
	}
	err := view.Read(t.Context(), db, func(ctx context.Context, db view.DB) error {
		all, err := view.Questions(ctx, db, 50)
		if err != nil || len(all) != 50 || all[0].By[0] != "role:boss" {
			return fmt.Errorf("%d questions, %w", len(all), err)
		}
		rows, err := db.Query(ctx, "explain (costs off) "+view.QuestionsSQL, 50, 5000)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan := strings.Join(lines, "\n")
		_, limited, _ := strings.Cut(plan, "->  Limit")
		listed, _, _ := strings.Cut(limited, "CTE placed")
		if strings.Contains(listed, "Sort") || strings.Contains(plan, "Seq Scan") ||
			!strings.Contains(listed, "(asked_for = kind.kind)") {
			t.Errorf("it reads more than it lists:\n%s", plan)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A handler may wait for an answer under a name. Nobody is asked.
func TestOnlyQuestionsAreCounted(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	fill(t, db, "rule", "ada", 2, "1 hour", "null")
	if _, err := db.Exec(t.Context(), `set session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, run_at, created_at, updated_at, status, waits_for, waits, need)
			select gen_random_uuid(), 'a.b', now(), now(), now(), 'waiting', 'answer', '{#size}', 1 from generate_series(1, 3);
		set session_replication_role = origin`); err != nil {
		t.Fatal(err)
	}
	err := view.Read(t.Context(), db, func(ctx context.Context, db view.DB) error {
		n, err := view.CountQuestions(ctx, db, 10)
		if n != 2 {
			t.Errorf("it counts %d", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// fill inserts n questions of one caller that wait, the first asked so long ago.
func fill(t *testing.T, db *pgxpool.Pool, kind, caller string, n int, ago, until string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), `begin; set local session_replication_role = replica;
		insert into core_tool_calls (id, tool_name, answer_by, run_at, created_at, updated_at, status, waits_for, waits, need,
			asked_for, created_by, wake_at, parent_step)
		select gen_random_uuid(), 'wait.approval', '{role:boss}', now(), now() - interval '`+ago+
		`' + i * interval '1 ms', now(),
			'waiting', 'answer', '{#answer}', 1, '`+kind+`', '`+caller+`', `+until+`,
			case when '`+kind+`' <> 'user' then '##1' end from generate_series(1, `+strconv.Itoa(n)+`) i; commit`); err != nil {
		t.Fatal(err)
	}
}

// Hundreds of questions of one caller do not hide others': the list has a few of each asker first.
func TestQuestionsOfOneAskerHideNoneOfOthers(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	fill(t, db, "user", "eve", 300, "3 hours", "null")
	fill(t, db, "rule", "mallory", 300, "2 hours", "null")
	fill(t, db, "rule", "ada", 1, "1 hour", "null")
	fill(t, db, "user", "bob", 1, "1 hour", "null")
	var got []string
	err := view.Read(t.Context(), db, func(ctx context.Context, db view.DB) error {
		all, err := view.Questions(ctx, db, 100)
		for _, q := range all {
			if q.OfAsker <= view.MaxPerAsker {
				got = append(got, fmt.Sprintf("%s %d of %d", q.CreatedBy, q.OfAsker, q.AskerOpen))
			}
		}
		if len(all) != 200 {
			t.Errorf("%d questions", len(all))
		}
		return err
	})
	want := []string{"mallory 1 of 300", "mallory 2 of 300", "mallory 3 of 300", "mallory 4 of 300", "mallory 5 of 300",
		"ada 1 of 1", "eve 1 of 300", "eve 2 of 300", "eve 3 of 300", "eve 4 of 300", "eve 5 of 300", "bob 1 of 1"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// A user who inserts questions that expire soon raises no alarm: they are counted separately, and are less urgent
// than those of rules and handlers.
func TestTheOverviewCountsQuestionsOfUsersForThemselves(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	fill(t, db, "user", "eve", 1500, "3 hours", "now() + interval '1 minute'")
	needs := func() (all []string) {
		err := view.Read(t.Context(), db, func(ctx context.Context, db view.DB) error {
			o, err := view.ReadOverview(ctx, db)
			if err != nil {
				return err
			}
			for _, need := range o.Needs {
				all = append(all, fmt.Sprintf("%s %d", need.Kind, need.Count))
			}
			since := o.At.Sub(o.QuestionsSince).Round(time.Hour)
			all = append(all, fmt.Sprintf("%d open, %d of users, for %s", o.Questions, o.UserQuestions, since))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if diff := cmp.Diff([]string{"user_question 1000", "1000 open, 1000 of users, for 3h0m0s"}, needs()); diff != "" {
		t.Error(diff)
	}
	fill(t, db, "rule", "ada", 2, "1 hour", "now() + interval '2 hours'")
	fill(t, db, "handler", "ada", 1, "1 hour", "now() + interval '5 minutes'")
	want := []string{"expiring 1", "question 3", "user_question 1000", "1003 open, 1000 of users, for 1h0m0s"}
	if diff := cmp.Diff(want, needs()); diff != "" {
		t.Error(diff)
	}
}

package view_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5"
)

// many calls: 6,000 that have ended, 12,000 that are queued, as many that are scheduled, and as many that wait; of one
// caller and three sessions.
const many = `
	set session_replication_role = replica;
	insert into gem.levels values (1) on conflict do nothing;
	insert into core_tool_calls (id, tool_name, status, waits_for, need, attempt, claimed_by, claimed_at, events, run_at,
		created_at, updated_at, created_by, session_id, level, error)
		select gem.new_id(at), 'a.t' || i % 7, status, case
			when status = 'waiting' then (array['call', 'answer', 'time'])[i % 3 + 1] end, 1, 1, 'w', case
				when i % 4 = 0 then at end, 3,
			at + case when i % 4 = 2 then interval '5 days' else '0' end, at, at, 'ada', 's' || i % 3, i % 2,
			case when status = 'failed' then '{"error_code": "execution_error", "message": "it broke"}'::jsonb end
		from (select i, now() - i * interval '1 s' as at,
			case i % 4 when 1 then 'queued' when 2 then 'queued' when 3 then 'waiting' else case when i % 3 = 0 then 'failed'
				else 'succeeded' end end as status
			from generate_series(1, 24000) i) s;
	insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, duration)
		select gem.receipt_id(id, created_at), id, tool_name, status, case
			when status = 'failed' then jsonb_build_object('error', error) else '{}' end, '{}', created_at, 1, '5 ms'
		from core_tool_calls where status in ('succeeded', 'failed');
	insert into core_tool_events (call_id, seq, at, event, attempt) select id, n, created_at, 'queued', 0
		from core_tool_calls, generate_series(1, 2) n;
	set session_replication_role = origin`

// scan matches the beginning of a plan that reads a whole table. Workers and versions are few.
var scan = regexp.MustCompile(`Seq Scan on core_(?:tool|llm)\w+|Bitmap Heap Scan on core_tool\w+`)

// explains is a DB that explains each statement before it runs it.
type explains struct {
	view.DB
	t     *testing.T
	plans []string
}

func (e *explains) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	e.explain(ctx, sql, args)
	return e.DB.Query(ctx, sql, args...)
}

func (e *explains) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	e.explain(ctx, sql, args)
	return e.DB.QueryRow(ctx, sql, args...)
}

func (e *explains) explain(ctx context.Context, sql string, args []any) {
	rows, err := e.DB.Query(ctx, "explain "+sql, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		e.t.Fatalf("%s: %v", sql, err)
	}
	e.plans = append(e.plans, strings.Join(strings.Fields(sql), " ")+"\n"+strings.Join(lines, "\n"))
}

func TestNoStatementScansATableWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	const found = "select id::text from core_tool_calls where status = 'failed' limit 1"
	for name, before := range map[string][]string{
		"never taken":                      {many},
		"taken when the tables were empty": {"analyze", many},
		"taken when all was there":         {many, "vacuum analyze"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Pool(t, testdb.New(t))
			for _, table := range []string{"calls", "receipts", "events"} {
				testdb.Exec(t, db, "alter table core_tool_"+table+" set (autovacuum_enabled = off)")
			}
			for _, sql := range before {
				testdb.Exec(t, db, sql)
			}
			var call string
			if err := db.QueryRow(t.Context(), found).Scan(&call); err != nil {
				t.Fatal(err)
			}
			all := everything(call)
			all["calls of a session of thousands"] = func(ctx context.Context, db view.DB) (any, error) {
				return view.Calls(ctx, db, view.Filter{Session: "s1"})
			}
			all["a session of thousands"] = func(ctx context.Context, db view.DB) (any, error) {
				return view.Session(ctx, db, "s1", "")
			}
			all["days"] = func(ctx context.Context, db view.DB) (any, error) {
				minutes, _, err := view.Minutes(ctx, db, time.Now().Add(-72*time.Hour), time.Time{}, "a.t1")
				return minutes, err
			}
			for what, one := range all {
				e := &explains{t: t}
				read(t, db, func(ctx context.Context, db view.DB) (any, error) {
					e.DB = db
					return one(ctx, e)
				})
				for _, plan := range e.plans {
					if where := scan.FindString(plan); where != "" {
						t.Errorf("%s: %s\n%s", what, where, plan)
					}
				}
				if len(e.plans) > 8 {
					t.Errorf("%s takes %d statements", what, len(e.plans))
				}
			}
		})
	}
}

// A list that follows an index reads only the shown entries, and a few more.
func TestAPageReadsLittle(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, many)
	testdb.Exec(t, db, "vacuum analyze")
	for name, f := range map[string]view.Filter{"newest": {}, "of a caller": {Caller: "ada"}, "failed": {State: "failed"},
		"succeeded": {State: "succeeded"}, "ended": {State: "ended"},
		"queued": {State: "queued"}, "scheduled": {State: "scheduled"},
		"of an hour": {From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(-time.Hour)}} {
		for page := range 3 {
			got := read(t, db, func(ctx context.Context, db view.DB) (n [2]int, err error) {
				counted := func() (all int) {
					err := db.QueryRow(ctx, `select sum(pg_stat_get_xact_tuples_returned(c.oid) +
						pg_stat_get_xact_tuples_fetched(c.oid))::int from pg_class c
						where c.relname like 'core\_tool\_%' or c.relname like 'gem\_calls%' or c.relname like 'gem\_receipts%'
							or c.relname like 'gem\_events%'`).Scan(&all)
					if err != nil {
						t.Fatal(err)
					}
					return all
				}
				before := counted()
				p, err := view.Calls(ctx, db, f)
				if err == nil {
					n, f.Before = [2]int{len(p.Calls), counted() - before}, p.Next
				}
				return n, err
			})
			if got[0] != 50 || got[1] > 1500 {
				t.Errorf("page %d of %s has %d calls, and read %d rows and entries", page, name, got[0], got[1])
			}
		}
	}
}

func TestAListThatNoIndexHasLooksAtABoundedStretch(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, many)
	testdb.Exec(t, db, "set session_replication_role = replica; update core_tool_calls set tool_name = 'a.rare' where "+
		"created_at = (select min(created_at) from core_tool_calls); set session_replication_role = origin")
	f := view.Filter{Tool: "a.rare"}
	for looks := 1; ; looks++ {
		p := list(t, db, f)
		if len(p.Calls) == 1 && looks == 2 && p.LookFurther == "" && !p.AtLeast {
			break
		}
		if len(p.Calls) != 0 || looks > 1 || p.Looked != 20000 || !p.AtLeast || p.LookFurther == "" {
			t.Fatalf("look %d: %+v", looks, p)
		}
		f.Before = p.LookFurther
	}
}

package view_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// read calls do like the commands and pages.
func read[T any](t *testing.T, db *pgxpool.Pool, do func(ctx context.Context, db view.DB) (T, error)) (value T) {
	t.Helper()
	err := view.Read(t.Context(), db, func(ctx context.Context, db view.DB) (err error) {
		value, err = do(ctx, db)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func list(t *testing.T, db *pgxpool.Pool, f view.Filter) *view.Page {
	t.Helper()
	return read(t, db, func(ctx context.Context, db view.DB) (*view.Page, error) { return view.Calls(ctx, db, f) })
}

func tools(p *view.Page) (names string) {
	for i, c := range p.Calls {
		if i > 0 {
			names += " "
		}
		names += c.Tool
	}
	return names
}

// scene has calls in all states.
const scene = `
	select gem.start_worker('w', 10, 'v', '1', '1 hour');
	insert into core_tool_calls (tool_name, created_by, session_id, idempotency_key) values ('a.one', 'ada', 's', 'mine'),
		('a.two', 'ada', 's', null), ('a.three', 'bob', 't', null), ('a.four', null, 's', null);
	select gem.hold_key(c.id, 1, 'w', 'a.one:k="1"') from gem.claim('w', 4, true) c where c.tool_name = 'a.one';
	select gem.finish(id, 1, 'w', 'succeeded', '{"secret": "in the result"}', '{"secret": "in the effects"}', '1')
		from core_tool_calls where tool_name = 'a.one';
	select pg_sleep(0.002); -- receipts are in the order of milliseconds
	select gem.finish(id, 1, 'w', 'failed',
		'{"error": {"error_code": "execution_error", "message": "it broke", "details": {"secret": "in the details"}}}', '{}',
			'1')
		from core_tool_calls where tool_name = 'a.two';
	select pg_sleep(0.002);
	select gem.finish(id, 1, 'w', 'not_configured',
		'{"status": "not_configured", "reason": "no key", "required_env": [], "next_steps": []}', '{}', '1')
		from core_tool_calls where tool_name = 'a.three';
	insert into core_tool_calls (tool_name, created_by, priority) values ('b.low', 'ada', -7), ('b.ready', 'bob', 0);
	insert into core_tool_calls (tool_name, run_at) values ('b.later', gem.now() + interval '2 hours'),
		('b.soon', gem.now() + interval '1 hour');`

func TestCallsAreListedByTheirStates(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, scene)
	for _, c := range []struct {
		filter   view.Filter
		want, by string
	}{
		{view.Filter{}, "b.soon b.later b.ready b.low a.four a.three a.two a.one", "created"},
		{view.Filter{State: "queued"}, "b.ready b.low", "due"},
		{view.Filter{State: "scheduled"}, "b.soon b.later", "due"},
		{view.Filter{State: "running"}, "a.four", "created"},
		{view.Filter{State: "waiting"}, "", "created"},
		{view.Filter{State: "open"}, "b.soon b.later b.ready b.low a.four", "created"},
		{view.Filter{State: "succeeded"}, "a.one", "ended"},
		{view.Filter{State: "failed"}, "a.two", "ended"},
		{view.Filter{State: "not_configured"}, "a.three", "ended"},
		{view.Filter{State: "ended"}, "a.three a.two a.one", "ended"},
		{view.Filter{Code: "execution_error"}, "a.two", "ended"},
		{view.Filter{Code: "timeout"}, "", "ended"},
		{view.Filter{Tool: "b.low"}, "b.low", "created"},
		{view.Filter{Caller: "ada"}, "b.low a.two a.one", "created"},
		{view.Filter{Caller: "ada", State: "open"}, "b.low", "created"},
		{view.Filter{Session: "s"}, "a.four a.two a.one", "created"},
		{view.Filter{Session: "s", State: "ended"}, "a.two a.one", "created"},
		{view.Filter{Key: `a.one:k="1"`}, "a.one", "created"},
		{view.Filter{Key: "mine"}, "a.one", "created"},
		{view.Filter{Text: "BROKE"}, "a.two", "created"},
		{view.Filter{Text: "b."}, "b.soon b.later b.ready b.low", "created"},
		{view.Filter{Text: "%"}, "", "created"},
	} {
		p := list(t, db, c.filter)
		if got := tools(p); got != c.want || p.By != c.by || p.Next != "" || p.AtLeast || p.LookFurther != "" {
			t.Errorf("%+v: got %s by %s, want %s by %s; %+v", c.filter, got, p.By, c.want, c.by, p)
		}
		if f, err := view.ParseFilter(c.filter.Values()); err != nil || f != c.filter {
			t.Errorf("%+v comes back as %+v, %v", c.filter, f, err)
		}
		c.filter.Limit = 1
		paged, before := "", ""
		for pages := 0; pages == 0 || before != ""; pages++ {
			c.filter.Before = before
			p := list(t, db, c.filter)
			paged, before = paged+" "+tools(p), p.Next
			if pages > 10 {
				t.Fatalf("%+v: pages without end", c.filter)
			}
		}
		if want := " " + c.want; paged != want {
			t.Errorf("%+v: pages of one are%s", c.filter, paged)
		}
	}
}

func TestAListHasBoundsAndCursorsOfAnyTime(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, scene)
	old := time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, state := range view.States {
		all := tools(list(t, db, view.Filter{State: state}))
		if got := tools(list(t, db, view.Filter{State: state, From: old})); got != all {
			t.Errorf("%s since 1960: got %q, want %q", state, got, all)
		}
		if got := tools(list(t, db, view.Filter{State: state, To: old})); got != "" {
			t.Errorf("%s before 1960: got %q", state, got)
		}
		for _, far := range []string{"-99999999999999999.00000000-0000-0000-0000-000000000000",
			"99999999999999999.00000000-0000-0000-0000-000000000000",
			"-999999999999999999.00000000-0000-0000-0000-000000000000", "0.-99999999999999999.1", "0.99999999999999999.1",
			"0.-999999999999999999.1"} {
			err := view.Read(t.Context(), db, func(ctx context.Context, db view.DB) error {
				_, err := view.Calls(ctx, db, view.Filter{State: state, Before: far})
				return err
			})
			if wrong := (*view.FilterError)(nil); err != nil && !errors.As(err, &wrong) {
				t.Errorf("%s before %s: %v", state, far, err)
			}
		}
	}
}

// failing has calls a.t1, a.t2 ... that failed with messages, in their order.
func failing(t *testing.T, db *pgxpool.Pool, messages ...string) {
	t.Helper()
	testdb.Exec(t, db, "select gem.start_worker('w', 10, 'v', '1', '1 hour')")
	for i, message := range messages {
		_, err := db.Exec(t.Context(), "insert into core_tool_calls (tool_name) values ('a.t' || $1::int)", i+1)
		if err == nil {
			_, err = db.Exec(t.Context(), `select gem.finish(c.id, 1, 'w', 'failed',
				jsonb_build_object('error', jsonb_build_object('error_code', 'execution_error', 'message', $1::text)), '{}', '1')
					from gem.claim('w', 10, true) c`, message)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func failures(t *testing.T, db *pgxpool.Pool) []view.Failure {
	t.Helper()
	return read(t, db, func(ctx context.Context, db view.DB) (*view.Failures, error) {
		return view.ReadFailures(ctx, db, time.Time{}, "")
	}).Failures
}

func TestFailuresAreGroupedByToolAndCodeAndKeepTheLastMessageWhole(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	long := "order 17 \"of 5\": " + strings.Repeat("the same words ", 40)
	failing(t, db, "no mailbox 1", "no mailbox 2", "something else", long)
	testdb.Exec(t, db, `set session_replication_role = replica; update core_tool_calls set tool_name = 'a.t' where tool_name <> 'a.t1';
		update core_tool_receipts set tool_name = 'a.t' where tool_name <> 'a.t1'; set session_replication_role = origin`)
	all := failures(t, db)
	if len(all) != 2 || all[0].Tool != "a.t" || all[0].Count != 3 || all[0].Message != long || all[1].Count != 1 ||
		all[1].Message != "no mailbox 1" {
		t.Errorf("got %+v", all)
	}
	for _, f := range all {
		filter := f.Filter(time.Time{})
		if p := list(t, db, filter); len(p.Calls) != f.Count || p.Calls[0].ID != f.CallID {
			t.Errorf("%s counts %d calls, the last %s, and leads to %+v", f.Tool, f.Count, f.CallID, p.Calls)
		}
		filter.Limit = 1
		pages := 1
		for p := list(t, db, filter); p.Next != ""; p = list(t, db, filter) {
			filter.Before = p.Next
			pages++
		}
		if pages != f.Count {
			t.Errorf("%s counts %d calls and has %d pages of one", f.Tool, f.Count, pages)
		}
	}
}

// Some calls of an earlier GEM have no tool, and some have failed without a code.
func TestFailuresWithoutAToolOrACodeLeadToTheirCallsAndNoOthers(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	failing(t, db, "m", "m", "m", "m", "m")
	testdb.Exec(t, db, `set session_replication_role = replica;
		update core_tool_calls set tool_name = null where tool_name in ('a.t1', 'a.t2');
		update core_tool_receipts set tool_name = '' where tool_name in ('a.t1', 'a.t2');
		update core_tool_calls set tool_name = 'a.t', error = null where tool_name in ('a.t3', 'a.t4');
		update core_tool_receipts set tool_name = 'a.t', result = null where tool_name in ('a.t3', 'a.t4');
		set session_replication_role = origin`)
	all := failures(t, db)
	if len(all) != 3 {
		t.Errorf("got %+v", all)
	}
	for _, f := range all {
		if p := list(t, db, f.Filter(time.Time{})); len(p.Calls) != f.Count || p.Calls[0].Tool != f.Tool {
			t.Errorf("%+v leads to %+v", f, p.Calls)
		}
	}
}

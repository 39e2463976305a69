package view_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// refusals has calls of a session whose status is failed, named after their error codes.
const refusals = `
	select gem.start_worker('w', 10, 'v', '1', '1 hour');
	insert into core_tool_calls (tool_name, created_by, session_id) select 'a.' || code, 'ada', 's'
		from unnest(array['timeout', 'rule_blocked', 'limit_reached', 'rule_error', 'approval_denied', 'approval_expired',
			'not_allowed', 'key_reused', 'cancelled']) code;
	select gem.finish(id, 1, 'w', 'failed', jsonb_build_object('error',
		jsonb_build_object('error_code', split_part(tool_name, '.', 2), 'message', 'The end')), '{}', '1')
		from gem.claim('w', 20, true)`

const refusedTools = "a.approval_denied a.approval_expired a.key_reused a.limit_reached a.not_allowed a.rule_blocked " +
	"a.rule_error"

func TestRefusedAndCancelledCallsAreNotFailures(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, refusals)
	for _, c := range []struct {
		filter view.Filter
		want   string
	}{
		{view.Filter{State: "failed"}, "a.timeout"},
		{view.Filter{State: "refused"}, refusedTools},
		{view.Filter{State: "cancelled"}, "a.cancelled"},
		{view.Filter{State: "refused", Caller: "ada"}, refusedTools},
		{view.Filter{State: "cancelled", Session: "s"}, "a.cancelled"},
		{view.Filter{State: "failed", Session: "s"}, "a.timeout"},
		{view.Filter{Code: "rule_blocked"}, "a.rule_blocked"},
		{view.Filter{Code: "cancelled"}, "a.cancelled"},
		{view.Filter{State: "refused", Tool: "a.key_reused"}, "a.key_reused"},
	} {
		names := map[string]bool{}
		for _, call := range list(t, db, c.filter).Calls {
			names[call.Tool] = true
			if want := map[bool]string{true: c.filter.State, false: call.Outcome}[c.filter.State != ""]; call.Outcome != want ||
				call.Status != "failed" {
				t.Errorf("%+v: %s is %s, %s", c.filter, call.Tool, call.Status, call.Outcome)
			}
		}
		if got := strings.Join(slices.Sorted(maps.Keys(names)), " "); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.filter, got, c.want)
		}
	}
	for _, tool := range []string{"", "a.timeout", "a.rule_blocked"} {
		all := read(t, db, func(ctx context.Context, db view.DB) (*view.Failures, error) {
			return view.ReadFailures(ctx, db, time.Time{}, tool)
		})
		want := map[bool]int{true: 0, false: 1}[tool == "a.rule_blocked"]
		if len(all.Failures) != want || all.Looked != want || all.AtLeast {
			t.Errorf("failures of %q: %+v", tool, all)
		}
	}
	o := read(t, db, view.ReadOverview)
	if len(o.Failures) != 1 || o.Failures[0].Tool != "a.timeout" {
		t.Errorf("the overview's failures are %+v", o.Failures)
	}
	if len(o.Needs) != 1 || o.Needs[0].Kind != "rule_error" || o.Needs[0].Count != 1 {
		t.Errorf("the overview needs %+v", o.Needs)
	}
	s := read(t, db, func(ctx context.Context, db view.DB) (*view.SessionPage, error) {
		return view.Session(ctx, db, "s", "")
	})
	if s.Total != 9 || s.Failed != 1 || s.Refused != 7 || s.Cancelled != 1 || s.Open != 0 {
		t.Errorf("the session has %d calls, %d failed, %d refused, %d cancelled, %d open", s.Total, s.Failed, s.Refused,
			s.Cancelled, s.Open)
	}
	page := read(t, db, func(ctx context.Context, db view.DB) (*view.ToolPage, error) {
		return view.ReadTool(ctx, db, "a.rule_blocked")
	})
	for name, totals := range map[string]view.Totals{"today": page.Day, "month": page.Month,
		"the day": page.Days[0].Totals} {
		if totals.Refused != 1 || totals.Failed != 0 || totals.Cancelled != 0 {
			t.Errorf("%s: %+v", name, totals)
		}
	}
}

func TestRefusedCallsHideNoFailuresOfTheOverview(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `set session_replication_role = replica;
		insert into core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt)
		select gen_random_uuid(), gen_random_uuid(), 'a.b', 'failed', jsonb_build_object('error', jsonb_build_object(
			'message', 'The end', 'error_code', case when i = 1 then 'timeout' else 'limit_reached' end)), '{}',
			now() - interval '1 h' + i * interval '1 ms', 1
		from generate_series(1, 25000) i;
		set session_replication_role = origin`)
	o := read(t, db, view.ReadOverview)
	if len(o.Failures) != 1 || o.Failures[0].Code != "timeout" {
		t.Errorf("got %+v", o.Failures)
	}
}

// Refusals do not count: one failure among nine other calls does not need attention, however many calls a limit
// refuses.
func TestRefusalsMakeNoToolLookBroken(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	const minute = `delete from gem.outcome_minutes; -- the last one may have been of an earlier minute
		insert into gem.outcome_minutes (minute, tool_name, succeeded, failed, refused, cancelled,
		not_configured, hits, durations, waits)
		select date_trunc('minute', gem.now()), name, %s, 0, 0, '{}', '{}' from unnest(array['', 'a.b']) name`
	for counts, failing := range map[string]bool{"10, 1, 500, 500": false, "0, 9, 0, 0": false, "90, 11, 0, 0": true,
		"90, 11, 5000, 70": true} {
		testdb.Exec(t, db, fmt.Sprintf(minute, counts))
		ended := read(t, db, view.ReadEnded)
		if got := len(ended.Failing) > 0; got != failing {
			t.Errorf("succeeded, failed, refused, cancelled %s: failing is %t", counts, got)
		}
	}
}

func TestTheOverviewShowsNoticesThatNobodyGets(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `select gem.want_notices('{failed}', '{}')`)
	testdb.Exec(t, db, refusals)
	testdb.Exec(t, db, `update gem.notices set at = at - interval '2 minutes';
		insert into gem.notice_calls select id, 'ops', '{}', null, now() from core_tool_calls where tool_name = 'a.timeout'`)
	o, err := view.ReadOverview(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	call := testdb.Value[string](t, db, "select id::text from core_tool_calls where tool_name = 'a.timeout'")
	for _, n := range o.Needs {
		if n.Kind == "undelivered" && n.Count == 1 && n.CallID == call {
			call = ""
		} else if n.Kind == "notices_waiting" && n.Count == 1 && !n.Since.IsZero() && call == "" {
			return
		}
	}
	t.Errorf("got %+v", o.Needs)
}

package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// The first record of a version stays, and later workers read it.
func TestAVersionOfTheRulesIsRecordedOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	for _, record := range []string{
		`select sha256 || ' ' || rules from gem.record_rules('1', repeat('a', 64), '{"rules": []}', '1 hour')`,
		`select sha256 || ' ' || rules from gem.record_rules('1', repeat('b', 64), '{"rules": [1]}', '2 hours')`,
	} {
		if got, want := testdb.Value[string](t, db, record), strings.Repeat("a", 64)+` {"rules": []}`; got != want {
			t.Errorf("%s: %s, want %s", record, got, want)
		}
	}
	if got := testdb.Value[string](t, db,
		"select string_agg(version || ' ' || longest, ', ') from core_rules_versions"); got != "1 01:00:00" {
		t.Errorf("recorded %s", got)
	}
}

func TestAWorkerWithoutRulesClaimsNothingWhereTheyAreRequired(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		select gem.start_worker('without', 1, '', '', '1 hour');
		select gem.start_worker('with', 1, '', '', '1 hour', '{}', '1.0.0');
		insert into core_tool_calls (tool_name) values ('a.b'), ('a.b'), ('a.b')`)
	if got := testdb.Value[string](t, db,
		"select string_agg(worker_id || ' ' || coalesce(rules_version, '-'), ', ' order by "+
			"worker_id) from core_workers"); got != "with 1.0.0, without -" {
		t.Errorf("the workers are %s", got)
	}
	claim := func(worker string) error {
		return tryInsert(t, db, "select gem.claim('"+worker+"', 1, true)")
	}
	if err := claim("without"); err != nil {
		t.Errorf("where rules are not required: %v", err)
	}
	testdb.Exec(t, db, "update gem.limits set rules_required = true")
	err := claim("without")
	for _, says := range []string{"GM004", "worker without runs without rules", "TOOLS_RULES", "gem rules require --off"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if err := claim("with"); err != nil {
		t.Errorf("with rules: %v", err)
	}
	testdb.Exec(t, db, "update gem.limits set rules_required = false")
	if err := claim("without"); err != nil {
		t.Errorf("where they are no longer required: %v", err)
	}
}

// Rows leave from the front of their counter, and its last one stays as long as its call.
func TestRowsOfLimitsLeaveWhenNoRuleLooksAtThem(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	testdb.Exec(t, db, `
		create table clock (at timestamptz); insert into clock values ('2040-01-10');
		create or replace function gem.now() returns timestamptz language sql volatile as 'select at from public.clock';
		insert into gem.rule_runs (counter, n, at, call_id, rules_version)
		select c, n, timestamptz '2040-01-01' + n * interval '1 day', gen_random_uuid(), '1'
			from unnest('{a/calls, b/calls}'::text[]) c, generate_series(1, 8) n
		where c = 'a/calls' or n < 3;
		insert into core_tool_calls (tool_name) values ('t.a'), ('t.a');
		update gem.rule_runs r set call_id = c.id from core_tool_calls c where c.seq = case when r.counter = 'b/calls'
			and r.n = 2 then 1 when r.n = 8 then 2 end`)
	prune := func(limit int) float64 { return number(t, db, fmt.Sprintf("select gem.prune_rule_runs(%d)", limit)) }
	left := func() string {
		return testdb.Value[string](t, db, "select string_agg(counter || n, ' ' order by counter, n) from gem.rule_runs")
	}
	if got := prune(100); got != 0 {
		t.Errorf("%v rows left while no rules are known", got)
	}
	testdb.Exec(t, db, "select gem.record_rules('1', repeat('a', 64), '{}', '1 hour'), gem.record_rules('2', repeat('b', "+
		"64), '{}', '60 hours')")
	if got := prune(3); got != 3 { // five days old: those of 1 to 4
		t.Errorf("%v rows left, and may not be more than asked for", got)
	}
	if got, want := left(), "a/calls3 a/calls4 a/calls5 a/calls6 a/calls7 a/calls8 b/calls2"; got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
	prune(100)
	if got, want := left(), "a/calls4 a/calls5 a/calls6 a/calls7 a/calls8 b/calls2"; got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
	testdb.Exec(t, db, "update clock set at = '2041-01-01'")
	if got := prune(100); got != 4 || left() != "a/calls8 b/calls2" {
		t.Errorf("%v rows left, and there are %s", got, left())
	}
	testdb.Exec(t, db, "set local gem.pruning = 'on'; delete from core_tool_calls where seq = 2")
	if got := prune(100); got != 1 || left() != "b/calls2" {
		t.Errorf("of a call that is gone %v rows left, and there are %s", got, left())
	}
}

func TestWarningsOfAReceipt(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "insert into core_tool_calls (tool_name, created_by) values ('a.b', 'ada'), ('a.b', 'ada')")
	testdb.Exec(t, db, `
		select gem.start_worker('w', 2, '', '', '1 hour');
		select gem.finish(c.id, 1, 'w', 'succeeded', '{}', case when c.seq = (select min(seq) from core_tool_calls) then '{}'
			else
			'{"rules": {"version": "1", "verdicts": [{"rule": "a", "action": "warn", "message": "look out"},
				{"rule": "b", "action": "ask", "message": "asked"}]}}'::jsonb end, '1')
		from gem.claim('w', 2, true) c`)
	if got := testdb.Value[string](t, db,
		"select string_agg(r.warnings::text, ' ' order by r.warnings) from core_tool_receipts r"); got != `[] ["look out"]` {
		t.Errorf("the warnings are %s", got)
	}
	if rows, err := request(t, db, "service_role", "", `select 1 from core_tool_receipts r
		where r.warnings = '["look out"]'`); err != nil || rows != 1 {
		t.Errorf("a server: %d rows, %v", rows, err)
	}
	// A function that takes a row needs the right to read all of it, and a user does not learn the workers' names.
	if rows, err := request(t, db, "authenticated", "ada", "select 1 from core_tool_receipts where "+
		"effects->'rules'->'verdicts'->0->>'message' = 'look out'"); err != nil || rows != 1 {
		t.Errorf("a user: %d rows, %v", rows, err)
	}
}

// What limits count, and the rules, are nobody's but the owner's: workers have functions for both.
func TestCountersAndRulesAreClosed(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	testdb.Exec(t, db, "select gem.record_rules('1', repeat('a', 64), '{}', '1 hour'), gem.record_domains('1', "+
		"repeat('a', "+
		"64), '{}')")
	for what, sql := range map[string]string{
		"the rules":        "select * from core_rules_versions",
		"other rules":      "update core_rules_versions set rules = '{}'",
		"rules of its own": "insert into core_rules_versions values ('2', repeat('a', 64), '{}', '1 hour', now())",
		"no rules":         "delete from core_rules_versions",
		"the domains":      "select * from gem.domains_versions",
		"other domains":    "update gem.domains_versions set domains = '{}'",
		"the counters":     "select * from gem.rule_runs",
		"a row of a counter": "insert into gem.rule_runs (counter, n, at, call_id, rules_version) values ('a/calls', 1, " +
			"now(), gen_random_uuid(), '1')",
		"a counter set back":  "delete from gem.rule_runs",
		"a counter cut short": "select gem.prune_rule_runs(1)",
		"rules not required":  "update gem.limits set rules_required = false",
	} {
		for _, role := range []string{"anon", "authenticated", "service_role", "gem_worker"} {
			if _, err := request(t, db, role, "mallory", sql); err == nil ||
				!strings.Contains(err.Error(), "permission denied") {
				t.Errorf("%s: %s: %v", role, what, err)
			}
		}
	}
	for _, role := range []string{"anon", "authenticated", "service_role"} {
		if _, err := request(t, db, role, "mallory",
			"select gem.record_rules('2', repeat('a', 64), '{}', '1 hour')"); err == nil {
			t.Errorf("%s records rules", role)
		}
		if _, err := request(t, db, role, "mallory", "select gem.record_domains('2', repeat('a', 64), '{}')"); err == nil {
			t.Errorf("%s records domains", role)
		}
	}
}

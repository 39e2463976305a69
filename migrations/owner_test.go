package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

// Functions that run as their owner find no name that their caller made.
func TestWhoMayCallAFunctionOfTheOwnerDoesNotBecomeTheOwner(t *testing.T) {
	t.Parallel()
	db := supabase(t)
	finished(t, db)
	for role, calls := range map[string]string{
		"gem_monitor": "select * from gem.queue; select * from gem.outcomes; select * from gem.recent_failures; select * " +
			"from gem.workers",
		"gem_worker": `select gem.start_worker('v', 5, '', '1', '1 hour'); select *
			from gem.heartbeat('v', '1 hour', '{}', '{}', true); select gem.claim('v', 1, true);
			select gem.hook_record('x', 's', 'a', 'PostToolUse', '[{"kind": "edit", "path": "/a", "failed": ["b"]}]');
				select gem.hook_facts('x', 's', '{/a}');
			select gem.count_outcomes(1); select * from gem.record_registry('1', repeat('a', 64), '{}')`,
		"authenticated": "select enqueue_tool_call('a.b'); insert into core_tool_calls (tool_name) values ('a.b'); select " +
			"cancel_tool_call(id) from core_tool_calls",
	} {
		var spies strings.Builder
		for _, name := range []string{"timestamptz", "interval", "jsonb", "uuid", "text"} {
			fmt.Fprintf(&spies, `
				create function pg_temp.spy(pg_catalog.%[1]s) returns boolean language plpgsql as $$ begin
					if current_user <> '%[2]s' then raise exception '%% ran this', current_user; end if;
					return true;
				end $$;
				create domain pg_temp.%[1]s as pg_catalog.%[1]s check (pg_temp.spy(value));`, name, role)
		}
		if _, err := request(t, db, role, "ada", spies.String()+calls+"; discard temp"); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
}

func TestEveryFunctionOfTheOwnerSaysWhereItLooks(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t))
	if open := texts(t, db, `
		select oid::regprocedure from pg_proc
		where pronamespace in ('gem'::regnamespace, 'public'::regnamespace)
			and (prosecdef or array_to_string(proconfig, ' ') like '%search_path%')
			and ('search_path=pg_catalog, pg_temp' = any (proconfig)) is not true`); len(open) > 0 {
		t.Errorf("these look elsewhere: %s", strings.Join(open, ", "))
	}
}

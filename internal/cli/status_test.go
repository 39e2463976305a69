package cli

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/client/view"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// watcher is a database with some calls, and the environment of a member of gem_monitor.
func watcher(t *testing.T) (s scene, env []string) {
	t.Helper()
	database := newDatabase(t)
	s = scene{t, testdb.Pool(t, database)}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	role := "cli_" + strings.TrimPrefix(u.Path, "/gem_test_")
	if _, err := s.db.Exec(t.Context(), "create role "+role+" login password 'x' in role gem_monitor"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.db.Exec(context.Background(), "drop role "+role) })
	u.User = url.UserPassword(role, "x")
	return s, []string{"DATABASE_URL=" + u.String()}
}

func TestStatusSaysWhatNeedsSomeoneFirst(t *testing.T) {
	t.Parallel()
	s, env := watcher(t)
	empty := gemWith(t, env, "status")
	empty.wantCode(t, exitDone)
	wants(t, empty.stdout, "Queue    0 queued · 0 scheduled · 0 waiting · 0 running\n", "Workers  0 alive",
		"no worker is alive: the last calls are not counted.\n")
	if strings.Contains(empty.stdout, "!") {
		t.Errorf("something needs someone in an empty database:\n%s", empty.stdout)
	}
	s.failed("rule_error", "The rule big could not be judged", "{}")
	s.failed("limit_reached", "Not now", "{}")
	testdb.Exec(t, s.db, `insert into gem.outcome_minutes (minute, tool_name, succeeded, failed, refused, cancelled,
		not_configured, hits, durations, waits)
		values (date_trunc('minute', gem.now()), '', 11, 22, 33, 44, 55, 6, '{}', '{}')`)
	s.failed("outcome_unknown", `order 17 of 'ada' was on its way`, "{}")
	s.insert()
	got := gemWith(t, env, "status")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "! 1 call ended in the last day with an unknown outcome: gem list --code outcome_unknown\n",
		"! 1 call refused in the last day, because a rule could not be judged: gem explain ",
		"order 17 of 'ada' was on its way", "QUEUE OF", "1 queued, the first for ")
	if fields := strings.Fields(strings.Split(got.stdout, "last hour")[1]); !slices.Equal(fields[:6],
		[]string{"11", "6", "22", "33", "44", "55"}) {
		t.Errorf("the last hour has %v", fields)
	}
	if strings.Contains(got.stdout, "limit_reached") {
		t.Errorf("a refused call is among the failures:\n%s", got.stdout)
	}

	var o view.Overview
	asJSON := gemWith(t, env, "status", "--json")
	if err := json.Unmarshal([]byte(asJSON.stdout), &o); err != nil || o.Queue.Ready != 1 || len(o.Needs) != 2 ||
		o.Needs[0].Kind != "outcome_unknown" || o.Needs[1].Kind != "rule_error" {
		t.Errorf("%v, %s", err, asJSON.stdout)
	}
}

func TestListShowsTheCallsThatAreAskedFor(t *testing.T) {
	t.Parallel()
	s, env := watcher(t)
	owner := []string{"DATABASE_URL=" + s.db.Config().ConnString()}
	ended := s.ended("succeeded", "{}")
	failed := s.failed("timeout", "It took too long", "null")
	refused, cancelled := s.failed("rule_blocked", "Not on Sundays", "{}"), s.insert()
	gemWith(t, owner, "cancel", cancelled).wantCode(t, exitDone)
	open := s.insert()
	all := gemWith(t, env, "list")
	all.wantCode(t, exitDone)
	wants(t, all.stdout, "CALL ", "CREATED", ended, failed, open, "queued", "succeeded", "cancelled  ", "refused  ",
		"cancelled: The call was cancelled before it ran.")

	got := gemWith(t, env, "list", "--failed", "--from", "1h")
	wants(t, got.stdout, failed, "ENDED")
	for _, other := range []string{open, ended, cancelled, refused} {
		if strings.Contains(got.stdout, other) {
			t.Errorf("other calls are listed too:\n%s", got.stdout)
		}
	}
	for state, id := range map[string]string{"cancelled": cancelled, "refused": refused} {
		got := gemWith(t, env, "list", "--state", state)
		wants(t, got.stdout, id, "ENDED")
		if strings.Count(got.stdout, "\n") != 2 {
			t.Errorf("not only one call is %s:\n%s", state, got.stdout)
		}
	}
	first := gemWith(t, env, "list", "--limit", "4", "--from", "48h")
	_, before, found := strings.Cut(strings.TrimSpace(first.stderr), "More: gem list --from=48h --limit=4 --before ")
	if !found || strings.Contains(first.stdout, ended) {
		t.Fatalf("%s%s", first.stdout, first.stderr)
	}
	wants(t, gemWith(t, env, "list", "--limit", "4", "--before", before).stdout, ended)
	var p view.Page
	asJSON := gemWith(t, env, "list", "--tool", "leads.create", "--json")
	if err := json.Unmarshal([]byte(asJSON.stdout), &p); err != nil || p.By != "created" {
		t.Errorf("%v, %s", err, asJSON.stdout)
	}
	none := gemWith(t, env, "list", "--session", "none")
	none.wantCode(t, exitDone)
	wants(t, none.stderr, "No call matches.")

	for _, c := range []struct{ want, flags string }{
		{`--state: "asleep" is not one of queued, scheduled,`, "--state asleep"},
		{"--failed is --state failed, and --state is running", "--failed --state running"},
		{`--from: "soon" is not a time such as`, "--from soon"},
		{"--limit: 501 is not from 1 to 500", "--limit 501"},
		{"--before: it is not the end of a page of this list", "--before 1"},
	} {
		got := gemWith(t, env, append([]string{"list"}, strings.Fields(c.flags)...)...)
		got.wantCode(t, exitUsage)
		wants(t, got.stderr, c.want)
	}
}

func TestAListShowsWhatAHandlerWaitsForAndHowLongItTook(t *testing.T) {
	t.Parallel()
	s, env := watcher(t)
	s.worker("w-2", 4)
	testdb.Exec(t, s.db, "select gem.start_worker('w-1', 4, 'test', '7', '1 hour', '{steps}')")
	id := s.insert()
	testdb.Exec(t, s.db, `do $$ begin
		set local session_replication_role = replica; -- or a trigger keeps the time
		update core_tool_calls set created_at = created_at - interval '5 hours';
	end $$`)
	s.claim("w-1")
	const question = "00000000-0000-7000-8000-000000000001"
	testdb.Exec(t, s.db, `select gem.wait($1, 1, 'w-1',
		'[{"id": "`+question+
		`", "name": "a", "tool": "wait.answer", "input": {"text": "Which?"}}]', 'call', '{a}', 1, '{}', null)`, id)
	s.claim("w-1")
	testdb.Exec(t, s.db, "select gem.wait($1, 1, 'w-1', '[]', 'answer', '{#answer}', 1, '{}', null)", question)
	asking := gemWith(t, env, "list")
	wants(t, asking.stdout, "TOOK  NOTE\n")
	if strings.Count(asking.stdout, "waiting for an answer") != 2 {
		t.Errorf("got:\n%s", asking.stdout)
	}

	testdb.Exec(t, s.db, "select cancel_tool_call($1)", question)
	s.claim("w-1")
	testdb.Exec(t, s.db, `select gem.finish($1, 2, 'w-1', 'succeeded', '{"answer": "this"}', '{}', '7')`, question)
	testdb.Exec(t, s.db, "select gem.run_timers('w-1', 9)")
	s.claim("w-1")
	testdb.Exec(t, s.db, `select gem.finish($1, 2, 'w-1', 'succeeded', '{}',
		'{"durable": {"steps": 0, "calls": 1}}', '7')`, id)
	wants(t, gemWith(t, env, "list", "--tool", "leads.create").stdout, "  5 h   run 2, which took ")
	env = []string{"DATABASE_URL=" + s.db.Config().ConnString()}
	wants(t, gemWith(t, env, "trace", id).stdout, ": succeeded, its last run in ")
	wants(t, gemWith(t, env, "explain", id).stdout, "It succeeded 5 h after it was made, in run 2 on w-1.")
}

func TestWorkersShowWhatTheyRun(t *testing.T) {
	t.Parallel()
	s, env := watcher(t)
	wants(t, gemWith(t, env, "workers").stderr, "Start one: gem worker")
	s.worker("w-1", 5)
	id := s.insert()
	s.claim("w-1")
	got := gemWith(t, env, "workers")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "WORKER", "w-1", "alive", id)
	wants(t, gemWith(t, env, "workers", "--json").stdout, `"id": "w-1"`, `"slots": 5`, `"holds": 1`)
}

func TestWorkersAreTimedByPostgressClock(t *testing.T) {
	t.Parallel()
	s, env := watcher(t)
	testdb.Exec(t, s.db, "create or replace function gem.now() returns timestamptz language sql volatile as 'select "+
		"pg_catalog.clock_timestamp() - interval ''3 days'' '")
	s.worker("w-1", 5)
	s.insert()
	s.claim("w-1")
	got := gemWith(t, env, "workers")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "w-1", "alive", "LONGEST", "ATTEMPT")
	if strings.Contains(got.stdout, " d ") || strings.Contains(got.stdout, "3 d") {
		t.Errorf("this machine's clock is days ahead of Postgres's:\n%s", got.stdout)
	}
}

func TestWatchGoesOnUntilCtrlC(t *testing.T) {
	t.Parallel()
	s, env := watcher(t)
	p := startGem(t, env, "list", "--watch", "--json")
	p.stdout.waitFor(t, `{"calls":[],`)
	id := s.insert()
	p.stdout.waitFor(t, `{"calls":[{"id":"`+id+`"`)
	p.signal(t, syscall.SIGINT)
	if code := p.wait(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestWhoMayNotWatchIsToldWhoMay(t *testing.T) {
	t.Parallel()
	s, env := watcher(t)
	role := strings.TrimPrefix(strings.Split(env[0], ":x@")[0], "DATABASE_URL=postgres://")
	if _, err := s.db.Exec(t.Context(), "revoke gem_monitor from "+role); err != nil {
		t.Fatal(err)
	}
	got := gemWith(t, env, "status")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "permission denied", "members of gem_monitor")
}

// The line that shows what follows can be pasted into a shell, whatever the flags are.
func TestTheLineForTheNextPageHasTheFlagsQuoted(t *testing.T) {
	t.Parallel()
	cmd := listCommand()
	for name, value := range map[string]string{"session": "it's 17", "failed": "true", "before": "x"} {
		if err := cmd.Flags().Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := goOn(cmd), `list --failed --session='it'\''s 17' --before `; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

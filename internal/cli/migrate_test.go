package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/google/go-cmp/cmp"
)

func TestMigrateSaysWhatItDid(t *testing.T) {
	t.Parallel()
	// DIRECT_URL is preferred: nobody listens at this DATABASE_URL.
	env := []string{"DATABASE_URL=postgres://gem@" + closedAddress(t) + "/gem", "DIRECT_URL=" + testdb.NewEmpty(t)}

	first := gemWith(t, env, "migrate")
	first.wantCode(t, 0)
	wants(t, first.stdout, "applied core/00001_calls.sql\n", "applied functions/functions\n", "the schema was created\n")

	second := gemWith(t, env, "migrate")
	second.wantCode(t, 0)
	if want := "the schema is up to date\n"; second.stdout != want {
		t.Errorf("stdout: got %q, want %q", second.stdout, want)
	}
}

func TestMigratePrintsWhatItWouldDo(t *testing.T) {
	t.Parallel()
	printed := gemWith(t, nil, "migrate", "--print")
	printed.wantCode(t, exitDone)
	url := testdb.NewEmpty(t)
	testdb.Exec(t, testdb.Pool(t, url), printed.stdout)
	migrated := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate")
	wants(t, migrated.stdout, "the schema is up to date\n")
}

// A program of the user's own fails in its own file, which leaves nothing.
func TestMigrateSaysWhatFailed(t *testing.T) {
	testdb.Long(t, "TestMigrateSaysWhatItDid")
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, `create function refuse() returns event_trigger language plpgsql as $$ begin
		raise exception 'no triggers today'; end $$;
		create event trigger refuse on ddl_command_start when tag in ('CREATE TRIGGER') execute function refuse()`)
	dry := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate", "--dry-run")
	dry.wantCode(t, exitFailed)
	wants(t, dry.stderr, "functions/functions", "no triggers today", "in PL/pgSQL function public.refuse() line 2",
		"Nothing was changed: this was a dry run")
	if n := testdb.Value[int](t, db, "select count(*)::int from pg_namespace where nspname = 'gem'"); n != 0 ||
		dry.stdout != "" {
		t.Errorf("a dry run that fails leaves the schema gem, or says: %s", dry.stdout)
	}
	first := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate")
	first.wantCode(t, exitFailed)
	wants(t, first.stderr, "gem migrate: ", "functions/functions", "no triggers today", "\nNothing was changed\n")
	if n := testdb.Value[int](t, db, "select count(*)::int from pg_namespace where nspname = 'gem'"); n != 0 ||
		first.stdout != "" {
		t.Errorf("a first migration that fails leaves the schema gem, or says: %s", first.stdout)
	}

	// A later migration commits each file. This one lacks two.
	testdb.Exec(t, db, "alter event trigger refuse disable")
	gemWith(t, []string{"DATABASE_URL=" + url}, "migrate").wantCode(t, exitDone)
	testdb.Exec(t, db, `update gem.migrations set version = 0 where source = 'functions';
		with last as (delete from gem.migrations where file = '00005_llm.sql' returning objects)
		update gem.migrations m set objects = m.objects || l.objects from last l where m.file = '00004_hook.sql';
		drop index gem_llm_sent; alter event trigger refuse enable`)
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "gem migrate: ", "functions/functions", "no triggers today",
		"That file was rolled back. The files up to core/00005_llm.sql stay applied: the next gem migrate continues after "+
			"them")
	wants(t, got.stdout, "applied core/00005_llm.sql\n", "changed the table public.core_llm_requests: new index")
	if strings.Contains(got.stderr, "run `gem migrate`") {
		t.Errorf("gem migrate says to run gem migrate:\n%s", got.stderr)
	}

	again := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate")
	again.wantCode(t, exitFailed)
	wants(t, again.stderr, "no triggers today", "\nNothing was changed\n")
	testdb.Exec(t, db, "drop event trigger refuse")
	rest := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate")
	rest.wantCode(t, exitDone)
	wants(t, rest.stdout, "applied functions/functions\n")
	if strings.Contains(rest.stdout, "applied core/") {
		t.Errorf("a file was applied twice:\n%s", rest.stdout)
	}
}

// strangers is a database with names that GEM needs.
const strangers = `create table tasks (id serial primary key, owner text not null,
	status text not null check (status in ('todo', 'done')));
	insert into tasks (owner, status) values ('ada', 'todo');
	create table leads (id serial primary key, email text);
	create table pages (note text); create view notes as select note from pages;
	create function gem_caller() returns integer language sql as 'select 1';
	create schema gem; create table gem.migrations (version integer, file text); insert into gem.migrations
		values (1, 'stones')`

func dumped(t *testing.T, url string) string {
	t.Helper()
	cmd, err := pgserver.Command("pg_dump", "--restrict-key=x", url)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// No command changes a stranger's database, and each explains what to do.
func TestCommandsLeaveAStrangersDatabaseAsItIs(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	testdb.Exec(t, testdb.Pool(t, url), strangers)
	before := dumped(t, url)
	for _, args := range [][]string{{"migrate"}, {"migrate", "--dry-run"}, {"migrate", "--adopt", "tasks", "--yes"},
		{"worker", "--patience", "1s"}, {"audit"}, {"prune", "--older-than", "1h", "--no-archive"}} {
		got := gemWith(t, []string{"DATABASE_URL=" + url}, args...)
		got.wantCode(t, exitFailed)
		if args[0] != "migrate" {
			wants(t, got.stderr, "run `gem migrate`")
		} else {
			wants(t, got.stderr, "nothing was changed", "  view public.notes\n", "  table public.leads\n",
				"  function public.gem_caller\n", "  schema gem\n",
				"leave the tools leads.* out of the registry", "rename yours", "use another database")
		}
		if (len(args) == 1) && args[0] == "migrate" {
			wants(t, got.stderr, "gem migrate --adopt leads,tasks\n", "drop the check tasks_status_check; change defaults, "+
				"and fill in null, in id, status; turn on row level security")
		}
		if after := dumped(t, url); after != before {
			t.Fatalf("gem %s changed it:\n%s", strings.Join(args, " "), cmp.Diff(before, after))
		}
	}
}

// Tables of an earlier GEM come in when somebody says so, after a look at what will change.
func TestMigrateAsksBeforeItAdoptsTables(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, "create table tasks (id uuid primary key default gen_random_uuid(), title text, status text check "+
		"(status in ('todo'))); insert into tasks (title) values ('roof')")
	env := []string{"DATABASE_URL=" + url}
	before := dumped(t, url)
	refused := gemWith(t, env, "migrate", "--adopt", "tasks")
	refused.wantCode(t, exitFailed)
	wants(t, refused.stderr, "table public.tasks: GEM will make these changes\n", "\n  new column domain\n",
		"\n  changes status in 1 row\n",
		"\n  dropped constraint tasks_status_check\n", "\n  granted to gem_worker: insert, select, update\n",
		"Adopt them? [y/N]",
		"nothing was changed. To adopt them without being asked: gem migrate --adopt tasks --yes")
	if after := dumped(t, url); after != before {
		t.Fatal(cmp.Diff(before, after))
	}
	adopted := gemReading(t, env, "y\n", "migrate", "--adopt", "tasks")
	adopted.wantCode(t, exitDone)
	wants(t, adopted.stdout, "changed the table public.tasks: ", "the schema was created")
	if title := testdb.Value[string](t, db,
		"select title from tasks where domain = 'business' or domain is not null"); title != "roof" {
		t.Errorf("the task is %q", title)
	}
	again := gemWith(t, env, "migrate", "--adopt", "tasks")
	again.wantCode(t, exitDone)
	wants(t, again.stdout, "the schema is up to date")
}

// Until somebody confirms, others can work with the tables. The list is made while a session holds a lock that admits
// only readers. No lock is held while the question is open.
func TestMigrateLocksNothingBeforeItIsConfirmed(t *testing.T) {
	testdb.Long(t, "TestMigrateAsksBeforeItAdoptsTables")
	t.Parallel()
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	testdb.Exec(t, db, `create table tasks (id uuid primary key default gen_random_uuid(), title text);
		insert into tasks (title) values ('roof')`)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table tasks in exclusive mode"); err != nil {
		t.Fatal(err)
	}
	before := dumped(t, url)
	dry := gemWith(t, []string{"DATABASE_URL=" + url + ""}, "migrate", "--adopt", "tasks", "--dry-run")
	dry.wantCode(t, exitDone)
	wants(t, dry.stdout, "table public.tasks: GEM will make these changes\n", "\n  new column domain\n",
		"nothing was changed: this was a dry run")
	if after := dumped(t, url); after != before {
		t.Error(cmp.Diff(before, after))
	}
	p := prepare(t, []string{"DATABASE_URL=" + url}, "migrate", "--adopt", "tasks")
	answers, answer := io.Pipe()
	defer func() { _ = answer.Close() }()
	p.cmd.Stdin = answers
	p.start(t)
	p.stderr.waitFor(t, "Adopt them? [y/N]")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, "begin; lock table tasks in access exclusive mode nowait; update tasks set title = 'wall'; commit")
	if _, err := io.WriteString(answer, "n\n"); err != nil {
		t.Error(err)
	}
	_ = answer.Close() // which the end of the process waits for
	if code := p.wait(t); code != exitFailed {
		t.Errorf("it ended with %d", code)
	}
}

func TestADryRunChangesNothing(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	before := dumped(t, url)
	got := gemWith(t, []string{"DATABASE_URL=" + url}, "migrate", "--dry-run")
	got.wantCode(t, exitDone)
	wants(t, got.stdout, "created the schemas gem, ", "public.core_tool_calls", "granted to gem_worker: ",
		"nothing was changed: this was a dry run\n")
	if after := dumped(t, url); after != before {
		t.Error(cmp.Diff(before, after))
	}
}

package migrations_test

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
)

// all is the program with every built-in domain.
func all() []migrations.Source { return migrations.Sources(builtin.Domains()...) }

// strangers are objects that others have under names that GEM needs, with what the error says of them.
var strangers = map[string]struct{ sql, says, way string }{
	"tasks": {`create table public.tasks (id bigint generated always as identity primary key, owner text not null,
		status text not null check (status in ('todo', 'done')));
		insert into public.tasks (owner, status) values ('ada', 'todo')`,
		"table public.tasks\n      GEM would have to add the columns domain, title, description, due_at, context_ref, " +
			"priority, completed_at, completion_note, defer_reason, call_id, created_by, created_at, updated_at; allow null " +
			"in owner; " +
			"drop the check tasks_status_check; change defaults, and fill in null, in id, status; turn on row level security; " +
			"add triggers, checks, indexes and rights", "gem migrate --adopt tasks"},
	"leads": {"create table public.leads (id serial primary key, email text unique); insert into " +
		"public.leads (email) values ('a'), ('b')", "table public.leads", "gem migrate --adopt leads"},
	"notes, a view": {"create table public.pages (note text); create view public.notes as select note from " +
		"public.pages", "view public.notes\n      GEM would have to put GEM's table in its place",
		"leave the tools os.* out"},
	"notes, a type": {"create type public.notes as enum ('a')", "type public.notes", "leave the tools os.* out"},
	"an index": {"create table public.pages (note text); create index gem_notes_newest on public.pages (note)",
		"index public.gem_notes_newest", "leave the tools os.* out"},
	"the schema gem": {"create schema gem; create table gem.stones (id serial)", "schema gem\n", "rename yours"},
	"another ledger": {"create schema gem; create table gem.migrations (version bigint, name text); insert into " +
		"gem.migrations values (1, 'first')", "schema gem\n", "rename yours"},
	"the schema tools": {"create schema tools; create function tools.hammer() returns int language sql as 'select 1'",
		"schema tools\n", "rename yours"},
	"gem_caller": {"create function public.gem_caller() returns integer language sql as 'select 1'",
		"function public.gem_caller\n      GEM would have to replace public.gem_caller()", "rename yours"},
	"list_tools": {"create function public.list_tools(integer) returns integer language sql as 'select 1'",
		"function public.list_tools", "rename yours"},
	"core_tool_calls": {"create table public.core_tool_calls (id integer primary key)", "table public.core_tool_calls",
		"gem migrate --adopt core_tool_calls"},
	"core_workers": {"create table public.core_workers (id integer primary key)", "table public.core_workers",
		"rename yours"},
	"the role gem_worker": {"create role gem_worker login password 'x'; comment on role gem_worker is 'precious'; " +
		"create table public.gems (id integer); grant select on public.gems to gem_worker", "role gem_worker\n",
		"--adopt-role gem_worker"},
}

// serverOf starts a server for the test alone, since a server's databases share its roles.
func serverOf(t *testing.T) *pgserver.Server {
	t.Helper()
	return testdb.Private(t, pgserver.Options{})
}

// dump is the whole of a database, and of its server's roles, byte by byte.
func dump(t *testing.T, databaseURL string) string {
	t.Helper()
	database, globals := dumps(t, databaseURL)
	return database + globals
}

func dumps(t *testing.T, databaseURL string) (database, globals string) {
	t.Helper()
	var whole []string
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/postgres"
	for _, args := range [][]string{{"pg_dump", "--restrict-key=x", databaseURL},
		{"pg_dumpall", "--globals-only", "--restrict-key=x", "-d", u.String()}} {
		cmd, err := pgserver.Command(args[0], args[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v %s", args[0], err, exitText(err))
		}
		whole = append(whole, string(out))
	}
	return whole[0], whole[1]
}

// Whatever a stranger's database has, alone or all at once, a refused migration does not change a byte of it.
func TestAStrangersObjectsAreRefusedAndUntouched(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	admin := testdb.Pool(t, server.URL("postgres"))
	together := "the whole lot"
	names := append(slices.Sorted(maps.Keys(strangers)), together)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			if i%6 != 0 && name != together {
				testdb.Long(t, together)
			}
			database := fmt.Sprintf("stranger_%d", i)
			testdb.Exec(t, admin, "create database "+database)
			databaseURL := server.URL(database)
			db := testdb.Pool(t, databaseURL)
			var says, ways []string
			role := false
			for _, one := range names {
				if one != name && (name != together || slices.Contains(
					[]string{together, "notes, a type", "another ledger", "an index"}, one)) {
					continue
				}
				s := strangers[one]
				testdb.Exec(t, db, s.sql)
				says, ways = append(says, s.says), append(ways, s.way)
				role = role || strings.Contains(one, "role")
			}
			before := dump(t, databaseURL)
			for _, dry := range []bool{false, true} {
				done, err := migrations.Apply(t.Context(), databaseURL, migrations.Options{DryRun: dry}, all()...)
				var taken *migrations.TakenError
				if !errors.As(err, &taken) || len(done.Applied) > 0 {
					t.Fatalf("it was not refused: %v, %v", done.Applied, err)
				}
				for _, want := range says {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("it does not say %q: %v", want, err)
					}
				}
				for _, want := range ways {
					if way, table, ok := strings.Cut(want, "--adopt "); ok && name == together {
						want = way + "--adopt core_tool_calls,leads,tasks"
						_ = table
					}
					if !strings.Contains(err.Error(), want) {
						t.Errorf("it does not say %q: %v", want, err)
					}
				}
			}
			var sql strings.Builder
			if err := migrations.Print(&sql, "", migrations.Options{}, all()...); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(t.Context(), sql.String()); err == nil ||
				!strings.Contains(err.Error(), "nothing was changed") {
				t.Errorf("the printed SQL says %v", err)
			}
			// As psql does: it continues after an error.
			cmd, err := pgserver.Command("psql", "-qX", "-f", "-", databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdin = strings.NewReader(sql.String())
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "nothing was changed") {
				t.Errorf("psql says %v %s", err, out)
			}
			if diff := cmp.Diff(before, dump(t, databaseURL)); diff != "" {
				t.Errorf("the stranger's database was changed: %s", diff)
			}
			if err := migrations.Check(t.Context(), db); err == nil || !strings.Contains(err.Error(), "run `gem migrate`") {
				t.Errorf("a worker would start: %v", err)
			}
			db.Close()
			if role {
				testdb.Exec(t, admin, "drop database "+database+" with (force)")
				testdb.Exec(t, admin, "drop role gem_worker")
			}
		})
	}
}

var block = regexp.MustCompile(`(?m)^-- (?:Data for )?Name: (.*); Type: (.*); Schema: (\S+)(?:; Owner: .*)?$`)

// blocks are the objects of a dump, each with its SQL.
func blocks(t *testing.T, dumped string) map[string]string {
	t.Helper()
	found := map[string]string{}
	places := block.FindAllStringSubmatchIndex(dumped, -1)
	for i, at := range places {
		to := len(dumped)
		if i+1 < len(places) {
			to = places[i+1][0]
		}
		key := dumped[at[6]:at[7]] + " " + dumped[at[4]:at[5]] + " " + dumped[at[2]:at[3]]
		found[key] += dumped[at[1]:to]
	}
	if len(found) < 3 {
		t.Fatalf("only %d objects in the dump", len(found))
	}
	return found
}

// What a migration adds to a database with other tables is what it says, and all that was there is the same, byte by
// byte.
func TestAnAcceptedMigrationChangesOnlyWhatItSays(t *testing.T) {
	testdb.Long(t, "TestTheListOfAnAdoptionIsWhatItChanges")
	t.Parallel()
	server := serverOf(t)
	databaseURL := server.URL("postgres")
	db := testdb.Pool(t, databaseURL)
	testdb.Exec(t, db, `create role authenticated nologin; create publication supabase_realtime; alter default privileges grant
		select on tables to authenticated;
		create schema shop; create table shop.tasks (id serial primary key, title text); insert into shop.tasks (title)
			values ('one'), ('two');
		create table public.orders (id serial primary key, task integer references shop.tasks); create view public.todo as
			select * from shop.tasks;
		create function public.total() returns integer language sql as 'select 1'; grant execute
			on function public.total() to authenticated;
		insert into public.orders (task) values (1); alter publication supabase_realtime add table public.orders`)
	before, globals := dumps(t, databaseURL)
	planned, err := migrations.Apply(t.Context(), databaseURL, migrations.Options{DryRun: true}, all()...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before+globals, dump(t, databaseURL)); diff != "" {
		t.Fatalf("a dry run changed: %s", diff)
	}
	done, err := migrations.Apply(t.Context(), databaseURL, migrations.Options{}, all()...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(planned.Changes.Lines(), done.Changes.Lines()); diff != "" {
		t.Errorf("the dry run said (-) and the migration (+): %s", diff)
	}
	said := strings.Join(done.Changes.Lines(), "\n")
	for _, want := range []string{"membership of the role authenticated, for gem_mcp",
		"usage of the schema public, for gem_frontend, gem_operator, gem_worker",
		"public.core_tool_receipts in the publication supabase_realtime"} {
		if !strings.Contains(said, "added outside GEM's own objects: "+want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	after, globalsAfter := dumps(t, databaseURL)
	for line := range strings.Lines(globals) {
		if !strings.Contains(globalsAfter, line) {
			t.Errorf("the roles lost %s", line)
		}
	}
	for line := range strings.Lines(globalsAfter) {
		if !strings.Contains(globals, line) && !strings.Contains(line, "gem_") && !strings.HasPrefix(line, "-- ") {
			t.Errorf("the roles have %s", line)
		}
	}
	was, is := blocks(t, before), blocks(t, after)
	for key, sql := range was {
		if key == "- ACL SCHEMA public" { // to which usage was added
			continue
		}
		if trimmed(is[key]) != trimmed(sql) {
			t.Errorf("%s was\n%s\nand is\n%s", key, sql, is[key])
		}
	}
	for key := range is {
		if _, there := was[key]; there {
			continue
		}
		parts := strings.SplitN(key, " ", 2)
		_, name, _ := strings.Cut(parts[1], " ")
		schema := parts[0]
		named := regexp.MustCompile(`[a-z_]+`).FindAllString(name, -1)
		if !strings.Contains(said, " "+schema+",") && !slices.ContainsFunc(named,
			func(n string) bool { return strings.Contains(said, n) }) {
			t.Errorf("it made %s, and did not say so:\n%s", key, said)
		}
	}
	if left := testdb.Value[string](t, db,
		"select last_value || ' ' || is_called from shop.tasks_id_seq"); left != "2 true" {
		t.Errorf("the sequence is at %s", left)
	}
}

// trimmed is the SQL of an object without the comments around it.
func TestGrantsGoToGEMsTablesWhateverTheSearchPath(t *testing.T) {
	url := testdb.NewEmpty(t)
	db := testdb.Pool(t, url)
	if _, err := db.Exec(t.Context(), "create schema app; create table app.leads (id integer); create table app.notes "+
		"(id integer)"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), url+"&search_path=app,public", all()...); err != nil {
		t.Fatal(err)
	}
	var theirs, ours int
	err := db.QueryRow(t.Context(), `select count(*) filter (where schemaname = 'app'),
		count(*) filter (where schemaname = 'public')
		from pg_policies where policyname = 'gem_worker_works' and tablename in ('leads', 'notes')`).Scan(&theirs, &ours)
	if err != nil || theirs != 0 || ours != 2 {
		t.Errorf("%d policies on the stranger's tables and %d on GEM's, %v: want 0 and 2", theirs, ours, err)
	}
	var may bool
	err = db.QueryRow(t.Context(), `select has_table_privilege('gem_worker', 'app.leads', 'select')
		or not has_table_privilege('gem_worker', 'public.leads', 'insert')`).Scan(&may)
	if err != nil || may {
		t.Errorf("the worker has rights on the stranger's table, or lacks its own: %v", err)
	}
}

func trimmed(sql string) string {
	return strings.TrimSpace(regexp.MustCompile(`(?m)^(--|SET default_|.*unrestrict ).*$`).ReplaceAllString(sql, ""))
}

func TestNoAPIAddsNothingToObjectsOfOthersAndIsRemembered(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	databaseURL := server.URL("postgres")
	db := testdb.Pool(t, databaseURL)
	testdb.Exec(t, db, "create role authenticated nologin; create publication supabase_realtime")
	added := func() string {
		return testdb.Value[string](t, db, `select concat_ws(' ', pg_has_role('gem_mcp', 'authenticated', 'member'),
			(select count(*) from pg_publication_tables), (select count(*) from pg_namespace, aclexplode(nspacl) a
				where nspname = 'public' and a.grantee::regrole::text like 'gem%'))`)
	}
	no, yes := false, true
	for i, step := range []struct {
		api  *bool
		want string
	}{{&no, "f 0 0"}, {nil, "f 0 0"}, {&yes, "t 1 3"}, {nil, "t 1 3"}} {
		done, err := migrations.Apply(t.Context(), databaseURL, migrations.Options{API: step.api})
		if err != nil {
			t.Fatal(err)
		}
		if got := added(); got != step.want {
			t.Errorf("step %d: %s, want %s; it said %v", i, got, step.want, done.Changes.Lines())
		}
		if step.api == nil && len(done.Applied) > 0 {
			t.Errorf("step %d applied %v", i, done.Applied)
		}
	}
}

// Roles belong to the server. Two databases share them, in turns and at once; a third is restored on another server,
// without its roles. The long form also restores a dump without rights.
func TestDatabasesOfOneServerShareGEMsRoles(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	admin := testdb.Pool(t, server.URL("postgres"))
	for _, name := range []string{"one", "two", "three"} {
		testdb.Exec(t, admin, "create database "+name)
	}
	failed := make(chan error, 2)
	for _, name := range []string{"one", "two"} {
		go func() { failed <- migrations.Up(t.Context(), server.URL(name), all()...) }()
	}
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if err := migrations.Up(t.Context(), server.URL("three"), all()...); err != nil {
		t.Fatal(err)
	}
	dumps := [][]string{{"--no-owner"}} // whose grants to roles that do not exist fail
	if testdb.IsLong() {
		dumps = append(dumps, []string{"--no-owner", "--no-privileges"})
	}
	for _, args := range dumps {
		restored := restore(t, server.URL("one"), args...)
		done, err := migrations.Apply(t.Context(), restored, migrations.Options{}, all()...)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(done.Applied, "functions/functions") || !slices.Contains(done.Applied, "os/grants") ||
			slices.Contains(done.Applied, "core/00001_calls.sql") {
			t.Errorf("it applied %v", done.Applied)
		}
		db := testdb.Pool(t, restored)
		if diff := cmp.Diff(rightsOf(t, testdb.Pool(t, server.URL("one"))), rightsOf(t, db)); diff != "" {
			t.Errorf("%v: the rights of the database (-) and of the restored one (+) differ: %s", args, diff)
		}
		if done, err = migrations.Apply(t.Context(), restored, migrations.Options{}, all()...); err != nil ||
			len(done.Applied) > 0 {
			t.Errorf("the second time it applied %v, %v", done.Applied, err)
		}
	}
}

// restore puts a dump into a new server, which has none of the roles.
func restore(t *testing.T, from string, args ...string) string {
	t.Helper()
	server := serverOf(t)
	cmd, err := pgserver.Command("pg_dump", append(args, from)...)
	if err != nil {
		t.Fatal(err)
	}
	dumped, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if cmd, err = pgserver.Command("psql", "-qX", "-f", "-", server.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(string(dumped))
	// grants to roles that do not exist are errors, after which psql continues
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return server.URL("postgres")
}

// rightsOf are the rights of GEM's roles and the policies for them.
func rightsOf(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	return texts(t, db, `
		select format('%s on %s.%s to %s', lower(privilege_type), table_schema, table_name, grantee)
			from information_schema.table_privileges where grantee like 'gem\_%'
		union all select format('%s on %s.%s to %s', lower(privilege_type), routine_schema, routine_name, grantee)
			from information_schema.routine_privileges where grantee like 'gem\_%'
		union all select format('usage on %s to %s', nspname, grantee::regrole) from pg_namespace, aclexplode(nspacl)
			where grantee > 0 and grantee::regrole::text like 'gem\_%'
		union all select format('policy %s on %s for %s', policyname, tablename, roles) from pg_policies
			where roles::text like '%gem\_%'
		order by 1`)
}

// What the check looks for is what the files make: on an empty database each object of GEM's is in the ledger, or in a
// schema that is.
func TestTheLedgerNamesAllThatTheFilesMake(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.New(t, all()...))
	unnamed := texts(t, db, `
		with ours as (select unnest(objects) as o from gem.migrations)
		select o from (
			select 'schema ' || nspname as o, nspname::text as n from pg_namespace where nspname !~ '^pg_'
				and nspname not in ('information_schema', 'public')
			union all select case relkind when 'r' then 'table' when 'v' then 'view' when 'S' then 'sequence'
				else 'index' end || ' ' || relnamespace::regnamespace || '.' || relname, relnamespace::regnamespace::text
				from pg_class c where relkind in ('r', 'v', 'S', 'i', 'c')
					and relnamespace not in (select oid from pg_namespace where nspname ~ '^pg_|^information')
				and not exists (select from pg_constraint k where k.conindid = c.oid)
					and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i' and relkind = 'S')
			union all select 'function ' || pronamespace::regnamespace || '.' || proname, pronamespace::regnamespace::text
				from pg_proc where pronamespace not in (select oid from pg_namespace where nspname ~ '^pg_|^information')
			union all select 'type ' || typnamespace::regnamespace || '.' || typname, typnamespace::regnamespace::text
				from pg_type
				where typrelid = 0 and typcategory <> 'A' and typnamespace not in (select oid from pg_namespace
					where nspname ~ '^pg_|^information')
		) made where o not in (select o from ours) and 'schema ' || n not in (select o from ours) order by 1`)
	if len(unnamed) > 0 {
		t.Errorf("the ledger does not name %s", strings.Join(unnamed, ", "))
	}
	missing := texts(t, db, `select o from (select unnest(objects) as o from gem.migrations) l
		where case split_part(o, ' ', 1)
		when 'schema' then to_regnamespace(split_part(o, ' ', 2)) is null
		when 'function' then not exists (select from pg_proc
			where pronamespace::regnamespace || '.' || proname = split_part(o, ' ', 2))
		else to_regclass(split_part(o, ' ', 2)) is null end order by 1`)
	if len(missing) > 0 {
		t.Errorf("the ledger names what does not exist: %s", strings.Join(missing, ", "))
	}
}

// A table is adopted by its name, and only as that of an earlier GEM.
func TestAdoptionTakesOnlyTablesOfAnEarlierGEM(t *testing.T) {
	testdb.Long(t, "TestTheListOfAnAdoptionIsWhatItChanges")
	t.Parallel()
	databaseURL := testdb.NewEmpty(t)
	db := testdb.Pool(t, databaseURL)
	testdb.Exec(t, db, "create table public.pages (note text); create view public.notes as select note from "+
		"public.pages; "+
		"create table public.tasks (id uuid primary key, title text)")
	for _, table := range []string{"pages", "core_workers", "shop.tasks", "extract_documents"} {
		if _, err := migrations.Apply(t.Context(), databaseURL, migrations.Options{Adopt: []string{table}},
			all()...); err == nil || !strings.Contains(err.Error(), "an earlier GEM had only these tables") {
			t.Errorf("--adopt %s: %v", table, err)
		}
	}
	var taken *migrations.TakenError
	o := migrations.Options{Adopt: []string{"notes", "tasks"}}
	if _, err := migrations.Apply(t.Context(), databaseURL, o, all()...); !errors.As(err, &taken) ||
		strings.Contains(err.Error(), "table public.tasks") || !strings.Contains(err.Error(), "view public.notes") {
		t.Errorf("a view was adopted: %v", err)
	}
	testdb.Exec(t, db, "drop view public.notes; create schema gem_earlier")
	if _, err := migrations.Apply(t.Context(), databaseURL, o, all()...); err == nil ||
		!strings.Contains(err.Error(), "schema gem_earlier\n") {
		t.Errorf("someone's schema gem_earlier: %v", err)
	}
	testdb.Exec(t, db, "drop schema gem_earlier")
	lines, err := migrations.Adoption(t.Context(), databaseURL, o, all()...)
	if err != nil || len(lines) == 0 || lines[0] != "table public.tasks: GEM will make these changes" ||
		!slices.Contains(lines, "  new column domain") {
		t.Errorf("it says %v, %v", lines, err)
	}
	done, err := migrations.Apply(t.Context(), databaseURL, o, all()...)
	if err != nil || !strings.Contains(strings.Join(done.Changes.Lines(), "\n"), "changed the table public.tasks: ") {
		t.Errorf("got %v, %v", done.Changes.Lines(), err)
	}
	if lines, err = migrations.Adoption(t.Context(), databaseURL, o, all()...); err != nil || len(lines) > 0 {
		t.Errorf("the second time it says %v, %v", lines, err)
	}
}

// If a table cannot become GEM's, the migration fails in the middle, and rolls back all its files. What is refused
// before any file runs is compared byte by byte in the long form only: in the short form
// TestAStrangersObjectsAreRefusedAndUntouched does it.
func TestAnAdoptionThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	admin := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, admin, "create role other; create role migrator login createrole password 'x'")
	const earlier = "create table public.tasks (id uuid primary key default gen_random_uuid(), title text); "
	i := 0
	for says, sql := range map[string]string{
		"alter table public.tasks owner to migrator;": earlier + "alter table public.tasks owner to other",
		"gem_tasks_values": "create table public.tasks (id uuid primary key, call_id uuid, priority text); " +
			"insert into public.tasks values (gen_random_uuid(), gen_random_uuid(), 'odd')",
		"\n  partition public.tasks\n": "create table public.work (id uuid, title text) partition by " +
			"list (title); create table public.tasks partition of public.work default",
		"\n  table with child tables public.tasks\n": earlier + "create table public.more () inherits (public.tasks)",
		"\n  child table public.tasks\n": "create table public.work (id uuid, title text); create table " +
			"public.tasks () inherits (public.work)",
		"\n  partitioned table public.tasks\n": "create table public.tasks (id uuid, title text) partition by " +
			"range (title)",
		"\n  foreign table public.tasks\n": "create extension postgres_fdw; create server s foreign data " +
			"wrapper postgres_fdw; create foreign table public.tasks (id uuid) server s",
		"\n  materialized view public.tasks\n":       "create materialized view public.tasks as select 1 as id",
		"--adopt-role gem_worker,x: GEM's roles are": "create table public.pages (id uuid)",
	} {
		name := fmt.Sprintf("adopt_%d", i)
		i++
		testdb.Exec(t, admin, "create database "+name+" owner migrator")
		databaseURL := server.URL(name)
		db := testdb.Pool(t, databaseURL)
		testdb.Exec(t, db, sql)
		whole := testdb.IsLong() || says == "gem_tasks_values" || strings.HasPrefix(says, "alter table")
		var before string
		if whole {
			before = dump(t, databaseURL)
		}
		o := migrations.Options{Adopt: []string{"tasks"}}
		who := databaseURL
		switch {
		case strings.Contains(says, "owner to"):
			u, err := url.Parse(databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword("migrator", "x")
			who = u.String()
		case strings.HasPrefix(says, "--adopt-role"):
			o = migrations.Options{AdoptRoles: []string{"gem_worker,x"}}
		}
		done, err := migrations.Apply(t.Context(), who, o, all()...)
		if err == nil || !strings.Contains(err.Error(), says) || len(done.Applied) > 0 {
			t.Errorf("%q: applied %v, %v", says, done.Applied, err)
		}
		if !whole {
			if made := testdb.Value[bool](t, db, "select to_regnamespace('gem') is not null"); made {
				t.Errorf("%q: the schema gem was made", says)
			}
			continue
		}
		if diff := cmp.Diff(before, dump(t, databaseURL)); diff != "" {
			t.Errorf("%q: the database was changed: %s", says, diff)
		}
	}
}

func exitText(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(exit.Stderr)
	}
	return ""
}

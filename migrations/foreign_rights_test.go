package migrations_test

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A role may have any name that Postgres takes. The long form has each kind of name alone.
func TestARoleOfAnyNameMigrates(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	admin := testdb.Pool(t, server.URL("postgres"))
	roles := []string{"select", `Say "hi"@dürer; --`}
	if testdb.IsLong() {
		roles = append(roles, "App-Owner", "Bob@corp.example", `say "hi"`, "dürer; --")
	}
	for i, role := range roles {
		quoted, database := `"`+strings.ReplaceAll(role, `"`, `""`)+`"`, fmt.Sprintf("named_%d", i)
		testdb.Exec(t, admin,
			"create role "+quoted+" login createrole password 'x'; alter default privileges for role "+quoted+
				" grant all on tables to "+quoted+", pg_monitor")
		testdb.Exec(t, admin, "create database "+database+" owner "+quoted)
		u, err := url.Parse(server.URL(database))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(role, "x")
		for _, want := range []bool{true, false} {
			done, err := migrations.Apply(t.Context(), u.String(), migrations.Options{}, all()...)
			if err != nil || len(done.Applied) > 0 != want {
				t.Errorf("%s: applied %v, %v", role, done.Applied, err)
			}
		}
		if tools := testdb.Value[string](t, testdb.Pool(t, server.URL(database)),
			"select (nspacl is null)::text from pg_namespace where nspname = 'tools'"); tools != "false" {
			t.Errorf("%s: the schema tools has no rights of its own", role)
		}
	}
}

// An event trigger may make tables for each of GEM's, in the same transaction. Their rights stay as it gave them.
func TestRightsOnObjectsThatAnEventTriggerMakesStay(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	db := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, db, `create role auditor; create schema hist;
		create function public.keep_history() returns event_trigger language plpgsql as $$ declare made record; begin
			for made in select * from pg_event_trigger_ddl_commands() where command_tag = 'CREATE TABLE'
				and schema_name in ('public', 'gem') loop
				execute format('create table if not exists hist.%I (n serial, line jsonb)',
					replace(made.object_identity, '.', '_'));
				execute format('grant select, insert on hist.%I to auditor', replace(made.object_identity, '.', '_'));
			end loop;
		end $$;
		create event trigger history on ddl_command_end when tag in ('CREATE TABLE') execute function public.keep_history()`)
	if err := migrations.Up(t.Context(), server.URL("postgres"), all()...); err != nil {
		t.Fatal(err)
	}
	got := testdb.Value[string](t, db, `select count(*) filter (where has_table_privilege('auditor', oid, 'select, insert')) ||
		' of ' || count(*)
		from pg_class where relnamespace = 'hist'::regnamespace and relkind = 'r'`)
	if made, of, _ := strings.Cut(got, " of "); made != of || of == "0" {
		t.Errorf("%s tables of others kept their rights", got)
	}
}

// A program's file may create a table in many ways. However it does, default privileges give nobody rights on it.
func TestDefaultPrivilegesGiveNothingOnATableHoweverItIsCreated(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	db := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, db, `create role reader; alter default privileges grant all on tables to reader; alter
		default privileges grant all on sequences to reader`)
	program := migrations.Source{Name: "program", Files: fstest.MapFS{"00001_tables.sql": {Data: []byte(`
		select 1 as n into made_by_select;
		do $$ begin execute 'create table made_' || 'in_a_block (id serial)'; end $$;
		create table/* a comment */made_after_a_comment (id int);
		create table uni_é (id int);
		create table U&"d\0061t" (id int);`)}}}
	if err := migrations.Up(t.Context(), server.URL("postgres"), program); err != nil {
		t.Fatal(err)
	}
	if got := testdb.Value[string](t, db, `select count(*) filter (where relacl::text like '%reader%') || ' of ' || count(*)
		from pg_class
		where relnamespace = 'public'::regnamespace and relname in ('made_by_select', 'made_in_a_block',
			'made_in_a_block_id_seq', 'made_after_a_comment', 'uni_é', 'dat')`); got != "0 of 6" {
		t.Errorf("others have rights on %s", got)
	}
}

// A function of another role would run as GEM, and a key of another table would stop gem prune.
func TestTablesThatDependOnOthersAreNotAdopted(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	db := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, db, `create role app login; create schema app authorization app; set role app;
		create function app.tag() returns text language sql as $$ select 'x' $$; reset role;
		create table public.notes (id uuid primary key default gen_random_uuid(), title text default app.tag(),
			body text constraint odd check (body <> app.tag()));
		create table app.mine (note uuid constraint of_note references public.notes)`)
	_, err := migrations.Apply(t.Context(), server.URL("postgres"), migrations.Options{Adopt: []string{"notes"}}, all()...)
	if err == nil {
		t.Fatal("the table was adopted")
	}
	for _, line := range []string{"alter table app.mine drop constraint of_note;", "alter table public.notes alter " +
		"column title drop default;", "alter table public.notes drop constraint odd;"} {
		if !strings.Contains(err.Error(), line) {
			t.Errorf("the error does not have %q:\n%v", line, err)
		}
		testdb.Exec(t, db, line)
	}
}

// Policies, rights, triggers and rules of others would hold next to GEM's own, so an adoption names each with the line
// that removes it.
func TestTablesWithRightsOfOthersAreNotAdopted(t *testing.T) {
	testdb.Long(t, "TestAStrangersObjectsAreRefusedAndUntouched")
	t.Parallel()
	server := serverOf(t)
	db := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, db, `create role anon; create role authenticated; create role backend; create role "Old App";
		create table public.core_tool_calls (id uuid primary key default gen_random_uuid(), tool_name text, input jsonb,
			status text default 'queued', created_at timestamptz default now());
		create table public.core_tool_receipts (id uuid primary key default gen_random_uuid(),
			call_id uuid references public.core_tool_calls, tool_name text, status text, result jsonb,
				created_at timestamptz default now());
		create table public.tasks (id uuid primary key default gen_random_uuid(), title text, n serial);
		create table public.notes (id uuid primary key default gen_random_uuid(), title text);
		insert into public.core_tool_calls (tool_name, input, status) values ('a.b', '{"secret": 1}', 'succeeded');
		insert into public.core_tool_receipts (call_id, tool_name, status, result) select id, 'a.b', 'succeeded',
			'{"secret": 2}' from public.core_tool_calls`)
	testdb.Exec(t, db, `alter table public.core_tool_calls enable row level security;
		alter table public.core_tool_receipts enable row level security;
		create policy backend on public.core_tool_receipts using (true); create policy "All of it"
			on public.core_tool_calls to backend using (true);
		grant select, insert on public.core_tool_calls, public.core_tool_receipts to backend;
		grant all on public.tasks to anon, authenticated; grant select (title),
			update (title) on public.tasks to "Old App"; grant usage on sequence public.tasks_n_seq to anon;
		grant select on public.notes to public; grant select on public.notes to backend with grant option; set role backend;
			grant select on public.notes to "Old App"; reset role;
		create function public.touch() returns trigger language plpgsql as 'begin return new; end';
		create trigger "Touch it" before update on public.tasks for each row execute function public.touch();
		create rule told as on insert to public.notes do also notify notes`)
	remove := []string{
		`drop policy "All of it" on public.core_tool_calls;`, `revoke all on public.core_tool_calls from backend;`,
		`drop policy backend on public.core_tool_receipts;`, `revoke all on public.core_tool_receipts from backend;`,
		`revoke all on public.notes from "Old App", backend, public cascade;`, `drop rule told on public.notes;`,
		`drop trigger "Touch it" on public.tasks;`, `revoke all on public.tasks from "Old App", anon, authenticated;`,
		`revoke all on sequence public.tasks_n_seq from anon;`,
	}
	before := dump(t, server.URL("postgres"))
	o := migrations.Options{Adopt: []string{"core_tool_calls", "core_tool_receipts", "tasks", "notes"}}
	var printed strings.Builder
	if err := migrations.Print(&printed, "", o, all()...); err != nil {
		t.Fatal(err)
	}
	for name, migrate := range map[string]func() error{
		"gem migrate": func() error {
			_, err := migrations.Apply(t.Context(), server.URL("postgres"), o, all()...)
			return err
		},
		"before it asks": func() error {
			_, err := migrations.Adoption(t.Context(), server.URL("postgres"), o, all()...)
			return err
		},
		"without --adopt": func() error { return migrations.Up(t.Context(), server.URL("postgres"), all()...) },
		"the printed file": func() error {
			_, err := db.Exec(t.Context(), printed.String())
			return err
		},
	} {
		err := migrate()
		if err == nil {
			t.Fatalf("%s: the tables were adopted", name)
		}
		for _, line := range remove {
			if !strings.Contains(err.Error(), line+"\n") {
				t.Errorf("%s does not say %q: %v", name, line, err)
			}
		}
		if diff := cmp.Diff(before, dump(t, server.URL("postgres"))); diff != "" {
			t.Errorf("%s changed: %s", name, diff)
		}
	}
	testdb.Exec(t, db, strings.Join(remove, "\n"))
	if _, err := migrations.Apply(t.Context(), server.URL("postgres"), o, all()...); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"core_tool_calls", "core_tool_receipts"} {
		column := map[string]string{"core_tool_calls": "input", "core_tool_receipts": "result"}[table]
		rows, err := request(t, db, "authenticated", "eve", "select "+column+" from public."+table)
		if err != nil || rows != 0 {
			t.Errorf("a signed-in user sees %d rows of %s, %v", rows, table, err)
		}
	}
}

// anEarlierGEM has tables to adopt, with rows in every form that an adoption changes.
const anEarlierGEM = `
	create role reader; alter default privileges grant select on tables to reader;
	create table public.people (id uuid primary key);
	create table public.tasks (id uuid primary key default gen_random_uuid(), title text default 'mine',
		status text default 'new' check (status <> ''), priority text, owner text not null, "Due on" date, n serial,
		person uuid references public.people, updated_at timestamptz, created_at timestamptz, unique (owner, n));
	create index "Due" on public.tasks ("Due on") where status <> 'done';
	insert into public.tasks (title, status, owner, created_at) values
		(null, null, 'a', null), ('x', 'open', 'b', '2001-01-01'), ('y', null, 'c', '2001-01-01');
	create table public.notes (id uuid primary key, title text, content text not null default '',
		entity_refs jsonb default '{"mine": 1}', created_at timestamptz);
	insert into public.notes (id, title) values ('00000000-0000-4000-8000-00000000000a', 'a');
	create table public.leads (id uuid primary key, stage text);
	create table public.lead_sources (id uuid primary key, source text,
		lead_id uuid constraint of_lead references public.leads);
	create table public.core_tool_calls (id uuid primary key default gen_random_uuid(), tool_name text not null,
		input jsonb not null default '[]', status text default 'queued', claimed_by text, claimed_at timestamptz,
		priority integer, attempt integer, updated_at timestamptz, created_at timestamptz default now());
	create table public.core_tool_receipts (id uuid primary key default gen_random_uuid(),
		call_id uuid references public.core_tool_calls on delete cascade, tool_name text, status text, result jsonb,
		effects jsonb, attempt integer, idempotency_key text, created_at timestamptz default now());
	insert into public.core_tool_calls (id, tool_name, status, claimed_by, priority, attempt, created_at)
	select ('00000000-0000-4000-8000-00000000000' || n)::uuid, 'a.b', status, by, priority, attempt, at from (values
		(1, 'succeeded', 'w', null, 1, now()), (2, 'claimed', 'w', 3, null, null), (3, 'queued', 'w', null, 0, now()),
		(4, 'failed', null, 0, 4, now()), (5, 'done', null, 0, null, now()), (6, 'queued', null, 0, 0, now()),
		(7, 'not_configured', 'w', 0, 1, now())) v (n, status, by, priority, attempt, at);
	insert into public.core_tool_receipts (call_id, tool_name, status, effects, idempotency_key, attempt, created_at)
	select ('00000000-0000-4000-8000-00000000000' || n)::uuid, 'a.b', status, jsonb_build_object('idempotency',
		jsonb_build_object('mode', 'keyed', 'key_field', 'k', 'key_value', key)), had, attempt, at
	from (values (1, 'failed', 'x', null, null, now()), (1, 'succeeded', 'x', 'old', null, null),
		(5, 'succeeded', ' x ', 'x', null, now()), (7, 'not_configured', 'y', null, 1, now())
	) v (n, status, key, had, attempt, at)`

// While the list is made, others read and write the tables: the lock that a session holds here lets only readers in.
func TestTheListOfAnAdoptionLocksNothing(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	db := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, db, anEarlierGEM+"; revoke all on all tables in schema public from reader")
	tables := []string{"core_tool_calls", "core_tool_receipts", "leads", "lead_sources", "notes", "tasks"}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table "+strings.Join(tables, ", ")+" in exclusive mode"); err != nil {
		t.Fatal(err)
	}
	lines, err := migrations.Adoption(t.Context(), server.URL("postgres"), migrations.Options{Adopt: tables}, all()...)
	if err != nil || !slices.Contains(lines, "  changes status in 3 rows") {
		t.Errorf("it says %q, %v", lines, err)
	}
	if _, err := tx.Exec(t.Context(), "update public.tasks set title = 'z'"); err != nil {
		t.Error(err)
	}
}

// The list of a huge table goes without the numbers of rows.
func TestACountThatTakesTooLongIsLeftOut(t *testing.T) { // not parallel: the limit is everyone's
	defer migrations.LimitCounts("1ms")()
	server := serverOf(t)
	db := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, db, "create table public.core_tool_calls (id uuid primary key, status text);"+
		"insert into public.core_tool_calls select gen_random_uuid(), 'running' from generate_series(1, 100000)")
	o := migrations.Options{Adopt: []string{"core_tool_calls"}}
	lines, err := migrations.Adoption(t.Context(), server.URL("postgres"), o)
	if err != nil || !slices.Contains(lines, "  changes rows that were not counted, because counting took longer than "+
		"1ms") {
		t.Errorf("it says %q, %v", lines, err)
	}
}

// A domain may be added to a GEM that is at work: its own tables are not locked, and the functions stay.
func TestTheListOfAnAdoptionOfADomain(t *testing.T) {
	testdb.Long(t, "TestTheListOfAnAdoptionIsWhatItChanges")
	t.Parallel()
	server := serverOf(t)
	databaseURL := server.URL("postgres")
	db := testdb.Pool(t, databaseURL)
	if err := migrations.Up(t.Context(), databaseURL); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, `create table public.tasks (id uuid primary key default gen_random_uuid(), title text, status text);
		insert into public.tasks (title) values ('roof')`)
	before := dump(t, databaseURL)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table public.tasks, public.core_tool_calls in exclusive mode"); err != nil {
		t.Fatal(err)
	}
	o := migrations.Options{Adopt: []string{"tasks"}}
	lines, err := migrations.Adoption(t.Context(), databaseURL, o, all()...)
	if err != nil || !slices.Contains(lines, "  changes status in 1 row") {
		t.Errorf("it says %q, %v", lines, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, dump(t, databaseURL)); diff != "" {
		t.Errorf("the list changed: %s", diff)
	}
	done, err := migrations.Apply(t.Context(), databaseURL, o, all()...)
	if err != nil {
		t.Fatal(err)
	}
	sameChanges(t, db, "tasks", lines, done)
}

// sameChanges compares the list before an adoption with the catalog after it: all of it but the rows.
func sameChanges(t *testing.T, db *pgxpool.Pool, table string, lines []string, done migrations.Result) {
	t.Helper()
	var listed, granted []string
	of := ""
	for _, line := range lines {
		change, ok := strings.CutPrefix(line, "  ")
		switch {
		case !ok:
			of = line
		case of != "table public."+table+": GEM will make these changes":
		case strings.HasPrefix(change, "granted to "):
			granted = append(granted, change)
		case !regexp.MustCompile(`^(changes|removes|adds|status|will run) `).MatchString(change):
			listed = append(listed, change)
		}
	}
	want := "changed the table public." + table + ": " + strings.Join(listed, "; ")
	if !slices.Contains(done.Changes.Lines(), want) {
		t.Errorf("the list says\n%s\nand the adoption\n%s", want, strings.Join(done.Changes.Lines(), "\n"))
	}
	rights := texts(t, db, `
		select format('granted to %s: %s%s', grantee, string_agg(distinct lower(privilege_type), ', '), of) from (
			select a.grantee::regrole::text as grantee, a.privilege_type, '' as of
			from pg_class c, aclexplode(c.relacl) a where c.oid = 'public.`+table+`'::regclass and a.grantee <> c.relowner
			union all
			select a.grantee::regrole::text, a.privilege_type, ' of columns' from pg_class c
			join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a where c.oid = 'public.`+table+`'::regclass
		) g group by grantee, of order by grantee, of`)
	slices.Sort(granted)
	slices.Sort(rights)
	if diff := cmp.Diff(rights, granted); diff != "" {
		t.Errorf("%s: the rights after the adoption (-) and in the list (+) differ: %s", table, diff)
	}
}

// The list before an adoption names what a dump shows afterwards: each column, how many rows, and everything that is
// added.
func TestTheListOfAnAdoptionIsWhatItChanges(t *testing.T) {
	t.Parallel()
	server := serverOf(t)
	databaseURL := server.URL("postgres")
	db := testdb.Pool(t, databaseURL)
	testdb.Exec(t, db, "create role authenticated; create role service_role;"+anEarlierGEM+
		"; revoke all on all tables in schema public from reader")
	tables := []string{"core_tool_calls", "core_tool_receipts", "leads", "lead_sources", "notes", "tasks"}
	o := migrations.Options{Adopt: tables}
	before := dump(t, databaseURL)
	lines, err := migrations.Adoption(t.Context(), databaseURL, o, all()...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, dump(t, databaseURL)); diff != "" {
		t.Fatalf("the list changed: %s", diff)
	}
	listed, table := map[string]string{}, ""
	for _, line := range lines {
		if name, ok := strings.CutPrefix(line, "table public."); ok {
			table, _, _ = strings.Cut(name, ":")
		} else {
			listed[table] += line + "\n"
		}
	}
	was := map[string]map[string]map[string]string{}
	for _, table := range tables {
		was[table] = dumpedRows(t, before, table)
	}
	done, err := migrations.Apply(t.Context(), databaseURL, o, all()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		sameChanges(t, db, table, lines, done)
	}
	after := dump(t, databaseURL)
	for _, table := range tables {
		is, changed := dumpedRows(t, after, table), map[string]int{}
		removed, columns := 0, map[string]bool{}
		for id, row := range was[table] {
			if is[id] == nil {
				removed++
				continue
			}
			for column, value := range row {
				columns[column] = true
				if is[id][column] != value {
					changed[column]++
				}
			}
		}
		want := map[string]bool{}
		rows := func(n int) string {
			if n == 1 {
				return "1 row"
			}
			return fmt.Sprintf("%d rows", n)
		}
		for column, n := range changed {
			want[fmt.Sprintf("  changes %s in %s", column, rows(n))] = true
		}
		if removed > 0 {
			want["  removes "+rows(removed)] = true
		}
		if added := len(is) - len(was[table]) + removed; added > 0 {
			want["  adds "+rows(added)] = true
		}
		wasColumns, isColumns := dumpedColumns(t, before, table), dumpedColumns(t, after, table)
		for column, definition := range isColumns {
			switch from, there := wasColumns[column]; {
			case !there:
				want["  new column "+column] = true
			case from != definition:
				want["  column "+column+" is now"] = true
			}
		}
		wasBlocks, isBlocks := blocks(t, before), blocks(t, after)
		for key := range isBlocks {
			for kind, says := range map[string]string{" CONSTRAINT ": "constraint", " FK CONSTRAINT ": "constraint",
				" TRIGGER ": "trigger", " POLICY ": "policy"} {
				if name, ok := strings.CutPrefix(key, "public"+kind+table+" "); ok && wasBlocks[key] == "" {
					want["  new "+says+" "+name] = true
				}
			}
		}
		for line := range want {
			if !strings.Contains("\n"+listed[table], "\n"+line) {
				t.Errorf("%s: the list lacks %q:\n%s", table, line, listed[table])
			}
		}
		for line := range strings.Lines(listed[table]) {
			about := regexp.MustCompile(`^  (changes|removes|adds|new column|column \S+ is now|new trigger|new policy) `).
				MatchString(line)
			line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " is now")
			if about && !want[line] && !want[line+" is now"] {
				t.Errorf("%s: the list has %q, which the dump does not show", table, line)
			}
		}
	}
}

// dumpedRows are the rows of a table in a dump, by id, each with its columns.
func dumpedRows(t *testing.T, dumped, table string) map[string]map[string]string {
	t.Helper()
	m := regexp.MustCompile(`(?ms)^COPY public\.` + table + ` \(([^)]*)\) FROM stdin;\n(.*?)^\\\.$`).
		FindStringSubmatch(dumped)
	if m == nil {
		t.Fatalf("the dump has no rows of %s", table)
	}
	all := map[string]map[string]string{}
	for line := range strings.Lines(m[2]) {
		row := map[string]string{}
		values := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		for i, column := range strings.Split(m[1], ", ") {
			row[column] = values[i]
		}
		all[row["id"]] = row
	}
	return all
}

// dumpedColumns are the definitions of a table's columns in a dump.
func dumpedColumns(t *testing.T, dumped, table string) map[string]string {
	t.Helper()
	m := regexp.MustCompile(`(?ms)^CREATE TABLE public\.` + table + ` \(\n(.*?)^\);$`).FindStringSubmatch(dumped)
	if m == nil {
		t.Fatalf("the dump has no table %s", table)
	}
	all := map[string]string{}
	for line := range strings.Lines(m[1]) {
		name, definition, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "     ") && name != "CONSTRAINT" {
			all[name] = strings.TrimSuffix(definition, ",")
		}
	}
	return all
}

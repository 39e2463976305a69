package migrations_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
)

// A table to adopt uses only what is Postgres's own, and nothing of others uses it. Each exception is named with the
// statement that removes it, and with all of them the table is adopted. Until then no code of others runs.
func TestATableToAdoptUsesNothingOfOthersAndIsUsedByNothing(t *testing.T) {
	testdb.Long(t, "TestAStrangersObjectsAreRefusedAndUntouched")
	t.Parallel()
	server := serverOf(t)
	db := testdb.Pool(t, server.URL("postgres"))
	testdb.Exec(t, db, `create role evil; create role other; create role authenticated; create schema evil authorization evil;
		create publication news; create publication supabase_realtime; set role evil;
		create table evil.ran (what text);
		create function evil.norm(text) returns text language plpgsql immutable as 'begin return $1; end';
		create function evil.ok(text) returns boolean language plpgsql immutable as 'begin return true; end';
		create function evil.eq(text, text) returns boolean language plpgsql immutable as 'begin return $1 = $2; end';
		create function evil.cat(text, text) returns text language plpgsql immutable as 'begin return $1; end';
		create function evil.cmp(text, text) returns integer language plpgsql immutable as
			'begin return bttextcmp($1, $2); end';
		create operator evil.=== (function = evil.eq, leftarg = text, rightarg = text);
		create operator evil.||| (function = evil.cat, leftarg = text, rightarg = text);
		create domain evil.line as text check (evil.ok(value));
		create type evil.mood as enum ('a');
		create sequence evil.numbers;
		create function evil.run() returns text language sql as
			'insert into evil.ran values (current_user) returning what';
		create view evil.seen as select evil.run(); reset role;
		create operator class evil.ops for type text using btree as operator 1 <, operator 2 <=, operator 3 =,
			operator 4 >=, operator 5 >, function 1 evil.cmp(text, text);
		create collation evil.odd from "C";
		create schema app;
		create table app.kinds (id uuid primary key); create table app.known (name text primary key);
		create table public.notes (id uuid primary key default gen_random_uuid(), title text, content text,
			short varchar(5), n serial, kind uuid references app.kinds, loud text generated always as (upper(title)) stored,
			line evil.line, mood evil.mood default 'a', lines evil.line[], sorted text collate evil.odd,
			tail text default ('a' operator(evil.|||) 'b'), num bigint default nextval('evil.numbers'),
			made text generated always as (evil.norm('x')) stored,
			constraint odd check (title operator(evil.===) content), unique (title, content),
			constraint twins exclude using btree (short with operator(pg_catalog.=)), check (length(title) < 9),
			asked xml default query_to_xml('select evil.run()', true, false, ''),
			secret text default pg_read_file('PG_VERSION'),
			held tsquery default ts_rewrite('a', 'select ''a''::tsquery, ''b''::tsquery'),
			made_at timestamptz default date_trunc('day', now() - interval '1 hour'), made_on date default now(),
			told jsonb default jsonb_build_object('by', current_user, 'at', clock_timestamp()),
			constraint looks check (table_to_xml('evil.seen', true, false, '') is not null),
			constraint sets check (set_config('search_path', 'evil', false) is not null),
			constraint young check (made_at < now() + interval '1 year' and made_on > '2020-01-01'::timestamptz));
		create index notes_norm on public.notes (evil.norm(title));
		create index notes_some on public.notes (title) where evil.ok(title);
		create index notes_ops on public.notes (title evil.ops);
		create index notes_fine on public.notes (lower(title));
		create statistics public.notes_known on (evil.norm(title)), id from public.notes;
		insert into public.notes (title, content, short, line) values ('a', 'a', 'b', 'c');
		create table public.tasks (id bigserial primary key, title varchar(5), created_by uuid, status integer,
			created_at date);
		create unlogged table public.reminders (id uuid primary key default gen_random_uuid(), title evil.mood,
			domain text generated always as ('both') stored);
		alter table public.reminders enable row level security, force row level security;
		create table public.leads (id uuid primary key default gen_random_uuid(), name text, n serial);
		alter table public.leads owner to other;
		create type app.entity as (id uuid);
		create table public.entities of app.entity;
		create view public.all_notes as select * from public.notes; grant all on public.all_notes to authenticated;
		create materialized view app.titles as select title from public.notes;
		create function app.notes_of() returns setof public.notes language sql security definer as
			'select * from public.notes';
		create function app.count_of() returns bigint language sql security definer
			begin atomic select count(*) from public.notes; end;
		create procedure app.clear() language sql begin atomic delete from public.notes; end;
		create table app.pages (note uuid constraint of_note references public.notes, copy public.notes,
			n integer default nextval('public.notes_n_seq'));
		create rule copied as on delete to app.pages do also delete from public.notes where id = old.note;
		alter table app.pages enable row level security;
		create policy known on app.pages using (exists (select from public.notes where id = note));
		alter publication news add table public.notes;
		create table public.core_tool_calls (id uuid primary key default gen_random_uuid(), tool_name text,
			status text default 'queued', n serial, owner text not null);
		create table public.core_tool_receipts (id uuid primary key, call_id uuid references public.core_tool_calls
			on delete cascade, tool_name text constraint known references app.known, status text, idempotency_key text unique,
			by uuid constraint own references app.kinds, at uuid constraint cleared references app.kinds on delete set null,
			constraint later check (now() < '2100-01-01'), constraint full_row check (by is not null or at is null),
			check (status <> ''), constraint one exclude using btree (tool_name with =), unique (call_id),
			result jsonb, due date default '2026-01-01', twice integer generated always as (2) stored,
			place smallint generated always as identity);
		alter table public.core_tool_receipts add constraint first unique (status);
		alter table public.core_tool_receipts replica identity nothing;
		create index receipts_fine on public.core_tool_receipts (tool_name, at, status);
		create index receipts_long on public.core_tool_receipts (result);
		create index calls_some on public.core_tool_calls (id) where status = 'queued';
		create index calls_divide on public.core_tool_calls ((1 / (case status when 'running' then 0 else 1 end)));
		create unique index receipts_by on public.core_tool_receipts (by);
		alter table public.core_tool_receipts alter column result set storage plain;
		alter publication supabase_realtime add table public.core_tool_receipts (id, status)`)
	// Its owner may change a function at any time.
	testdb.Exec(t, db, `set role evil;
		create or replace function evil.norm(text) returns text language plpgsql immutable as
			'begin insert into evil.ran values (current_user); return $1; end';
		create or replace function evil.ok(text) returns boolean language plpgsql immutable as
			'begin insert into evil.ran values (current_user); return true; end';
		create or replace function evil.eq(text, text) returns boolean language plpgsql immutable as
			'begin insert into evil.ran values (current_user); return true; end';
		reset role; grant all on evil.ran to public`)
	remove := []string{
		"drop function app.count_of();", "drop function app.notes_of();", "drop index public.notes_norm;",
		"drop index public.notes_ops;", "drop index public.notes_some;", "drop materialized view app.titles;",
		"drop policy known on app.pages;", "drop procedure app.clear();", "drop rule copied on app.pages;",
		"drop statistics public.notes_known;", "drop view public.all_notes;",
		"alter publication news drop table public.notes;", "alter table app.pages alter column n drop default;",
		"alter publication supabase_realtime drop table public.core_tool_receipts;",
		"alter table public.core_tool_receipts alter column result set storage extended;",
		"alter table app.pages drop column copy;", "alter table app.pages drop constraint of_note;",
		"alter table public.core_tool_calls alter column n drop default;",
		"alter table public.core_tool_calls alter column n drop not null;",
		"alter table public.core_tool_calls alter column owner drop not null;", "drop index public.receipts_by;",
		"alter table public.core_tool_receipts drop constraint first;",
		"alter table public.core_tool_receipts replica identity default;",
		"alter table public.core_tool_receipts drop constraint cleared;", "drop index public.receipts_long;",
		"drop index public.calls_some;", "drop index public.calls_divide;",
		"alter table public.core_tool_receipts alter column due drop default;",
		"alter table public.core_tool_receipts alter column twice drop expression;",
		"alter table public.core_tool_receipts alter column place drop identity;",
		"alter table public.core_tool_receipts alter column place drop not null;",
		"alter table public.core_tool_receipts drop constraint core_tool_receipts_idempotency_key_key;",
		"alter table public.core_tool_receipts drop constraint full_row;",
		"alter table public.core_tool_receipts drop constraint known;",
		"alter table public.core_tool_receipts drop constraint later;",
		"alter table public.core_tool_receipts drop constraint one;",
		"alter table public.entities add primary key (id);", "alter table public.entities not of;",
		"alter table public.leads owner to postgres;",
		"alter table public.notes alter column line type text;", "alter table public.notes alter column lines type text;",
		"alter table public.notes alter column made drop expression;",
		"alter table public.notes alter column mood drop default;", "alter table public.notes alter column mood type text;",
		"alter table public.notes alter column num drop default;", "alter table public.notes alter column sorted type text;",
		"alter table public.notes alter column tail drop default;", "alter table public.notes drop constraint odd;",
		"alter table public.notes alter column asked drop default;",
		"alter table public.notes alter column held drop default;",
		"alter table public.notes alter column secret drop default;", "alter table public.notes drop constraint looks;",
		"alter table public.notes drop constraint sets;",
		"alter table public.reminders alter column domain drop expression;",
		"alter table public.reminders alter column title type text using title::text;",
		"alter table public.reminders no force row level security;", "alter table public.reminders set logged;",
		"alter table public.tasks alter column created_at type timestamptz using created_at::timestamptz;",
		"alter table public.tasks alter column created_by type text using created_by::text;",
		"alter table public.tasks alter column status type text using status::text;",
		"alter table public.tasks alter column title type text using title::text;",
		"alter table public.tasks rename to earlier_tasks; -- its id is bigint, and GEM's is uuid",
	}
	o := migrations.Options{Adopt: []string{"core_tool_calls", "core_tool_receipts", "entities", "leads", "notes",
		"reminders", "tasks"}}
	before := dump(t, server.URL("postgres"))
	_, listErr := migrations.Adoption(t.Context(), server.URL("postgres"), o, all()...)
	_, err := migrations.Apply(t.Context(), server.URL("postgres"), o, all()...)
	if err == nil || listErr == nil {
		t.Fatalf("the list says %v, and the adoption %v", listErr, err)
	}
	if diff := cmp.Diff(err.Error(), listErr.Error()); diff != "" {
		t.Errorf("the adoption (-) and the list (+) say: %s", diff)
	}
	var said []string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "drop ") || strings.HasPrefix(line, "alter ") {
			said = append(said, line)
		}
	}
	slices.Sort(said)
	want := slices.Sorted(slices.Values(remove))
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("it should say (-), and says (+): %s", diff)
	}
	if diff := cmp.Diff(before, dump(t, server.URL("postgres"))); diff != "" {
		t.Errorf("it changed: %s", diff)
	}
	for _, line := range remove {
		testdb.Exec(t, db, line)
	}
	testdb.Exec(t, db, "truncate evil.ran")
	if _, err := migrations.Adoption(t.Context(), server.URL("postgres"), o, all()...); err != nil {
		t.Error(err)
	}
	if _, err := migrations.Apply(t.Context(), server.URL("postgres"), o, all()...); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, db, `insert into public.notes (title) values ('b')`)
	if n := testdb.Value[string](t, db, "select count(*)::text from evil.ran"); n != "0" {
		t.Errorf("code of others ran %s times", n)
	}
	// A sequence of the table needs a right.
	testdb.Exec(t, db, `set role gem_worker; insert into public.leads (name) values ('Jo'); reset role`)
}

// A call that an earlier GEM may have run does not run again, whatever its tool's mode. What it never wrote is refused.
func TestOnlyCallsThatNobodyClaimedRunAfterAnAdoption(t *testing.T) {
	testdb.Long(t, "TestTheListOfAnAdoptionIsWhatItChanges")
	t.Parallel()
	server := serverOf(t)
	databaseURL := server.URL("postgres")
	db := testdb.Pool(t, databaseURL)
	testdb.Exec(t, db, `create table public.core_tool_calls (id uuid primary key, tool_name text, input jsonb, status text,
			claimed_at timestamptz, error jsonb, attempt integer);
		create table public.core_tool_receipts (id uuid primary key default gen_random_uuid(), call_id uuid, tool_name text,
			status text);
		insert into public.core_tool_calls (id, tool_name, status, claimed_at, attempt, error)
		select ('00000000-0000-4000-8000-0000000000' || n)::uuid, 'shop.charge', status, at, attempt, error::jsonb
		from (values
			(10, 'queued', null, null, null), (11, 'queued', now(), null, null), (12, 'queued', null, 1, null),
			(13, 'claimed', now(), 1, null), (14, 'running', null, null, null), (15, 'completed', null, null, '{"a": 1}'),
			(16, 'cancelled', null, null, null), (17, 'cancelled', now(), null, null), (18, 'succeeded', null, null, null),
			(19, 'running', null, null, null), (20, 'odd', null, null, null), (21, 'weird', null, null, null),
			(22, null, null, null, null), (23, 'queued', null, 0, null)) v (n, status, at, attempt, error);
		insert into public.core_tool_receipts (call_id, tool_name, status) values
			('00000000-0000-4000-8000-000000000019', 'shop.charge', 'succeeded'),
			('00000000-0000-4000-8000-000000000020', null, 'failed'), (null, 'shop.charge', 'succeeded'),
			('00000000-0000-4000-8000-000000000099', null, 'done')`)
	o := migrations.Options{Adopt: []string{"core_tool_calls", "core_tool_receipts"}}
	before := dump(t, databaseURL)
	for name, migrate := range map[string]func() error{
		"the list": func() error {
			_, err := migrations.Adoption(t.Context(), databaseURL, o)
			return err
		},
		"the adoption": func() error {
			_, err := migrations.Apply(t.Context(), databaseURL, o)
			return err
		},
	} {
		err := migrate()
		if err == nil {
			t.Fatalf("%s refuses nothing", name)
		}
		for _, want := range []string{"1 call has the status null", "1 call has the status weird",
			"1 receipt has the status done", "1 receipt has no call_id"} {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "odd") {
				t.Errorf("%s does not say %q: %v", name, want, err)
			}
		}
	}
	if diff := cmp.Diff(before, dump(t, databaseURL)); diff != "" {
		t.Errorf("it changed: %s", diff)
	}
	testdb.Exec(t, db, `delete from public.core_tool_calls where status = 'weird' or status is null;
		delete from public.core_tool_receipts where call_id is null or status = 'done'`)
	lines, err := migrations.Adoption(t.Context(), databaseURL, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"status queued becomes failed: outcome_unknown in 2 rows",
		"status claimed becomes failed: outcome_unknown in 1 row", "status running becomes failed: outcome_unknown in 1 row",
		"status running becomes succeeded in 1 row", "status completed becomes failed: outcome_unknown in 1 row",
		"status cancelled becomes failed: cancelled in 1 row",
		"status cancelled becomes failed: outcome_unknown in 1 row", "status odd becomes failed in 1 row",
		"will run 2 of the calls", "changes tool_name in 1 row", "changes error in 7 rows", "adds 8 rows"} {
		if !slices.Contains(lines, "  "+want) {
			t.Errorf("the list lacks %q:\n%s", want, strings.Join(lines, "\n"))
		}
	}
	if _, err := migrations.Apply(t.Context(), databaseURL, o); err != nil {
		t.Fatal(err)
	}
	got := texts(t, db, `select right(c.id::text, 2) || ' ' || c.status || ' ' || c.attempt || coalesce(' ' || r.tool_name
		|| ' ' || r.status || ' ' || coalesce(r.result #>> '{error,error_code}', ''), '')
		from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id order by 1`)
	want := []string{"10 queued 0", "11 failed 1 shop.charge failed outcome_unknown",
		"12 failed 1 shop.charge failed outcome_unknown", "13 failed 1 shop.charge failed outcome_unknown",
		"14 failed 1 shop.charge failed outcome_unknown", "15 failed 1 shop.charge failed outcome_unknown",
		"16 failed 1 shop.charge failed cancelled", "17 failed 1 shop.charge failed outcome_unknown",
		"18 succeeded 1 shop.charge succeeded ", "19 succeeded 1 shop.charge succeeded ", "20 failed 1 shop.charge failed ",
		"23 queued 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the calls should be (-), and are (+): %s", diff)
	}
	testdb.Exec(t, db, "select gem.start_worker('w', 9, '', '', '1 hour'); select gem.recover('w', null)")
	if n := testdb.Value[string](t, db, "select count(*)::text from gem.claim('w', 10, true)"); n != "2" {
		t.Errorf("%s calls run", n)
	}
}

// Any login can hold the lock of migrations. Nobody waits for it without an end, and the error says who holds it.
func TestALockThatSomeoneHoldsIsNamed(t *testing.T) { // not parallel: the patience is everyone's
	defer migrations.LimitPatience(time.Millisecond)()
	databaseURL := testdb.NewEmpty(t)
	holder, err := testdb.Pool(t, databaseURL).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	var pid string
	if err := holder.QueryRow(t.Context(), `select pg_backend_pid()::text from pg_advisory_lock(47160001),
		set_config('application_name', 'idle hands', false)`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	_, listErr := migrations.Adoption(t.Context(), databaseURL, migrations.Options{Adopt: []string{"core_tool_calls"}})
	_, err = migrations.Apply(t.Context(), databaseURL, migrations.Options{})
	for _, err := range []error{listErr, err} {
		if err == nil || !strings.Contains(err.Error(), "process "+pid+", user postgres, application idle hands") {
			t.Errorf("it says %v", err)
		}
	}
	if _, err := holder.Exec(t.Context(), "select pg_advisory_unlock_all()"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), databaseURL); err != nil {
		t.Error(err)
	}
}

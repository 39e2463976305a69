package migrations_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/comms"
	"github.com/gemworker/gem/handlers/entity"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/handlers/os"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
)

// generous are default privileges that give everyone everything.
const generous = `
	alter default privileges grant all on schemas to public, anon, authenticated, service_role, gem_monitor;
	alter default privileges grant all on tables to public, anon, authenticated, service_role, gem_monitor;
	alter default privileges grant all on sequences to public, anon, authenticated, gem_monitor;
	alter default privileges grant all on sequences to service_role with grant option;
	alter default privileges grant all on functions to public, anon, authenticated, service_role, gem_monitor;
	alter default privileges grant all on types to public, anon, authenticated, service_role, gem_monitor;
	alter default privileges in schema public grant all on tables to anon, authenticated, service_role`

const plainRoles = `do $$ begin
	create role anon nologin; create role authenticated nologin; create role service_role nologin;
	exception when duplicate_object or unique_violation then null; end $$`

func everySource() []migrations.Source {
	domains := migrations.Sources(comms.Domain(), entity.Domain(), extract.Domain(handlers.Domain{}),
		leads.Domain(), os.Domain())
	return append(domains, migrations.Source{Name: "program", Grants: []string{"select, insert on orders"},
		Files: fstest.MapFS{
			"00001_orders.sql": {Data: []byte(`
			create table if not exists orders (id bigserial primary key, item text, n integer generated always as identity);
			create or replace view "all; orders" as select * from orders;
			do $$ begin create type shape as enum ('round'); exception when duplicate_object then null; end $$;
			create or replace function tools.shop_order(input jsonb) returns jsonb language sql as 'select input; select $1';
			grant select on orders to authenticated;
			do $$ begin create table if not exists made_in_a_block (id int); end $$;
			create table if not exists cups (id int);
			select gem.grant_to('authenticated', 'insert on cups')`)},
			"00002_plates.sql": {Data: []byte("create table if not exists plates (id int); grant references on plates to " +
				"gem_monitor; alter table orders add if not exists size int -- the end")},
			"grants.sql": {Data: []byte("select gem.grant_to('service_role', 'truncate on plates')")},
		}})
}

// privileges lists what roles other than the owner may do with everything outside Postgres's own schemas.
func privileges(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	return texts(t, db, `
		with s as (select oid, nspname, nspowner, nspacl from pg_namespace where nspname !~ '^pg_'
			and nspname not in ('information_schema', 'theirs'))
		select concat_ws(' ', what, coalesce(r.rolname, 'everyone'), privilege_type, case
			when is_grantable then 'and may grant it' end) from (
			select 'schema ' || nspname as what, nspowner as owner, a.* from s, aclexplode(nspacl) a where nspname <> 'public'
			union all
			select c.relkind::text || ' ' || c.oid::regclass, c.relowner, a.* from pg_class c join s on s.oid = c.relnamespace,
				aclexplode(c.relacl) a
			union all
			select 'column ' || t.attname || ' of ' || c.oid::regclass, c.relowner, a.*
			from pg_class c join s on s.oid = c.relnamespace join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a
			union all
			select 'function ' || p.oid::regprocedure, p.proowner, a.* from pg_proc p join s on s.oid = p.pronamespace,
				aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
			union all
			select 'type ' || y.oid::regtype, y.typowner, a.* from pg_type y join s on s.oid = y.typnamespace,
				aclexplode(coalesce(y.typacl, acldefault('T', y.typowner))) a where y.typrelid = 0 and y.typelem = 0
		) g left join pg_roles r on r.oid = g.grantee where g.grantee <> g.owner order by 1`)
}

// Wide default privileges give nobody a right on GEM's objects that a migration did not grant.
func TestDefaultPrivilegesGiveNothingOnGEMsObjects(t *testing.T) {
	t.Parallel()
	plain := testdb.NewEmpty(t)
	db := testdb.Pool(t, plain)
	testdb.Exec(t, db, plainRoles)
	if err := migrations.Up(t.Context(), plain, everySource()...); err != nil {
		t.Fatal(err)
	}
	want := privileges(t, db)
	for _, named := range []string{
		"r core_tool_calls gem_worker SELECT", "r orders authenticated SELECT", "r orders gem_worker INSERT",
		"r cups authenticated INSERT",
		"r plates service_role TRUNCATE", "r plates gem_monitor REFERENCES",
		"function tools.shop_order(jsonb) gem_worker EXECUTE",
	} {
		if !strings.Contains(strings.Join(want, "\n")+"\n", named+"\n") {
			t.Errorf("without default privileges there is no %s", named)
		}
	}
	for name, migrate := range map[string]func(t *testing.T, url string) error{
		"by gem migrate": func(t *testing.T, url string) error { return migrations.Up(t.Context(), url, everySource()...) },
		"in two runs": func(t *testing.T, url string) error {
			if err := migrations.Up(t.Context(), url); err != nil {
				return err
			}
			return migrations.Up(t.Context(), url, everySource()...)
		},
		"as one file": func(t *testing.T, url string) error {
			var file strings.Builder
			if err := migrations.Print(&file, "", migrations.Options{}, everySource()...); err != nil {
				return err
			}
			testdb.Exec(t, testdb.Pool(t, url), file.String())
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.NewEmpty(t)
			db := testdb.Pool(t, url)
			testdb.Exec(t, db, plainRoles)
			testdb.Exec(t, db, generous)
			testdb.Exec(t, db, `create schema theirs; create table theirs.table_of_theirs (id serial);
				create table theirs.plain (id int); revoke all on theirs.plain from anon`)
			const defaults = "select defaclrole::regrole || ' ' || defaclnamespace || ' ' || defaclobjtype::text || ' ' || " +
				"defaclacl::text from pg_default_acl where defaclnamespace is distinct from to_regnamespace('tools')::oid order " +
				"by 1"
			const ofTheirs = "select relname || ' ' || coalesce(relacl::text, '-') from pg_class where relnamespace = " +
				"'theirs'::regnamespace order by 1"
			defaultsBefore, theirsBefore := texts(t, db, defaults), texts(t, db, ofTheirs)
			if err := migrate(t, url); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, privileges(t, db)); diff != "" {
				t.Errorf("the privileges differ from those without default privileges (-without +with):\n%s", diff)
			}
			if diff := cmp.Diff(defaultsBefore, texts(t, db, defaults)); diff != "" {
				t.Errorf("the default privileges were changed:\n%s", diff)
			}
			if diff := cmp.Diff(theirsBefore, texts(t, db, ofTheirs)); diff != "" {
				t.Errorf("privileges of someone else's tables were changed:\n%s", diff)
			}
			// What an administrator gives later stays.
			testdb.Exec(t, db, "grant trigger on core_tool_calls to gem_monitor; grant select on gem.queue to gem_mcp; grant "+
				"execute on function gem.now() to gem_mcp")
			given := privileges(t, db)
			if err := migrate(t, url); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(given, privileges(t, db)); diff != "" {
				t.Errorf("a second migration changed privileges:\n%s", diff)
			}
		})
	}
}

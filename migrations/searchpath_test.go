package migrations_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
)

// A search path may name a schema of others before pg_catalog, so that theirs win over Postgres's own.
func TestMigrationsUseNothingThatComesBeforePgCatalog(t *testing.T) {
	t.Parallel()
	url := testdb.NewEmpty(t)
	testdb.Exec(t, testdb.Pool(t, url), `
		create schema stranger; create sequence stranger.uses;
		create function stranger.same(a name, b text) returns boolean language sql as
			$$ select nextval('stranger.uses') > 0 and a::text operator(pg_catalog.=) b $$;
		create function stranger.same(a name, b name) returns boolean language sql as
			$$ select nextval('stranger.uses') > 0 and a::text operator(pg_catalog.=) b::text $$;
		create function stranger.same(a text, b text) returns boolean language sql as
			$$ select nextval('stranger.uses') > 0 and a operator(pg_catalog.=) b $$;
		create function stranger.joined(a text, b text) returns text language sql as
			$$ select nextval('stranger.uses')::text where false union all select concat(a, b) $$;
		create operator stranger.= (leftarg = name, rightarg = text, function = stranger.same);
		create operator stranger.= (leftarg = name, rightarg = name, function = stranger.same);
		create operator stranger.= (leftarg = text, rightarg = text, function = stranger.same);
		create operator stranger.|| (leftarg = text, rightarg = text, function = stranger.joined);
		do $$ begin
			execute format('alter database %I set search_path = stranger, public, pg_catalog', current_database());
		end $$`)
	if err := migrations.Up(t.Context(), url, all()...); err != nil {
		t.Fatal(err)
	}
	if used := testdb.Value[string](t, testdb.Pool(t, url), "select is_called::text from stranger.uses"); used != "false" {
		t.Error("an operator of the stranger was used")
	}
}

// Someone who may create functions in a schema of the login's search path must not run code as the login.
func TestMigrationsUseNothingOfTheSearchPath(t *testing.T) {
	t.Parallel()
	program := migrations.Source{Name: "program", Files: fstest.MapFS{
		"00001_own.sql": {Data: []byte(`create table if not exists own_notes (id integer);
			insert into own_notes values (own_number())`)},
	}, Grants: []string{"select on own_notes"}}
	for name, migrate := range map[string]func(t *testing.T, url string) error{
		"apply": func(t *testing.T, url string) error {
			return migrations.Up(t.Context(), url, append(all(), program)...)
		},
		"a dry run": func(t *testing.T, url string) error {
			_, err := migrations.Apply(t.Context(), url, migrations.Options{DryRun: true}, append(all(), program)...)
			return err
		},
		"print": func(t *testing.T, url string) error {
			var sql strings.Builder
			o := migrations.Options{AdoptRoles: []string{"gem_worker"}}
			if err := migrations.Print(&sql, "", o, append(all(), program)...); err != nil {
				return err
			}
			_, err := testdb.Pool(t, url).Exec(t.Context(), sql.String())
			return err
		},
		"adopt": func(t *testing.T, url string) error {
			o := migrations.Options{
				Adopt: []string{"core_tool_calls", "core_tool_receipts", "notes"}, AdoptRoles: []string{"gem_worker"},
			}
			testdb.Exec(t, testdb.Pool(t, url), earlier+"; create table public.notes (id uuid primary key, title text)")
			if _, err := migrations.Adoption(t.Context(), url, o, all()...); err != nil {
				return err
			}
			_, err := migrations.Apply(t.Context(), url, o, append(all(), program)...)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.NewEmpty(t)
			testdb.AddStranger(t, url)
			db := testdb.Pool(t, url)
			testdb.Exec(t, db, "create function public.own_number() returns integer language sql as 'select 7'")
			for range 2 {
				if err := migrate(t, url); err != nil {
					t.Fatal(err)
				}
				if name == "adopt" || name == "a dry run" {
					break
				}
			}
			if name == "a dry run" {
				return
			}
			// The program's own file is run with the login's search path.
			got := testdb.Value[string](t, db, `select max(n.id)::text || ' '::text || l.objects::text
				from stranger.own_notes n, gem.migrations l where l.source = 'program' and l.version = 1 group by l.objects::text`)
			if got != "7 {\"table stranger.own_notes\"}" {
				t.Errorf("the program's file made %s", got)
			}
			if path := testdb.Value[string](t, db, "show search_path"); path != "stranger, public" {
				t.Errorf("afterwards the search path is %s", path)
			}
			if err := migrations.Check(t.Context(), db, append(all(), program)...); err != nil {
				t.Error(err)
			}
		})
	}
}

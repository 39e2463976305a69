package testdb

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// strangersSchema has a view and a function under each name that GEM has in public. Each use fails, and advances a sequence,
// which no rollback resets.
const strangersSchema = `
create schema stranger;
create sequence stranger.uses;
create function stranger.refuse() returns boolean language plpgsql stable security definer as $$
begin
  perform nextval('stranger.uses');
  raise exception 'a stranger''s table or function was used';
end $$;
create function stranger.refuse_row() returns trigger language plpgsql as $$ begin perform stranger.refuse(); return null; end $$;
do $$
declare
  r record;
begin
  for r in select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v') loop
    execute format('create view stranger.%1$I as select * from public.%1$I where stranger.refuse()', r.relname);
    execute format('create trigger refuse instead of insert or update or delete on stranger.%I for each row execute function stranger.refuse_row()',
      r.relname);
  end loop;
  for r in select proname, pg_get_function_identity_arguments(oid) as arguments from pg_proc
      where pronamespace = 'public'::regnamespace and prokind = 'f' loop
    execute format('create function stranger.%I(%s) returns text language sql as ''select stranger.refuse()::text''', r.proname, r.arguments);
  end loop;
  execute format('alter database %I set search_path = stranger, public', current_database());
end $$;
grant usage on schema stranger to public;
grant all on all tables in schema stranger to public;`

// AddStranger adds someone else's schema to the database at databaseURL, with all names that GEM has in public. It comes first in the
// search path of new connections. The test fails if anything in that schema is used.
func AddStranger(t testing.TB, databaseURL string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), strangersSchema)
	if err != nil {
		t.Fatalf("make the stranger's schema: %v", err)
	}
	t.Cleanup(func() {
		var used bool
		if err := conn.QueryRow(context.Background(), "select is_called from stranger.uses").Scan(&used); err != nil || used {
			t.Errorf("a table or function of the stranger was used: %v, %v", used, err)
		}
		_ = conn.Close(context.Background())
	})
}

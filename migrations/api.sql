-- These are GEM's only three additions to objects of others: two for frontends that use Supabase's API, and one for the
-- roles of workers. gem migrate --no-api omits them.

do $$
declare
  of_users text;
begin
  -- gem mcp acts for signed-in users, and so do their schedules.
  foreach of_users in array array['gem_mcp', 'gem_scheduler'] loop
    begin
      if not pg_has_role(to_regrole(of_users), to_regrole('authenticated'), 'member') then
        execute format('grant authenticated to %I', of_users);
      end if;
    exception
      when unique_violation then null; -- another database of this server is being migrated
      when insufficient_privilege then raise notice '% may not become authenticated: this role may not grant it',
        of_users;
    end;
  end loop;

  -- Realtime then sends each receipt to every user who may select it.
  if exists (select from pg_publication where pubname = 'supabase_realtime' and not puballtables)
    and not exists (select from pg_publication_tables
                    where pubname = 'supabase_realtime' and schemaname = 'public' and tablename = 'core_tool_receipts')
                      then
    begin
      alter publication supabase_realtime add table public.core_tool_receipts;
    exception when insufficient_privilege then
      raise notice 'receipts are not in the publication supabase_realtime: its owner can add public.core_tool_receipts';
    end;
  end if;
end
$$;

select gem.grant_to(r, 'usage on schema public') from unnest(array['gem_worker', 'gem_operator', 'gem_frontend']) r;

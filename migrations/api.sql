-- These are GEM's only three additions to objects of others: two for frontends that use Supabase's API, and one for the
-- roles of workers. gem migrate --no-api omits them.

do $$
begin
  -- gem mcp acts for signed-in users.
  if to_regrole('authenticated') is not null and to_regrole('gem_mcp') is not null
    and not pg_has_role('gem_mcp', 'authenticated', 'member') then
    begin
      grant authenticated to gem_mcp;
    exception
      when unique_violation then null; -- another database of this server is being migrated
      when insufficient_privilege then raise notice 'gem_mcp may not become authenticated: this role may not grant it';
    end;
  end if;

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

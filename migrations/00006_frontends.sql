-- +goose Up
--
-- What frontends may do, where the roles of Supabase's API are: anon, authenticated and service_role. On a server without
-- them nothing is granted, and nothing is needed.
--
--   authenticated  inserts calls, of which it chooses what a frontend chooses; created_by comes from its token. It reads its own
--                  calls, their receipts and their journal, and can ask for the end of its own.
--   service_role   inserts and reads for anyone, and writes nothing else either.
--   anon           can do nothing.
--
-- Older projects grant new tables to all three by default, so everything is taken away first.

-- +goose StatementBegin
do $$
declare
  api     text[] := array(select rolname from pg_roles where rolname in ('anon', 'authenticated', 'service_role'));
  api_role text;
  chosen  constant text := '(id, tool_name, input, status, idempotency_key, session_id, parent_call_id, priority, run_at)';
  tables  constant text := 'public.core_tool_calls, public.core_tool_receipts, public.core_tool_events, public.core_workers, public.core_registry_versions';
begin
  foreach api_role in array api loop
    execute format('revoke all on %s from %I', tables, api_role);
    execute format('revoke all on function public.cancel_tool_call(uuid) from %I', api_role);
  end loop;
  foreach api_role in array array(select unnest(api) except select 'anon') loop
    execute format('grant insert %s on public.core_tool_calls to %I', chosen, api_role);
    execute format('grant select on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events to %I', api_role);
    execute format('grant execute on function public.cancel_tool_call(uuid) to %I', api_role);
  end loop;
  if 'service_role' = any (api) then
    grant insert (created_by) on public.core_tool_calls to service_role; -- a server that acts for a user
  end if;
end
$$;

-- The subject of the token that a request came with; null outside of a request. After a commit the setting is empty and
-- not null.
create or replace function public.gem_caller() returns text language sql stable set search_path = '' as $$
  select nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub'
$$;

alter table public.core_tool_calls enable row level security;
alter table public.core_tool_receipts enable row level security;

drop policy if exists gem_own_calls on public.core_tool_calls;
create policy gem_own_calls on public.core_tool_calls for select using (created_by = (select public.gem_caller()));
drop policy if exists gem_new_calls on public.core_tool_calls;
create policy gem_new_calls on public.core_tool_calls for insert with check (created_by = (select public.gem_caller()));
drop policy if exists gem_own_receipts on public.core_tool_receipts;
create policy gem_own_receipts on public.core_tool_receipts for select using (
  exists (select from public.core_tool_calls c where c.id = call_id and c.created_by = (select public.gem_caller())));
drop policy if exists gem_own_events on public.core_tool_events;
create policy gem_own_events on public.core_tool_events for select using (
  exists (select from public.core_tool_calls c where c.id = call_id and c.created_by = (select public.gem_caller())));

-- service_role passes row level security on Supabase by an attribute of the role; elsewhere by these policies, which are
-- also what lets a worker's role look.
do $$
declare
  reader text;
  core   text;
begin
  foreach reader in array array(select rolname from pg_roles where rolname in ('service_role', 'gem_worker')) loop
    foreach core in array array['core_tool_calls', 'core_tool_receipts', 'core_tool_events'] loop
      execute format('drop policy if exists %I on public.%I', 'gem_all_for_' || reader, core);
      execute format('create policy %I on public.%I for select to %I using (true)', 'gem_all_for_' || reader, core, reader);
    end loop;
  end loop;
  if exists (select from pg_roles where rolname = 'service_role') then
    drop policy if exists gem_new_calls_for_service_role on public.core_tool_calls;
    create policy gem_new_calls_for_service_role on public.core_tool_calls for insert to service_role with check (true);
  end if;
end
$$;
-- +goose StatementEnd

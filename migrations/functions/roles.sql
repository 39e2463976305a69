-- The roles that GEM knows, and how a right is given to one of them. Files name a right beside what it opens.
--
--   gem_worker     for workers: create role my_worker login password '…' in role gem_worker;
--                  It moves calls only through the functions of states.sql and workers.sql, and can neither write a call, a
--                  receipt or an event itself, nor forge an attempt. Handlers read and write what their domain grants.
--   gem_monitor    for dashboards: create role grafana login password '…' in role gem_monitor;
--                  It reads the views of watch.sql and watch_calls.sql.
--   gem_operator   for dashboards in which people act: create role my_operator login password '…' in role gem_operator;
--                  It is a member of gem_monitor, reads all of every call, and acts by the functions of operate.sql alone, which name the person.
--   gem_frontend   for signed-in users where Supabase's authenticated is not: it has the same rights. See frontends.sql.
--   gem_door       for gem mcp: create role my_door login password '…' in role gem_door;
--                  It may become gem_frontend or authenticated, for one user at a time, and ask which calls have ended. It can do nothing itself.
--   anon, authenticated, service_role
--                  the roles of Supabase's API, where they are: see frontends.sql.
--
-- Where the role that migrates may not create roles they are left out, and workers connect as the owner of the tables.

-- Grants p_right to p_role where that role exists: select gem.grant_to('gem_worker', 'select on public.core_tool_calls').
create or replace function gem.grant_to(p_role text, p_right text) returns void language plpgsql as $$
begin
  if exists (select from pg_catalog.pg_roles where rolname = p_role) then
    execute pg_catalog.format('grant %s to %I', p_right, p_role);
  end if;
end
$$;

-- Lets p_role do with the rows of p_table what its grants say, where that role exists: row level security is on.
create or replace function gem.open_to(p_role text, p_table text, p_policy text, p_for text) returns void language plpgsql as $$
begin
  if exists (select from pg_catalog.pg_roles where rolname = p_role) then
    execute pg_catalog.format('drop policy if exists %I on %s', p_policy, p_table);
    execute pg_catalog.format('create policy %I on %s %s', p_policy, p_table, pg_catalog.format(p_for, p_role));
  end if;
end
$$;

-- The roles of frontends, as far as they are there. Those who sign in have one that is neither anon nor service_role.
create or replace function gem.api_roles() returns setof text language sql stable as $$
  select r.rolname::text from pg_catalog.pg_roles r where r.rolname in ('anon', 'authenticated', 'gem_frontend', 'service_role') order by r.rolname
$$;

do $$
declare
  new_role text;
  ours     constant text := 'Made by GEM. All databases of this server that have GEM share it.';
begin
  foreach new_role in array array['gem_worker', 'gem_monitor', 'gem_operator', 'gem_frontend', 'gem_door'] loop
    begin
      if not exists (select from pg_roles where rolname = new_role) then
        -- gem_door has the rights of no user before it becomes that user; gem_operator has those of gem_monitor
        execute format('create role %I nologin %s', new_role, case new_role when 'gem_operator' then 'inherit' else 'noinherit' end);
        execute format('comment on role %I is %L', new_role, ours); -- by which the next migration recognises it
      end if;
    exception
      when duplicate_object or unique_violation then null; -- another database of this server is being migrated
      when insufficient_privilege then raise notice 'the role % was not created: this role may create none', new_role;
    end;
  end loop;
  if not pg_has_role(to_regrole('gem_door'), 'gem_frontend', 'member') then
    begin
      grant gem_frontend to gem_door;
    exception
      when unique_violation then null;
      when insufficient_privilege then raise notice 'gem_door may not become gem_frontend: this role may not grant it';
    end;
  end if;
  if not pg_has_role(to_regrole('gem_operator'), 'gem_monitor', 'member') then
    begin
      grant gem_monitor to gem_operator;
    exception
      when unique_violation then null;
      when insufficient_privilege then raise notice 'gem_operator does not read the views of gem_monitor: this role may not grant it';
    end;
  end if;
end
$$;

select gem.grant_to('gem_worker', 'usage on schema gem');
select gem.grant_to('gem_monitor', 'usage on schema gem');
select gem.grant_to('gem_worker', 'select on gem.migrations'); -- a worker looks at the schema's version before it starts
select gem.grant_to('gem_worker', 'select on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events, public.core_workers');
select gem.open_to('gem_worker', 'public.' || t, 'gem_worker_reads', 'for select to %I using (true)')
from unnest(array['core_tool_calls', 'core_tool_receipts', 'core_tool_events', 'core_workers']) t;

-- The roles that GEM knows, and the functions that grant rights to them. Each file grants the rights to its own
-- objects.
--
--   gem_worker     for workers: create role my_worker login password '…' in role gem_worker;
--                  It moves calls only through the functions of states.sql and workers.sql. It can neither write a
--                  call, a receipt or an event itself, nor forge an attempt. Handlers have the rights that their domain
--                  grants.
--   gem_monitor    for dashboards: create role grafana login password '…' in role gem_monitor;
--                  It reads the views of watch.sql and watch_calls.sql.
--   gem_operator   for dashboards in which people act: create role my_operator login password '…' in role gem_operator;
--                  It is a member of gem_monitor, and reads every call completely. It acts only through the functions
--                  of operate.sql, which record the person.
--   gem_frontend   for signed-in users without Supabase's role authenticated: it has the same rights. See
--                  frontends.sql.
--   gem_mcp        for gem mcp: create role my_mcp login password '…' in role gem_mcp;
--                  It may become gem_frontend or authenticated, for one user at a time, and may read which calls have
--                  ended. It has no other rights.
--   gem_scheduler  makes the calls of signed-in users' schedules: see user_schedules.sql. It is a member of
--                  gem_frontend and of authenticated. Nobody connects as this role.
--   gem_handler    for services with durable handlers: create role my_service login password '…' in role gem_handler;
--                  It writes the ends of its steps, with the tokens of its requests: see exchanges.sql. It has no other
--                  rights on GEM's tables and functions. Grant the service's own tables to the login.
--   anon, authenticated, service_role
--                  the roles of Supabase's API, if they exist: see frontends.sql.
--
-- create_roles.sql creates these roles. If the migrating role may not create roles, they do not exist, and workers
-- connect as the owner of the tables.

-- Grants p_right to p_role if that role exists: select gem.grant_to('gem_worker', 'select on public.core_tool_calls').
-- The caller's search path finds the names in p_right.
create or replace function gem.grant_to(p_role text, p_right text) returns void language plpgsql as $$
begin
  if exists (select from pg_catalog.pg_roles where rolname operator(pg_catalog.=) p_role::pg_catalog.name) then
    execute pg_catalog.format('grant %s to %I', p_right, p_role);
  end if;
end
$$;

-- Lets p_role use the sequences of p_table's serial columns, if that role exists.
create or replace function gem.grant_sequences_of(p_table regclass, p_role text) returns void language plpgsql
  set search_path = pg_catalog, pg_temp as $$
declare
  numbers text;
begin
  for numbers in
    select s.oid::regclass from pg_depend d join pg_class s on s.oid = d.objid and s.relkind = 'S'
    where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass and d.refobjid = p_table
      and d.deptype = 'a'
  loop
    perform gem.grant_to(p_role, 'usage on sequence ' || numbers);
  end loop;
end
$$;

-- Adds a policy that admits p_role to all rows of p_table, if that role exists. Its grants decide what it may do.
create or replace function gem.open_to(p_role text, p_table text, p_policy text, p_for text) returns void
  language plpgsql as $$
begin
  if exists (select from pg_catalog.pg_roles where rolname operator(pg_catalog.=) p_role::pg_catalog.name) then
    execute pg_catalog.format('drop policy if exists %I on %s', p_policy, p_table);
    execute pg_catalog.format('create policy %I on %s %s', p_policy, p_table, pg_catalog.format(p_for, p_role));
  end if;
end
$$;

-- Returns the roles of frontends that exist. A signed-in user has a role other than anon and service_role.
create or replace function gem.api_roles() returns setof text language sql stable
  set search_path = pg_catalog, pg_temp as $$
  select r.rolname::text from pg_catalog.pg_roles r
    where r.rolname in ('anon', 'authenticated', 'gem_frontend', 'service_role') order by r.rolname
$$;

select gem.grant_to('gem_worker', 'usage on schema gem');
select gem.grant_to('gem_monitor', 'usage on schema gem');
-- a worker checks the schema's version before it starts
select gem.grant_to('gem_worker', 'select on gem.migrations');
select gem.grant_to('gem_worker',
  'select on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events, public.core_workers');
select gem.open_to('gem_worker', 'public.' || t, 'gem_worker_reads', 'for select to %I using (true)')
from unnest(array['core_tool_calls', 'core_tool_receipts', 'core_tool_events', 'core_workers']) t;

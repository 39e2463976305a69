-- The rights of frontends: the roles of gem.api_roles(), as far as they are there.
--
--   authenticated, gem_frontend
--                  lists the tools that it may call. It inserts calls, of which it chooses what a frontend chooses; created_by comes from its token. It reads its
--                  own calls, their receipts, progress and journal, without what tells of workers and of other calls, can ask for
--                  the end of its own, and reads and answers the questions that it may answer.
--   service_role   inserts and reads for anyone, and writes nothing else either.
--   anon           can do nothing.
--
-- The functions here run with the rights of their caller: they refuse what the tables refuse. list_tools alone runs with those of the owner. Callers
-- may not use the schema gem, so these raise errors without gem.refuse. Of the caller's input, such an error contains only ids of type uuid.

-- Inserts a call and returns its id. A frontend that chooses the id may send the same request again when its answer was lost,
-- and gets the same id back, also where a new call would be refused by now; another call under that id is refused, and so is another's.
-- awaited asks for a notification of the call's end: see gem.tell_ended.
create or replace function public.enqueue_tool_call(tool_name text, input jsonb default '{}', idempotency_key text default null,
  session_id text default null, parent_call_id uuid default null, priority integer default 0, run_at timestamptz default null,
  id uuid default null, traceparent text default null, awaited boolean default null)
returns uuid language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  new_id uuid;
  there  boolean := false;
begin
  for i in 1..2 loop
    -- The owner of the tables sees the calls of all users, so the caller is compared here too.
    select c.tool_name = enqueue_tool_call.tool_name and c.input = coalesce(enqueue_tool_call.input, '{}')
      and c.idempotency_key is not distinct from nullif(enqueue_tool_call.idempotency_key, '') and c.created_by is not distinct from public.gem_caller()
    into there from public.core_tool_calls c where c.id = enqueue_tool_call.id;
    if there then
      return id;
    end if;
    exit when there is not null or i = 2;
    begin
      insert into public.core_tool_calls as c (id, tool_name, input, idempotency_key, session_id, parent_call_id, priority, run_at, traceparent, awaited)
      values (id, tool_name, input, idempotency_key, session_id, parent_call_id, priority, run_at, traceparent, awaited)
      returning c.id into new_id;
      return new_id;
    exception
      when unique_violation then null; -- it came meanwhile, or is another's
      when foreign_key_violation then
        raise foreign_key_violation using message = format('parent_call_id is %s, which is no call of yours', parent_call_id);
    end;
  end loop;
  raise unique_violation using message = format('there is another call with the id %s', id),
    hint = 'A new call needs a new id. The same tool_name, input and idempotency_key repeat a request whose answer was lost.';
end
$$;

-- The receipt of a call, or null while it has none. Which worker wrote it is left out.
create or replace function public.get_receipt(call_id uuid) returns jsonb language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  receipt jsonb;
begin
  select to_jsonb(r) into receipt from (
    select o.id, o.call_id, o.tool_name, o.status, o.result, o.effects, o.created_at, o.attempt, o.registry_version, o.idempotency_key,
      o.replay_of, o.duration
    from public.core_tool_receipts o where o.call_id = get_receipt.call_id) r;
  if receipt is null and not exists (select from public.core_tool_calls c where c.id = get_receipt.call_id) then
    raise exception using errcode = 'PT404', message = format('there is no call %s that you can see', get_receipt.call_id); -- HTTP status 404
  end if;
  return receipt;
end
$$;

-- The tools that the caller may call, of the registry in force, sorted by name: all of them for service_role, and where there is no token.
create or replace function public.list_tools() returns table (name text, description text, input_schema jsonb, output_schema jsonb, hints jsonb,
  idempotency jsonb)
language sql stable security definer rows 50 set search_path = pg_catalog, pg_temp as $$
  select t.name, coalesce(t.entry ->> 'description', ''), t.entry -> 'input_schema', t.entry -> 'output_schema', coalesce(t.entry -> 'hints', '{}'),
    t.entry -> 'idempotency'
  from gem.tools t
  where t.frontends or coalesce(gem.token_claims() ->> 'role' = 'service_role', gem.token_claims() is null)
  order by t.name
$$;

-- Those of p_calls that have ended, whoever made them: for a process in which many wait, each of whom then reads the receipt with the rights of
-- its own user. It takes a thousand ids at most.
create or replace function gem.ended(p_calls uuid[]) returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
begin
  if cardinality(p_calls) > 1000 then
    perform gem.refuse('check_violation', 'gem.ended takes at most 1000 calls, and got %s', null, cardinality(p_calls)::text);
  end if;
  return query select r.call_id from public.core_tool_receipts r where r.call_id = any (p_calls);
end
$$;

-- Returns those of p_calls that wait, in no process, for an answer or for calls made on their behalf: a person may have to answer, and waiters should
-- know. Otherwise it is like gem.ended.
create or replace function gem.parked(p_calls uuid[]) returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
begin
  if cardinality(p_calls) > 1000 then
    perform gem.refuse('check_violation', 'gem.parked takes at most 1000 calls, and got %s', null, cardinality(p_calls)::text);
  end if;
  return query select c.id from (
    select a.id, a.status, a.waits_for from public.core_tool_calls a where a.id = any (p_calls) offset 0) c -- by id: many calls may be waiting
  where c.status = 'waiting' and c.waits_for in ('answer', 'call');
end
$$;

-- Nothing refers from receipts and events to calls by a foreign key, which is what PostgREST looks for. One of these it
-- takes in its place: select=id,status,core_tool_receipts(status,result). They are for service_role: a function that takes a
-- whole row needs the right to read all of it.
create or replace function public.core_tool_receipts(call public.core_tool_calls) returns setof public.core_tool_receipts rows 1
language sql stable as $$
  select r.* from public.core_tool_receipts r where r.call_id = call.id
$$;
create or replace function public.core_tool_events(call public.core_tool_calls) returns setof public.core_tool_events rows 5
language sql stable as $$
  select e.* from public.core_tool_events e where e.call_id = call.id order by e.seq
$$;

-- The warnings of rules when the call ran, as a list of texts: select=status,result,warnings. For service_role too; a signed-in user
-- reads select=status,result,rules:effects->rules, which has the warnings among the verdicts.
create or replace function public.warnings(receipt public.core_tool_receipts) returns jsonb language sql stable as $$
  select coalesce(jsonb_path_query_array(receipt.effects, '$.rules.verdicts[*] ? (@.action == "warn").message'), '[]')
$$;

-- The subject of the token that a request came with; null outside of a request, and for a token without a subject.
create or replace function public.gem_caller() returns text language sql stable set search_path = pg_catalog, pg_temp as $$
  select nullif(nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub', '')
$$;

------------------------------------------------------------------------------------------------------------------------
-- Rights
------------------------------------------------------------------------------------------------------------------------

drop policy if exists gem_own_calls on public.core_tool_calls;
create policy gem_own_calls on public.core_tool_calls for select using (created_by = (select public.gem_caller()));
drop policy if exists gem_new_calls on public.core_tool_calls;
create policy gem_new_calls on public.core_tool_calls for insert with check (created_by = (select public.gem_caller()));
-- With the offset Postgres looks at the call of each row. Otherwise it may read all calls of the caller first, for the receipt of one.
drop policy if exists gem_own_receipts on public.core_tool_receipts;
create policy gem_own_receipts on public.core_tool_receipts for select using (
  exists (select from public.core_tool_calls c where c.id = call_id and c.created_by = (select public.gem_caller()) offset 0));
drop policy if exists gem_own_events on public.core_tool_events;
create policy gem_own_events on public.core_tool_events for select using (
  exists (select from public.core_tool_calls c where c.id = call_id and c.created_by = (select public.gem_caller()) offset 0));
drop policy if exists gem_own_progress on public.core_tool_progress;
create policy gem_own_progress on public.core_tool_progress for select using (
  exists (select from public.core_tool_calls c where c.id = call_id and c.created_by = (select public.gem_caller()) offset 0));

-- On Supabase an attribute of service_role passes row level security; elsewhere these policies do.
select gem.open_to('service_role', 'public.' || t, 'gem_all_for_service_role', 'for select to %I using (true)')
from unnest(array['core_tool_calls', 'core_tool_receipts', 'core_tool_events', 'core_tool_progress']) t;
select gem.open_to('service_role', 'public.core_tool_calls', 'gem_new_calls_for_service_role', 'for insert to %I with check (true)');

-- Older projects grant new tables and functions to all three roles by default, so everything is taken away first.
do $$
declare
  api_role  text;
  functions constant text := 'public.enqueue_tool_call(text, jsonb, text, text, uuid, integer, timestamptz, uuid, text, boolean), public.get_receipt(uuid), '
    || 'public.cancel_tool_call(uuid), public.answer_tool_call(uuid, jsonb, text), public.list_tools()';
  of_rows   constant text := 'public.core_tool_receipts(public.core_tool_calls), public.core_tool_events(public.core_tool_calls), '
    || 'public.warnings(public.core_tool_receipts)';
begin
  execute format('revoke all on function %s, %s from public', functions, of_rows);
  foreach api_role in array array(select gem.api_roles()) loop
    execute format('revoke all on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events, public.core_workers, '
      || 'public.core_registry_versions, public.core_rules_versions, public.core_hook_events, '
      || 'public.core_llm_versions, public.core_llm_requests, public.core_tool_progress, public.open_questions from %I', api_role);
    execute format('revoke all on function %s, %s from %I', functions, of_rows, api_role);
    if api_role <> 'anon' then
      execute format('grant insert (id, tool_name, input, status, idempotency_key, session_id, parent_call_id, priority, run_at, traceparent, awaited) '
        || 'on public.core_tool_calls to %I', api_role);
      execute format('grant execute on function %s, gem.open_questions() to %I', functions, api_role);
      execute format('grant select on public.open_questions, public.core_tool_progress to %I', api_role);
    end if;
    if api_role = 'service_role' then
      execute format('grant select on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events to %I', api_role);
      execute format('grant execute on function %s to %I', of_rows, api_role);
    elsif api_role <> 'anon' then
      -- Without seq, which counts the calls of all, the workers' names, and the data of events, which names workers and calls of others.
      execute format('grant select (id, tool_name, input, status, idempotency_key, session_id, parent_call_id, created_by, priority, run_at, '
        || 'traceparent, signed_in, attempt, claimed_at, error, cancel_requested_at, created_at, updated_at, computed_key, retries, losses, '
        || 'events, asked_for, parent_step, waits_for, wake_at) on public.core_tool_calls to %I', api_role);
      execute format('grant select (id, call_id, tool_name, status, result, effects, created_at, attempt, registry_version, idempotency_key, '
        || 'replay_of, duration) on public.core_tool_receipts to %I', api_role);
      execute format('grant select (call_id, seq, at, event, attempt) on public.core_tool_events to %I', api_role);
    end if;
  end loop;
end
$$;
select gem.grant_to('service_role', 'insert (created_by) on public.core_tool_calls'); -- a server that acts for a user
select gem.grant_to('gem_door', 'usage on schema gem');
select gem.grant_to('gem_door', 'execute on function gem.ended(uuid[]), gem.parked(uuid[])');
revoke all on all functions in schema gem from public;

do $$
begin
  if pg_notification_queue_usage() < 0.5 then
    notify pgrst, 'reload schema'; -- PostgREST keeps a copy of it
  end if;
end
$$;

-- The rights of frontends: the roles of gem.api_roles() that exist.
--
--   authenticated, gem_frontend
--                  list the tools that they may call. They insert calls, and set the columns that a frontend may set;
--                  created_by comes from their token. They read their own calls, with the receipts, progress and
--                  journals, without the columns about workers and other calls. They cancel their own calls. They read
--                  and answer the questions that are open to them.
--                  Where gem.limits allows it, they have schedules: see user_schedules.sql.
--   service_role   inserts and reads for anyone, and has schedules for anyone. It writes nothing else.
--   anon           has no rights.
--
-- The functions here run with the rights of their caller, so the rights on tables apply. Only list_tools runs with the
-- owner's rights. Callers may not use the schema gem, so these functions raise errors without gem.refuse. The only
-- caller's input in these errors is ids of type uuid.

-- Inserts a call and returns its id. A frontend that chooses the id can repeat a request whose answer was lost, and
-- gets the same id, even if a new call would now be refused. The function refuses an id that belongs to a different
-- call or to another user. awaited requests a notification when the call ends: see gem.tell_ended.
create or replace function public.enqueue_tool_call(tool_name text, input jsonb default '{}',
  idempotency_key text default null,
  session_id text default null, parent_call_id uuid default null, priority integer default 0,
    run_at timestamptz default null,
  id uuid default null, traceparent text default null, awaited boolean default null)
returns uuid language plpgsql set search_path = pg_catalog, pg_temp
  set enable_seqscan = off -- a plan made while the table was small would read it all
as $$
#variable_conflict use_variable
declare
  new_id uuid;
  there  boolean := false;
begin
  for i in 1..2 loop
    -- The owner of the tables sees the calls of all users, so this also compares the caller.
    select c.tool_name = enqueue_tool_call.tool_name and c.input = coalesce(enqueue_tool_call.input, '{}')
      and c.idempotency_key is not distinct from nullif(enqueue_tool_call.idempotency_key, '')
        and c.created_by is not distinct from public.gem_caller()
    into there from public.core_tool_calls c where c.id = enqueue_tool_call.id;
    if there then
      return id;
    end if;
    exit when there is not null or i = 2;
    begin
      insert into public.core_tool_calls as c (id, tool_name, input, idempotency_key, session_id, parent_call_id,
        priority, run_at, traceparent, awaited)
      values (id, tool_name, input, idempotency_key, session_id, parent_call_id, priority, run_at, traceparent, awaited)
      returning c.id into new_id;
      return new_id;
    exception
      when unique_violation then null; -- inserted concurrently, or another user's
      when foreign_key_violation then
        raise foreign_key_violation using message = format('parent_call_id is %s, which is no call of yours',
          parent_call_id);
    end;
  end loop;
  raise unique_violation using message = format('there is another call with the id %s', id),
    hint = 'A new call needs a new id. '
      'To repeat a request whose answer was lost, send the same tool_name, input and idempotency_key.';
end
$$;

-- Returns the receipt of a call without the name of its worker, or null if the call has none yet.
create or replace function public.get_receipt(call_id uuid) returns jsonb language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$
declare
  receipt jsonb;
begin
  select to_jsonb(r) into receipt from (
    select o.id, o.call_id, o.tool_name, o.status, o.result, o.effects, o.created_at, o.attempt, o.registry_version,
      o.idempotency_key,
      o.replay_of, o.duration
    from public.core_tool_receipts o where o.call_id = get_receipt.call_id) r;
  if receipt is null and not exists (select from public.core_tool_calls c where c.id = get_receipt.call_id) then
    -- HTTP status 404
    raise exception using errcode = 'PT404', message = format('call %s does not exist, or you may not see it',
      get_receipt.call_id);
  end if;
  return receipt;
end
$$;

-- Returns the tools of the registry in force that the caller may call, sorted by name. Returns all tools to
-- service_role and to sessions without a token.
create or replace function public.list_tools() returns table (name text, description text, input_schema jsonb,
  output_schema jsonb, hints jsonb,
  idempotency jsonb)
language sql stable security definer rows 50 set search_path = pg_catalog, pg_temp as $$
  select t.name, coalesce(t.entry ->> 'description', ''), t.entry -> 'input_schema', t.entry -> 'output_schema',
    coalesce(t.entry -> 'hints', '{}'),
    t.entry -> 'idempotency'
  from gem.tools t
  where t.frontends or coalesce(gem.token_claims() ->> 'role' = 'service_role', gem.token_claims() is null)
  order by t.name
$$;

-- Returns the calls among p_calls that have ended, for any created_by. A process in which many users wait calls it;
-- each user then reads the receipt with their own rights. It takes at most a thousand ids.
create or replace function gem.ended(p_calls uuid[]) returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog,
  pg_temp set enable_seqscan = off set jit = off as $$
begin
  if cardinality(p_calls) > 1000 then
    perform gem.refuse('check_violation', 'gem.ended takes at most 1000 calls, and got %s', null,
      cardinality(p_calls)::text);
  end if;
  return query select r.call_id from public.core_tool_receipts r where r.call_id = any (p_calls);
end
$$;

-- Returns the calls among p_calls that are parked until an answer or a child arrives: waiters should know that a person
-- may have to answer. It takes at most a thousand ids.
create or replace function gem.parked(p_calls uuid[]) returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog,
  pg_temp set enable_seqscan = off set jit = off as $$
begin
  if cardinality(p_calls) > 1000 then
    perform gem.refuse('check_violation', 'gem.parked takes at most 1000 calls, and got %s', null,
      cardinality(p_calls)::text);
  end if;
  return query select c.id from (
    -- by id: many calls may be waiting
    select a.id, a.status, a.waits_for from public.core_tool_calls a where a.id = any (p_calls) offset 0) c
  where c.status = 'waiting' and c.waits_for in ('answer', 'call');
end
$$;

-- PostgREST embeds along foreign keys, and receipts and events have none to calls. It accepts such a function instead:
-- select=id,status,core_tool_receipts(status,result). Only service_role can use them, because a function that takes a
-- whole row needs the right to read every column.
create or replace function public.core_tool_receipts(call public.core_tool_calls) returns setof
  public.core_tool_receipts rows 1
language sql stable as $$
  select r.* from public.core_tool_receipts r where r.call_id = call.id
$$;
create or replace function public.core_tool_events(call public.core_tool_calls) returns setof public.core_tool_events
  rows 5
language sql stable as $$
  select e.* from public.core_tool_events e where e.call_id = call.id order by e.seq
$$;

-- Returns the warnings that rules gave when the call ran, as a list of texts: select=status,result,warnings. Only
-- service_role can use it. A signed-in user reads select=status,result,rules:effects->rules, which has the warnings
-- among the verdicts.
create or replace function public.warnings(receipt public.core_tool_receipts) returns jsonb language sql stable as $$
  select coalesce(jsonb_path_query_array(receipt.effects, '$.rules.verdicts[*] ? (@.action == "warn").message'), '[]')
$$;

-- Returns the subject of the request's token, or null outside of a request and for a token without a subject.
-- Postgres parses a body of this form once, when the function is created, and copies it into the plans of the policies
-- below.
create or replace function public.gem_caller() returns text language sql stable
return nullif(nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub', '');

------------------------------------------------------------------------------------------------------------------------
-- Rights
------------------------------------------------------------------------------------------------------------------------

drop policy if exists gem_own_calls on public.core_tool_calls;
create policy gem_own_calls on public.core_tool_calls for select using (created_by = (select public.gem_caller()));
drop policy if exists gem_new_calls on public.core_tool_calls;
create policy gem_new_calls on public.core_tool_calls for insert with check (created_by = (select public.gem_caller()));
-- The offset makes Postgres look up the call of each row. Otherwise it may read all calls of the caller to find the
-- receipt of one.
drop policy if exists gem_own_receipts on public.core_tool_receipts;
create policy gem_own_receipts on public.core_tool_receipts for select using (
  exists (select from public.core_tool_calls c where c.id = call_id
    and c.created_by = (select public.gem_caller()) offset 0));
drop policy if exists gem_own_events on public.core_tool_events;
create policy gem_own_events on public.core_tool_events for select using (
  exists (select from public.core_tool_calls c where c.id = call_id
    and c.created_by = (select public.gem_caller()) offset 0));
drop policy if exists gem_own_progress on public.core_tool_progress;
create policy gem_own_progress on public.core_tool_progress for select using (
  exists (select from public.core_tool_calls c where c.id = call_id
    and c.created_by = (select public.gem_caller()) offset 0));

-- On Supabase, service_role bypasses row level security by an attribute. Elsewhere these policies admit it.
select gem.open_to('service_role', 'public.' || t, 'gem_all_for_service_role', 'for select to %I using (true)')
from unnest(array['core_tool_calls', 'core_tool_receipts', 'core_tool_events', 'core_tool_progress']) t;
select gem.open_to('service_role', 'public.core_tool_calls', 'gem_new_calls_for_service_role',
  'for insert to %I with check (true)');

-- Older Supabase projects grant all three roles rights on new tables and functions, so this revokes everything first.
do $$
declare
  api_role  text;
  functions constant text :=
    'public.enqueue_tool_call(text, jsonb, text, text, uuid, integer, timestamptz, uuid, text, boolean), '
    || 'public.get_receipt(uuid), public.cancel_tool_call(uuid), public.answer_tool_call(uuid, jsonb, text), '
    || 'public.find_open_questions(uuid[]), public.list_tools(), '
    || 'public.schedule_tool_call(text, text, text, jsonb, text, jsonb, text), '
    || 'public.pause_tool_schedule(text, text, text), public.resume_tool_schedule(text, text), '
    || 'public.remove_tool_schedule(text, text)';
  of_rows   constant text :=
    'public.core_tool_receipts(public.core_tool_calls), public.core_tool_events(public.core_tool_calls), '
    || 'public.warnings(public.core_tool_receipts)';
begin
  execute format('revoke all on function %s, %s from public', functions, of_rows);
  foreach api_role in array array(select gem.api_roles()) loop
    execute format('revoke all on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events, '
      || 'public.core_workers, public.core_registry_versions, public.core_rules_versions, public.core_hook_events, '
      || 'public.core_llm_versions, public.core_llm_requests, public.core_tool_progress, public.open_questions, '
        || 'public.tool_schedules from %I',
        api_role);
    execute format('revoke all on function %s, %s from %I', functions, of_rows, api_role);
    if api_role <> 'anon' then
      execute format('grant insert (id, tool_name, input, status, idempotency_key, session_id, parent_call_id, '
        || 'priority, run_at, traceparent, awaited) on public.core_tool_calls to %I', api_role);
      execute format('grant execute on function %s, gem.open_questions(uuid[]), gem.part_of(jsonb, text), '
        || 'gem.answer_schema(text, jsonb), gem.schedules_of_caller() to %I', functions, api_role);
      execute format('grant select on public.open_questions, public.core_tool_progress, public.tool_schedules '
        || 'to %I', api_role);
    end if;
    if api_role = 'service_role' then
      execute format('grant select on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events to %I',
        api_role);
      execute format('grant execute on function %s to %I', of_rows, api_role);
    elsif api_role <> 'anon' then
      -- These grants omit three things: seq, because it counts the calls of all users; the names of workers; and the
      -- data of events, because it names workers and other users' calls.
      execute format('grant select (id, tool_name, input, status, idempotency_key, session_id, parent_call_id, '
        || 'created_by, priority, run_at, traceparent, signed_in, attempt, claimed_at, error, cancel_requested_at, '
        || 'created_at, updated_at, computed_key, retries, losses, events, asked_for, answer_by, answer_others, '
        || 'answer_until, parent_step, waits_for, wake_at) on public.core_tool_calls to %I', api_role);
      execute format('grant select (id, call_id, tool_name, status, result, effects, created_at, attempt, '
        || 'registry_version, idempotency_key, replay_of, duration) on public.core_tool_receipts to %I', api_role);
      execute format('grant select (call_id, seq, at, event, attempt) on public.core_tool_events to %I', api_role);
    end if;
  end loop;
end
$$;
-- for a server that acts for a user
select gem.grant_to('service_role', 'insert (created_by) on public.core_tool_calls');
select gem.grant_to('gem_mcp', 'usage on schema gem');
select gem.grant_to('gem_mcp', 'execute on function gem.ended(uuid[]), gem.parked(uuid[])');
revoke all on all functions in schema gem from public;

do $$
begin
  if pg_notification_queue_usage() < 0.5 then
    notify pgrst, 'reload schema'; -- PostgREST caches the schema
  end if;
end
$$;

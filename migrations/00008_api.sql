-- +goose Up
--
-- The way in for frontends, made whole. 00006_frontends.sql says what they may do with the tables; here are
--
--   enqueue_tool_call   inserts a call and returns its id; safe to send again when it is given an id
--   get_receipt         the receipt of a call, or null while there is none: to poll where nothing is pushed
--   core_tool_receipts, core_tool_events
--                       of a call, so that PostgREST can embed them in a select on core_tool_calls
--   gem.limits          what a signed-in user may send, and how much of it may be open at once
--   traceparent         of the request, in the column of that name: where the frontend's trace goes on
--
-- and the receipts join the publication that Supabase's Realtime reads. The functions run with the rights of whoever calls
-- them: what the tables refuse, they refuse.
--
-- Functions that run as their owner look names up in pg_catalog first and in pg_temp last. With an empty search_path Postgres
-- looks for types in pg_temp first, and whoever may create one there would run as the owner: those of earlier files change.

set local lock_timeout = '3s'; -- whoever waits for this table behind a long transaction keeps all others waiting: gem migrate tries again

alter table public.core_tool_calls
  add column if not exists traceparent text; -- W3C trace context, version 00: the span in which the frontend made the call

-- One row. It bounds what comes with the token of a signed-in user; service_role, and SQL, have the wider bounds of
-- gem.before_insert_call.
create table if not exists gem.limits (
  only_row        boolean  primary key default true check (only_row),
  max_open_calls  integer  not null default 1000       check (max_open_calls between 1 and 1000000), -- of one created_by: queued, waiting, running
  max_input_bytes integer  not null default 262144     check (max_input_bytes > 0),                 -- of one input, as JSON text
  max_run_ahead   interval not null default '366 days' check (max_run_ahead between '0' and '1000 years'), -- from now to run_at
  min_priority    integer  not null default -10        check (min_priority <= 0),   -- each priority that was ever used costs
  max_priority    integer  not null default 10         check (max_priority >= 0)    -- every claim some microseconds
);
insert into gem.limits default values on conflict do nothing;

-- PostgREST tells how many rows a filter is estimated to give, and Postgres estimates from the rows of all users. What is not
-- known of a column can not be read from there.
alter table public.core_tool_calls
  alter column created_by set statistics 0, alter column session_id set statistics 0, alter column idempotency_key set statistics 0,
  alter column computed_key set statistics 0, alter column parent_call_id set statistics 0, alter column traceparent set statistics 0,
  alter column tool_name set statistics 0, alter column claimed_by set statistics 0;
alter table public.core_tool_receipts
  alter column idempotency_key set statistics 0, alter column tool_name set statistics 0, alter column worker_id set statistics 0;
alter table public.core_tool_events alter column worker_id set statistics 0;

-- +goose StatementBegin
do $$
declare
  of_earlier regprocedure;
begin
  for of_earlier in select p.oid from pg_proc p where p.pronamespace = 'gem'::regnamespace and 'search_path=""' = any (p.proconfig) loop
    execute format('alter function %s set search_path = pg_catalog, pg_temp', of_earlier);
  end loop;
end
$$;

-- As in 00006_frontends.sql; and an empty subject is none.
create or replace function public.gem_caller() returns text language sql stable set search_path = pg_catalog, pg_temp as $$
  select nullif(nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub', '')
$$;

------------------------------------------------------------------------------------------------------------------------
-- A new call. As in 00001_calls.sql, and: traceparent; an id that begins with the time, also where a bulk insert sends
-- null for it; a bound of the input's numbers, and of its size as text, which is what the worker gets; and gem.limits.
------------------------------------------------------------------------------------------------------------------------

create or replace function gem.before_insert_call() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  at     timestamptz := clock_timestamp();
  claims text        := nullif(current_setting('request.jwt.claims', true), '');
  header text;
  bytes  bigint;
begin
  -- A bulk insert through PostgREST sends null for what a row leaves out.
  if new.id is null then
    new.id := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
      substring(int8send((extract(epoch from at) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
  end if;
  new.input    := coalesce(new.input, '{}');
  new.status   := coalesce(new.status, 'queued');
  new.priority := coalesce(new.priority, 0);
  new.idempotency_key := nullif(new.idempotency_key, '');

  if new.status <> 'queued' then
    raise check_violation using message = format('status is %s on insert, and can only be queued', left(new.status, 50)),
      hint = 'Leave status out: the worker moves a call on.';
  end if;
  if coalesce(new.tool_name, '') = '' or length(new.tool_name) > 200 then
    raise check_violation using message = 'tool_name must be the name of a tool, of 1 to 200 characters, such as leads.create';
  end if;
  if jsonb_typeof(new.input) <> 'object' then
    raise check_violation using message = format('input must be a JSON object, and is %s', jsonb_typeof(new.input)),
      hint = 'Send {"field": value, …}; JSON as a string inside JSON is a string.';
  end if;
  -- Postgres keeps 1e131071 in a few bytes and writes it out in 131,072, and 0e-16383 in 16,385: such numbers are looked for
  -- before anything is written out.
  if exists (
    select from jsonb_path_query(new.input,
      'strict $.** ? (@.type() == "number" && (@ > 1e400 || @ < -1e400 || @ < 1e-400 && @ > -1e-400))') as odd (number)
    where odd.number::numeric <> 0 or scale(odd.number::numeric) > 400) then
    raise check_violation using message = 'input has a number beyond 1e400, or nearer to 0 than 1e-400', hint = 'Send it as text.';
  end if;
  bytes := octet_length(new.input::text);
  if bytes > 1048576 then
    raise check_violation using message = format('input takes %s bytes as JSON, and may take 1048576 (1 MiB)', bytes),
      hint = 'Store large content elsewhere and send a link to it.';
  end if;
  if length(new.idempotency_key) > 255 then
    raise check_violation using message = 'idempotency_key may have at most 255 characters';
  end if;
  if length(new.session_id) > 255 then
    raise check_violation using message = 'session_id may have at most 255 characters';
  end if;
  if new.priority not between -1000 and 1000 then
    raise check_violation using message = format('priority is %s, and must be from -1000 to 1000', new.priority);
  end if;
  if new.run_at > at + interval '366 days' then
    raise check_violation using message = format('run_at is %s, and may be at most 366 days ahead', new.run_at);
  end if;
  if new.traceparent !~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
    raise check_violation using message = 'traceparent must be a W3C trace context of version 00',
      hint = 'Such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, or leave it out.';
  end if;

  -- The past means now, and nobody moves ahead of others by naming it.
  new.run_at := greatest(new.run_at, at);
  if claims is not null then
    if claims::jsonb ->> 'role' is distinct from 'service_role' or new.created_by is null then
      new.created_by := nullif(claims::jsonb ->> 'sub', ''); -- service_role may act for another
    end if;
    header := nullif(current_setting('request.headers', true), '')::jsonb ->> 'traceparent';
    if new.traceparent is null and header ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
      new.traceparent := header;
    end if;
  end if;
  if length(new.created_by) > 255 then
    raise check_violation using message = 'created_by may have at most 255 characters';
  end if;

  new.created_at := at;
  new.updated_at := at;
  new.attempt := 0;
  new.claimed_by := null;
  new.claimed_at := null;
  new.error := null;
  new.cancel_requested_at := null;
  new.computed_key := null;
  new.retries := 0;
  new.losses := 0;
  new.events := 1;
  return new;
end
$$;

create or replace function gem.after_insert_calls() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  claims jsonb := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
  caller text  := nullif(claims ->> 'sub', '');
  most   gem.limits;
  worst  record;
begin
  if claims is not null and claims ->> 'role' is distinct from 'service_role' then
    select * into most from gem.limits;
    select max(octet_length(i.input::text)) as bytes, max(i.run_at) as run_at, min(i.priority) as lowest, max(i.priority) as highest, count(*) as calls into worst
    from inserted i;
    if worst.bytes > most.max_input_bytes then
      raise check_violation using message = format('input takes %s bytes as JSON, and may take %s', worst.bytes, most.max_input_bytes),
        hint = 'Store large content elsewhere and send a link to it.';
    end if;
    if worst.run_at > clock_timestamp() + most.max_run_ahead then
      raise check_violation using message = format('run_at is %s, and may be at most %s ahead', worst.run_at, most.max_run_ahead);
    end if;
    if worst.lowest < most.min_priority or worst.highest > most.max_priority then
      raise check_violation using message = format('priority is %s, and must be from %s to %s',
        case when worst.highest > most.max_priority then worst.highest else worst.lowest end, most.min_priority, most.max_priority);
    end if;
    if exists (
      select from inserted i where i.parent_call_id is not null
        and not exists (select from public.core_tool_calls p where p.id = i.parent_call_id and p.created_by = caller)) then
      raise foreign_key_violation using message = 'parent_call_id names no call of yours';
    end if;
    if worst.calls > 0 then
      -- One request of a caller after another, or those that come together would each count without the others.
      perform pg_advisory_xact_lock(hashtextextended('gem.limits ' || caller, 0));
      if most.max_open_calls < (
        select count(*) from (
          select from public.core_tool_calls c
          where c.created_by = caller and c.status in ('queued', 'waiting', 'running')
          limit most.max_open_calls + 1) open) then
        raise exception using errcode = 'PT429', -- PostgREST answers with the HTTP status 429
          message = format('too many open calls: you may have %s that have not ended', most.max_open_calls),
          hint = 'Wait until some have their receipt, or cancel them.';
      end if;
    end if;
  end if;

  insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
  select id, 1, created_at, 'queued', 0, jsonb_build_object('run_at', run_at, 'priority', priority) from inserted;

  insert into gem.priorities
  select distinct priority from inserted i where not exists (select from gem.priorities p where p.priority = i.priority)
  order by priority -- or two that insert the same would wait for each other
  on conflict do nothing;

  perform gem.wake_workers();
  return null;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- What frontends call
------------------------------------------------------------------------------------------------------------------------

-- Inserts a call and returns its id. Whoever chooses the id may send the same request again when its answer was lost, and
-- gets the same id back; another call under that id is refused.
create or replace function public.enqueue_tool_call(tool_name text, input jsonb default '{}', idempotency_key text default null,
  session_id text default null, parent_call_id uuid default null, priority integer default 0, run_at timestamptz default null,
  id uuid default null)
returns uuid language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  new_id uuid;
begin
  insert into public.core_tool_calls as c (id, tool_name, input, idempotency_key, session_id, parent_call_id, priority, run_at)
  values (id, tool_name, input, idempotency_key, session_id, parent_call_id, priority, run_at)
  returning c.id into new_id;
  return new_id;
exception
  when unique_violation then
    perform from public.core_tool_calls c
    where c.id = enqueue_tool_call.id and c.tool_name = enqueue_tool_call.tool_name and c.input = coalesce(enqueue_tool_call.input, '{}')
      and c.idempotency_key is not distinct from nullif(enqueue_tool_call.idempotency_key, '');
    if found then
      return id;
    end if;
    raise unique_violation using message = format('there is another call with the id %s', id),
      hint = 'A new call needs a new id. The same tool_name, input and idempotency_key repeat a request whose answer was lost.';
  when foreign_key_violation then
    raise foreign_key_violation using message = format('parent_call_id is %s, which is no call of yours', parent_call_id);
end
$$;

-- The receipt of a call, or null while it has none.
create or replace function public.get_receipt(call_id uuid) returns jsonb language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  receipt jsonb;
begin
  select to_jsonb(r) into receipt from public.core_tool_receipts r where r.call_id = get_receipt.call_id;
  if receipt is null and not exists (select from public.core_tool_calls c where c.id = get_receipt.call_id) then
    raise exception using errcode = 'PT404', -- PostgREST answers with the HTTP status 404
      message = format('there is no call %s that you could see', get_receipt.call_id);
  end if;
  return receipt;
end
$$;

-- Nothing refers from receipts and events to calls by a foreign key, which is what PostgREST looks for. One of these it
-- takes in its place: select=id,status,core_tool_receipts(status,result).
create or replace function public.core_tool_receipts(call public.core_tool_calls) returns setof public.core_tool_receipts rows 1
language sql stable as $$
  select r.* from public.core_tool_receipts r where r.call_id = call.id
$$;
create or replace function public.core_tool_events(call public.core_tool_calls) returns setof public.core_tool_events rows 5
language sql stable as $$
  select e.* from public.core_tool_events e where e.call_id = call.id order by e.seq
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued | waiting → failed, running → running: cancelled. As in 00002_state_machine.sql, but for the receipt's id, which
-- begins with the time, and the HTTP status of its refusal.
------------------------------------------------------------------------------------------------------------------------

create or replace function public.cancel_tool_call(id uuid) returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at      timestamptz := clock_timestamp();
  claims  jsonb       := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
  found_call record;
  failure jsonb;
begin
  select c.id, c.status, c.created_by, c.attempt, c.losses, coalesce(c.tool_name, '') as tool_name, c.cancel_requested_at into found_call
  from public.core_tool_calls c where c.id = cancel_tool_call.id for update;
  if found_call.id is null
    or (claims is not null and claims ->> 'role' is distinct from 'service_role'
        and (found_call.created_by = nullif(claims ->> 'sub', '')) is not true) then -- what nobody owns is nobody's to cancel
    raise exception using errcode = 'PT404', message = format('there is no call %s that you could cancel', cancel_tool_call.id);
  end if;

  if found_call.status = 'running' then
    if found_call.cancel_requested_at is null then
      with asked as (
        update public.core_tool_calls c set cancel_requested_at = at, updated_at = at, events = c.events + 1
        where c.id = found_call.id returning c.events, c.attempt
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt)
      select found_call.id, events, at, 'cancel_requested', attempt from asked;
      -- Whoever holds it listens, or sees it at its next heartbeat.
      perform pg_notify('gem_calls', 'cancel');
    end if;
    return 'requested';
  end if;
  if found_call.status not in ('queued', 'waiting') then
    return found_call.status;
  end if;

  failure := jsonb_build_object('error_code', 'cancelled',
    'message', case when found_call.losses > 0
      then 'The call was cancelled while it waited to run again. What the attempts did whose workers were lost is not known.'
      else 'The call was cancelled before it ran.' end,
    'details', jsonb_build_object('lost_attempts', found_call.losses));
  with ended as (
    update public.core_tool_calls c
    set status = 'failed', error = failure, computed_key = null, cancel_requested_at = coalesce(c.cancel_requested_at, at), updated_at = at,
        events = c.events + 1
    where c.id = found_call.id returning c.events, c.attempt
  ), receipt as (
    insert into public.core_tool_receipts as r (call_id, tool_name, status, result, effects, created_at, attempt)
    select found_call.id, found_call.tool_name, 'failed', jsonb_build_object('error', failure), '{}', at, ended.attempt from ended
    returning r.id
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
  select found_call.id, ended.events, at, 'failed', ended.attempt, jsonb_build_object('receipt_id', receipt.id) from ended, receipt;
  return 'cancelled';
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued → running. As in 00007_hot_path.sql, and with the frontend's trace, and the time that the call was ready before.
------------------------------------------------------------------------------------------------------------------------

do $$
begin
  if not exists (select from pg_attribute where attrelid = 'gem.claimed_call'::regclass and attname = 'traceparent') then
    alter type gem.claimed_call add attribute traceparent text, add attribute waited interval;
  end if;
end
$$;

create or replace function gem.claim(p_worker text, p_limit integer, p_suspect boolean, p_marks jsonb default '{}')
returns setof gem.claimed_call language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off -- the order must come from the index
  set jit = off -- so forced, a plan looks dear, and Postgres would compile it for longer than it runs
as $$
declare
  at        timestamptz := clock_timestamp();
  level     integer;
  mark      timestamptz;
  picked    uuid[];
  suspects  uuid[];
  suspect   uuid; -- the one that is claimed
  found_ids uuid[] := '{}';
begin
  if not exists (select from public.core_workers w where w.worker_id = p_worker and w.stopped_at is null and w.alive_until > at) then
    raise exception using errcode = 'GM002', message = format('worker %s claims without a heartbeat', p_worker);
  end if;

  for level in select p.priority from gem.priorities p order by p.priority desc loop
    exit when cardinality(found_ids) >= p_limit;
    mark := coalesce((p_marks ->> level::text)::timestamptz, '-infinity');
    loop
      select coalesce(array_agg(ready.id), '{}'), array_agg(ready.id) filter (where ready.losses >= 2) into picked, suspects
      from (
        select c.id, c.losses from public.core_tool_calls c
        where c.status = 'queued' and c.priority = level and c.run_at >= mark and c.run_at <= at
          and (c.losses < 2 or p_suspect and coalesce(c.id = suspect, true))
        order by c.priority, c.run_at, c.seq
        limit p_limit - cardinality(found_ids)
        for update skip locked) ready;
      exit when suspects is null or cardinality(suspects) = 1 and (suspect is null or suspects[1] = suspect);
      suspect := suspects[1]; -- and once more without the others
    end loop;
    found_ids := found_ids || picked;
    suspect := coalesce(suspect, suspects[1]);
  end loop;

  return query
  with claimed as (
    update public.core_tool_calls c
    set status = 'running', attempt = c.attempt + 1, claimed_by = p_worker, claimed_at = at, updated_at = at, events = c.events + 1
    where c.id = any (found_ids) -- locked, and queued
    returning c.*
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id)
    select c.id, c.events, at, 'claimed', c.attempt, p_worker from claimed c
  )
  select c.id, coalesce(c.tool_name, ''), coalesce(c.input, 'null')::text, c.attempt, c.idempotency_key, c.session_id, c.created_by,
         c.priority, c.run_at, c.seq, c.retries, c.losses, c.cancel_requested_at is not null, c.traceparent, at - c.run_at
  from claimed c;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- Who may
------------------------------------------------------------------------------------------------------------------------

do $$
declare
  api       constant text[] := array(select rolname from pg_roles where rolname in ('anon', 'authenticated', 'service_role'));
  functions constant text   := 'public.enqueue_tool_call(text, jsonb, text, text, uuid, integer, timestamptz, uuid), '
    || 'public.get_receipt(uuid), public.core_tool_receipts(public.core_tool_calls), public.core_tool_events(public.core_tool_calls)';
  api_role  text;
begin
  execute format('revoke all on function %s from public', functions);
  foreach api_role in array api loop -- older projects grant new functions to all three by default
    execute format('revoke all on function %s from %I', functions, api_role);
    if api_role <> 'anon' then
      execute format('grant execute on function %s to %I', functions, api_role);
      execute format('grant insert (traceparent) on public.core_tool_calls to %I', api_role);
    end if;
  end loop;

  -- Realtime sends a receipt to whoever may select it.
  if exists (select from pg_publication where pubname = 'supabase_realtime' and not puballtables)
    and not exists (select from pg_publication_tables
                    where pubname = 'supabase_realtime' and schemaname = 'public' and tablename = 'core_tool_receipts') then
    begin
      alter publication supabase_realtime add table public.core_tool_receipts;
    exception when insufficient_privilege then
      raise notice 'the receipts did not join the publication supabase_realtime: its owner can add public.core_tool_receipts to it';
    end;
  end if;
end
$$;
-- +goose StatementEnd

-- PostgREST keeps a picture of the schema, and is told to take it anew.
notify pgrst, 'reload schema';

-- +goose Up
--
-- The arrows of the picture in 00001_calls.sql, one function each, from a call's claim to its end. They are the only code
-- that moves a call: each checks that the arrow starts where it should, moves the row, and writes the arrow's event, in
-- one statement of the worker and so in one transaction.
--
-- Whoever moves a running call says which attempt it is: (call, attempt, worker). Where that attempt no longer holds the
-- call, the function raises GM001, and with it goes the transaction it is called in: a worker that was paused, and wakes
-- up when the call is another's, writes nothing. Whoever claims must be alive by its own heartbeats, or the function raises
-- GM002: what a dead worker claims would be taken from it at once.
--
-- Time is Postgres's clock alone.

-- What a worker gets with a call.
-- +goose StatementBegin
do $$
begin
  if to_regtype('gem.claimed_call') is null then
    create type gem.claimed_call as (
      id uuid, tool_name text, input text, attempt integer, idempotency_key text, session_id text, created_by text,
      priority integer, run_at timestamptz, seq bigint, retries integer, losses integer, cancel_requested boolean
    );
  end if;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued → running
------------------------------------------------------------------------------------------------------------------------

-- Claims up to p_limit calls that may run now. Higher priority first, then the earlier run_at, then insert order. Rows
-- that another claim has locked are skipped, so claims never wait for one another.
--
-- p_marks may say, for a priority, from which run_at on to look: {"0": "2026-01-01T00:00:00Z"}. While an old snapshot
-- keeps vacuum from removing the index entries of calls that were claimed already, a claim without marks walks them all.
-- A mark hides what lies before it, so a worker looks without marks every few seconds.
--
-- A call that lost two workers is suspected of killing them. It is claimed only by a worker that runs no other such call
-- (p_suspect), so that what died beside it twice does not die beside it a third time.
create or replace function gem.claim(p_worker text, p_limit integer, p_suspect boolean, p_marks jsonb default '{}')
returns setof gem.claimed_call language plpgsql security definer set search_path = ''
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off -- the order must come from the index
as $$
declare
  at     timestamptz := clock_timestamp();
  level  integer;
  mark   timestamptz;
  picked uuid[];
  found_ids uuid[] := '{}';
begin
  if not exists (select from public.core_workers w where w.worker_id = p_worker and w.stopped_at is null and w.alive_until > at) then
    raise exception using errcode = 'GM002', message = format('worker %s claims without a heartbeat', p_worker);
  end if;

  if p_suspect and p_limit > 0 then
    found_ids := array(
      select c.id from public.core_tool_calls c
      where c.status = 'queued' and c.losses >= 2 and c.run_at <= at
      order by c.priority desc, c.run_at, c.seq
      limit 1
      for update skip locked);
  end if;

  for level in select p.priority from gem.priorities p order by p.priority desc loop
    exit when cardinality(found_ids) >= p_limit;
    mark := coalesce((p_marks ->> level::text)::timestamptz, '-infinity');
    picked := array(
      select c.id from public.core_tool_calls c
      where c.status = 'queued' and c.losses < 2 and c.priority = level and c.run_at >= mark and c.run_at <= at
      order by c.priority, c.run_at, c.seq
      limit p_limit - cardinality(found_ids)
      for update skip locked);
    found_ids := found_ids || picked;
  end loop;

  return query
  with claimed as (
    update public.core_tool_calls c
    set status = 'running', attempt = c.attempt + 1, claimed_by = p_worker, claimed_at = at, updated_at = at, events = c.events + 1
    where c.id = any (found_ids) and c.status = 'queued'
    returning c.*
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id)
    select c.id, c.events, at, 'claimed', c.attempt, p_worker from claimed c
  )
  select c.id, coalesce(c.tool_name, ''), coalesce(c.input, 'null')::text, c.attempt, c.idempotency_key, c.session_id, c.created_by,
         c.priority, c.run_at, c.seq, c.retries, c.losses, c.cancel_requested_at is not null
  from claimed c;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- running, with a key: run, repeat an earlier success, or wait for whoever runs with that key now
------------------------------------------------------------------------------------------------------------------------

-- Says what the attempt is to do with its idempotency key:
--   run   it holds the key, and no other call runs with it until this one ends
--   hit   the key succeeded before: receipt_id and result are that receipt's, and the call is to be finished with them
--   wait  another running call holds the key: this call was parked (running → waiting) and is no longer the attempt's
create or replace function gem.hold_key(p_call uuid, p_attempt integer, p_worker text, p_key text,
  out verdict text, out receipt_id uuid, out result jsonb)
language plpgsql security definer set search_path = '' as $$
declare
  at     timestamptz := clock_timestamp();
  holder uuid;
begin
  loop
    -- The unique index over running keys lets one attempt pass; the others come here again or wait.
    begin
      update public.core_tool_calls c set computed_key = p_key
      where c.id = p_call and c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running';
      if not found then
        perform gem.raise_not_held(p_call, p_attempt, p_worker);
      end if;
      -- Looked up while holding the key: nobody can succeed with it from here on.
      select r.id, r.result into receipt_id, result from public.core_tool_receipts r
      where r.idempotency_key = p_key and r.status = 'succeeded' and r.replay_of is null;
      verdict := case when receipt_id is null then 'run' else 'hit' end;
      return;
    exception when unique_violation then
      -- Locking the holder keeps it from ending before this call is parked where its end will look.
      select c.id into holder from public.core_tool_calls c
      where c.computed_key = p_key and c.status = 'running' and c.id <> p_call for update;
      continue when holder is null;

      with parked as (
        update public.core_tool_calls c
        set status = 'waiting', computed_key = p_key, claimed_by = null, claimed_at = null, updated_at = at, events = c.events + 1
        where c.id = p_call and c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running'
        returning c.id, c.events, c.attempt
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      select id, events, at, 'waiting', attempt, p_worker, jsonb_build_object('key', p_key, 'held_by', holder) from parked;
      if not found then
        perform gem.raise_not_held(p_call, p_attempt, p_worker);
      end if;
      verdict := 'wait';
      return;
    end;
  end loop;
end
$$;

-- waiting → queued, when the call that held the key has left the state running. After a success all of them come, since
-- each is a hit; else the first alone, which then holds the key itself.
create or replace function gem.wake_waiting(p_key text, p_all boolean, p_worker text) returns void
language plpgsql security definer set search_path = '' as $$
declare
  at timestamptz := clock_timestamp();
begin
  with woken as (
    update public.core_tool_calls c set status = 'queued', computed_key = null, updated_at = at, events = c.events + 1
    where c.id in (
      select w.id from public.core_tool_calls w where w.status = 'waiting' and w.computed_key = p_key
      order by w.priority desc, w.seq limit case when p_all then null else 1 end for update)
    returning c.id, c.events, c.attempt
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id)
  select id, events, at, 'woken', attempt, p_worker from woken;
  if found then
    perform gem.wake_workers('again');
  end if;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- running → succeeded | failed | not_configured
------------------------------------------------------------------------------------------------------------------------

-- Ends a call: its status, its receipt and its last event, together. Where the handler took the transaction, this is
-- called in it, as its last statement before the commit. Returns the receipt's id.
create or replace function gem.finish(p_call uuid, p_attempt integer, p_worker text, p_status text, p_result jsonb, p_effects jsonb,
  p_registry_version text, p_replay_of uuid default null)
returns uuid language plpgsql security definer set search_path = '' as $$
declare
  at      timestamptz := clock_timestamp();
  receipt uuid        := gen_random_uuid();
  call    record;
begin
  update public.core_tool_calls c
  set status = p_status, error = p_result -> 'error', updated_at = at, events = c.events + 1
  where c.id = p_call and c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running'
  returning coalesce(c.tool_name, '') as tool_name, c.claimed_at, c.events, c.computed_key into call;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;

  insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id,
    registry_version, idempotency_key, replay_of, duration)
  values (receipt, p_call, call.tool_name, p_status, p_result, p_effects, at, p_attempt, p_worker,
    p_registry_version, call.computed_key, p_replay_of, at - call.claimed_at);

  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call, call.events, at, p_status, p_attempt, p_worker, jsonb_build_object('receipt_id', receipt));

  if call.computed_key is not null then
    perform gem.wake_waiting(call.computed_key, p_status = 'succeeded', p_worker);
  end if;
  return receipt;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- running → queued: retried, released
------------------------------------------------------------------------------------------------------------------------

-- Puts a call back after a transient error, to run again after a pause: p_backoff, doubled with each attempt that was
-- spent, at most 15 minutes, of which a random part between a half and the whole is waited. Lost attempts count as spent
-- too. Returns when it may run again, or null, changing nothing, when p_max_attempts are spent.
create or replace function gem.retry(p_call uuid, p_attempt integer, p_worker text, p_error jsonb, p_max_attempts integer, p_backoff interval)
returns timestamptz language plpgsql security definer set search_path = '' as $$
declare
  at    timestamptz := clock_timestamp();
  again timestamptz;
  held  record;
begin
  select c.retries + c.losses as spent, c.computed_key into held from public.core_tool_calls c
  where c.id = p_call and c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running' for update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  if held.spent + 1 >= p_max_attempts then
    return null;
  end if;
  again := at + least(p_backoff * 2 ^ held.spent, interval '15 minutes') * (0.5 + random() / 2);

  with freed as (
    update public.core_tool_calls c
    set status = 'queued', run_at = again, retries = c.retries + 1, computed_key = null, claimed_by = null, claimed_at = null,
        updated_at = at, events = c.events + 1
    where c.id = p_call
    returning c.events
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  select p_call, events, at, 'retried', p_attempt, p_worker, jsonb_build_object('run_at', again, 'error', p_error) from freed;

  if held.computed_key is not null then
    perform gem.wake_waiting(held.computed_key, false, p_worker);
  end if;
  return again;
end
$$;

-- Hands a call over: the worker stops, and what the attempt did so far is nothing, or gone with its transaction, or may be
-- done again. The call keeps its place in the queue.
create or replace function gem.release(p_call uuid, p_attempt integer, p_worker text)
returns void language plpgsql security definer set search_path = '' as $$
declare
  at   timestamptz := clock_timestamp();
  held record;
begin
  select c.computed_key into held from public.core_tool_calls c
  where c.id = p_call and c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running' for update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;

  with freed as (
    update public.core_tool_calls c
    set status = 'queued', computed_key = null, claimed_by = null, claimed_at = null, updated_at = at, events = c.events + 1
    where c.id = p_call
    returning c.events
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id)
  select p_call, events, at, 'released', p_attempt, p_worker from freed;

  if held.computed_key is not null then
    perform gem.wake_waiting(held.computed_key, false, p_worker);
  end if;
  perform gem.wake_workers('again');
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued | waiting → failed, running → running: cancelled
------------------------------------------------------------------------------------------------------------------------

-- In the schema public, for frontends to call. Asks for a call's end. Returns what it came to: `cancelled` when the call ended at once, `requested` when it is running,
-- or the status in which it had ended before. A caller with a token can cancel what it created, and service_role anything.
create or replace function public.cancel_tool_call(id uuid) returns text language plpgsql security definer set search_path = '' as $$
declare
  at      timestamptz := clock_timestamp();
  claims  jsonb       := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
  receipt uuid        := gen_random_uuid();
  found_call record;
  failure jsonb;
begin
  select c.id, c.status, c.created_by, c.attempt, c.losses, coalesce(c.tool_name, '') as tool_name, c.cancel_requested_at into found_call
  from public.core_tool_calls c where c.id = cancel_tool_call.id for update;
  if found_call.id is null
    or (claims is not null and claims ->> 'role' is distinct from 'service_role'
        and found_call.created_by is distinct from claims ->> 'sub') then
    raise no_data_found using message = format('there is no call %s that you could cancel', cancel_tool_call.id);
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
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
    select found_call.id, events, at, 'failed', attempt, jsonb_build_object('receipt_id', receipt) from ended
  )
  insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt)
  select receipt, found_call.id, found_call.tool_name, 'failed', jsonb_build_object('error', failure), '{}', at, attempt from ended;
  return 'cancelled';
end
$$;

create or replace function gem.raise_not_held(p_call uuid, p_attempt integer, p_worker text) returns void language plpgsql as $$
begin
  raise exception using errcode = 'GM001',
    message = format('call %s is not held by attempt %s of worker %s', p_call, p_attempt, p_worker);
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- Workers: who is alive, and what the dead leave behind (running → queued: lost; waiting → queued: woken)
------------------------------------------------------------------------------------------------------------------------

create or replace function gem.start_worker(p_worker text, p_concurrency integer, p_gem_version text, p_registry_version text,
  p_dead_after interval)
returns void language sql security definer set search_path = '' as $$
  delete from public.core_workers where coalesce(stopped_at, heartbeat_at) < clock_timestamp() - interval '7 days';
  insert into public.core_workers (worker_id, concurrency, gem_version, registry_version, alive_until)
  values (p_worker, p_concurrency, p_gem_version, p_registry_version, clock_timestamp() + p_dead_after);
$$;

create or replace function gem.stop_worker(p_worker text) returns void language sql security definer set search_path = '' as $$
  update public.core_workers set stopped_at = clock_timestamp(), wants_wake = false where worker_id = p_worker;
$$;

-- A worker that has free slots and found nothing asks to be notified of the next insert.
create or replace function gem.want_wake(p_worker text, p_wanted boolean) returns void language sql security definer set search_path = '' as $$
  update public.core_workers set wants_wake = p_wanted where worker_id = p_worker;
$$;

-- Says that the worker lives, and will for p_dead_after without another word; returns the attempts it holds. The calls of
-- workers that are dead by now, stopped, or never were, go back to the queue. A worker that was dead itself until now judges
-- nobody: after an outage of the database all are silent, and none of them is dead.
create or replace function gem.heartbeat(p_worker text, p_dead_after interval)
returns table (call_id uuid, attempt integer, cancel_requested boolean) language plpgsql security definer set search_path = '' as $$
declare
  at       timestamptz := clock_timestamp();
  previous timestamptz;
begin
  select w.alive_until into previous from public.core_workers w where w.worker_id = p_worker for update;
  update public.core_workers w set heartbeat_at = at, alive_until = at + p_dead_after, stopped_at = null where w.worker_id = p_worker;
  if previous > at then
    perform gem.recover(p_worker);
  end if;
  return query
  select c.id, c.attempt, c.cancel_requested_at is not null from public.core_tool_calls c where c.status = 'running' and c.claimed_by = p_worker;
end
$$;

create or replace function gem.recover(p_worker text) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  at    timestamptz := clock_timestamp();
  keys  text[];
  count integer;
begin
  -- What it does to the rest of the queue is bounded: a thousand calls a step, and the next heartbeat takes the next.
  with orphan as (
    select c.id, c.claimed_by, c.computed_key from public.core_tool_calls c
    where c.status = 'running' and not exists (
      select from public.core_workers w
      where w.worker_id = c.claimed_by and w.stopped_at is null and w.alive_until > at)
    limit 1000 for update of c skip locked
  ), freed as (
    update public.core_tool_calls c
    set status = 'queued', losses = c.losses + 1, computed_key = null, claimed_by = null, claimed_at = null,
        updated_at = at, events = c.events + 1
    from orphan where c.id = orphan.id
    returning c.id, c.events, c.attempt, orphan.claimed_by as lost_worker, orphan.computed_key as freed_key
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select id, events, at, 'lost', attempt, p_worker, jsonb_build_object('lost_worker', lost_worker) from freed
  )
  select count(*), array_agg(freed_key) filter (where freed_key is not null) into count, keys from freed;

  -- A call that waits for a key which nobody holds: its holder was lost, or the one that was to hold it next left.
  perform gem.wake_waiting(k.computed_key, false, p_worker)
  from (
    select unnest(keys)
    union
    select distinct w.computed_key from public.core_tool_calls w
    where w.status = 'waiting' and w.updated_at < at - interval '5 seconds' and not exists (
      select from public.core_tool_calls h where h.status = 'running' and h.computed_key = w.computed_key)
  ) k (computed_key);

  if count > 0 then
    perform gem.wake_workers('again');
  end if;
  return count;
end
$$;

-- Records the registry that a worker is about to run with, and returns what stands under its version: the same, or what
-- another worker recorded there before.
create or replace function gem.record_registry(p_version text, p_sha256 text, p_registry jsonb)
returns table (sha256 text, registry jsonb) language plpgsql security definer set search_path = '' as $$
begin
  insert into public.core_registry_versions (version, sha256, registry) values (p_version, p_sha256, p_registry) on conflict do nothing;
  return query select v.sha256, v.registry from public.core_registry_versions v where v.version = p_version;
end
$$;
-- +goose StatementEnd

revoke all on all functions in schema gem from public;
revoke all on function public.cancel_tool_call(uuid) from public;

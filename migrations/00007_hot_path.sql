-- +goose Up
--
-- What every call passes through, made cheap; nothing that holds of a call changes. These functions replace those of the
-- same name in 00002_state_machine.sql, and the arrows are the same.
--
-- 1. A statement that moves a running call finds it by its id alone. With statistics from a quiet hour Postgres may expect
--    few running calls, and take the index over them, which holds an entry for every call since the last vacuum.
-- 2. What must hold of a row is asked by triggers, where it was asked by check constraints: Postgres reads the text of a
--    constraint anew in each statement, and compiles a function once a session.
-- 3. Heartbeats ask for the calls that the worker knows to hold, by id, and recovery looks at the workers that died
--    lately. Both looked over all running calls before, and under an old snapshot over all that ever ran since.
-- 4. Ids begin with the time (UUID version 7). A random one lands anywhere in an index, and with millions of calls behind
--    it each lands on a page of its own, that is read for it, and written whole into the WAL after each checkpoint.

-- A random UUID with the milliseconds since 1970 in its first 48 bits, and its version. Written out, since a default runs
-- with the rights of whoever inserts.
alter table public.core_tool_calls alter column id set default encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
  substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
alter table public.core_tool_receipts alter column id set default encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
  substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;

------------------------------------------------------------------------------------------------------------------------
-- What must hold of a row
------------------------------------------------------------------------------------------------------------------------

-- +goose StatementBegin

-- A call that has ended stays as it is, and one in another state has what that state needs. Claiming is not asked: it
-- writes no more than a holder.
create or replace function gem.check_call_change() returns trigger language plpgsql as $$
begin
  if old.status in ('succeeded', 'failed', 'not_configured') then
    raise insufficient_privilege using message = 'update on core_tool_calls is refused: the call has ended, and its receipt stands';
  end if;
  if new.status in ('succeeded', 'failed', 'not_configured') then
    if new.attempt >= 0 and new.events >= 1 then
      return new;
    end if;
  elsif new.status = 'running' then
    if new.claimed_by is not null and new.claimed_at is not null and new.attempt >= 1 then
      return new;
    end if;
  elsif new.status = 'queued' then
    if new.claimed_by is null and new.claimed_at is null and new.retries >= 0 and new.losses >= 0 then
      return new;
    end if;
  elsif new.status = 'waiting' then
    if new.claimed_by is null and new.claimed_at is null and new.computed_key is not null then
      return new;
    end if;
  end if;
  raise check_violation using
    message = format('call %s can not be %s as it is', old.id, left(new.status, 50)),
    detail = format('claimed_by %s, claimed_at %s, attempt %s, computed_key %s, retries %s, losses %s, events %s',
      new.claimed_by, new.claimed_at, new.attempt, new.computed_key, new.retries, new.losses, new.events),
    hint = 'Calls are moved by the functions of the schema gem alone.';
end
$$;

-- A receipt has what its outcome needs.
create or replace function gem.check_receipt() returns trigger language plpgsql as $$
begin
  if new.replay_of is not null and (new.status <> 'succeeded' or new.idempotency_key is null) then
    raise check_violation using message = 'a receipt that repeats another is a success with a key';
  end if;
  if new.status = 'succeeded' then
    if new.result is not null then
      return new;
    end if;
  elsif new.status = 'failed' then
    if new.result -> 'error' ->> 'error_code' is not null and new.result -> 'error' ->> 'message' is not null then
      return new;
    end if;
  elsif new.status = 'not_configured' then
    if new.result ->> 'status' = 'not_configured' and new.result ->> 'reason' is not null then
      return new;
    end if;
  end if;
  raise check_violation using message = format('the result does not fit a receipt with the status %s', left(new.status, 50)),
    hint = 'failed needs error.error_code and error.message; not_configured needs status and reason.';
end
$$;
-- +goose StatementEnd

drop trigger if exists gem_final_stays on public.core_tool_calls;
drop trigger if exists gem_state_holds on public.core_tool_calls;
create trigger gem_state_holds before update of id, status, tool_name, input, error, attempt, claimed_by, claimed_at, created_by,
    computed_key, retries, losses, events
  on public.core_tool_calls for each row when (old.status <> 'queued' or new.status <> 'running')
  execute function gem.check_call_change();
alter table public.core_tool_calls
  drop constraint if exists gem_calls_status,
  drop constraint if exists gem_calls_held,
  drop constraint if exists gem_calls_counts;

drop trigger if exists gem_outcome_holds on public.core_tool_receipts;
create trigger gem_outcome_holds before insert on public.core_tool_receipts for each row execute function gem.check_receipt();
alter table public.core_tool_receipts
  drop constraint if exists gem_receipts_status,
  drop constraint if exists gem_receipts_result,
  drop constraint if exists gem_receipts_replay;

-- The functions write the words of the journal and its numbers, and both beside the call that they move, in one statement;
-- gem audit reads them back. What the references kept from happening is refused below: that a call goes away alone.
alter table public.core_tool_events
  drop constraint if exists gem_events_call,
  drop constraint if exists core_tool_events_seq_check,
  drop constraint if exists core_tool_events_event_check,
  drop constraint if exists core_tool_events_attempt_check;
alter table public.core_tool_receipts drop constraint if exists gem_receipts_call;
drop trigger if exists gem_removed_whole on public.core_tool_calls;
create trigger gem_removed_whole before delete on public.core_tool_calls
  for each row execute function gem.refuse_change('a call leaves with its receipt and its journal: see gem prune');
drop trigger if exists gem_not_emptied on public.core_tool_calls;
create trigger gem_not_emptied before truncate on public.core_tool_calls
  for each statement execute function gem.refuse_change('a call leaves with its receipt and its journal: see gem prune');

-- +goose StatementBegin
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
      where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false);
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
        where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
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

------------------------------------------------------------------------------------------------------------------------
-- running → succeeded | failed | not_configured
------------------------------------------------------------------------------------------------------------------------

-- Ends a call: its status, its last event and its receipt, in one statement. Where the handler took the transaction, this is
-- called in it, as its last statement before the commit. Returns the receipt's id.
create or replace function gem.finish(p_call uuid, p_attempt integer, p_worker text, p_status text, p_result jsonb, p_effects jsonb,
  p_registry_version text, p_replay_of uuid default null)
returns uuid language plpgsql security definer set search_path = '' as $$
declare
  at        timestamptz := clock_timestamp();
  receipt   uuid;
  freed_key text;
begin
  receipt := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
    substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
  with ended as (
    update public.core_tool_calls c
    set status = p_status, error = p_result -> 'error', updated_at = at, events = c.events + 1
    where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    returning c.id, c.tool_name, c.claimed_at, c.events, c.computed_key
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select id, events, at, p_status, p_attempt, p_worker, jsonb_build_object('receipt_id', receipt) from ended
  )
  insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id,
    registry_version, idempotency_key, replay_of, duration)
  select receipt, id, coalesce(tool_name, ''), p_status, p_result, p_effects, at, p_attempt, p_worker,
    p_registry_version, computed_key, p_replay_of, at - claimed_at from ended
  returning idempotency_key into freed_key;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  if freed_key is not null then
    perform gem.wake_waiting(freed_key, p_status = 'succeeded', p_worker);
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
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false) for update;
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
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false) for update;
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
-- Workers: who is alive, and what the dead leave behind (running → queued: lost; waiting → queued: woken)
------------------------------------------------------------------------------------------------------------------------

-- Says that the worker lives, and will for p_dead_after without another word, and asks about the attempts that it knows to
-- hold: p_calls and p_attempts, side by side. Returns those of which there is something to say: `cancel` when someone asked
-- for the call's end, `lost` when the attempt does not hold it any more. With p_sweep it also looks over all running calls:
-- `unknown` are those that this worker holds and did not name, and those of any worker that died go back to the queue.
-- Without, only the calls of workers that died in the last minutes do.
--
-- A worker that was dead itself until now judges nobody: after an outage of the database all are silent, and none of them
-- is dead.
create or replace function gem.heartbeat(p_worker text, p_dead_after interval, p_calls uuid[], p_attempts integer[], p_sweep boolean)
returns table (call_id uuid, attempt integer, verdict text) language plpgsql security definer set search_path = ''
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off -- by id, whatever the statistics say
  set jit = off -- a plan that was forced looks dear, and is not
as $$
declare
  at       timestamptz := clock_timestamp();
  previous timestamptz;
begin
  select w.alive_until into previous from public.core_workers w where w.worker_id = p_worker for update;
  update public.core_workers w set heartbeat_at = at, alive_until = at + p_dead_after, stopped_at = null where w.worker_id = p_worker;
  if previous > at then
    perform gem.recover(p_worker, case when p_sweep then null else at - interval '3 minutes' end);
  end if;
  return query
  select mine.call_id, mine.attempt, case when held.id is null then 'lost' else 'cancel' end
  from unnest(p_calls, p_attempts) as mine (call_id, attempt)
  left join lateral (
    select c.id, c.cancel_requested_at from public.core_tool_calls c
    where c.id = mine.call_id and coalesce(c.attempt = mine.attempt and c.claimed_by = p_worker and c.status = 'running', false)
  ) held on true
  where held.id is null or held.cancel_requested_at is not null;
  if p_sweep then
    return query
    select c.id, c.attempt, 'unknown' from public.core_tool_calls c
    where c.status = 'running' and c.claimed_by = p_worker and c.id <> all (p_calls);
  end if;
end
$$;

-- Takes the calls of dead workers back into the queue: of those that died or stopped since p_since, or of all when it is
-- null, also of workers that nobody knows. Returns how many.
create or replace function gem.recover(p_worker text, p_since timestamptz) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  at    timestamptz := clock_timestamp();
  dead  text[];
  ids   uuid[];
  keys  text[];
  count integer;
begin
  -- What it does to the rest of the queue is bounded: a thousand calls a step, and the next heartbeat takes the next.
  if p_since is null then
    ids := array(
      select c.id from public.core_tool_calls c
      where c.status = 'running' and not exists (
        select from public.core_workers w
        where w.worker_id = c.claimed_by and w.stopped_at is null and w.alive_until > at)
      limit 1000 for update of c skip locked);
  else
    dead := array(
      select w.worker_id from public.core_workers w
      where (w.stopped_at is not null or w.alive_until <= at) and coalesce(w.stopped_at, w.alive_until) > p_since);
    ids := array(
      select c.id from public.core_tool_calls c
      where c.status = 'running' and c.claimed_by = any (dead)
      limit 1000 for update of c skip locked);
  end if;

  with orphan as (
    select c.id, c.claimed_by, c.computed_key from public.core_tool_calls c where c.id = any (ids)
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

-- As workers of the versions before call them.
create or replace function gem.recover(p_worker text) returns integer language sql security definer set search_path = '' as $$
  select gem.recover(p_worker, null);
$$;
-- +goose StatementEnd

-- Calls that lost two workers come in their order, and need no index: Postgres, with other statistics, took the one over
-- all ready calls for them, and walked it whole.
drop index if exists public.gem_calls_suspect;

revoke all on function gem.check_call_change(), gem.check_receipt(),
  gem.heartbeat(text, interval, uuid[], integer[], boolean), gem.recover(text, timestamptz) from public;

-- +goose StatementBegin
do $$
begin
  if exists (select from pg_roles where rolname = 'gem_worker') then
    grant execute on function gem.heartbeat(text, interval, uuid[], integer[], boolean) to gem_worker;
  end if;
end
$$;
-- +goose StatementEnd

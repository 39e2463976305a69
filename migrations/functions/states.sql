-- The states of a call, and the event that each arrow leaves in the journal:
--
--       insert ──queued──▶ queued ──claimed──▶ running ──succeeded | failed | not_configured──▶ final
--                            ▲                    │
--                            ├──retried───────────┤  a transient error: again, after a pause (run_at)
--                            ├──delayed───────────┤  a rule gave it a turn, until which it is queued
--                            ├──released──────────┤  the worker stops, or does not know the tool, and hands the call over
--                            ├──lost──────────────┤  the worker died: another one puts the call back
--                            │                    │
--                            └──woken── waiting ◀─┘  another call holds the same idempotency key, or something is to come
--
--   queued          may be claimed once run_at has come; higher priority first, then the earlier run_at, then insert order
--   running         claimed by a worker, whose handler may not have started; only (attempt, claimed_by) can move it on
--   waiting         in no process until something comes, as waits_for says: `key`, the end of the call that has its computed_key; `call`,
--                   `answer` and `time`, what a durable handler waits for, and `code`, a program that can go on with it (see waits.sql)
--   succeeded, failed, not_configured
--                   final: never changed again, and exactly one receipt stands beside it
--
--   Cancelling ends a queued or waiting call at once (failed). A running one stays running (cancel_requested) until its
--   worker, which hears of it at the next heartbeat at the latest, ends it with a receipt that says what was done. A call that made
--   progress is woken (cancel_requested), so that its handler can clean up; cancelled again while nobody runs it, it ends at once.
--
-- Each arrow is drawn by one function below, in the order of a call's life, or in waits.sql, and nothing else moves a call. It checks where the
-- arrow starts, moves the row and writes the event, and the receipt where the call ends, all in one transaction.
--
-- A worker that moves a running call says which attempt it is: (call, attempt, worker). If that attempt no longer holds the
-- call, the function raises GM001, and the transaction that called it ends with it: a worker that was paused, and wakes up
-- when the call is another's, writes nothing.
--
-- A row is locked `for no key update`: an insert that names the call as its parent, in a transaction that may stay open, is in nobody's way.
--
-- Workers, their heartbeats and the recovery of a dead one's calls (lost) are in workers.sql. Rights are in roles.sql.

-- The time. Test databases replace this function; everything else asks it.
create or replace function gem.now() returns timestamptz language sql volatile as 'select pg_catalog.clock_timestamp()';

-- A random UUID of version 7, which begins with the milliseconds since 1970: new ids stand side by side in an index. A
-- random one lands anywhere, and with millions of rows each lands on a page of its own.
create or replace function gem.new_id(p_at timestamptz) returns uuid language sql volatile as $$
  select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
    substring(int8send((date_part('epoch', p_at) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- The id of a call's receipt: the time, and a hash of the call's id, which its frontend may have chosen. Chance would cost more.
-- Stable, as date_part is: Postgres does not inline a function that promises more than its body, and would parse it at each call.
create or replace function gem.receipt_id(p_call uuid, p_at timestamptz) returns uuid language sql stable as $$
  select encode(overlay(overlay(uuid_send(p_call) placing substring(int8send((date_part('epoch', p_at) * 1000)::bigint) from 3) from 1 for 6)
    placing substring(sha256(uuid_send(p_call)) for 7) from 10 for 7), 'hex')::uuid
$$;

-- When a call was first to run: its insert, or the time that it was scheduled for.
create or replace function gem.due(p_call uuid) returns timestamptz language sql stable as $$
  select coalesce((select greatest(e.at, (e.data ->> 'run_at')::timestamptz) from public.core_tool_events e where e.call_id = p_call and e.seq = 1),
    (select c.created_at from public.core_tool_calls c where c.id = p_call)) -- of an earlier GEM
$$;

create or replace function gem.is_final(p_status text) returns boolean language sql immutable as $$
  select p_status in ('succeeded', 'failed', 'not_configured')
$$;

-- The claims of the token that a request came with; null outside of a request. After a commit the setting is '' and not null.
create or replace function gem.token_claims() returns jsonb language sql stable as $$
  select nullif(current_setting('request.jwt.claims', true), '')::jsonb
$$;

-- The call itself, at depth 0, and those above it: its parent at depth 1, and so on, a hundred at most. p_made: only as far as each was made by
-- the handler of the next.
create or replace function gem.ancestors(p_call uuid, p_made boolean) returns table (id uuid, created_by text, depth integer)
language sql stable as $$
  with recursive line (id, created_by, depth, parent) as (
    select c.id, c.created_by, 0, case when c.parent_step is not null or not p_made then c.parent_call_id end
    from public.core_tool_calls c where c.id = p_call
    union all
    select c.id, c.created_by, l.depth + 1, case when c.parent_step is not null or not p_made then c.parent_call_id end
    from line l join public.core_tool_calls c on c.id = l.parent where l.depth < 100
  )
  select l.id, l.created_by, l.depth from line l
$$;

create or replace function gem.raise_not_held(p_call uuid, p_attempt integer, p_worker text) returns void language plpgsql as $$
begin
  perform gem.refuse('GM001', 'call %s is not held by attempt %s of worker %s', null, p_call::text, p_attempt::text, p_worker);
end
$$;

-- Tells those who listen, which are workers on the channel gem_calls, something now that they would see later: a hint, which decides nothing.
-- While the queue of notifications is full, Postgres refuses every transaction that has one, so none is sent once it is half full.
create or replace function gem.notify(p_hint text, p_channel text default 'gem_calls') returns void language plpgsql as $$
begin
  if pg_notification_queue_usage() < 0.5 then
    perform pg_notify(p_channel, p_hint);
  end if;
end
$$;

-- Tells those who wait for the ends of calls which have ended, 215 at most, as many as a notification holds. Whoever waits asks gem.ended as
-- well. A worker calls it outside of the transactions in which calls end, for many at once: see awaited of a call.
create or replace function gem.tell_ended(p_calls uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform gem.notify(array_to_string(p_calls, ','), 'gem_receipts');
end
$$;

-- Wakes idle workers. A notification takes a lock over the whole database at commit, so it is sent only when some worker has
-- free slots and found nothing. Polling is the safety net. p_hint is `again` when a call came back to its earlier place in
-- the queue, so that the next claim ignores its cursors.
create or replace function gem.wake_workers(p_hint text default '') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at timestamptz := gem.now(); -- once, or the index is of no use
begin
  if exists (select from public.core_workers where alive_until > at and wants_wake and stopped_at is null) then
    perform gem.notify(p_hint);
  end if;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued → running
------------------------------------------------------------------------------------------------------------------------

-- Claims up to p_limit calls that may run now. Rows that another claim has locked are skipped, so claims never wait for one
-- another. A worker whose heartbeat has expired gets GM002: what it claimed would be taken from it at once. One that runs without
-- rules, where gem.limits requires them, gets GM004. A call that needs a capability goes only to workers that stated it, and one that made progress only to workers that know steps.
--
-- p_cursors may say, for a level, from which run_at on to look: {"0": "2026-01-01T00:00:00Z"}. While an old snapshot
-- keeps vacuum from removing the index entries of calls that were claimed before, a claim without cursors walks them all. A
-- cursor hides what lies before it, so a worker claims without cursors every few seconds.
--
-- A call that lost two workers since it last waited is suspected of killing them. It is claimed only by a worker that runs no other such call
-- (p_suspect), so that what died beside it twice does not die beside it a third time.
--
-- While Postgres's clock has gone back and not caught up, a call is also due that was to run when it was inserted, or when it came back by the
-- clock of before, and one whose pause after a retry is over by that clock. A call that a frontend wants at a later time waits for that.
--
-- Calls at a level of -500 or less are background: they come after all others, and p_background says how many of them
-- the claim may take (null: any), so that a worker keeps slots for the others. Calls that a caller makes while it crowds are
-- background, too (see gem.before_insert_call).
create or replace function gem.claim(p_worker text, p_limit integer, p_suspect boolean, p_cursors jsonb default '{}',
  p_background integer default null)
returns table (id uuid, tool_name text, input text, attempt integer, idempotency_key text, session_id text, created_by text,
  level integer, run_at timestamptz, seq bigint, retries integer, losses integer, kills integer, cancelled_for interval,
  traceparent text, waited interval, age interval, signed_in boolean, steps integer, child boolean, of_rules boolean,
  awaited boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off -- the order must come from the index
  set jit = off -- such a plan looks expensive, and Postgres would compile it for longer than it runs
as $$
#variable_conflict use_column
declare
  at       timestamptz := gem.now();
  worker   record;
  this     integer; -- level
  from_run timestamptz;
  picked   uuid[];
  suspects uuid[];
  suspect  uuid; -- the one that is claimed
  ids      uuid[] := '{}';
begin
  select w.can, 'steps' = any (w.can) as knows_steps, w.clock_back, greatest(at, w.clock_until) as due,
    case when w.rules_version is null then (select l.rules_required from gem.limits l) end as forgot_rules
  into worker from public.core_workers w
  where w.worker_id = p_worker and w.stopped_at is null and w.alive_until > at;
  if worker.due is null then
    perform gem.refuse('GM002', 'worker %s claims without a heartbeat', null, p_worker);
  elsif worker.forgot_rules then
    perform gem.refuse('GM004', 'worker %s runs without rules, and this database requires them: '
      'set TOOLS_RULES to the rules of this worker, or gem rules require --off', null, p_worker);
  end if;

  for this in select l.level from gem.levels l order by l.level desc loop
    if this <= -500 and p_background is not null then
      p_limit := least(p_limit, cardinality(ids) + p_background);
      p_background := null;
    end if;
    exit when cardinality(ids) >= p_limit;
    from_run := coalesce((p_cursors ->> this::text)::timestamptz, '-infinity');
    loop
      select coalesce(array_agg(ready.id), '{}'), array_agg(ready.id) filter (where ready.kills >= 2) into picked, suspects
      from (
        select c.id, c.kills from public.core_tool_calls c
        where c.status = 'queued' and c.level = this and c.run_at >= from_run and c.run_at <= worker.due
          and (c.run_at <= at or c.run_at = c.created_at
            or c.updated_at > at and (c.run_at <= c.updated_at or c.retries > 0 and c.run_at <= at + worker.clock_back))
          and (c.kills < 2 or p_suspect and coalesce(c.id = suspect, true)) and (c.needs is null or c.needs = any (worker.can))
          and (c.steps = 0 and c.parent_step is null or worker.knows_steps)
        order by c.level, c.run_at, c.seq
        limit p_limit - cardinality(ids)
        for no key update skip locked) ready;
      exit when suspects is null or cardinality(suspects) = 1 and (suspect is null or suspects[1] = suspect);
      suspect := suspects[1]; -- and once more without the others
    end loop;
    ids := ids || picked;
    suspect := coalesce(suspect, suspects[1]);
  end loop;
  if cardinality(ids) = 0 then
    return; -- with an empty array the planner picks any partial index, and scans all of it
  end if;

  return query
  with claimed as (
    update public.core_tool_calls c
    set status = 'running', attempt = c.attempt + 1, claimed_by = p_worker, claimed_at = at, updated_at = at, events = c.events + 1
    where c.id = any (ids) -- locked, and queued
    returning c.*
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id)
    select c.id, c.events, at, 'claimed', c.attempt, p_worker from claimed c
  )
  select c.id, coalesce(c.tool_name, ''), coalesce(c.input, 'null')::text, c.attempt, c.idempotency_key, c.session_id, c.created_by,
         c.level, c.run_at, c.seq, c.retries, c.losses, c.kills, case when c.cancel_requested_at is not null then greatest(at - c.cancel_requested_at, '0') end, c.traceparent, at - c.run_at, case when c.attempt > 1 then at - gem.due(c.id) else at - greatest(c.created_at, c.run_at) end,
         c.signed_in, c.steps, c.parent_step is not null, coalesce(c.parent_step like '##%', false), coalesce(c.awaited, false)
  from claimed c;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- running, with a key: run, repeat an earlier success, or wait for the call that runs with that key now
------------------------------------------------------------------------------------------------------------------------

-- Says what the attempt is to do with its idempotency key:
--   run   it holds the key, and no other call runs with it until this one ends
--   hit   the key succeeded before: receipt_id and result are that receipt's, and the call is to be finished with them;
--         several calls may repeat a receipt at once, so not each of them holds the key
--   wait  another call holds the key: this call was parked (running → waiting) and is no longer the attempt's
--   deadlock  the call that holds the key waits for this one, its child or the child of one: nothing was done
create or replace function gem.hold_key(p_call uuid, p_attempt integer, p_worker text, p_key text,
  out verdict text, out receipt_id uuid, out result jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at        timestamptz := gem.now();
  held      boolean;
  holder    uuid;
  cancelled boolean;
begin
  loop
    -- A hit writes nothing to the call: while an old snapshot keeps vacuum out, each write would leave one more entry of this
    -- key in the index over running keys, through which the next must go.
    select r.id, r.result into receipt_id, result from public.core_tool_receipts r
    where r.idempotency_key = p_key and r.status = 'succeeded' and r.replay_of is null
    for key share; -- waits for a gem.prune that is about to remove it
    if found then
      perform from public.core_tool_calls c
      where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false);
      if not found then
        perform gem.raise_not_held(p_call, p_attempt, p_worker);
      end if;
      verdict := 'hit';
      if p_attempt > 1 then -- it may have waited itself: the success woke the first hundred, and each of them wakes others
        perform gem.wake_waiting(p_key, 100, p_worker);
      end if;
      return;
    elsif verdict = 'run' then -- the receipt was looked up again while holding the key: nobody can succeed with it now
      return;
    end if;

    -- The unique index over the holders of keys lets one attempt pass; the others come here again or wait.
    select t.held, t.holder into held, holder from gem.take_key(p_call, p_attempt, p_worker, p_key) t;
    if held then
      verdict := 'run';
    elsif holder is not null then
      if exists (select from gem.ancestors(p_call, true) a where a.id = holder and a.depth > 0) then
        verdict := 'deadlock';
        return;
      end if;
      verdict := 'wait';
      select c.cancel_requested_at is not null into cancelled from public.core_tool_calls c where c.id = p_call for no key update;
      if cancelled then
        perform gem.release(p_call, p_attempt, p_worker); -- its next claim ends it
        return;
      end if;
      with parked as (
        update public.core_tool_calls c
        set status = 'waiting', waits_for = 'key', computed_key = p_key, claimed_by = null, claimed_at = null, updated_at = at, events = c.events + 1
        where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
        returning c.id, c.events, c.attempt
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      select id, events, at, 'waiting', attempt, p_worker, jsonb_build_object('key', p_key, 'held_by', holder) from parked;
      if not found then
        perform gem.raise_not_held(p_call, p_attempt, p_worker);
      end if;
      return;
    end if;
  end loop;
end
$$;

-- Gives the key to the attempt, or says which call holds it, and keeps that one from ending before this transaction does: so its end
-- sees the call that is about to wait. It waits a moment only, since a frontend may have either row locked for as long as it likes.
-- If the holder then ends unseen, gem.recover wakes the call.
create or replace function gem.take_key(p_call uuid, p_attempt integer, p_worker text, p_key text, out held boolean, out holder uuid)
language plpgsql set lock_timeout = '500ms' as $$ -- before Postgres looks for deadlocks, by default
begin
  begin
    update public.core_tool_calls c set computed_key = p_key
    where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false);
    if not found then
      perform gem.raise_not_held(p_call, p_attempt, p_worker);
    end if;
    held := true;
    return;
  exception when unique_violation or lock_not_available then
    held := false;
  end;
  begin -- the call's own row first: while that is waited for, the holder must be able to end
    perform from public.core_tool_calls c where c.id = p_call for no key update;
  exception when lock_not_available then
    return;
  end;
  begin
    select c.id into holder from public.core_tool_calls c
    where c.computed_key = p_key and (c.status in ('running', 'queued') or c.status = 'waiting' and c.waits_for <> 'key') and c.id <> p_call
    for no key update;
  exception when lock_not_available then
    select c.id into holder from public.core_tool_calls c
    where c.computed_key = p_key and (c.status in ('running', 'queued') or c.status = 'waiting' and c.waits_for <> 'key') and c.id <> p_call;
  end;
end
$$;

-- Says of a hit whether the input of the earlier call, of that receipt, was another one, apart from the field that is the key; null if
-- it is not known any more. To a signed-in user whose call the earlier one was not it tells nothing, since guessing would tell what
-- others sent: null, or true where other inputs are refused. Volatile, since the receipt may be newer than the statement that asks.
create or replace function gem.input_differs(p_call uuid, p_receipt uuid, p_key_field text, p_refuse boolean) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select case when own.signed_in and own.created_by is distinct from earlier.created_by then nullif(p_refuse, false)
    when p_key_field is null then own.input <> earlier.input
    else own.input - p_key_field <> earlier.input - p_key_field end
  from public.core_tool_receipts r join public.core_tool_calls earlier on earlier.id = r.call_id, public.core_tool_calls own
  where r.id = p_receipt and own.id = p_call
$$;

------------------------------------------------------------------------------------------------------------------------
-- running → succeeded | failed | not_configured
------------------------------------------------------------------------------------------------------------------------

-- The one without p_context would make calls of gem.finish ambiguous.
drop function if exists gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid, integer);

-- Ends a call: its status, its last event and its receipt, in one statement. A handler's transaction runs it last, before
-- its commit. Returns the receipt's id. p_steps is how many steps the attempt knows of: a database that has fewer was set back by a
-- failover, and the call is to begin again with those. p_context tells operators where a failure came from: only the
-- journal has it.
--
-- The call is found by its id alone, here and below; coalesce hides the other conditions from the planner. With statistics
-- from a quiet hour it would take the index over running calls, which holds an entry for every call since the last vacuum.
create or replace function gem.finish(p_call uuid, p_attempt integer, p_worker text, p_status text, p_result jsonb, p_effects jsonb,
  p_registry_version text, p_replay_of uuid default null, p_steps integer default 0, p_context text default null)
returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at        timestamptz := gem.now();
  receipt   uuid        := gem.receipt_id(p_call, at);
  freed_key text;
  parent    uuid;
  child     text;
begin
  if p_replay_of is not null then
    select r.idempotency_key into freed_key from public.core_tool_receipts r where r.id = p_replay_of;
  end if;
  with ended as (
    update public.core_tool_calls c
    set status = p_status, error = p_result -> 'error', computed_key = coalesce(c.computed_key, freed_key), updated_at = at,
        events = c.events + 1, wake_at = case when (c.steps > 0 or p_attempt > 1) and gem.has_open_children(c.id) then at - interval '100 years' end
    where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running' and c.steps >= p_steps, false)
    returning c.id, c.tool_name, c.claimed_at, c.events, c.computed_key, c.parent_call_id, c.parent_step
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select id, events, at, p_status, p_attempt, p_worker,
      case when p_context is null then jsonb_build_object('receipt_id', receipt)
      else jsonb_build_object('receipt_id', receipt, 'context', p_context) end from ended
  ), written as (
    insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id,
      registry_version, idempotency_key, replay_of, duration)
    select receipt, id, coalesce(tool_name, ''), p_status, p_result, p_effects, at, p_attempt, p_worker,
      p_registry_version, computed_key, p_replay_of, greatest(at - claimed_at, '0') from ended
  )
  select e.computed_key, e.parent_call_id, e.parent_step into freed_key, parent, child from ended e;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  if freed_key is null and p_attempt > 1 then
    perform gem.wake_next(p_call, p_worker);
  elsif freed_key is not null and p_replay_of is null then -- gem.hold_key woke those that wait for a hit's key
    perform gem.wake_waiting(freed_key, case when p_status = 'succeeded' then 100 else 1 end, p_worker);
  end if;
  if child is not null then
    perform gem.tell_parent(p_call, parent, child, p_status, receipt, p_worker);
  end if;
  return receipt;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- running → queued: retried, released
------------------------------------------------------------------------------------------------------------------------

-- Puts a call back after a transient error, to run again after a pause: p_backoff, doubled with each attempt that was
-- spent, at most 15 minutes, with jitter: 50 to 100 % of it; and p_at_least, also 15 minutes at most. Lost attempts count as spent
-- too. A call whose end someone asked for meanwhile comes back at once, to be ended, or to clean up, which has pauses then. Returns
-- when it may run again, or null, changing nothing, when p_max_attempts are spent. p_effects are those of steps that were not kept.
create or replace function gem.retry(p_call uuid, p_attempt integer, p_worker text, p_error jsonb, p_max_attempts integer, p_backoff interval,
  p_effects jsonb default null, p_at_least interval default '0', p_most interval default '15 minutes')
returns timestamptz language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  spent     integer;
  cancelled boolean;
begin
  select c.retries + c.losses, coalesce(c.steps = 0 or c.claimed_at <= c.cancel_requested_at, false) and c.cancel_requested_at is not null into spent, cancelled
  from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false) for no key update;
  if spent + 1 >= p_max_attempts then
    return null;
  end if;
  return gem.put_back(p_call, p_attempt, p_worker, 'retried',
    case when cancelled then '0'
      else greatest(least(p_backoff * 2 ^ spent, p_most) * (0.5 + random() / 2), least(p_at_least, interval '15 minutes')) end,
    jsonb_build_object('error', p_error) || case when p_effects is null then '{}' else jsonb_build_object('effects', p_effects) end);
end
$$;

-- Hands a call over: the worker stops, and what the attempt did so far is nothing, or gone with its transaction, or may be
-- done again. The call keeps its place in the queue.
create or replace function gem.release(p_call uuid, p_attempt integer, p_worker text, p_effects jsonb default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform gem.put_back(p_call, p_attempt, p_worker, 'released', p_data => case when p_effects is not null then jsonb_build_object('effects', p_effects) end);
  perform gem.wake_workers('again');
end
$$;

-- Leaves a call to the workers that stated a capability, if gem.lived_lately finds one. Otherwise it changes nothing, and returns false.
-- See gem.recover for a call that was left to workers which stay away.
create or replace function gem.leave_to(p_call uuid, p_attempt integer, p_worker text, p_needs text)
returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not gem.lived_lately(p_needs, gem.now()) then
    return false;
  end if;
  perform gem.put_back(p_call, p_attempt, p_worker, 'released', p_data => jsonb_build_object('needs', p_needs), p_needs => p_needs);
  perform gem.wake_workers(); -- a worker whose cursor is beyond it finds it in a claim without cursors
  return true;
end
$$;

-- Puts a running call back into the queue: at its place, after a pause, or until its turn (see rules.sql). Returns when it may run again. A run_at that lies ahead is from
-- before the clock went back; so it is where others put a call back.
create or replace function gem.put_back(p_call uuid, p_attempt integer, p_worker text, p_event text,
  p_pause interval default null, p_data jsonb default null, p_needs text default null, p_turn timestamptz default null)
returns timestamptz language plpgsql as $$
declare
  at        timestamptz := gem.now();
  again     timestamptz := at + p_pause;
  freed_key text;
begin
  select c.computed_key into freed_key from public.core_tool_calls c -- a durable call keeps its key until its end
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false) for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  with freed as (
    update public.core_tool_calls c
    set status = 'queued', run_at = coalesce(again, p_turn, least(c.run_at, at)), retries = c.retries + (again is not null)::integer,
        computed_key = case when c.steps > 0 then c.computed_key end, claimed_by = null, claimed_at = null, updated_at = at,
        events = c.events + 1, needs = coalesce(p_needs, c.needs)
    where c.id = p_call
    returning c.events, c.computed_key, c.run_at
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select p_call, events, at, p_event, p_attempt, p_worker, coalesce(p_data, '{}') || jsonb_build_object('run_at', run_at) from freed
  )
  select nullif(freed_key, f.computed_key) into freed_key from freed f;
  if freed_key is not null then
    perform gem.wake_waiting(freed_key, 1, p_worker);
  end if;
  return again;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- waiting → queued: woken
------------------------------------------------------------------------------------------------------------------------

-- Wakes the first calls that wait for a key, and returns how many: a hundred after its success, since each is a hit, and wakes the next
-- hundred, so that no end takes long, however many wait; otherwise one, to take the key itself. One that another transaction has locked
-- is skipped; where that leaves nobody to wake the rest, gem.recover does.
create or replace function gem.wake_waiting(p_key text, p_most integer, p_worker text) returns integer language plpgsql as $$
declare
  at  timestamptz := gem.now();
  ids uuid[];
begin
  ids := array(
    select w.id from public.core_tool_calls w where w.status = 'waiting' and w.waits_for = 'key' and w.computed_key = p_key
    order by w.tool_name, w.asked_for, w.level desc, w.seq limit p_most for no key update skip locked);
  if cardinality(ids) > 0 then -- with an empty array the planner picks any partial index, and scans all of it
    with woken as (
      update public.core_tool_calls c
      set status = 'queued', waits_for = null, computed_key = null, run_at = least(c.run_at, at), updated_at = at, events = c.events + 1
      where c.id = any (ids)
      returning c.id, c.events, c.attempt, c.run_at
    )
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select id, events, at, 'woken', attempt, p_worker, jsonb_build_object('run_at', run_at) from woken;
    perform gem.wake_workers('again');
  end if;
  return cardinality(ids);
end
$$;

-- Wakes the next call that waits for a key when one that was woken for it has ended without taking it. If that was cancelled before it ran,
-- gem.recover does: a frontend's transaction locks nobody else's call.
create or replace function gem.wake_next(p_call uuid, p_worker text) returns void language plpgsql as $$
declare
  key text := (select e.data ->> 'key' from public.core_tool_events e where e.call_id = p_call and e.event = 'waiting' order by e.seq desc limit 1);
begin
  if key is not null then
    perform gem.wake_waiting(key, 1, p_worker);
  end if;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued | waiting → failed, running → running: cancelled
------------------------------------------------------------------------------------------------------------------------

-- Asks for a call's end; in the schema public, for frontends to call. Returns `cancelled` when the call ended at once,
-- `requested` when it is running or has made progress, or the status in which it had ended before. A caller with a token can cancel its own calls;
-- service_role, and a session without a token, any. A question of the rules is asked again when it is cancelled: whoever made the call that it is
-- about would have people asked for ever. PT404 is PostgREST's way to answer with the HTTP status 404.
create or replace function public.cancel_tool_call(id uuid) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  claims jsonb := gem.token_claims();
  call   record;
begin
  select c.id, c.created_by, c.status, c.parent_call_id, c.parent_step into call
  from public.core_tool_calls c where c.id = cancel_tool_call.id for no key update;
  if call.id is null
    or (claims is not null and claims ->> 'role' is distinct from 'service_role'
        and (call.created_by = nullif(claims ->> 'sub', '')) is not true) then -- users cannot cancel a call that has no owner
    perform gem.refuse('PT404', 'there is no call %s that you can cancel', null, cancel_tool_call.id::text);
  elsif claims is not null and claims ->> 'role' is distinct from 'service_role' and call.parent_step like '##%' and not gem.is_final(call.status) then
    perform gem.refuse('PT409', 'call %s asks people about the call %s, and ends with it', 'Cancel the call that it is about.',
      call.id::text, call.parent_call_id::text);
  end if;
  return gem.cancel(call.id, jsonb_strip_nulls(jsonb_build_object('by', gem.subject())));
end
$$;

-- Ends a call, or asks for its end, as public.cancel_tool_call says. The caller has locked its row. p_who says who wants it, as the event has it:
-- {by, reason}; nothing if that is another call's end.
create or replace function gem.cancel(p_call uuid, p_who jsonb default '{}') returns text language plpgsql as $$
declare
  at      timestamptz := gem.now();
  receipt uuid        := gem.receipt_id(p_call, at);
  call    record;
  failure jsonb;
begin
  select c.id, c.status, c.attempt, c.losses, c.steps, gem.asks(c.tool_name) as asks, c.waits_for, c.awaited,
    coalesce(c.tool_name, '') as tool_name, c.cancel_requested_at into call
  from public.core_tool_calls c where c.id = p_call;
  if gem.is_final(call.status) then
    return call.status;
  elsif call.status = 'running' or call.steps > 0 and call.cancel_requested_at is null and call.waits_for is distinct from 'key' then
    if call.cancel_requested_at is null then
      with asked as (
        update public.core_tool_calls c
        set cancel_requested_at = at, updated_at = at, events = c.events + 1, run_at = least(c.run_at, at) -- no pause of a retry keeps it
        where c.id = call.id returning c.events, c.run_at
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
      select call.id, events, at, 'cancel_requested', call.attempt, p_who || jsonb_build_object('run_at', run_at) from asked;
      if call.status = 'running' then
        perform gem.notify('cancel'); -- its worker listens, or sees it at the next heartbeat
      elsif call.status = 'waiting' then
        perform gem.wake(call.id, null);
      else
        perform gem.wake_workers('again');
      end if;
    end if;
    return 'requested';
  end if;

  failure := jsonb_build_object('error_code', 'cancelled',
    'message', case when call.losses > 0
      then 'The call was cancelled while it waited to run again. What the attempts did whose workers were lost is not known.'
      when call.asks then 'The question was cancelled before it was answered.'
      when call.steps > 0 then 'The call was cancelled before it went on. What its steps did stays, and is in its effects.'
      when call.attempt > 0 then 'The call was cancelled before it ran again.'
      else 'The call was cancelled before it ran.' end,
    'details', jsonb_build_object('lost_attempts', call.losses));
  with ended as (
    update public.core_tool_calls c
    set status = 'failed', error = failure, computed_key = null, waits = null, need = null,
        waits_for = case when c.parent_step is not null then 'parent' end, -- a frontend's transaction locks no other call
        wake_at = case when c.parent_step is not null or gem.has_open_children(c.id) then at - interval '100 years' end,
        cancel_requested_at = coalesce(c.cancel_requested_at, at), updated_at = at, events = c.events + 1
    where c.id = call.id returning c.events
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
    select call.id, events, at, 'failed', call.attempt, p_who || jsonb_build_object('receipt_id', receipt) from ended
  )
  insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt)
  values (receipt, call.id, call.tool_name, 'failed', jsonb_build_object('error', failure),
    case when call.attempt > 0 then gem.step_effects(call.id) else '{}' end, at, call.attempt);
  if call.awaited then
    perform gem.tell_ended(array[p_call]);
  end if;
  return 'cancelled';
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.claim(text, integer, boolean, jsonb, integer),
  gem.hold_key(uuid, integer, text, text), gem.input_differs(uuid, uuid, text, boolean),
  gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid, integer, text), gem.retry(uuid, integer, text, jsonb,
    integer, interval, jsonb, interval, interval),
  gem.release(uuid, integer, text, jsonb), gem.leave_to(uuid, integer, text, text), gem.tell_ended(uuid[])');
revoke all on all functions in schema gem from public;

-- The states of a call. The label of each arrow is the event that it writes to the journal.
--
--       insert ──queued──▶ queued ──claimed──▶ running ──succeeded | failed | not_configured──▶ final
--                            ▲                    │
--                            ├──retried───────────┤  a transient error: the call runs again after a pause
--                            ├──delayed───────────┤  a rule postpones the call until it may start
--                            ├──released──────────┤  the worker stops or does not know the tool
--                            ├──lost──────────────┤  the worker died, and another one requeues the call
--                            │                    │
--                            └──woken── waiting ◀─┘  the call waits for a key, a place, an answer, a child, a time or
--                                                 a program
--
--       insert ──queued, waiting──▶ waiting ──succeeded | failed──▶ final
--                            a question from a handler or a rule: it ends when it is answered, or at its deadline
--
--   queued          Workers may claim the call once run_at has come. Claims take the highest priority first, then the
--                   earliest run_at, then the earliest insert.
--   running         A worker has claimed the call. Its handler may not have started yet. While its worker is alive,
--                   only the attempt that holds the call (attempt, claimed_by) can move it.
--   waiting         No process runs the call. waits_for names the reason. `key`: another call holds its computed_key.
--                   `call`, `answer` or `time`: its durable handler waits for a child, an answer or a time. `code`: the
--                   call waits for a worker whose program can continue it. See waits.sql. `place`: as many calls run as
--                   a rule allows. See places.sql. Questions that handlers and rules ask are inserted as waiting
--                   (gem.question_waits).
--   succeeded, failed, not_configured
--                   The call has ended. Its status never changes again, and it has exactly one receipt.
--
--   Cancelling a queued or waiting call ends it at once, as failed. If the call has made progress (its journal has
--   steps, calls or waits), it runs again instead, so that its handler can clean up; a second cancellation ends it at
--   once, unless a worker runs it. A cancelled call that has a place under a rule, or waits in a queue for one (see
--   places.sql), does not end at once either: the worker that claims it next ends it. Cancelling a running call sets
--   cancel_requested_at. Its worker learns of this at its next heartbeat at the latest, and ends the call with a
--   receipt that lists what was done.
--
-- Only functions change a call's status: those below, in the order of a call's life, and those in waits.sql,
-- places.sql, rules.sql, answers.sql, servers.sql and workers.sql. In one transaction, each function checks the state,
-- updates the row, and writes the event and, if the call ends, the receipt.
--
-- A worker that changes the state of a running call names its attempt: (call, attempt, worker). If that attempt no
-- longer holds the call, the function raises GM001, and the worker's transaction is rolled back. A worker that was
-- frozen while another worker took its call therefore writes nothing when it resumes.
--
-- Functions lock a call's row `for no key update`, so a long transaction that inserts a child of the call does not
-- block them.
--
-- workers.sql has the workers, their heartbeats and the recovery of lost calls. roles.sql has the rights.

-- Returns the current time. Test databases replace this function, and all other functions read the time from it.
create or replace function gem.now() returns timestamptz language sql volatile as 'select pg_catalog.clock_timestamp()';

-- Returns a random UUID of version 7. It begins with the milliseconds since 1970, so new ids are neighbours in an
-- index. Fully random ids would each touch a different page of a large index.
create or replace function gem.new_id(p_at timestamptz) returns uuid language sql volatile as $$
  select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
    substring(int8send((date_part('epoch', p_at) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- Returns the id of a call's receipt: the time, then a hash of the call's id. A hash costs less than random bytes. The
-- function is stable because date_part is: if it were declared immutable, Postgres could not inline it, and would parse
-- it at each call.
create or replace function gem.receipt_id(p_call uuid, p_at timestamptz) returns uuid language sql stable as $$
  select encode(overlay(overlay(uuid_send(p_call) placing substring(int8send((date_part('epoch', p_at) * 1000)::bigint)
    from 3) from 1 for 6)
    placing substring(sha256(uuid_send(p_call)) for 7) from 10 for 7), 'hex')::uuid
$$;

-- Returns when a call was first due: the time of its insert, or the time that it was scheduled for.
-- The plan is kept, so it must use the indexes even if it is made while the tables are small.
create or replace function gem.due(p_call uuid) returns timestamptz language plpgsql stable
  set enable_seqscan = off as $$
begin
  return coalesce((select greatest(e.at, (e.data ->> 'run_at')::timestamptz) from public.core_tool_events e
    where e.call_id = p_call and e.seq = 1),
    -- a call from an earlier version of GEM has no such event
    (select c.created_at from public.core_tool_calls c where c.id = p_call));
end
$$;

create or replace function gem.is_final(p_status text) returns boolean language sql immutable as $$
  select p_status in ('succeeded', 'failed', 'not_configured')
$$;

-- Returns the claims of the request's token, or null outside of a request. Once a transaction has set
-- request.jwt.claims locally and has ended, the setting is '' instead of null. A session that has switched to another
-- role, as members of gem_mcp do, cannot pass for service_role.
create or replace function gem.token_claims() returns jsonb language plpgsql stable as $$
declare
  claims constant jsonb := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
begin
  if claims ->> 'role' = 'service_role' and not (current_setting('role') = 'service_role'
      or current_setting('role') = 'none' and coalesce(pg_has_role(session_user, to_regrole('service_role'), 'member'),
        pg_has_role(session_user, current_user, 'member'))) then
    return claims - 'role';
  end if;
  return claims;
end
$$;

-- Returns the call itself at depth 0, its parent at depth 1, and so on, up to depth 100. With p_made it stops at the
-- first call that a frontend made.
create or replace function gem.ancestors(p_call uuid, p_made boolean) returns table (id uuid, created_by text,
  depth integer)
language sql stable as $$
  with recursive line (id, created_by, depth, parent) as (
    select c.id, c.created_by, 0, case when c.parent_step is not null or not p_made then c.parent_call_id end
    from public.core_tool_calls c where c.id = p_call
    union all
    select c.id, c.created_by, l.depth + 1, case when c.parent_step is not null or not p_made then c.parent_call_id end
    -- The offset makes Postgres look up each call by its id. Without it, a plan made while the table was small would
    -- read the whole table.
    from line l, lateral (select p.* from public.core_tool_calls p where p.id = l.parent offset 0) c
    where l.depth < 100
  )
  select l.id, l.created_by, l.depth from line l
$$;

create or replace function gem.raise_not_held(p_call uuid, p_attempt integer, p_worker text) returns void
  language plpgsql as $$
begin
  perform gem.refuse('GM001', 'call %s is not held by attempt %s of worker %s', null, p_call::text, p_attempt::text,
    p_worker);
end
$$;

-- Notifies the listeners of a channel. Workers listen on gem_calls. Notifications only reduce latency: listeners also
-- poll. Postgres rejects every transaction that notifies while its notification queue is full, so this function sends
-- nothing once the queue is half full.
create or replace function gem.notify(p_hint text, p_channel text default 'gem_calls') returns void
  language plpgsql as $$
begin
  if pg_notification_queue_usage() < 0.5 then
    perform pg_notify(p_channel, p_hint);
  end if;
end
$$;

-- Sends the ids of calls that have ended to the clients that wait for their receipts. It takes at most 215 calls,
-- because no more ids fit into a notification. The clients also poll gem.ended. A worker calls this function outside of
-- the transactions in which calls end, for many calls at once. See the column awaited of core_tool_calls.
create or replace function gem.tell_ended(p_calls uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform gem.notify(array_to_string(p_calls, ','), 'gem_receipts');
end
$$;

-- Wakes idle workers. A notification takes a database-wide lock at commit, so it is sent only if some worker has free
-- slots and found nothing to claim. Workers also poll. The hint `again` means that a call returned to its earlier place
-- in the queue, so the next claim searches without cursors (see gem.claim). The hint `timers` means that a call has
-- ended, and that a worker must notify the call's parent (gem.run_timers).
create or replace function gem.wake_workers(p_hint text default '') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at timestamptz := gem.now(); -- evaluated once, so that Postgres uses the index
begin
  if exists (select from public.core_workers where alive_until > at and wants_wake and stopped_at is null) then
    perform gem.notify(p_hint);
  end if;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued → running
------------------------------------------------------------------------------------------------------------------------

-- Claims up to p_limit calls that may run now. Claims skip rows that are locked, so they never wait for each other.
-- Raises GM002 for a worker whose heartbeat has expired, because other workers would take its calls at once. Raises
-- GM004 for a worker without rules if gem.limits requires rules. A call that needs a capability goes only to workers
-- that declared it. A call that made progress, or that another call made, goes only to workers that declared `steps`.
--
-- p_cursors maps each level (a call's priority in effect: see gem.level_of) to the run_at from which the search starts:
-- {"0": "2026-01-01T00:00:00Z"}. While an old snapshot exists, vacuum cannot remove the index entries of claimed calls,
-- and a claim without cursors reads all of them. A cursor hides earlier calls, so workers claim without cursors every
-- few seconds.
--
-- A call that lost two workers since it last waited is a suspect: it may have killed them. A worker runs one suspect at
-- a time, so that a suspect that kills its worker takes no other suspect with it. p_suspect means that the worker runs
-- none now, and may claim one.
--
-- If Postgres's clock was set back and is still behind, some calls are due although their run_at is in the future:
-- calls that were due when they were inserted, calls that were requeued before the clock was set back, and retries
-- whose pause would be over by now. Calls that a frontend scheduled still wait for their time.
--
-- Calls at level -500 or below are background calls. They come after all others. A claim takes at most p_background of
-- them (null: no limit), so that a worker keeps slots for other calls. If a caller crowds the queue, its calls also
-- become background calls (see gem.before_insert_call).
drop function if exists gem.claim(text, integer, boolean, jsonb, integer); -- the earlier version returned fewer columns
create or replace function gem.claim(p_worker text, p_limit integer, p_suspect boolean, p_cursors jsonb default '{}',
  p_background integer default null)
returns table (id uuid, tool_name text, input text, attempt integer, idempotency_key text, session_id text,
  created_by text,
  level integer, run_at timestamptz, seq bigint, retries integer, losses integer, kills integer, cancelled_for interval,
  traceparent text, waited interval, age interval, signed_in boolean, steps integer, parent uuid, parent_step text,
  awaited boolean, code bytea)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off -- the index must provide the order
  set plan_cache_mode = force_generic_plan -- planning for each array of ids would take longer than the claim
  set jit = off -- the plan looks expensive, and compiling it would take longer than running it
as $$
#variable_conflict use_column
declare
  at       timestamptz := gem.now();
  worker   record;
  this     integer; -- a level
  from_run timestamptz;
  picked   uuid[];
  suspects uuid[];
  suspect  uuid; -- the suspect that is claimed
  ids      uuid[] := '{}';
  secret   bytea;
begin
  select w.can, 'steps' = any (w.can) as knows_steps, w.clock_back, greatest(at, w.clock_until) as due, w.outside,
    w.server <> gem.server() as moved, w.may_claim_at > at as pauses,
    case when w.rules_version is null then (select l.rules_required from gem.limits l) end as forgot_rules
  into worker from public.core_workers w
  where w.worker_id = p_worker and w.stopped_at is null and w.alive_until > at;
  if worker.due is null then
    perform gem.refuse('GM002', 'worker %s cannot claim calls: it has stopped, or its heartbeat has expired', null,
      p_worker);
  elsif worker.moved then
    perform gem.refuse('GM006', 'worker %s does not know this Postgres server yet: see gem.meet_server', null,
      p_worker);
  elsif worker.pauses then
    return;
  elsif worker.forgot_rules then
    perform gem.refuse('GM004', 'worker %s runs without rules, and this database requires them: '
      'set TOOLS_RULES to this worker''s rules, or run gem rules require --off', null, p_worker);
  end if;

  for this in select l.level from gem.levels l order by l.level desc loop
    if this <= -500 and p_background is not null then
      p_limit := least(p_limit, cardinality(ids) + p_background);
      p_background := null;
    end if;
    exit when cardinality(ids) >= p_limit;
    from_run := coalesce((p_cursors ->> this::text)::timestamptz, '-infinity');
    loop
      select coalesce(array_agg(ready.id), '{}'), array_agg(ready.id) filter (where ready.kills >= 2) into picked,
        suspects
      from (
        select c.id, c.kills from public.core_tool_calls c
        where c.status = 'queued' and c.level = this and c.run_at >= from_run and c.run_at <= worker.due
          and (c.run_at <= at or c.run_at = c.created_at
            or c.updated_at > at and (c.run_at <= c.updated_at or c.retries > 0 and c.run_at <= at + worker.clock_back))
          and (c.kills < 2 or p_suspect and coalesce(c.id = suspect, true))
            and (c.needs is null or c.needs = any (worker.can))
          and (c.steps = 0 and c.parent_step is null or worker.knows_steps)
        order by c.level, c.run_at, c.seq
        limit p_limit - cardinality(ids)
        for no key update skip locked) ready;
      exit when suspects is null or cardinality(suspects) = 1 and (suspect is null or suspects[1] = suspect);
      suspect := suspects[1]; -- search again without the other suspects
    end loop;
    ids := ids || picked;
    suspect := coalesce(suspect, suspects[1]);
  end loop;
  if cardinality(ids) = 0 then
    return; -- for an empty array the planner would scan a whole partial index
  end if;
  if worker.outside <> '{}' then
    select s.value into secret from gem.secrets s where s.name = 'claims';
    if current_setting('synchronous_commit') in ('off', 'local') then
      if exists (
          select from public.core_tool_calls c where c.id = any (ids) and worker.outside ->> c.tool_name = 'none') then
        perform set_config('synchronous_commit', 'on', true); -- if a crash undid this claim, its call would run again
      end if;
    end if;
  end if;

  return query
  with claimed as (
    update public.core_tool_calls c
    set status = 'running', attempt = c.attempt + 1, claimed_by = p_worker, claimed_at = at, updated_at = at,
      events = c.events + 1
    where c.id = any (ids) -- these rows are locked and queued
    returning c.*
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id)
    select c.id, c.events, at, 'claimed', c.attempt, p_worker from claimed c
  )
  select c.id, coalesce(c.tool_name, ''), coalesce(c.input, 'null')::text, c.attempt, c.idempotency_key, c.session_id,
    c.created_by,
         c.level, c.run_at, c.seq, c.retries, c.losses, c.kills, case
           when c.cancel_requested_at is not null then greatest(at - c.cancel_requested_at, '0') end, c.traceparent,
           at - c.run_at, case when c.attempt > 1 then at - gem.due(c.id)
           else at - greatest(c.created_at, c.run_at) end,
         c.signed_in, c.steps, c.parent_call_id, c.parent_step, coalesce(c.awaited, false),
         case when worker.outside ? c.tool_name then gem.claim_code(secret, c.id, c.attempt, p_worker, c.tool_name,
           c.input, c.created_by, c.signed_in, c.session_id, c.parent_call_id) end
  from claimed c;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- running, with a key: the attempt runs, returns an earlier success, or waits for the call that holds the key
------------------------------------------------------------------------------------------------------------------------

-- The keys that are held, each by one call: see gem_calls_one_holder_per_key.
create or replace view gem.held_keys as
select c.computed_key as key, c.id as call_id from public.core_tool_calls c
where c.computed_key is not null and (c.status in ('running', 'queued') or c.status = 'waiting'
  and c.waits_for <> 'key');

-- Reports whether a call has succeeded with a key. It sees commits that are newer than the calling statement.
-- The plan is kept, so it must use the indexes even if it is made while the tables are small.
create or replace function gem.key_has_succeeded(p_key text) returns boolean language plpgsql volatile
  set enable_seqscan = off as $$
begin
  return exists (select from gem.kept_keys k where k.key = p_key) or exists (
    select from public.core_tool_receipts r
    where r.idempotency_key = p_key and r.status = 'succeeded' and r.replay_of is null);
end
$$;

-- Decides how an attempt continues with its idempotency key. Returns a verdict:
--   run       The attempt holds the key. No other call with this key runs until the attempt ends.
--   hit       A call with this key has succeeded. The caller finishes this call with that call's receipt_id and result.
--             If that receipt was pruned, they come from gem.kept_keys.
--             Several calls may return the result of one receipt at the same time, so a hit does not hold the key.
--   wait      Another call holds the key. The function has parked this call (running → waiting).
--   deadlock  An ancestor of this call holds the key, and waits for this call. The function has changed nothing.
create or replace function gem.hold_key(p_call uuid, p_attempt integer, p_worker text, p_key text,
  out verdict text, out receipt_id uuid, out result jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at        timestamptz := gem.now();
  held      boolean;
  holder    uuid;
  cancelled boolean;
  placed    boolean;
begin
  loop
    -- A hit does not write to the call. While an old snapshot blocks vacuum, each write would add an entry for this key
    -- to the index of held keys, and later calls would have to read it.
    select r.id, r.result into receipt_id, result from public.core_tool_receipts r
    where r.idempotency_key = p_key and r.status = 'succeeded' and r.replay_of is null
    for key share; -- waits for gem.prune if it is removing the receipt; the next statement then sees the kept key
    if not found then
      select k.receipt_id, k.result into receipt_id, result from gem.kept_keys k where k.key = p_key for key share;
    end if;
    if found then
      perform from public.core_tool_calls c
      where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running',
        false);
      if not found then
        perform gem.raise_not_held(p_call, p_attempt, p_worker);
      end if;
      verdict := 'hit';
      -- the call may have waited for the key: each woken waiter wakes the next hundred
      if p_attempt > 1 then
        perform gem.wake_waiting(p_key, 100, p_worker);
      end if;
      return;
    -- the second pass: the attempt has held the key since the first one, so no other call can have succeeded meanwhile
    elsif verdict = 'run' then
      return;
    end if;

    -- The unique index of held keys lets only one attempt take the key. The others start over or wait.
    select t.held, t.holder into held, holder from gem.take_key(p_call, p_attempt, p_worker, p_key) t;
    if held then
      verdict := 'run';
    elsif holder is not null then
      if exists (select from gem.ancestors(p_call, true) a where a.id = holder and a.depth > 0) then
        verdict := 'deadlock';
        return;
      end if;
      verdict := 'wait';
      select c.cancel_requested_at is not null, c.placed into cancelled, placed from public.core_tool_calls c
        where c.id = p_call for no key update;
      if cancelled then
        perform gem.release(p_call, p_attempt, p_worker); -- the next claim ends it
        return;
      end if;
      with parked as (
        update public.core_tool_calls c
        set status = 'waiting', waits_for = 'key', computed_key = p_key, placed = false, claimed_by = null,
          claimed_at = null, updated_at = at, events = c.events + 1
        where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running',
          false)
        returning c.id, c.events, c.attempt
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      select id, events, at, 'waiting', attempt, p_worker, jsonb_build_object('key', p_key, 'held_by', holder)
        from parked;
      if not found then
        perform gem.raise_not_held(p_call, p_attempt, p_worker);
      elsif placed then
        perform gem.leave_places(array[p_call], p_worker);
        perform gem.leave_level(array[p_call]);
      end if;
      return;
    end if;
  end loop;
end
$$;

-- Gives the key to the attempt, or returns the call that holds it. The holder's row stays locked until this transaction
-- ends, so the transaction that ends the holder sees the new waiter. The function waits for locks only briefly: a
-- frontend may lock the row of either call for as long as it likes. If the holder ends without seeing the new waiter,
-- gem.recover wakes the waiter.
create or replace function gem.take_key(p_call uuid, p_attempt integer, p_worker text, p_key text, out held boolean,
  out holder uuid)
language plpgsql set lock_timeout = '500ms' as $$ -- shorter than Postgres's default for detecting deadlocks
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
  begin -- lock the call's own row first: during the wait for that lock, the holder is not locked, and can end
    perform from public.core_tool_calls c where c.id = p_call for no key update;
  exception when lock_not_available then
    return;
  end;
  begin
    select h.call_id into holder from gem.held_keys h where h.key = p_key and h.call_id <> p_call for no key update;
  exception when lock_not_available then
    select h.call_id into holder from gem.held_keys h where h.key = p_key and h.call_id <> p_call;
  end;
end
$$;

-- Reports whether the input of p_call differs from that of the call that wrote p_receipt, not counting the key field.
-- Returns null if the earlier input is unknown. Signed-in users must not learn the inputs of others. If a signed-in
-- user made p_call and another user the earlier call, the inputs are therefore not compared. The result is then true if
-- p_refuse is true, and null otherwise. p_refuse means that the tool refuses a call if an earlier call with the same
-- key but a different input has succeeded. The function is volatile because the receipt may be newer than the calling
-- statement.
create or replace function gem.input_differs(p_call uuid, p_receipt uuid, p_key_field text,
  p_refuse boolean) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select case when own.signed_in and own.created_by is distinct from earlier.created_by then nullif(p_refuse, false)
    when p_key_field is null then own.input <> earlier.input
    else own.input - p_key_field <> earlier.input - p_key_field end
  from public.core_tool_receipts r join public.core_tool_calls earlier on earlier.id = r.call_id,
    public.core_tool_calls own
  where r.id = p_receipt and own.id = p_call
  union all
  select case when own.signed_in and own.created_by is distinct from kept.created_by then nullif(p_refuse, false)
    else jsonb_hash_extended(case when p_key_field is null then own.input else own.input - p_key_field end, 0)
      <> kept.input_hash end
  from gem.kept_keys kept, public.core_tool_calls own
  where kept.receipt_id = p_receipt and own.id = p_call
  limit 1
$$;

------------------------------------------------------------------------------------------------------------------------
-- running → succeeded | failed | not_configured
------------------------------------------------------------------------------------------------------------------------

-- Postgres could not tell the earlier functions from the new one, so they are dropped.
drop function if exists gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid, integer);
drop function if exists gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid, integer, text);
drop function if exists gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid, integer, text, uuid, bigint);
drop function if exists gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid, integer, text, uuid, bigint,
  text);

-- Ends a call in one statement: sets its status, and writes its last event and its receipt. Returns the receipt's id. A
-- handler's transaction ends with this function. p_steps is the number of steps that the attempt knows, and p_key the
-- key that it took. If the database has fewer steps, or does not have the key, a failover lost them: the function
-- raises GM001, and the call continues from the remaining steps. p_context describes the origin of a failure for
-- operators. Only the journal stores it. After a failover that lost a call's end, the end is written again (see
-- servers.sql). p_receipt is then the id that the receipt had before, and p_epoch the id of that failover in
-- gem.epochs.
--
-- The same transaction reports the end to the call's parent. If another transaction has locked the parent, as when
-- several children end at once, this transaction only marks the call that ended (waits_for), and gem.run_timers later
-- reports all marked calls together. The mark comes with a wake_at of a hundred years ago, so that the timers run at
-- once even if the clock is set back. p_child is false for a call that no handler and no rule made: the function then
-- does not look for a parent to report to.
--
-- Here and below, the planner must find the call by its id, so coalesce hides the other conditions from it. With
-- statistics from a quiet hour, the planner would otherwise use the index of running calls, which has an entry for
-- every call since the last vacuum.
create or replace function gem.finish(p_call uuid, p_attempt integer, p_worker text, p_status text, p_result jsonb,
  p_effects jsonb,
  p_registry_version text, p_replay_of uuid default null, p_steps integer default 0, p_context text default null,
  p_receipt uuid default null, p_epoch bigint default null, p_key text default null, p_child boolean default true)
returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at        timestamptz := gem.now();
  receipt   uuid        := coalesce(p_receipt, gem.receipt_id(p_call, at));
  freed_key text;
  parent    uuid;
  free      boolean; -- false: another transaction has locked the parent; null: there is none
  placed    boolean;
begin
  if p_replay_of is not null then
    select r.idempotency_key into freed_key from public.core_tool_receipts r where r.id = p_replay_of
      for key share; -- gem.prune may hold the lock for a while, and the parent must not be locked meanwhile
    if not found then
      select k.key into freed_key from gem.kept_keys k where k.receipt_id = p_replay_of;
    end if;
  end if;
  if p_child then
    select c.parent_call_id into parent
    from public.core_tool_calls c where c.id = p_call and c.parent_step is not null
      -- this may wait for a frontend that has locked the call, and the parent must not be locked meanwhile
      for no key update;
    free := case when found then gem.lock_parent(parent) end;
  end if;
  with ended as (
    update public.core_tool_calls c
    set status = p_status, error = p_result -> 'error', computed_key = coalesce(c.computed_key, freed_key),
      updated_at = at, events = c.events + 1, waits_for = case when not free then 'parent' end,
      wake_at = case when not free or (c.steps > 0 or p_attempt > 1) and gem.has_open_children(c.id)
        then at - interval '100 years' end
    where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running'
      and c.steps >= p_steps and (p_key is null or c.computed_key = p_key)
      and (p_child or c.parent_step is null), false)
    returning c.id, c.tool_name, c.claimed_at, c.events, c.computed_key, c.placed
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select id, events, at, p_status, p_attempt, p_worker,
      case when p_context is null and p_epoch is null then jsonb_build_object('receipt_id', receipt)
      else jsonb_strip_nulls(jsonb_build_object('receipt_id', receipt, 'context', p_context, 'restored', p_epoch)) end
    from ended
  ), written as (
    insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt,
      worker_id,
      registry_version, idempotency_key, replay_of, duration)
    select receipt, id, coalesce(tool_name, ''), p_status, p_result, p_effects, at, p_attempt, p_worker,
      p_registry_version, computed_key, p_replay_of, greatest(at - claimed_at, '0') from ended
  )
  select e.computed_key, e.placed into freed_key, placed from ended e;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  if freed_key is null and p_attempt > 1 then
    perform gem.wake_next(p_call, p_worker);
  elsif freed_key is not null and p_replay_of is null then -- after a hit, gem.hold_key has woken the waiters
    -- Postgres would plan this query at the end of each call without a key if it were part of the condition above.
    if exists (select from public.core_tool_calls w where w.status = 'waiting' and w.waits_for = 'key'
        and w.computed_key = freed_key) then
      perform gem.wake_waiting(freed_key, case when p_status = 'succeeded' then 100 else 1 end, p_worker);
    end if;
  end if;
  if free then
    perform gem.report_ends(parent, array[p_call], p_worker);
  end if;
  if placed then
    perform gem.leave_places(array[p_call], p_worker);
  end if;
  return receipt;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- running → queued: retried, released
------------------------------------------------------------------------------------------------------------------------

-- Requeues a call after a transient error. The call pauses first. p_backoff is doubled for each attempt used, limited
-- to p_most, and multiplied by a random factor from 0.5 to 1. The pause is at least p_at_least, which is limited to 15
-- minutes. Lost attempts count as spent. If the call's cancellation was requested during the attempt, the pause is 0,
-- so that the next claim ends the call or starts its clean-up. A clean-up that is retried pauses as usual. Returns the
-- end of the pause. If p_max_attempts are spent, returns null and changes nothing. p_effects are the effects of the
-- steps whose results are not in the journal. If the attempt may have had effects outside of Postgres that its journal
-- does not record, p_outside is the tool's idempotency mode in that attempt, otherwise null.
drop function if exists gem.retry(uuid, integer, text, jsonb, integer, interval, jsonb, interval, interval);
create or replace function gem.retry(p_call uuid, p_attempt integer, p_worker text, p_error jsonb,
  p_max_attempts integer, p_backoff interval,
  p_effects jsonb default null, p_at_least interval default '0', p_most interval default '15 minutes',
  p_outside text default null)
returns timestamptz language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  spent     integer;
  cancelled boolean;
begin
  select c.retries + c.losses, coalesce(c.steps = 0 or c.claimed_at <= c.cancel_requested_at, false)
    and c.cancel_requested_at is not null into spent, cancelled
  from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    for no key update;
  if spent + 1 >= p_max_attempts then
    return null;
  end if;
  return gem.put_back(p_call, p_attempt, p_worker, 'retried',
    case when cancelled then '0'
      else greatest(least(p_backoff * 2 ^ spent, p_most) * (0.5 + random() / 2),
        least(p_at_least, interval '15 minutes')) end,
    jsonb_build_object('error', p_error)
      || jsonb_strip_nulls(jsonb_build_object('effects', p_effects, 'outside', p_outside)));
end
$$;

-- Puts a call back at its old place in the queue because its worker is stopping. Another attempt can safely run the
-- call: the effects of this attempt, if any, were rolled back or are allowed to happen again. p_effects and p_outside
-- are as in gem.retry.
drop function if exists gem.release(uuid, integer, text, jsonb);
create or replace function gem.release(p_call uuid, p_attempt integer, p_worker text, p_effects jsonb default null,
  p_outside text default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform gem.put_back(p_call, p_attempt, p_worker, 'released',
    p_data => jsonb_strip_nulls(jsonb_build_object('effects', p_effects, 'outside', p_outside)));
  perform gem.wake_workers('again');
end
$$;

-- Reports whether an earlier attempt of the call may have had an effect outside of Postgres that must not happen twice.
-- An effect must not happen twice if the tool's mode was `none` then, or is `none` now (p_none). A mode that is
-- recorded as `unknown` counts as `none`, unless all effects of the present handler are in Postgres (p_inside). If the
-- mode was keyed then and is keyed now, the result is also true if the key has changed, because a service would not
-- recognise the second request as the same one. p_key is the present key, or null if the mode is not keyed now. A
-- deploy between the attempts may change the tool's mode and its key field, but not the effects of the earlier attempt.
-- In the events `lost`, `retried` and `released`, `outside` is the mode under which an attempt may have had such
-- effects. If that mode was `keyed`, `key` is the key that the attempt held.
drop function if exists gem.must_not_repeat(uuid, boolean, boolean);
create or replace function gem.must_not_repeat(p_call uuid, p_none boolean, p_inside boolean, p_key text)
returns boolean language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select exists (select from public.core_tool_events e
    where e.call_id = p_call and e.event in ('lost', 'retried', 'released') and e.data ? 'outside'
      and case e.data ->> 'outside' when 'none' then true when 'unknown' then not p_inside
        when 'keyed' then p_none or coalesce(e.data ->> 'key' <> p_key, false) else p_none end)
$$;
drop function if exists gem.lost_under_none(uuid, text);

-- Leaves a call to workers that declared a capability. Returns false, and changes nothing, if gem.lived_lately finds no
-- such worker. Once no such worker has been alive for five minutes, gem.recover lets any worker claim the call.
create or replace function gem.leave_to(p_call uuid, p_attempt integer, p_worker text, p_needs text)
returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not gem.lived_lately(p_needs, gem.now()) then
    return false;
  end if;
  perform gem.put_back(p_call, p_attempt, p_worker, 'released', p_data => jsonb_build_object('needs', p_needs),
    p_needs => p_needs);
  perform gem.wake_workers(); -- a worker whose cursor is past this call finds it in a claim without cursors
  return true;
end
$$;

-- Puts a running call back in the queue: at its old place, or to start later, after p_pause or at p_starts_at (see
-- rules.sql). Returns the end of the pause. If the row's old run_at is in the future, the clock was set back after the
-- claim, so the call is due now. p_at is the time at which the caller decided to put the call back; by default now.
drop function if exists gem.put_back(uuid, integer, text, text, interval, jsonb, text, timestamptz);
create or replace function gem.put_back(p_call uuid, p_attempt integer, p_worker text, p_event text,
  p_pause interval default null, p_data jsonb default null, p_needs text default null,
  p_starts_at timestamptz default null, p_at timestamptz default null)
returns timestamptz language plpgsql as $$
declare
  at        timestamptz := coalesce(p_at, gem.now());
  again     timestamptz := at + p_pause;
  freed_key text;
  placed    boolean;
begin
  select c.computed_key, c.placed into freed_key, placed -- a durable call keeps its key until it ends
  from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  with freed as (
    update public.core_tool_calls c
    set status = 'queued', run_at = coalesce(again, p_starts_at, least(c.run_at, at)),
      retries = c.retries + (again is not null)::integer,
        computed_key = case when c.steps > 0 then c.computed_key end, claimed_by = null, claimed_at = null,
          updated_at = at, placed = false,
        events = c.events + 1, needs = coalesce(p_needs, c.needs)
    where c.id = p_call
    returning c.events, c.computed_key, c.run_at
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select p_call, events, at, p_event, p_attempt, p_worker,
      coalesce(p_data, '{}') || jsonb_build_object('run_at', run_at)
        || case when freed_key is not null and p_data ->> 'outside' = 'keyed'
          then jsonb_build_object('key', freed_key) else '{}' end
    from freed
  )
  select nullif(freed_key, f.computed_key) into freed_key from freed f;
  if freed_key is not null then
    perform gem.wake_waiting(freed_key, 1, p_worker);
  end if;
  if placed then
    perform gem.leave_places(array[p_call], p_worker);
    perform gem.leave_level(array[p_call]);
  end if;
  return again;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- waiting → queued: woken
------------------------------------------------------------------------------------------------------------------------

-- Wakes the first calls that wait for a key, and returns their number. After a success p_most is 100: each woken call
-- is a hit and wakes the next 100, so that no transaction takes long. Otherwise p_most is 1, and the woken call takes
-- the key. The function skips locked calls. If no call remains to wake the others, gem.recover wakes them.
create or replace function gem.wake_waiting(p_key text, p_most integer, p_worker text) returns integer
  language plpgsql as $$
declare
  at  timestamptz := gem.now();
  ids uuid[];
begin
  ids := array(
    select w.id from public.core_tool_calls w where w.status = 'waiting' and w.waits_for = 'key'
      and w.computed_key = p_key
    order by w.tool_name, w.asked_for, w.level desc, w.seq limit p_most for no key update skip locked);
  if cardinality(ids) > 0 then -- for an empty array the planner would scan a whole partial index
    with woken as (
      update public.core_tool_calls c
      set status = 'queued', waits_for = null, computed_key = null, run_at = least(c.run_at, at), updated_at = at,
        events = c.events + 1
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

-- Wakes the next waiter for a key after a woken call ended without taking the key. If a frontend cancelled the woken
-- call before it ran, gem.recover wakes the next waiter, because a frontend's transaction must not lock other users'
-- calls.
create or replace function gem.wake_next(p_call uuid, p_worker text) returns void language plpgsql as $$
declare
  key text := (select e.data ->> 'key' from public.core_tool_events e where e.call_id = p_call and e.event = 'waiting'
    order by e.seq desc limit 1);
begin
  if key is not null then
    perform gem.wake_waiting(key, 1, p_worker);
  end if;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- queued | waiting → failed, running → running: cancelled
------------------------------------------------------------------------------------------------------------------------

-- Cancels a call. The function is in the schema public because frontends use it. Returns `cancelled` if the call ended
-- at once, `requested` if it is running or has made progress, or its status if it had already ended. A question with an
-- accepted answer ends with that answer, and the function returns `requested`. Callers with a token can cancel only
-- their own calls; service_role and sessions without a token can cancel any call. A signed-in user cannot cancel a
-- question that rules ask: the rules would ask it again, and could bother people forever. PostgREST maps PT404 to the
-- HTTP status 404.
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
        -- users cannot cancel a call that has no owner
        and (call.created_by = nullif(claims ->> 'sub', '')) is not true) then
    perform gem.refuse('PT404', 'call %s does not exist, or you may not cancel it', null, cancel_tool_call.id::text);
  elsif claims is not null and claims ->> 'role' is distinct from 'service_role' and call.parent_step like '##%'
    and not gem.is_final(call.status) then
    perform gem.refuse('PT409', 'call %s is a rule''s question about call %s, and cannot be cancelled on its own',
      'Cancel that call instead.',
      call.id::text, call.parent_call_id::text);
  end if;
  return gem.cancel(call.id, jsonb_strip_nulls(jsonb_build_object('by', gem.subject())));
end
$$;

-- Ends a call, or requests its end, as public.cancel_tool_call describes. The caller has locked the row. p_who is
-- stored in the event: {by, reason}, or {} if the call is cancelled because another call ended.
create or replace function gem.cancel(p_call uuid, p_who jsonb default '{}') returns text language plpgsql as $$
declare
  at      timestamptz := gem.now();
  call    record;
  failure jsonb;
begin
  select c.id, c.status, c.attempt, c.losses, c.steps, gem.asks(c.tool_name) as asks, c.waits_for, c.placed,
    coalesce(c.tool_name, '') as tool_name, c.cancel_requested_at into call
  from public.core_tool_calls c where c.id = p_call;
  if gem.is_final(call.status) then
    return call.status;
  elsif gem.is_answered(p_call, call.tool_name) then
    return 'requested'; -- the worker ends the question with its answer
  elsif call.status = 'running' or call.placed -- the next claim ends it: a frontend must not lock a rule's counter
    or call.steps > 0 and call.attempt > 0 and call.cancel_requested_at is null
      and call.waits_for is distinct from 'key' then
    if call.cancel_requested_at is null then
      with asked as (
        update public.core_tool_calls c
        -- the pause of a retry must not delay the cancellation
        set cancel_requested_at = at, updated_at = at, events = c.events + 1, run_at = least(c.run_at, at)
        where c.id = call.id returning c.events, c.run_at
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
      select call.id, events, at, 'cancel_requested', call.attempt, p_who || jsonb_build_object('run_at', run_at)
        from asked;
      if call.status = 'running' then
        perform gem.notify('cancel'); -- the worker listens, or sees the request at its next heartbeat
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
      then 'The call was cancelled while it waited to run again. '
        'The effects of earlier attempts, whose workers were lost, are not known.'
      when call.asks then 'The question was cancelled before it was answered.'
      when call.steps > 0 then
        'The call was cancelled before it continued. The effects of its steps remain, and the receipt lists them.'
      when call.attempt > 0 then 'The call was cancelled before it ran again.'
      else 'The call was cancelled before it ran.' end,
    'details', jsonb_build_object('lost_attempts', call.losses));
  perform gem.end_without_worker(p_call, 'failed', jsonb_build_object('error', failure), at, p_who);
  return 'cancelled';
end
$$;

-- Ends a queued or waiting call that was cancelled (p_who is as in gem.cancel), or a question that was answered or
-- whose deadline has passed (p_who is null). The caller has locked its row. A frontend's transaction must not lock
-- other calls, so this function only marks the call, and a worker's timers then notify the parent.
create or replace function gem.end_without_worker(p_call uuid, p_status text, p_result jsonb, p_at timestamptz,
  p_who jsonb) returns void language plpgsql as $$
declare
  receipt uuid := gem.receipt_id(p_call, p_at);
  call    record;
begin
  update public.core_tool_calls c
  set status = p_status, error = p_result -> 'error', computed_key = null, waits = null, need = null,
      waits_for = case when c.parent_step is not null then 'parent' end,
      wake_at = case when c.parent_step is not null or gem.has_open_children(c.id) then p_at - interval '100 years' end,
      cancel_requested_at = case when p_who is null then c.cancel_requested_at
        else coalesce(c.cancel_requested_at, p_at) end,
      updated_at = p_at, events = c.events + 1
  where c.id = p_call returning c.events, c.attempt, c.tool_name, c.waits_for, c.awaited into call;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
  values (p_call, call.events, p_at, p_status, call.attempt,
    coalesce(p_who, '{}') || jsonb_build_object('receipt_id', receipt));
  insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt,
    registry_version)
  values (receipt, p_call, coalesce(call.tool_name, ''), p_status, p_result,
    case when call.attempt > 0 then gem.step_effects(p_call) else '{}' end, p_at, call.attempt,
    (select e.data ->> 'registry_version' from public.core_tool_events e
      where e.call_id = p_call and e.seq = 2 and e.event = 'waiting')); -- for a question only: see gem.question_waits
  if call.waits_for = 'parent' then
    perform gem.wake_workers('timers');
  end if;
  if call.awaited then
    perform gem.tell_ended(array[p_call]);
  end if;
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.claim(text, integer, boolean, jsonb, integer),
  gem.hold_key(uuid, integer, text, text), gem.input_differs(uuid, uuid, text, boolean),
  gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid, integer, text, uuid, bigint, text, boolean),
  gem.retry(uuid, integer, text, jsonb, integer, interval, jsonb, interval, interval, text),
  gem.release(uuid, integer, text, jsonb, text), gem.leave_to(uuid, integer, text, text),
    gem.must_not_repeat(uuid, boolean, boolean, text),
  gem.tell_ended(uuid[])');
revoke all on all functions in schema gem from public;

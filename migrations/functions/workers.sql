-- These functions track which workers are alive, and recover the calls of dead workers. All decisions use Postgres's
-- clock, never a worker's.

-- Records the registry that a worker is about to run with. Returns the recorded registry of that version. It differs if
-- another worker recorded another registry under that version earlier.
create or replace function gem.record_registry(p_version text, p_sha256 text, p_registry jsonb)
returns table (sha256 text, registry jsonb) language plpgsql security definer set search_path = pg_catalog,
  pg_temp as $$
begin
  insert into public.core_registry_versions (version, sha256, registry, recorded_at)
    values (p_version, p_sha256, p_registry, gem.now())
  on conflict do nothing;
  return query select v.sha256, v.registry from public.core_registry_versions v where v.version = p_version;
end
$$;

-- Makes gem.tools the registry in force. A tool is open to signed-in users if its entry has "frontends": true. Without
-- that field, it is open if its only permissions are read:db and write:db (as in registry.Tool in Go).
create or replace function gem.keep_tools() returns void language plpgsql security definer set search_path = pg_catalog,
  pg_temp as $$
declare
  at      timestamptz := gem.now();
  living  text[];
  names   text[];
  opened  boolean[];
  entries jsonb[];
begin
  lock table gem.tools in share row exclusive mode; -- later transactions must see the rows of earlier ones
  living := array(select distinct w.registry_version from public.core_workers w where w.stopped_at is null
    and w.alive_until > at);
  if not exists (select from public.core_registry_versions v where v.version = any (living)) then
    living := array(select v.version from public.core_registry_versions v order by v.recorded_at desc limit 1);
  end if;
  select array_agg(known.name order by known.name), array_agg(known.frontends order by known.name),
    array_agg(known.entry order by known.name)
  into names, opened, entries
  from (
    select distinct on (t ->> 'name') t ->> 'name' as name, t as entry, coalesce((t ->> 'frontends')::boolean,
      not exists (select from jsonb_array_elements_text(t -> 'permissions') p
        where p not in ('read:db', 'write:db'))) as frontends
    from public.core_registry_versions v, jsonb_array_elements(v.registry -> 'tools') t
    where v.version = any (living)
    order by t ->> 'name', v.recorded_at desc) known;
  delete from gem.tools t where (t.name = any (names)) is not true;
  insert into gem.tools as t (name, frontends, entry) select * from unnest(names, opened, entries)
  on conflict (name) do update set frontends = excluded.frontends, entry = excluded.entry
    where t.entry <> excluded.entry;
end
$$;

-- Reports whether a worker with a capability was alive in the last five minutes. Its program may be restarting.
create or replace function gem.lived_lately(p_can text, p_at timestamptz) returns boolean language sql stable as $$
  select exists (select from public.core_workers w where w.alive_until > p_at - interval '5 minutes'
    and p_can = any (w.can))
$$;

-- p_can lists the capabilities of the worker's program; the worker gets no call that needs another capability.
-- p_rules_version is null for a worker that runs without rules.
drop function if exists gem.start_worker(text, integer, text, text, interval, text[], text);
create or replace function gem.start_worker(p_worker text, p_concurrency integer, p_gem_version text,
  p_registry_version text,
  p_dead_after interval, p_can text[] default '{}', p_rules_version text default null, p_outside jsonb default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at   timestamptz := gem.now();
  last timestamptz := greatest( -- the latest time that the clock is known to have shown: at a heartbeat or an insert
    (select w.heartbeat_at from public.core_workers w where w.alive_until > at order by w.alive_until desc limit 1),
    (select e.at from public.core_tool_events e where e.seq = 1 order by e.at desc limit 1));
begin
  if last > at + interval '1 second' then -- the clock went back while no worker ran
    perform gem.clock_went_back(last - at, at, p_dead_after);
  end if;
  insert into public.core_workers (worker_id, concurrency, gem_version, registry_version, can, rules_version,
    outside, started_at, heartbeat_at,
    alive_until, clock_back, clock_until)
  select p_worker, p_concurrency, p_gem_version, p_registry_version, p_can, p_rules_version, p_outside, at, at,
    at + p_dead_after,
    jump.clock_back, jump.clock_until
  from (values (1)) one left join lateral (
    select w.clock_back, w.clock_until from public.core_workers w where w.clock_until > at
    union all
    select last - at, last + p_dead_after where last > at + interval '1 second'
    order by clock_until desc limit 1) jump on true;
  perform gem.meet_server(p_worker);
  perform gem.keep_tools();
end
$$;

-- Adds a tool to the ones whose work the worker does outside of the receipt's transaction, with its mode. It commits
-- before the handler begins, so gem.recover sees it. It never removes a tool that has moved back.
create or replace function gem.note_outside(p_worker text, p_tool text, p_mode text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update public.core_workers w set outside = w.outside || jsonb_build_object(p_tool, p_mode)
    where w.worker_id = p_worker;
  if not found then
    perform gem.refuse('GM002', 'worker %s is not registered', null, p_worker);
  end if;
end
$$;

create or replace function gem.stop_worker(p_worker text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update public.core_workers set stopped_at = gem.now(), wants_wake = false, alive_until = least(alive_until, gem.now())
    where worker_id = p_worker;
  select gem.keep_tools();
$$;

-- Records whether a worker is idle and wants to be notified of the next insert.
create or replace function gem.want_wake(p_worker text, p_wanted boolean) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  update public.core_workers set wants_wake = p_wanted where worker_id = p_worker;
$$;

-- Extends the worker's life by p_dead_after, and checks the attempts that it runs, given as the parallel arrays p_calls
-- and p_attempts. Returns one row for each attempt that needs action: `cancel` if cancellation was requested, `lost` if
-- the attempt no longer holds its call. With p_full it checks all running calls: it returns `unknown` for calls that
-- this worker holds but did not list, and requeues the calls of all dead workers. Without p_full it requeues only the
-- calls of workers that died in the last minutes.
--
-- A worker whose own heartbeats were late or slow does not declare other workers dead: the outage or the table lock
-- that delayed it may have delayed the others, too. With p_full it then gets one row, `late`, and asks again with
-- p_full. So does a worker that requeued a thousand calls, as there may be more.
create or replace function gem.heartbeat(p_worker text, p_dead_after interval, p_calls uuid[], p_attempts integer[],
  p_full boolean)
returns table (call_id uuid, attempt integer, verdict text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- use the indexes on ids, whatever the statistics are
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
  set jit = off -- the plan only looks expensive
as $$
declare
  at     timestamptz;
  before record;
  late   boolean;
begin
  select w.alive_until, w.heartbeat_at, w.steady_since, w.server <> gem.server() as moved into before
  from public.core_workers w where w.worker_id = p_worker for update;
  if not found then -- its row was removed after a long silence
    perform gem.refuse('GM002', 'worker %s is not registered', null, p_worker);
  end if;
  at := gem.now(); -- read the time after waiting for the row
  late := before.alive_until <= at or before.heartbeat_at < at - 0.7 * p_dead_after;
  if before.heartbeat_at > at + interval '1 second' then
    perform gem.clock_went_back(before.heartbeat_at - at, at, p_dead_after);
  end if;
  update public.core_workers w
  set heartbeat_at = at, alive_until = at + p_dead_after, stopped_at = null,
      steady_since = case when late or w.steady_since > at then at else w.steady_since end,
      clock_back = case when w.clock_until > at then w.clock_back end, clock_until = case
        when w.clock_until > at then w.clock_until end
  where w.worker_id = p_worker;

  if not late and before.moved is not true and coalesce(before.steady_since < at - 0.5 * p_dead_after, true) then
    late := gem.recover(p_worker, case when p_full then null else at - interval '3 minutes' end) >= 1000; -- not all
  else
    late := p_full;
  end if;
  if late then
    return query select '00000000-0000-0000-0000-000000000000'::uuid, 0, 'late';
  end if;
  if before.moved then
    return query select '00000000-0000-0000-0000-000000000000'::uuid, 0, 'moved';
  end if;
  return query
  select mine.call_id, mine.attempt, case when running.id is null then 'lost' else 'cancel' end
  from unnest(p_calls, p_attempts) as mine (call_id, attempt)
  left join lateral (
    select c.id, c.cancel_requested_at from public.core_tool_calls c
    where c.id = mine.call_id and coalesce(c.attempt = mine.attempt and c.claimed_by = p_worker
      and c.status = 'running', false)
  ) running on true
  where running.id is null or running.cancel_requested_at is not null;
  if p_full then
    return query
    select c.id, c.attempt, 'unknown' from public.core_tool_calls c
    where c.status = 'running' and c.claimed_by = p_worker and c.id <> all (p_calls);
  end if;
  if gem.now() > at + 0.1 * p_dead_after then
    update public.core_workers w set steady_since = gem.now() where w.worker_id = p_worker;
  end if;
end
$$;

-- Adjusts the workers' rows after somebody set Postgres's clock back. It moves their times to the new time, and records
-- the difference for each worker, so that its claims find the calls that are due (see gem.claim).
create or replace function gem.clock_went_back(p_back interval, p_at timestamptz, p_dead_after interval) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  update public.core_workers w
  set heartbeat_at = w.heartbeat_at - p_back, alive_until = w.alive_until - p_back, steady_since = null,
      clock_back = coalesce(w.clock_back, '0') + p_back,
      clock_until = greatest(w.clock_until, w.heartbeat_at + p_dead_after, p_at + p_back + p_dead_after)
  where w.worker_id in (select o.worker_id from public.core_workers o
    where o.heartbeat_at > p_at for update skip locked);
  perform gem.notify('again');
end
$$;

-- running → queued: lost. Requeues the calls of workers that died or stopped since p_since. If p_since is null, it
-- requeues the calls of all dead, stopped and unknown workers. Returns the number of calls. The worker that claims a
-- lost call decides whether it may run again. The function also wakes waiters of keys that no call holds, removes old
-- rows of workers and of progress, and closes lost requests to models.
create or replace function gem.recover(p_worker text, p_since timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at     timestamptz := gem.now();
  dead   text[];
  ids    uuid[];
  keys   text[];
  placed uuid[]; -- the calls that may have places
  looked text[]; -- keys
  behind text; -- the last key that was looked at
  free   text; -- a key
  -- after a failover, workers that have not met the server yet count as alive for a while
  grace  boolean := exists (select from gem.epochs e where e.server = gem.server() and gem.may_lack_commits(e.why)
    and e.at > gem.now() - interval '15 seconds');
begin
  -- To limit the load, each step handles a thousand calls, and the next heartbeat continues.
  if p_since is null then
    perform gem.keep_tools(); -- removes the tools of dead workers
    -- If no worker with the needed capability was alive lately, any worker may claim the call and report the missing
    -- capability. Such calls move to the front of the queue, because claims start there.
    ids := array(
      select c.id from gem.levels l, lateral (
        select f.id, f.needs from public.core_tool_calls f where f.status = 'queued' and f.level = l.level
        order by f.level, f.run_at, f.seq limit 1000) first
      join public.core_tool_calls c on c.id = first.id
      where first.needs is not null and not gem.lived_lately(first.needs, at)
      for no key update of c skip locked);
    if cardinality(ids) > 0 then
      update public.core_tool_calls c set needs = null where c.id = any (ids);
      perform gem.wake_workers('again');
    end if;
    ids := array(
      select c.id from public.core_tool_calls c
      where c.status = 'running' and not exists (
        select from public.core_workers w
        where w.worker_id = c.claimed_by and w.stopped_at is null
          and (w.alive_until > at or grace and w.server <> gem.server()))
      limit 1000 for no key update of c skip locked);
  else
    dead := array(
      select w.worker_id from public.core_workers w
      where w.alive_until > p_since and w.alive_until <= at and (grace and w.server <> gem.server()) is not true
      order by w.alive_until desc limit 1000);
    ids := array(
      select c.id from public.core_tool_calls c
      where c.status = 'running' and c.claimed_by = any (dead)
      limit 1000 for no key update of c skip locked);
  end if;

  if cardinality(ids) > 0 then -- for an empty array the planner would scan a whole partial index
    with orphan as (
      select c.id, c.claimed_by, c.placed, case when c.steps = 0 then c.computed_key end as freed_key,
        case when w.outside is null then 'unknown' else w.outside ->> c.tool_name end as outside
      from public.core_tool_calls c left join public.core_workers w on w.worker_id = c.claimed_by
      where c.id = any (ids)
    ), freed as (
      update public.core_tool_calls c
      set status = 'queued', losses = c.losses + 1, kills = c.kills + 1, computed_key = case
        when c.steps > 0 then c.computed_key end, claimed_by = null, claimed_at = null, placed = false,
          run_at = least(c.run_at, at), updated_at = at, events = c.events + 1
      from orphan where c.id = orphan.id
      returning c.id, c.events, c.attempt, c.run_at, orphan.claimed_by as lost_worker, orphan.freed_key, orphan.outside,
        orphan.placed,
        case when orphan.outside = 'keyed' then orphan.freed_key end as key
    ), journal as (
      insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      select id, events, at, 'lost', attempt, p_worker, jsonb_strip_nulls(
        jsonb_build_object('lost_worker', lost_worker, 'run_at', run_at, 'outside', outside, 'key', key)) from freed
    )
    select array_agg(freed_key) filter (where freed_key is not null), array_agg(id) filter (where freed.placed)
      into keys, placed from freed;
    perform gem.wake_workers('again');
  end if;

  -- These calls wait for a key that no call holds: its holder was lost, or the woken calls ended without taking it. The
  -- loop handles the keys one by one, because any number of calls may wait for each. It looks at two hundred keys in
  -- one step, and continues behind them in the next: thousands of keys that calls hold must not delay heartbeats. The
  -- next waiter of a key wakes after five seconds at the earliest, because the first may have to wait for a slot.
  perform gem.wake_waiting(k, 1, p_worker) from unnest(keys) k;
  select w.keys_from into behind from public.core_workers w where w.worker_id = p_worker;
  looked := array(
    with recursive parked (key, n) as (
      (select w.computed_key, 1 from public.core_tool_calls w where w.status = 'waiting' and w.waits_for = 'key'
          and w.computed_key > coalesce(behind, '')
        order by w.computed_key limit 1)
      union all
      select (select w.computed_key from public.core_tool_calls w
        where w.status = 'waiting' and w.waits_for = 'key' and w.computed_key > parked.key
          order by w.computed_key limit 1), parked.n + 1
      from parked where parked.key is not null and parked.n < 200
    )
    select parked.key from parked where parked.key is not null order by parked.n);
  if looked[200] is distinct from behind then
    update public.core_workers w set keys_from = looked[200] where w.worker_id = p_worker;
  end if;
  for free in
    select parked.key from unnest(looked) as parked (key)
    where not exists (select from gem.held_keys h where h.key = parked.key)
      and ( -- skips calls that have just begun to wait, even if the clock went back
        select w.updated_at not between at - interval '5 seconds' and at + interval '1 second'
          from public.core_tool_calls w
        where w.status = 'waiting' and w.waits_for = 'key' and w.computed_key = parked.key
        order by w.tool_name, w.asked_for, w.level desc, w.seq limit 1)
  loop
    if gem.wake_waiting(free, 1, p_worker) > 0 then
      update public.core_tool_calls c set updated_at = at where c.id = (
        select w.id from public.core_tool_calls w where w.status = 'waiting' and w.waits_for = 'key'
          and w.computed_key = free
        order by w.tool_name, w.asked_for, w.level desc, w.seq limit 1 for no key update skip locked);
    end if;
  end loop;

  -- Removes workers that ended more than an hour ago, a thousand per step, once their calls are requeued: the row has
  -- the modes under which they ran.
  delete from public.core_workers w where w.worker_id in (
    select d.worker_id from public.core_workers d where d.alive_until < at - interval '1 hour'
      and not exists (select from public.core_tool_calls c where c.status = 'running' and c.claimed_by = d.worker_id)
    order by d.alive_until limit 1000 for update skip locked);
  if p_since is null then
    perform gem.forget_answers();
    perform gem.llm_sweep();
  end if;
  if placed is not null then
    perform gem.leave_places(placed, p_worker);
    perform gem.leave_level(placed);
  end if;
  perform gem.wake_placed(p_worker);
  perform gem.forget_progress(); -- workers may write thousands of rows per second
  return cardinality(ids);
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.record_registry(text, text, jsonb),
  gem.start_worker(text, integer, text, text, interval, text[], text, jsonb), gem.note_outside(text, text, text),
    gem.stop_worker(text),
    gem.want_wake(text, boolean),
  gem.heartbeat(text, interval, uuid[], integer[], boolean)');
revoke all on all functions in schema gem from public;

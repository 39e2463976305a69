-- Durable handlers wait for the ends of calls that they made, their children; for answers; and for times. A call that waits is in no
-- process, and no claim reads its row. All that comes is written into its journal, whether it waits by then or not:
--
--   called     {name, call_id, tool}                  the handler made a call
--   waiting    {for: [name], until: {name: time}}     it waits for some of these names: need says for how many; clean_up: to clean up
--   returned   {name, call_id, status, receipt_id}    such a call has ended; its result is on its receipt
--   answered   {name, value, by}                      someone answered: see answers.sql
--   timed_out  {names}                                the time of these names has come first
--   waiting    {code: {name, message}}                a program cannot read its journal, or lacks its tool: it waits for another
--   woken                                             enough has come: it is back in the queue
--
-- gem.wait and gem.came lock the row of the call that waits before they look: whichever comes second sees what the first one wrote. A
-- transaction locks a call and then its parent, for which it waits a moment only, and never waits for a child's row.

create or replace function gem.has_open_children(p_call uuid) returns boolean language sql stable as $$
  select exists (select from public.core_tool_calls k
    where k.parent_call_id = p_call and k.parent_step is not null and k.status in ('queued', 'running', 'waiting'))
$$;

-- Makes the calls of p_start, [{id, name, tool, input, traceparent, chosen}], and waits until p_need of the names p_for have come. `chosen`: a
-- model or a document chose the call, not the handler's code, so a question counts as a user's (gem.asked_for). Returns
--   here       they have, or p_need is 0
--   parked     the call waits (running → waiting), and is no longer the attempt's
--   cancelled  someone asked for its end, and nothing was done. With p_cleanup the handler cleans up: it makes calls and waits all the same, for an
--              hour after that at most, and the event says clean_up
-- p_until has times for some of the names: {name: milliseconds from now, or the time itself}. p_for_what is what waits_for says.
-- p_deadline is how many milliseconds after it was to run (gem.due) the call is woken in any case. p_effects are those of steps that were not
-- kept. p_steps is how many steps the attempt knows of (see gem.finish), and steps the call's count of them by then. A call whose name is there is not made again. GM003: the call is a child of a child and
-- so on, too deep to have children.
create or replace function gem.wait(p_call uuid, p_attempt integer, p_worker text, p_start jsonb, p_for_what text, p_for text[], p_need integer,
  p_until jsonb, p_effects jsonb, p_cleanup boolean default false, p_deadline bigint default null, p_steps integer default 0, out verdict text, out steps integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at        timestamptz;
  call      record;
  made      integer := 0;
  here      text[];
  late      text[];
  missing   text[]; -- of p_for
  deadlines jsonb;
begin
  select c.id, c.events, c.steps, c.session_id, c.created_by, c.signed_in, c.priority, c.traceparent, c.cancel_requested_at,
    c.cancel_requested_at + interval '1 hour' as cleaned_up into call
  from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running' and c.steps >= p_steps, false)
  for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  at := gem.now();
  steps := call.steps;
  here := array(
    select distinct e.data ->> 'name' from public.core_tool_events e
    where e.call_id = p_call and e.event in ('returned', 'answered') and e.data ->> 'name' = any (p_for)
    union
    select n from public.core_tool_events e, jsonb_array_elements_text(e.data -> 'names') n
    where e.call_id = p_call and e.event = 'timed_out' and n = any (p_for));
  if (cardinality(here) < p_need or jsonb_array_length(p_start) > 0)
    and (call.cleaned_up <= at or call.cancel_requested_at is not null and not p_cleanup) then
    verdict := 'cancelled';
    return;
  end if;

  if jsonb_array_length(p_start) > 0 then
    if (select max(a.depth) from gem.ancestors(p_call, true) a) >= 8 then
      perform gem.refuse('GM003', 'call %s is a child of the eighth generation, and may have no children', null, p_call::text);
    end if;
    with started as (
      select s.ordinality, s.value ->> 'id' as id, s.value ->> 'name' as name, s.value ->> 'tool' as tool, s.value -> 'input' as input,
        s.value ->> 'traceparent' as traceparent, case when s.value -> 'chosen' = 'true' then 'user' end as asked_for
      from jsonb_array_elements(p_start) with ordinality s
    ), child as (
      insert into public.core_tool_calls (id, tool_name, input, session_id, parent_call_id, parent_step, created_by, signed_in, priority, traceparent,
        run_at, asked_for)
      select s.id::uuid, s.tool, s.input, call.session_id, p_call, s.name, call.created_by, call.signed_in, call.priority,
        coalesce(s.traceparent, call.traceparent), at, s.asked_for
      from started s order by s.ordinality
      on conflict (parent_call_id, parent_step) where parent_call_id is not null do nothing -- an earlier try made it
      returning id, parent_step, tool_name
    ), journal as (
      insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      select p_call, call.events + row_number() over (order by s.ordinality), at, 'called', p_attempt, p_worker,
        jsonb_build_object('name', child.parent_step, 'call_id', child.id, 'tool', child.tool_name)
      from child join started s on s.name = child.parent_step
      returning 1
    )
    select count(*) into made from journal;
    if made > 0 and call.signed_in and jsonb_path_exists(p_start, '$[*] ? (@.chosen == true && @.tool starts with "wait.")') then
      perform gem.check_questions(call.created_by);
    end if;
  end if;

  select jsonb_object_agg(u.key, case jsonb_typeof(u.value) when 'number' then to_jsonb(at + (u.value::text || ' milliseconds')::interval) else u.value end)
  into deadlines from jsonb_each(p_until) u where u.key <> all (here);
  late := array(select d.key from jsonb_each_text(deadlines) d where d.value::timestamptz <= at and d.key = any (p_for) order by d.key);
  if cardinality(late) > 0 then
    made := made + 1;
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    values (p_call, call.events + made, at, 'timed_out', p_attempt, p_worker, jsonb_build_object('names', late));
  end if;

  if cardinality(here) + cardinality(late) >= p_need then
    verdict := 'here';
    if made > 0 then
      update public.core_tool_calls c set steps = c.steps + made, retries = 0, losses = 0, updated_at = at, events = c.events + made
      where c.id = p_call returning c.steps into steps;
    end if;
    return;
  end if;
  verdict := 'parked';
  missing := array(select n from unnest(p_for) with ordinality f (n, place) where n <> all (here || late) order by place);
  update public.core_tool_calls c
  set status = 'waiting', waits_for = p_for_what, waits = missing, need = p_need - cardinality(here) - cardinality(late),
      wake_at = least(call.cleaned_up, gem.due(p_call) + (p_deadline || ' milliseconds')::interval,
        (select min(d.value::timestamptz) from jsonb_each_text(deadlines) d where d.key <> all (late))),
      claimed_by = null, claimed_at = null, steps = c.steps + made + 1, retries = 0, losses = 0, kills = 0, updated_at = at, events = c.events + made + 1
  where c.id = p_call returning c.steps into steps;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call, call.events + made + 1, at, 'waiting', p_attempt, p_worker, jsonb_build_object('for', missing)
    || case when deadlines is null then '{}' else jsonb_build_object('until', deadlines) end
    || case when p_cleanup then '{"clean_up": true}' else '{}'::jsonb end
    || case when p_effects is null then '{}' else jsonb_build_object('effects', p_effects) end);
end
$$;

-- Puts a call aside that the program of its worker cannot go on with; p_why says why. It is looked at again after 1, 2, 4 and so on up to 60
-- minutes since its last progress, when a worker starts (gem.try_code), and by gem.resume. Its worker ends it p_deadline milliseconds after
-- it was to run (gem.due), or an hour after someone asked for its end.
create or replace function gem.wait_for_code(p_call uuid, p_attempt integer, p_worker text, p_why jsonb, p_effects jsonb, p_deadline bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at    timestamptz;
  tries bigint;
begin
  perform from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false) for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  at := gem.now();
  select count(*) filter (where e.data ? 'code' and e.seq > p.last) into tries
  from public.core_tool_events e, (
    select coalesce(max(l.seq), 0) as last from public.core_tool_events l
    where l.call_id = p_call and (l.event in ('began', 'step', 'called') or l.event = 'waiting' and l.data ? 'for')) p
  where e.call_id = p_call and e.event = 'waiting';
  with parked as (
    update public.core_tool_calls c
    set status = 'waiting', waits_for = 'code', wake_at = least(at + least(interval '1 minute' * 2 ^ least(tries, 6), interval '1 hour'),
          greatest(at, least(gem.due(c.id) + (p_deadline || ' milliseconds')::interval, c.cancel_requested_at + interval '1 hour'))),
        claimed_by = null, claimed_at = null, updated_at = at, events = c.events + 1
    where c.id = p_call returning c.events
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  select p_call, events, at, 'waiting', p_attempt, p_worker, jsonb_build_object('code', p_why)
    || case when p_effects is null then '{}' else jsonb_build_object('effects', p_effects) end from parked;
end
$$;

-- Lets calls that wait for code look again, a thousand at most: the program of a worker that has just started may be what they wait for.
create or replace function gem.try_code() returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at timestamptz := gem.now();
begin
  update public.core_tool_calls c set wake_at = at where c.id in (
    select o.id from public.core_tool_calls o where o.status = 'waiting' and o.waits_for = 'code' limit 1000 for no key update skip locked);
end
$$;

-- Writes what came into the journal of a call that has not ended, and wakes it if it waited for this and enough has come. Returns false, and
-- does nothing, if the call's row is locked for longer than a moment: a frontend may have it locked for as long as it likes.
create or replace function gem.came(p_call uuid, p_event text, p_name text, p_data jsonb, p_worker text) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
declare
  at   timestamptz;
  call record;
begin
  select c.status, c.attempt, c.events, c.need - 1 as need, c.status = 'waiting' and p_name = any (c.waits) as awaited into call
  from public.core_tool_calls c where c.id = p_call for no key update;
  if call.status is null or gem.is_final(call.status) then
    return true;
  end if;
  at := gem.now(); -- after the wait for the row
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call, call.events + 1, at, p_event, call.attempt, p_worker, jsonb_build_object('name', p_name) || p_data);
  if not coalesce(call.awaited, false) then
    update public.core_tool_calls c set events = c.events + 1, updated_at = at where c.id = p_call;
  elsif call.need > 0 then
    update public.core_tool_calls c set events = c.events + 1, updated_at = at, need = call.need where c.id = p_call;
  else
    update public.core_tool_calls c set events = c.events + 1 where c.id = p_call;
    perform gem.wake(p_call, p_worker);
  end if;
  return true;
exception when lock_not_available then
  return false;
end
$$;

-- Tells the parent of a call that has ended, now or, where the parent is locked, with the next look at timers. The time of what is to be done
-- at once lies a hundred years back: the clock may go back, and the order stays.
create or replace function gem.tell_parent(p_call uuid, p_parent uuid, p_name text, p_status text, p_receipt uuid, p_worker text) returns void
language plpgsql as $$
begin
  if gem.came(p_parent, 'returned', p_name, jsonb_build_object('call_id', p_call, 'status', p_status, 'receipt_id', p_receipt), p_worker) then
    update public.core_tool_calls c set waits_for = null where c.id = p_call and c.waits_for = 'parent';
  else
    update public.core_tool_calls c set waits_for = 'parent', wake_at = gem.now() - interval '100 years' where c.id = p_call;
  end if;
end
$$;

-- Puts a call that waits for something to come back into the queue, at its place: among background calls if its caller has come to crowd. It
-- waits for nobody: a level that is not there yet may be another transaction's, and -500 is there.
create or replace function gem.wake(p_call uuid, p_worker text) returns void language plpgsql as $$
declare
  at    timestamptz := gem.now();
  place integer;
  call  record;
begin
  select case when c.created_by is null or c.priority <= -500 then c.priority else gem.level_of(c.created_by, c.priority) end into place
  from public.core_tool_calls c where c.id = p_call;
  if not exists (select from gem.levels l where l.level = place) then
    place := -500;
  end if;
  update public.core_tool_calls c
  set status = 'queued', waits_for = null, waits = null, need = null, wake_at = null, updated_at = at, events = c.events + 1, level = place,
      run_at = least(c.run_at, at) -- the clock may have gone back since a retry
  where c.id = p_call and c.status = 'waiting'
  returning c.events, c.attempt, c.run_at into call;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call, call.events, at, 'woken', call.attempt, p_worker, jsonb_build_object('run_at', call.run_at));
  perform gem.wake_workers('again');
end
$$;

-- Goes through calls whose time has come, up to p_limit and for about a second: those that wait go on; those that have ended tell their parents,
-- and end their children. Returns how many there were. A call that cannot be dealt with is looked at again a minute later.
create or replace function gem.run_timers(p_worker text, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
declare
  at    timestamptz := gem.now();
  ids   uuid[];
  this  uuid;
  due   record;
  count integer     := 0;
begin
  loop
    ids := array(
      select c.id from public.core_tool_calls c where c.wake_at <= at order by c.wake_at limit least(p_limit - count, 100)
      for no key update skip locked);
    exit when cardinality(ids) = 0;
    foreach this in array ids loop
      if gem.now() > at + interval '1 second' then
        return count;
      end if;
      count := count + 1;
      select c.status, c.wake_at into due from public.core_tool_calls c where c.id = this;
      continue when due.wake_at is null or due.wake_at > at; -- one before it in the list has ended it
      begin
        if due.status = 'waiting' then
          perform gem.time_out(this, at, p_worker);
        else
          perform gem.end_family(this, at, p_worker);
        end if;
      exception when serialization_failure or deadlock_detected or lock_not_available then
        update public.core_tool_calls c set wake_at = at + interval '1 second' where c.id = this;
      when others then
        raise warning 'gem: the timer of call % is skipped: %', this, gem.printable(sqlerrm, 300);
        update public.core_tool_calls c set wake_at = at + interval '1 minute' where c.id = this;
      end;
    end loop;
  end loop;
  return count;
end
$$;

-- Says of a call that waits which of its times have come, and wakes it.
create or replace function gem.time_out(p_call uuid, p_at timestamptz, p_worker text) returns void language plpgsql as $$
declare
  names text[];
begin
  names := array(
    select u.key
    from (select e.data -> 'until' as until from public.core_tool_events e
      where e.call_id = p_call and e.event = 'waiting' order by e.seq desc limit 1) last, jsonb_each_text(last.until) u
    where u.value::timestamptz <= p_at
      and not exists (select from public.core_tool_events e
        where e.call_id = p_call and e.event in ('returned', 'answered') and e.data ->> 'name' = u.key)
      and not exists (select from public.core_tool_events e
        where e.call_id = p_call and e.event = 'timed_out' and e.data -> 'names' ? u.key)
    order by u.key);
  if cardinality(names) > 0 then
    with call as (
      update public.core_tool_calls c set steps = c.steps + 1, events = c.events + 1, updated_at = p_at where c.id = p_call returning c.events, c.attempt
    )
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select p_call, events, p_at, 'timed_out', attempt, p_worker, jsonb_build_object('names', names) from call;
  end if;
  perform gem.wake(p_call, p_worker);
end
$$;

-- Tells the parent of a call that has ended, if it has not been told, and asks for the ends of the children that the call left open, a hundred at
-- a time. It waits for no row. Where anything is left, the call is looked at again a second later, or five if its parent is locked.
create or replace function gem.end_family(p_call uuid, p_at timestamptz, p_worker text) returns void language plpgsql as $$
declare
  call  record;
  child record;
begin
  update public.core_tool_calls c set wake_at = null where c.id = p_call
  returning c.status, c.parent_call_id, c.parent_step, c.waits_for into call;
  if call.waits_for = 'parent' then
    perform from public.core_tool_calls p where p.id = call.parent_call_id for no key update skip locked;
    if not found and exists (select from public.core_tool_calls p where p.id = call.parent_call_id) then -- the rest is not kept waiting for it
      update public.core_tool_calls c set wake_at = p_at + interval '5 seconds' where c.id = p_call;
      return;
    end if;
    perform gem.tell_parent(p_call, call.parent_call_id, call.parent_step, call.status,
      (select r.id from public.core_tool_receipts r where r.call_id = p_call), p_worker);
  end if;
  for child in
    select k.id from public.core_tool_calls k
    where k.parent_call_id = p_call and k.parent_step is not null
      and k.status in ('queued', 'running', 'waiting') and k.cancel_requested_at is null
    limit 100 for no key update skip locked
  loop
    perform gem.cancel(child.id);
  end loop;
  update public.core_tool_calls c set wake_at = p_at + interval '1 second'
  where c.id = p_call and (c.wake_at is not null or exists (
    select from public.core_tool_calls k
    where k.parent_call_id = p_call and k.parent_step is not null
      and k.status in ('queued', 'running', 'waiting') and k.cancel_requested_at is null));
end
$$;

select gem.grant_to('gem_worker', 'execute on function
  gem.wait(uuid, integer, text, jsonb, text, text[], integer, jsonb, jsonb, boolean, bigint, integer),
  gem.wait_for_code(uuid, integer, text, jsonb, jsonb, bigint), gem.try_code(), gem.run_timers(text, integer)');
revoke all on all functions in schema gem from public;

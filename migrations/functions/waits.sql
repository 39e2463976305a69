-- A durable handler waits for the calls that it made (its children), for answers, and for times. No process runs a
-- waiting call, and claims do not read its row. Each arrival is written to the call's journal, even before the call
-- waits for it:
--
--   called     {name, call_id, tool}                  the handler made a call
--   waiting    {for: [name], until: {name: time}}     the call waits for `need` of these names; clean_up: to clean up
--   returned   {name, call_id, status, receipt_id}    a child has ended; its result is on its receipt
--   answered   {name, value, by}                      someone answered: see answers.sql
--   timed_out  {names}                                the times of these names were reached first
--   waiting    {code: {name, message}}                the program cannot read the journal or lacks the tool, so the
--                                                     call waits for another program
--   woken                                             enough has arrived, and the call is queued again
--
-- gem.wait and gem.came lock the row of the waiting call before they read, so the later one sees the writes of the
-- earlier one. A transaction locks a call before its parent. It waits only briefly for the parent's row, and never for
-- a child's row.

create or replace function gem.has_open_children(p_call uuid) returns boolean language plpgsql stable
  set enable_seqscan = off -- a plan made while the table was small would read it all
as $$
begin
  return exists (select from public.core_tool_calls k
    where k.parent_call_id = p_call and k.parent_step is not null and k.status in ('queued', 'running', 'waiting'));
end
$$;

-- Makes the calls of p_start, [{id, name, tool, input, traceparent, chosen, open_ms}], and waits until p_need of the
-- names p_for have arrived. `chosen` means that a model or a document chose the call, so a question counts as a user's
-- (gem.asked_for). `open_ms` means that the call is a question which the worker has checked and judged: it waits from
-- the start, for so many milliseconds at most (gem.question_waits). Returns
--   here       The names have arrived, or p_need is 0.
--   parked     The call waits (running → waiting), and the attempt no longer holds it.
--   cancelled  The call's cancellation was requested, and the function did nothing. With p_cleanup the handler cleans
--              up: for up to an hour after the request it can still make calls and wait, and the event has clean_up.
-- p_until has times for some of the names: {name: milliseconds from now, or the time itself}. p_for_what is the new
-- waits_for. The call wakes p_deadline milliseconds after it was due (gem.due) at the latest. p_effects are the effects
-- of steps that were not kept. p_steps and p_key are as in gem.finish, and the result's column steps is the new number.
-- The function makes no call whose name already exists. Raises GM003 if the call has too many ancestors to make
-- children.
drop function if exists gem.wait(uuid, integer, text, jsonb, text, text[], integer, jsonb, jsonb, boolean, bigint,
  integer);
create or replace function gem.wait(p_call uuid, p_attempt integer, p_worker text, p_start jsonb, p_for_what text,
  p_for text[], p_need integer,
  p_until jsonb, p_effects jsonb, p_cleanup boolean default false, p_deadline bigint default null,
  p_steps integer default 0, p_key text default null, out verdict text, out steps integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- the plans are kept, so they must use the indexes even if they are made while the tables are small
  set plan_cache_mode = force_generic_plan set enable_seqscan = off
as $$
declare
  at        timestamptz;
  call      record;
  made      integer := 0;
  here      text[];
  late      text[];
  missing   text[]; -- of p_for
  deadlines jsonb;
begin
  select c.id, c.events, c.steps, c.session_id, c.created_by, c.signed_in, c.priority, c.traceparent, c.placed,
    c.cancel_requested_at,
    c.cancel_requested_at + interval '1 hour' as cleaned_up into call
  from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running'
    and c.steps >= p_steps and (p_key is null or c.computed_key = p_key), false)
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
      perform gem.refuse('GM003', 'call %s is a child of the eighth generation, and may have no children', null,
        p_call::text);
    end if;
    with started as (
      select s.ordinality, s.value ->> 'id' as id, s.value ->> 'name' as name, s.value ->> 'tool' as tool,
        s.value -> 'input' as input, at + ((s.value ->> 'open_ms') || ' milliseconds')::interval as open_until,
        s.value ->> 'traceparent' as traceparent, case when s.value -> 'chosen' = 'true' then 'user' end as asked_for
      from jsonb_array_elements(p_start) with ordinality s
    ), child as (
      insert into public.core_tool_calls (id, tool_name, input, session_id, parent_call_id, parent_step, created_by,
        signed_in, priority, traceparent,
        run_at, asked_for, status, wake_at)
      select s.id::uuid, s.tool, s.input, call.session_id, p_call, s.name, call.created_by, call.signed_in,
        call.priority,
        coalesce(s.traceparent, call.traceparent), at, s.asked_for,
        case when s.open_until is null then 'queued' else 'waiting' end, s.open_until
      from started s order by s.ordinality
      on conflict (parent_call_id, parent_step) where parent_call_id is not null do nothing -- an earlier try made it
      returning id, parent_step, tool_name, status, created_at, answer_until
    ), question as (
      insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      select child.id, 2, child.created_at, 'waiting', 0, p_worker, gem.question_waits(child.answer_until, p_worker)
      from child where child.status = 'waiting'
    ), journal as (
      insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      select p_call, call.events + row_number() over (order by s.ordinality), at, 'called', p_attempt, p_worker,
        jsonb_build_object('name', child.parent_step, 'call_id', child.id, 'tool', child.tool_name)
      from child join started s on s.name = child.parent_step
      returning 1
    )
    select count(*) into made from journal;
    if made > 0 and call.signed_in and jsonb_path_exists(p_start,
      '$[*] ? (@.chosen == true && @.tool starts with "wait.")') then
      perform gem.check_questions(call.created_by);
    end if;
  end if;

  select jsonb_object_agg(u.key, case jsonb_typeof(u.value)
    when 'number' then to_jsonb(at + (u.value::text || ' milliseconds')::interval) else u.value end)
  into deadlines from jsonb_each(p_until) u where u.key <> all (here);
  late := array(select d.key from jsonb_each_text(deadlines) d where d.value::timestamptz <= at and d.key = any (p_for)
    order by d.key);
  if cardinality(late) > 0 then
    made := made + 1;
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    values (p_call, call.events + made, at, 'timed_out', p_attempt, p_worker, jsonb_build_object('names', late));
  end if;

  if cardinality(here) + cardinality(late) >= p_need then
    verdict := 'here';
    if made > 0 then
      update public.core_tool_calls c set steps = c.steps + made, retries = 0, losses = 0, updated_at = at,
        events = c.events + made
      where c.id = p_call returning c.steps into steps;
    end if;
    return;
  end if;
  verdict := 'parked';
  missing := array(select n from unnest(p_for) with ordinality f (n, place) where n <> all (here || late)
    order by place);
  update public.core_tool_calls c
  set status = 'waiting', waits_for = p_for_what, waits = missing,
    need = p_need - cardinality(here) - cardinality(late),
      wake_at = least(call.cleaned_up, gem.due(p_call) + (p_deadline || ' milliseconds')::interval,
        (select min(d.value::timestamptz) from jsonb_each_text(deadlines) d where d.key <> all (late))),
      claimed_by = null, claimed_at = null, steps = c.steps + made + 1, retries = 0, losses = 0, kills = 0,
        placed = false, updated_at = at, events = c.events + made + 1
  where c.id = p_call returning c.steps into steps;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call, call.events + made + 1, at, 'waiting', p_attempt, p_worker, jsonb_build_object('for', missing)
    || case when deadlines is null then '{}' else jsonb_build_object('until', deadlines) end
    || case when p_cleanup then '{"clean_up": true}' else '{}'::jsonb end
    || case when p_effects is null then '{}' else jsonb_build_object('effects', p_effects) end);
  if call.placed then
    perform gem.leave_places(array[p_call], p_worker);
  end if;
end
$$;

-- Parks a call that its worker's program cannot continue; p_why is the reason. When a worker starts, gem.try_code wakes
-- the call if enough time has passed since its last progress: 1, 2, 4 and so on up to 60 minutes. gem.resume wakes it
-- at any time. A worker ends it p_deadline milliseconds after it was due (gem.due), or an hour after its cancellation
-- was requested.
create or replace function gem.wait_for_code(p_call uuid, p_attempt integer, p_worker text, p_why jsonb,
  p_effects jsonb, p_deadline bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at     timestamptz;
  tries  bigint;
  placed boolean;
begin
  select c.placed into placed from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    for no key update;
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
    set status = 'waiting', waits_for = 'code', wake_at = least(at + least(interval '1 minute' * 2 ^ least(tries, 6),
      interval '1 hour'),
          greatest(at, least(gem.due(c.id) + (p_deadline || ' milliseconds')::interval,
            c.cancel_requested_at + interval '1 hour'))),
        claimed_by = null, claimed_at = null, placed = false, updated_at = at, events = c.events + 1
    where c.id = p_call returning c.events
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  select p_call, events, at, 'waiting', p_attempt, p_worker, jsonb_build_object('code', p_why)
    || case when p_effects is null then '{}' else jsonb_build_object('effects', p_effects) end from parked;
  if placed then
    perform gem.leave_places(array[p_call], p_worker);
  end if;
end
$$;

-- Wakes up to a thousand calls that wait for code: a worker that has just started may have the program that they need.
create or replace function gem.try_code() returns void language plpgsql security definer set search_path = pg_catalog,
  pg_temp as $$
declare
  at timestamptz := gem.now();
begin
  update public.core_tool_calls c set wake_at = at where c.id in (
    select o.id from public.core_tool_calls o where o.status = 'waiting'
      and o.waits_for = 'code' limit 1000 for no key update skip locked);
end
$$;

-- Returns the data of the event with which a question begins to wait, without a claim. A handler or a rule asks it, and
-- the worker that makes it has checked its input against the registry, and judged it by its rules. The question has
-- made progress, in no attempt. It ends with its answer (gem.end_question), at p_until, or when it is cancelled. Its
-- receipt has the version of the worker's registry. If someone resumes it, or its tool's deadline passes, it is claimed
-- like any other call.
create or replace function gem.question_waits(p_until timestamptz, p_worker text) returns jsonb
language sql stable as $$
  select jsonb_strip_nulls(jsonb_build_object('for', jsonb_build_array('#answer'),
    'until', case when p_until is not null then jsonb_build_object('#answer', p_until) end,
    'registry_version', (select w.registry_version from public.core_workers w where w.worker_id = p_worker)))
$$;

-- Ends a question that waits and that no worker has claimed, as the handlers of wait.* would (package wait in Go).
-- p_answer is the data of the event `answered`, or null if the question's time is over.
create or replace function gem.end_question(p_call uuid, p_answer jsonb, p_at timestamptz) returns void
language plpgsql as $$
declare
  call   record;
  given  jsonb := jsonb_build_object('by', p_answer -> 'by', 'at', gem.rfc3339(p_at));
  result jsonb;
begin
  select c.tool_name, c.input, c.answer_until into call from public.core_tool_calls c where c.id = p_call;
  result := case
    when call.tool_name = 'wait.approval' and p_answer is null then jsonb_build_object('approved', false,
      'reason', 'expired', 'at', gem.rfc3339(call.answer_until), 'digest', call.input -> 'digest')
    when call.tool_name = 'wait.approval' then given || jsonb_build_object(
      'approved', p_answer #> '{value,approved}', 'digest', call.input -> 'digest')
      || case when p_answer #>> '{value,reason}' <> '' then jsonb_build_object('reason', p_answer #> '{value,reason}')
        else '{}' end
    when p_answer is null then jsonb_build_object('error', jsonb_build_object('error_code', 'timeout',
      'message', 'Nothing arrived within the time limit of the wait.', 'details', null))
    when call.tool_name = 'wait.answer' then given || jsonb_build_object('answer', p_answer -> 'value')
    else given || jsonb_build_object('event', p_answer -> 'value') end;
  perform gem.end_without_worker(p_call, case when result ? 'error' then 'failed' else 'succeeded' end, result, p_at,
    null);
end
$$;

-- Locks a call for up to a moment, because a frontend may hold the lock for any time. Returns false if it stays locked.
create or replace function gem.lock_soon(p_call uuid) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
begin
  perform from public.core_tool_calls c where c.id = p_call for no key update;
  return true;
exception when lock_not_available then
  return false;
end
$$;

-- Reports whether the end of a call is still to be reported to its parent, after gem.finish in the same statement.
create or replace function gem.is_marked(p_call uuid) returns boolean language plpgsql
  security definer set search_path = pg_catalog, pg_temp as $$
begin
  return exists (select from public.core_tool_calls c where c.id = p_call and c.waits_for = 'parent');
end
$$;

-- Locks a call without waiting. Returns false only if another transaction has locked it, and true if the call no longer
-- exists.
create or replace function gem.lock_now(p_call uuid) returns boolean language plpgsql as $$
begin
  perform from public.core_tool_calls c where c.id = p_call for no key update skip locked;
  return found or not exists (select from public.core_tool_calls c where c.id = p_call);
end
$$;

-- Locks the parent of a call that ends. If another transaction has locked the parent, one call at a time waits briefly,
-- because the parent often writes its own wait just then. Returns false if the parent stays locked, or if another call
-- already waits.
create or replace function gem.lock_parent(p_parent uuid) returns boolean language plpgsql as $$
begin
  return gem.lock_now(p_parent)
    or pg_try_advisory_xact_lock(hashtextextended('gem.parent ' || p_parent, 0)) and gem.lock_soon(p_parent);
end
$$;

-- Writes arrivals to the journal of a call that has not ended, and wakes the call if it now has everything that it
-- waited for. A question that no worker has claimed ends instead. p_data are the data of the events, each with a name.
-- The caller has locked the call. A question that a worker put back for a while becomes due once it is answered,
-- because it can no longer be cancelled. The event then has the new run_at.
drop function if exists gem.came(uuid, text, text, jsonb, text);
create or replace function gem.came(p_call uuid, p_event text, p_data jsonb[], p_worker text) returns void
language plpgsql as $$
declare
  at   timestamptz := gem.now();
  call record;
  came integer     := 0; -- of what the call waits for
  data jsonb[]     := p_data;
begin
  select c.status, c.attempt, c.events, c.need, c.waits,
    case when p_event = 'answered' and c.status = 'queued' and gem.asks(c.tool_name) then c.run_at end as run_at
  into call from public.core_tool_calls c where c.id = p_call;
  if call.status is null or gem.is_final(call.status) then
    return;
  end if;
  if call.run_at > at then
    data[1] := data[1] || jsonb_build_object('run_at', at);
  end if;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  select p_call, call.events + d.ordinality, at, p_event, call.attempt, p_worker, d.value
  from unnest(data) with ordinality d (value);
  if call.status = 'waiting' and call.need is not null then
    came := (select count(*) from unnest(data) d join unnest(call.waits) w on w = d ->> 'name');
  end if;
  if came > 0 and came >= call.need then
    update public.core_tool_calls c set events = c.events + cardinality(data) where c.id = p_call;
    if call.attempt = 0 then -- a question: no other call waits before its first attempt
      perform gem.end_question(p_call, data[1], at);
    else
      perform gem.wake(p_call, p_worker);
    end if;
    return;
  end if;
  update public.core_tool_calls c set events = c.events + cardinality(data), updated_at = at, need = c.need - came,
    run_at = case when call.run_at > at then at else c.run_at end
  where c.id = p_call;
  if call.run_at > at then
    perform gem.wake_workers('again');
  end if;
end
$$;

-- Reports the ends of calls to their parent, in the order of their receipts. The caller has locked the parent, so the
-- function waits only briefly for other locks, such as that of an index build on the journal.
drop function if exists gem.tell_parent(uuid, uuid, text, text, uuid, text);
drop function if exists gem.notify_parent(uuid, uuid, text, text, uuid, text);
create or replace function gem.report_ends(p_parent uuid, p_calls uuid[], p_worker text) returns void
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set lock_timeout = '100ms' as $$
begin
  perform gem.came(p_parent, 'returned', array(
    select jsonb_build_object('name', c.parent_step, 'call_id', c.id, 'status', c.status, 'receipt_id', r.id)
    from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id
    where c.id = any (p_calls) order by r.created_at, r.id), p_worker);
end
$$;

-- Reports calls that ended while their parent was locked, all of one parent at once. If a parent stays locked, it tries
-- again a second later. Returns p_waits, or false if a parent stayed locked. Only if p_waits does it wait for parents,
-- briefly: a parent often writes its own wait just then. All reported parents stay locked until the commit, so it stops
-- a second after p_at, and waits for none after a fifth of that.
create or replace function gem.report_marked(p_calls uuid[], p_at timestamptz, p_worker text, p_waits boolean)
returns boolean language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
  waits  boolean := p_waits;
  pause  interval;
  marked record;
begin
  for marked in
    select c.parent_call_id as parent, array_agg(c.id) as calls from public.core_tool_calls c
    where c.id = any (p_calls) and c.waits_for = 'parent' group by 1 order by 1
  loop
    exit when gem.now() > p_at + interval '1 second';
    waits := waits and gem.now() < p_at + interval '200 milliseconds';
    pause := '1 second';
    begin
      if waits and gem.lock_soon(marked.parent) or not waits and gem.lock_now(marked.parent) then
        perform gem.report_ends(marked.parent, marked.calls, p_worker);
        update public.core_tool_calls c set waits_for = null,
          wake_at = case when gem.has_open_children(c.id) then c.wake_at end
        where c.id = any (marked.calls);
        continue;
      end if;
      waits := false;
    exception when serialization_failure or deadlock_detected or lock_not_available then
      waits := false;
    when others then
      raise warning 'gem: ends are not reported to call %: %', marked.parent, gem.printable(sqlerrm, 300);
      pause := '1 minute';
    end;
    update public.core_tool_calls c set wake_at = p_at + pause where c.id = any (marked.calls);
  end loop;
  return waits;
end
$$;

-- Returns the level of a call that is queued again: among background calls if its caller now crowds the queue. The
-- caller must not wait for a lock. Another transaction may be inserting the call's level; the level -500 always exists.
create or replace function gem.level_again(p_created_by text, p_priority integer) returns integer
language plpgsql stable as $$
declare
  place integer := p_priority;
begin
  if p_created_by is not null and p_priority > -500 then
    place := gem.level_of(p_created_by, p_priority);
  end if;
  if not exists (select from gem.levels l where l.level = place) then
    return -500;
  end if;
  return place;
end
$$;

-- Requeues a waiting call at its place. p_first: the call is claimed before all others, since it keeps others from
-- running until it has run.
drop function if exists gem.wake(uuid, text);
create or replace function gem.wake(p_call uuid, p_worker text, p_first boolean default false) returns void
language plpgsql as $$
declare
  at    timestamptz := gem.now();
  place integer;
  call  record;
begin
  if p_first then
    place := 2000; -- see gem.wait_for_place
  else
    select gem.level_again(c.created_by, c.priority) into place from public.core_tool_calls c where c.id = p_call;
  end if;
  update public.core_tool_calls c
  set status = 'queued', waits_for = null, waits = null, need = null, wake_at = null, updated_at = at,
    events = c.events + 1, level = place, computed_key = case when c.waits_for <> 'key' then c.computed_key end,
      run_at = least(c.run_at, at) -- the clock may have gone back since a retry
  where c.id = p_call and c.status = 'waiting'
  returning c.events, c.attempt, c.run_at into call;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call, call.events, at, 'woken', call.attempt, p_worker, jsonb_build_object('run_at', call.run_at));
  perform gem.wake_workers('again');
end
$$;

-- Runs the schedules that are due, unless p_schedules is false, and handles up to p_limit calls whose wake_at is
-- reached, for about a second each. It wakes waiting calls. For ended calls, it notifies their parents and ends their
-- children. Returns p_limit if more may be due, else a smaller number. If it cannot handle a call, it tries again a
-- minute later.
drop function if exists gem.run_timers(text, integer);
create or replace function gem.run_timers(p_worker text, p_limit integer, p_schedules boolean default true)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
declare
  ran   integer     := case when p_schedules then gem.run_schedules(p_limit) else 0 end;
  at    timestamptz := gem.now();
  ids   uuid[];
  this  uuid;
  due   record;
  count integer     := 0;
  waits boolean     := true; -- false once the wait for a parent's lock has failed
begin
  loop
    ids := array(
      select c.id from public.core_tool_calls c where c.wake_at <= at
        order by c.wake_at limit least(p_limit - count, 100)
      for no key update skip locked);
    exit when cardinality(ids) = 0;
    waits := gem.report_marked(ids, at, p_worker, waits);
    foreach this in array ids loop
      if gem.now() > at + interval '1 second' then
        return greatest(count, ran);
      end if;
      count := count + 1;
      select c.status, c.wake_at, c.waits_for into due from public.core_tool_calls c where c.id = this;
      -- reported, or ended by an earlier call, and then to be reported next
      continue when due.wake_at is null or due.wake_at > at or due.waits_for = 'parent';
      begin
        if due.status = 'waiting' then
          perform gem.time_out(this, at, p_worker);
        else
          perform gem.cancel_children(this, at);
        end if;
      exception when serialization_failure or deadlock_detected or lock_not_available then
        update public.core_tool_calls c set wake_at = at + interval '1 second' where c.id = this;
      when others then
        raise warning 'gem: the timer of call % is skipped: %', this, gem.printable(sqlerrm, 300);
        update public.core_tool_calls c set wake_at = at + interval '1 minute' where c.id = this;
      end;
    end loop;
  end loop;
  return greatest(count, ran);
end
$$;

-- Records which times of a waiting call have been reached, and wakes the call, or ends it if it is a question that no
-- worker has claimed.
create or replace function gem.time_out(p_call uuid, p_at timestamptz, p_worker text) returns void
  language plpgsql as $$
declare
  names text[];
  tries integer;
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
      update public.core_tool_calls c set steps = c.steps + 1, events = c.events + 1, updated_at = p_at
        where c.id = p_call returning c.events, c.attempt
    )
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select p_call, events, p_at, 'timed_out', attempt, p_worker, jsonb_build_object('names', names) from call
    returning attempt into tries;
  end if;
  if tries = 0 then
    perform gem.end_question(p_call, null, p_at);
  else
    perform gem.wake(p_call, p_worker);
  end if;
end
$$;

-- Cancels the open children of an ended call, a hundred at a time, except answered questions. It does not wait for
-- locked rows. If work remains, gem.run_timers continues a second later.
drop function if exists gem.end_family(uuid, timestamptz, text);
drop function if exists gem.end_family(uuid, timestamptz, text, boolean);
create or replace function gem.cancel_children(p_call uuid, p_at timestamptz) returns void language plpgsql as $$
declare
  child record;
begin
  update public.core_tool_calls c set wake_at = null where c.id = p_call;
  for child in
    select k.id from public.core_tool_calls k
    where k.parent_call_id = p_call and k.parent_step is not null
      and k.status in ('queued', 'running', 'waiting') and k.cancel_requested_at is null
      and not gem.is_answered(k.id, k.tool_name)
    limit 100 for no key update skip locked
  loop
    perform gem.cancel(child.id);
  end loop;
  update public.core_tool_calls c set wake_at = p_at + interval '1 second'
  where c.id = p_call and (c.wake_at is not null or exists (
    select from public.core_tool_calls k
    where k.parent_call_id = p_call and k.parent_step is not null
      and k.status in ('queued', 'running', 'waiting') and k.cancel_requested_at is null
      and not gem.is_answered(k.id, k.tool_name)));
end
$$;

select gem.grant_to('gem_worker', 'execute on function
  gem.wait(uuid, integer, text, jsonb, text, text[], integer, jsonb, jsonb, boolean, bigint, integer, text),
  gem.wait_for_code(uuid, integer, text, jsonb, jsonb, bigint), gem.try_code(), gem.run_timers(text, integer, boolean),
  gem.is_marked(uuid)');
revoke all on all functions in schema gem from public;

-- Places: a rule with `running` lets at most `max` calls of a counter run at the same time. Each change of a counter is
-- a row of gem.rule_places, and the last row is the counter's state:
--
--   took     the call has a place: there was one when it asked, or another call left one to it
--   queued   the call waits for a place, after the calls that were queued before it
--   left     the call has left its place, or the queue
--
-- A call has a place from the gate (see rules.sql) until its attempt ends, waits, is retried, handed over or lost. The
-- transaction that frees a place gives it to the first call of the queue, and wakes that call. A waiting call has no
-- place, since its children may need it. A call that was woken for its place keeps it until it is claimed.
--
-- A transaction that writes to a counter holds its advisory lock. The transaction locks the rows of its calls first,
-- then counters in their order. It then waits for no other call's row: it skips locked ones.

-- Returns the last row of a counter, or null.
create or replace function gem.last_place(p_counter text) returns gem.rule_places language plpgsql stable as $$
declare
  last gem.rule_places;
begin
  select * into last from gem.rule_places r where r.counter = p_counter order by r.n desc limit 1;
  return last;
end
$$;

-- Reports whether a call is in the queue of a counter.
create or replace function gem.is_in_line(p_counter text, p_call uuid) returns boolean language plpgsql stable as $$
begin
  return coalesce((select r.action = 'queued' from gem.rule_places r
    where r.call_id = p_call and r.counter = p_counter order by r.n desc limit 1), false);
end
$$;

-- Returns since when a call has waited for places, in whichever queues, without running; null if it has not.
create or replace function gem.queued_since(p_call uuid) returns timestamptz language plpgsql stable as $$
begin
  return (select min(e.at) from public.core_tool_events e
    where e.call_id = p_call and e.event = 'waiting' and e.data ? 'place' and e.seq > (
      select max(l.seq) from public.core_tool_events l where l.call_id = p_call
        and l.event not in ('claimed', 'woken', 'cancel_requested')
        and (l.event = 'waiting' and l.data ?| '{place,key}') is not true));
end
$$;

-- Appends a row after the last one of a counter, and returns it. p_served is the row of the queue to which the place
-- goes.
create or replace function gem.add_place(p_last gem.rule_places, p_counter text, p_at timestamptz, p_call uuid,
  p_action text, p_max integer, p_version text, p_served bigint default null, p_to_wake boolean default null)
returns gem.rule_places language plpgsql as $$
declare
  row  gem.rule_places;
  held uuid[] := coalesce(p_last.holders, '{}');
begin
  insert into gem.rule_places (counter, n, at, call_id, action, holders, waiting, head, max, rules_version, to_wake)
  values (p_counter, coalesce(p_last.n, 0) + 1, greatest(p_at, p_last.at), p_call, p_action,
    case p_action when 'took' then held || p_call when 'left' then array_remove(held, p_call) else held end,
    coalesce(p_last.waiting, 0) + case
      when p_action = 'queued' then 1
      when p_served is not null or p_action = 'left' and p_call <> all (held) then -1
      else 0 end,
    coalesce(p_served, p_last.head, 0), p_max, p_version, p_to_wake)
  returning * into row;
  return row;
end
$$;

-- Returns the first call of a queue, and its row.
create or replace function gem.next_in_line(p_counter text, p_head bigint, out n bigint, out call_id uuid)
language plpgsql stable as $$
#variable_conflict use_column
begin
  select q.n, q.call_id into next_in_line.n, next_in_line.call_id from gem.rule_places q
  where q.counter = p_counter and q.action = 'queued' and q.n > p_head and not exists (
    select from gem.rule_places later
    where later.call_id = q.call_id and later.counter = p_counter and later.n > q.n offset 0)
  order by q.n limit 1;
end
$$;

-- Gives the free places of a counter to the calls that wait for them, wakes these, and returns the counter's last row.
create or replace function gem.give_places(p_last gem.rule_places, p_at timestamptz, p_max integer, p_version text,
  p_worker text) returns gem.rule_places language plpgsql as $$
declare
  last gem.rule_places := p_last;
  next record;
begin
  while last.waiting > 0 and cardinality(last.holders) < p_max loop
    select * into next from gem.next_in_line(last.counter, last.head);
    perform from public.core_tool_calls c
    where c.id = next.call_id and c.status = 'waiting' and c.waits_for = 'place' for no key update skip locked;
    if found then
      last := gem.add_place(last, last.counter, p_at, next.call_id, 'took', p_max, p_version, next.n);
      perform gem.wake(next.call_id, p_worker, true);
    else -- it is locked, or it is on its way to the gate anyway
      last := gem.add_place(last, last.counter, p_at, next.call_id, 'took', p_max, p_version, next.n, true);
    end if;
  end loop;
  return last;
end
$$;

-- Lets calls leave their places and queues, except in the counters p_keep. The caller has locked the rows of the calls.
create or replace function gem.leave_places(p_calls uuid[], p_worker text, p_keep text[] default '{}') returns void
language plpgsql
  set enable_seqscan = off set plan_cache_mode = force_generic_plan -- planned once
as $$
declare
  line record; -- a counter, and the calls among p_calls that it names
  last gem.rule_places;
  at   timestamptz;
  this uuid;
begin
  for line in
    select r.counter, array_agg(distinct r.call_id) as calls from gem.rule_places r
    where r.call_id = any (p_calls) and r.counter <> all (p_keep)
    group by r.counter order by r.counter collate "C"
  loop
    perform pg_advisory_xact_lock(hashtextextended('gem.rule ' || line.counter, 0));
    at := gem.now();
    last := gem.last_place(line.counter);
    foreach this in array line.calls loop
      if this = any (last.holders) or gem.is_in_line(line.counter, this) then
        last := gem.add_place(last, line.counter, at, this, 'left', last.max, last.rules_version);
      end if;
    end loop;
    if last.waiting > 0 then
      perform gem.give_places(last, at, last.max, last.rules_version, p_worker);
    end if;
  end loop;
end
$$;

-- Gives calls that have left their places, and are queued or wait for keys, levels of other calls.
create or replace function gem.leave_level(p_calls uuid[]) returns void language sql as $$
  update public.core_tool_calls c set level = gem.level_again(c.created_by, c.priority)
  where c.id = any (p_calls) and c.level = 2000
$$;

-- Returns the first row of a counter that an open call needs, or null if none does.
create or replace function gem.first_needed(p_counter text) returns bigint language plpgsql stable as $$
declare
  last gem.rule_places := gem.last_place(p_counter);
begin
  return least((select n from gem.next_in_line(p_counter, last.head)), (
    select min(t.n) from unnest(last.holders) h (id), lateral (
      select r.n from gem.rule_places r where r.call_id = h.id and r.counter = p_counter order by r.n desc limit 1) t));
end
$$;

-- Returns in state whether a call has a place or could take one: has, free or full. If it is full, since is the time
-- since which the call has waited for places. The caller has locked the counter.
create or replace function gem.look_place(p_check jsonb, p_call uuid, p_at timestamptz, p_version text, p_worker text,
  out state text, out since timestamptz) language plpgsql as $$
declare
  most integer := p_check ->> 'max';
  last gem.rule_places := gem.last_place(p_check ->> 'counter');
begin
  if last.waiting > 0 and cardinality(last.holders) < most then -- there are more places than before
    last := gem.give_places(last, p_at, most, p_version, p_worker);
  end if;
  state := case when p_call = any (last.holders) then 'has'
    when coalesce(cardinality(last.holders), 0) < most then 'free' else 'full' end;
  if state = 'full' then
    since := gem.queued_since(p_call);
  end if;
end
$$;

-- Parks a call that the gate has admitted but for a place: it leaves its other places, and waits for one in the counter
-- of p_check, until p_until at the latest. Unless it has made progress, it gives its key back.
create or replace function gem.wait_for_place(p_call uuid, p_attempt integer, p_worker text, p_at timestamptz,
  p_check jsonb, p_version text, p_until timestamptz) returns void language plpgsql as $$
declare
  line text := p_check ->> 'counter';
  key  text;
begin
  if not gem.is_in_line(line, p_call) then
    perform gem.add_place(gem.last_place(line), line, p_at, p_call, 'queued', (p_check ->> 'max')::integer, p_version);
  end if;
  -- Calls that get places have a level of their own, above all priorities (see gem.wake). A claim finds them there
  -- although it does not search the earlier part of other levels.
  insert into gem.levels select 2000 where not exists (select from gem.levels l where l.level = 2000)
  on conflict do nothing;
  select case when c.steps = 0 then c.computed_key end into key from public.core_tool_calls c where c.id = p_call;
  with parked as (
    update public.core_tool_calls c
    set status = 'waiting', waits_for = 'place', placed = true, wake_at = p_until, claimed_by = null,
      claimed_at = null, computed_key = case when c.steps > 0 then c.computed_key end, updated_at = p_at,
      events = c.events + 1
    where c.id = p_call returning c.events
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  select p_call, events, p_at, 'waiting', p_attempt, p_worker,
    jsonb_build_object('place', p_check ->> 'rule', 'max', p_check -> 'max', 'expires_at', gem.rfc3339(p_until))
  from parked;
  if key is not null then
    perform gem.wake_waiting(key, 1, p_worker);
  end if;
end
$$;

-- Wakes calls whose rows were locked when they got their places, a hundred at most.
create or replace function gem.wake_placed(p_worker text) returns void language plpgsql as $$
declare
  this record;
begin
  for this in
    select r.counter, r.n, r.call_id from gem.rule_places r where r.to_wake limit 100 for update skip locked
  loop
    -- a call that was on its way to the gate may have left the place since, and may wait for another one
    if this.call_id = any ((gem.last_place(this.counter)).holders) then
      perform from public.core_tool_calls c
      where c.id = this.call_id and c.status = 'waiting' and c.waits_for = 'place' for no key update skip locked;
      if found then
        perform gem.wake(this.call_id, p_worker, true);
      else
        continue when exists (select from public.core_tool_calls c
          where c.id = this.call_id and c.status = 'waiting' and c.waits_for = 'place'); -- still locked
      end if;
    end if;
    update gem.rule_places r set to_wake = null where r.counter = this.counter and r.n = this.n;
  end loop;
end
$$;

revoke all on all functions in schema gem from public;

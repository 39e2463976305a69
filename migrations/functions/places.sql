-- Places: a rule with `running` lets at most `max` calls of a counter run at the same time. Each change of a counter is
-- a row of gem.rule_places, and the last row is the counter's state:
--
--   took     the call has a place: there was one when it asked, or another call left one to it
--   queued   the call waits for a place, after the calls that were queued before it
--   left     the call has left its place, or the queue
--
-- A call has a place from the gate (see rules.sql) until its attempt ends, waits, is retried, handed over or lost. The
-- transaction that frees a place gives it to the first call of the queue, and wakes that call. A waiting call has no
-- place, since its children may need it, but a call that was woken for its place keeps it until it is claimed.
--
-- All functions hold the counter's advisory lock. A transaction locks the rows of its calls first, then counters in
-- their order. It then waits for no other call's row: it skips locked ones.

-- Locks counters, in their order.
create or replace function gem.lock_counters(p_counters text[]) returns void language plpgsql as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('gem.rule ' || counter, 0))
  from (select distinct line as counter from unnest(p_counters) line order by 1) counters;
end
$$;

-- Returns the counters in which some calls have a place, or wait for one.
create or replace function gem.counters_of(p_calls uuid[]) returns text[] language plpgsql stable as $$
begin
  return array(
    select distinct r.counter from gem.rule_places r
    where r.call_id = any (p_calls) and r.action <> 'left' and not exists (
      select from gem.rule_places later
      where later.call_id = r.call_id and later.counter = r.counter and later.n > r.n offset 0));
end
$$;

-- Returns what a call last did in a counter: took, queued or left, or null, and when.
create or replace function gem.place_of(p_call uuid, p_counter text, out action text, out at timestamptz)
language plpgsql stable as $$
#variable_conflict use_column
begin
  select r.action, r.at into place_of.action, place_of.at from gem.rule_places r
  where r.call_id = p_call and r.counter = p_counter order by r.n desc limit 1;
end
$$;

-- Appends a row to a counter. A call that takes a place or leaves changes the holders. p_served is the row of the queue
-- that has now been served.
create or replace function gem.add_place(p_counter text, p_at timestamptz, p_call uuid, p_action text, p_max integer,
  p_version text, p_served bigint default null, p_to_wake boolean default null) returns void language plpgsql as $$
declare
  last record;
begin
  select r.n, r.at, r.holders, r.head into last from gem.rule_places r where r.counter = p_counter
    order by r.n desc limit 1;
  insert into gem.rule_places (counter, n, at, call_id, action, holders, head, max, rules_version, to_wake)
  values (p_counter, coalesce(last.n, 0) + 1, greatest(p_at, last.at), p_call, p_action,
    case p_action
      when 'took' then coalesce(last.holders, '{}') || p_call
      when 'queued' then coalesce(last.holders, '{}')
      else array_remove(last.holders, p_call) end,
    coalesce(p_served, last.head, 0), p_max, p_version, p_to_wake);
end
$$;

-- Gives free places to the calls that wait for them, and wakes these. The caller has locked the counter.
create or replace function gem.give_places(p_counter text, p_at timestamptz, p_max integer, p_version text,
  p_worker text) returns void language plpgsql as $$
declare
  last record;
  next record;
begin
  loop
    select r.holders, r.head into last from gem.rule_places r where r.counter = p_counter order by r.n desc limit 1;
    exit when not found or cardinality(last.holders) >= p_max;
    select * into next from gem.next_in_line(p_counter, last.head);
    exit when next.n is null;
    perform from public.core_tool_calls c
    where c.id = next.call_id and c.status = 'waiting' and c.waits_for = 'place' for no key update skip locked;
    if found then
      perform gem.add_place(p_counter, p_at, next.call_id, 'took', p_max, p_version, next.n);
      perform gem.wake(next.call_id, p_worker);
    else -- it is locked, or it is on its way to the gate anyway
      perform gem.add_place(p_counter, p_at, next.call_id, 'took', p_max, p_version, next.n, true);
    end if;
  end loop;
end
$$;

-- Returns the first call of the queue, and its row.
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

-- Returns the first row of a counter that an open call needs, or null if none does.
create or replace function gem.first_needed(p_counter text) returns bigint language plpgsql stable as $$
declare
  last record;
begin
  select r.n, r.holders, r.head into last from gem.rule_places r where r.counter = p_counter order by r.n desc limit 1;
  return least((select n from gem.next_in_line(p_counter, last.head)), (
    select min(t.n) from unnest(last.holders) h (id), lateral (
      select r.n from gem.rule_places r where r.call_id = h.id and r.counter = p_counter order by r.n desc limit 1) t));
end
$$;

-- Lets calls leave their places and queues, except in the counters p_keep. The caller has locked the rows of the calls.
create or replace function gem.leave_places(p_calls uuid[], p_worker text, p_keep text[] default '{}') returns void
language plpgsql as $$
declare
  lines text[] := gem.counters_of(p_calls);
  at    timestamptz;
  this  record;
  line  text;
  last  record;
begin
  perform gem.lock_counters(lines);
  at := gem.now();
  foreach line in array lines loop
    continue when line = any (p_keep);
    for this in select call.id, p.action from unnest(p_calls) call (id), gem.place_of(call.id, line) p loop
      continue when this.action is null or this.action = 'left';
      select r.max, r.rules_version into last from gem.rule_places r where r.counter = line order by r.n desc limit 1;
      perform gem.add_place(line, at, this.id, 'left', last.max, last.rules_version);
    end loop;
    select r.max, r.rules_version into last from gem.rule_places r where r.counter = line order by r.n desc limit 1;
    perform gem.give_places(line, at, last.max, last.rules_version, p_worker);
  end loop;
end
$$;

-- Says whether a call has a place or could take one: has, free or full, and since when it is in the queue. The caller
-- has locked the counter.
create or replace function gem.look_place(p_check jsonb, p_call uuid, p_at timestamptz, p_version text, p_worker text,
  out state text, out since timestamptz) language plpgsql as $$
declare
  line text    := p_check ->> 'counter';
  most integer := p_check ->> 'max';
  own  record;
begin
  perform gem.give_places(line, p_at, most, p_version, p_worker); -- there may be more places than before
  select * into own from gem.place_of(p_call, line);
  if own.action = 'took' then
    state := 'has';
    return;
  end if;
  since := case when own.action = 'queued' then own.at end;
  state := case when coalesce((select cardinality(r.holders) from gem.rule_places r where r.counter = line
    order by r.n desc limit 1), 0) < most then 'free' else 'full' end;
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
  if (select p.action from gem.place_of(p_call, line) p) is distinct from 'queued' then
    perform gem.add_place(line, p_at, p_call, 'queued', (p_check ->> 'max')::integer, p_version);
  end if;
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
    perform from public.core_tool_calls c
    where c.id = this.call_id and c.status = 'waiting' and c.waits_for = 'place' for no key update skip locked;
    if found then
      perform gem.wake(this.call_id, p_worker);
    else
      continue when exists (select from public.core_tool_calls c
        where c.id = this.call_id and c.status = 'waiting' and c.waits_for = 'place'); -- still locked
    end if;
    update gem.rule_places r set to_wake = null where r.counter = this.counter and r.n = this.n;
  end loop;
end
$$;

revoke all on all functions in schema gem from public;

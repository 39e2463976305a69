-- Admission in bulk: one statement takes the keys and answers the checks of many calls, as gem.hold_key and gem.gate do
-- for one call. Each of these would otherwise be a transaction of its own.

-- Gives each call its key if no call has succeeded with the key and none holds it. Returns the places of these calls;
-- none if another transaction is taking one of the keys. Of several calls with the same key, the first gets it. Another
-- call may succeed with the key just before this one takes it, so the caller must check the keys again.
create or replace function gem.take_free_keys(p_calls jsonb, p_mine uuid[]) returns integer[]
language plpgsql set lock_timeout = '500ms' as $$ -- as in gem.take_key
declare
  taken integer[] := '{}';
  this  record;
begin
  for this in
    select distinct on (k.value ->> 'key' collate "C") k.ordinality - 1 as place, (k.value ->> 'call')::uuid as call,
      k.value ->> 'key' as key
    from jsonb_array_elements(p_calls) with ordinality k
    where k.value ? 'key' and (k.value ->> 'call')::uuid = any (p_mine)
      and not gem.key_has_succeeded(k.value ->> 'key')
      -- a limit, so that the planner looks up each key, and does not join all of them
      and (select 1 from gem.held_keys h where h.key = k.value ->> 'key' limit 1) is null
    order by k.value ->> 'key' collate "C", k.ordinality
  loop
    update public.core_tool_calls c set computed_key = this.key where c.id = this.call;
    taken := taken || this.place;
  end loop;
  return taken;
exception when unique_violation or lock_not_available then
  return '{}';
end
$$;

-- Gives a free place to each call whose only check is on calls that run at the same time, if nobody waits for that
-- counter and no call of the list has it next to other checks. Returns the places of these calls in the list. The
-- caller has locked the calls and the counters.
create or replace function gem.take_free_places(p_calls jsonb, p_mine uuid[], p_done integer[], p_at timestamptz,
  p_version text) returns integer[] language plpgsql as $$
declare
  taken integer[];
  mixed text[] := array(
    select c ->> 'counter' from jsonb_array_elements(p_calls) k, jsonb_array_elements(k -> 'checks') c
    where c ->> 'kind' = 'running' and jsonb_array_length(k -> 'checks') > 1);
begin
  with wanted as (
    select k.ordinality - 1 as place, (k.value ->> 'call')::uuid as call, k.value #>> '{checks,0,counter}' as counter,
      (k.value #>> '{checks,0,max}')::integer as most
    from jsonb_array_elements(p_calls) with ordinality k
    where k.value #>> '{checks,0,kind}' = 'running' and jsonb_array_length(k.value -> 'checks') = 1
      and k.value #>> '{checks,0,counter}' <> all (mixed)
  ), free as (
    select w.*, row_number() over line as nth, array_agg(w.call) over line as together, l.*
    from wanted w left join lateral (
      select r.n, r.at, r.holders, r.waiting, r.head from gem.rule_places r where r.counter = w.counter
      order by r.n desc limit 1) l on true
    where w.call = any (p_mine) and w.place <> all (p_done) and coalesce(l.waiting, 0) = 0
    window line as (partition by w.counter order by w.place rows unbounded preceding)
  ), took as (
    insert into gem.rule_places (counter, n, at, call_id, action, holders, waiting, head, max, rules_version)
    select f.counter, coalesce(f.n, 0) + f.nth, greatest(p_at, f.at), f.call, 'took', f.holders || f.together, 0,
      coalesce(f.head, 0), f.most, p_version
    from free f where coalesce(cardinality(f.holders), 0) + f.nth <= f.most
    returning call_id
  ), placed as (
    update public.core_tool_calls c set placed = true where c.id in (select t.call_id from took t)
  )
  select array_agg(w.place) into taken from took t join wanted w on w.call = t.call_id;
  return coalesce(taken, '{}');
end
$$;

-- Admits calls that a worker has claimed for the first time. p_calls lists them in order, as {call, key, key_field,
-- refuse, checks, deadline_ms}. None of the checks asks people. Returns a row for each call that it could decide; place
-- is its index from 0, and the other columns are as in gem.gate. outcome is null for a call without checks. differs
-- reports whether the call of receipt_id had another input (gem.input_differs).
--
-- The worker admits the others one by one: their row or key is locked or taken, or the attempt no longer holds the
-- call. The function locks rows without waiting, then keys in their order, then counters in theirs. Two of its
-- statements therefore cannot deadlock.
create or replace function gem.admit(p_worker text, p_calls jsonb, p_version text)
returns table (place integer, verdict text, receipt_id uuid, result jsonb, differs boolean, outcome text,
  at timestamptz, starts_at timestamptz, met jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off -- use the indexes, whatever the statistics are
  set plan_cache_mode = force_generic_plan -- planned once
  set lock_timeout = '5s' -- if a counter stays locked, the worker admits all one by one, and only some wait for it
as $$
#variable_conflict use_variable
declare
  mine uuid[] := array(
    select c.id from public.core_tool_calls c
    where c.id = any (array(select (k ->> 'call')::uuid from jsonb_array_elements(p_calls) k))
      and coalesce(c.attempt = 1 and c.claimed_by = p_worker and c.status = 'running', false) -- see gem.finish
    order by c.id for no key update skip locked);
  done integer[] := '{}'; -- the places of calls that run only if the worker asks again, or whose key decided
  taken integer[] := gem.take_free_keys(p_calls, mine);
  placed integer[] := '{}'; -- the places of calls that have taken the only place that they need
  placed_at timestamptz;
  this record;
begin
  for this in
    select k.ordinality - 1 as place, (k.value ->> 'call')::uuid as call, k.value ->> 'key' as key, k.value as item
    from jsonb_array_elements(p_calls) with ordinality k
    where k.value ? 'key' and (k.ordinality - 1 <> all (taken)
      or gem.key_has_succeeded(k.value ->> 'key')) -- since the look in gem.take_free_keys
    order by k.value ->> 'key' collate "C", k.ordinality
  loop
    continue when this.call <> all (mine);
    if exists (select from gem.held_keys h where h.key = this.key) then
      done := done || this.place;
      continue;
    end if;
    select h.verdict, h.receipt_id, h.result into verdict, receipt_id, result
    from gem.hold_key(this.call, 1, p_worker, this.key) h;
    if verdict <> 'run' then
      place := this.place;
      differs := receipt_id is not null and coalesce(gem.input_differs(this.call, receipt_id, this.item ->> 'key_field',
        (this.item ->> 'refuse')::boolean), false);
      done := done || place;
      return next;
    end if;
  end loop;

  perform pg_advisory_xact_lock(hashtextextended('gem.rule ' || counter, 0)) from (
    select distinct (c ->> 'counter') collate "C" as counter
    from jsonb_array_elements(p_calls) k, jsonb_array_elements(k -> 'checks') c where c ? 'counter'
    order by 1) counters;
  if jsonb_path_exists(p_calls, '$[*].checks[*] ? (@.kind == "running")') then
    placed_at := gem.now();
    placed := gem.take_free_places(p_calls, mine, done, placed_at, p_version);
  end if;
  for this in
    select k.ordinality - 1 as place, (k.value ->> 'call')::uuid as call, k.value -> 'checks' as checks, k.value as item
    from jsonb_array_elements(p_calls) with ordinality k
    order by k.ordinality
  loop
    continue when this.call <> all (mine) or this.place = any (done);
    select this.place, 'run', null, null, false, null, null, null, null
      into place, verdict, receipt_id, result, differs, outcome, at, starts_at, met;
    if this.place = any (placed) then
      outcome := 'run';
      at := placed_at;
      met := '[]';
    elsif this.checks is not null then
      select g.verdict, g.outcome, g.at, g.starts_at, g.met into verdict, outcome, at, starts_at, met
      from gem.gate(this.call, 1, p_worker, null, this.checks, p_version, false,
        (this.item ->> 'deadline_ms')::bigint) g;
    end if;
    return next;
  end loop;
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.admit(text, jsonb, text)');
revoke all on all functions in schema gem from public;

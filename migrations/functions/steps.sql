-- Steps are named parts of a durable handler. The journal has their results. A step does not change its call's state.
--
--   began   {name}                            a step that must not run twice is about to run
--   step    {name, kind, result, effects}     a step has ended, and never runs again; error replaces a missing result
--
-- A call makes progress with its first such event. Afterwards, only workers that declared the capability `steps` claim
-- it, and attempts before the last progress no longer count as spent.

-- Reports whether an attempt, which must hold its call, has written an event. If a transaction of that attempt is about
-- to commit, the function waits for it.
create or replace function gem.has_step(p_call uuid, p_attempt integer, p_worker text, p_event text, p_name text)
returns boolean language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  return exists (
    select from public.core_tool_events e where e.call_id = p_call and e.attempt = p_attempt and e.worker_id = p_worker
      and e.event = p_event and e.data ->> 'name' = p_name);
end
$$;

-- Writes an event of a step. p_before is the number of such events in the journal, so that a statement which arrives
-- after its worker considered it lost writes nothing. p_again: an earlier try may have written the event, although its
-- answer did not reach the worker.
drop function if exists gem.step(uuid, integer, text, text, jsonb, integer, boolean);
create or replace function gem.step(p_call uuid, p_attempt integer, p_worker text, p_event text, p_data jsonb,
  p_before integer, p_again boolean, p_key text default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at timestamptz := gem.now();
begin
  if p_event not in ('began', 'step') or p_data ->> 'name' is null then
    perform gem.refuse('check_violation', '%s is not an event of a step, or the step has no name', null, p_event);
  end if;
  if p_event = 'began' and current_setting('synchronous_commit') in ('off', 'local') then
    perform set_config('synchronous_commit', 'on', true); -- if this is lost, the step runs again
  end if;
  with held as (
    update public.core_tool_calls c set steps = c.steps + 1, retries = 0, losses = 0, updated_at = at,
      events = c.events + 1
    where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running'
      and c.steps = p_before and (p_key is null or c.computed_key = p_key), false)
    returning c.id, c.events
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  select id, events, at, p_event, p_attempt, p_worker, p_data from held;
  if not found and not (p_again and gem.has_step(p_call, p_attempt, p_worker, p_event, p_data ->> 'name')) then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
end
$$;

-- Returns the effects of a call's steps in the form of its receipt, including steps that were not kept because their
-- attempt ended. Each attempt lists all requests to models so far, so only the last entry of each request counts.
create or replace function gem.step_effects(p_call uuid) returns jsonb language sql stable as $$
  select coalesce(jsonb_object_agg(kind, list), '{}') from (
    select kind, jsonb_agg(value order by seq, ordinality) as list from (
      select distinct on (k.key, request) k.key as kind, one.value, e.seq, one.ordinality
      from public.core_tool_events e, jsonb_each(e.data -> 'effects') k,
        jsonb_array_elements(k.value) with ordinality one,
        coalesce(one.value #>> '{llm,request}', format('%s/%s', e.seq, one.ordinality)) request
      where e.call_id = p_call and e.event in ('step', 'retried', 'released', 'waiting')
      order by k.key, request, e.seq desc) entries
    group by kind) kinds
$$;

select gem.grant_to('gem_worker', 'execute on function
  gem.step(uuid, integer, text, text, jsonb, integer, boolean, text),
  gem.has_step(uuid, integer, text, text, text)');
revoke all on all functions in schema gem from public;

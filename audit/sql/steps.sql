-- The steps of durable calls: each step ends once, and the receipt lists each effect of steps as often as it happened.
select 'step-once' as name, call_id::text as id,
  format('its step %s ended %s times, in the events %s', data ->> 'name', count(*),
  string_agg(seq::text, ', ' order by seq)) as what
from public.core_tool_events
where event = 'step'
group by call_id, data ->> 'name' having count(*) > 1

union all

select 'step-effects', r.call_id::text, format('%s wrote %s, which its receipt lacks',
  coalesce('its step ' || (e.data ->> 'name'), 'a step that was not kept'), one.value)
from public.core_tool_receipts r
join public.core_tool_events e on e.call_id = r.call_id and e.event in ('step', 'retried', 'released', 'waiting')
cross join jsonb_each(e.data -> 'effects') k
cross join jsonb_array_elements(k.value) one
-- A later attempt may list a request to a model with another outcome: the ledger's.
where r.replay_of is null and (r.effects -> k.key @> jsonb_build_array(case when one.value ? 'llm'
  then jsonb_build_object('llm', jsonb_build_object('request', one.value #> '{llm,request}'))
  else one.value end)) is not true

union all

-- Each attempt that waited for a request to a model records it, and the receipt lists it once.
select 'step-effects', w.call_id::text, format('steps wrote %s %s times, and its receipt has it %s times', w.value,
  w.times, r.times)
from (
  select e.call_id, k.key, one.value, count(*) as times
  from public.core_tool_events e
  cross join jsonb_each(e.data -> 'effects') k
  cross join jsonb_array_elements(k.value) one
  where e.event in ('step', 'retried', 'released', 'waiting') and not one.value ? 'llm'
  group by 1, 2, 3 having count(*) > 1
) w
cross join lateral (
  select count(*) filter (where one.value @> w.value) as times
  from public.core_tool_receipts r, jsonb_array_elements(case
    when jsonb_typeof(r.effects -> w.key) = 'array' then r.effects -> w.key end) one
  where r.call_id = w.call_id and r.replay_of is null) r
where r.times between 1 and w.times - 1

union all

-- If the worker abandons a handler while the last step of its attempt is being written, the receipt may count one step
-- less.
select 'step-effects', r.call_id::text, format('its receipt counts %s steps, and its journal has %s',
  r.effects #>> '{durable,steps}', coalesce(s.ended, 0))
from public.core_tool_receipts r
left join (
  select call_id, count(distinct data ->> 'name') filter (where counts) as ended,
    (array_agg(attempt order by seq desc))[1] as attempt, (array_agg(counts order by seq desc))[1] as counts
  from (
    -- here `called` is a call that could not be made
    select call_id, seq, attempt, data, event = 'step'
      and coalesce(data ->> 'kind', '') not in ('version', 'call', 'cancelled') as counts
    from public.core_tool_events where event in ('began', 'step', 'called')) e
  group by call_id
) s on s.call_id = r.call_id
where r.effects #>> '{durable,steps}' <> coalesce(s.ended, 0)::text
  and (s.counts and s.attempt = r.attempt and r.effects #>> '{durable,steps}' = (s.ended - 1)::text) is not true

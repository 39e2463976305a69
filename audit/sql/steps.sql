-- The steps of durable calls: each name ends once, and what a step did is on the receipt.
select 'step-once' as name, call_id::text as id, format('its step %s ended %s times, in the events %s', data ->> 'name', count(*),
  string_agg(seq::text, ', ' order by seq)) as what
from public.core_tool_events
where event = 'step'
group by call_id, data ->> 'name' having count(*) > 1

union all

select 'step-effects', r.call_id::text, format('%s wrote %s, which its receipt does not have',
  coalesce('its step ' || (e.data ->> 'name'), 'a step that was not kept'), one.value)
from public.core_tool_receipts r
join public.core_tool_events e on e.call_id = r.call_id and e.event in ('step', 'retried', 'released', 'waiting')
cross join jsonb_each(e.data -> 'effects') k
cross join jsonb_array_elements(k.value) one
where r.replay_of is null and (r.effects -> k.key @> jsonb_build_array(one.value)) is not true

-- Answers, and the receipts of the calls of wait.answer, wait.approval and wait.event, each of which has one under the name #answer.
select 'answer-once' as name, call_id::text as id, format('it was answered %s times under the name %s, in the events %s', count(*), data ->> 'name',
  string_agg(seq::text, ', ' order by seq)) as what
from public.core_tool_events
where event = 'answered'
group by call_id, data ->> 'name' having count(*) > 1

union all

select 'answer-by', r.call_id::text, format('its receipt has the answer %s by %s, and its journal %s by %s', left(r.said::text, 200), coalesce(r.by, 'nobody'),
  coalesce(left(e.data ->> 'value', 200), 'none'), coalesce(e.data ->> 'by', 'nobody'))
from (
  select call_id, result ->> 'by' as by, case tool_name when 'wait.answer' then result -> 'answer' when 'wait.event' then result -> 'event'
    else jsonb_strip_nulls(jsonb_build_object('approved', result -> 'approved', 'reason', result -> 'reason')) end as said
  from public.core_tool_receipts
  where tool_name in ('wait.answer', 'wait.approval', 'wait.event') and status = 'succeeded'
    and not (tool_name = 'wait.approval' and result @> '{"approved": false, "reason": "expired"}' and not result ? 'by')
) r
left join public.core_tool_events e on e.call_id = r.call_id and e.event = 'answered' and e.data ->> 'name' = '#answer'
where (e.data ->> 'by' = r.by and e.data -> 'value' = r.said) is not true

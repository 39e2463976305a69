-- Answers, and the receipts of the calls of wait.answer, wait.approval and wait.event, each of which has one under the name #answer.
select 'answer-once' as name, call_id::text as id, format('it was answered %s times under the name %s, in the events %s', count(*), data ->> 'name',
  string_agg(seq::text, ', ' order by seq)) as what
from public.core_tool_events
where event = 'answered'
group by call_id, data ->> 'name' having count(*) > 1

union all

select 'answer-by', call_id::text, format('its receipt has the answer %s by %s, and its journal %s by %s', left(said::text, 200), coalesce(said_by, 'nobody'),
  coalesce(left(given::text, 200), 'none'), coalesce(given_by, 'nobody'))
from (
  select r.call_id, r.result ->> 'by' as said_by, e.data ->> 'by' as given_by,
    case r.tool_name when 'wait.answer' then r.result -> 'answer' when 'wait.event' then r.result -> 'event'
      else jsonb_build_object('approved', r.result -> 'approved', 'reason', coalesce(r.result ->> 'reason', '')) end as said,
    case when r.tool_name <> 'wait.approval' or e.data is null then e.data -> 'value'
      else jsonb_build_object('approved', e.data #> '{value,approved}', 'reason', coalesce(e.data #>> '{value,reason}', '')) end as given
  from public.core_tool_receipts r
  left join public.core_tool_events e on e.call_id = r.call_id and e.event = 'answered' and e.data ->> 'name' = '#answer'
  where r.tool_name in ('wait.answer', 'wait.approval', 'wait.event') and r.status = 'succeeded'
    and not (r.tool_name = 'wait.approval' and r.result @> '{"approved": false, "reason": "expired"}' and not r.result ? 'by')
) answered
where (said_by = given_by and said = given) is not true

union all

-- An approval for which a rule asked: the question may be gone, since gem prune removes it before the call.
select 'approval-given', r.call_id::text, format('its receipt has the approval %s by %s of %s, and that call %s', a ->> 'id', a ->> 'by', a ->> 'digest', case
    when k.parent_call_id is distinct from r.call_id or (k.parent_step like '##%' and split_part(k.parent_step, '#', 3) = a ->> 'digest') is not true then 'asked something else'
    when k.tool_name <> 'wait.approval' then 'is of ' || k.tool_name
    else format('ended as %s', left(coalesce(q.result::text, 'null'), 200)) end)
from (
  select call_id, jsonb_array_elements(case when jsonb_typeof(effects #> '{rules,approvals}') = 'array' then effects #> '{rules,approvals}' end) as a
  from public.core_tool_receipts where effects ? 'rules'
) r
join public.core_tool_calls k on k.id::text = a ->> 'id'
left join public.core_tool_receipts q on q.call_id = k.id
where (k.parent_call_id = r.call_id and k.parent_step like '##%' and split_part(k.parent_step, '#', 3) = a ->> 'digest' and k.tool_name = 'wait.approval'
  and q.status = 'succeeded' and q.result -> 'approved' = 'true' and q.result ->> 'by' = a ->> 'by'
  and coalesce(q.result ->> 'reason', '') = coalesce(a ->> 'reason', '')) is not true

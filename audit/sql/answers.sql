-- Answers, and the receipts of the calls to wait.answer, wait.approval and wait.event. Each such call has one answer,
-- under the name #answer.
select 'answer-once' as name, call_id::text as id,
  format('it was answered %s times under the name %s, in the events %s', count(*), data ->> 'name',
  string_agg(seq::text, ', ' order by seq)) as what
from public.core_tool_events
where event = 'answered'
group by call_id, data ->> 'name' having count(*) > 1

union all

select 'answer-by', call_id::text, format('its receipt has the answer %s by %s, and its journal %s by %s',
  left(said::text, 200), coalesce(said_by, 'nobody'),
  coalesce(left(given::text, 200), 'none'), coalesce(given_by, 'nobody'))
from (
  select r.call_id, r.result ->> 'by' as said_by, e.data ->> 'by' as given_by,
    case r.tool_name when 'wait.answer' then r.result -> 'answer' when 'wait.event' then r.result -> 'event'
      else jsonb_build_object('approved', r.result -> 'approved', 'reason', coalesce(r.result ->> 'reason', ''))
        end as said,
    case when r.tool_name <> 'wait.approval' or e.data is null then e.data -> 'value'
      else jsonb_build_object('approved', e.data #> '{value,approved}', 'reason',
        coalesce(e.data #>> '{value,reason}', '')) end as given
  from public.core_tool_receipts r
  left join public.core_tool_events e on e.call_id = r.call_id and e.event = 'answered'
    and e.data ->> 'name' = '#answer'
  where r.tool_name in ('wait.answer', 'wait.approval', 'wait.event') and r.status = 'succeeded'
    and not (r.tool_name = 'wait.approval' and r.result @> '{"approved": false, "reason": "expired"}'
      and not r.result ? 'by')
) answered
where (said_by = given_by and said = given) is not true

union all

-- Approvals that a rule required. gem prune removes the question before the call, but the call's journal still names
-- it.
select 'approval-given', r.call_id::text, format('its receipt has the approval %s by %s of %s, and that call %s',
  a ->> 'id', a ->> 'by', a ->> 'digest', case when k.id is null then 'is not one that it made'
    when k.parent_call_id is distinct from r.call_id
      or (k.parent_step like '##%' and split_part(k.parent_step, '#', 3) = a ->> 'digest') is not true then
      'asked something else'
    when k.tool_name <> 'wait.approval' then 'is of ' || k.tool_name
    else format('ended as %s', left(coalesce(q.result::text, 'null'), 200)) end)
from (
  select call_id, jsonb_array_elements(case when jsonb_typeof(effects #> '{rules,approvals}') = 'array' then
    effects #> '{rules,approvals}' end) as a
  from public.core_tool_receipts where effects ? 'rules'
) r
left join public.core_tool_calls k on k.id::text = a ->> 'id'
left join public.core_tool_receipts q on q.call_id = k.id
where case when k.id is null then not exists (select from public.core_tool_events e
    where e.call_id = r.call_id and e.event = 'called' and e.data ->> 'call_id' = a ->> 'id')
  else (k.parent_call_id = r.call_id and k.parent_step like '##%' and split_part(k.parent_step, '#', 3) = a ->> 'digest'
  and k.tool_name = 'wait.approval'
  and q.status = 'succeeded' and q.result -> 'approved' = 'true' and q.result ->> 'by' = a ->> 'by'
  and coalesce(q.result ->> 'reason', '') = coalesce(a ->> 'reason', '')) is not true end

union all

-- Denials whose receipt is older than the claim of the attempt that succeeded.
select 'approval-denied', c.id::text,
  format('it succeeded in an attempt that was claimed at %s, and %s had denied it at %s', claimed.at, q.result ->> 'by',
    q.created_at)
from public.core_tool_calls c
join public.core_tool_calls k on k.parent_call_id = c.id and k.parent_step like '##%' and k.tool_name = 'wait.approval'
join public.core_tool_receipts q on q.call_id = k.id and q.result -> 'approved' = 'false' and q.result ? 'by'
cross join lateral (select max(l.at) as at from public.core_tool_events l
  where l.call_id = c.id and l.event = 'claimed') claimed
where c.status = 'succeeded' and q.created_at < claimed.at

union all

-- The columns that lists of questions read instead of the input. If a call waits or succeeded, its input was validated.
select 'question-input', id::text, format(
  'its columns say by %s, others %s, until %s, and its input by %s, others %s, until %s',
  coalesce(answer_by::text, 'null'), coalesce(answer_others::text, 'null'), coalesce(answer_until::text, 'null'),
  coalesce(left(input ->> 'by', 200), 'null'), coalesce(left(input ->> 'others', 200), 'null'),
  coalesce(left(input ->> 'until', 200), 'null'))
from (
  select c.id, c.input, c.status, c.answer_by, c.answer_others, c.answer_until, c.asked_for is not null as asks,
    case when jsonb_typeof(c.input -> 'by') = 'array' then array(
        select w #>> '{}' from jsonb_array_elements(c.input -> 'by') w
        where jsonb_typeof(w) = 'string' and length(w #>> '{}') <= 260 limit 20)
      when c.tool_name = 'wait.answer' then '{owner}'
      when c.tool_name = 'wait.event' then '{service}'
      else '{}' end as by,
    coalesce(c.input -> 'others', to_jsonb(c.tool_name = 'wait.approval')) <> 'false' as others,
    c.input ->> 'until' as until, right(c.input ->> 'until', 6) as zone
  from public.core_tool_calls c
  where c.asked_for is not null or c.answer_by is not null or c.answer_others is not null or c.answer_until is not null
) q
where not asks or (answer_by, answer_others) is distinct from (by, others)
  -- Later times mean no deadline.
  or status in ('waiting', 'succeeded') and coalesce(left(until, 9) <> '9999-12-3', true)
    and ((answer_until is null) <> (until is null) or left(until, 19) not in (
    select to_char(
      answer_until at time zone 'UTC' + case when until like '%Z' then '0' else zone::interval end - rounded,
      'YYYY-MM-DD"T"HH24:MI:SS')
    from unnest(array[interval '0', '1 microsecond']) rounded)) -- Postgres rounds a fraction of nine digits

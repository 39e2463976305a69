-- Compares the children of durable handlers with the journals of their parents.
--
-- Children of an ended call may be missing, because gem prune removes them first. The checks skip children without a
-- parent: call-parent reports them, and the parent of an archived child may be in another archive.
with told as (
  select call_id as parent, seq, event, data ->> 'name' as name, data ->> 'call_id' as child,
    data ->> 'status' as status,
    data ->> 'receipt_id' as receipt
  from public.core_tool_events where event in ('called', 'returned')
), ended as (
  select call_id as id, max(event) as status, max(data ->> 'receipt_id') as receipt, max(at) as at
  from public.core_tool_events where event in ('succeeded', 'failed', 'not_configured')
  group by call_id
), child as (
  select k.id, k.parent_call_id as parent, k.parent_step as name, e.status, e.at,
    coalesce(k.waits_for = 'parent', false) as untold
  from public.core_tool_calls k
  left join ended e on e.id = k.id
  where k.parent_step is not null
)
select case t.event when 'called' then 'child-called' else 'child-returned' end as name, t.parent::text as id,
  format('its event %s is %s of %s, the call %s, %s, and that call %s', t.seq, t.event, coalesce(t.name, 'null'),
    coalesce(t.child, 'null'),
    case t.event when 'called' then 'made' else concat_ws(' ', coalesce(t.status, 'null'), 'with the receipt',
      coalesce(t.receipt, 'null')) end,
    case when k.id is null then 'does not exist'
      when (k.parent_call_id, k.parent_step) is distinct from (t.parent, t.name)
        then format('is %s of the call %s', coalesce(k.parent_step, 'null'), coalesce(k.parent_call_id::text, 'null'))
      else format('%s with the receipt %s', coalesce(e.status, 'has not ended'), coalesce(e.receipt, 'null'))
        end) as what
from told t
left join public.core_tool_calls k on k.id::text = t.child
left join ended e on e.id = k.id
left join public.core_tool_calls p on p.id = t.parent
where case
  when k.id is null then p.status in ('queued', 'running', 'waiting')
  when (k.parent_call_id, k.parent_step) is distinct from (t.parent, t.name) then true
  else t.event = 'returned' and (e.status, e.receipt) is distinct from (t.status, t.receipt) end

union all

select 'child-called', k.id::text, format('it is %s of the call %s, whose journal has %s events of this', k.name,
  k.parent, count(t.seq))
from child k
join public.core_tool_calls p on p.id = k.parent
left join told t on t.parent = k.parent and t.child = k.id::text and t.event = 'called'
group by k.id, k.name, k.parent having count(t.seq) <> 1

union all

-- A child that ends at the same time as its parent may find it ended, and both may have waited for the row. So if the
-- parent has ended, too, this considers only children that ended at least a minute earlier.
select 'child-returned', k.id::text,
  format('it is %s of the call %s and ended as %s, and that call''s journal has %s events of this',
  k.name, k.parent, k.status, count(t.seq))
from child k
join public.core_tool_calls p on p.id = k.parent
left join ended pe on pe.id = p.id
left join told t on t.parent = k.parent and t.child = k.id::text and t.event = 'returned'
where k.status is not null
group by k.id, k.name, k.parent, k.status, k.at, k.untold, pe.at
having count(t.seq) > 1 or count(t.seq) = 0 and not k.untold and coalesce(k.at < pe.at - interval '1 minute', true)

union all

-- A call with which an operator repeated another is its child and equals it, if the other call still exists.
select 'again-same', c.id::text, format('%s repeated the call %s with it, and %s',
  coalesce(e.data ->> 'by', 'nobody'), e.data ->> 'again_of', case
  when c.parent_step is not null then 'it is a child'
  when c.parent_call_id::text is distinct from e.data ->> 'again_of' then format('its parent is %s',
    coalesce(c.parent_call_id::text, 'null'))
  when e.data ->> 'by' is null then 'the operator is missing'
  else 'the two differ' end)
from public.core_tool_events e
join public.core_tool_calls c on c.id = e.call_id
left join public.core_tool_calls o on o.id = c.parent_call_id
where e.seq = 1 and e.data ? 'again_of' and (e.data ->> 'by' is null or c.parent_step is not null
  or c.parent_call_id::text is distinct from e.data ->> 'again_of'
  or o.id is not null and (o.tool_name, o.input, o.session_id, o.created_by, o.idempotency_key) is distinct from
    (c.tool_name, c.input, c.session_id, c.created_by, c.idempotency_key))

-- Open calls, and the objects that they depend on. A call that is due is a remark and not a fault: perhaps no worker
-- runs.
select 'queue-level' as name, c.id::text,
  format('the call is queued at level %s, and claims do not search it: gem.levels lacks it', c.level) as what
from public.core_tool_calls c
where c.status = 'queued' and c.level not in (select level from gem.levels)

union all

select 'call-parent', c.id::text, format('its parent is the call %s, which does not exist', c.parent_call_id)
from public.core_tool_calls c
left join public.core_tool_calls p on p.id = c.parent_call_id
where c.parent_call_id is not null and p.id is null

union all

select 'recovery-due', c.id::text, format('the call runs on %s, which %s', c.claimed_by, case
  when w.worker_id is null then 'is not in core_workers'
  when w.stopped_at is not null then 'stopped at ' || w.stopped_at
  else 'was alive until ' || w.alive_until end)
from public.core_tool_calls c
left join public.core_workers w on w.worker_id = c.claimed_by
where c.status = 'running' and coalesce(least(w.stopped_at, w.alive_until), c.claimed_at) < now() - interval '1 minute'

union all

select 'waiting-due', c.id::text,
  format('the call has waited since %s for the key %s, and no call holds it', c.updated_at, c.computed_key)
from public.core_tool_calls c
where c.status = 'waiting' and c.waits_for = 'key' and c.updated_at < now() - interval '1 minute'
  and not exists (
    select from public.core_tool_calls h -- as in gem_calls_one_holder_per_key
    where h.computed_key = c.computed_key and (h.status in ('running', 'queued') or h.status = 'waiting'
      and h.waits_for <> 'key'))

union all

select 'wake-due', c.id::text, case c.status when 'waiting' then format(
  'the call should have continued at %s, and waits', c.wake_at)
  else format('the call has ended, and its parent should have been notified at %s', c.wake_at) end
from public.core_tool_calls c
where (c.status = 'waiting' or c.waits_for = 'parent') and c.wake_at < now() - interval '1 minute'
  and c.updated_at < now() - interval '1 minute' -- wake_at may mean: at once

union all

-- cancel-due reports running children whose cancellation was requested. An answered question ends with its answer.
select 'wake-due', p.id::text, format('the call ended at %s, and %s of its children continue', p.updated_at, count(*))
from public.core_tool_calls p
join public.core_tool_calls k on k.parent_call_id = p.id and k.parent_step is not null
where p.status in ('succeeded', 'failed', 'not_configured') and p.updated_at < now() - interval '1 minute'
  and k.status in ('queued', 'running', 'waiting') and k.cancel_requested_at is null
  and not (k.asked_for is not null and exists (
    select from public.core_tool_events e where e.call_id = k.id and e.event = 'answered'))
group by p.id, p.updated_at

union all

select 'wait-stuck', c.id::text, format('the call waits for %s, and all of these have arrived',
  array_to_string(c.waits, ', '))
from public.core_tool_calls c
join (
  select call_id, array_agg(name) as names
  from (
    select call_id, data ->> 'name' as name from public.core_tool_events where event in ('returned', 'answered')
    union all
    select call_id, jsonb_array_elements_text(data -> 'names') from public.core_tool_events where event = 'timed_out'
  ) e
  group by call_id
) came on came.call_id = c.id
where c.status = 'waiting' and c.waits <@ came.names

union all

select 'cancel-due', c.id::text,
  format('the call still runs on %s, and its cancellation was requested at %s', c.claimed_by, c.cancel_requested_at)
from public.core_tool_calls c
-- it may be cleaning up
where c.status = 'running' and c.cancel_requested_at < now() - case when c.steps > 0 then interval '61 minutes'
  else interval '1 minute' end

union all

select 'cancel-waits', c.id::text,
  format('the cancellation of the call was requested at %s, and it waits for %s without cleaning up',
  c.cancel_requested_at, coalesce(nullif(array_to_string(c.waits, ', '), ''), c.waits_for))
from public.core_tool_calls c
where c.status = 'waiting' and c.cancel_requested_at is not null and c.waits_for is distinct from 'code'
  and (select e.data -> 'clean_up' from public.core_tool_events e where e.call_id = c.id and e.event = 'waiting'
    order by e.seq desc limit 1)
    is distinct from 'true'

union all

select 'overdue', o.call_id::text, format('the call has run on %s for %s, and %s may take %s', o.worker_id, o.runs_for,
  o.tool_name, o.timeout)
from gem.overdue o

union all

select 'registry-recorded', min(r.call_id::text),
  format('%s receipts name the registry %s, which is not recorded', count(*), r.registry_version)
from public.core_tool_receipts r
where r.registry_version is not null and r.registry_version not in (select version from public.core_registry_versions)
group by r.registry_version

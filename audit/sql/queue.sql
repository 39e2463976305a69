-- Calls that have not ended, and what they depend on. Something that is due is not wrong: perhaps no worker runs.
select 'queue-level' as name, c.id::text,
  format('the call is queued at level %s, and no claim looks there: gem.levels lacks it', c.level) as what
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
  format('the call has waited since %s for the key %s, and no call runs with it', c.updated_at, c.computed_key)
from public.core_tool_calls c
where c.status = 'waiting' and c.updated_at < now() - interval '1 minute'
  and not exists (select from public.core_tool_calls h where h.status = 'running' and h.computed_key = c.computed_key)

union all

select 'cancel-due', c.id::text,
  format('the call still runs on %s, and someone asked to cancel it at %s', c.claimed_by, c.cancel_requested_at)
from public.core_tool_calls c
where c.status = 'running' and c.cancel_requested_at < now() - interval '1 minute'

union all

select 'overdue', o.call_id::text, format('the call has run on %s for %s, and %s may take %s', o.worker_id, o.runs_for, o.tool_name, o.timeout)
from gem.overdue o

union all

select 'registry-recorded', min(r.call_id::text),
  format('%s receipts are of the registry %s, which is not recorded', count(*), r.registry_version)
from public.core_tool_receipts r
where r.registry_version is not null and r.registry_version not in (select version from public.core_registry_versions)
group by r.registry_version

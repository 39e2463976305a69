-- Compares the receipts that workers restored after a failover with the list of them. The list has at most 10,000 calls
-- of each change of the server, and is removed after 90 days.
select 'restored-listed' as name, c.call_id::text as id,
  format('its receipt %s was restored in the epoch %s, and does not exist', c.receipt_id, c.epoch) as what
from gem.server_change_calls c
join public.core_tool_calls t on t.id = c.call_id
where c.what = 'restored' and c.receipt_id is not null
  and not exists (select from public.core_tool_receipts r where r.id = c.receipt_id and r.call_id = c.call_id)

union all

select 'restored-listed', e.call_id::text,
  format('its receipt was restored in the epoch %s, which does not list it', e.data ->> 'restored')
from public.core_tool_events e
where e.event in ('succeeded', 'failed', 'not_configured') and e.data ? 'restored'
  and exists (select from gem.server_changes s where s.epoch::text = e.data ->> 'restored'
    and s.restored + s.unknown + s.ran_twice + s.missing < 10000)
  and not exists (select from gem.server_change_calls c
    where c.epoch::text = e.data ->> 'restored' and c.call_id = e.call_id and c.attempt = e.attempt)

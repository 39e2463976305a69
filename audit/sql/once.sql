-- Idempotency checks that need all receipts, and the kept keys of pruned ones. They do not apply to an archive, since
-- the other receipts may be in other archives or in a database.
select 'hit-orphan' as name, h.call_id::text as id,
  format('its receipt repeats the receipt %s, which does not exist', h.replay_of) as what
from public.core_tool_receipts h
where h.replay_of is not null
  and not exists (select from public.core_tool_receipts s where s.id = h.replay_of)
  and not exists (select from gem.kept_keys k where k.receipt_id = h.replay_of and k.key = h.idempotency_key)

union all

select 'key-once', min(call_id::text),
  format('the key %s succeeded %s times: in the receipts %s', key, count(*), string_agg(id::text, ', ' order by at, id))
from (
  select r.idempotency_key collate "C" as key, r.id, r.call_id, r.created_at as at from public.core_tool_receipts r
  where r.status = 'succeeded' and r.replay_of is null and r.idempotency_key is not null
  union all
  select k.key, k.receipt_id, k.call_id, k.ended_at from gem.kept_keys k
) success
group by key having count(*) > 1

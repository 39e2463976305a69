-- Compares every call with its receipt. A call that ended in an earlier GEM has `imported` as its only event: its
-- receipt followed the rules of that GEM, so only the rules for all receipts apply. Values are compared by `is distinct
-- from`, because rows of an archive may have nulls that the tables forbid.
with pair as (
  select coalesce(c.id, r.call_id) as id, c.status, c.attempt, c.claimed_by, coalesce(c.tool_name, '') as tool, c.error,
    r.id as receipt, r.status as receipt_status, r.attempt as receipt_attempt, r.worker_id, r.tool_name as receipt_tool,
    r.result, r.effects,
    c.id is not null as has_call, r.id is not null as has_receipt,
    coalesce(c.status in ('succeeded', 'failed', 'not_configured'), false) as final,
    r.id is not null and not coalesce(c.events = 1 and c.status in ('succeeded', 'failed', 'not_configured'),
      false) as ours
  from public.core_tool_calls c
  -- The offset keeps the planner from trusting the unique index. It may be damaged and hide a second receipt.
  full join (select * from public.core_tool_receipts offset 0) r on r.call_id = c.id
), checked as (
  select *, concat_ws(' ',
    case when final and not has_receipt then 'receipt-missing' end,
    case when not has_call then 'receipt-orphan' end,
    case when has_call and has_receipt and not final then 'receipt-early' end,
    case when final and has_receipt and status is distinct from receipt_status then 'receipt-status' end,
    case when final and ours and status = receipt_status
      and error is distinct from case when status = 'failed' then result -> 'error' end then 'receipt-error' end,
    case when final and ours and (attempt, tool, claimed_by) is distinct from (receipt_attempt, receipt_tool, worker_id)
      then 'receipt-attempt' end,
    case when ours and (case receipt_status
        when 'succeeded' then result is not null
        when 'failed' then result #>> '{error,error_code}' is not null and result #>> '{error,message}' is not null
        when 'not_configured' then result ->> 'status' = 'not_configured' and result ->> 'reason' is not null
      end) is not true then 'receipt-result' end,
    case when ours and (jsonb_typeof(effects) = 'object'
        and coalesce(jsonb_typeof(effects -> 'db_writes') = 'array', true)
        and coalesce(jsonb_typeof(effects -> 'db_reads') = 'array', true)
        and coalesce(jsonb_typeof(effects -> 'messages_sent') = 'array', true)
        and coalesce(jsonb_typeof(effects -> 'files_written') = 'array', true)
        and coalesce(jsonb_typeof(effects -> 'external_calls') = 'array', true)
        and coalesce(jsonb_typeof(effects -> 'idempotency') = 'object', true)
          and coalesce(jsonb_typeof(effects -> 'durable') = 'object', true)) is not true then 'effects-form' end
  ) as names
  from pair
)
select name, id::text,
  case name
    when 'receipt-missing' then format('the call is %s, and has no receipt', status)
    when 'receipt-orphan' then format('the receipt %s belongs to a call that does not exist', receipt)
    when 'receipt-early' then format('the call is %s, and has the receipt %s: %s', status, receipt, receipt_status)
    when 'receipt-status' then format('the call is %s, and its receipt is %s', status, receipt_status)
    when 'receipt-error' then format('the call''s error is %s, and its receipt''s is %s',
      left(coalesce(error::text, 'null'), 150),
      left(coalesce((result -> 'error')::text, 'null'), 150))
    when 'receipt-attempt' then format('the call is attempt %s of %s by %s, and its receipt is attempt %s of %s by %s',
      attempt, tool,
      coalesce(claimed_by, 'nobody'), receipt_attempt, receipt_tool, coalesce(worker_id, 'nobody'))
    when 'receipt-result' then format('the result of its receipt, %s, is %s', receipt_status,
      left(coalesce(result::text, 'null'), 150))
    when 'effects-form' then format('the effects of its receipt are %s', left(coalesce(effects::text, 'null'), 150))
  end as what
from checked, string_to_table(names, ' ') as name
where names <> ''

union all

select 'receipt-second', call_id::text, format('the call has %s receipts: %s', count(*),
  string_agg(id::text, ', ' order by created_at, id))
from public.core_tool_receipts
group by call_id having count(*) > 1

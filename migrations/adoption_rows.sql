-- Counts the rows that tables/00002_earlier_gem.sql changes in the calls c and the receipts r of an earlier GEM. If a
-- table lacks a column, the column has its default here. If you change one file, change the other: a test compares the
-- counts with an adoption.
ranked as (
  select r.*, case when r.call_id is null or r.attempt is not null then 1 else row_number() over (
    partition by r.call_id, r.attempt is null
    order by (r.status = c.status) desc nulls last, r.created_at, r.id) end as place
  from r left join c on c.id = r.call_id
), kept as (
  select * from ranked where place = 1
), state as (
  select c.*, k.id is not null as has_receipt,
    case
      when k.id is not null then k.status
      when c.status in ('succeeded', 'failed', 'not_configured') then c.status
      when c.status = 'queued' and not claimed then 'queued'
      else 'failed'
    end as now,
    case
      when k.id is not null or c.status in ('succeeded', 'failed', 'not_configured') then null
      when c.status = 'cancelled' and not claimed then 'cancelled'
      when c.status <> 'queued' or claimed then 'outcome_unknown'
    end as code
  from c
  left join kept k on k.call_id = c.id
  cross join lateral (
    select c.claimed_by is not null or c.claimed_at is not null or coalesce(c.attempt, 0) > 0 as claimed) l
), moved as (
  select * from state where events = 0
), keyed as (
  select distinct on (tool_name, k ->> 'key_field', value) idempotency_key as was,
    tool_name || ':' || (k ->> 'key_field') || case when octet_length(value) <= 200
      then '="' || value || '"'
      else ' sha256 ' || encode(sha256(convert_to(value, 'UTF8')), 'hex') end as key
  from kept, lateral (
    select effects -> 'idempotency' as k, btrim(effects #>> '{idempotency,key_value}', E' \t\n\x0b\f\r') as value) e
  where attempt is null and status = 'succeeded' and k ->> 'mode' = 'keyed' and k ->> 'key_field' is not null
    and jsonb_typeof(k -> 'key_value') = 'string' and value <> '' and k -> 'hit' is distinct from 'true'
  order by tool_name, k ->> 'key_field', value, created_at, id
)
select 'core_tool_calls', col, n from (
  select count(*) filter (where now is distinct from status),
    count(*) filter (where attempt is distinct from case now when 'queued' then 0 else 1 end),
    count(*) filter (where case now when 'queued' then claimed_by is not null else claimed_by is null end),
    count(*) filter (where case now when 'queued' then claimed_at is not null else claimed_at is null end),
    count(*) filter (where priority is null), count(*) filter (where level is distinct from coalesce(priority, 0)),
    count(*) filter (where created_at is null), count(*) filter (where updated_at is null),
    count(*) filter (where run_at is null), count(code), count(*)
  from moved
) m (status, attempt, claimed_by, claimed_at, priority, level, created_at, updated_at, run_at, error, events),
lateral (values ('status', status), ('attempt', attempt), ('claimed_by', claimed_by), ('claimed_at', claimed_at),
  ('priority', priority), ('level', level), ('created_at', created_at), ('updated_at', updated_at), ('run_at', run_at),
  ('error', error), ('events', events)) v (col, n)
union all
(select 'core_tool_calls', format('states: status %s becomes %s', status, now) || coalesce(': ' || code, ''), count(*)
from moved where now is distinct from status group by status, now, code order by 2)
union all
select 'core_tool_calls', 'runs', count(*) from state where case events when 0 then now else status end = 'queued'
union all
select 'core_tool_calls', 'refuses: ' || case count(*) when 1 then 'call has' else 'calls have' end || ' the status '
  || coalesce(status, 'null'), count(*)
from moved
where (status in ('queued', 'claimed', 'running', 'completed', 'succeeded', 'failed', 'not_configured', 'cancelled'))
  is not true and not has_receipt
group by status
union all
select 'core_tool_receipts', 'refuses: ' || case count(*) when 1 then 'receipt has' else 'receipts have' end
  || ' the status ' || coalesce(status, 'null'), count(*)
from r where (status in ('succeeded', 'failed', 'not_configured')) is not true
group by status
union all
select 'core_tool_receipts', 'refuses: ' || case count(*) when 1 then 'receipt has' else 'receipts have' end
  || ' no call_id', count(*)
from r where call_id is null
union all
select 'core_tool_receipts', 'attempt', count(*) from kept where attempt is null
union all
select 'core_tool_receipts', 'tool_name', count(*) from kept where tool_name is null
union all
select 'core_tool_receipts', 'created_at', count(*) from kept where created_at is null
union all
select 'core_tool_receipts', 'idempotency_key', count(*) from keyed where was is distinct from key
union all
select 'core_tool_receipts', 'removes', count(*) from ranked where place > 1
union all
select 'core_tool_receipts', 'adds', count(*) from state
where not has_receipt and case events when 0 then now else status end in ('succeeded', 'failed', 'not_configured')

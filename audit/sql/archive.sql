-- The lines of archives, loaded in the order of the files.
with line as (
  select place, call_id, fault, torn, hash, row_number() over call as nth,
    first_value(hash) over call as first_hash, first_value(place) over call as first
  from pg_temp.archive_lines
  window call as (partition by call_id order by line)
)
select case when torn then 'archive-torn' else 'archive-line' end as name, place as id, fault as what
from line where fault is not null

union all

select case when hash = first_hash then 'archive-repeated' else 'archive-differs' end, call_id::text,
  format(case when hash = first_hash then '%s repeats %s' else '%s has the call again, and it differs from %s' end,
    place, first)
from line where nth > 1 and fault is null

union all

select 'archive-unfinished', id::text, format('the call is %s, and was archived', status)
from public.core_tool_calls
where (status in ('succeeded', 'failed', 'not_configured')) is not true

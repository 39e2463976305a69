-- Compares the rows that receipts list as written with the existing rows. tables.sql returns the list {{tables}} and
-- the query {{rows}}.
with wrote as (
  select call_id, tool, outside, w ->> 'table' as tab, w ->> 'action' as action, w ->> 'id' as id
  from (
    select call_id, tool_name as tool,
      (status <> 'succeeded' or effects -> 'messages_sent' <> '[]'
        or effects -> 'external_calls' <> '[]') is true as outside,
      jsonb_array_elements(case when jsonb_typeof(effects -> 'db_writes') = 'array' then effects -> 'db_writes'
        end) as w
    from public.core_tool_receipts
  ) write
), found as (
  {{rows}}
), imported as (
  -- Calls that ended in an earlier GEM.
  select id from public.core_tool_calls where events = 1 and status in ('succeeded', 'failed', 'not_configured')
), outside as (
  -- Tools that do not write in the transaction of their receipt: a failed call left rows, or a call also had effects
  -- outside.
  select distinct tool from wrote where outside and call_id not in (select id from imported)
)
-- A row that a later call deleted is not missing.
select case when f.id is null then 'effects-missing' else 'effects-foreign' end as name, w.call_id::text as id,
  format(case when f.id is null then 'its receipt lists %s of %s %s, and there is no such row'
    else 'its receipt lists %s of %s %s, and that row is of call %s' end, w.action, w.tab, w.id,
      coalesce(f.call_id::text, 'null')) as what
from wrote w
left join found f on f.tab = w.tab and f.id = w.id
where w.tab in ({{tables}}) and case
  when f.id is null then w.action in ('insert', 'update') and w.call_id not in (select id from imported)
    and (w.tab, w.id) not in (select tab, id from wrote where action = 'delete' and tab is not null and id is not null)
  when f.owned and f.call_id is distinct from w.call_id then w.action = 'insert'
    and w.call_id not in (select id from imported)
  end

union all

-- A row and its receipt appear together, or not at all. This skips tools that write outside of the receipt's
-- transaction, tables into which only such tools insert, and calls that an earlier GEM began.
select 'effects-unlisted', f.call_id::text, format('%s %s names the call, and the call %s', f.tab, f.id,
  case when c.status in ('succeeded', 'failed', 'not_configured') then 'has a receipt without it'
    else 'is ' || c.status end)
from found f
join public.core_tool_calls c on c.id = f.call_id
left join wrote w on w.call_id = f.call_id and w.tab = f.tab and w.id = f.id and w.action = 'insert'
where case when w.id is null then c.tool_name not in (select tool from outside)
    and f.tab in (select tab from wrote where action = 'insert' and tool not in (select tool from outside))
    and f.call_id not in (select call_id from public.core_tool_events where event = 'imported') end

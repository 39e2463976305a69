-- The rows that receipts say were written, beside the rows of the built-in domains. The marks in braces stand for the
-- domain tables that this database has: their names, and their rows as (tab, id, call_id) with the id as text.
with wrote as (
  select r.call_id, w ->> 'table' as tab, w ->> 'action' as action, w ->> 'id' as id
  from public.core_tool_receipts r,
  jsonb_array_elements(case when jsonb_typeof(r.effects -> 'db_writes') = 'array' then r.effects -> 'db_writes' end) w
), domain_row as (
  {{rows}}
)
-- A row that a later call deleted is not missed, and what a call of the earlier GEM wrote is not looked for.
select case when d.id is null then 'effects-missing' else 'effects-foreign' end as name, w.call_id::text as id,
  format(case when d.id is null then 'its receipt says %s of %s %s, and there is no such row'
    else 'its receipt says %s of %s %s, and that row is of call %s' end, w.action, w.tab, w.id, coalesce(d.call_id::text, 'null')) as what
from wrote w
left join domain_row d on d.tab = w.tab and d.id = w.id
where w.tab in ({{tables}}) and case
  when d.id is null then w.action in ('insert', 'update')
    and (w.tab, w.id) not in (select tab, id from wrote where action = 'delete' and tab is not null and id is not null)
    and w.call_id not in (select id from public.core_tool_calls where events = 1 and status in ('succeeded', 'failed', 'not_configured'))
  when d.call_id is distinct from w.call_id then w.action = 'insert'
    and w.call_id not in (select id from public.core_tool_calls where events = 1 and status in ('succeeded', 'failed', 'not_configured'))
  end

union all

-- A row and its receipt appear together, or not at all. comms_log is left out: its rows are written before the message
-- leaves. So are calls that the earlier GEM began, and rows of calls that were pruned.
select 'effects-unlisted', d.call_id::text, format('%s %s says that the call made it, and the call %s', d.tab, d.id,
  case when c.status in ('succeeded', 'failed', 'not_configured') then 'has a receipt without it' else 'is ' || c.status end)
from domain_row d
join public.core_tool_calls c on c.id = d.call_id
left join wrote w on w.call_id = d.call_id and w.tab = d.tab and w.id = d.id and w.action = 'insert'
where d.tab <> 'comms_log'
  and case when w.id is null then d.call_id not in (select call_id from public.core_tool_events where event = 'imported') end

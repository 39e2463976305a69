-- Returns the existing tables with a column id that receipts list as written: their names as a list of literals, and a
-- query that returns their rows as (tab, id, owned, call_id), with the id as text. A table owned by calls has a column
-- call_id, the call that inserted the row. A name without a schema belongs to public. GEM's own tables are excluded.
select coalesce(string_agg(quote_literal(tab), ', '), 'null'), concat_ws(' union all ',
  'select null::text as tab, null::text as id, false as owned, null::uuid as call_id where false',
  string_agg(format('select %L, id::text, %s from %I.%I', tab,
    case when owned then 'true, call_id' else 'false, null' end, nspname, relname), ' union all '))
from (
  select distinct w ->> 'table' as tab
  from (
    select jsonb_array_elements(case when jsonb_typeof(effects -> 'db_writes') = 'array' then effects -> 'db_writes'
      end) as w
    from public.core_tool_receipts
  ) write
) wrote
join (
  select n.nspname, c.relname, case n.nspname when 'public' then '' else n.nspname || '.' end || c.relname as tab,
    bool_or(a.attname = 'id') as identified, bool_or(a.attname = 'call_id' and a.atttypid = 'uuid'::regtype) as owned
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attname in ('id', 'call_id') and not a.attisdropped
  where c.relkind in ('r', 'p') and c.relname not in ('core_tool_calls', 'core_tool_receipts', 'core_tool_events')
  group by n.nspname, c.relname
) present using (tab)
where identified

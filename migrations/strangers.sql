select t.source, t.kind, t.object, t.found, t.changes, t.adoptable
from (
  with need as (
    select n.source, n.kind, n.name, coalesce(n.columns, '{}') as columns, coalesce(n.adoptable, false) as adoptable,
      case when n.kind not in ('schema', 'role') then coalesce(n.schema, current_schema()) end as schema
    from jsonb_to_recordset(:needed) as n (source text, kind text, schema text, name text, columns text[], adoptable boolean)
  ), named as (
    select distinct on (object) n.*
    from (select need.*, kind || ' ' || coalesce(schema || '.', '') || name as object from need) n
    where n.object <> all (:ours)
      and (n.schema is null or 'schema ' || n.schema <> all (:ours))
  )
  select n.source, n.kind, n.object, n.adoptable and f.found = 'table' as adoptable, f.found, f.changes, f.place
  from named n
  cross join lateral (
    select 1, 'schema', 'create tables and functions of its own in it, and close it to others'
    from pg_catalog.pg_namespace s where n.kind = 'schema' and s.nspname = n.name
    union all
    select 2, case c.relkind when 'r' then case when c.relispartition then 'partition'
          when exists (select from pg_catalog.pg_inherits i where i.inhparent = c.oid) then 'table with child tables'
          when exists (select from pg_catalog.pg_inherits i where i.inhrelid = c.oid) then 'child table' else 'table' end
        when 'p' then 'partitioned table' when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence'
        when 'f' then 'foreign table' when 'c' then 'type' else 'index' end,
      case
        when n.kind <> 'table' or c.relkind not in ('r', 'p') then 'put a ' || n.kind || ' in its place'
        else concat_ws('; ',
          (select 'add the columns ' || string_agg(quote_ident(w), ', ' order by p) from unnest(n.columns) with ordinality w (w, p)
           where not exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attname = w and a.attnum > 0 and not a.attisdropped)),
          (select 'allow null in ' || string_agg(quote_ident(a.attname), ', ' order by a.attnum) from pg_catalog.pg_attribute a
           where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attnotnull and not a.atthasdef and a.attidentity = ''
             and a.attname <> all (n.columns)
             and not exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary and a.attnum = any (i.indkey))),
          (select 'drop the check ' || string_agg(quote_ident(k.conname), ', ' order by k.conname) from pg_catalog.pg_constraint k
           where k.conrelid = c.oid and k.contype = 'c' and exists (select from pg_catalog.pg_attribute a
             where a.attrelid = c.oid and a.attnum = any (k.conkey) and a.attname = any (n.columns))),
          case when not c.relrowsecurity then 'turn on row level security' end,
          'add triggers, checks, indexes and rights') end
    from pg_catalog.pg_class c join pg_catalog.pg_namespace s on s.oid = c.relnamespace
    where n.kind in ('table', 'view', 'sequence', 'index', 'type') and s.nspname = n.schema and c.relname = n.name
    union all
    select 3, 'type', 'put a ' || n.kind || ' in its place'
    from pg_catalog.pg_type t join pg_catalog.pg_namespace s on s.oid = t.typnamespace
    where n.kind in ('table', 'view', 'type') and t.typrelid = 0 and s.nspname = n.schema and t.typname = n.name
    union all
    select 4, 'function', 'replace ' || string_agg(p.oid::regprocedure::text, ', ' order by p.oid::regprocedure::text) || ', or put its own next to it'
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace s on s.oid = p.pronamespace
    where n.kind = 'function' and s.nspname = n.schema and p.proname = n.name
    having count(*) > 0
    union all
    select 5, 'role', 'grant it rights on GEM''s tables and functions'
    from pg_catalog.pg_roles r
    where n.kind = 'role' and r.rolname = n.name
      and coalesce(pg_catalog.shobj_description(r.oid, 'pg_authid'), '') not like 'Made by GEM%'
  ) f (place, found, changes)
  where not (n.adoptable and f.found = 'table' and n.object = any (:adopt))
) t
order by t.place, t.object

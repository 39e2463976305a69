select t.source, t.kind, t.object, t.found, t.changes, t.remove, t.adoptable
from (
  with need as (
    select n.source, n.kind, n.name, coalesce(n.columns, '{}') as columns, coalesce(n.adoptable, false) as adoptable,
      case when n.kind not in ('schema', 'role') then coalesce(n.schema, nullif(current_setting('gem.schema'), ''))
        end as schema, coalesce(n.types, '{}') as types
    from jsonb_to_recordset(:needed) as n (source text, kind text, schema text, name text, columns text[],
      types text[], adoptable boolean)
  ), named as (
    select distinct on (object) n.*
    from (select need.*, kind || ' ' || coalesce(schema || '.', '') || name as object from need) n
    where n.object <> all (:ours)
      and (n.schema is null or 'schema ' || n.schema <> all (:ours))
  ), adoptee as (
    select c.oid, c.relowner, c.relpersistence, c.relforcerowsecurity, c.relreplident, n.source,
      n.name as bare, n.columns, n.types,
      format('%I.%I', s.nspname, c.relname) as name
    from named n
    join pg_catalog.pg_namespace s on s.nspname = n.schema
    join pg_catalog.pg_class c on c.relnamespace = s.oid and c.relname = n.name and c.relkind = 'r'
    where n.adoptable
  ), part as (
    -- Everything that belongs to a table that will be adopted. Its triggers, policies and rules are removed without
    -- analysis.
    select a.oid as of, 'pg_class'::regclass::oid as class, a.oid as id from adoptee a
    union all
    select a.oid, 'pg_type'::regclass, unnest(array[t.oid, t.typarray])
    from adoptee a join pg_catalog.pg_type t on t.typrelid = a.oid
    union all
    select a.oid, 'pg_class'::regclass, i.indexrelid from adoptee a join pg_catalog.pg_index i on i.indrelid = a.oid
    union all
    select a.oid, 'pg_constraint'::regclass, k.oid from adoptee a join pg_catalog.pg_constraint k on k.conrelid = a.oid
    union all
    select a.oid, 'pg_attrdef'::regclass, d.oid from adoptee a join pg_catalog.pg_attrdef d on d.adrelid = a.oid
    union all
    select a.oid, 'pg_statistic_ext'::regclass, x.oid
    from adoptee a join pg_catalog.pg_statistic_ext x on x.stxrelid = a.oid
    union all
    select a.oid, 'pg_class'::regclass, q.oid
    from adoptee a
    join pg_catalog.pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = a.oid
      and d.classid = 'pg_class'::regclass and d.deptype in ('a', 'i')
    join pg_catalog.pg_class q on q.oid = d.objid and q.relkind = 'S'
    union all
    select a.oid, 'pg_trigger'::regclass, t.oid from adoptee a join pg_catalog.pg_trigger t on t.tgrelid = a.oid
    union all
    select a.oid, 'pg_policy'::regclass, p.oid from adoptee a join pg_catalog.pg_policy p on p.polrelid = a.oid
    union all
    select a.oid, 'pg_rewrite'::regclass, w.oid from adoptee a join pg_catalog.pg_rewrite w on w.ev_class = a.oid
  ), uses as (
    -- The objects outside of pg_catalog that the parts use: someone else could change their behaviour. Postgres does
    -- not record the use of its own objects. A foreign key may refer to a table of others.
    select distinct a.oid as of, a.name, a.columns, p.class, p.id, d.objsubid as col, r.type as used,
      r.identity as used_name
    from adoptee a
    join part p on p.of = a.oid and p.class not in ('pg_trigger'::regclass, 'pg_policy'::regclass,
      'pg_rewrite'::regclass)
    join pg_catalog.pg_depend d on d.classid = p.class and d.objid = p.id
    cross join lateral pg_catalog.pg_identify_object(d.refclassid, d.refobjid, d.refobjsubid) r
    left join part q on q.class = d.refclassid and q.id = d.refobjid
    left join pg_catalog.pg_constraint k on p.class = 'pg_constraint'::regclass and k.oid = p.id
    where r.schema is distinct from 'pg_catalog' and d.refclassid <> 'pg_namespace'::regclass
      -- Frontends insert calls, and have no rights on sequences.
      and (q.id is null or a.source = 'core' and p.class = 'pg_attrdef'::regclass and r.type = 'sequence')
      and (d.refclassid = 'pg_class'::regclass and k.contype = 'f') is not true
    union all
    -- A foreign key changes rows with the rights of GEM's owner, so it may only refuse, and only for columns of others.
    select a.oid, a.name, a.columns, 'pg_constraint'::regclass, k.oid, 0, 'table', k.confrelid::regclass::text
    from adoptee a
    join pg_catalog.pg_constraint k on k.conrelid = a.oid and k.contype = 'f'
    where k.confrelid not in (select o.oid from adoptee o) and (k.confupdtype not in ('a', 'r')
      or k.confdeltype not in ('a', 'r') or exists (select from pg_catalog.pg_attribute c where c.attrelid = a.oid
        and c.attnum = any (k.conkey) and c.attname = any (a.columns)))
    union all
    -- GEM inserts calls and receipts without values for the columns of others, and repeats values in its own. A
    -- constraint that forbids this would keep a call from its receipt.
    select a.oid, a.name, a.columns, 'pg_constraint'::regclass, k.oid, 0, 'table', a.name
    from adoptee a
    join pg_catalog.pg_constraint k on k.conrelid = a.oid and (k.contype = 'x' or k.contype = 'c'
      and not exists (select from pg_catalog.pg_attribute c where c.attrelid = a.oid and c.attnum = any (k.conkey)
        and c.attname = any (a.columns)))
    where a.source = 'core'
    union all
    select a.oid, a.name, a.columns, 'pg_class'::regclass, i.indexrelid, 0, 'table', a.name
    from adoptee a
    join pg_catalog.pg_index i on i.indrelid = a.oid
    where a.source = 'core' and (i.indpred is not null or i.indisunique and i.indkey::text not in (
        select c.attnum::text from pg_catalog.pg_attribute c
        where c.attrelid = a.oid and c.attname in ('id', 'call_id'))
      or exists (select from unnest(i.indkey) k (col) left join pg_catalog.pg_attribute c on c.attrelid = a.oid
          and c.attnum = k.col and k.col > 0
        -- of expressions, and of columns whose values may be too long for an index
        where (c.attlen > 0 or c.attname = any (a.columns) and c.attname in ('created_by', 'idempotency_key',
          'session_id', 'status', 'tool_name', 'worker_id')) is not true))
    union all
    -- Postgres has functions that run SQL (query_to_xml, ts_stat) or reach beyond the row (set_config, pg_read_file).
    -- Immutable functions, the functions of Postgres's own operators and casts, and the ones listed here do neither.
    select distinct a.oid, a.name, a.columns, p.class, p.id, 0, 'function', f.oid::regprocedure::text
    from adoptee a
    join part p on p.of = a.oid
    cross join lateral (
      select d.adbin::text from pg_catalog.pg_attrdef d where p.class = 'pg_attrdef'::regclass and d.oid = p.id
      union all
      select k.conbin::text from pg_catalog.pg_constraint k
      where p.class = 'pg_constraint'::regclass and k.oid = p.id
      union all
      select concat(i.indexprs, i.indpred) from pg_catalog.pg_index i
      where p.class = 'pg_class'::regclass and i.indexrelid = p.id
      union all
      select x.stxexprs::text from pg_catalog.pg_statistic_ext x
      where p.class = 'pg_statistic_ext'::regclass and x.oid = p.id
    ) e (tree)
    cross join lateral regexp_matches(e.tree, ':(?:op)?funcid (\d+)', 'g') m (ids)
    join pg_catalog.pg_proc f on f.oid = m.ids[1]::oid
    where f.provolatile <> 'i'
      and not exists (select from pg_catalog.pg_operator o where o.oprcode = f.oid and o.oid < 16384) -- Postgres's own
      and not exists (select from pg_catalog.pg_cast c where c.castfunc = f.oid and c.oid < 16384)
      and (f.pronamespace <> 'pg_catalog'::regnamespace or f.proname <> all (array['array_to_string', 'clock_timestamp',
        'concat', 'concat_ws', 'current_database', 'current_setting', 'date_part', 'date_trunc', 'extract', 'format',
        'gen_random_uuid', 'json_build_array', 'json_build_object', 'jsonb_build_array', 'jsonb_build_object',
        'nextval', 'now', 'random', 'statement_timestamp', 'timeofday', 'timezone', 'to_char', 'to_date', 'to_json',
        'to_jsonb', 'to_timestamp', 'transaction_timestamp', 'uuidv4', 'uuidv7']))
  ), used_by as (
    -- The objects of others that use the parts.
    select distinct p.of, d.classid as class, d.objid as id, d.objsubid as col
    from part p
    join pg_catalog.pg_depend d on d.refclassid = p.class and d.refobjid = p.id and d.deptype <> 'i'
    left join part q on q.class = d.classid and q.id = d.objid
    left join pg_catalog.pg_rewrite w on d.classid = 'pg_rewrite'::regclass and w.oid = d.objid
    left join pg_catalog.pg_constraint k on d.classid = 'pg_constraint'::regclass and k.oid = d.objid
    left join pg_catalog.pg_attrdef v on d.classid = 'pg_attrdef'::regclass and v.oid = d.objid
    left join pg_catalog.pg_class o on o.oid = coalesce(w.ev_class, nullif(k.conrelid, 0), v.adrelid)
    cross join lateral pg_catalog.pg_identify_object(d.classid, d.objid, 0) i
    where q.id is null
      and 'schema ' || coalesce(o.relnamespace::regnamespace::text, i.schema, '') <> all (:ours)
      and format('%s %s.%s', case o.relkind when 'v' then 'view' when 'r' then 'table' else i.type end,
        coalesce(o.relnamespace::regnamespace::text, i.schema), coalesce(o.relname, i.name)) <> all (:ours)
  ), foreign_to (of, line) as (
    -- The statements that remove or change whatever differs from GEM's tables. A policy of others would widen GEM's own
    -- policies, and a function of others would run with the rights of GEM's roles.
    select a.oid, format('drop policy %I on %s;', p.polname, a.name)
    from adoptee a join pg_catalog.pg_policy p on p.polrelid = a.oid
    union all
    select a.oid, format('drop trigger %I on %s;', t.tgname, a.name)
    from adoptee a join pg_catalog.pg_trigger t on t.tgrelid = a.oid and not t.tgisinternal
    union all
    select a.oid, format('drop rule %I on %s;', w.rulename, a.name)
    from adoptee a join pg_catalog.pg_rewrite w on w.ev_class = a.oid
    union all
    select u.of, case
        when v.attgenerated = 's' then format('alter table %s alter column %I drop expression;', u.name, v.attname)
        when v.attgenerated <> '' then format('alter table %s drop column %I;', u.name, v.attname)
        when v.attname is not null then format('alter table %s alter column %I drop default;', u.name, v.attname)
        when k.conname is not null then format('alter table %s drop constraint %I;', u.name, k.conname)
        when c.attname is not null then format('alter table %s alter column %I type text;', u.name, c.attname)
        when u.id <> u.of then format('drop %s %s;', case i.type when 'statistics object' then 'statistics'
          else i.type end, i.identity)
        when u.used = 'type' then format('alter table %s not of;', u.name)
        when u.used = 'extension' then format('alter extension %s drop table %s;', u.used_name, u.name)
        when u.used = 'access method' then format('alter table %s set access method heap;', u.name)
        else format('alter table %s no inherit %s;', u.name, u.used_name) end
    from uses u
    cross join lateral pg_catalog.pg_identify_object(u.class, u.id, 0) i
    left join pg_catalog.pg_constraint k on u.class = 'pg_constraint'::regclass and k.oid = u.id
      or u.class = 'pg_class'::regclass and k.conindid = u.id and k.conrelid = u.of
    left join lateral (select f.attname, f.attgenerated
      from pg_catalog.pg_attrdef e join pg_catalog.pg_attribute f on f.attrelid = e.adrelid and f.attnum = e.adnum
      where u.class = 'pg_attrdef'::regclass and e.oid = u.id) v on true
    left join pg_catalog.pg_attribute c on u.class = 'pg_class'::regclass and u.id = u.of and c.attrelid = u.of
      and c.attnum = u.col and u.col > 0
    where not (c.attname = any (u.columns) and u.used = 'type') is true -- a later query handles this case
    union all
    select u.of, case
        when w.relkind is not null then format('drop %s %s;', case w.relkind when 'v' then 'view' when 'm' then
          'materialized view' else 'rule' end, case when w.relkind in ('v', 'm') then w.name else i.identity end)
        when k.conrelid <> 0 then format('alter table %s drop constraint %I;', k.conrelid::regclass, k.conname)
        when v.name is not null then format('alter table %s alter column %I drop default;', v.name, v.attname)
        when b.pubname is not null then format('alter publication %I drop table %s;', b.pubname, b.name)
        when c.attname is not null then format('alter table %s drop column %I;', c.attrelid::regclass, c.attname)
        else format('drop %s %s;', i.type, i.identity) end
    from used_by u
    cross join lateral pg_catalog.pg_identify_object(u.class, u.id, 0) i
    left join lateral (select o.relkind, r.ev_class::regclass::text as name
      from pg_catalog.pg_rewrite r join pg_catalog.pg_class o on o.oid = r.ev_class
      where u.class = 'pg_rewrite'::regclass and r.oid = u.id) w on true
    left join pg_catalog.pg_constraint k on u.class = 'pg_constraint'::regclass and k.oid = u.id
    left join lateral (select e.adrelid::regclass::text as name, f.attname
      from pg_catalog.pg_attrdef e join pg_catalog.pg_attribute f on f.attrelid = e.adrelid and f.attnum = e.adnum
      where u.class = 'pg_attrdef'::regclass and e.oid = u.id) v on true
    left join lateral (select f.pubname, e.prrelid::regclass::text as name,
        to_jsonb(e) ->> 'prqual' is not null or to_jsonb(e) ->> 'prattrs' is not null as partly -- since Postgres 15
      from pg_catalog.pg_publication_rel e join pg_catalog.pg_publication f on f.oid = e.prpubid
      where u.class = 'pg_publication_rel'::regclass and e.oid = u.id) b on true
    left join pg_catalog.pg_attribute c on u.class = 'pg_class'::regclass and c.attrelid = u.id and c.attnum = u.col
      and u.col > 0
    -- api.sql adds the whole table to this publication
    where (b.pubname, b.name, b.partly) is distinct from ('supabase_realtime', 'public.core_tool_receipts', false)
    union all
    -- A column of GEM that has another type, or computes its value.
    select a.oid, case
        when c.attgenerated <> '' then format('alter table %s alter column %I drop expression;', a.name, c.attname)
        when w.col = 'id' then format('alter table %s rename to %I; -- its id is %s, and GEM''s is %s', a.name,
          'earlier_' || a.bare, pg_catalog.format_type(c.atttypid, c.atttypmod), w.type)
        else format('alter table %s alter column %I type %s using %2$I::%s;', a.name, c.attname, w.type, w.type) end
    from adoptee a
    cross join lateral unnest(a.columns, a.types) w (col, type)
    join pg_catalog.pg_attribute c on c.attrelid = a.oid and c.attname = w.col and c.attnum > 0
    where c.atttypid <> pg_catalog.to_regtype(w.type) or c.atttypmod <> -1 or c.attgenerated <> ''
    union all
    -- GEM inserts calls and receipts without values for the columns of others. A default or a computed value could
    -- fail.
    select a.oid, format('alter table %s alter column %I drop %s;', a.name, c.attname, d.what)
    from adoptee a
    join pg_catalog.pg_attribute c on c.attrelid = a.oid and c.attnum > 0 and not c.attisdropped
    cross join lateral (values (c.attgenerated <> '', 'expression'), (c.attidentity <> '', 'identity'),
      (c.atthasdef and c.attgenerated = '', 'default'), (c.attnotnull, 'not null')) d (has, what)
    where a.source = 'core' and c.attname <> all (a.columns) and d.has
    union all
    -- Postgres refuses a row of more than 8 kB whose long values have to stay in it.
    select a.oid, format('alter table %s alter column %I set storage %s;', a.name, c.attname,
      case t.typstorage when 'm' then 'main' when 'e' then 'external' else 'extended' end)
    from adoptee a
    join pg_catalog.pg_attribute c on c.attrelid = a.oid and c.attnum > 0 and not c.attisdropped
    join pg_catalog.pg_type t on t.oid = c.atttypid
    where c.attlen < 0 and c.attstorage = 'p' and t.typstorage <> 'p'
    union all
    -- Other tables of GEM refer to it.
    select a.oid, format('alter table %s add %s (id);', a.name,
      case when exists (select from pg_catalog.pg_index i where i.indrelid = a.oid and i.indisprimary) then 'unique'
        else 'primary key' end)
    from adoptee a
    join pg_catalog.pg_attribute c on c.attrelid = a.oid and c.attname = 'id' and c.attnum > 0
    where not exists (select from pg_catalog.pg_index i where i.indrelid = a.oid and i.indisunique and i.indisvalid
      and i.indimmediate and i.indpred is null and i.indkey::text = c.attnum::text)
    union all
    select a.oid, format('alter table %s %s;', a.name, o.change)
    from adoptee a
    cross join lateral (values
      (a.relpersistence = 'u', 'set logged'),
      (a.relforcerowsecurity, 'no force row level security'),
      (a.relreplident in ('n', 'i'), 'replica identity default'),
      (a.relowner <> current_user::regrole, format('owner to %I', current_user))
    ) o (wrong, change)
    where o.wrong
    union all
    select o.of, format('revoke all on %s%s from %s%s;', case o.relkind when 'S' then 'sequence ' end, o.name,
      string_agg(distinct coalesce(quote_ident(r.rolname), 'public'), ', '),
      case when bool_or(g.is_grantable) then ' cascade' end)
    from (
      select p.of, c.oid, c.relkind, c.relacl, c.relowner, format('%I.%I', s.nspname, c.relname) as name
      from part p join pg_catalog.pg_class c on c.oid = p.id and c.relkind in ('r', 'S')
      join pg_catalog.pg_namespace s on s.oid = c.relnamespace
      where p.class = 'pg_class'::regclass
    ) o cross join lateral (
      select x.* from pg_catalog.aclexplode(o.relacl) x
      union all
      select x.* from pg_catalog.pg_attribute e, pg_catalog.aclexplode(e.attacl) x where e.attrelid = o.oid
    ) g left join pg_catalog.pg_roles r on r.oid = g.grantee
    where g.grantee <> o.relowner
    group by o.of, o.oid, o.relkind, o.name
  )
  select n.source, n.kind, n.object, n.adoptable and f.found = 'table' as adoptable, f.found, f.changes, f.remove,
    f.place
  from named n
  cross join lateral (
    select 1, 'schema', 'create tables and functions of its own in it, and close it to others', null::text
    from pg_catalog.pg_namespace s where n.kind = 'schema' and s.nspname = n.name
    union all
    select 2, case c.relkind when 'r' then case when c.relispartition then 'partition'
          when exists (select from pg_catalog.pg_inherits i where i.inhparent = c.oid) then 'table with child tables'
          when exists (select from pg_catalog.pg_inherits i where i.inhrelid = c.oid) then 'child table'
          when not exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attname = 'id')
            then 'table without a column id'
          else 'table' end
        when 'p' then 'partitioned table' when 'v' then 'view' when 'm' then 'materialized view'
          when 'S' then 'sequence'
        when 'f' then 'foreign table' when 'c' then 'type' else 'index' end,
      case
        when n.kind <> 'table' or c.relkind not in ('r', 'p') then 'put GEM''s ' || n.kind || ' in its place'
        else concat_ws('; ',
          (select 'add the columns ' || string_agg(quote_ident(w), ', ' order by p)
            from unnest(n.columns) with ordinality w (w, p)
           where not exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attname = w
             and a.attnum > 0 and not a.attisdropped)),
          (select 'allow null in ' || string_agg(quote_ident(a.attname), ', ' order by a.attnum)
            from pg_catalog.pg_attribute a
           where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attnotnull and not a.atthasdef
             and a.attidentity = ''
             and a.attname <> all (n.columns)
             and not exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary
               and a.attnum = any (i.indkey))),
          (select 'drop the check ' || string_agg(quote_ident(k.conname), ', ' order by k.conname)
            from pg_catalog.pg_constraint k
           where k.conrelid = c.oid and k.contype = 'c' and exists (select from pg_catalog.pg_attribute a
             where a.attrelid = c.oid and a.attnum = any (k.conkey) and a.attname = any (n.columns))),
          (select 'change defaults, and fill in null, in ' || string_agg(quote_ident(a.attname), ', ' order by a.attnum)
           from pg_catalog.pg_attribute a
           where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attname = any (n.columns)),
          case when not c.relrowsecurity then 'turn on row level security' end,
          'add triggers, checks, indexes and rights') end,
      case when n.adoptable then (select string_agg(f.line, E'\n' order by f.line not like 'drop %', f.line)
        from (select distinct line from foreign_to where of = c.oid) f) end
    from pg_catalog.pg_class c join pg_catalog.pg_namespace s on s.oid = c.relnamespace
    where n.kind in ('table', 'view', 'sequence', 'index', 'type') and s.nspname = n.schema and c.relname = n.name
    union all
    select 3, 'type', 'put GEM''s ' || n.kind || ' in its place', null
    from pg_catalog.pg_type t join pg_catalog.pg_namespace s on s.oid = t.typnamespace
    where n.kind in ('table', 'view', 'type') and t.typrelid = 0 and s.nspname = n.schema and t.typname = n.name
    union all
    select 4, 'function', 'replace ' || string_agg(p.oid::regprocedure::text, ', '
      order by p.oid::regprocedure::text) || ', or put its own next to it', null
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace s on s.oid = p.pronamespace
    where n.kind = 'function' and s.nspname = n.schema and p.proname = n.name
    having count(*) > 0
    union all
    select 5, 'role', 'grant it rights on GEM''s tables and functions', null
    from pg_catalog.pg_roles r
    where n.kind = 'role' and r.rolname = n.name
      and coalesce(pg_catalog.shobj_description(r.oid, 'pg_authid'), '') not like 'Made by GEM%'
  ) f (place, found, changes, remove)
  where not (n.adoptable and f.found = 'table' and n.object = any (:adopt) and f.remove is null)
) t
order by t.place, t.object

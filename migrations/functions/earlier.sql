-- Converts the tables of an earlier GEM into a domain's tables with the same names. The file that makes the domain's
-- tables calls two functions:
--
--   select gem.set_aside('notes', 'tasks');    moves existing tables to the schema gem_earlier
--   create table if not exists …               makes all tables, with their constraints and indexes
--   select gem.bring_back('notes', 'tasks');   drops each new table that has an earlier version, and adds the missing
--                                              parts to the earlier one
--
-- Without such tables both functions do nothing, and a second run changes nothing. No row is rejected or lost.

create or replace function gem.set_aside(variadic p_tables text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  earlier text;
  moved   boolean := false;
begin
  foreach earlier in array p_tables loop
    if to_regclass('public.' || earlier) is not null then
      if not moved then
        create schema gem_earlier; -- fails if someone else made the schema
        moved := true;
      end if;
      execute format('alter table public.%I set schema gem_earlier', earlier);
    end if;
  end loop;
end
$$;

create or replace function gem.bring_back(variadic p_tables text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  statement text;
  todo      text[];
begin
  if not exists (select from unnest(p_tables) t where to_regclass('gem_earlier.' || t) is not null) then
    return;
  end if;
  with pair as (
    select t as name, to_regclass('public.' || t) as new, to_regclass('gem_earlier.' || t) as old
      from unnest(p_tables) t
  ), new_column as (
    select p.name, p.old, a.attname as col, a.attnotnull as required, format_type(a.atttypid, a.atttypmod) as type,
      pg_get_expr(d.adbin, d.adrelid) as value
    from pair p
    join pg_attribute a on a.attrelid = p.new and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where p.old is not null
  ), old_column as (
    select p.name, a.* from pair p join pg_attribute a on a.attrelid = p.old and a.attnum > 0 and not a.attisdropped
  ), made (step, sql) as (
    select 1, format('drop table public.%I cascade', name) from pair where old is not null
    union all
    select 2, format('alter table gem_earlier.%I set schema public', name) from pair where old is not null
    union all
    -- If the new table checks a column, the earlier checks of that column are dropped: they may allow other values.
    select distinct 3, format('alter table public.%I drop constraint %I', p.name, k.conname)
    from pair p
    join pg_constraint k on k.conrelid = p.old and k.contype = 'c' and k.conname not like 'gem\_%'
    join pg_attribute o on o.attrelid = p.old and o.attnum = any (k.conkey)
    join pg_attribute a on a.attrelid = p.new and a.attname = o.attname
    join pg_constraint n on n.conrelid = p.new and n.contype = 'c' and a.attnum = any (n.conkey)
    union all
    select 4, format('alter table public.%I add column if not exists %I %s', name, col, type)
      || coalesce(' default ' || value, '') || case when required then ' not null' else '' end
    from new_column
    union all
    -- Null becomes the default where the new table allows no null.
    select 5, format('update public.%1$I set %2$I = %3$s where %2$I is null; '
      || 'alter table public.%1$I alter column %2$I set default %3$s, alter column %2$I set not null', n.name, n.col,
        n.value)
    from new_column n
    join old_column o on o.name = n.name and o.attname = n.col and not (o.attnotnull and o.atthasdef)
    where n.required and n.value is not null and (n.col <> 'id' or o.atttypid = 'uuid'::regtype)
    union all
    -- Handlers do not set columns that only the earlier table has, or nullable columns, so new rows omit them.
    select 6, format('alter table public.%I alter column %I drop not null', o.name, o.attname)
    from old_column o
    left join new_column n on n.name = o.name and n.col = o.attname
    where o.attnotnull and not o.atthasdef and o.attidentity = '' and n.required is not true
      and not exists (select from pg_index i where i.indrelid = o.attrelid and i.indisprimary
        and o.attnum = any (i.indkey))
    union all
    -- This includes the foreign keys of new tables to a dropped table, which were dropped with it.
    select 7, format('alter table public.%I drop constraint if exists %I, add constraint %2$I %3$s',
      p.name, k.conname, pg_get_constraintdef(k.oid)) || case k.contype when 'f' then ' not valid' else '' end
    from pair p
    join pg_constraint k on k.conrelid = p.new and (k.contype = 'f' or k.contype = 'c' and p.old is not null)
    union all
    select 8, regexp_replace(pg_get_indexdef(i.indexrelid), 'INDEX', 'INDEX IF NOT EXISTS')
    from pair p join pg_index i on i.indrelid = p.new and not i.indisprimary
    where p.old is not null
  )
  select coalesce(array_agg(sql order by step), '{}') into todo from made;
  foreach statement in array todo loop
    execute statement;
  end loop;
  drop schema gem_earlier;
end
$$;

-- Returns the statements that make empty copies of the tables $1 in the schema gem_adoption. It omits foreign keys to
-- other tables, because they would lock those tables.
select sql from (
  with t as (
    select c.oid, c.relrowsecurity, format('public.%I', c.relname) as old, format('gem_adoption.%I', c.relname) as new
    from pg_catalog.pg_class c where c.relnamespace = 'public'::regnamespace and c.relname = any ($1)
  )
  select 1, format('create table %s (like %s including defaults including generated including identity)', new, old)
  from t
  union all
  select case k.contype when 'f' then 4 else 2 end, format('alter table %s add constraint %I %s', t.new, k.conname,
    case k.contype when 'f'
      then replace(pg_get_constraintdef(k.oid), ' REFERENCES ' || r.old || '(', ' REFERENCES ' || r.new || '(')
      else pg_get_constraintdef(k.oid) end)
  from t join pg_catalog.pg_constraint k on k.conrelid = t.oid left join t r on r.oid = k.confrelid
  where k.contype in ('p', 'u', 'c', 'x') or k.contype = 'f' and r.oid is not null
  union all
  select 3, replace(pg_get_indexdef(i.indexrelid), ' ON ' || t.old || ' ', ' ON ' || t.new || ' ')
  from t join pg_catalog.pg_index i on i.indrelid = t.oid
  where not exists (select from pg_catalog.pg_constraint k where k.conindid = i.indexrelid and k.conrelid = t.oid)
  union all
  select 5, format('alter table %s enable row level security', new) from t where relrowsecurity
) made (step, sql) order by step, sql

with s as materialized (select oid from pg_catalog.pg_namespace where nspname !~ '^pg_'
  and nspname <> 'information_schema')
select 'schema', '', quote_ident(n.nspname), '' from pg_catalog.pg_namespace n where n.oid in (select oid from s)
union all
select 'role', '', quote_ident(r.rolname), coalesce(pg_catalog.shobj_description(r.oid, 'pg_authid'), '')
from pg_catalog.pg_roles r where r.rolname = any ($1)
union all
select case c.relkind when 'v' then 'view' when 'm' then 'view' else 'table' end, '',
  c.relnamespace::regnamespace || '.' || quote_ident(c.relname),
  case c.relkind when 'v' then md5(pg_catalog.pg_get_viewdef(c.oid)) when 'm' then '' else c.relrowsecurity::text end
from pg_catalog.pg_class c where c.relkind in ('r', 'p', 'v', 'm') and c.relnamespace in (select oid from s)
union all
select part.kind, c.relnamespace::regnamespace || '.' || quote_ident(c.relname), part.name, part.state
from pg_catalog.pg_class c
cross join lateral (
  select 'column', quote_ident(a.attname), pg_catalog.format_type(a.atttypid, a.atttypmod) || case
    when a.attnotnull then ' not null' else '' end
    || coalesce(' default ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid), '')
  from pg_catalog.pg_attribute a left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'p')
  union all
  select 'constraint', quote_ident(k.conname), pg_catalog.pg_get_constraintdef(k.oid) from pg_catalog.pg_constraint k
    where k.conrelid = c.oid
  union all
  select 'trigger', quote_ident(t.tgname), pg_catalog.pg_get_triggerdef(t.oid) from pg_catalog.pg_trigger t
    where t.tgrelid = c.oid and not t.tgisinternal
  union all
  select 'policy', quote_ident(p.polname), concat_ws(' ', p.polcmd, p.polroles::text, p.polqual::text,
    p.polwithcheck::text)
  from pg_catalog.pg_policy p where p.polrelid = c.oid
  union all
  select 'index', quote_ident(x.relname), pg_catalog.pg_get_indexdef(i.indexrelid)
  from pg_catalog.pg_index i join pg_catalog.pg_class x on x.oid = i.indexrelid where i.indrelid = c.oid
) part (kind, name, state)
where c.relkind in ('r', 'p', 'v', 'm') and c.relnamespace in (select oid from s)
union all
select 'type', '', t.typnamespace::regnamespace || '.' || quote_ident(t.typname), '' from pg_catalog.pg_type t
where t.typrelid = 0 and t.typcategory <> 'A' and t.typnamespace in (select oid from s)
union all
select 'function', '', p.pronamespace::regnamespace || '.' || quote_ident(p.proname),
  md5(string_agg(pg_catalog.concat_ws(' ', p.proargtypes::text, p.prosrc, p.prosecdef, p.proconfig::text), ' '
    order by p.oid))
from pg_catalog.pg_proc p where p.pronamespace in (select oid from s)
group by 3
union all
select 'grant', coalesce(quote_ident(r.rolname), 'everyone'), g.what,
  string_agg(distinct lower(g.privilege_type), ', ' order by lower(g.privilege_type))
from (
  select 'schema ' || quote_ident(n.nspname), n.nspowner, a.* from pg_catalog.pg_namespace n,
    pg_catalog.aclexplode(n.nspacl) a
  where n.oid in (select oid from s)
  union all
  select c.relnamespace::regnamespace || '.' || quote_ident(c.relname), c.relowner, a.* from pg_catalog.pg_class c,
    pg_catalog.aclexplode(c.relacl) a
  where c.relnamespace in (select oid from s)
  union all
  select 'columns of ' || c.relnamespace::regnamespace || '.' || quote_ident(c.relname), c.relowner, a.*
  from pg_catalog.pg_class c join pg_catalog.pg_attribute t on t.attrelid = c.oid, pg_catalog.aclexplode(t.attacl) a
  where c.relnamespace in (select oid from s)
  union all
  select 'function ' || p.pronamespace::regnamespace || '.' || quote_ident(p.proname), p.proowner, a.*
  from pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a where p.pronamespace in (select oid from s)
) g (what, owner, grantor, grantee, privilege_type, is_grantable)
left join pg_catalog.pg_roles r on r.oid = g.grantee
where g.grantee <> g.owner
group by 2, 3
union all
select 'grant', m.member::regrole::text, 'role ' || m.roleid::regrole, 'membership' from pg_catalog.pg_auth_members m
where m.member in (select oid from pg_catalog.pg_roles where rolname = any ($1))
union all
select 'grant', case a.grantee when 0 then 'everyone' else a.grantee::regrole::text end,
  'all functions that ' || d.defaclrole::regrole || ' creates later in ' || d.defaclnamespace::regnamespace,
    lower(a.privilege_type)
from pg_catalog.pg_default_acl d, pg_catalog.aclexplode(d.defaclacl) a where d.defaclnamespace in (select oid from s)
union all
select 'publication', '', quote_ident(pubname), schemaname || '.' || tablename from pg_catalog.pg_publication_tables
  where tablename = 'core_tool_receipts'

-- Finds rights of others on GEM's tables and views that GEM did not grant. It ignores grants that the docs allow
-- (inserts of calls in the columns that GEM grants, reads of the tools' own tables) and restrictive policies, which
-- only reduce rights. It also finds views and rules of others that pass on the rights of their owner, and functions of
-- others that run when a row is written.
with recursive of_a_call (cols) as (values (array['id', 'tool_name', 'input', 'status', 'idempotency_key', 'session_id',
  'parent_call_id', 'priority', 'run_at', 'traceparent', 'awaited'])
), rel as (
  select c.oid, c.relname::text as rel, c.relowner, c.relacl, format('%I.%I', n.nspname, c.relname) as name,
    n.nspname = 'public' and tool.is as tool
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  cross join lateral (select exists (
    select from gem.migrations m
    where m.source in ('comms', 'entity', 'extract', 'leads', 'os')
      and 'table public.' || c.relname = any (m.objects)) as is) tool
  where c.relkind in ('r', 'p', 'v', 'm', 'S')
    and (n.nspname = 'gem' or n.nspname = 'public'
      and (c.relname like 'core\_%' or c.relname = 'open_questions' or tool.is))
), policy as (
  select r.rel, r.name, p.polname::text as policy,
    array(select rolname::text from pg_roles where oid = any (p.polroles)) as roles,
    coalesce(pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)) as condition
  from rel r join pg_policy p on p.polrelid = r.oid
  where p.polpermissive and p.polcmd <> case when r.tool then 'r' else 'a' end
), given as (
  select r.rel, r.name, r.tool, coalesce(g.rolname, 'public')::text as grantee, lower(a.privilege_type) as may, a.col
  from rel r
  cross join lateral (
    select null::text as col, x.* from aclexplode(r.relacl) x
    union all
    select t.attname::text, x.* from pg_attribute t, aclexplode(t.attacl) x where t.attrelid = r.oid
  ) a
  left join pg_roles g on g.oid = a.grantee
  where a.grantee <> r.relowner and g.rolsuper is not true
), over as ( -- a view that checks the rights of its user passes on no rights
  select r.oid, r.rel from rel r
  union
  select v.oid, o.rel
  from over o
  join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = o.oid and d.classid = 'pg_rewrite'::regclass
  join pg_rewrite w on w.oid = d.objid
  join pg_class v on v.oid = w.ev_class
    and not exists (select from pg_options_to_table(v.reloptions)
      where option_name = 'security_invoker' and option_value::boolean)
  join pg_namespace n on n.oid = v.relnamespace
  where not exists (select from gem.migrations m
    where m.objects && array['schema ' || n.nspname, format('view %s.%s', n.nspname, v.relname),
      format('table %s.%s', n.nspname, v.relname)])
), passed_on as (
  select o.rel, format('%I.%I', n.nspname, v.relname) as name, v.relkind,
    string_agg(distinct coalesce(g.rolname, 'public')::text, ', ') as grantees
  from over o
  join pg_class v on v.oid = o.oid and v.oid not in (select oid from rel)
  join pg_namespace n on n.oid = v.relnamespace
  cross join lateral (
    select x.grantee from aclexplode(v.relacl) x
    union
    select x.grantee from pg_attribute t, aclexplode(t.attacl) x where t.attrelid = v.oid
  ) a
  left join pg_roles g on g.oid = a.grantee
  where a.grantee <> v.relowner and g.rolsuper is not true
  group by o.rel, n.nspname, v.relname, v.relkind
), used as (
  select distinct r.rel, i.type, i.identity, w.rolname, pg_describe_object(p.class, p.id, 0) as part
  from rel r
  cross join lateral (
    select 'pg_class'::regclass::oid as class, r.oid as id
    union all
    select 'pg_attrdef'::regclass, d.oid from pg_attrdef d where d.adrelid = r.oid
    union all
    select 'pg_constraint'::regclass, k.oid from pg_constraint k where k.conrelid = r.oid
    union all
    select 'pg_class'::regclass, x.indexrelid from pg_index x where x.indrelid = r.oid
    union all
    select 'pg_statistic_ext'::regclass, x.oid from pg_statistic_ext x where x.stxrelid = r.oid
  ) p
  join pg_depend d on d.classid = p.class and d.objid = p.id and d.refclassid in ('pg_proc'::regclass,
    'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_type'::regclass, 'pg_collation'::regclass)
  left join pg_type t on d.refclassid = 'pg_type'::regclass and t.oid = d.refobjid and t.typcategory = 'A'
  join pg_shdepend o on o.classid = d.refclassid and o.objid = coalesce(t.typelem, d.refobjid) and o.deptype = 'o'
    and o.dbid = (select oid from pg_database where datname = current_database())
  join pg_roles w on w.oid = o.refobjid and not w.rolsuper and w.oid <> r.relowner
  cross join lateral pg_identify_object(o.classid, o.objid, 0) i
  where not exists (select from pg_depend e where e.classid = o.classid and e.objid = o.objid and e.deptype = 'e')
)
select 'rights' as name, rel || '.' || policy as id,
  format('the policy is not GEM''s, and may open rows that GEM closes: drop policy %I on %s', policy, name) as what
from policy
where not coalesce(case
  when policy in ('gem_worker_reads', 'gem_worker_works') then roles = '{gem_worker}'
  when policy = 'gem_operator_reads' then roles = '{gem_operator}'
  when policy in ('gem_all_for_service_role', 'gem_new_for_service_role') then roles = '{service_role}'
  when policy in ('gem_own_calls', 'gem_own_receipts', 'gem_own_events', 'gem_own_progress', 'gem_new_documents',
    'gem_new_parts') then condition like '%gem_caller()%'
  else false end, false)
union all
select 'rights', rel || '.' || grantee, format('%s may %s, which GEM did not grant: revoke %2$s on %3$s from %4$s',
  grantee,
  string_agg(may || coalesce(' (' || quote_ident(col) || ')', ''), ', ' order by may, col), name,
  case grantee when 'public' then grantee else quote_ident(grantee) end)
  -- A revoke on the table revokes GEM's grants on its columns, too.
  || case when rel = 'core_tool_calls' and bool_or(may = 'insert' and col is null)
    and grantee in ('authenticated', 'gem_frontend', 'service_role') then format('; grant insert (%s) on %s to %s',
      array_to_string((select cols from of_a_call) || case grantee when 'service_role' then array['created_by'] end,
        ', '),
      name, grantee) else '' end
from given
where not case
  when may = 'insert' and rel = 'core_tool_calls' then
    exists (select from of_a_call where col = any (cols)) or (col = 'created_by' and grantee = 'service_role') is true
  when tool and may = 'insert' and rel in ('extract_documents', 'extract_document_parts')
    and grantee in ('authenticated', 'gem_frontend', 'service_role') then true
  when tool then may = 'select' or grantee = 'gem_worker' and may in ('insert', 'update', 'delete')
  when may <> 'select' then false
  when grantee = 'gem_operator' then true
  when grantee = 'gem_monitor' then name like 'gem.%'
  when grantee = 'gem_worker' then name in ('gem.migrations', 'public.core_tool_calls', 'public.core_tool_receipts',
    'public.core_tool_events', 'public.core_workers', 'public.core_llm_requests')
  when grantee = 'service_role' then name in ('public.core_tool_calls', 'public.core_tool_receipts',
    'public.core_tool_events',
    'public.core_tool_progress', 'public.open_questions', 'public.tool_schedules', 'gem.extractions')
  when grantee in ('authenticated', 'gem_frontend') then case rel
    when 'core_tool_calls' then col not in ('seq', 'level', 'awaited', 'claimed_by', 'waits', 'need', 'steps', 'needs',
      'kills', 'placed')
    when 'core_tool_receipts' then col not in ('worker_id')
    when 'core_tool_events' then col not in ('worker_id', 'data')
    else name in ('public.core_tool_progress', 'public.open_questions', 'public.tool_schedules', 'gem.extractions') end
      is true
  else false end
group by rel, name, grantee
union all
select 'rights', rel || '.' || name, case
  when relkind in ('v', 'm') then format('the view %s has the rights of its owner on it, and %s may use the view: '
    'alter view %1$s set (security_invoker = true), or revoke all on %1$s from %2$s', name, grantees)
  else format('a rule on %s has the rights of its owner on it, and %s may use %1$s: drop the rule, or revoke all on '
    '%1$s from %2$s', name, grantees) end
from passed_on
union all
select 'rights', 'schema ' || schema || '.' || grantee, format('%s may %s on the schema %s, which GEM did not grant: '
  'revoke %2$s on schema %3$s from %1$s', grantee, string_agg(may, ', ' order by may), schema)
from (
  select n.nspname::text as schema, coalesce(g.rolname, 'public')::text as grantee, lower(a.privilege_type) as may
  from pg_namespace n
  cross join lateral aclexplode(n.nspacl) a
  left join pg_roles g on g.oid = a.grantee
  where n.nspname in ('gem', 'tools') and a.grantee <> n.nspowner and g.rolsuper is not true
) s
where case schema
  when 'gem' then may <> 'usage' or grantee not in ('gem_worker', 'gem_monitor', 'gem_operator', 'gem_mcp',
    'gem_scheduler', 'gem_handler', 'authenticated', 'gem_frontend', 'service_role')
  else may = 'create' and grantee in ('public', 'anon', 'authenticated', 'gem_frontend') end
group by schema, grantee
union all
select 'rights', m.rolname || '.' || g.rolname, format('%s is a member of %s: revoke %2$s from %1$s', m.rolname,
  g.rolname)
from pg_auth_members a join pg_roles m on m.oid = a.member join pg_roles g on g.oid = a.roleid
where m.rolname in ('anon', 'authenticated', 'gem_frontend')
  and g.rolname in ('gem_worker', 'gem_monitor', 'gem_operator', 'gem_mcp', 'gem_scheduler', 'gem_handler',
    'service_role')
union all
select 'rights', p.proname || '.' || coalesce(g.rolname, 'public'), format('%s may execute %s, which GEM did not '
  'grant: revoke execute on function %2$s from %1$s', coalesce(g.rolname, 'public'), p.oid::regprocedure)
from pg_proc p
cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
left join pg_roles g on g.oid = a.grantee
where (a.grantee = 0 or g.rolname in ('anon', 'authenticated', 'gem_frontend', 'service_role')) and case p.pronamespace
  when 'gem'::regnamespace then a.grantee = 0 or g.rolname = 'anon'
    or p.proname not in ('open_questions', 'part_of', 'answer_schema', 'schedules_of_caller')
  when 'public'::regnamespace then (a.grantee = 0 or g.rolname = 'anon') and p.proname in ('enqueue_tool_call',
    'get_receipt', 'cancel_tool_call', 'answer_tool_call', 'find_open_questions', 'list_tools', 'schedule_tool_call',
    'pause_tool_schedule', 'resume_tool_schedule', 'remove_tool_schedule')
    or g.rolname is distinct from 'service_role' and p.proname = 'keep_tool_step' end
union all
select 'rights', rel, format('the view %s has the rights of its owner: alter view %1$s set (security_invoker = true)',
  name)
from rel join pg_class c using (oid)
where rel in ('open_questions', 'tool_schedules') and not exists (select from pg_options_to_table(c.reloptions)
  where option_name = 'security_invoker' and option_value::boolean)
union all
select 'rights', r.rel || '.' || w.rulename, format('the rule is not GEM''s, and changes what statements do: '
  'drop rule %I on %s', w.rulename, r.name)
from rel r join pg_rewrite w on w.ev_class = r.oid and w.rulename <> '_RETURN'
union all
select 'rights', rel || '.' || identity, format('the %s %s belongs to %s, who may change what it does, and is used by: '
  '%s', type, identity, rolname, string_agg(part, ', ' order by part))
from used group by rel, type, identity, rolname

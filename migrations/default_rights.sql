-- Default privileges, such as those of older Supabase projects, give other roles rights on everything that the migrating role creates. They belong
-- to the administrator and stay; gem.undo_default_rights revokes these rights on GEM's own objects. Existing objects are not touched.
select set_config('gem.there', coalesce((select string_agg(o, ' ') from (
    select 'n' || oid from pg_catalog.pg_namespace
    union all select 'c' || oid from pg_catalog.pg_class where relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    union all select 'p' || oid from pg_catalog.pg_proc where pronamespace <> 'pg_catalog'::regnamespace
    union all select 't' || oid from pg_catalog.pg_type where typrelid = 0 and typnamespace <> 'pg_catalog'::regnamespace) a (o)), ''), true);
create schema if not exists gem;

-- Revokes the rights of others on everything that this transaction created since the last call, before anything is granted on it. By itself, Postgres
-- lets everyone call a new function and use a new type. That right stays, and files revoke it where it is not wanted.
create or replace function gem.undo_default_rights() returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  there text[] := string_to_array(current_setting('gem.there'), ' ');
  mine  bigint := pg_current_xact_id()::text::bigint;
  o     record;
begin
  for o in
    select all_of.*, quote_ident(n.nspname) || coalesce('.' || all_of.part, '') as name,
      array(select distinct coalesce(quote_ident(r.rolname), 'public') from aclexplode(all_of.acl) a left join pg_roles r on r.oid = a.grantee
        where a.grantee <> all_of.owner and (a.grantee <> 0 or all_of.kind not in ('routine', 'type'))
          -- GEM's own default privilege
          and not (n.nspname = 'tools' and all_of.kind = 'routine' and r.rolname is not distinct from 'gem_worker')) as others
    from (
      select 'n' || oid as id, 'schema' as kind, oid as schema, null::text as part, nspowner as owner, nspacl as acl, xmin from pg_namespace
      union all
      select 'c' || oid, case relkind when 'S' then 'sequence' else 'table' end, relnamespace, quote_ident(relname), relowner, relacl, xmin
      from pg_class where relkind in ('r', 'p', 'v', 'm', 'f', 'S')
      union all
      select 'p' || oid, 'routine', pronamespace, quote_ident(proname) || '(' || pg_get_function_identity_arguments(oid) || ')', proowner, proacl,
        xmin
      from pg_proc where pronamespace <> 'pg_catalog'::regnamespace
      union all
      select 't' || oid, 'type', typnamespace, quote_ident(typname), typowner, typacl, xmin
      from pg_type where typrelid = 0 and typnamespace <> 'pg_catalog'::regnamespace
    ) all_of join pg_namespace n on n.oid = all_of.schema
    where all_of.owner = current_user::regrole and all_of.id <> all (there) and n.nspname !~ '^pg_'
      -- Another session may have created an object meanwhile. It is not GEM's: that transaction has ended, since the row is visible.
      and case when age(all_of.xmin) <= 0 then pg_xact_status((mine - age(all_of.xmin))::text::xid8) = 'in progress' else false end
  loop
    if cardinality(o.others) > 0 then
      execute format('revoke all on %s %s from %s', o.kind, o.name, array_to_string(o.others, ', '));
    end if;
    there := there || o.id;
  end loop;
  perform set_config('gem.there', array_to_string(there, ' '), true);
end
$$;
revoke all on function gem.undo_default_rights() from public;

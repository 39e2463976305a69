-- Default privileges, such as those of older Supabase projects, give other roles rights on everything that the
-- migrating role creates. These privileges belong to the administrator and remain. gem.undo_default_rights revokes the
-- rights that they gave on GEM's new objects. It does not touch existing objects, or objects that someone else's event
-- trigger creates in the same transaction.
select set_config('gem.there', coalesce((select string_agg(o, ' ') from (
    select 'n' || oid from pg_catalog.pg_namespace
    union all select 'c' || oid from pg_catalog.pg_class where relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    union all select 'p' || oid from pg_catalog.pg_proc where pronamespace <> 'pg_catalog'::regnamespace
    union all select 't' || oid from pg_catalog.pg_type where typrelid = 0
      and typnamespace <> 'pg_catalog'::regnamespace) a (o)), ''), true);
create schema if not exists gem;

-- Revokes the rights of others on the objects that a file of GEM created since the last call, before the file grants
-- anything on them. By default, everyone may call a new function and use a new type. This right remains unless a file
-- revokes it. The setting gem.names has the names in the file: notes, public.notes, and gem_os.* for a whole schema.
create or replace function gem.undo_default_rights() returns void language plpgsql set search_path = pg_catalog,
  pg_temp as $$
declare
  there text[] := string_to_array(current_setting('gem.there'), ' ');
  mine  bigint := pg_current_xact_id()::text::bigint;
  names text[] := current_setting('gem.names');
  o     record;
begin
  -- The schemas that earlier files created.
  names := names || array(
    select split_part(made, ' ', 2) || '.*' from gem.migrations m, unnest(m.objects) made where made like 'schema %');
  for o in
    select all_of.*, quote_ident(n.nspname) || coalesce('.' || all_of.part, '') as name,
      array(select distinct coalesce(quote_ident(r.rolname), 'public') from aclexplode(all_of.acl) a left
        join pg_roles r on r.oid = a.grantee
        where a.grantee <> all_of.owner and (a.grantee <> 0 or all_of.kind not in ('routine', 'type'))
          -- except GEM's own default privilege
          and not (n.nspname = 'tools' and all_of.kind = 'routine' and r.rolname is not distinct
            from 'gem_worker')) as others
    from (
      select 'n' || oid as id, 'schema' as kind, oid as schema, null::text as part, '*' as known, nspowner as owner,
        nspacl as acl, xmin
      from pg_namespace
      union all
      select 'c' || oid, case relkind when 'S' then 'sequence' else 'table' end, relnamespace, quote_ident(relname),
        -- A column's sequence is listed under the name of its table.
        coalesce((select t.relname from pg_depend d join pg_class t on t.oid = d.refobjid
          where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.refclassid = 'pg_class'::regclass
            and d.deptype in ('a', 'i')
            and c.relkind = 'S' limit 1), c.relname), relowner, relacl, xmin
      from pg_class c where relkind in ('r', 'p', 'v', 'm', 'f', 'S')
      union all
      select 'p' || oid, 'routine', pronamespace,
        quote_ident(proname) || '(' || pg_get_function_identity_arguments(oid) || ')', proname, proowner, proacl, xmin
      from pg_proc where pronamespace <> 'pg_catalog'::regnamespace
      union all
      select 't' || oid, 'type', typnamespace, quote_ident(typname), typname, typowner, typacl, xmin
      from pg_type where typrelid = 0 and typnamespace <> 'pg_catalog'::regnamespace
    ) all_of join pg_namespace n on n.oid = all_of.schema
    where pg_get_userbyid(all_of.owner) = current_user and n.nspname !~ '^pg_'
      -- Another session may have created an object in the meantime. Its row is visible only once its transaction has
      -- ended, so an object of a transaction in progress is GEM's. Only the few new rows are compared with the list of
      -- all objects of the database.
      and case when age(all_of.xmin) <= 0 then pg_xact_status((mine - age(all_of.xmin))::text::xid8) = 'in progress'
        and all_of.id <> all (there)
        and (n.nspname || '.' || all_of.known = any (names) or n.nspname || '.*' = any (names)
          or (all_of.known = any (names) or '*' = any (names)) and n.nspname = current_setting('gem.schema'))
            else false end
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

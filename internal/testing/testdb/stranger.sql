-- Someone else's schema: see AddStranger. Each use fails, and advances a sequence, which no rollback resets.
create schema stranger;
create sequence stranger.uses;
create function stranger.refuse(what text) returns text language plpgsql stable security definer as $$
begin
  perform pg_catalog.nextval('stranger.uses'::text::regclass);
  raise exception 'the stranger''s % was used', what;
end $$;
create function stranger.refuse_row() returns trigger language plpgsql as $$
begin
  perform stranger.refuse(tg_relid::text);
  return null;
end $$;

do $$
declare
  r record;
begin
  for r in select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v') loop
    execute format('create view stranger.%1$I with (security_invoker) as
      select * from public.%1$I where stranger.refuse(%1$L)::boolean', r.relname);
    execute format('create trigger refuse instead of insert or update or delete on stranger.%I
      for each row execute function stranger.refuse_row()', r.relname);
  end loop;
  for r in select proname, pg_get_function_identity_arguments(oid) as arguments from pg_proc
      where pronamespace = 'public'::regnamespace and prokind = 'f' loop
    execute format('create function stranger.%I(%s) returns text language sql as $f$ select stranger.refuse(%L) $f$',
      r.proname, r.arguments, r.proname);
  end loop;
end $$;

-- Overloads of Postgres's own operators and of the functions that GEM's SQL uses, for combinations of common types for
-- which Postgres has none: one that matches exactly wins over one of pg_catalog that needs a conversion.
do $$
declare
  a record;
  f text;
  i integer := 0;
  few constant oid[] := '{text,name,int4,uuid,jsonb}'::regtype[];
begin
  create temp table common on commit drop as select oid, typcategory, typelem from pg_type where oid = any (
    '{text,name,varchar,"char",int2,int4,int8,numeric,float8,bool,timestamptz,interval,jsonb,uuid,oid,
      regclass,regnamespace,
      regrole,regprocedure,xid,text[],name[],uuid[],int2[],int4[],int8[],jsonb[],oid[]}'::regtype[]);
  create temp table accepts on commit drop as
    select oid as declared, oid as actual from common
    union select casttarget, castsource from pg_cast where castcontext = 'i' and castsource in (select oid from common)
    union select t.oid, c.oid from pg_type t, common c where t.typname in ('any', 'anyelement', 'anycompatible')
      or t.typname in ('anynonarray', 'anycompatiblenonarray') and c.typcategory <> 'A'
      or t.typname in ('anyarray', 'anycompatiblearray') and c.typcategory = 'A';
  create temp table builtin on commit drop as
    select 'function' as kind, proname as name, prorettype as result,
      string_to_array(proargtypes::text, ' ')::oid[] as args, provariadic = 2276 as variadic
    from pg_proc p
    where pronamespace = 'pg_catalog'::regnamespace and prokind in ('f', 'a', 'w')
      and not proargtypes::oid[] && '{internal,cstring}'::regtype[]::oid[]
      and proname = any (regexp_split_to_array('abs aclexplode age array_agg array_append array_cat array_length
        array_position array_remove
        array_to_string bool_and bool_or btrim cardinality ceil clock_timestamp concat concat_ws
        convert_from convert_to count current_setting date_bin date_part date_trunc decode encode
        extract first_value floor format format_type gen_random_uuid generate_series
        has_function_privilege has_schema_privilege has_table_privilege hashtextextended json_agg
        json_build_object jsonb_agg jsonb_array_elements jsonb_array_elements_text jsonb_array_length
        jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_object_agg
        jsonb_object_keys jsonb_path_exists jsonb_path_query jsonb_path_query_array jsonb_set
        jsonb_strip_nulls jsonb_typeof left length lower lpad ltrim make_interval max md5 min mod
        nextval now octet_length oidvectortypes overlay pg_advisory_xact_lock pg_backend_pid
        pg_cancel_backend pg_column_size pg_current_xact_id pg_get_constraintdef pg_get_expr
        pg_get_function_identity_arguments pg_get_indexdef pg_get_triggerdef pg_get_userbyid
        pg_get_viewdef pg_has_role pg_notify pg_sleep position power quote_ident quote_literal random
        regexp_matches regexp_replace repeat replace right round rpad rtrim scale set_bit set_config
        sha256 shobj_description split_part sqrt starts_with string_agg string_to_array string_to_table
        strpos substr substring sum to_char to_json to_jsonb to_regclass to_regnamespace to_regprocedure
        to_regrole to_timestamp trim_scale trunc unnest upper uuid_send', '\s+'))
    union all
    select 'operator', oprname, oprresult, array[oprleft, oprright], false from pg_operator
    where oprkind = 'b' and oprname in ('=', '<>', '<', '<=', '>', '>=', '||', '+', '-', '*', '/', '~', '!~', '~*',
      '~~',
      '!~~', '->', '->>', '#>', '#>>', '@>', '<@', '&&', '?');
  insert into builtin
    select b.kind, b.name, b.result, b.args || array_fill(2276::oid, array[n]), false
    from builtin b, generate_series(1, 2) n
    where b.variadic and cardinality(b.args) + n <= 3;
  for a in
    select distinct on (kind, name, t.args) kind, name, t.args, b.result::regtype as result,
      b.result in (select oid from common) as known
    from builtin b cross join lateral (
      select array[x.actual] as args from accepts x where cardinality(b.args) = 1 and x.declared = b.args[1]
      union all
      select array[x.actual, y.actual] from accepts x join common c on c.oid = x.actual, accepts y
      where cardinality(b.args) = 2 and x.declared = b.args[1] and y.declared = b.args[2]
        and (b.args[1] not in ('anyarray'::regtype, 'anycompatiblearray'::regtype)
          or y.actual in (x.actual, c.typelem, 25, 23))
        and (b.args[2] <> 2276 or array[x.actual, y.actual] <@ few)
      union all
      select array[x.actual, y.actual, z.actual] from accepts x, accepts y, accepts z
      where cardinality(b.args) = 3
        and x.declared = b.args[1] and y.declared = b.args[2] and z.declared = b.args[3]
        and case b.args[3] when 2276 then array[x.actual, y.actual, z.actual] <@ few
          else z.actual in (z.declared, 19) end) t
    where not exists (select from builtin e where e.kind = b.kind and e.name = b.name and e.args = t.args)
  loop
    i := i + 1;
    f := format('%I(%s)', case a.kind when 'function' then a.name else 'operator_' || i end,
      array_to_string(a.args::regtype[], ', '));
    execute format('create function stranger.%s returns %s language sql as $f$ select stranger.refuse(%L)%s $f$', f,
      case when a.known then a.result else 'text' end, a.name || ' ' || f,
      case when a.known then '::' || a.result else '' end);
    if a.kind = 'operator' then
      execute format('create operator stranger.%s (leftarg = %s, rightarg = %s, function = stranger.operator_%s)',
        a.name, a.args[1]::regtype, a.args[2]::regtype, i);
    end if;
  end loop;
  execute format('alter database %I set search_path = stranger, public', current_database());
end $$;
grant usage on schema stranger to public;
grant all on all tables in schema stranger to public;

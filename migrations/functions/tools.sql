-- Tools that are SQL functions: shop.refund is the function tools.shop_refund(input jsonb) returns jsonb, or the same with a second argument,
-- call jsonb. Only the owner of GEM's tables may create functions in the schema tools, since a worker runs them, with its own rights and in the
-- transaction of the call's receipt. Frontends see nothing of the schema.

do $$
declare
  api_role text;
begin
  create schema if not exists tools;
  if (select nspowner <> current_user::regrole from pg_namespace where nspname = 'tools') then
    raise warning 'the schema tools belongs to another role than GEM''s tables: no function in it is a tool';
    return;
  end if;
  revoke all on schema tools from public;
  foreach api_role in array array(select rolname from pg_roles where rolname in ('anon', 'authenticated', 'service_role')) loop
    execute format('revoke all on schema tools from %I', api_role);
  end loop;
  perform gem.grant_to('gem_worker', 'usage on schema tools'), gem.grant_to('gem_worker', 'execute on all functions in schema tools');
  if exists (select from pg_roles where rolname = 'gem_worker') then
    alter default privileges in schema tools grant execute on functions to gem_worker; -- of those that the owner creates later
  end if;
end
$$;

-- Keeps an effect in a setting of the transaction, as one more element of a list in JSON. The setting is copied with each: it may not grow without end.
create or replace function gem.note_effect(p_setting text, p_effect jsonb) returns void language plpgsql as $$
declare
  noted text := coalesce(nullif(pg_catalog.current_setting(p_setting, true), '') || ',', '') || p_effect;
begin
  if octet_length(noted) > 256 * 1024 then
    raise exception using errcode = 'program_limit_exceeded', message = format('%s: a receipt lists at most 256 KiB of rows', p_setting),
      hint = 'Name the table once, and in place of an id say how many rows there are.';
  end if;
  perform pg_catalog.set_config(p_setting, noted, true);
end
$$;

-- Says on the receipt of the call whose transaction this is that a row of a table was inserted, updated or deleted.
create or replace function gem.wrote(p_table text, p_action text, p_id anycompatible) returns void language plpgsql as $$
begin
  if p_action not in ('insert', 'update', 'delete') or num_nulls(p_table, p_action, p_id) > 0 then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('gem.wrote(%L, %L, %L) names a table, then insert, update or delete, then the id of the row', p_table, p_action, p_id);
  end if;
  perform gem.note_effect('gem.wrote', jsonb_build_object('table', p_table, 'action', p_action, 'id', p_id::text));
end
$$;

-- Says how many rows of a table were read for the answer.
create or replace function gem.read(p_table text, p_count bigint) returns void language plpgsql as $$
begin
  if p_count < 0 or num_nulls(p_table, p_count) > 0 then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('gem.read(%L, %L) names a table, and how many of its rows were read', p_table, p_count);
  end if;
  perform gem.note_effect('gem.read', jsonb_build_object('table', p_table, 'count', p_count));
end
$$;

-- Runs the function of a tool with the caller's rights, and returns its output and the effects that it noted. there: it exists, with one argument,
-- or two where p_call is given. The function may have changed the role or any setting, which would hold for the receipt, and even for the next
-- calls on the connection: they are set back. A pooler sets some for each of its clients, and those stay.
create or replace function gem.run_tool(p_function text, p_input jsonb, p_call jsonb, out there boolean, out output text, out effects text)
language plpgsql as $$
declare
  kept   constant text[] := array['application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'default_transaction_isolation'];
  before text[] := array(select pg_catalog.current_setting(k) from pg_catalog.unnest(kept) k);
begin
  there := pg_catalog.to_regprocedure(pg_catalog.format('tools.%I(%s)', p_function,
    case when p_call is null then 'pg_catalog.jsonb' else 'pg_catalog.jsonb, pg_catalog.jsonb' end)) is not null;
  if not there then
    return;
  end if;
  if p_call is null then
    execute pg_catalog.format('select tools.%I($1)', p_function) into output using p_input;
  else
    execute pg_catalog.format('select tools.%I($1, $2)', p_function) into output using p_input, p_call;
  end if;
  if output is null or pg_catalog.octet_length(output) > 16 * 1024 * 1024 then
    raise exception using errcode = 'GM102', message = pg_catalog.format(case
      when output is null then 'tools.%s returned null: a tool returns an output, such as one that jsonb_build_object makes'
      else 'tools.%s returned more than 16 MiB' end, p_function);
  end if;
  effects := pg_catalog.concat('{"db_writes":[', pg_catalog.current_setting('gem.wrote', true),
    '],"db_reads":[', pg_catalog.current_setting('gem.read', true), ']}');
  reset session authorization;
  reset role;
  reset all;
  for i in 1 .. pg_catalog.cardinality(kept) loop
    if pg_catalog.current_setting(kept[i]) is distinct from before[i] then
      perform pg_catalog.set_config(kept[i], before[i], false);
    end if;
  end loop;
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.note_effect(text, jsonb), gem.wrote(text, text, anycompatible),
  gem.read(text, bigint), gem.run_tool(text, jsonb, jsonb)');
revoke all on all functions in schema gem from public;

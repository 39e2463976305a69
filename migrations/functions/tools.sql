-- Tools that are SQL functions: shop.refund is the function tools.shop_refund(input jsonb) returns jsonb, or the same
-- with a second argument, call jsonb. Only the owner of GEM's tables may create functions in the schema tools, because
-- a worker runs them with its own rights, in the transaction of the call's receipt. Frontends cannot see the schema.

create schema if not exists tools;
do $$
declare
  api_role text;
begin
  if (select pg_get_userbyid(nspowner) <> current_user from pg_namespace where nspname = 'tools') then
    raise warning 'the schema tools belongs to another role than GEM''s tables: no function in it is a tool';
    return;
  end if;
  perform gem.undo_default_rights();
  revoke all on schema tools from public;
  foreach api_role in array array(select rolname from pg_roles
    where rolname in ('anon', 'authenticated', 'service_role')) loop
    execute format('revoke all on schema tools from %I', api_role);
  end loop;
  perform gem.grant_to('gem_worker', 'usage on schema tools'),
    gem.grant_to('gem_worker', 'execute on all functions in schema tools');
  if exists (select from pg_roles where rolname = 'gem_worker') then
    -- applies to functions that the owner creates later
    alter default privileges in schema tools grant execute on functions to gem_worker;
  end if;
end
$$;

-- Appends an effect to a JSON list that the transaction keeps in settings. The setting p_setting has the number of
-- pieces, and each piece is another setting. If the whole list were one setting, Postgres would copy it with each
-- effect.
create or replace function gem.note_effect(p_setting text, p_effect jsonb) returns void language plpgsql as $$
declare
  piece integer := coalesce(nullif(pg_catalog.current_setting(p_setting, true), '')::integer, 0);
  noted text    := case when piece > 0 then pg_catalog.current_setting(p_setting || '_' || piece::text) end;
begin
  if noted is null or octet_length(noted) > 8000 then
    piece := piece + 1;
    noted := null;
    perform pg_catalog.set_config(p_setting, piece::text, true);
  end if;
  if piece > 32 or octet_length(p_effect::text) > 8000 then
    perform gem.refuse('program_limit_exceeded', '%s: a receipt lists at most 256 KiB of rows',
      'Name the table once, with the number of rows in place of an id.', p_setting);
  end if;
  perform pg_catalog.set_config(p_setting || '_' || piece::text, pg_catalog.concat_ws(',', noted, p_effect), true);
end
$$;

-- Returns the list, in JSON.
create or replace function gem.noted_effects(p_setting text) returns text language plpgsql as $$
declare
  pieces constant text := pg_catalog.current_setting(p_setting, true);
begin
  if coalesce(pieces, '') = '' then
    return '[]';
  elsif pieces !~ '^[0-9]{1,2}$' or exists (select from pg_catalog.generate_series(1, pieces::integer) n
      where octet_length(pg_catalog.current_setting(p_setting || '_' || n::text)) > 17000) then
    perform gem.refuse('raise_exception', '%s is a setting that only GEM changes', null, p_setting);
  end if;
  return (select '[' || pg_catalog.string_agg(pg_catalog.current_setting(p_setting || '_' || n::text), ','
    order by n) || ']'
    from pg_catalog.generate_series(1, pieces::integer) n);
end
$$;

-- Records on the current call's receipt that a row of a table was inserted, updated or deleted.
create or replace function gem.wrote(p_table text, p_action text, p_id anycompatible) returns void
  language plpgsql as $$
begin
  if p_action not in ('insert', 'update', 'delete') or pg_catalog.num_nulls(p_table, p_action, p_id) > 0 then
    perform gem.refuse('invalid_parameter_value',
      'gem.wrote(%s, %s, %s) names a table, then insert, update or delete, then the id of the row', null, p_table,
        p_action, p_id::text);
  end if;
  perform gem.note_effect('gem.wrote', pg_catalog.jsonb_build_object('table', p_table, 'action', p_action, 'id',
    p_id::text));
end
$$;

-- Records on the current call's receipt how many rows of a table were read.
create or replace function gem.read(p_table text, p_count bigint) returns void language plpgsql as $$
begin
  if p_count < 0 or pg_catalog.num_nulls(p_table, p_count) > 0 then
    perform gem.refuse('invalid_parameter_value', 'gem.read(%s, %s) names a table, and how many of its rows were read',
      null,
      p_table, p_count::text);
  end if;
  perform gem.note_effect('gem.read', pg_catalog.jsonb_build_object('table', p_table, 'count', p_count));
end
$$;

-- Runs the function of a tool with the caller's rights. Returns its output and the effects that it recorded. there: the
-- function exists, with one argument, or two if p_call is given. A tool's function may change the role or any setting,
-- which would affect the receipt and the next calls on the connection, so gem.run_tool resets these. It keeps the
-- settings that a pooler sets for each of its clients. It also drops temporary tables, because the next call on the
-- connection may be another user's.
create or replace function gem.run_tool(p_function text, p_input jsonb, p_call jsonb, out there boolean,
  out output text, out effects text)
language plpgsql as $$
declare
  kept   constant text[] := array['application_name', 'client_encoding', 'DateStyle', 'TimeZone',
    'default_transaction_isolation'];
  before constant text[] := array[pg_catalog.current_setting('application_name'),
    pg_catalog.current_setting('client_encoding'),
    pg_catalog.current_setting('DateStyle'), pg_catalog.current_setting('TimeZone'),
      pg_catalog.current_setting('default_transaction_isolation')];
  -- the whole server is read-only after a failover
  read_only constant text := pg_catalog.current_setting('transaction_read_only');
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
  set constraints all immediate; -- a deferred constraint must fail here, as the function's own error
  reset session authorization; -- restores the rights that the next statements need
  reset role;
  if output is null or pg_catalog.octet_length(output) > 16 * 1024 * 1024 then
    perform gem.refuse('GM102', case
      when output is null then
        'tools.%s returned null: a tool returns an output, such as one that jsonb_build_object makes'
      else 'tools.%s returned more than 16 MiB' end, null, p_function);
  end if;
  if pg_catalog.current_setting('transaction_read_only') <> read_only then
    perform gem.refuse('object_not_in_prerequisite_state',
      'tools.%s made its transaction read-only, so its receipt cannot be written',
      null, p_function);
  end if;
  effects := pg_catalog.format('{"db_writes": %s, "db_reads": %s}', gem.noted_effects('gem.wrote'),
    gem.noted_effects('gem.read'));
  reset all;
  execute 'close all'; -- an open cursor would keep its table
  discard temp;
  unlisten *; -- nobody would read its notifications
  if before operator(pg_catalog.<>) array[pg_catalog.current_setting('application_name'),
    pg_catalog.current_setting('client_encoding'),
    pg_catalog.current_setting('DateStyle'), pg_catalog.current_setting('TimeZone'),
      pg_catalog.current_setting('default_transaction_isolation')] then
    for i in 1 .. pg_catalog.cardinality(kept) loop
      perform pg_catalog.set_config(kept[i], before[i], false);
    end loop;
  end if;
end
$$;

select gem.grant_to('gem_worker',
  'execute on function gem.note_effect(text, jsonb), gem.noted_effects(text), gem.wrote(text, text, anycompatible),
  gem.read(text, bigint), gem.run_tool(text, jsonb, jsonb)');
revoke all on all functions in schema gem from public;

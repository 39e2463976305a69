-- Durable handlers behind HTTP write rows and the end of a step in one transaction of their own, from any language that
-- reaches Postgres: see docs/sdk.md. The worker sends a token with each request. It is valid while the attempt runs.

insert into gem.secrets (name, value)
select 'exchange', gem.hmac_key(k.key)
from (select uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) as key) k
on conflict do nothing;

-- Returns the last part of the token of an attempt. In PL/pgSQL, its query is planned once.
create or replace function gem.exchange_code(p_call uuid, p_attempt integer, p_worker text) returns text
language plpgsql stable as $$
declare
  secret bytea := (select s.value from gem.secrets s where s.name = 'exchange');
begin
  return encode(gem.hmac(secret, convert_to(p_call::text || '.' || p_attempt || '.' || p_worker, 'UTF8')), 'hex');
end
$$;

-- Returns the token of an attempt, CALL.ATTEMPT.CODE. The attempt must hold its call.
create or replace function gem.exchange_token(p_call uuid, p_attempt integer, p_worker text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false);
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  return format('%s.%s.%s', p_call, p_attempt, gem.exchange_code(p_call, p_attempt, p_worker));
end
$$;

-- Returns the number of steps and waits in the journal of a call. The attempt must hold the call. Waits for a
-- transaction of the attempt that is about to commit.
create or replace function gem.steps_of(p_call uuid, p_attempt integer, p_worker text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  steps integer;
begin
  select c.steps into steps from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  return steps;
end
$$;

-- Writes the end of a step into the journal of its call. A transaction that writes the rows of the step calls it last,
-- so that the rows and the end commit together, once. `step` is what the SDK gives to the function of a stepTx: {token,
-- before, name, effects}. Rows that gem.wrote and gem.read have noted in this transaction are added to its effects.
-- With the option keep, the SDK also writes its other steps with this function. `kind` is then step, once or began. The
-- kind began records the beginning of a step that must not run twice.
--
-- Raises PT409 if GEM did not make the token or the attempt no longer holds the call, if the journal has changed, or if
-- this transaction has ended a step already.
create or replace function public.keep_tool_step(step jsonb, result jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  token   text[] := string_to_array(step ->> 'token', '.');
  call    uuid;
  attempt integer;
  worker  text;
  steps   integer;
  effects jsonb  := coalesce(step -> 'effects', '{}');
  kind    text   := coalesce(step ->> 'kind', 'tx');
  data    jsonb  := jsonb_build_object('name', step ->> 'name');
begin
  if token[1] ~ '^[0-9a-f-]{36}$' and token[2] ~ '^[0-9]{1,9}$' and cardinality(token) = 3
    and step ->> 'before' ~ '^[0-9]{1,9}$' and step ->> 'name' is not null then
    select c.id, c.attempt, c.claimed_by, c.steps into call, attempt, worker, steps from public.core_tool_calls c
    where c.id = token[1]::uuid and coalesce(c.attempt = token[2]::integer and c.status = 'running', false);
  end if;
  -- hashed, so that the time of the comparison says nothing
  if call is null or sha256(convert_to(token[3], 'UTF8')) <> sha256(convert_to(gem.exchange_code(call, attempt,
      worker), 'UTF8')) then
    perform gem.refuse('PT409', 'the token of the step is not valid',
      'The attempt that had it is over, or GEM did not make it. The transaction is rolled back.');
  end if;
  if coalesce(current_setting('gem.kept_step', true), '') <> '' then
    perform gem.refuse('PT409', 'this transaction has ended a step already');
  end if;
  if steps <> (step ->> 'before')::integer then -- gem.step looks again, and locks the row
    perform gem.refuse('PT409', 'the journal has %s steps, and had %s when the step began', null, steps::text,
      step ->> 'before');
  elsif octet_length(result::text) > 1048576 then
    perform gem.refuse('PT413', 'the result of the step takes more than 1 MiB as JSON');
  elsif jsonb_typeof(effects) <> 'object' or octet_length(effects::text) > 262144
    or effects - array['db_writes', 'db_reads', 'messages_sent', 'files_written', 'external_calls'] <> '{}'
    or effects <> '{}' and (jsonb_path_exists(effects, 'strict $.* ? (@.type() != "array")')
      or jsonb_path_exists(effects - 'files_written', 'strict $.*[*] ? (@.type() != "object")')
      or jsonb_path_exists(effects, '$.files_written[*] ? (@.type() != "string")')) then
    perform gem.refuse('PT422', 'the effects of the step are not those of a receipt, or take more than 256 KiB');
  elsif length(step ->> 'name') not between 1 and 210 then
    perform gem.refuse('PT422', 'the name of the step has more than 200 characters, or none');
  elsif kind not in ('tx', 'step', 'once', 'began') then
    perform gem.refuse('PT422', 'the kind of the step must be tx, step, once or began');
  end if;
  if current_setting('gem.wrote', true) <> '' or current_setting('gem.read', true) <> '' then
    effects := effects || jsonb_strip_nulls(jsonb_build_object(
      'db_writes', nullif(coalesce(effects -> 'db_writes', '[]') || gem.noted_effects('gem.wrote')::jsonb, '[]'),
      'db_reads', nullif(coalesce(effects -> 'db_reads', '[]') || gem.noted_effects('gem.read')::jsonb, '[]')));
  end if;
  if kind <> 'began' then
    data := data || jsonb_build_object('kind', kind, 'result', coalesce(result, 'null'), 'effects', effects);
  end if;
  perform gem.step(call, attempt, worker, case kind when 'began' then kind else 'step' end, data, steps, false);
  perform set_config('gem.kept_step', 'yes', true);
end
$$;
revoke all on function public.keep_tool_step(jsonb, jsonb) from public;
do $$
declare
  api_role text;
begin
  foreach api_role in array array(select gem.api_roles()) loop
    execute format('revoke all on function public.keep_tool_step(jsonb, jsonb) from %I', api_role);
  end loop;
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.exchange_token(uuid, integer, text),
  gem.steps_of(uuid, integer, text)');
select gem.grant_to('gem_handler', 'usage on schema gem');
select gem.grant_to('gem_handler', 'execute on function public.keep_tool_step(jsonb, jsonb),
  gem.wrote(text, text, anycompatible), gem.read(text, bigint), gem.note_effect(text, jsonb),
  gem.refuse(text, text, text, text[]), gem.printable(text, integer)');
select gem.grant_to('service_role', 'execute on function public.keep_tool_step(jsonb, jsonb)');
revoke all on all functions in schema gem from public;

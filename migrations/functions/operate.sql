-- Operators cancel and repeat the calls of others. The role gem_operator acts only through these functions, and the
-- journal names the person:
--
--   cancel_requested, failed   {by, reason, login}             an operator cancelled the call
--   queued                     {again_of, by, reason, login}   an operator repeated a call
--
-- `by` is the person, and the holder of the role must verify it: gem dashboard does so by its sign-in. `login` is the
-- login role, if its name differs. gem_operator reads calls, receipts and journals completely. A domain's own SQL
-- grants it the domain's tables for pages.

-- Returns the acting person, in the form of the journal.
create or replace function gem.acts(p_by text, p_reason text) returns jsonb language plpgsql stable as $$
declare
  person constant text := coalesce(nullif(btrim(p_by), ''), session_user);
  reason constant text := nullif(btrim(p_reason), '');
begin
  if length(person) > 255 then
    perform gem.refuse('PT422', 'the operator''s name may have at most 255 characters');
  elsif length(reason) > 1000 then
    perform gem.refuse('PT422', 'the reason has %s characters, and may have at most 1000', null, length(reason)::text);
  end if;
  return jsonb_strip_nulls(jsonb_build_object('by', person, 'reason', reason, 'login', nullif(session_user, person)));
end
$$;

-- Cancels up to 500 calls, as public.cancel_tool_call does for one. Returns an outcome for each call. `cancelled`: it
-- has ended. `requested`: its worker or handler will end it, or it is a question that ends with its answer. A status:
-- it had already ended. `busy`: another transaction has locked it. `unknown`: it does not exist. A call whose
-- cancellation was requested before may be cleaning up, and remains `requested`; with p_at_once it ends immediately,
-- unless a worker runs it.
create or replace function gem.operator_cancel(p_ids uuid[], p_by text, p_reason text default null,
  p_at_once boolean default false)
returns table (id uuid, outcome text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
#variable_conflict use_column
declare
  who  constant jsonb       := gem.acts(p_by, p_reason);
  ends constant timestamptz := gem.now() + interval '1 second'; -- the last time at which it waits for rows
  call record;
begin
  if cardinality(p_ids) > 500 then
    perform gem.refuse('PT422', '%s calls were given, and at most 500 are allowed', null, cardinality(p_ids)::text);
  end if;
  -- a fixed order prevents deadlocks
  foreach id in array array(select distinct u from unnest(p_ids) u where u is not null order by u) loop
    outcome := null;
    select c.id, c.status, c.cancel_requested_at is not null as cancelled into call
    from public.core_tool_calls c where c.id = operator_cancel.id for no key update skip locked;
    if call.id is null then
      begin
        if gem.now() < ends then
          select c.id, c.status, c.cancel_requested_at is not null as cancelled into call
          from public.core_tool_calls c where c.id = operator_cancel.id for no key update;
        elsif exists (select from public.core_tool_calls c where c.id = operator_cancel.id) then
          outcome := 'busy';
        end if;
      exception when lock_not_available then
        outcome := 'busy';
      end;
    end if;
    outcome := case
      when outcome is not null then outcome
      when call.id is null then 'unknown'
      when call.cancelled and not gem.is_final(call.status) and not p_at_once then 'requested'
      else gem.cancel(call.id, who) end;
    return next;
  end loop;
end
$$;

-- Returns a document without the zeros at the end of fractions, like receipts.WithoutZeros: 1.0 becomes 1.
create or replace function gem.without_zeros(p_document jsonb) returns jsonb language plpgsql immutable as $$
begin
  return case jsonb_typeof(p_document)
    when 'number' then to_jsonb(trim_scale(p_document::numeric))
    when 'array' then coalesce((select jsonb_agg(gem.without_zeros(e.value) order by e.place)
      from jsonb_array_elements(p_document) with ordinality e (value, place)), '[]')
    when 'object' then coalesce((select jsonb_object_agg(e.key, gem.without_zeros(e.value))
      from jsonb_each(p_document) e), '{}')
    else p_document end;
end
$$;

-- Returns the key of a call by an entry of the registry, or null if the call has none or its key is unknown: see Key
-- and ClientKey in receipts/key.go.
create or replace function gem.key_of(p_tool text, p_idempotency jsonb, p_input jsonb, p_client_key text,
  p_caller text) returns text
language plpgsql immutable as $$
declare
  field  constant text  := p_idempotency ->> 'key_field';
  value  constant jsonb := p_input -> field;
  spaces constant text  := E' \t\n\x0b\f\r';
  client constant text  := nullif(btrim(p_client_key, spaces), '');
  caller constant text  := '"' || coalesce(p_caller, '') || '"';
  said   text;
begin
  if p_idempotency ->> 'mode' = 'keyed' then
    said := case when jsonb_typeof(value) = 'string' then btrim(value #>> '{}', spaces)
      else gem.without_zeros(value)::text end;
    return case
      when coalesce(said, '') = '' or value = 'null' then null
      when octet_length(said) > 200 then format('%s:%s sha256 %s', p_tool, field,
        encode(sha256(convert_to(said, 'UTF8')), 'hex'))
      when jsonb_typeof(value) = 'string' then format('%s:%s="%s"', p_tool, field, said)
      else format('%s:%s=%s', p_tool, field, said) end;
  -- Go escapes other characters with a backslash
  elsif p_idempotency ->> 'mode' = 'safe-retry' and client is not null and caller ~ '^"[ !#-\[\]-~]*"$' then
    return p_tool || ':' || case when octet_length(caller) <= 200 then 'caller=' || caller
        else ' sha256 ' || encode(sha256(convert_to(caller, 'UTF8')), 'hex') end
      || ':' || case when octet_length(client) <= 200 then 'client=' || client
        else ' sha256 ' || encode(sha256(convert_to(client, 'UTF8')), 'hex') end;
  end if;
  return null;
end
$$;

-- Describes the consequences of repeating a call by the registry in force. Returns no row if the call does not exist.
--   mode              of the tool's idempotency; null: the registry has no such tool
--   succeeded         the call that succeeded with the key, whose result would be repeated; null: none
--   holder            an open call that holds the key, for which the new one would wait; null: none
--   may_happen_twice  the call may have had effects, and the new one may have them again: neither the promise of that
--                     time nor today's prevents it
--   refused           why the call cannot be repeated; null: it can
create or replace function gem.operator_again_means(p_id uuid, out id uuid, out tool text, out status text,
  out error_code text, out mode text,
  out succeeded uuid, out succeeded_at timestamptz, out holder uuid, out may_happen_twice boolean,
    out refused text) returns setof record
language plpgsql stable security definer rows 1 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  call    record;
  entry   jsonb;
  new_key text;
  began   boolean;
begin
  select c.*, r.effects, r.effects #>> '{idempotency,mode}' as under, r.idempotency_key as held into call
  from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id where c.id = p_id;
  if call.id is null then
    return;
  end if;
  id := call.id;
  tool := coalesce(call.tool_name, '');
  status := call.status;
  error_code := call.error ->> 'error_code';
  select t.entry -> 'idempotency' into entry from gem.tools t where t.name = call.tool_name;
  mode := entry ->> 'mode';
  if mode <> 'none' then
    new_key := gem.key_of(tool, entry, call.input, call.idempotency_key, call.created_by);
    select r.call_id, r.created_at into succeeded, succeeded_at from public.core_tool_receipts r
    where r.idempotency_key = new_key and r.status = 'succeeded' and r.replay_of is null
    union all select k.call_id, k.ended_at from gem.kept_keys k where k.key = new_key limit 1;
    select h.call_id into holder from gem.held_keys h where h.key = new_key;
  end if;
  -- A first attempt that was refused before the handler, or that lacked its setup, did nothing, unless its receipt
  -- lists effects. A durable handler that ran may have failed with the error of a call that it made.
  began := call.attempt > 1 or call.losses > 0
    or call.attempt = 1 and status <> 'not_configured' and coalesce(error_code, '') not in ('unknown_tool',
      'validation_error', 'not_allowed', 'rule_blocked', 'limit_reached', 'approval_denied', 'approval_expired',
      'rule_error')
    or coalesce(call.effects ? 'durable', false)
    or jsonb_path_exists(coalesce(call.effects, '{}'), '$.keyvalue() ? (@.key == "db_writes" || @.key == "messages_sent"
      || @.key == "files_written" || @.key == "external_calls").value[*]');
  -- The mode and the key under which the call ran decide. Today's mode does not cover a call that ran under mode none,
  -- and today's key does not cover a call that ran under another key.
  may_happen_twice := succeeded is null and began and (coalesce(mode, 'none') = 'none'
    or coalesce(call.under, '') = 'none' or coalesce(error_code, '') = 'outcome_unknown'
    or coalesce(call.under, '') = 'keyed' and call.held is not null and call.held is distinct from new_key
    or gem.must_not_repeat(p_id, false, false, case when mode = 'keyed' then coalesce(new_key, '') end));
  refused := case
    when not gem.is_final(status) then format('call %s has not ended: it is %s', id, status)
    when gem.asks(tool) and call.parent_step is not null
      then format('call %s is a question of the call %s, which asks it again when it is repeated', id,
        call.parent_call_id)
    when call.signed_in and exists (select from gem.tools t where t.name = tool and not t.frontends)
      then format('%s is closed to signed-in users, and call %s is one of theirs', tool, id)
    when call.signed_in and gem.asks(tool) and gem.is_closed(call.answer_by)
      then format('call %s asks a role that is closed to questions from users', id)
    when tool = '' then format('call %s has no tool', id) end;
  return next;
end
$$;

-- Repeats a call: inserts a child of it with the same tool, input, session, created_by, signed_in, idempotency_key and
-- priority. The new call has the rights that its user has now, and no others. The old call and its receipt do not
-- change. If effects may happen twice, p_confirm must be the tool's name. The caller chooses the new call's id,
-- p_new_id. Repeating the request with the same id inserts only one call.
create or replace function gem.operator_again(p_id uuid, p_by text, p_reason text default null,
  p_confirm text default null, p_new_id uuid default null)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
  who    constant jsonb := gem.acts(p_by, p_reason);
  claims constant text  := current_setting('request.jwt.claims', true);
  made   uuid           := coalesce(p_new_id, gem.new_id(gem.now()));
  means  record;
begin
  for i in 1..2 loop
    if exists (select from public.core_tool_events e where e.call_id = p_new_id and e.seq = 1
      and e.data ->> 'again_of' = p_id::text) then
      return p_new_id;
    end if;
    exit when i = 2;
    select * into means from gem.operator_again_means(p_id);
    if means.id is null then
      perform gem.refuse('PT404', 'there is no call %s', null, p_id::text);
    elsif means.refused is not null then
      perform gem.refuse('PT409', means.refused); -- it contains only ids, a status and a tool of the registry
    elsif means.may_happen_twice and p_confirm is distinct from means.tool then
      perform gem.refuse('PT428', 'the effects of call %s may happen twice',
        'To repeat it anyway, confirm the name of its tool: %2$s.', p_id::text, means.tool);
    end if;
    begin
      -- the operator's token must not make this the operator's call
      perform set_config('request.jwt.claims', '', true), set_config('gem.again', made::text, true);
      with again as (
        insert into public.core_tool_calls as n (id, tool_name, input, session_id, created_by, signed_in,
          idempotency_key, priority, parent_call_id)
        select made, c.tool_name, c.input, c.session_id, c.created_by, c.signed_in, c.idempotency_key, c.priority, c.id
        from public.core_tool_calls c where c.id = p_id
        returning n.id, n.created_at, n.run_at, n.priority
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
      select a.id, 1, a.created_at, 'queued', 0,
        who || jsonb_build_object('again_of', p_id, 'run_at', a.run_at, 'priority', a.priority) from again a;
      perform set_config('request.jwt.claims', coalesce(claims, ''), true), set_config('gem.again', '', true);
      return made;
    exception when unique_violation then null; -- inserted concurrently, or another user's
    end;
  end loop;
  perform gem.refuse('unique_violation', 'there is another call with the id %s', null, p_new_id::text);
end
$$;

select gem.grant_to('gem_operator', 'usage on schema gem');
select gem.grant_to('gem_operator', 'execute on function gem.operator_cancel(uuid[], text, text, boolean),
  gem.operator_again_means(uuid), gem.operator_again(uuid, text, text, text, uuid),
  public.answer_tool_call(uuid, jsonb, text), public.find_open_questions(uuid[]), gem.open_questions(uuid[]),
  gem.part_of(jsonb, text), gem.answer_schema(text, jsonb)');
select gem.grant_to('gem_operator', 'select on public.open_questions, gem.tools, gem.domains_versions, gem.roles');
select gem.grant_to('gem_operator', 'select on public.' || t),
  gem.open_to('gem_operator', 'public.' || t, 'gem_operator_reads', 'for select to %I using (true)')
from unnest(array['core_tool_calls', 'core_tool_receipts', 'core_tool_events', 'core_tool_progress',
  'core_llm_requests', 'core_llm_versions', 'core_workers',
  'core_registry_versions', 'core_rules_versions']) t;
revoke all on all functions in schema gem from public;

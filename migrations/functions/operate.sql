-- People act on the calls of others: they end them, and have them made again. The role gem_operator acts by the functions here and nothing
-- else; the journal names the person:
--
--   cancel_requested, failed   {by, reason, login}             of a call whose end an operator asked for
--   queued                     {again_of, by, reason, login}   of a call that an operator had made again
--
-- `by` is the person as whoever holds the role found out: gem dashboard by its sign-in. `login` is the login role, where it has another name.
-- gem_operator reads calls, receipts and journals whole; what a domain's tables hold for a page, the domain's own SQL grants.

-- The person who acts, as the journal has it.
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

-- Asks for the ends of up to 500 calls, as public.cancel_tool_call does for one. Says of each what came of it: `cancelled`, it has ended;
-- `requested`, its worker or handler ends it; the status in which it had ended before; `busy`, another transaction has it locked; `unknown`, there
-- is none. A call whose end was asked for before may be cleaning up, and stays `requested`; p_at_once ends it without that where no worker runs it.
create or replace function gem.operator_cancel(p_ids uuid[], p_by text, p_reason text default null, p_at_once boolean default false)
returns table (id uuid, outcome text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
#variable_conflict use_column
declare
  who  constant jsonb       := gem.acts(p_by, p_reason);
  ends constant timestamptz := gem.now() + interval '1 second'; -- until then it waits for rows
  call record;
begin
  if cardinality(p_ids) > 500 then
    perform gem.refuse('PT422', '%s calls were given, and at most 500 are allowed', null, cardinality(p_ids)::text);
  end if;
  foreach id in array array(select distinct u from unnest(p_ids) u where u is not null order by u) loop -- two that lock the same wait in one order
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

-- The key that a call has under an entry of the registry; null for none, and where it is not known: see Key and ClientKey in receipts/key.go.
create or replace function gem.key_of(p_tool text, p_idempotency jsonb, p_input jsonb, p_client_key text, p_caller text) returns text
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
    said := case when jsonb_typeof(value) = 'string' then btrim(value #>> '{}', spaces) else value::text end;
    return case
      when coalesce(said, '') = '' or value = 'null' then null
      when octet_length(said) > 200 then format('%s:%s sha256 %s', p_tool, field, encode(sha256(convert_to(said, 'UTF8')), 'hex'))
      when jsonb_typeof(value) = 'string' then format('%s:%s="%s"', p_tool, field, said)
      else format('%s:%s=%s', p_tool, field, said) end;
  elsif p_idempotency ->> 'mode' = 'safe-retry' and client is not null and caller ~ '^"[ !#-\[\]-~]*"$' then -- Go writes others with a backslash
    return p_tool || ':' || case when octet_length(caller) <= 200 then 'caller=' || caller
        else ' sha256 ' || encode(sha256(convert_to(caller, 'UTF8')), 'hex') end
      || ':' || case when octet_length(client) <= 200 then 'client=' || client
        else ' sha256 ' || encode(sha256(convert_to(client, 'UTF8')), 'hex') end;
  end if;
  return null;
end
$$;

-- Says of a call what it would mean to make it again; no row where there is none. By the registry in force:
--   mode              of the tool's idempotency; null: no registry in force has the tool
--   succeeded         the call that has succeeded with the key, whose result would be repeated; null: none
--   holder            an open call that holds the key, for which the new one would wait; null: none
--   may_happen_twice  the call may have done something, and nothing keeps the new one from doing it once more
--   refused           why it cannot be made again; null: it can
create or replace function gem.operator_again_means(p_id uuid, out id uuid, out tool text, out status text, out error_code text, out mode text,
  out succeeded uuid, out succeeded_at timestamptz, out holder uuid, out may_happen_twice boolean, out refused text) returns setof record
language plpgsql stable security definer rows 1 set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  call  record;
  entry jsonb;
  key   text;
begin
  select c.*, r.attempt as ran, r.status as ended into call
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
    key := gem.key_of(tool, entry, call.input, call.idempotency_key, call.created_by);
    select r.call_id, r.created_at into succeeded, succeeded_at from public.core_tool_receipts r
    where r.idempotency_key = key and r.status = 'succeeded' and r.replay_of is null;
    select c.id into holder from public.core_tool_calls c
    where c.computed_key = key and (c.status in ('running', 'queued') or c.status = 'waiting' and c.waits_for <> 'key');
  end if;
  -- A first attempt that was refused before the handler, or that lacked its setup, did nothing.
  may_happen_twice := succeeded is null and (coalesce(mode, 'none') = 'none' or coalesce(error_code, '') = 'outcome_unknown')
    and not (call.attempt = 0 or call.attempt = 1 and call.losses = 0 and (status = 'not_configured' or coalesce(error_code, '') in
      ('unknown_tool', 'validation_error', 'not_allowed', 'rule_blocked', 'limit_reached', 'approval_denied', 'approval_expired', 'rule_error')));
  refused := case
    when not gem.is_final(status) then format('call %s has not ended: it is %s', id, status)
    when gem.asks(tool) and call.parent_step is not null
      then format('call %s is a question of the call %s, which asks anew when it is made again', id, call.parent_call_id)
    when tool = '' then format('call %s has no tool', id) end;
  return next;
end
$$;

-- Makes a call again: a new one with its tool, input, session, created_by, idempotency_key and priority, on its behalf. The old one and its receipt
-- stay as they are. Where something may happen twice, p_confirm must be the tool's name. p_new_id is the new call's id, which the caller chose; with
-- the same one it is made once, however often it is asked for.
create or replace function gem.operator_again(p_id uuid, p_by text, p_reason text default null, p_confirm text default null, p_new_id uuid default null)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
  who    constant jsonb := gem.acts(p_by, p_reason);
  claims constant text  := current_setting('request.jwt.claims', true);
  made   uuid           := coalesce(p_new_id, gem.new_id(gem.now()));
  means  record;
begin
  for i in 1..2 loop
    if exists (select from public.core_tool_events e where e.call_id = p_new_id and e.seq = 1 and e.data ->> 'again_of' = p_id::text) then
      return p_new_id;
    end if;
    exit when i = 2;
    select * into means from gem.operator_again_means(p_id);
    if means.id is null then
      perform gem.refuse('PT404', 'there is no call %s', null, p_id::text);
    elsif means.refused is not null then
      perform gem.refuse('PT409', means.refused); -- it contains only ids and a status
    elsif means.may_happen_twice and p_confirm is distinct from means.tool then
      perform gem.refuse('PT428', 'the effects of call %s may happen twice',
        'To repeat it anyway, confirm the name of its tool: %2$s.', p_id::text, means.tool);
    end if;
    begin
      perform set_config('request.jwt.claims', '', true); -- no token of the operator's makes it the operator's call
      with again as (
        insert into public.core_tool_calls as n (id, tool_name, input, session_id, created_by, idempotency_key, priority, parent_call_id)
        select made, c.tool_name, c.input, c.session_id, c.created_by, c.idempotency_key, c.priority, c.id
        from public.core_tool_calls c where c.id = p_id
        returning n.id, n.created_at, n.run_at, n.priority
      )
      insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
      select a.id, 1, a.created_at, 'queued', 0,
        who || jsonb_build_object('again_of', p_id, 'run_at', a.run_at, 'priority', a.priority) from again a;
      perform set_config('request.jwt.claims', coalesce(claims, ''), true);
      return made;
    exception when unique_violation then null; -- it came meanwhile, or is another's
    end;
  end loop;
  perform gem.refuse('unique_violation', 'there is another call with the id %s', null, p_new_id::text);
end
$$;

select gem.grant_to('gem_operator', 'usage on schema gem');
select gem.grant_to('gem_operator', 'execute on function gem.operator_cancel(uuid[], text, text, boolean),
  gem.operator_again_means(uuid), gem.operator_again(uuid, text, text, text, uuid),
  public.answer_tool_call(uuid, jsonb, text), gem.open_questions()');
select gem.grant_to('gem_operator', 'select on public.open_questions, gem.tools, gem.domains_versions, gem.roles');
select gem.grant_to('gem_operator', 'select on public.' || t), gem.open_to('gem_operator', 'public.' || t, 'gem_operator_reads', 'for select to %I using (true)')
from unnest(array['core_tool_calls', 'core_tool_receipts', 'core_tool_events', 'core_tool_progress', 'core_llm_requests', 'core_llm_versions', 'core_workers',
  'core_registry_versions', 'core_rules_versions']) t;
revoke all on all functions in schema gem from public;

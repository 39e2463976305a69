-- Answers: values that someone outside writes to the journal of a call that has not ended. The tools wait.answer,
-- wait.approval and wait.event only wait for an answer, so a question is a call. Any other durable handler can wait for
-- an answer, too.
--
--   answered   {name, value, by}   by: the subject that answered (see gem.subject); run_at, if it made a question due
--
-- Only the names of answers begin with #, so a reader of the journal cannot mistake an answer for a step of the handler
-- or for the end of a child.
--
-- `by` in the input of a wait.* call lists the people who may answer: `owner` (its created_by), `user:SUBJECT`,
-- `role:ROLE` (see gem.roles), `service`. service_role, the owner of these functions and members of gem_operator may
-- answer for anyone, except approvals. Any other call may be answered by its created_by, and by the same roles.

-- Returns the caller: the token's `sub`; service_role; or the session's user if there is no token. Returns null for a
-- token without a subject.
create or replace function gem.subject() returns text language sql stable as $$
  select case when gem.token_claims() is null then session_user::text
    when gem.token_claims() ->> 'role' = 'service_role' then 'service_role'
    else nullif(nullif(gem.token_claims() ->> 'sub', ''), 'service_role') end
$$;

-- Reports whether the caller of a function that runs with its owner's rights may answer for anyone.
create or replace function gem.answers_for_all() returns boolean language sql stable as $$
  select case when gem.token_claims() is null
      then pg_has_role(session_user, current_user, 'member')
        or coalesce(pg_has_role(session_user, to_regrole('gem_operator'), 'member'), false)
    else coalesce(gem.token_claims() ->> 'role' = 'service_role', false) end
$$;

-- Reports whether a tool only waits for an answer.
create or replace function gem.asks(p_tool text) returns boolean language sql immutable as $$
  select coalesce(p_tool in ('wait.answer', 'wait.approval', 'wait.event'), false)
$$;

-- Reports whether a call is a question whose answer was accepted. It ends with that answer, even if it is cancelled.
create or replace function gem.is_answered(p_call uuid, p_tool text) returns boolean language sql stable as $$
  select gem.asks(p_tool)
    and exists (select from public.core_tool_events e where e.call_id = p_call and e.event = 'answered')
$$;

-- Returns the kind of asker of a wait.* call, and null for other calls:
--   rule     a rule asks: the text, people and arguments come from the rules and from the call that the rule stopped
--   handler  the code of a handler asks: it chose the text and the people
--   user     a frontend inserted the question, or a model or a document chose it for a handler (gem.wait then passes
--            p_said): nothing in it is verified, neither its text nor its people
-- Frontends can write neither parent_step nor asked_for.
create or replace function gem.asked_for(p_tool text, p_step text, p_said text) returns text
  language sql immutable as $$
  select case when not gem.asks(p_tool) then null when p_step like '##%' then 'rule' when p_step is null
    or p_said = 'user' then 'user' else 'handler' end
$$;

-- Returns the value of answer_by for the input of a wait.* call: the people who may answer, as entries of `by`. It
-- ignores entries that the worker will reject, so that the column stays small.
create or replace function gem.answerers(p_tool text, p_input jsonb) returns text[] language sql immutable as $$
  select case when jsonb_typeof(p_input -> 'by') = 'array'
      then array(
        select w #>> '{}' from jsonb_array_elements(p_input -> 'by') w
        where jsonb_typeof(w) = 'string' and length(w #>> '{}') <= 260 limit 20)
    when p_tool = 'wait.answer' then '{owner}'
    when p_tool = 'wait.event' then '{service}'
    else '{}' end
$$;

-- Returns the value of answer_others for the input of a wait.* call.
create or replace function gem.asks_only_others(p_tool text, p_input jsonb) returns boolean language sql immutable as $$
  select coalesce(p_input -> 'others', to_jsonb(p_tool = 'wait.approval')) <> 'false'
$$;

-- Returns the value of answer_until for the input of a wait.* call. The worker rejects inputs with another form.
create or replace function gem.until_of(p_input jsonb) returns timestamptz language plpgsql stable as $$
begin
  if p_input ->> 'until' ~ '^[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d([.]\d{1,9})?(Z|[+-]\d\d:\d\d)$' then
    begin
      -- The year 9999 at an offset may be 10000 in UTC, which Go cannot encode as JSON. Without a cast, the error would
      -- occur after the block.
      return nullif(least((p_input ->> 'until')::timestamptz, '9999-12-31 00:00:00Z'),
        '9999-12-31 00:00:00Z')::timestamptz;
    exception when others then null;
    end;
  end if;
  return null;
end
$$;

-- Reports whether `by` names a role that is closed to users.
create or replace function gem.is_closed(p_by text[]) returns boolean language sql stable as $$
  select exists (select from gem.role_settings s where 'role:' || s.role = any (p_by))
$$;

-- Refuses a user's question to a role that is closed to users.
create or replace function gem.check_roles(p_by text[]) returns void language plpgsql stable as $$
declare
  closed text;
begin
  select s.role into closed from gem.role_settings s where 'role:' || s.role = any (p_by) order by s.role limit 1;
  if found then
    perform gem.refuse('PT403', 'the role %s is closed to questions from users',
      'Rules and handlers may ask it. The owner of the database can open it: gem roles open %1$s', closed);
  end if;
end
$$;

-- Reports whether anyone other than its caller may answer a question.
create or replace function gem.asks_others(p_by text[], p_created_by text) returns boolean language sql immutable as $$
  select not p_by <@ array['owner', 'user:' || coalesce(p_created_by, '')]
$$;

-- Refuses a signed-in user's questions if more are open to others than gem.limits allows. The inserts of one user take
-- turns. Questions that a model chose are counted without a lock, so the user may exceed the limit by one for each
-- agent that asks at the same moment.
create or replace function gem.check_questions(p_created_by text) returns void language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  most integer := (select l.max_open_questions from gem.limits l);
begin
  if most < (
    select count(*) from (
      select from public.core_tool_calls c
      where c.created_by = p_created_by and c.status in ('queued', 'waiting', 'running') and c.asked_for = 'user'
        and gem.asks_others(c.answer_by, c.created_by)
      limit most + 1) open) then
    perform gem.refuse('PT429', 'too many open questions to others: you may have %s',
      'Wait for answers, or cancel some of them.',
      most::text);
  end if;
end
$$;

-- Reports whether the caller may answer a call. p_by and p_others are the call's answer_by and answer_others.
create or replace function gem.may_answer(p_call uuid, p_tool text, p_by text[], p_others boolean, p_created_by text)
returns boolean language plpgsql stable as $$
declare
  who      text    := gem.subject();
  approval boolean := coalesce(p_tool = 'wait.approval', false);
begin
  if who is null then
    return false;
  elsif not gem.asks(p_tool) then
    return coalesce(p_created_by = who, false) or gem.answers_for_all();
  end if;
  -- Each query has its own if: in one condition, Postgres could run a query whose result is not needed.
  if p_others is distinct from false then
    if gem.token_claims() -> 'gem_other_name' = 'true' then
      return false; -- the dashboard and the calls may have different names for this person
    end if;
    if exists (select from gem.ancestors(p_call, false) a where a.created_by = who or a.depth = 100 or exists (
      select from public.core_tool_events e where e.call_id = a.id and e.seq = 1
        and who in (e.data ->> 'by', e.data ->> 'login', e.data ->> 'saved_by', e.data ->> 'saved_login')
        offset 0)) then -- read by id: see gem.prune
      -- The person who asks, repeats (gem.operator_again), or saved or ran the schedule cannot approve. With more than
      -- a hundred generations, these people are unknown.
      return false;
    end if;
  end if;
  if not approval and (coalesce('owner' = any (p_by) and p_created_by = who, false) or gem.answers_for_all()) then
    return true;
  end if;
  return coalesce('user:' || who = any (p_by), false)
    or exists (select from gem.roles r where r.subject = who and 'role:' || r.role = any (p_by));
end
$$;

-- These two functions have a high cost, so that a query with a LIMIT sorts the questions before it reads their inputs.
-- They are in the schema public, because frontends call them and may not use the schema gem.

-- Returns a part of a question's input.
create or replace function gem.part_of(p_input jsonb, p_part text) returns jsonb
language plpgsql immutable cost 1000 as $$
begin
  return p_input -> p_part;
end
$$;

-- Returns the JSON Schema that an answer must match, or null if any value is allowed.
create or replace function gem.answer_schema(p_tool text, p_input jsonb) returns jsonb
language plpgsql immutable cost 1000 as $$
begin
  return case p_tool
    when 'wait.approval' then '{"type": "object", "required": ["approved"],
      "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string", "maxLength": 1000}}}'
    when 'wait.answer' then coalesce(p_input -> 'schema', '{"type": "string"}')
    when 'wait.event' then p_input -> 'schema' end;
end
$$;

-- Returns why a value does not match a flat schema, as a template and its words for gem.refuse, or null if it matches.
-- A flat schema has text, numbers and booleans, or an object with only such fields. The input schema of wait.answer
-- allows no other keywords. A template lists at most eight names.
create or replace function gem.misfit(p_value jsonb, p_schema jsonb, p_path text default '') returns text[]
  language plpgsql immutable as $$
declare
  kind   text   := jsonb_typeof(p_value);
  wanted text   := p_schema ->> 'type';
  form   text   := case when p_path = '' then 'the answer' else '%s' end;
  place  text[] := case when p_path = '' then '{}' else array[p_path] end;
  said   text   := p_value #>> '{}';
  names  text[];
  field  record;
  wrong  text[];
begin
  if p_schema is null then
    return null;
  end if;
  if kind is distinct from replace(wanted, 'integer', 'number') or wanted = 'integer'
    and scale(p_value::numeric) > 0 then
    return array[form || ' must be of type %s, and is ' || case when kind = 'string' then 'the text %s'
      else '%s' end] || place || wanted || said;
  elsif p_schema ? 'enum' and not p_schema -> 'enum' @> jsonb_build_array(p_value) then
    names := array(select e #>> '{}' from jsonb_path_query(p_schema, '$.enum[*]') e limit 9);
    return array[form || ' must be one of ' || gem.listed(names) || ', and is %s'] || place || names[:8] || said;
  elsif kind = 'string' and (length(said) < (p_schema ->> 'minLength')::numeric
    or length(said) > (p_schema ->> 'maxLength')::numeric) then
    return array[form || ' has %s characters, and must have ' || case when p_schema ? 'maxLength' then '%s to %s'
      else 'at least %s' end]
      || place || length(said)::text || coalesce(p_schema ->> 'minLength', '0') || (p_schema ->> 'maxLength');
  elsif kind = 'number' and p_value::numeric < (p_schema ->> 'minimum')::numeric then
    return array[form || ' is %s, and must be at least %s'] || place || said || (p_schema ->> 'minimum');
  elsif kind = 'number' and p_value::numeric > (p_schema ->> 'maximum')::numeric then
    return array[form || ' is %s, and must be at most %s'] || place || said || (p_schema ->> 'maximum');
  elsif kind = 'object' then
    for field in select r.value #>> '{}' as name from jsonb_array_elements(p_schema -> 'required') r
      where not p_value ? (r.value #>> '{}') loop
      return array[form || ' needs the field %s'] || place || field.name;
    end loop;
    for field in select * from jsonb_each(p_value) loop
      if not coalesce(p_schema -> 'properties' ? field.key, false) then
        names := array(select k from jsonb_object_keys(p_schema -> 'properties') k order by k limit 9);
        return array[form || ' has a field %s, and takes only ' || gem.listed(names)] || place || field.key ||
          names[:8];
      end if;
      wrong := gem.misfit(field.value, p_schema -> 'properties' -> field.key, p_path || '/' || field.key);
      if wrong is not null then
        return wrong;
      end if;
    end loop;
  end if;
  return null;
end
$$;

-- Returns the part of a template that lists names, at most eight.
create or replace function gem.listed(p_names text[]) returns text language sql immutable as $$
  select case cardinality(p_names) when 0 then 'none' when 9 then rpad('%s', 4 * 8 - 2, ', %s') || ' and others'
    else rpad('%s', 4 * cardinality(p_names) - 2, ', %s') end
$$;

-- Counts an answer of p_bytes bytes by a signed-in user. Refuses it if the user's answers of the last hour reach the
-- limits for calls.
create or replace function gem.count_answer(p_who text, p_bytes integer) returns void language plpgsql as $$
declare
  now  timestamptz := gem.now();
  most gem.limits;
  past record;
begin
  select * into most from gem.limits;
  perform pg_advisory_xact_lock(hashtextextended('gem.limits ' || p_who, 0)); -- the requests of one user take turns
  select count(*) as answers, coalesce(sum(a.bytes), 0) as bytes into past from (
    select g.bytes from gem.answers g where g.subject = p_who and g.at > now - interval '1 hour' and g.at <= now
    order by g.at desc limit most.max_calls_per_hour) a;
  if past.answers >= most.max_calls_per_hour or past.bytes >= most.max_bytes_per_hour then
    perform gem.refuse('PT429', 'too many answers in an hour', 'Try again later.');
  end if;
  insert into gem.answers values (p_who, now, p_bytes);
end
$$;

-- Removes counts that are no longer needed, at most ten thousand.
create or replace function gem.forget_answers() returns void language plpgsql as $$
declare
  before timestamptz := gem.now() - interval '1 hour';
begin
  delete from gem.answers where ctid = any (array(
    select g.ctid from gem.answers g where g.at < before order by g.at limit 10000 for update skip locked));
end
$$;

-- Refuses a token that a login set itself, except by the owner and by logins that may become a role of frontends, such
-- as members of gem_mcp. Any login can set request.jwt.claims, and members of gem_operator may execute answer_tool_call
-- only as themselves.
create or replace function gem.check_token() returns void language plpgsql stable as $$
begin
  if gem.token_claims() is not null and not pg_has_role(session_user, current_user, 'member')
    and not exists (select from gem.api_roles() r where pg_has_role(session_user, r::name, 'member')) then
    perform gem.refuse('PT403', '%s may answer only as itself', null, session_user::text);
  end if;
end
$$;

-- Writes an answer to the journal of a call that has not ended, before or while the call waits for it, and wakes the
-- call if it waits. Returns 'answered'. If the same subject repeats the same answer, it also returns 'answered', at any
-- time. It refuses any other later answer. It also refuses an answer to a question that a frontend scheduled for later,
-- because no worker has checked the question. PostgREST returns the HTTP status in the error code. If a handler waits
-- for several answers under one name, the second is named NAME#2, and so on.
create or replace function public.answer_tool_call(call_id uuid, answer jsonb, name text default 'answer') returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
  claims jsonb := gem.token_claims();
  who    text  := gem.subject();
  value  jsonb := coalesce(answer, 'null');
  call   record;
  given  jsonb;
  now    timestamptz;
  state  text;
  wrong  text[];
  cancelled boolean;
  opens_at timestamptz;
  answered_at timestamptz;
begin
  perform gem.check_token();
  select c.id, c.tool_name, c.input, c.created_by, c.answer_by, c.answer_others, c.answer_until,
    gem.asks(c.tool_name) as asks into call
  from public.core_tool_calls c where c.id = call_id;
  if call.id is null
    or not gem.may_answer(call.id, call.tool_name, call.answer_by, call.answer_others, call.created_by) then
    perform gem.refuse('PT404', 'there is no call %s that you can answer', null, call_id::text);
  end if;
  if name is null or name !~ '^[^#]{1,200}(#[1-9][0-9]{0,4})?$' then
    perform gem.refuse('PT422', 'name must have 1 to 200 characters, and a # only before a number at its end');
  elsif call.asks and name <> 'answer' then
    perform gem.refuse('PT422', '%s takes one answer, under the name answer', null, call.tool_name);
  end if;
  perform gem.check_size('the answer', value, 65536);
  if jsonb_path_exists(value, 'lax $.**{100}') then
    perform gem.refuse('PT422', 'the answer is nested deeper than 100 levels');
  end if;

  select c.status, c.cancel_requested_at is not null,
    case when call.asks and c.parent_step is null and c.attempt = 0 and c.run_at > c.created_at then c.run_at end
  into state, cancelled, opens_at
  from public.core_tool_calls c where c.id = call_id for no key update;
  now := gem.now(); -- read the time after waiting for the row
  select e.data, e.at into given, answered_at from public.core_tool_events e
  where e.call_id = call_id and e.event = 'answered' and e.data ->> 'name' = '#' || name;
  if given -> 'value' = value and given ->> 'by' = who then
    return 'answered';
  elsif given is not null and call.tool_name = 'wait.approval' then
    perform gem.refuse('PT409', 'call %s was already %s by %s at ' || to_char(answered_at at time zone 'UTC',
      'YYYY-MM-DD HH24:MI:SS UTC'),
      null, call_id::text, case given -> 'value' ->> 'approved' when 'true' then 'approved' else 'denied' end,
        given ->> 'by');
  elsif given is not null then
    perform gem.refuse('PT409', 'call %s already has another answer, by %s', null, call_id::text, given ->> 'by');
  elsif coalesce(gem.is_final(state), true) then
    perform gem.refuse('PT409', 'call %s has ended as %s, and takes no answer', null, call_id::text,
      coalesce(state, 'pruned'));
  end if;

  if call.asks and cancelled then
    perform gem.refuse('PT409', 'call %s is being cancelled, and takes no answer', null, call_id::text);
  elsif opens_at > now then
    perform gem.refuse('PT409', 'call %s opens at ' || to_char(opens_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC')
      || ', and takes no answer before', 'Answer it then. It was scheduled for that time.', call_id::text);
  end if;
  if call.asks and call.answer_until <= now or exists (
    select from public.core_tool_events e where e.call_id = call_id and e.event = 'timed_out'
      and e.data -> 'names' ? ('#' || name)) then
    perform gem.refuse('PT410', 'the time for this answer to call %s is over', null, call_id::text);
  elsif (select count(*) from public.core_tool_events e where e.call_id = call_id and e.event = 'answered') >= 100 then
    perform gem.refuse('PT429', 'call %s has 100 answers, and takes no more', null, call_id::text);
  end if;
  begin
    wrong := gem.misfit(value, gem.answer_schema(call.tool_name, call.input));
  exception when data_exception then -- a user inserted the call, and no worker has checked its schema
    perform gem.refuse('PT422', 'the schema of call %s cannot be used, so it takes no answer', null, call_id::text);
  end;
  if wrong is not null then
    perform gem.refuse('PT422', wrong[1], null, variadic wrong[2:]);
  end if;
  if claims is not null and claims ->> 'role' is distinct from 'service_role' then
    perform gem.count_answer(who, pg_column_size(value));
  end if;
  perform gem.came(call_id, 'answered',
    array[jsonb_build_object('name', '#' || name, 'value', value, 'by', who)], null);
  return 'answered';
end
$$;

-- Returns the wait.* calls that the caller may still answer; with p_only, only calls from that list. `by` lists the
-- people who may answer. `call_id` is the call that waits for the answer. The function does not read large inputs: it
-- returns pointers to their stored values.
--
-- `asked_for` is the kind of asker (see gem.asked_for), and `asked_by` the created_by of the call, or null. `place` is
-- the position in a list of three parts: first the questions of rules and handlers, by deadline and age; then users'
-- questions by age, with the reader's own first; then users' questions to closed roles. `of_asker` numbers the open
-- questions of one asked_by in each part, and `asker_open` counts them. In each part, an asker's sixth and later
-- questions come after the first five of every other asker. Each call without created_by counts as its own asker. With
-- p_only, these columns consider only the questions in p_only.
--
-- The function reads all of the reader's own questions. It reads up to 5,000 questions of rules and handlers that name
-- the reader, and up to 5,000 such questions of users. For readers who may answer for anyone, it also reads up to 5,000
-- calls to wait.answer, and as many of wait.event, for each kind of asker. If it reads 5,000 or more in this way, it
-- also reads up to 100 calls of each kind from each of 2,000 askers. It keeps 1,000 questions of each part, with a
-- share for each asker.
create or replace function gem.open_questions(p_only uuid[]) returns table (id uuid, tool text, input jsonb, by text[],
  since timestamptz, until timestamptz, root uuid, call_id uuid, asked_by text, asked_for text, place bigint,
  of_asker bigint, asker_open bigint)
language plpgsql stable security definer rows 10 set search_path = pg_catalog, pg_temp
  -- indexes find the few rows, and one of them supports only bitmaps
  set enable_seqscan = off set enable_bitmapscan = on
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  at    timestamptz := gem.now();
  who   text        := gem.subject();
  words text[]      := 'user:' || who || array(select 'role:' || r.role from gem.roles r where r.subject = who);
begin
  return query
  with recursive first as materialized (
    select o.id, o.asked_for = 'user' as of_user, o.created_by, o.created_at from public.core_tool_calls o
    where o.id = any (p_only) and o.waits_for = 'answer' and o.asked_for is not null
    union
    select o.id, o.asked_for = 'user', o.created_by, o.created_at from public.core_tool_calls o
    where p_only is null and o.created_by = who and o.waits_for = 'answer' and o.asked_for is not null
      and o.status in ('queued', 'waiting', 'running') -- the condition of the index
    union
    (select o.id, false, o.created_by, o.created_at from public.core_tool_calls o
     where p_only is null and o.waits_for = 'answer' and o.asked_for <> 'user' and o.answer_by && words limit 5000)
    union
    (select o.id, true, o.created_by, o.created_at from public.core_tool_calls o
     where p_only is null and o.waits_for = 'answer' and o.asked_for = 'user' and o.answer_by && words limit 5000)
    union -- without approvals: only the people whom they name may answer them
    select q.id, asking.kind = 'user', q.created_by, q.created_at
    from (select t.tool, k.kind from unnest(array['wait.answer', 'wait.event']) t (tool),
      unnest(array['rule', 'handler', 'user']) k (kind)) asking, lateral (
      select o.id, o.created_by, o.created_at from public.core_tool_calls o
      where o.status = 'waiting' and o.waits_for = 'answer' and o.computed_key is null and o.tool_name = asking.tool
        and o.asked_for = asking.kind
      order by o.computed_key, o.level desc, o.seq limit 5000) q -- the order of the index
    where p_only is null and (select gem.answers_for_all())
  ), asker (name) as ( -- askers one by one, by the index
    (select c.created_by from public.core_tool_calls c
     where (select count(*) from first) >= 5000 and c.created_by is not null
       and c.status in ('queued', 'waiting', 'running')
     order by c.created_by, c.waits_for, c.asked_for limit 1)
    union all
    select (
      select c.created_by from public.core_tool_calls c
      where c.created_by > a.name and c.status in ('queued', 'waiting', 'running')
      order by c.created_by, c.waits_for, c.asked_for limit 1)
    from asker a where a.name is not null
  ), found as (
    select f.* from first f
    union
    select o.id, k.kind = 'user', o.created_by, o.created_at
    from (select a.name from asker a limit 2000) a, unnest(array['rule', 'handler', 'user']) k (kind), lateral (
      select c.id, c.tool_name, c.created_by, c.created_at, c.answer_by from public.core_tool_calls c
      where c.created_by = a.name and c.waits_for = 'answer' and c.asked_for = k.kind
        and c.status in ('queued', 'waiting', 'running') limit 100) o
    where o.answer_by && words or o.tool_name <> 'wait.approval' and (select gem.answers_for_all())
  ), numbered as (
    select f.id, f.of_user, f.created_at, row_number() over (partition by f.of_user, coalesce(f.created_by, f.id::text)
      order by f.created_at, f.id) as nth
    from found f
  ), shared as (
    select n.id, row_number() over (partition by n.of_user order by n.nth, n.created_at, n.id) as nth from numbered n
  ), open as (
    select c.id, c.tool_name, c.input, c.answer_by, c.answer_until, c.created_by, c.created_at, c.parent_call_id,
      c.parent_step, c.asked_for, c.asked_for = 'user' as of_user
    -- The offset makes Postgres look up each question. Otherwise it may find all of them again for each call.
    from shared s, lateral (select o.* from public.core_tool_calls o where o.id = s.id offset 0) c
    where s.nth <= 1000 and c.waits_for = 'answer' and coalesce(c.answer_until > at, true)
      and gem.may_answer(c.id, c.tool_name, c.answer_by, c.answer_others, c.created_by)
  ), part as (
    select o.*, case when not o.of_user then 1 when gem.is_closed(o.answer_by) then 3 else 2 end as part,
      coalesce(o.created_by, o.id::text) as asker,
      case when not o.of_user then coalesce(o.answer_until, 'infinity') end as due, -- a user may choose any deadline
      o.of_user and o.created_by is distinct from who as of_other
    from open o
  ), turn as (
    select p.*, row_number() over (partition by p.part, p.asker order by p.due, p.created_at, p.id) as nth,
      count(*) over (partition by p.part, p.asker) as of_all
    from part p
  )
  select t.id, t.tool_name, t.input, t.answer_by, t.created_at, t.answer_until,
    case when t.parent_call_id is null then t.id
      else (select a.id from gem.ancestors(t.id, false) a order by a.depth desc limit 1) end,
    case when t.parent_step is not null then t.parent_call_id end, t.created_by, t.asked_for,
    row_number() over (order by t.part, t.of_other, t.nth > 5, t.due, t.created_at, t.id), t.nth, t.of_all
  from turn t
  order by 11;
end
$$;

-- For an approval, `about` and `arguments` are the tool and the input of the call to approve. Postgres reads an input
-- only if the query selects it.
create or replace view public.open_questions with (security_invoker = true) as
select q.id, q.tool, gem.part_of(q.input, 'text') #>> '{}' as text, gem.answer_schema(q.tool, q.input) as schema, q.by,
  q.since, q.until, q.root,
  case when q.tool = 'wait.approval' then q.input end as input,
  case when q.tool = 'wait.approval' then gem.part_of(q.input, 'tool') #>> '{}' end as about,
  case when q.tool = 'wait.approval' then gem.part_of(q.input, 'input') end as arguments,
  q.call_id, q.asked_by, q.asked_for, q.place, q.of_asker, q.asker_open
from gem.open_questions(null) q;

-- Returns the open questions among at most a thousand calls. It considers only these calls, whereas open_questions may
-- omit one of thousands.
create or replace function public.find_open_questions(call_ids uuid[]) returns setof public.open_questions
language plpgsql stable security definer rows 1 set search_path = pg_catalog, pg_temp as $$
begin
  if cardinality(call_ids) > 1000 then
    perform gem.refuse('check_violation', 'find_open_questions takes at most 1000 calls, and got %s', null,
      cardinality(call_ids)::text);
  end if;
  return query
    select q.id, q.tool, q.input ->> 'text', gem.answer_schema(q.tool, q.input), q.by, q.since, q.until, q.root,
      case when q.tool = 'wait.approval' then q.input end,
      case when q.tool = 'wait.approval' then q.input ->> 'tool' end,
      case when q.tool = 'wait.approval' then q.input -> 'input' end,
      q.call_id, q.asked_by, q.asked_for, q.place, q.of_asker, q.asker_open
    from gem.open_questions(coalesce(call_ids, '{}')) q;
end
$$;

-- Lists the wait.* calls without their questions and answers, for dashboards that show who may answer and who asks
-- (gem.asked_for). of_handler: the call's parent waits for it. An index has the columns after `answered_at`.
create or replace view gem.questions as
select c.id as call_id, c.tool_name, c.status, coalesce(c.answer_by, '{}') as by,
  coalesce(c.answer_others, true) as others, c.created_by, c.session_id, c.parent_call_id, c.asked_for,
  c.parent_step is not null as of_handler, c.created_at as since, c.answer_until as until, c.cancel_requested_at,
  e.by as answered_by, e.at as answered_at, c.waits_for, c.computed_key, c.level, c.seq
from public.core_tool_calls c
left join lateral (
  select a.data ->> 'by' as by, a.at from public.core_tool_events a
  where a.call_id = c.id and a.event = 'answered' and a.data ->> 'name' = '#answer') e on true
where c.tool_name in ('wait.answer', 'wait.approval', 'wait.event');

-- Wakes a call that waits for children, answers, times or code, so that a worker runs it again. Returns false if the
-- call waits for none of these.
create or replace function gem.resume(p_call uuid) returns boolean language plpgsql set search_path = pg_catalog,
  pg_temp as $$
begin
  perform from public.core_tool_calls c where c.id = p_call and c.status = 'waiting'
    and c.waits_for <> 'key' for no key update;
  if found then
    perform gem.wake(p_call, null);
  end if;
  return found;
end
$$;

select gem.grant_to('gem_monitor', 'select on gem.questions');
revoke all on all functions in schema gem from public;

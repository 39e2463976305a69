-- Answers: values that someone outside puts into the journal of a call that has not ended. The tools wait.answer, wait.approval and
-- wait.event do nothing but wait for one, so a question is a call; any other durable handler can wait for one, too.
--
--   answered   {name, value, by}     by is the subject that gave the answer: see gem.subject
--
-- The names of answers begin with #, which no other name in a journal does: an answer cannot pass for something that the handler did or for
-- the end of a call that it made.
--
-- Who may answer a wait.* call stands in `by` of its input: `owner` (its created_by), `user:SUBJECT`, `role:ROLE` (see gem.roles), `service`.
-- service_role, whoever has the rights of the owner of these functions, and members of gem_operator may answer for anyone, but for approvals. Any
-- other call is answered by its created_by and by these.

-- Who calls: the token's `sub`; service_role; or the session's user, where there is no token. Null for a token without a subject.
create or replace function gem.subject() returns text language sql stable as $$
  select case when gem.token_claims() is null then session_user::text
    when gem.token_claims() ->> 'role' = 'service_role' then 'service_role'
    else nullif(nullif(gem.token_claims() ->> 'sub', ''), 'service_role') end
$$;

-- Reports whether the caller of a function of the owner may answer for anyone.
create or replace function gem.answers_for_all() returns boolean language sql stable as $$
  select case when gem.token_claims() is null
      then pg_has_role(session_user, current_user, 'member') or coalesce(pg_has_role(session_user, to_regrole('gem_operator'), 'member'), false)
    else coalesce(gem.token_claims() ->> 'role' = 'service_role', false) end
$$;

-- Reports whether a tool does nothing but wait for an answer.
create or replace function gem.asks(p_tool text) returns boolean language sql immutable as $$
  select coalesce(p_tool in ('wait.answer', 'wait.approval', 'wait.event'), false)
$$;

-- Returns who asks in a wait.* call; null for other calls:
--   rule     a rule: the text, people and arguments are those of the file of rules and of the call that it stopped
--   handler  the code of a handler: it chose the text and the people to ask
--   user     a frontend inserted the question, or a model or a document chose it for a handler (gem.wait then passes p_said): its text, its people
--            and everything else in it are unverified
-- Frontends can write neither parent_step nor asked_for.
create or replace function gem.asked_for(p_tool text, p_step text, p_said text) returns text language sql immutable as $$
  select case when not gem.asks(p_tool) then null when p_step like '##%' then 'rule' when p_step is null or p_said = 'user' then 'user' else 'handler' end
$$;

-- Returns the people who may answer a wait.* call, as entries of `by`.
create or replace function gem.answerers(p_tool text, p_input jsonb) returns jsonb language sql immutable as $$
  select case when jsonb_typeof(p_input -> 'by') = 'array' then p_input -> 'by'
    when p_tool = 'wait.answer' then '["owner"]'
    when p_tool = 'wait.event' then '["service"]'
    else '[]' end
$$;

-- Reports whether `by` names a role that is closed to users.
create or replace function gem.is_closed(p_by jsonb) returns boolean language sql stable as $$
  select exists (select from gem.role_settings s where p_by ? ('role:' || s.role))
$$;

-- Refuses a user's question to a closed role.
create or replace function gem.check_roles(p_by jsonb) returns void language plpgsql stable as $$
declare
  closed text;
begin
  select s.role into closed from gem.role_settings s where p_by ? ('role:' || s.role) order by s.role limit 1;
  if found then
    perform gem.refuse('PT403', 'the role %s is closed to questions from users',
      'Rules and handlers may ask it. The owner of the database can open it: gem roles open %1$s', closed);
  end if;
end
$$;

-- Reports whether anyone other than its caller may answer a question.
create or replace function gem.asks_others(p_tool text, p_input jsonb, p_created_by text) returns boolean language sql immutable as $$
  select gem.answerers(p_tool, p_input) - array['owner', 'user:' || coalesce(p_created_by, '')] <> '[]'
$$;

-- Refuses a signed-in user's questions if more are open to others than gem.limits allows. Inserts of one user take turns. Questions that a model chose
-- are counted without a lock, so each agent of the user that asks at the same moment may add one.
create or replace function gem.check_questions(p_created_by text) returns void language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  most integer := (select l.max_open_questions from gem.limits l);
begin
  if most < (
    select count(*) from (
      select from public.core_tool_calls c
      where c.created_by = p_created_by and c.status in ('queued', 'waiting', 'running') and c.asked_for = 'user'
        and gem.asks_others(c.tool_name, c.input, c.created_by)
      limit most + 1) open) then
    perform gem.refuse('PT429', 'too many open questions to others: you may have %s', 'Wait for answers, or cancel some of them.',
      most::text);
  end if;
end
$$;

-- Reports whether the caller may answer a call.
create or replace function gem.may_answer(p_call uuid, p_tool text, p_input jsonb, p_created_by text) returns boolean
language plpgsql stable as $$
declare
  who      text    := gem.subject();
  named    jsonb   := gem.answerers(p_tool, p_input);
  approval boolean := coalesce(p_tool = 'wait.approval', false);
begin
  if who is null then
    return false;
  elsif not gem.asks(p_tool) then
    return coalesce(p_created_by = who, false) or gem.answers_for_all();
  end if;
  -- Each query is in a condition of its own: Postgres would run it even where the rest of the condition has decided.
  if coalesce(p_input -> 'others', to_jsonb(approval)) <> 'false' then
    if gem.token_claims() -> 'gem_other_name' = 'true' then
      return false; -- the dashboard knows this person by another name than the calls may have
    end if;
    if exists (select from gem.ancestors(p_call, false) a where a.created_by = who or a.depth = 100 or exists (
      select from public.core_tool_events e where e.call_id = a.id and e.seq = 1 and who in (e.data ->> 'by', e.data ->> 'login'))) then
      return false; -- it takes someone else than the one who asks, or asks again (gem.operator_again), who cannot be seen beyond a hundred generations
    end if;
  end if;
  if not approval and (coalesce(named ? 'owner' and p_created_by = who, false) or gem.answers_for_all()) then
    return true;
  end if;
  return named ? ('user:' || who) or exists (select from gem.roles r where r.subject = who and named ? ('role:' || r.role));
end
$$;

-- The schema that an answer must fit, as JSON Schema; null: anything.
create or replace function gem.answer_schema(p_tool text, p_input jsonb) returns jsonb language sql immutable as $$
  select case p_tool
    when 'wait.approval' then '{"type": "object", "required": ["approved"],
      "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string", "maxLength": 1000}}}'
    when 'wait.answer' then coalesce(p_input -> 'schema', '{"type": "string"}')
    when 'wait.event' then p_input -> 'schema' end
$$;

-- The time until which a wait.* call takes an answer. An input that says something else is refused by its worker.
create or replace function gem.until_of(p_input jsonb) returns timestamptz language plpgsql stable as $$
begin
  return p_input ->> 'until';
exception when others then
  return null;
end
$$;

-- Returns where a value does not fit a flat schema, as a template and its words for gem.refuse, or null if it fits. A flat schema has text, numbers and
-- booleans, or an object of only such fields. The input schema of wait.answer allows no other keywords. A template lists at most eight names.
create or replace function gem.misfit(p_value jsonb, p_schema jsonb, p_path text default '') returns text[] language plpgsql immutable as $$
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
  if kind is distinct from replace(wanted, 'integer', 'number') or wanted = 'integer' and scale(p_value::numeric) > 0 then
    return array[form || ' must be of type %s, and is ' || case when kind = 'string' then 'the text %s' else '%s' end] || place || wanted || said;
  elsif p_schema ? 'enum' and not p_schema -> 'enum' @> jsonb_build_array(p_value) then
    names := array(select e #>> '{}' from jsonb_path_query(p_schema, '$.enum[*]') e limit 9);
    return array[form || ' must be one of ' || gem.listed(names) || ', and is %s'] || place || names[:8] || said;
  elsif kind = 'string' and (length(said) < (p_schema ->> 'minLength')::numeric or length(said) > (p_schema ->> 'maxLength')::numeric) then
    return array[form || ' has %s characters, and must have ' || case when p_schema ? 'maxLength' then '%s to %s' else 'at least %s' end]
      || place || length(said)::text || coalesce(p_schema ->> 'minLength', '0') || (p_schema ->> 'maxLength');
  elsif kind = 'number' and p_value::numeric < (p_schema ->> 'minimum')::numeric then
    return array[form || ' is %s, and must be at least %s'] || place || said || (p_schema ->> 'minimum');
  elsif kind = 'number' and p_value::numeric > (p_schema ->> 'maximum')::numeric then
    return array[form || ' is %s, and must be at most %s'] || place || said || (p_schema ->> 'maximum');
  elsif kind = 'object' then
    for field in select r.value #>> '{}' as name from jsonb_array_elements(p_schema -> 'required') r where not p_value ? (r.value #>> '{}') loop
      return array[form || ' needs the field %s'] || place || field.name;
    end loop;
    for field in select * from jsonb_each(p_value) loop
      if not coalesce(p_schema -> 'properties' ? field.key, false) then
        names := array(select k from jsonb_object_keys(p_schema -> 'properties') k order by k limit 9);
        return array[form || ' has a field %s, and takes only ' || gem.listed(names)] || place || field.key || names[:8];
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

-- Counts a signed-in user's answer of so many bytes, or refuses it if the user's answers of the last hour reach the limits for calls.
create or replace function gem.count_answer(p_who text, p_bytes integer) returns void language plpgsql as $$
declare
  now  timestamptz := gem.now();
  most gem.limits;
  past record;
begin
  select * into most from gem.limits;
  perform pg_advisory_xact_lock(hashtextextended('gem.limits ' || p_who, 0)); -- one request of a user after another
  select count(*) as answers, coalesce(sum(a.bytes), 0) as bytes into past from (
    select g.bytes from gem.answers g where g.subject = p_who and g.at > now - interval '1 hour' and g.at <= now
    order by g.at desc limit most.max_calls_per_hour) a;
  if past.answers >= most.max_calls_per_hour or past.bytes >= most.max_bytes_per_hour then
    perform gem.refuse('PT429', 'too many answers in an hour', 'Try again later.');
  end if;
  insert into gem.answers values (p_who, now, p_bytes);
end
$$;

-- Removes what no longer counts, ten thousand at most.
create or replace function gem.forget_answers() returns void language plpgsql as $$
declare
  before timestamptz := gem.now() - interval '1 hour';
begin
  delete from gem.answers where ctid = any (array(
    select g.ctid from gem.answers g where g.at < before order by g.at limit 10000 for update skip locked));
end
$$;

-- Refuses a token that a login set itself: it counts for the owner, and for a login that may become a role of frontends, such as one of gem_door. Any
-- login can set request.jwt.claims, and gem_operator may execute answer_tool_call as itself alone.
create or replace function gem.check_token() returns void language plpgsql stable as $$
begin
  if gem.token_claims() is not null and not pg_has_role(session_user, current_user, 'member')
    and not exists (select from gem.api_roles() r where pg_has_role(session_user, r::name, 'member')) then
    perform gem.refuse('PT403', '%s may answer only as itself', null, session_user::text);
  end if;
end
$$;

-- Puts an answer into the journal of a call that has not ended, before it is waited for or in time, and wakes a call that waited for it. Returns
-- 'answered', also for the same answer of the same subject, at any time. Any other answer after that is refused. PostgREST answers with the
-- HTTP status that an error's code names. The second answer for which a handler waits under a name has the name with #2 behind it, and so on.
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
  answered_at timestamptz;
begin
  perform gem.check_token();
  select c.id, c.tool_name, c.input, c.created_by, gem.asks(c.tool_name) as asks into call
  from public.core_tool_calls c where c.id = call_id;
  if call.id is null or not gem.may_answer(call.id, call.tool_name, call.input, call.created_by) then
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

  select c.status, c.cancel_requested_at is not null into state, cancelled
  from public.core_tool_calls c where c.id = call_id for no key update;
  now := gem.now(); -- after the wait for the row
  select e.data, e.at into given, answered_at from public.core_tool_events e
  where e.call_id = call_id and e.event = 'answered' and e.data ->> 'name' = '#' || name;
  if given -> 'value' = value and given ->> 'by' = who then
    return 'answered';
  elsif given is not null and call.tool_name = 'wait.approval' then
    perform gem.refuse('PT409', 'call %s was already %s by %s at ' || to_char(answered_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC'),
      null, call_id::text, case given -> 'value' ->> 'approved' when 'true' then 'approved' else 'denied' end, given ->> 'by');
  elsif given is not null then
    perform gem.refuse('PT409', 'call %s already has another answer, by %s', null, call_id::text, given ->> 'by');
  elsif coalesce(gem.is_final(state), true) then
    perform gem.refuse('PT409', 'call %s has ended as %s, and takes no answer', null, call_id::text, coalesce(state, 'pruned'));
  end if;

  if call.asks and cancelled then
    perform gem.refuse('PT409', 'call %s is being cancelled, and takes no answer', null, call_id::text);
  end if;
  if call.asks and gem.until_of(call.input) <= now or exists (
    select from public.core_tool_events e where e.call_id = call_id and e.event = 'timed_out' and e.data -> 'names' ? ('#' || name)) then
    perform gem.refuse('PT410', 'the time for this answer to call %s is over', null, call_id::text);
  elsif (select count(*) from public.core_tool_events e where e.call_id = call_id and e.event = 'answered') >= 100 then
    perform gem.refuse('PT429', 'call %s has 100 answers, and takes no more', null, call_id::text);
  end if;
  wrong := gem.misfit(value, gem.answer_schema(call.tool_name, call.input));
  if wrong is not null then
    perform gem.refuse('PT422', wrong[1], null, variadic wrong[2:]);
  end if;
  if claims is not null and claims ->> 'role' is distinct from 'service_role' then
    perform gem.count_answer(who, pg_column_size(value));
  end if;
  if not gem.came(call_id, 'answered', '#' || name, jsonb_build_object('value', value, 'by', who), null) then
    perform gem.refuse('PT503', 'the answer to call %s could not be written', 'Send it again.', call_id::text);
  end if;
  return 'answered';
end
$$;

-- Returns the wait.* calls that the caller may still answer. `by` are the people who may answer. For an approval, `about` and
-- `arguments` are the tool and the input of the call to approve. `call_id` is the call that waits for the answer.
--
-- `asked_for` is who asks (see gem.asked_for), and `asked_by` the created_by of the call, or null. `place` is the position in a list: questions of
-- rules and handlers come first, by deadline and age; then those of users, by age, the reader's own before others'; then those of users to closed
-- roles. `of_asker` numbers the open questions of one asked_by in each of these parts, and `asker_open` is how many there are. In each part, an
-- asker's sixth and later questions come after the first five of every other asker. Calls without created_by share no asker.
--
-- It reads the reader's own questions. Of the questions that name the reader, it reads up to 5,000 from rules and handlers and up to 5,000 from
-- users. For readers who may answer for all, it reads up to 5,000 of wait.answer and of wait.event of each kind of asker. It keeps 1,000 of each
-- part, so that each asker has a share.
create or replace function gem.open_questions() returns table (id uuid, tool text, text text, schema jsonb, by text[], since timestamptz,
  until timestamptz, root uuid, input jsonb, about text, arguments jsonb, call_id uuid, asked_by text, asked_for text, place bigint, of_asker bigint,
  asker_open bigint)
language plpgsql stable security definer rows 10 set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = on -- indexes find the few rows, and one of them supports only bitmaps
  set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  at    timestamptz := gem.now();
  who   text        := gem.subject();
  words text[]      := 'user:' || who || array(select 'role:' || r.role from gem.roles r where r.subject = who);
begin
  return query
  with found as (
    select o.id, o.asked_for = 'user' as of_user, o.created_by, o.created_at from public.core_tool_calls o
    where o.created_by = who and o.waits_for = 'answer' and o.asked_for is not null and o.status in ('queued', 'waiting', 'running') -- as its index has it
    union
    (select o.id, false, o.created_by, o.created_at from public.core_tool_calls o
     where o.waits_for = 'answer' and o.asked_for <> 'user' and o.input -> 'by' ?| words limit 5000)
    union
    (select o.id, true, o.created_by, o.created_at from public.core_tool_calls o
     where o.waits_for = 'answer' and o.asked_for = 'user' and o.input -> 'by' ?| words limit 5000)
    union -- an approval is only for the people whom it names
    select q.id, asking.kind = 'user', q.created_by, q.created_at
    from (select t.tool, k.kind from unnest(array['wait.answer', 'wait.event']) t (tool), unnest(array['rule', 'handler', 'user']) k (kind)) asking, lateral (
      select o.id, o.created_by, o.created_at from public.core_tool_calls o
      where o.status = 'waiting' and o.waits_for = 'answer' and o.computed_key is null and o.tool_name = asking.tool and o.asked_for = asking.kind
      order by o.computed_key, o.level desc, o.seq limit 5000) q -- as the index has it
    where (select gem.answers_for_all())
  ), numbered as (
    select f.id, f.of_user, f.created_at, row_number() over (partition by f.of_user, coalesce(f.created_by, f.id::text) order by f.created_at, f.id) as nth
    from found f
  ), shared as (
    select n.id, row_number() over (partition by n.of_user order by n.nth, n.created_at, n.id) as nth from numbered n
  ), open as (
    select c.*, c.asked_for = 'user' as of_user, gem.answerers(c.tool_name, c.input) as named, case when c.input ? 'until' then gem.until_of(c.input) end as ends
    from shared s join public.core_tool_calls c on c.id = s.id
    where s.nth <= 1000 and c.waits_for = 'answer' and (not c.input ? 'until' or coalesce(gem.until_of(c.input) > at, true))
      and gem.may_answer(c.id, c.tool_name, c.input, c.created_by)
  ), part as (
    select o.*, case when not o.of_user then 1 when gem.is_closed(o.named) then 3 else 2 end as part, coalesce(o.created_by, o.id::text) as asker,
      case when not o.of_user then coalesce(o.ends, 'infinity') end as due, o.of_user and o.created_by is distinct from who as of_other -- users choose the deadlines of their own
    from open o
  ), turn as (
    select p.*, row_number() over (partition by p.part, p.asker order by p.due, p.created_at, p.id) as nth,
      count(*) over (partition by p.part, p.asker) as of_all
    from part p
  )
  select t.id, t.tool_name, t.input ->> 'text', gem.answer_schema(t.tool_name, t.input), array(select jsonb_array_elements_text(t.named)), t.created_at, t.ends,
    case when t.parent_call_id is null then t.id
      else (select a.id from gem.ancestors(t.id, false) a order by a.depth desc limit 1) end,
    case when t.tool_name = 'wait.approval' then t.input end,
    case when t.tool_name = 'wait.approval' then t.input ->> 'tool' end,
    case when t.tool_name = 'wait.approval' then t.input -> 'input' end,
    case when t.parent_step is not null then t.parent_call_id end, t.created_by, t.asked_for,
    row_number() over (order by t.part, t.of_other, t.nth > 5, t.due, t.created_at, t.id), t.nth, t.of_all
  from turn t
  order by 15;
end
$$;
create or replace view public.open_questions with (security_invoker = true) as select * from gem.open_questions();

-- The wait.* calls without their questions and answers: for dashboards, which show who may answer and who asks (gem.asked_for). of_handler: its parent
-- waits for it. The columns after `answered_at` are those of an index.
create or replace view gem.questions as
select c.id as call_id, c.tool_name, c.status, array(select jsonb_array_elements_text(gem.answerers(c.tool_name, c.input))) as by,
  coalesce(c.input -> 'others', to_jsonb(c.tool_name = 'wait.approval')) <> 'false' as others, c.created_by, c.session_id, c.parent_call_id,
  c.asked_for, c.parent_step is not null as of_handler, c.created_at as since, gem.until_of(c.input) as until,
  c.cancel_requested_at, e.by as answered_by, e.at as answered_at, c.waits_for, c.computed_key, c.level, c.seq
from public.core_tool_calls c
left join lateral (
  select a.data ->> 'by' as by, a.at from public.core_tool_events a
  where a.call_id = c.id and a.event = 'answered' and a.data ->> 'name' = '#answer') e on true
where c.tool_name in ('wait.answer', 'wait.approval', 'wait.event');

-- Wakes a call that waits for what its handler asked for, so that the handler looks again. Returns false if it does not wait for that.
create or replace function gem.resume(p_call uuid) returns boolean language plpgsql as $$
begin
  perform from public.core_tool_calls c where c.id = p_call and c.status = 'waiting' and c.waits_for <> 'key' for no key update;
  if found then
    perform gem.wake(p_call, null);
  end if;
  return found;
end
$$;

select gem.grant_to('gem_monitor', 'select on gem.questions');
select gem.grant_to('gem_monitor', 'execute on function gem.answerers(text, jsonb), gem.until_of(jsonb)');
revoke all on all functions in schema gem from public;

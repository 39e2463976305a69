-- Triggers that check the rows of calls, receipts and journals, for every writer. They cost less than check
-- constraints, because Postgres parses constraints, and the WHEN of triggers, again in each statement.

------------------------------------------------------------------------------------------------------------------------
-- A new call: the columns that a frontend may set, and their defaults
------------------------------------------------------------------------------------------------------------------------

-- Returns the level of a caller's call in the queue. It is the priority, or a background level (see gem.claim) if the
-- caller's other calls would take a quarter of all slots. The function counts queued calls, running calls and waiters
-- for a key. A call that waits for anything else needs no slot.
create or replace function gem.level_of(p_created_by text, p_priority integer) returns integer
  language plpgsql stable as $$
declare
  at    timestamptz := gem.now();
  share bigint;
begin
  select greatest(coalesce(sum(w.concurrency), 10) / 4, 1) into share
  from public.core_workers w where w.alive_until > at and w.stopped_at is null;
  if exists (
    select from public.core_tool_calls c
    where c.created_by = p_created_by and c.status in ('queued', 'waiting', 'running') and c.waits_for is null
    union all
    select from public.core_tool_calls c
    where c.created_by = p_created_by and c.status in ('queued', 'waiting', 'running') and c.waits_for = 'key'
    offset share - 1) then
    return greatest(least(p_priority, 0) - 500, -1000);
  end if;
  return p_priority;
end
$$;

-- Reports whether a caller may have another awaited call: at most 63 of its open calls are awaited, and it has fewer
-- than a thousand open calls.
create or replace function gem.may_await(p_created_by text) returns boolean language plpgsql as $$
begin
  return p_created_by is null or (
    select count(*) < 1000 and count(*) filter (where open.awaited) < 64
    from (select c.awaited from public.core_tool_calls c
      where c.created_by = p_created_by and c.status in ('queued', 'waiting', 'running') limit 1000) open);
end
$$;

-- Refuses a value that takes too many bytes as JSON, and numbers so large or small that only an attacker would send
-- them.
create or replace function gem.check_size(p_what text, p_value jsonb, p_most bigint) returns void
  language plpgsql stable as $$
declare
  bytes bigint;
begin
  -- This checks the size before the contents, because reading millions of values takes seconds. A jsonb value takes at
  -- most four times the bytes of its text: [0, 0] takes 12 bytes for each 0 with its comma. || returns the value
  -- uncompressed.
  if pg_column_size('{}'::jsonb || p_value) > 4 * p_most + 1024 then
    bytes := p_most + 1;
  -- Postgres stores 1e131071 in a few bytes, but prints it in 131,072, and 0e-16383 in 16,385. So this searches for
  -- such numbers before anything prints the value. jsonb_path_query would take quadratic time.
  elsif exists (
    select from jsonb_array_elements(jsonb_path_query_array(p_value,
      'strict $.** ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308 || @ < 1e-400 && @ > -1e-400)'))
        as odd (number)
    where odd.number::numeric <> 0 or scale(odd.number::numeric) > 400) then
    perform gem.refuse('check_violation',
      p_what || ' has a number beyond 1.7976931348623157e308, or nearer to 0 than 1e-400', 'Send it as text.');
  else
    bytes := octet_length(p_value::text);
  end if;
  if bytes > p_most then
    perform gem.refuse('check_violation',
      p_what || case when bytes = p_most + 1 then ' takes more than %2$s'
        else ' takes %1$s' end || ' bytes as JSON, and may take %2$s',
      'Store large content elsewhere, and send its id or a link to it.', bytes::text, p_most::text);
  end if;
end
$$;

-- Refuses a question that asks for too many fields, has unreadable field names, or names too many people. The worker
-- checks the rest of the input.
create or replace function gem.check_question(p_input jsonb) returns void language plpgsql stable as $$
declare
  fields constant jsonb := case when jsonb_typeof(p_input #> '{schema,properties}') = 'object' then
    p_input #> '{schema,properties}' else '{}' end;
  odd    text;
begin
  if jsonb_typeof(p_input -> 'by') = 'array' and jsonb_array_length(p_input -> 'by') > 20 then
    perform gem.refuse('check_violation', 'by has %s entries, and may have at most 20', null,
      jsonb_array_length(p_input -> 'by')::text);
  end if;
  select k into odd from jsonb_object_keys(fields) k where k !~ '^[^\x01-\x1f\x7f-\x9f\u2028\u2029]{1,100}$' limit 1;
  if odd is not null then
    perform gem.refuse('check_violation',
      'schema has the field %s, and a field name has 1 to 100 characters and no control characters', null, odd);
  elsif (select count(*) from jsonb_object_keys(fields)) > 50 then
    perform gem.refuse('check_violation', 'schema has %s fields, and may have at most 50', null,
      (select count(*)::text from jsonb_object_keys(fields)));
  end if;
end
$$;

-- Returns the first eight bytes of the ids that gem mcp derives from the keys of a user's calls to a tool, as UUIDs of
-- version 8: see rowID in mcp/key.go.
create or replace function gem.begin_of_key_ids(p_created_by text, p_tool text) returns bytea
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select set_byte(h.begin, 6, get_byte(h.begin, 6) & 15 | 128)
  from (
    select substring(sha256(string_agg(int8send(length(convert_to(part, 'UTF8'))) || convert_to(part, 'UTF8'), ''::bytea
      order by place)) for 8) as begin
    from unnest(array['gem mcp', coalesce(p_created_by, ''), p_tool]) with ordinality p (part, place)) h
$$;

create or replace function gem.before_insert_call() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at     timestamptz := gem.now();
  claims jsonb       := gem.token_claims();
  header text;
  most   gem.limits;
  cap    bigint      := 1048576; -- bytes of the input, as JSON
  -- number of calls that a user inserted in this transaction
  sent   bigint      := nullif(current_setting('gem.sent', true), '');
  asked  boolean; -- a question that waits from the start
begin
  -- A bulk insert through PostgREST sends null for omitted columns.
  new.id       := coalesce(new.id, gem.new_id(at));
  new.input    := coalesce(new.input, '{}');
  new.status   := coalesce(new.status, 'queued');
  new.priority := coalesce(new.priority, 0);
  new.idempotency_key := nullif(new.idempotency_key, '');
  if current_setting('gem.again', true) = new.id::text then -- gem.insert_call_of has written the first event
    at := coalesce((select e.at from public.core_tool_events e where e.call_id = new.id and e.seq = 1), at);
  end if;

  -- frontends cannot write parent_step
  asked := new.status = 'waiting' and new.parent_step is not null and gem.asks(new.tool_name);
  if new.status <> 'queued' and asked is not true then
    perform gem.refuse('check_violation', 'status is %s on insert, and can only be queued',
      'Leave status out: workers change it.', new.status);
  end if;
  if coalesce(new.tool_name, '') = '' or length(new.tool_name) > 200 then
    perform gem.refuse('check_violation',
      'tool_name must be the name of a tool, of 1 to 200 characters, such as leads.create');
  end if;
  if jsonb_typeof(new.input) <> 'object' then
    perform gem.refuse('check_violation', 'input must be a JSON object but is '
        || case jsonb_typeof(new.input) when 'null' then 'null' when 'array' then 'an array'
          else 'a ' || jsonb_typeof(new.input) end,
      'Send {"field": value, ...}, not a string that contains JSON.');
  end if;
  if claims is not null and claims ->> 'role' is distinct from 'service_role' then
    select * into most from gem.limits;
    cap := least(cap, most.max_input_bytes);
  end if;
  if length(new.idempotency_key) > 255 then
    perform gem.refuse('check_violation', 'idempotency_key may have at most 255 characters');
  end if;
  if length(new.session_id) > 255 then
    perform gem.refuse('check_violation', 'session_id may have at most 255 characters');
  end if;
  if new.priority not between -1000 and 1000 then
    perform gem.refuse('check_violation', 'priority is %s, and must be from -1000 to 1000', null, new.priority::text);
  end if;
  if new.run_at > at + interval '366 days' then
    perform gem.refuse('check_violation', 'run_at is %s, and may be at most 366 days ahead', null, new.run_at::text);
  end if;
  if new.traceparent !~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
    perform gem.refuse('check_violation', 'traceparent must be a W3C trace context of version 00',
      'Such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, or leave it out.');
  end if;

  -- A past run_at means now, so that it cannot overtake other calls.
  new.run_at := greatest(new.run_at, at);
  if new.parent_step is null then -- a child takes these values from its parent
    new.signed_in := claims is not null and claims ->> 'role' is distinct from 'service_role'
      -- gem.operator_again repeats a signed-in user's call
      or claims is null and new.signed_in and coalesce(current_setting('gem.again', true) = new.id::text, false);
  end if;
  if new.signed_in and new.parent_step is null and exists (select from gem.tools t where t.name = new.tool_name
    and not t.frontends) then
    perform gem.refuse('insufficient_privilege', '%s is closed to signed-in users',
      'A server may call it with a secret key. The registry''s owner can open it: "frontends": true in its entry.',
        new.tool_name);
  end if;
  if claims is not null then
    if claims ->> 'role' is distinct from 'service_role' or new.created_by is null then
      new.created_by := nullif(claims ->> 'sub', ''); -- service_role may act for another user
    end if;
    header := nullif(current_setting('request.headers', true), '')::jsonb ->> 'traceparent';
    if new.traceparent is null and header ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' then
      new.traceparent := header;
    end if;
  end if;
  if length(new.created_by) > 255 then
    perform gem.refuse('check_violation', 'created_by may have at most 255 characters');
  end if;
  -- Anybody can compute the ids of another user's keys: a call under one of them would take that key from its user.
  -- gem.operator_again, which has no claims, may choose such an id.
  if new.signed_in and claims is not null and new.parent_step is null and get_byte(uuid_send(new.id), 6) >> 4 = 8
    and substring(uuid_send(new.id) for 8) <> gem.begin_of_key_ids(new.created_by, new.tool_name) then
    perform gem.refuse('check_violation', 'the id %s is a UUID of version 8, which gem mcp derives from keys',
      'Choose an id of another version, such as 4 or 7, or leave it out.', new.id::text);
  end if;
  if most is not null then -- refuses too many calls before it writes them; gem.after_insert_calls counts earlier calls
    sent := coalesce(sent, 0) + 1;
    if sent > most.max_open_calls then
      perform gem.refuse('PT429', 'too many open calls: you may have %s that have not ended',
        'Send less in one request.',
        most.max_open_calls::text);
    end if;
    perform set_config('gem.sent', sent::text, true);
  end if;
  if most is not null and new.priority not between most.min_priority and most.max_priority then
    perform gem.refuse('check_violation', 'priority is %s, and must be from %s to %s', null,
      new.priority::text, most.min_priority::text, most.max_priority::text);
  end if;
  perform gem.check_size('input', new.input, cap); -- after the checks that cost less
  new.asked_for := gem.asked_for(new.tool_name, new.parent_step, new.asked_for);
  if new.asked_for is not null then
    if new.parent_step is null then
      perform gem.check_question(new.input);
    end if;
    new.answer_by := gem.answerers(new.tool_name, new.input);
    new.answer_others := gem.asks_only_others(new.tool_name, new.input);
    new.answer_until := gem.until_of(new.input);
    if new.asked_for = 'user' and (new.signed_in or new.parent_step is not null) then
      perform gem.check_roles(new.answer_by);
    end if;
  end if;
  new.level := new.priority;
  if new.created_by is not null and new.priority > -500 and asked is not true then -- it needs no slot
    -- The requests of one caller take turns. Concurrent ones would not count each other.
    if most is not null then
      perform pg_advisory_xact_lock(hashtextextended('gem.limits ' || new.created_by, 0));
    end if;
    new.level := gem.level_of(new.created_by, new.priority);
  end if;
  if new.awaited is not null and not (new.awaited and gem.may_await(new.created_by)) then
    new.awaited := null;
  end if;

  new.created_at := at;
  new.updated_at := at;
  new.attempt := 0;
  new.claimed_by := null;
  new.claimed_at := null;
  new.error := null;
  new.cancel_requested_at := null;
  new.computed_key := null;
  new.waits_for := null;
  new.waits := null;
  new.need := null;
  new.steps := 0;
  new.needs := null;
  new.placed := false;
  new.retries := 0;
  new.losses := 0;
  new.kills := 0;
  new.events := 1;
  if asked then -- see gem.question_waits
    new.waits_for := 'answer';
    new.waits := '{#answer}';
    new.need := 1;
    new.steps := 1;
    new.events := 2;
    new.wake_at := least(new.wake_at, new.answer_until);
  else
    new.wake_at := null;
  end if;
  return new;
end
$$;

-- Enforces the limits of signed-in users, writes the first event of each call, adds missing levels, and notifies idle
-- workers.
create or replace function gem.after_insert_calls() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at     timestamptz := gem.now(); -- evaluated once, so that the index is used
  claims jsonb       := gem.token_claims();
  caller text        := nullif(claims ->> 'sub', '');
  most   gem.limits;
  worst  record;
  past   record;
  above  uuid[]; -- the parents that the calls name
  parent uuid;
begin
  if claims is not null and claims ->> 'role' is distinct from 'service_role' then
    select * into most from gem.limits;
    select max(i.run_at) as run_at, count(*) as calls, min(i.created_at) as since,
        bool_or(case when i.asked_for = 'user' then gem.asks_others(i.answer_by, i.created_by) end) as asks
      into worst from inserted i;
    if worst.run_at > at + most.max_run_ahead then
      perform gem.refuse('check_violation', 'run_at is %s, and may be at most %s ahead', null, worst.run_at::text,
        most.max_run_ahead::text);
    end if;
    if worst.calls > 0 then
      -- The requests of one caller take turns. Concurrent ones would not count each other.
      perform pg_advisory_xact_lock(hashtextextended('gem.limits ' || caller, 0));
      if most.max_open_calls < (
        select count(*) from (
          select from public.core_tool_calls c
          where c.created_by = caller and c.status in ('queued', 'waiting', 'running') and c.parent_step is null
          limit most.max_open_calls + 1) open) then
        perform gem.refuse('PT429', -- PostgREST returns the HTTP status 429
          'too many open calls: you may have %s that have not ended',
            'Wait until some have their receipt, or cancel them.',
          most.max_open_calls::text);
      end if;
      if worst.asks then
        perform gem.check_questions(caller);
      end if;
      select * into past from (
        select c.created_at, row_number() over newest as calls, sum(pg_column_size(c.input)) over newest as bytes
        from (
          select c.created_at, c.input from public.core_tool_calls c
          -- the clock may have gone back
          where c.created_by = caller and c.created_at > at - interval '1 hour' and c.created_at <= at
            and c.parent_step is null
          order by c.created_at desc limit most.max_calls_per_hour + 1) c
        window newest as (order by c.created_at desc rows unbounded preceding)) volume
      where volume.calls > most.max_calls_per_hour or volume.bytes > most.max_bytes_per_hour
      order by volume.calls limit 1;
      if found then
        perform gem.refuse('PT429',
          case when past.calls > most.max_calls_per_hour then 'too many calls in an hour: you may make %1$s'
            else 'too much input in an hour: you may send %2$s bytes' end,
          case when past.created_at >= worst.since then 'Send less in one request.'
            else 'Try again at %3$s. Calls that have ended count too.' end,
          most.max_calls_per_hour::text, most.max_bytes_per_hour::text,
          to_char((past.created_at + interval '1 hour') at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
      end if;
    end if;
  end if;

  -- A foreign key would cost a lookup for every call, and at each change of its state. The lock keeps gem.prune from
  -- removing the parent. A connection keeps the plans of its first insert, which may be large. The array and the
  -- offsets make these plans read calls and events by id.
  above := array(select distinct i.parent_call_id from inserted i where i.parent_call_id is not null);
  if above <> '{}' then
    perform from public.core_tool_calls p where p.id = any (array(select unnest(above))) order by p.id for key share;
    if exists (
      select from inserted i where i.parent_call_id is not null and not exists (
        select from public.core_tool_calls p where p.id = i.parent_call_id
          and (most is null or p.created_by = caller) offset 0)) then
      perform gem.refuse('foreign_key_violation', 'parent_call_id names no call' || case when most is null then ''
        else ' of yours' end);
    end if;
  end if;

  -- A list of questions reads the callers of all calls above each question, so a user's chain of calls is bounded.
  -- Handlers add at most eight generations (gem.wait).
  if most is not null then
    foreach parent in array above loop
      if (select max(a.depth) from gem.ancestors(parent, false) a) >= 8 then
        perform gem.refuse('check_violation', 'call %s has 8 or more calls above it, and may not be a parent',
          'Name one of the calls above it as the parent, or leave parent_call_id out. '
            'To group calls, give them the same session_id.', parent::text);
      end if;
    end loop;
  end if;

  insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
  select id, 1, created_at, 'queued', 0, jsonb_build_object('run_at', run_at, 'priority', priority) from inserted i
  -- gem.operator_again and gem.insert_call_of have already written this event, with the operator
  where (i.parent_call_id is null or i.parent_step is not null)
      and current_setting('gem.again', true) is distinct from i.id::text
    or not exists (select from public.core_tool_events e where e.call_id = i.id and e.seq = 1 offset 0);

  insert into gem.levels
  select distinct level from inserted i where not exists (select from gem.levels l where l.level = i.level)
  order by level -- in the same order everywhere, because concurrent inserts could otherwise deadlock
  on conflict do nothing;

  if exists (select from inserted i where i.status = 'queued') then
    perform gem.wake_workers();
  end if;
  return null;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- Checks of each row
------------------------------------------------------------------------------------------------------------------------

-- Refuses changes to a call that has ended, and a call that lacks a column which its state requires.
create or replace function gem.check_call_change() returns trigger language plpgsql as $$
begin
  if old.status = 'queued' and new.status = 'running' then
    return new; -- a claim sets all columns that its state requires
  end if;
  if old.status in ('succeeded', 'failed', 'not_configured') then
    perform gem.refuse('insufficient_privilege',
      'update on core_tool_calls is refused: the call has ended, and its receipt is final');
  end if;
  if new.status in ('succeeded', 'failed', 'not_configured') then
    if new.attempt >= 0 and new.events >= 1 then
      return new;
    end if;
  elsif new.status = 'running' then
    if new.claimed_by is not null and new.claimed_at is not null and new.attempt >= 1 then
      return new;
    end if;
  elsif new.claimed_by is null and new.claimed_at is null then
    if new.status = 'queued' and new.retries >= 0 and new.losses >= 0
      or new.status = 'waiting' and (new.waits_for = 'key' and new.computed_key is not null
        or new.waits_for in ('call', 'answer', 'time') and new.need >= 1
        or new.waits_for = 'code' or new.waits_for = 'place' and new.placed) then
      return new;
    end if;
  end if;
  perform gem.refuse('check_violation', 'call %s cannot become %s in its present state',
    'It has claimed_by %3$s, claimed_at %4$s, attempt %5$s, computed_key %6$s, waits_for %7$s, need %8$s, '
      'retries %9$s, losses %10$s, events %11$s. '
      'Only the functions of the schema gem move calls.',
    old.id::text, new.status, new.claimed_by, new.claimed_at::text, new.attempt::text, new.computed_key, new.waits_for,
      new.need::text,
    new.retries::text, new.losses::text, new.events::text);
end
$$;

-- Refuses a receipt that lacks fields which its outcome requires.
create or replace function gem.check_receipt() returns trigger language plpgsql as $$
begin
  if new.replay_of is not null then
    -- This is not a foreign key, since the receipt may have been pruned and its key kept. Only gem.prune deletes
    -- receipts, and it keeps receipts that others repeat.
    perform from public.core_tool_receipts r where r.id = new.replay_of for key share;
    if not found then
      perform from gem.kept_keys k where k.key = new.idempotency_key and k.receipt_id = new.replay_of for key share;
    end if;
    if not found then
      perform gem.refuse('foreign_key_violation', 'there is no receipt %s to repeat', null, new.replay_of::text);
    end if;
    if new.status <> 'succeeded' or new.idempotency_key is null then
      perform gem.refuse('check_violation', 'a receipt that repeats another must be a success with a key');
    end if;
  end if;
  if new.status = 'succeeded' then
    if new.result is not null then
      return new;
    end if;
  elsif new.status = 'failed' then
    if new.result -> 'error' ->> 'error_code' is not null and new.result -> 'error' ->> 'message' is not null then
      return new;
    end if;
  elsif new.status = 'not_configured' then
    if new.result ->> 'status' = 'not_configured' and new.result ->> 'reason' is not null then
      return new;
    end if;
  end if;
  perform gem.refuse('check_violation', 'the result does not fit a receipt with the status %s',
    'failed needs error.error_code and error.message; not_configured needs status and reason.', new.status);
end
$$;

-- Refuses to change or delete written rows, even for the owner, because in most installations the worker connects as
-- the owner. Only deletions by gem.prune pass: the setting is on while that function runs, and the current user is its
-- owner only inside the function. An owner could fake both, but could also drop the trigger.
create or replace function gem.refuse_change() returns trigger language plpgsql set search_path = pg_catalog,
  pg_temp as $$
begin
  if tg_op = 'DELETE' and current_setting('gem.pruning', true) = 'on'
    and current_user = (select pg_get_userbyid(p.proowner) from pg_proc p
      where p.oid = 'gem.prune(uuid[], boolean, boolean)'::regprocedure) then
    return old;
  end if;
  perform gem.refuse('insufficient_privilege', '%s on %s is refused: ' || tg_argv[0], null, lower(tg_op),
    tg_table_name::text);
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- The triggers
------------------------------------------------------------------------------------------------------------------------

create or replace trigger gem_before_insert before insert on public.core_tool_calls
  for each row execute function gem.before_insert_call();
-- a trigger that reads the new rows cannot be replaced
drop trigger if exists gem_after_insert on public.core_tool_calls;
create trigger gem_after_insert after insert on public.core_tool_calls
  referencing new table as inserted for each statement execute function gem.after_insert_calls();
create or replace trigger gem_state_holds before update of id, status, tool_name, input, error, attempt, claimed_by,
  claimed_at,
    created_by, computed_key, parent_step, needs, retries, losses, kills, events
  on public.core_tool_calls for each row execute function gem.check_call_change();
create or replace trigger gem_removed_whole before delete on public.core_tool_calls
  for each row execute function gem.refuse_change('a call leaves with its receipt and its journal: see gem prune');
create or replace trigger gem_not_emptied before truncate on public.core_tool_calls
  for each statement execute function
    gem.refuse_change('a call leaves with its receipt and its journal: see gem prune');

create or replace trigger gem_outcome_holds before insert on public.core_tool_receipts
  for each row execute function gem.check_receipt();
create or replace trigger gem_written_once before update or delete on public.core_tool_receipts
  for each row execute function gem.refuse_change('a receipt is written once and stays');
create or replace trigger gem_not_emptied before truncate on public.core_tool_receipts
  for each statement execute function gem.refuse_change('a receipt is written once and stays');

create or replace trigger gem_append_only before update or delete on public.core_tool_events
  for each row execute function gem.refuse_change('the journal is append-only');
create or replace trigger gem_not_emptied before truncate on public.core_tool_events
  for each statement execute function gem.refuse_change('the journal is append-only');

revoke all on all functions in schema gem from public;

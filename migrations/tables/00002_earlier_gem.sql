-- Converts the calls and receipts of an earlier GEM, whose two tables have the same names. It adds columns and maps
-- rows to the states of this GEM, and loses nothing. On new tables, and on a second run, it changes nothing.

alter table public.core_tool_calls
  add column if not exists tool_name text, add column if not exists input jsonb,
    add column if not exists idempotency_key text,
  add column if not exists session_id text, add column if not exists parent_call_id uuid,
    add column if not exists created_by text,
  add column if not exists priority integer, add column if not exists level integer not null default 0,
    add column if not exists run_at timestamptz, add column if not exists traceparent text,
  add column if not exists awaited boolean, add column if not exists signed_in boolean not null default false,
    add column if not exists steps integer not null default 0,
  add column if not exists status text, add column if not exists attempt integer,
    add column if not exists claimed_by text,
  add column if not exists claimed_at timestamptz, add column if not exists error jsonb,
  add column if not exists cancel_requested_at timestamptz, add column if not exists created_at timestamptz,
  add column if not exists updated_at timestamptz, add column if not exists computed_key text,
    add column if not exists needs text,
  add column if not exists answer_by text[], add column if not exists answer_others boolean,
  add column if not exists answer_until timestamptz,
  add column if not exists asked_for text, add column if not exists parent_step text,
    add column if not exists waits_for text, add column if not exists waits text[],
  add column if not exists need integer, add column if not exists wake_at timestamptz,
  add column if not exists retries integer not null default 0,
    add column if not exists losses integer not null default 0,
  add column if not exists kills integer not null default 0,
  add column if not exists events integer not null default 0,
    add column if not exists seq bigint generated always as identity;
alter table public.core_tool_receipts
  add column if not exists call_id uuid, add column if not exists tool_name text, add column if not exists status text,
  add column if not exists result jsonb, add column if not exists effects jsonb,
    add column if not exists created_at timestamptz,
  add column if not exists attempt integer, add column if not exists worker_id text,
    add column if not exists registry_version text,
  add column if not exists idempotency_key text, add column if not exists replay_of uuid,
    add column if not exists duration interval;

-- The earlier constraints on status allow other values, and deleting a call deleted its receipts.
do $$
declare
  old record;
begin
  for old in
    select distinct c.conrelid::regclass as rel, c.conname
    from pg_constraint c
    join pg_attribute a on a.attrelid = c.conrelid and a.attnum = any (c.conkey)
    where c.conrelid in ('public.core_tool_calls'::regclass, 'public.core_tool_receipts'::regclass)
      and c.conname not like 'gem\_%'
      and (c.contype = 'c' and a.attname = 'status' or c.contype = 'f' and a.attname = 'call_id')
  loop
    execute format('alter table %s drop constraint %I', old.rel, old.conname);
  end loop;
end
$$;

-- Refuses rows that an earlier GEM never wrote, because their meaning is unknown.
do $$
declare
  unknown text;
begin
  select string_agg(format('%s %s', n, what), ', ' order by what) into unknown from (
    select count(*), case count(*) when 1 then 'call has' else 'calls have' end || ' the status '
      || coalesce(c.status, 'null')
    from public.core_tool_calls c
    where c.events = 0 and (c.status in ('queued', 'claimed', 'running', 'completed', 'succeeded', 'failed',
      'not_configured', 'cancelled')) is not true
      and not exists (select from public.core_tool_receipts r where r.call_id = c.id)
    group by c.status
    union all
    select count(*), case count(*) when 1 then 'receipt has' else 'receipts have' end || ' the status '
      || coalesce(r.status, 'null')
    from public.core_tool_receipts r
    where (r.status in ('succeeded', 'failed', 'not_configured')) is not true
    group by r.status
    union all
    select count(*), case count(*) when 1 then 'receipt has' else 'receipts have' end || ' no call_id'
    from public.core_tool_receipts r where r.call_id is null having count(*) > 0
  ) u (n, what);
  if unknown is not null then
    raise exception using errcode = 'check_violation',
      message = 'the tables of the earlier GEM have rows that it did not write: ' || unknown,
      hint = 'A call with the status queued will run, if nobody claimed it. One with claimed, running or completed'
        || ' ends as outcome_unknown, and one with succeeded, failed, not_configured or cancelled keeps its end.'
        || ' Receipts have a call_id, and the status succeeded, failed or not_configured.';
  end if;
end
$$;

-- If a call has two receipts, it keeps the receipt that agrees with its status, or otherwise the first. The other
-- receipt moves to gem.imported_second_receipts, and is removed with its call.
create table if not exists gem.imported_second_receipts (like public.core_tool_receipts);
alter table gem.imported_second_receipts
  alter column call_id drop not null, alter column tool_name drop not null, alter column status drop not null,
  alter column created_at drop not null, alter column attempt drop not null;
with ranked as (
  select r.id, row_number() over (partition by r.call_id order by (r.status = c.status) desc nulls last, r.created_at,
    r.id) as place
  from public.core_tool_receipts r
  left join public.core_tool_calls c on c.id = r.call_id
  where r.call_id is not null and r.attempt is null
), moved as (
  delete from public.core_tool_receipts r using ranked where ranked.id = r.id and ranked.place > 1 returning r.*
)
insert into gem.imported_second_receipts select * from moved;

-- Every call gets a state of this GEM, by its receipt, or otherwise by its own status. A queued call runs only if
-- nobody had claimed it. A call that may have run ends as outcome_unknown, because an earlier GEM did not record its
-- progress.
with state as (
  select c.id, c.status as was,
    case
      when r.id is not null then r.status
      when c.status in ('succeeded', 'failed', 'not_configured') then c.status
      when c.status = 'queued' and not claimed then 'queued'
      else 'failed'
    end as now,
    case
      when r.id is not null or c.status in ('succeeded', 'failed', 'not_configured') then null
      when c.status = 'cancelled' and not claimed then 'cancelled'
      when c.status <> 'queued' or claimed then 'outcome_unknown'
    end as code
  from public.core_tool_calls c
  left join public.core_tool_receipts r on r.call_id = c.id
  cross join lateral (
    select c.claimed_by is not null or c.claimed_at is not null or coalesce(c.attempt, 0) > 0 as claimed) l
  where c.events = 0
), moved as (
  update public.core_tool_calls c set
    status     = state.now,
    attempt    = case when state.now = 'queued' then 0 else 1 end,
    claimed_by = case when state.now = 'queued' then null else coalesce(c.claimed_by, 'unknown') end,
    claimed_at = case when state.now = 'queued' then null
      else coalesce(c.claimed_at, c.updated_at, c.created_at, clock_timestamp()) end,
    priority   = coalesce(c.priority, 0),
    level      = coalesce(c.priority, 0),
    created_at = coalesce(c.created_at, clock_timestamp()),
    updated_at = coalesce(c.updated_at, c.created_at, clock_timestamp()),
    run_at     = coalesce(c.run_at, c.created_at, clock_timestamp()),
    error      = case when code is null then c.error else jsonb_build_object('error_code', code, 'message', case code
      when 'cancelled' then 'The call was cancelled in an earlier GEM.'
      else 'An earlier GEM may have run the call, so it does not run again.' end, 'details', c.error) end,
    events     = 1
  from state where state.id = c.id
  returning c.*, state.was
)
insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
select id, 1, clock_timestamp(), 'imported', attempt,
       jsonb_build_object('status', status, 'was', was, 'claimed_by', claimed_by, 'run_at', run_at, 'priority',
         priority)
from moved;

insert into gem.levels select distinct level from public.core_tool_calls on conflict do nothing;

-- A call that ended without a receipt gets one, which contains only known facts.
insert into public.core_tool_receipts (id, call_id, tool_name, status, result, effects, created_at, attempt, worker_id)
select gen_random_uuid(), c.id, coalesce(c.tool_name, ''), c.status,
  case c.status
    when 'failed' then jsonb_build_object('error', case when c.error ->> 'error_code' is not null then c.error else
      jsonb_build_object('error_code', 'execution_error', 'message', 'The call failed before GEM kept receipts.',
                         'details', coalesce(c.error, 'null')) end)
    when 'not_configured' then jsonb_build_object('status', 'not_configured', 'required_env', '[]'::jsonb, 'next_steps',
      '[]'::jsonb,
      'reason', 'The call ended as not_configured before GEM kept receipts.')
  end,
  '{}', c.updated_at, c.attempt, c.claimed_by
from public.core_tool_calls c
where c.status in ('succeeded', 'failed', 'not_configured')
  and not exists (select from public.core_tool_receipts r where r.call_id = c.id);

-- Earlier successes keep their keys: the first receipt of each key gets it.
with keyed as (
  select distinct on (tool_name, k ->> 'key_field', value) id,
    -- The same form as receipts.Key in Go.
    tool_name || ':' || (k ->> 'key_field') || case when octet_length(value) <= 200
      then '="' || value || '"'
      else ' sha256 ' || encode(sha256(convert_to(value, 'UTF8')), 'hex') end as computed
  from public.core_tool_receipts,
    lateral (select effects -> 'idempotency' as k,
      btrim(effects #>> '{idempotency,key_value}', E' \t\n\x0b\f\r') as value) e
  where attempt is null and status = 'succeeded' and k ->> 'mode' = 'keyed' and k ->> 'key_field' is not null
    and jsonb_typeof(k -> 'key_value') = 'string' and value <> '' and k -> 'hit' is distinct from 'true'
  order by tool_name, k ->> 'key_field', value, created_at, id
)
update public.core_tool_receipts r set idempotency_key = keyed.computed from keyed where keyed.id = r.id;
update public.core_tool_receipts set attempt = 1 where attempt is null;
update public.core_tool_receipts r
set tool_name = coalesce((select c.tool_name from public.core_tool_calls c where c.id = r.call_id), '')
where r.tool_name is null;
update public.core_tool_receipts set created_at = clock_timestamp() where created_at is null;

-- The columns get the types and defaults of 00001_calls.sql. gem.before_insert_call sets ids and times.
alter table public.core_tool_calls
  alter column id drop default, alter column input set default '{}', alter column input drop not null,
  alter column tool_name drop not null,
  alter column status set default 'queued', alter column status set not null, alter column attempt set default 0,
  alter column attempt set not null, alter column priority set default 0, alter column priority set not null,
  alter column run_at set not null, alter column created_at drop default, alter column created_at set not null,
  alter column updated_at drop default, alter column updated_at set not null;
alter table public.core_tool_receipts
  alter column id drop default, alter column call_id set not null, alter column tool_name set not null,
  alter column status set not null, alter column attempt set not null, alter column created_at drop default,
  alter column created_at set not null;

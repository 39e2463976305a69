-- +goose Up
--
-- GEM: durable tool calls.
--
-- A frontend inserts a row into core_tool_calls. A worker claims it, runs the tool's handler and writes exactly one row
-- into core_tool_receipts. Every step is a row of core_tool_events, written in the same transaction as the step.
--
-- The states of a call, and the event that each arrow leaves in the journal:
--
--       insert ──queued──▶ queued ──claimed──▶ running ──succeeded | failed | not_configured──▶ final
--                            ▲                    │
--                            ├──retried───────────┤  a transient error: again, after a pause (run_at)
--                            ├──released──────────┤  the worker stops and hands the call over
--                            ├──lost──────────────┤  the worker died: another one takes the call in
--                            │                    │
--                            └──woken── waiting ◀─┘  another call holds the same idempotency key
--
--   Cancelling ends a queued or waiting call at once (failed). A running one stays running (cancel_requested) until its
--   worker, told by the next heartbeat at the latest, ends it with a receipt that is honest about what was done.
--
--   queued          may be claimed once run_at has come; higher priority first, then the earlier run_at, then insert order
--   running         held by (attempt, claimed_by); only that attempt can move the call on
--   waiting         parked behind the running call with the same computed_key; that call's end wakes it
--   succeeded, failed, not_configured
--                   final: never changed again, and exactly one receipt stands beside it
--
-- The tables here say what can be; the functions of the next file are the arrows, and the only code that draws them.
-- The tables keep the names and columns of the earlier GEM: on a database that has its core_tool_calls and
-- core_tool_receipts, columns are added, rows are brought into the states above, and nothing is lost.

create schema if not exists gem;
revoke all on schema gem from public;

------------------------------------------------------------------------------------------------------------------------
-- core_tool_calls: what a frontend asked for, and where it stands.
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.core_tool_calls (id uuid primary key default gen_random_uuid());

alter table public.core_tool_calls
  -- Set by the frontend, on insert alone.
  add column if not exists tool_name text,                  -- a name of the registry, such as leads.create
  add column if not exists input jsonb,                     -- an object, at most 1 MiB
  add column if not exists idempotency_key text,            -- the client's own key, for safe-retry tools
  add column if not exists session_id text,                 -- groups the calls of one conversation
  add column if not exists parent_call_id uuid,             -- the call on whose behalf this one was made
  add column if not exists created_by text,                 -- the claim `sub` of the frontend's token, where there is one
  add column if not exists priority integer,                -- -1000 to 1000, 0 by default; higher first
  add column if not exists run_at timestamptz,              -- not before; at most 366 days ahead
  -- Moved by the functions of the state machine alone.
  add column if not exists status text,
  add column if not exists attempt integer,                 -- claims so far
  add column if not exists claimed_by text,                 -- the worker of the current or last attempt
  add column if not exists claimed_at timestamptz,
  add column if not exists error jsonb,                     -- the receipt's error, when the call failed
  add column if not exists cancel_requested_at timestamptz,
  add column if not exists created_at timestamptz,
  add column if not exists updated_at timestamptz,
  add column if not exists computed_key text,               -- the idempotency key it holds (running) or waits for (waiting)
  add column if not exists retries integer not null default 0,   -- attempts that ended with a transient error
  add column if not exists losses integer not null default 0,    -- attempts whose worker died
  add column if not exists events integer not null default 0,    -- length of its journal: the last event's seq
  add column if not exists seq bigint generated always as identity; -- insert order

------------------------------------------------------------------------------------------------------------------------
-- core_tool_receipts: the one final record of a call. Written once, never changed.
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.core_tool_receipts (id uuid primary key default gen_random_uuid());

alter table public.core_tool_receipts
  add column if not exists call_id uuid,
  add column if not exists tool_name text,
  add column if not exists status text,
  add column if not exists result jsonb,            -- succeeded: the output; failed: {"error": …}; not_configured: what is missing
  add column if not exists effects jsonb,           -- what the call did to the world
  add column if not exists created_at timestamptz,
  add column if not exists attempt integer,         -- the attempt that wrote it
  add column if not exists worker_id text,          -- the worker that wrote it
  add column if not exists registry_version text,   -- the registry it was validated against
  add column if not exists idempotency_key text,    -- the computed key, where the tool has one
  add column if not exists replay_of uuid,          -- the receipt that this one repeats, when the key was a hit
  add column if not exists duration interval;       -- from the claim of its attempt to the receipt

------------------------------------------------------------------------------------------------------------------------
-- core_tool_events: the journal. Append-only; per call numbered 1, 2, 3 without gaps.
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.core_tool_events (
  call_id   uuid        not null,
  seq       integer     not null check (seq >= 1),
  at        timestamptz not null,
  event     text        not null check (event in ('imported', 'queued', 'claimed', 'waiting', 'woken', 'retried',
                                                  'released', 'lost', 'cancel_requested', 'succeeded', 'failed', 'not_configured')),
  attempt   integer     not null check (attempt >= 0),
  worker_id text,       -- the worker that wrote it; null when a frontend or a migration did
  data      jsonb,      -- what the arrow carries: run_at, the error of a retry, the lost worker, the receipt
  primary key (call_id, seq)
);

------------------------------------------------------------------------------------------------------------------------
-- core_workers: one row a process. core_registry_versions: every registry that a worker ran with.
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.core_workers (
  worker_id        text        primary key,       -- WORKER_ID and a random suffix: one process, not one machine
  started_at       timestamptz not null default clock_timestamp(),
  heartbeat_at     timestamptz not null default clock_timestamp(),
  alive_until      timestamptz not null,          -- each heartbeat moves it on; a worker past it is dead, and its calls are others'
  stopped_at       timestamptz,                   -- set by an orderly stop
  wants_wake       boolean     not null default false, -- has free slots and found nothing: notify it
  concurrency      integer     not null check (concurrency > 0),
  gem_version      text        not null,
  registry_version text        not null
) with (fillfactor = 50); -- heartbeats update in place

create table if not exists public.core_registry_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  registry    jsonb       not null,
  recorded_at timestamptz not null default clock_timestamp()
);

-- The priorities that any call ever had: a claim looks at each in turn, and so needs no walk over what waits elsewhere.
create table if not exists gem.priorities (priority integer primary key);

------------------------------------------------------------------------------------------------------------------------
-- Bringing in the rows of an earlier GEM. On an empty database, and the second time, these statements find nothing.
------------------------------------------------------------------------------------------------------------------------

-- Its constraints on status knew other words.
-- +goose StatementBegin
do $$
declare
  old record;
begin
  for old in
    select c.conrelid::regclass as rel, c.conname
    from pg_constraint c
    join pg_attribute a on a.attrelid = c.conrelid and a.attnum = any (c.conkey) and a.attname = 'status'
    where c.contype = 'c' and c.conrelid in ('public.core_tool_calls'::regclass, 'public.core_tool_receipts'::regclass)
      and c.conname not like 'gem\_%'
  loop
    execute format('alter table %s drop constraint %I', old.rel, old.conname);
  end loop;
end
$$;
-- +goose StatementEnd

-- A second receipt of one call is kept, in a table of its own: the one that agrees with the call stays, else the first.
create table if not exists gem.imported_second_receipts (like public.core_tool_receipts);
with ranked as (
  select r.id, row_number() over (partition by r.call_id order by (r.status = c.status) desc nulls last, r.created_at, r.id) as place
  from public.core_tool_receipts r
  left join public.core_tool_calls c on c.id = r.call_id
  where r.call_id is not null and r.attempt is null
), moved as (
  delete from public.core_tool_receipts r using ranked where ranked.id = r.id and ranked.place > 1 returning r.*
)
insert into gem.imported_second_receipts select * from moved;

-- Every imported call gets a state of this GEM: its receipt decides, then whether anyone had claimed it. One that was
-- being run is left to recovery, which knows whether it may run again.
with state as (
  select c.id, c.status as was,
    case
      when r.status in ('succeeded', 'failed', 'not_configured') then r.status
      when c.status in ('succeeded', 'failed', 'not_configured', 'queued') then c.status
      when c.claimed_by is not null or c.claimed_at is not null then 'running'
      else 'queued'
    end as now
  from public.core_tool_calls c
  left join public.core_tool_receipts r on r.call_id = c.id
  where c.events = 0
), moved as (
  update public.core_tool_calls c set
    status     = state.now,
    attempt    = case when state.now = 'queued' then 0 else 1 end,
    claimed_by = case when state.now = 'queued' then null else coalesce(c.claimed_by, 'unknown') end,
    claimed_at = case when state.now = 'queued' then null else coalesce(c.claimed_at, c.updated_at, c.created_at, now()) end,
    priority   = coalesce(c.priority, 0),
    created_at = coalesce(c.created_at, now()),
    updated_at = coalesce(c.updated_at, c.created_at, now()),
    run_at     = coalesce(c.run_at, c.created_at, now()),
    events     = 1
  from state where state.id = c.id
  returning c.*, state.was
)
insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
select id, 1, now(), 'imported', attempt,
       jsonb_build_object('status', status, 'was', was, 'claimed_by', claimed_by, 'run_at', run_at, 'priority', priority)
from moved;

insert into gem.priorities select distinct priority from public.core_tool_calls on conflict do nothing;

-- A call that ended without a receipt gets one that says no more than is known.
insert into public.core_tool_receipts (call_id, tool_name, status, result, effects, created_at, attempt, worker_id)
select c.id, coalesce(c.tool_name, ''), c.status,
  case c.status
    when 'failed' then jsonb_build_object('error', case when c.error ->> 'error_code' is not null then c.error else
      jsonb_build_object('error_code', 'execution_error', 'message', 'The call failed before GEM kept receipts.',
                         'details', coalesce(c.error, 'null')) end)
    when 'not_configured' then jsonb_build_object('status', 'not_configured', 'required_env', '[]'::jsonb, 'next_steps', '[]'::jsonb,
      'reason', 'The call ended as not_configured before GEM kept receipts.')
  end,
  '{}', c.updated_at, c.attempt, c.claimed_by
from public.core_tool_calls c
where c.status in ('succeeded', 'failed', 'not_configured')
  and not exists (select from public.core_tool_receipts r where r.call_id = c.id);

-- The earlier keyed successes go on answering for their keys: one receipt a key, the first.
with keyed as (
  select distinct on (tool_name, k ->> 'key_field', k ->> 'key_value') id,
    -- The same form as receipts.Key in Go.
    tool_name || ':' || (k ->> 'key_field') || case when octet_length(k ->> 'key_value') <= 200
      then '="' || (k ->> 'key_value') || '"'
      else ' sha256 ' || encode(sha256(convert_to(k ->> 'key_value', 'UTF8')), 'hex') end as computed
  from public.core_tool_receipts, lateral (select effects -> 'idempotency' as k) e
  where attempt is null and status = 'succeeded' and k ->> 'mode' = 'keyed' and k ->> 'key_field' is not null
    and jsonb_typeof(k -> 'key_value') = 'string' and k ->> 'key_value' <> '' and k -> 'hit' is distinct from 'true'
  order by tool_name, k ->> 'key_field', k ->> 'key_value', created_at, id
)
update public.core_tool_receipts r set idempotency_key = keyed.computed from keyed where keyed.id = r.id;

update public.core_tool_receipts set attempt = 1 where attempt is null;
update public.core_tool_receipts set created_at = now() where created_at is null;

------------------------------------------------------------------------------------------------------------------------
-- What Postgres holds by itself. Rules over a frontend's values are in the trigger below and not here: a check is
-- asked at every update, and a row of an earlier GEM that breaks one could then never be claimed nor finished.
------------------------------------------------------------------------------------------------------------------------

alter table public.core_tool_calls
  alter column id         set default gen_random_uuid(),
  alter column input      set default '{}',
  alter column status     set default 'queued', alter column status     set not null,
  alter column attempt    set default 0,        alter column attempt    set not null,
  alter column priority   set default 0,        alter column priority   set not null,
  alter column run_at     set default now(),    alter column run_at     set not null,
  alter column created_at set default now(),    alter column created_at set not null,
  alter column updated_at set default now(),    alter column updated_at set not null,
  drop constraint if exists gem_calls_status,
  drop constraint if exists gem_calls_held,
  drop constraint if exists gem_calls_counts,
  add constraint gem_calls_status check (status in ('queued', 'running', 'waiting', 'succeeded', 'failed', 'not_configured')),
  -- A running call has a holder; one that may be claimed has none.
  add constraint gem_calls_held check (case status
    when 'running' then claimed_by is not null and claimed_at is not null and attempt >= 1
    when 'queued'  then claimed_by is null and claimed_at is null
    when 'waiting' then claimed_by is null and claimed_at is null and computed_key is not null
    else true end),
  add constraint gem_calls_counts check (attempt >= 0 and retries >= 0 and losses >= 0 and events >= 1);

alter table public.core_tool_receipts
  alter column id         set default gen_random_uuid(),
  alter column call_id    set not null,
  alter column tool_name  set not null,
  alter column status     set not null,
  alter column attempt    set not null,
  alter column created_at set default now(), alter column created_at set not null,
  drop constraint if exists gem_receipts_status,
  drop constraint if exists gem_receipts_result,
  drop constraint if exists gem_receipts_replay,
  drop constraint if exists gem_receipts_call,
  drop constraint if exists gem_receipts_replay_of,
  add constraint gem_receipts_status check (status in ('succeeded', 'failed', 'not_configured')) not valid,
  add constraint gem_receipts_result check (case status
    when 'failed'         then result -> 'error' ->> 'error_code' is not null and result -> 'error' ->> 'message' is not null
    when 'not_configured' then result ->> 'status' = 'not_configured' and result ->> 'reason' is not null
    else result is not null end) not valid,
  add constraint gem_receipts_replay check (replay_of is null or (status = 'succeeded' and idempotency_key is not null)),
  add constraint gem_receipts_call foreign key (call_id) references public.core_tool_calls (id) not valid,
  add constraint gem_receipts_replay_of foreign key (replay_of) references public.core_tool_receipts (id);

alter table public.core_tool_events
  drop constraint if exists gem_events_call,
  add constraint gem_events_call foreign key (call_id) references public.core_tool_calls (id);

alter table public.core_tool_calls
  drop constraint if exists gem_calls_parent,
  add constraint gem_calls_parent foreign key (parent_call_id) references public.core_tool_calls (id) on delete set null;
create index if not exists gem_calls_parent on public.core_tool_calls (parent_call_id) where parent_call_id is not null;

-- One receipt a call. One first success a key: whatever a worker believes, a key succeeds once.
create unique index if not exists gem_receipts_one_per_call on public.core_tool_receipts (call_id);
create unique index if not exists gem_receipts_one_success_per_key on public.core_tool_receipts (idempotency_key)
  where status = 'succeeded' and replay_of is null and idempotency_key is not null;

-- The claim's index is its ORDER BY inside its WHERE; anything else walks the backlog.
create index if not exists gem_calls_ready on public.core_tool_calls (priority, run_at, seq) where status = 'queued';
create index if not exists gem_calls_suspect on public.core_tool_calls (priority desc, run_at, seq) where status = 'queued' and losses >= 2;
create index if not exists gem_calls_running on public.core_tool_calls (claimed_by) where status = 'running';
-- One running call a key: this is what makes the second of two calls with one key wait.
create unique index if not exists gem_calls_one_running_per_key on public.core_tool_calls (computed_key)
  where status = 'running' and computed_key is not null;
create index if not exists gem_calls_waiting on public.core_tool_calls (computed_key, priority desc, seq) where status = 'waiting';

-- The API of Supabase exposes the schema public whole: what frontends have no business with is closed until granted.
alter table public.core_tool_events enable row level security;
alter table public.core_workers enable row level security;
alter table public.core_registry_versions enable row level security;

------------------------------------------------------------------------------------------------------------------------
-- A new call: what a frontend may say, what it may leave out, and what is not its to say.
------------------------------------------------------------------------------------------------------------------------

-- +goose StatementBegin
create or replace function gem.before_insert_call() returns trigger language plpgsql as $$
declare
  at     timestamptz := clock_timestamp();
  claims text        := nullif(current_setting('request.jwt.claims', true), '');
begin
  -- A bulk insert through PostgREST sends null for what a row leaves out.
  new.id       := coalesce(new.id, gen_random_uuid());
  new.input    := coalesce(new.input, '{}');
  new.status   := coalesce(new.status, 'queued');
  new.priority := coalesce(new.priority, 0);
  new.idempotency_key := nullif(new.idempotency_key, '');

  if new.status <> 'queued' then
    raise check_violation using message = format('status is %s on insert, and can only be queued', left(new.status, 50)),
      hint = 'Leave status out: the worker moves a call on.';
  end if;
  if coalesce(new.tool_name, '') = '' or length(new.tool_name) > 200 then
    raise check_violation using message = 'tool_name must be the name of a tool, of 1 to 200 characters, such as leads.create';
  end if;
  if jsonb_typeof(new.input) <> 'object' then
    raise check_violation using message = format('input must be a JSON object, and is %s', jsonb_typeof(new.input)),
      hint = 'Send {"field": value, …}; JSON as a string inside JSON is a string.';
  end if;
  if pg_column_size(new.input) > 1048576 then
    raise check_violation using message = format('input takes %s bytes, and may take 1048576 (1 MiB)', pg_column_size(new.input)),
      hint = 'Store large content elsewhere and send a link to it.';
  end if;
  if length(new.idempotency_key) > 255 then
    raise check_violation using message = 'idempotency_key may have at most 255 characters';
  end if;
  if length(new.session_id) > 255 then
    raise check_violation using message = 'session_id may have at most 255 characters';
  end if;
  if new.priority not between -1000 and 1000 then
    raise check_violation using message = format('priority is %s, and must be from -1000 to 1000', new.priority);
  end if;
  if new.run_at > at + interval '366 days' then
    raise check_violation using message = format('run_at is %s, and may be at most 366 days ahead', new.run_at);
  end if;

  -- The past means now, and nobody moves ahead of others by naming it.
  new.run_at := greatest(new.run_at, at);
  if claims is not null and (claims::jsonb ->> 'role' is distinct from 'service_role' or new.created_by is null) then
    new.created_by := claims::jsonb ->> 'sub'; -- service_role may act for another
  end if;
  if length(new.created_by) > 255 then
    raise check_violation using message = 'created_by may have at most 255 characters';
  end if;

  new.created_at := at;
  new.updated_at := at;
  new.attempt := 0;
  new.claimed_by := null;
  new.claimed_at := null;
  new.error := null;
  new.cancel_requested_at := null;
  new.computed_key := null;
  new.retries := 0;
  new.losses := 0;
  new.events := 1;
  return new;
end
$$;

create or replace function gem.after_insert_calls() returns trigger language plpgsql security definer set search_path = '' as $$
begin
  insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
  select id, 1, created_at, 'queued', 0, jsonb_build_object('run_at', run_at, 'priority', priority) from inserted;

  insert into gem.priorities
  select distinct priority from inserted i where not exists (select from gem.priorities p where p.priority = i.priority)
  on conflict do nothing;

  perform gem.wake_workers();
  return null;
end
$$;

-- A notification takes a lock over the whole database at commit, so it is sent only when some worker has free slots and
-- nothing to fill them with. It is a hint: the workers' poll is what makes sure. p_hint is `again` when a call came back
-- to the place in the queue that it had before, where a claim with marks does not look.
create or replace function gem.wake_workers(p_hint text default '') returns void language plpgsql security definer set search_path = '' as $$
begin
  if exists (select from public.core_workers where wants_wake and stopped_at is null and alive_until > clock_timestamp()) then
    perform pg_notify('gem_calls', p_hint);
  end if;
end
$$;
-- +goose StatementEnd

drop trigger if exists gem_before_insert on public.core_tool_calls;
create trigger gem_before_insert before insert on public.core_tool_calls
  for each row execute function gem.before_insert_call();
drop trigger if exists gem_after_insert on public.core_tool_calls;
create trigger gem_after_insert after insert on public.core_tool_calls
  referencing new table as inserted for each statement execute function gem.after_insert_calls();

------------------------------------------------------------------------------------------------------------------------
-- What is written stays: for the owner too, since most installs let the worker connect as the owner.
------------------------------------------------------------------------------------------------------------------------

-- +goose StatementBegin
create or replace function gem.refuse_change() returns trigger language plpgsql as $$
begin
  raise insufficient_privilege using message = format('%s on %s is refused: %s', lower(tg_op), tg_table_name, tg_argv[0]);
end
$$;
-- +goose StatementEnd

drop trigger if exists gem_written_once on public.core_tool_receipts;
create trigger gem_written_once before update or delete on public.core_tool_receipts
  for each row execute function gem.refuse_change('a receipt is written once and stays');
drop trigger if exists gem_not_emptied on public.core_tool_receipts;
create trigger gem_not_emptied before truncate on public.core_tool_receipts
  for each statement execute function gem.refuse_change('a receipt is written once and stays');
drop trigger if exists gem_append_only on public.core_tool_events;
create trigger gem_append_only before update or delete on public.core_tool_events
  for each row execute function gem.refuse_change('the journal is append-only');
drop trigger if exists gem_not_emptied on public.core_tool_events;
create trigger gem_not_emptied before truncate on public.core_tool_events
  for each statement execute function gem.refuse_change('the journal is append-only');
drop trigger if exists gem_final_stays on public.core_tool_calls;
create trigger gem_final_stays before update of status, tool_name, input, error, attempt, claimed_by, claimed_at, created_by
  on public.core_tool_calls for each row when (old.status in ('succeeded', 'failed', 'not_configured'))
  execute function gem.refuse_change('the call has ended, and its receipt stands');

-- GEM's tables. A frontend inserts a row into core_tool_calls, a worker runs it and writes one row into core_tool_receipts,
-- and every step on the way is a row of core_tool_events. functions/states.sql has the picture of the states and moves a
-- call from one to the next; functions/guards.sql says what a row must look like, and fills in what a new call leaves out.

create schema if not exists gem;
revoke all on schema gem from public;

-- A call: what a frontend asked for, and where it stands. Rows leave by gem prune.
create table if not exists public.core_tool_calls (
  id                  uuid        primary key,          -- of version 7: it begins with the time
  -- Set by the frontend, only on insert.
  tool_name           text,                             -- a name of the registry, such as leads.create
  input               jsonb       default '{}',         -- an object, at most 1 MiB
  idempotency_key     text,                             -- the client's own key, for safe-retry tools
  session_id          text,                             -- groups the calls of one conversation
  parent_call_id      uuid,                             -- the call on whose behalf this one was made
  created_by          text,                             -- the claim `sub` of the frontend's token, where there is one
  priority            integer     not null default 0,   -- -1000 to 1000; higher first; from -500 down: background
  run_at              timestamptz not null,             -- not before; at most 366 days ahead
  traceparent         text,                             -- W3C trace context of the span in which the frontend made the call
  awaited             boolean,                          -- true: a notification is wanted when it ends; see gem.tell_ended
  signed_in           boolean     not null default false, -- made with a token whose role is not service_role; the trigger says so
  -- Moved only by the functions of functions/states.sql.
  status              text        not null default 'queued',
  attempt             integer     not null default 0,   -- claims so far
  claimed_by          text,                             -- the worker of the current or last attempt
  claimed_at          timestamptz,
  error               jsonb,                            -- the receipt's error, when the call failed
  cancel_requested_at timestamptz,
  created_at          timestamptz not null,
  updated_at          timestamptz not null,
  level               integer     not null default 0,   -- its priority; lower while its caller crowds: see guards.sql
  computed_key        text,                             -- the idempotency key that it holds, or waits for
  asked_for           text,                             -- who asks in a wait.* call: rule, handler or user; see gem.asked_for
  parent_step         text,                             -- the name under which the handler of its parent made it; null: a frontend did
  waits_for           text,                             -- of a waiting call: key, call, answer, time, code; of an ended child: parent, until that knows
  waits               text[],                           -- the names of which something is to come, where it waits for call, answer or time
  need                integer,                          -- how many of them are still to come
  wake_at             timestamptz,                      -- when a waiting call goes on, or an ended one tells its parent or ends its children
  steps               integer     not null default 0,   -- steps, children and waits in its journal: with any, only workers that know them take it
  needs               text,                             -- a capability that its worker must have stated; null: none
  retries             integer     not null default 0,   -- attempts that ended with a transient error
  losses              integer     not null default 0,   -- attempts whose worker died
  kills               integer     not null default 0,   -- of those, the ones since it last waited: with two it is suspected of killing them
  events              integer     not null default 0,   -- length of its journal: the last event's seq
  seq                 bigint      generated always as identity -- insert order
);

-- A receipt: the one final record of a call. Written once, never changed; it leaves with its call by gem prune.
create table if not exists public.core_tool_receipts (
  id               uuid        primary key,             -- of version 7
  call_id          uuid        not null,
  tool_name        text        not null,
  status           text        not null,                -- succeeded, failed, not_configured
  result           jsonb,                               -- the output; or {"error": …}; or what is not configured
  effects          jsonb,                               -- what the call did to the world
  created_at       timestamptz not null,
  attempt          integer     not null,                -- the attempt that wrote it
  worker_id        text,                                -- the worker that wrote it
  registry_version text,                                -- the registry that the call was validated against
  idempotency_key  text,                                -- the computed key, where the tool has one
  replay_of        uuid,                                -- the receipt that this one repeats, when the key was a hit
  duration         interval                             -- from the claim of its attempt to the receipt
);

-- The journal: append-only, per call numbered 1, 2, 3 without gaps. It leaves with its call by gem prune.
create table if not exists public.core_tool_events (
  call_id   uuid        not null,
  seq       integer     not null,
  at        timestamptz not null,
  event     text        not null,                       -- an arrow of the picture in functions/states.sql
  attempt   integer     not null,
  worker_id text,                                       -- the worker that wrote it; null when a frontend or an import did
  data      jsonb,                                      -- what the arrow carries: run_at, the error of a retry, the receipt
  primary key (call_id, seq)
);

-- A worker: one process. Rows of stopped and dead ones stay for an hour.
create table if not exists public.core_workers (
  worker_id        text        primary key,             -- WORKER_ID and a random suffix: one process, not one machine
  started_at       timestamptz not null,
  heartbeat_at     timestamptz not null,
  alive_until      timestamptz not null,                -- each heartbeat moves it on; a worker past it is dead
  steady_since     timestamptz,                         -- since then its heartbeats have come in time; null: since it started
  stopped_at       timestamptz,                         -- set by an orderly stop
  wants_wake       boolean     not null default false,  -- it has free slots and found nothing: notify it
  concurrency      integer     not null check (concurrency > 0),
  clock_back       interval,                            -- so far Postgres's clock jumped back, while it has not caught up
  clock_until      timestamptz,                         -- when it will have
  can              text[]      not null default '{}',   -- the capabilities that it stated: see needs of a call
  rules_version    text,                                -- null: it runs without rules
  gem_version      text        not null,
  registry_version text        not null
);

-- Every registry that a worker ran with. Rows stay.
create table if not exists public.core_registry_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  registry    jsonb       not null,
  recorded_at timestamptz not null
);

-- Every file of rules that a worker ran with. Rows stay.
create table if not exists public.core_rules_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  rules       jsonb       not null,
  longest     interval    not null,  -- the longest time that one of its rules looks back in gem.rule_runs
  recorded_at timestamptz not null
);

-- Every domains.json that a worker ran with. Rows stay.
create table if not exists gem.domains_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  domains     jsonb       not null,
  recorded_at timestamptz not null
);

-- What limits count: the calls that rules let through, a row for each counter of a call, numbered 1, 2, 3 without gaps. Rows leave
-- when they are older than twice what any recorded rules look back, the last of each counter with its call.
create table if not exists gem.rule_runs (
  counter       text collate "C" not null, -- the rule's name, a slash, and what is counted together
  n             bigint      not null,
  at            timestamptz not null,  -- never falls from one n to the next; ahead of its time for a call that has a turn
  call_id       uuid        not null,  -- another one, of no call, once the call missed its turn
  amount        numeric,               -- of a sum: what the call adds
  total         numeric,               -- of a sum: of all rows so far
  rules_version text        not null,
  over          boolean     not null default false, -- the rule met the call, and let it through all the same
  primary key (counter, n),
  unique (counter, call_id)
);

-- The registry in force: the tools of the registries of living workers, else those of the one recorded last. Of two that differ,
-- the one recorded later counts. See gem.keep_tools. Rows leave with the last registry that has them.
create table if not exists gem.tools (
  name      text    primary key,
  frontends boolean not null,    -- signed-in users may call it
  entry     jsonb   not null     -- as it stands in that registry
);

-- The roles of those who answer questions: see functions/answers.sql. The owner of the database fills it: gem roles add. Rows stay until they
-- are removed.
create table if not exists gem.roles (
  subject text not null check (subject <> '' and length(subject) <= 255),        -- as gem.subject() has it
  role    text not null check (role ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$'),
  primary key (subject, role)
);

-- The roles that users may not ask: see gem.check_roles. Rows come with gem roles close, and leave with gem roles open.
create table if not exists gem.role_settings (
  role      text        primary key check (role ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$'),
  closed_at timestamptz not null,
  closed_by text        not null -- a role of Postgres
);

-- The answers of signed-in users in the last hour, which their limits count. Those of before leave with a heartbeat.
create table if not exists gem.answers (
  subject text        not null,
  at      timestamptz not null,
  bytes   integer     not null
);

-- The levels that any call ever had: a claim goes through them in turn. Rows stay.
create table if not exists gem.levels (level integer primary key);
insert into gem.levels values (0), (-500) on conflict do nothing; -- what most calls have, and those of callers that crowd

-- The limits of signed-in users, one row. service_role and SQL have the wider bounds of functions/guards.sql.
create table if not exists gem.limits (
  only_row        boolean  primary key default true check (only_row),
  max_open_calls  integer  not null default 1000       check (max_open_calls between 1 and 1000000), -- of one created_by
  max_open_questions integer not null default 20       check (max_open_questions between 0 and 1000000), -- open questions to others, of one created_by
  max_input_bytes integer  not null default 262144     check (max_input_bytes > 0),                  -- of one input, as JSON text
  -- Of one created_by, in any 60 minutes, those that have ended too. An insert reads as many entries of an index at most.
  max_calls_per_hour integer not null default 3600     check (max_calls_per_hour between 1 and 1000000),
  max_bytes_per_hour bigint  not null default 67108864 check (max_bytes_per_hour > 0),               -- of inputs, as they are stored
  max_run_ahead   interval not null default '366 days' check (max_run_ahead between '0' and '1000 years'),
  min_priority    integer  not null default -10        check (min_priority <= 0), -- each priority that was ever used costs
  max_priority    integer  not null default 0          check (max_priority >= 0), -- every claim some microseconds
  rules_required  boolean  not null default false      -- a worker without rules claims nothing: gem rules require
);
insert into gem.limits default values on conflict do nothing;

-- How calls ended and how long they took, by day: what functions/watch.sql shows. Rows stay when calls are pruned.
create table if not exists gem.outcome_counts (
  day            date     not null,  -- in UTC
  tool_name      text     not null,  -- (unknown) where no worker knew it, or none claimed the call: frontends may send any name
  bucket         smallint,           -- of the duration: up to 0.1 ms * 1.25 ^ bucket; null for hits, and where no worker ran the call
  succeeded      bigint   not null,
  failed         bigint   not null,  -- without the next two, whose status is failed too: see gem.failure_kind
  refused        bigint   not null,
  cancelled      bigint   not null,
  not_configured bigint   not null,
  hits           bigint   not null,  -- of those that succeeded
  unique nulls not distinct (day, tool_name, bucket)
);

-- The same without how long they took, for sums over many days. Rows stay when calls are pruned.
create table if not exists gem.outcome_days (
  day            date   not null,
  tool_name      text   not null,
  succeeded      bigint not null,
  failed         bigint not null,
  refused        bigint not null,
  cancelled      bigint not null,
  not_configured bigint not null,
  hits           bigint not null,
  primary key (day, tool_name)
);

-- How calls ended and how long they took, by minute: what gem.throughput shows. Rows leave after 72 hours, when workers count.
create table if not exists gem.outcome_minutes (
  minute         timestamptz not null,
  tool_name      text        not null,  -- as in gem.outcome_counts; empty: all tools together
  succeeded      integer     not null,
  failed         integer     not null,
  refused        integer     not null,
  cancelled      integer     not null,
  not_configured integer     not null,
  hits           integer     not null,
  durations      integer[]   not null,  -- how many calls ran for so long: the first is bucket 0 of gem.outcome_counts
  waits          integer[]   not null,  -- how many had been due for so long when they were claimed: of a sample of first attempts
  primary key (minute, tool_name)
);

-- One row: the receipts up to this id are in gem.outcome_counts and gem.outcome_minutes.
create table if not exists gem.outcomes_counted (
  only_row boolean     primary key default true check (only_row),
  upto     uuid        not null,
  at       timestamptz not null
);

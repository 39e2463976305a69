-- GEM's tables. A frontend inserts a row into core_tool_calls, a worker runs the call and writes one row into
-- core_tool_receipts, and each change of its state is a row of core_tool_events. functions/states.sql explains the
-- states and moves calls between them. functions/guards.sql checks the rows, and sets the columns that a new call
-- omits.

create schema if not exists gem;
revoke all on schema gem from public;

-- A call: the request of a frontend, and its state. gem prune removes rows.
create table if not exists public.core_tool_calls (
  id                  uuid        primary key,          -- of version 7: it begins with the time
  -- The frontend sets these, only on insert.
  tool_name           text,                             -- a name of the registry, such as leads.create
  input               jsonb       default '{}',         -- an object, at most 1 MiB
  idempotency_key     text,                             -- the client's own key, for safe-retry tools
  session_id          text,                             -- groups the calls of one conversation
  parent_call_id      uuid,                             -- the call on whose behalf this one was made
  created_by          text,                             -- the `sub` of the frontend's token, if there is one
  priority            integer     not null default 0,   -- -1000 to 1000; higher first; from -500 down: background
  run_at              timestamptz not null,             -- the earliest start; at most 366 days ahead
  -- W3C trace context of the frontend's span
  traceparent         text,
  -- true: waiters are notified when it ends; see gem.tell_ended
  awaited             boolean,
  -- set by a trigger: the call's token has another role than service_role. A child, and a call that an operator
  -- repeated, have the value of the first one
  signed_in           boolean     not null default false,
  -- Only the functions of functions/states.sql and waits.sql change these.
  status              text        not null default 'queued',
  attempt             integer     not null default 0,   -- number of claims
  claimed_by          text,                             -- the worker of the current or last attempt
  claimed_at          timestamptz,
  error               jsonb,                            -- the receipt's error, if the call failed
  cancel_requested_at timestamptz,
  created_at          timestamptz not null,
  updated_at          timestamptz not null,
  -- its priority, or a lower value while its caller crowds the queue: see guards.sql
  level               integer     not null default 0,
  computed_key        text,                             -- the idempotency key that it holds or waits for
  -- of a wait.* call: the kind of asker, which is rule, handler or user; see gem.asked_for
  asked_for           text,
  -- For lists of questions, these copy parts of the input of a wait.* call, which may be large. Set on insert.
  -- answer_by: the people who may answer, at most 20 words of 260 characters; see gem.answerers
  answer_by           text[],
  answer_others       boolean,                          -- the creators of the call and of its ancestors may not answer
  answer_until        timestamptz,                      -- it takes no answer after this time
  -- the name that its parent's handler or rules gave it; null: a frontend made it
  parent_step         text,
  -- of a waiting call: key, call, answer, time or code; of an ended child: parent, until the parent is notified
  waits_for           text,
  -- the names of the arrivals that a call waits for: children, answers or times
  waits               text[],
  need                integer,                          -- how many of them are still needed
  -- when a waiting call continues, or an ended one notifies its parent or ends its children
  wake_at             timestamptz,
  -- number of steps, children and waits in its journal; above 0, only workers with the capability `steps` claim it
  steps               integer     not null default 0,
  needs               text,                             -- a capability that its worker must have declared; null: none
  retries             integer     not null default 0,   -- attempts that ended with a transient error
  losses              integer     not null default 0,   -- attempts whose worker died
  -- lost workers since it last waited; with two, it is suspected of killing them
  kills               integer     not null default 0,
  events              integer     not null default 0,   -- length of its journal: the seq of the last event
  seq                 bigint      generated always as identity -- insert order
);

-- A receipt: the final record of a call. It is written once and never changes. gem prune removes it with its call.
create table if not exists public.core_tool_receipts (
  id               uuid        primary key,             -- of version 7
  call_id          uuid        not null,
  tool_name        text        not null,
  status           text        not null,                -- succeeded, failed, not_configured
  result           jsonb,                               -- the output; or {"error": …}; or the missing configuration
  effects          jsonb,                               -- the effects of the call
  created_at       timestamptz not null,
  attempt          integer     not null,                -- the attempt that wrote it
  worker_id        text,                                -- the worker that wrote it
  registry_version text,                                -- the registry that the call was validated against
  idempotency_key  text,                                -- the computed key, if the tool has one
  replay_of        uuid,                                -- the receipt that this one repeats, after a hit
  duration         interval                             -- from the claim of its attempt to the receipt
);

-- The journal: append-only, numbered 1, 2, 3 without gaps for each call. gem prune removes it with its call.
create table if not exists public.core_tool_events (
  call_id   uuid        not null,
  seq       integer     not null,
  at        timestamptz not null,
  event     text        not null,                       -- an arrow in functions/states.sql
  attempt   integer     not null,
  -- the worker that wrote it; null when a frontend or an import did
  worker_id text,
  -- details of the event: run_at, the error of a retry, the receipt
  data      jsonb,
  primary key (call_id, seq)
);

-- A worker: one process. Rows of stopped and dead workers remain for an hour.
create table if not exists public.core_workers (
  -- WORKER_ID and a random suffix: identifies a process, not a machine
  worker_id        text        primary key,
  started_at       timestamptz not null,
  heartbeat_at     timestamptz not null,
  alive_until      timestamptz not null,                -- each heartbeat extends it; a worker past it is dead
  -- its heartbeats have been punctual since then; null: since it started
  steady_since     timestamptz,
  stopped_at       timestamptz,                         -- set by an orderly stop
  wants_wake       boolean     not null default false,  -- it has free slots and found no call: notify it
  concurrency      integer     not null check (concurrency > 0),
  -- by how much Postgres's clock went back, until it has caught up
  clock_back       interval,
  clock_until      timestamptz,                         -- when it will have caught up
  can              text[]      not null default '{}',   -- the capabilities that it declared: see needs of a call
  rules_version    text,                                -- null: it runs without rules
  -- the tools that it runs, or ran, outside of the receipt's transaction, with their modes; null: unknown
  outside          jsonb       check (jsonb_typeof(outside) = 'object'),
  keys_from        text,                                -- it looks for free keys behind this one; null: from the first
  server           timestamptz,                         -- gem.server() that it has met; null: not checked
  may_claim_at     timestamptz,                         -- after a failover; null: at once
  gem_version      text        not null,
  registry_version text        not null
);

-- Every registry that a worker ran with. Rows are never removed.
create table if not exists public.core_registry_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  registry    jsonb       not null,
  recorded_at timestamptz not null
);

-- Every version of the rules that a worker ran with. Rows are never removed.
create table if not exists public.core_rules_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  rules       jsonb       not null,
  longest     interval    not null,  -- the longest period of one of its rules in gem.rule_runs
  recorded_at timestamptz not null
);

-- Every domains.json that a worker ran with. Rows are never removed.
create table if not exists gem.domains_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  domains     jsonb       not null,
  recorded_at timestamptz not null
);

-- The calls that limits count. A call that passes the rules has a row in each of its counters. The rows of a counter
-- are numbered 1, 2, 3 without gaps. gem prune removes rows that are older than twice the longest period of all
-- recorded rules, but it keeps the last row of a counter until its call is removed.
create table if not exists gem.rule_runs (
  counter       text collate "C" not null, -- the rule's name, a slash, and the values that are counted together
  n             bigint      not null,
  -- never decreases from one n to the next; in the future for a call with a later start
  at            timestamptz not null,
  call_id       uuid        not null,  -- a random id, if the call missed its start
  amount        numeric,               -- for a sum: the call's amount
  total         numeric,               -- for a sum: the total so far
  rules_version text        not null,
  over          boolean     not null default false, -- the rule matched the call, but let it through
  primary key (counter, n),
  unique (counter, call_id)
);

-- The registry in force: the tools of the registries of live workers or, without live workers, the tools of the
-- registry that was recorded last. If two registries differ in a tool, the one recorded later wins. See gem.keep_tools.
-- A row is removed with the last registry that has the tool.
create table if not exists gem.tools (
  name      text    primary key,
  frontends boolean not null,    -- signed-in users may call it
  entry     jsonb   not null     -- its entry in that registry
);

-- The roles of the people who answer questions: see functions/answers.sql. The owner of the database adds and removes
-- rows: gem roles add.
create table if not exists gem.roles (
  subject text not null check (subject <> '' and length(subject) <= 255),        -- in the form of gem.subject()
  role    text not null check (role ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$'),
  primary key (subject, role)
);

-- The roles that users may not ask: see gem.check_roles. gem roles close adds rows, and gem roles open removes them.
create table if not exists gem.role_settings (
  role      text        primary key check (role ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$'),
  closed_at timestamptz not null,
  closed_by text        not null -- a role of Postgres
);

-- The answers of signed-in users in the last hour, for their limits. Heartbeats remove older rows.
create table if not exists gem.answers (
  subject text        not null,
  at      timestamptz not null,
  bytes   integer     not null
);

-- All levels that calls ever had. A claim searches them in turn. Rows are never removed.
create table if not exists gem.levels (level integer primary key);
-- the default, and the level of callers that crowd the queue
insert into gem.levels values (0), (-500) on conflict do nothing;

-- The limits of signed-in users, one row. service_role and SQL have the wider limits of functions/guards.sql.
create table if not exists gem.limits (
  only_row        boolean  primary key default true check (only_row),
  -- of one created_by
  max_open_calls  integer  not null default 1000       check (max_open_calls between 1 and 1000000),
  -- open questions to others, of one created_by
  max_open_questions integer not null default 20       check (max_open_questions between 0 and 1000000),
  -- of one input, as JSON text
  max_input_bytes integer  not null default 262144     check (max_input_bytes > 0),
  -- Calls of one created_by in any 60 minutes, including ended ones. An insert reads at most this many index entries.
  max_calls_per_hour integer not null default 3600     check (max_calls_per_hour between 1 and 1000000),
  -- of inputs, as they are stored
  max_bytes_per_hour bigint  not null default 67108864 check (max_bytes_per_hour > 0),
  max_run_ahead   interval not null default '366 days' check (max_run_ahead between '0' and '1000 years'),
  -- Every priority that was ever used makes each claim some microseconds slower.
  min_priority    integer  not null default -10        check (min_priority <= 0),
  max_priority    integer  not null default 0          check (max_priority >= 0),
  -- Schedules of one created_by that a signed-in user made, how far apart their instants are at least, and when they
  -- pause unless their owner saves or resumes them.
  max_schedules   integer  not null default 0          check (max_schedules between 0 and 1000000),
  min_schedule_gap interval not null default '5 minutes' check (min_schedule_gap between '0' and '8 years'),
  max_schedule_age interval not null default '90 days' check (max_schedule_age between '0' and '1000 years'),
  rules_required  boolean  not null default false      -- workers without rules claim nothing: gem rules require
);
insert into gem.limits default values on conflict do nothing;

-- Outcomes and durations of calls, by day, for functions/watch.sql. Rows remain when calls are pruned.
create table if not exists gem.outcome_counts (
  day            date     not null,  -- in UTC
  -- (unknown) if no worker knew the tool or claimed the call: frontends may send any name
  tool_name      text     not null,
  -- of durations up to 0.1 ms * 1.25 ^ bucket; null for hits, and for calls that no worker ran
  bucket         smallint,
  succeeded      bigint   not null,
  failed         bigint   not null,  -- without the next two columns; see gem.failure_kind
  refused        bigint   not null,
  cancelled      bigint   not null,
  not_configured bigint   not null,
  hits           bigint   not null,  -- successes that repeated a receipt
  unique nulls not distinct (day, tool_name, bucket)
);

-- The same without durations, for sums over many days. Rows remain when calls are pruned.
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

-- Outcomes and durations of calls, by minute, for gem.throughput. Workers remove rows after 72 hours.
create table if not exists gem.outcome_minutes (
  minute         timestamptz not null,
  tool_name      text        not null,  -- as in gem.outcome_counts; empty: all tools together
  succeeded      integer     not null,
  failed         integer     not null,
  refused        integer     not null,
  cancelled      integer     not null,
  not_configured integer     not null,
  hits           integer     not null,
  -- number of calls in each bucket of durations, from bucket 0 of gem.outcome_counts
  durations      integer[]   not null,
  -- the same for how long calls had been due when they were claimed, from a sample of first attempts
  waits          integer[]   not null,
  primary key (minute, tool_name)
);

-- One row: the receipts up to this id are counted in gem.outcome_counts and gem.outcome_minutes.
create table if not exists gem.outcomes_counted (
  only_row boolean     primary key default true check (only_row),
  upto     uuid        not null,
  at       timestamptz not null
);

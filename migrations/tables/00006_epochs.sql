-- A failover to a standby, or a restored backup, may lose the last commits. Each Postgres server that GEM's workers
-- have met is an epoch: see functions/servers.sql. Rows are removed after 90 days, except the last one.
create table if not exists gem.epochs (
  epoch     bigint      generated always as identity primary key,
  server    timestamptz not null unique,    -- gem.server()
  system_id text,                           -- the same for a server, its standbys and their backups; null: unknown
  timeline  text,                           -- a promotion begins another one; null: unknown
  at        timestamptz not null,           -- when the first worker met the server
  -- the difference to the previous epoch; only after a restart no commit was lost, unless commits are asynchronous
  why       text        not null check (why in ('first', 'restart', 'promotion', 'restore', 'unknown')),
  reran     integer     not null default 0  -- ended calls that run again without harm: Postgres had all their effects
);

-- Calls that had ended, according to their worker, and whose ends an epoch's server lacked. At most 10,000 per epoch.
-- Rows are removed with their epoch, after 90 days.
create table if not exists gem.epoch_calls (
  epoch      bigint      not null,
  call_id    uuid        not null,
  attempt    integer     not null,
  worker_id  text        not null,
  tool_name  text        not null,
  -- restored: the receipt was written again. unknown: the call ended as outcome_unknown. ran_twice: another attempt ran
  -- meanwhile, or another call has succeeded with the key. missing: the server lacks the call, and the worker could not
  -- insert it again.
  what       text        not null check (what in ('restored', 'unknown', 'ran_twice', 'missing')),
  receipt_id uuid,                          -- of the end that was lost
  found      text,                          -- the state in which the call was found
  effects    jsonb,                         -- of the end that was lost
  at         timestamptz not null,
  primary key (epoch, call_id, attempt, worker_id)
);

-- Keys that only the owner may read. Rows are never removed.
create table if not exists gem.secrets (
  name  text  primary key,
  value bytea not null
);
alter table gem.epochs enable row level security;
alter table gem.epoch_calls enable row level security;
alter table gem.secrets enable row level security;

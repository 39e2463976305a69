-- Notices tell people what happened to calls, budgets and schedules. functions/notices.sql writes these tables.

-- The kinds of notices that a notify.json of some worker asks for. `gem notify off` removes the rows.
create table if not exists gem.notice_kinds (
  kind  text       primary key check (kind in ('question', 'failed', 'refused', 'budget', 'schedule')),
  marks smallint[] not null default '{}' -- of budget: the percentages to report
);

-- Notices that no worker has taken. Each is written in the transaction of its cause. A worker with a notify.json moves
-- it to the batches. Other rows are removed after a day.
create table if not exists gem.notices (
  id      bigint      generated always as identity primary key,
  at      timestamptz not null,
  kind    text        not null, -- a kind of gem.notice_kinds, or undelivered
  subject text        not null, -- the id of the call, or the name of the budget or of the schedule
  tool    text        not null default '',
  code    text        not null default ''
);
create index if not exists gem_notices_at on gem.notices (at);

-- The next delivery of each channel. A row counts the notices of one kind, tool and code since the last delivery. It is
-- removed a day after its last notice.
create table if not exists gem.notice_batches (
  id        bigint      generated always as identity primary key,
  channel   text        not null,
  kind      text        not null,
  tool      text        not null,
  code      text        not null,
  subject   text        not null, -- empty if notices about different subjects are counted together
  count     bigint      not null, -- since the last delivery
  first_at  timestamptz not null, -- of the counted notices, like the next three
  last_at   timestamptz not null,
  recent    timestamptz[] not null default '{}', -- of the kind failing: the times of the last failures
  reached   boolean     not null default true, -- of the kind failing: there were enough failures within the time
  notice    jsonb       not null, -- the first of them
  every     interval    not null, -- the shortest time between two deliveries
  failed    integer,              -- of the kind failing: this many failures within that time are reported
  within    interval,
  otherwise text,                 -- the channel to tell if the delivery fails
  sent_at   timestamptz,          -- the last delivery
  unique (channel, kind, tool, code, subject)
);

-- The calls that deliver notices. gem prune removes a row with its call.
create table if not exists gem.notice_calls (
  call_id   uuid        primary key,
  channel   text        not null,
  notice    jsonb       not null,
  otherwise text,
  at        timestamptz not null
);
create index if not exists gem_notice_calls_at on gem.notice_calls (at);

-- Every notify.json that a worker ran with. Rows are never removed.
create table if not exists gem.notify_versions (
  version     text        primary key check (version <> ''),
  sha256      text        not null check (sha256 ~ '^[0-9a-f]{64}$'),
  notify      jsonb       not null,
  recorded_at timestamptz not null,
  used_at     timestamptz not null  -- the last start of a worker with it
);

-- the budget's limit at the last request, in millionths of a dollar
alter table gem.llm_spend add column if not exists "limit" bigint;

alter table gem.notice_kinds enable row level security;
alter table gem.notices enable row level security;
alter table gem.notice_batches enable row level security;
alter table gem.notice_calls enable row level security;
alter table gem.notify_versions enable row level security;

-- A schedule makes a call at each instant of a cron expression. functions/schedules.sql writes both tables.
-- gem prune removes a removed schedule with its last occurrence.
create table if not exists gem.schedules (
  id            uuid        primary key,
  name          text        not null check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$'),
  created_by    text check (created_by <> ''),      -- the user it belongs to, and its calls; null: nobody
  signed_in     boolean     not null default false, -- its calls have only the rights of a signed-in user
  tool_name     text        not null,
  input         jsonb       not null,               -- its strings may contain {due_at} and {previous_at}
  session_id    text,
  priority      integer     not null,
  cron          text        not null,
  zone          text        not null,
  missed        text        not null check (missed in ('skip', 'one', 'all')),
  missed_within interval    not null check (missed_within between '0' and '31 days'),
  overlap       text        not null check (overlap in ('skip', 'queue', 'cancel', 'allow')),
  jitter        interval    not null check (jitter between '0' and '1 hour'),
  starts_at     timestamptz,
  ends_at       timestamptz,
  since         timestamptz not null,               -- cron and zone apply to the instants after this
  next_at       timestamptz,                        -- the next instant; null: ended
  held_at       timestamptz,                        -- with the overlap queue: an instant that waits for the last call
  look_at       timestamptz,                        -- when a worker has something to do; null: paused or ended
  pruned_upto   timestamptz,                        -- gem prune has removed the occurrences up to this instant
  paused        jsonb,                              -- {by, reason, login, at}, as the next two
  removed       jsonb,
  changed       jsonb       not null
);
create unique index if not exists gem_schedules_name on gem.schedules ((coalesce(created_by, '')), name)
  where removed is null;
create index if not exists gem_schedules_due on gem.schedules (look_at) where look_at is not null;

-- The outcomes of a schedule's instants, append-only. A row covers one instant, or all instants from due_at to upto.
-- gem prune removes old rows, except the last of each schedule.
create table if not exists gem.occurrences (
  schedule_id uuid        not null,
  due_at      timestamptz not null,
  upto        timestamptz not null,
  count       integer,                              -- of instants; null: more than 1,000, or not counted
  backfilled  boolean     not null default false,   -- an operator requested the call afterwards
  call_id     uuid,
  skipped     text check (skipped in ('missed', 'overlap', 'paused', 'refused')),
  detail      text,                                 -- why it was skipped
  at          timestamptz not null,
  primary key (schedule_id, due_at, backfilled),
  check ((call_id is null) = (skipped is not null)),
  check (upto >= due_at and (call_id is null or upto = due_at and count = 1))
);
create unique index if not exists gem_occurrences_once on gem.occurrences (schedule_id, due_at)
  where call_id is not null;
create index if not exists gem_occurrences_call on gem.occurrences (call_id) where call_id is not null;

alter table gem.schedules enable row level security;
alter table gem.occurrences enable row level security;

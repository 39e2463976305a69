-- The places of `running` rules, which limit how many calls run at the same time. functions/places.sql writes the rows.
-- The last row of a counter is its state. gem prune removes old rows that no open call needs, the first ones of a
-- counter first, and the last row of a counter once its call is removed.
create table if not exists gem.rule_places (
  counter       text collate "C" not null, -- as in gem.rule_runs
  n             bigint      not null,      -- 1, 2, 3 and so on
  at            timestamptz not null,      -- never decreases from one n to the next
  call_id       uuid        not null,
  action        text        not null check (action in ('took', 'queued', 'left')),
  holders       uuid[]      not null,      -- the calls that have a place after this row
  waiting       integer     not null,      -- how many calls are in the queue after this row
  head          bigint      not null,      -- the queue has been served up to this row
  max           integer     not null,      -- the number of places
  rules_version text        not null,
  -- of a call that got a place while its row was locked: it still waits, and a worker's heartbeat wakes it
  to_wake       boolean,
  primary key (counter, n)
);
create index if not exists gem_rule_places_call on gem.rule_places (call_id, counter, n);
create index if not exists gem_rule_places_queue on gem.rule_places (counter, n) where action = 'queued';
create index if not exists gem_rule_places_to_wake on gem.rule_places (call_id) where to_wake;
create index if not exists gem_rule_places_old on gem.rule_places using brin (at);

alter table gem.rule_places enable row level security;

-- the call has a place, or waits in the queue for one; of an ended call: it had or did
alter table public.core_tool_calls add column if not exists placed boolean not null default false;

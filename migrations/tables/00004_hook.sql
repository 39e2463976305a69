-- What coding agents did, as their hooks told `gem hook`: facts by which the rules of the rules file's `coding` judge. No contents of files,
-- no outputs, and no commands but those of test runs. Rows leave 30 days after they were recorded, by gem prune and when new ones come.
create table if not exists public.core_hook_events (
  source      text        not null,                        -- the kind of agent, such as claude-code
  session_id  text        not null,
  seq         bigint      generated always as identity,    -- the order of what happened
  tool_use_id text,                                        -- the agent's id of its act; null where it gives none
  event       text        not null,                        -- what told of it: PostToolUse or PostToolUseFailure
  part        integer     not null,                        -- an act may leave several facts
  kind        text        not null check (kind in ('read', 'edit', 'write', 'change', 'test')),
  path        text        check (octet_length(path) <= 4096),    -- a file, or the folder of a test run
  command     text        check (octet_length(command) <= 1000), -- of a test run, without assignments
  outcome     text        check (outcome in ('pass', 'fail', 'unknown')), -- of a test run
  failed      text[]      not null default '{}',           -- the names of tests that failed
  at          timestamptz not null,
  primary key (source, session_id, seq),
  unique (source, session_id, tool_use_id, event, part)    -- an act that is told twice is recorded once
);
-- The facts of a session that a question reads: the last edits, changes and test runs, and the first fact of each kind about a file, whose path may
-- be too long for an index. The order by -seq keeps planners from the primary key, which would read a whole session for the first of a kind.
create index if not exists gem_hook_events_last on public.core_hook_events (source, session_id, seq) where kind <> 'read';
create index if not exists gem_hook_events_of_path on public.core_hook_events (source, session_id, md5(path), kind, (-seq)) where path is not null;
create index if not exists gem_hook_events_old on public.core_hook_events (at);
alter table public.core_hook_events enable row level security;

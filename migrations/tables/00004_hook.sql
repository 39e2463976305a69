-- The actions of coding agents that their hooks reported to `gem hook`, as facts for the `coding` rules. The table has
-- no contents of files, no outputs, and no commands except test runs. Rows are removed 30 days after they were
-- recorded, by gem prune and when new ones arrive.
create table if not exists public.core_hook_events (
  source      text        not null,                        -- the kind of agent, such as claude-code
  session_id  text        not null,
  seq         bigint      generated always as identity,    -- the order of events
  tool_use_id text,                                        -- the agent's id of the action; null if it has none
  event       text        not null,                        -- the hook's event: PostToolUse or PostToolUseFailure
  part        integer     not null,                        -- numbers the facts of one action
  kind        text        not null check (kind in ('read', 'edit', 'write', 'change', 'test')),
  path        text        check (octet_length(path) <= 4096),    -- a file, or the folder of a test run
  command     text        check (octet_length(command) <= 1000), -- of a test run, without assignments
  outcome     text        check (outcome in ('pass', 'fail', 'unknown')), -- of a test run
  failed      text[]      not null default '{}',           -- the names of tests that failed
  at          timestamptz not null,
  primary key (source, session_id, seq),
  unique (source, session_id, tool_use_id, event, part)    -- an action that is reported twice is recorded once
);
-- The facts of a session that a decision reads: the last edits, writes, changes and test runs, and the first fact of
-- each kind about a file, whose path may be too long for an index. The order by -seq keeps planners from using the
-- primary key, which would read a whole session for the first fact of a kind.
create index if not exists gem_hook_events_last on public.core_hook_events (source, session_id, kind, seq)
  where kind <> 'read';
create index if not exists gem_hook_events_of_path on public.core_hook_events (source, session_id, md5(path), kind,
  (-seq)) where path is not null;
create index if not exists gem_hook_events_old on public.core_hook_events (at);
alter table public.core_hook_events enable row level security;

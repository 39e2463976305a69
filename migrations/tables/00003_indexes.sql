-- Constraints that Postgres enforces on calls, receipts and journals, and the indexes of queries. Building an index
-- blocks writes to its table for some seconds per million rows. Each index on calls costs each call about 0.8 % of
-- Postgres's time, even if the call gets no entry.

-- One receipt per call, and one first success per key: a key succeeds once, even if a worker fails.
create unique index if not exists gem_receipts_one_per_call on public.core_tool_receipts (call_id);
create unique index if not exists gem_receipts_one_success_per_key on public.core_tool_receipts (idempotency_key)
  where status = 'succeeded' and replay_of is null and idempotency_key is not null;
-- One holder per key: a second call with the key must wait. A durable call keeps its key between attempts.
create unique index if not exists gem_calls_one_holder_per_key on public.core_tool_calls (computed_key)
  where computed_key is not null and (status in ('running', 'queued') or status = 'waiting' and waits_for <> 'key');
-- A handler makes one call per name. Other children have no name, and their number is unlimited.
create unique index if not exists gem_calls_one_child_per_step on public.core_tool_calls (parent_call_id, parent_step)
  where parent_call_id is not null;

-- The index has the claim's ORDER BY and WHERE. Any other index would make claims read the backlog.
create index if not exists gem_calls_ready on public.core_tool_calls (level, run_at, seq) where status = 'queued';
create index if not exists gem_calls_running on public.core_tool_calls (claimed_by) where status = 'running';
-- Calls that wait for a key, which belongs to one tool, and the open questions of each asking tool, which have no key.
create index if not exists gem_calls_waiting on public.core_tool_calls (waits_for, computed_key, tool_name, asked_for,
  level desc, seq)
  where status = 'waiting';
-- The questions that a user or a role may answer. Questions of rules and handlers have their own index, so that users'
-- questions cannot hide them.
create index if not exists gem_calls_answerers on public.core_tool_calls using gin (answer_by)
  where waits_for = 'answer' and asked_for <> 'user';
create index if not exists gem_calls_answerers_of_users on public.core_tool_calls using gin (answer_by)
  where waits_for = 'answer' and asked_for = 'user';
create index if not exists gem_calls_timers on public.core_tool_calls (wake_at) where wake_at is not null;
-- A caller's own calls, newest first, and counts of its open calls and open questions.
create index if not exists gem_calls_of_caller on public.core_tool_calls (created_by, created_at desc)
  where created_by is not null;
create index if not exists gem_calls_open_of_caller on public.core_tool_calls (created_by, waits_for, asked_for)
  where created_by is not null and status in ('queued', 'waiting', 'running');
-- The calls of a session, and how and when they ended, for rules about earlier calls; null for open calls. There are
-- few running calls, so they need no entry.
create index if not exists gem_calls_of_session on public.core_tool_calls
  (session_id, created_by, tool_name, (coalesce(error ->> 'error_code', nullif(nullif(status, 'queued'), 'waiting'))),
    updated_at)
  where session_id is not null and status <> 'running';
create index if not exists gem_rule_runs_old on gem.rule_runs using brin (at); -- costs almost nothing per row
-- Without it, pruning a receipt would read all others to find its repetitions. Only hits have an entry.
create index if not exists gem_receipts_replays on public.core_tool_receipts (replay_of) where replay_of is not null;
create index if not exists gem_receipts_not_succeeded on public.core_tool_receipts (created_at desc)
  where status <> 'succeeded';
-- For gem.recent_failures. It excludes the codes that gem.failure_kind considers refusals or cancellations. With these,
-- one caller could hide the failures of others.
create index if not exists gem_receipts_failed on public.core_tool_receipts (created_at desc)
  where status <> 'succeeded' and coalesce(result #>> '{error,error_code}', '') not in ('rule_blocked', 'limit_reached',
    'approval_denied', 'approval_expired', 'rule_error', 'not_allowed', 'key_reused', 'cancelled');
-- One entry per call, written at its insert. Lists of the newest calls, os.audit_log_search and gem prune start from
-- it.
create index if not exists gem_events_first on public.core_tool_events (at, call_id) where seq = 1;
create index if not exists gem_answers_of_user on gem.answers (subject, at desc);
create index if not exists gem_answers_old on gem.answers (at);
-- Live workers, recently dead ones, and removable rows. Queries need not read the rows of workers that died long ago.
create index if not exists gem_workers_alive on public.core_workers (alive_until);

-- PostgREST returns estimates of how many rows match a filter. Postgres estimates from the rows of all users, so a user
-- could find the rows of others by repeatedly halving a range of ids or times. Without statistics on the columns, the
-- estimates reveal nothing.
do $$
declare
  col record;
begin
  for col in
    select a.attrelid::regclass as rel, a.attname as name from pg_attribute a
    where a.attrelid in ('public.core_tool_calls'::regclass, 'public.core_tool_receipts'::regclass,
      'public.core_tool_events'::regclass)
      and a.attnum > 0 and not a.attisdropped
  loop
    execute format('alter table %s alter column %I set statistics 0', col.rel, col.name);
  end loop;
end
$$;

-- Supabase's API exposes the whole schema public. Without a policy, no row of a table is visible. The policies are in
-- functions/frontends.sql.
alter table public.core_tool_calls enable row level security;
alter table public.core_tool_receipts enable row level security;
alter table public.core_tool_events enable row level security;
alter table public.core_workers enable row level security;
alter table public.core_registry_versions enable row level security;
alter table public.core_rules_versions enable row level security;

-- What Postgres itself keeps true of calls, receipts and journal, and how they are found. While an index is made nothing is
-- written to its table, some seconds a million rows. Each index of calls costs each call some 0.8 % of Postgres's time, also where it gets no entry.

-- One receipt a call. One first success a key: whatever a worker believes, a key succeeds once.
create unique index if not exists gem_receipts_one_per_call on public.core_tool_receipts (call_id);
create unique index if not exists gem_receipts_one_success_per_key on public.core_tool_receipts (idempotency_key)
  where status = 'succeeded' and replay_of is null and idempotency_key is not null;
-- One holder a key: it makes the second of two calls with one key wait. A durable call keeps its key between its attempts.
create unique index if not exists gem_calls_one_holder_per_key on public.core_tool_calls (computed_key)
  where computed_key is not null and (status in ('running', 'queued') or status = 'waiting' and waits_for <> 'key');
-- A handler makes a call once under a name. Other children have no name, and are as many as they like.
create unique index if not exists gem_calls_one_child_per_step on public.core_tool_calls (parent_call_id, parent_step) where parent_call_id is not null;

-- The claim's index is its ORDER BY inside its WHERE; anything else walks the backlog.
create index if not exists gem_calls_ready on public.core_tool_calls (level, run_at, seq) where status = 'queued';
create index if not exists gem_calls_running on public.core_tool_calls (claimed_by) where status = 'running';
-- Those that wait for a key, which is a tool's, and the questions of each tool that asks, which have none.
create index if not exists gem_calls_waiting on public.core_tool_calls (waits_for, computed_key, tool_name, asked_for, level desc, seq)
  where status = 'waiting';
-- The questions that a user or a role may answer. Those of rules and handlers are separate, so that users' questions cannot hide them.
create index if not exists gem_calls_answerers on public.core_tool_calls using gin ((input -> 'by')) where waits_for = 'answer' and asked_for <> 'user';
create index if not exists gem_calls_answerers_of_users on public.core_tool_calls using gin ((input -> 'by'))
  where waits_for = 'answer' and asked_for = 'user';
create index if not exists gem_calls_timers on public.core_tool_calls (wake_at) where wake_at is not null;
-- A caller's own calls, newest first, and the numbers of open calls and of open questions among them.
create index if not exists gem_calls_of_caller on public.core_tool_calls (created_by, created_at desc) where created_by is not null;
create index if not exists gem_calls_open_of_caller on public.core_tool_calls (created_by, waits_for, asked_for)
  where created_by is not null and status in ('queued', 'waiting', 'running');
-- The calls of a session, and how and when they ended, which rules look back at: null for those that have not. Running ones, which are few, are
-- found as such, and cost no entry more.
create index if not exists gem_calls_of_session on public.core_tool_calls
  (session_id, created_by, tool_name, (coalesce(error ->> 'error_code', nullif(nullif(status, 'queued'), 'waiting'))), updated_at)
  where session_id is not null and status <> 'running';
create index if not exists gem_rule_runs_old on gem.rule_runs using brin (at); -- which costs a row next to nothing
-- Without it, each receipt that is pruned would read all others to see whether one repeats it. Only hits have an entry.
create index if not exists gem_receipts_replays on public.core_tool_receipts (replay_of) where replay_of is not null;
create index if not exists gem_receipts_not_succeeded on public.core_tool_receipts (created_at desc) where status <> 'succeeded';
-- One entry a call, written when it is inserted: lists of the newest calls, os.audit_log_search and gem prune begin with these.
create index if not exists gem_events_first on public.core_tool_events (at, call_id) where seq = 1;
create index if not exists gem_answers_of_user on gem.answers (subject, at desc);
create index if not exists gem_answers_old on gem.answers (at);
-- Who is alive, who died lately, and whose row may go: whatever asks is not kept by rows of workers that are long dead.
create index if not exists gem_workers_alive on public.core_workers (alive_until);

-- PostgREST tells how many rows a filter is estimated to give, and Postgres estimates from the rows of all users: a column
-- without statistics tells nothing. With them, halving a range of ids or times again and again finds those of others.
do $$
declare
  col record;
begin
  for col in
    select a.attrelid::regclass as rel, a.attname as name from pg_attribute a
    where a.attrelid in ('public.core_tool_calls'::regclass, 'public.core_tool_receipts'::regclass, 'public.core_tool_events'::regclass)
      and a.attnum > 0 and not a.attisdropped
  loop
    execute format('alter table %s alter column %I set statistics 0', col.rel, col.name);
  end loop;
end
$$;

-- Supabase's API exposes the schema public whole: without a policy nothing of a table is seen. The policies are in
-- functions/frontends.sql.
alter table public.core_tool_calls enable row level security;
alter table public.core_tool_receipts enable row level security;
alter table public.core_tool_events enable row level security;
alter table public.core_workers enable row level security;
alter table public.core_registry_versions enable row level security;
alter table public.core_rules_versions enable row level security;

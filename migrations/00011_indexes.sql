-- +goose Up
--
-- Indexes, in a file of their own: while one is made, nothing is written to its table, some seconds a million rows.

set local lock_timeout = '3s'; -- to get the lock, see 00008_api.sql

-- A caller's own calls, newest first, and how many of them are open.
create index if not exists gem_calls_of_caller on public.core_tool_calls (created_by, created_at desc) where created_by is not null;
create index if not exists gem_calls_open_of_caller on public.core_tool_calls (created_by)
  where created_by is not null and status in ('queued', 'waiting', 'running');

-- The last calls that did not succeed: gem.recent_failures.
create index if not exists gem_receipts_not_succeeded on public.core_tool_receipts (created_at desc) where status <> 'succeeded';

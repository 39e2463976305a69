-- +goose Up
--
-- Who may judge. As in 00007_hot_path.sql, and: the time is taken after the wait for the worker's own row; and a worker whose
-- own last heartbeat is old judges nobody. What kept it waiting, such as a lock on one of the tables, kept the others too,
-- whose calls run well.

-- +goose StatementBegin
create or replace function gem.heartbeat(p_worker text, p_dead_after interval, p_calls uuid[], p_attempts integer[], p_sweep boolean)
returns table (call_id uuid, attempt integer, verdict text) language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off -- by id, whatever the statistics say
  set jit = off -- a plan that was forced looks dear, and is not
as $$
declare
  at     timestamptz;
  before record;
begin
  select w.alive_until, w.heartbeat_at into before from public.core_workers w where w.worker_id = p_worker for update;
  at := clock_timestamp();
  update public.core_workers w set heartbeat_at = at, alive_until = at + p_dead_after, stopped_at = null where w.worker_id = p_worker;
  if before.alive_until > at and before.heartbeat_at > at - p_dead_after / 2 then
    perform gem.recover(p_worker, case when p_sweep then null else at - interval '3 minutes' end);
  end if;
  return query
  select mine.call_id, mine.attempt, case when held.id is null then 'lost' else 'cancel' end
  from unnest(p_calls, p_attempts) as mine (call_id, attempt)
  left join lateral (
    select c.id, c.cancel_requested_at from public.core_tool_calls c
    where c.id = mine.call_id and coalesce(c.attempt = mine.attempt and c.claimed_by = p_worker and c.status = 'running', false)
  ) held on true
  where held.id is null or held.cancel_requested_at is not null;
  if p_sweep then
    return query
    select c.id, c.attempt, 'unknown' from public.core_tool_calls c
    where c.status = 'running' and c.claimed_by = p_worker and c.id <> all (p_calls);
  end if;
end
$$;
-- +goose StatementEnd

-- +goose Up
--
-- Who may judge. As in 00007_hot_path.sql, and: a worker whose heartbeats were late, or slow, a moment ago takes nobody for dead.
-- What kept it waiting, such as a lock on one of the tables, kept the others too, whose calls run well.

alter table public.core_workers
  add column if not exists steady_since timestamptz; -- null: since it started

-- +goose StatementBegin
create or replace function gem.heartbeat(p_worker text, p_dead_after interval, p_calls uuid[], p_attempts integer[], p_sweep boolean)
returns table (call_id uuid, attempt integer, verdict text) language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off -- by id, whatever the statistics say
  set jit = off -- a plan that was forced looks dear, and is not
as $$
declare
  at     timestamptz;
  before record;
  late   boolean;
begin
  select w.alive_until, w.heartbeat_at, w.steady_since into before from public.core_workers w where w.worker_id = p_worker for update;
  at := clock_timestamp(); -- after the wait for the row
  late := before.alive_until <= at or before.heartbeat_at < at - 0.7 * p_dead_after;
  update public.core_workers w
  set heartbeat_at = at, alive_until = at + p_dead_after, stopped_at = null, steady_since = case when late then at else w.steady_since end
  where w.worker_id = p_worker;

  if not late and coalesce(before.steady_since < at - 0.5 * p_dead_after, true) then
    perform gem.recover(p_worker, case when p_sweep then null else at - interval '3 minutes' end);
  elsif p_sweep then
    -- The look over all calls is still to come: the worker asks again.
    return query select '00000000-0000-0000-0000-000000000000'::uuid, 0, 'late';
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
  if clock_timestamp() > at + 0.1 * p_dead_after then
    update public.core_workers w set steady_since = clock_timestamp() where w.worker_id = p_worker;
  end if;
end
$$;
-- +goose StatementEnd

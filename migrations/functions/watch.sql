-- Views to watch GEM, in the schema gem: for Supabase's table editor, psql, and any dashboard that reads Postgres.
--
--   gem.queue            open calls by tool, and how long they have waited
--   gem.outcomes         outcomes and durations of calls, by tool and day
--   gem.throughput       the same by tool and minute, for the last 72 hours, and how long calls had been due when they
--                        were claimed
--   gem.outcome_totals   outcomes of calls in the last 31 days, by tool
--   gem.key_hits         how often a key had succeeded before, by tool and day
--   gem.recent_failures  up to a hundred recent calls that failed or were not configured, and why
--   gem.workers          workers, alive or not, and the calls that each holds
--   gem.overdue          calls that run longer than their tools may, because their worker cannot end them
--
-- Each view answers in milliseconds, whatever the tables hold. They count the calls of a queue only up to a limit. Some
-- seconds after a call ends, a worker counts its outcome once, by day in gem.outcome_counts and gem.outcome_days, which
-- keep the counts when calls are pruned, and by minute in gem.outcome_minutes. watch_calls.sql has the views of single
-- calls.
--
-- The role gem_monitor may read these views and nothing else. security_barrier keeps its queries' conditions from
-- seeing other rows.

-- Returns the kind of a call with the status failed, by its error code: refused by a rule, by people or by the tool's
-- terms; cancelled; or failed. In Go it is receipts.Code.Kind. The function has no settings, so Postgres inlines it.
create or replace function gem.failure_kind(p_code text) returns text language sql immutable return case
  when p_code in ('rule_blocked', 'limit_reached', 'approval_denied', 'approval_expired', 'rule_error', 'not_allowed',
    'key_reused') then 'refused'
  when p_code = 'cancelled' then 'cancelled'
  else 'failed' end;

-- Returns the smallest receipt id of a moment. The ids of receipts are in the order of time.
create or replace function gem.first_id_at(p_at timestamptz) returns uuid language sql immutable
  set search_path = pg_catalog, pg_temp as $$
  select (encode(substring(int8send((extract(epoch from p_at) * 1000)::bigint) from 3), 'hex') ||
    '00000000000000000000')::uuid
$$;

create or replace function gem.duration_bucket(p_duration interval) returns smallint language sql immutable
  set search_path = pg_catalog, pg_temp as $$
  select ceil(ln(greatest(extract(epoch from p_duration)::float8, 0.0001) / 0.0001) / ln(1.25))::smallint
$$;

-- Returns the middle of a bucket.
create or replace function gem.bucket_ms(p_bucket integer) returns numeric language sql immutable
  set search_path = pg_catalog, pg_temp as $$
  select case when ms < 10 then round(ms, 2) when ms < 100 then round(ms, 1) else round(ms) end
  from (select (0.1 * 1.25 ^ (p_bucket - 0.5))::numeric as ms) middle
$$;

-- Returns a quantile: the middle of the bucket up to which p_part of all measurements lie. p_counts has the number of
-- measurements in each bucket, from bucket 0. Returns null if there are none.
create or replace function gem.part_ms(p_counts integer[], p_part float8) returns numeric language sql immutable
  set search_path = pg_catalog, pg_temp as $$
  select gem.bucket_ms(min(place)::integer - 1)
  from (select n, place, sum(n) over (order by place) as upto, sum(n) over () as of
    from unnest(p_counts) with ordinality u (n, place)) placed
  where n > 0 and upto >= p_part * of
$$;

-- Returns the list of counts, from bucket 0, for some buckets and their counts. It adds up the counts of a bucket that
-- occurs twice. Bucket 99, four days, is the last. The list is empty if there are no buckets.
create or replace function gem.list_counts(p_buckets smallint[], p_counts bigint[]) returns integer[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(n order by place), '{}') from (
    select place, coalesce(sum(n), 0)::integer as n
    from generate_series(0, (select max(least(b, 99)) from unnest(p_buckets) b where b is not null)) place
    left join unnest(p_buckets, p_counts) u (bucket, n) on least(bucket, 99) = place
    group by place) list
$$;

-- Returns the sum of two lists of counts.
create or replace function gem.add_counts(p_one integer[], p_other integer[]) returns integer[]
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select coalesce(array_agg(coalesce(one, 0) + coalesce(other, 0) order by place), '{}')
  from unnest(p_one, p_other) with ordinality u (one, other, place)
$$;

-- The columns of receipts that gem.outcome_counts and gem.outcome_minutes count.
create or replace view gem.outcomes_of_receipts as
select r.id, (r.created_at at time zone 'UTC')::date as day,
  case when r.tool_name = '' or r.status = 'failed'
    and (r.attempt = 0 or r.result -> 'error' ->> 'error_code' = 'unknown_tool' and not r.effects ? 'durable')
    then '(unknown)' else r.tool_name end as tool_name,
  case when r.status = 'failed' then gem.failure_kind(r.result -> 'error' ->> 'error_code')
    else r.status end as outcome,
  r.replay_of is not null as hit, case when r.replay_of is null then gem.duration_bucket(r.duration) end as bucket,
  date_bin('1 minute', r.created_at, '2000-01-01Z') as minute, r.call_id, r.attempt
from public.core_tool_receipts r;

-- Counts up to p_limit receipts that are new since the last run. Returns their number, or null while another worker
-- counts. It ignores receipts of the last 15 s, because an earlier receipt could still be uncommitted: a worker's
-- statements end within 10 s. For 500 of the calls, it looks up how long they had been due.
create or replace function gem.count_outcomes(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
declare
  at      constant timestamptz := gem.now();
  settled constant uuid        := gem.first_id_at(at - interval '15 seconds');
  since   uuid;
  last    uuid;
  counted integer;
begin
  select c.upto into since from gem.outcomes_counted c for update skip locked;
  if since is null then
    return null;
  end if;
  delete from gem.outcome_minutes m where (m.minute, m.tool_name) in (
    select o.minute, o.tool_name from gem.outcome_minutes o where o.minute < at - interval '72 hours'
      order by o.minute limit 2000);
  with ended as (
    select * from gem.outcomes_of_receipts r where r.id >= since and r.id < settled order by r.id limit p_limit + 1
  ), slice as materialized (
    select *, row_number() over (order by id) as place from ended
  ), counts as materialized (
    select minute, day, tool_name, bucket, count(*) as calls,
      count(*) filter (where outcome = 'succeeded') as succeeded,
      count(*) filter (where outcome = 'failed') as failed, count(*) filter (where outcome = 'refused') as refused,
      count(*) filter (where outcome = 'cancelled') as cancelled,
        count(*) filter (where outcome = 'not_configured') as not_configured,
      count(*) filter (where hit) as hits
    from slice where place <= p_limit group by 1, 2, 3, 4
  ), durations as (
    insert into gem.outcome_counts as c (day, tool_name, bucket, succeeded, failed, refused, cancelled, not_configured,
      hits)
    select day, tool_name, bucket, sum(succeeded), sum(failed), sum(refused), sum(cancelled), sum(not_configured),
      sum(hits)
    from counts group by 1, 2, 3
    on conflict (day, tool_name, bucket) do update set succeeded = c.succeeded + excluded.succeeded,
      failed = c.failed + excluded.failed,
      refused = c.refused + excluded.refused, cancelled = c.cancelled + excluded.cancelled,
      not_configured = c.not_configured + excluded.not_configured, hits = c.hits + excluded.hits
  ), days as (
    insert into gem.outcome_days as d (day, tool_name, succeeded, failed, refused, cancelled, not_configured, hits)
    select day, tool_name, sum(succeeded), sum(failed), sum(refused), sum(cancelled), sum(not_configured),
      sum(hits) from counts group by 1, 2
    on conflict (day, tool_name) do update set succeeded = d.succeeded + excluded.succeeded,
      failed = d.failed + excluded.failed,
      refused = d.refused + excluded.refused, cancelled = d.cancelled + excluded.cancelled,
      not_configured = d.not_configured + excluded.not_configured, hits = d.hits + excluded.hits
  ), sample as (
    select s.minute, s.tool_name, gem.duration_bucket(c.claimed_at - greatest(c.created_at, c.run_at)) as bucket
    from slice s join public.core_tool_calls c on c.id = s.call_id
    where s.place <= p_limit and s.place % (select count(*) / 500 + 1 from slice) = 0 and s.attempt = 1
      and c.claimed_at is not null
  ), waits as (
    select minute, coalesce(tool_name, '') as tool_name,
      gem.list_counts(array_agg(bucket), array_agg(1::bigint)) as list
    from sample group by grouping sets ((minute, tool_name), (minute))
  ), sums as (
    select minute, coalesce(tool_name, '') as tool_name, sum(succeeded) as succeeded, sum(failed) as failed,
      sum(refused) as refused,
      sum(cancelled) as cancelled, sum(not_configured) as not_configured, sum(hits) as hits,
      gem.list_counts(array_agg(bucket) filter (where bucket is not null),
        array_agg(calls) filter (where bucket is not null)) as durations
    from counts group by grouping sets ((minute, tool_name), (minute))
  ), minutes as (
    insert into gem.outcome_minutes as m (minute, tool_name, succeeded, failed, refused, cancelled, not_configured,
      hits, durations, waits)
    select s.minute, s.tool_name, s.succeeded, s.failed, s.refused, s.cancelled, s.not_configured, s.hits, s.durations,
      coalesce(w.list, '{}')
    from sums s left join waits w using (minute, tool_name)
    on conflict (minute, tool_name) do update set succeeded = m.succeeded + excluded.succeeded,
      failed = m.failed + excluded.failed,
      refused = m.refused + excluded.refused, cancelled = m.cancelled + excluded.cancelled,
      not_configured = m.not_configured + excluded.not_configured, hits = m.hits + excluded.hits,
      durations = gem.add_counts(m.durations, excluded.durations), waits = gem.add_counts(m.waits, excluded.waits)
  )
  select count(*) filter (where place <= p_limit), (array_agg(id) filter (where place > p_limit))[1] into counted, last
    from slice;
  if counted > 0 then
    update gem.outcomes_counted set upto = coalesce(last, settled), at = gem.now();
  end if;
  return counted;
end
$$;

-- Returns the number of open calls by tool and state. For each state it counts at most 5,000 calls per level, and
-- 10,000 in all, in the order in which they will run. For waiting calls it counts at most 5,000 for each value of
-- waits_for. at_least: there may be more calls, of any tool. The settings keep Postgres from reading the whole table.
create or replace function gem.queue_by_tool() returns table (tool_name text, ready bigint, scheduled bigint,
  waiting bigint, running bigint,
  oldest_ready interval, next_scheduled interval, at_least boolean, waiting_for jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  at   constant timestamptz := gem.now();
  each constant integer     := 5000;
  most constant integer     := 10000;
begin
  return query
  with counted as materialized (
    select o.state, o.level, o.waits_for, o.tool_name, count(*) as calls, min(o.run_at) as first from (
      (select 'ready' as state, l.level, c.tool_name, c.run_at, null as waits_for from gem.levels l, lateral (
         select q.tool_name, q.run_at from public.core_tool_calls q
         where q.status = 'queued' and q.level = l.level and q.run_at <= at order by q.level, q.run_at,
           q.seq limit each) c
       limit most)
      union all
      (select 'scheduled', l.level, c.tool_name, c.run_at, null from gem.levels l, lateral (
         select q.tool_name, q.run_at from public.core_tool_calls q
         where q.status = 'queued' and q.level = l.level and q.run_at > at order by q.level, q.run_at,
           q.seq limit each) c
       limit most)
      union all
      (select 'waiting', 0, q.tool_name, q.run_at, 'key' from public.core_tool_calls q
        where q.status = 'waiting' and q.waits_for = 'key' order by q.computed_key limit each)
      union all
      (select 'waiting', 0, q.tool_name, q.run_at, kind
        from unnest(array['call', 'answer', 'time', 'code', 'place']) kind,
        lateral (
         select w.tool_name, w.run_at from public.core_tool_calls w
         where w.status = 'waiting' and w.waits_for = kind order by w.computed_key limit each) q)
      union all
      (select 'running', 0, q.tool_name, q.run_at, null from public.core_tool_calls q where q.status = 'running'
        order by q.claimed_by limit each)
    ) o group by 1, 2, 3, 4
  ), depth as (
    select c.state, c.level, c.waits_for, sum(c.calls) as calls from counted c group by 1, 2, 3
  )
  select coalesce(c.tool_name, ''), coalesce(sum(c.calls) filter (where c.state = 'ready'), 0)::bigint,
    coalesce(sum(c.calls) filter (where c.state = 'scheduled'), 0)::bigint,
      coalesce(sum(c.calls) filter (where c.state = 'waiting'), 0)::bigint,
    coalesce(sum(c.calls) filter (where c.state = 'running'), 0)::bigint,
    at - min(c.first) filter (where c.state = 'ready'), min(c.first) filter (where c.state = 'scheduled') - at,
    exists (select from depth d where d.calls >= each)
      or exists (select from depth d where d.waits_for is null group by d.state having sum(d.calls) >= most),
    jsonb_object_agg(c.waits_for, c.calls) filter (where c.state = 'waiting')
  from counted c group by c.tool_name;
end
$$;

create or replace view gem.queue with (security_barrier) as select * from gem.queue_by_tool() order by ready desc,
  tool_name;

-- Covers the last 31 days; gem.outcome_counts has earlier days. The durations cover calls that ran, without hits. The
-- view looks up the days one by one, so that a condition on day or tool_name uses the index. A WITH would prevent that,
-- because gem.now() is volatile.
create or replace view gem.outcomes with (security_barrier) as
select day, tool_name, sum(calls)::bigint as calls, sum(succeeded)::bigint as succeeded, sum(failed)::bigint as failed,
  sum(refused)::bigint as refused, sum(cancelled)::bigint as cancelled, sum(not_configured)::bigint as not_configured,
    sum(hits)::bigint as hits,
  gem.bucket_ms(min(bucket) filter (where ran > 0 and upto >= 0.5 * of)) as p50_ms,
  gem.bucket_ms(min(bucket) filter (where ran > 0 and upto >= 0.95 * of)) as p95_ms
from (
  select *, sum(ran) over (partition by day, tool_name order by bucket) as upto,
    sum(ran) over (partition by day, tool_name) as of
  from (
    select *, case when bucket is not null then calls else 0 end as ran
    from (
      select c.day, c.tool_name, c.bucket,
        (c.succeeded + c.failed + c.refused + c.cancelled + c.not_configured)::float8 as calls,
        c.succeeded, c.failed, c.refused, c.cancelled, c.not_configured, c.hits
      from generate_series(0, 30) ago cross join lateral (
        select * from gem.outcome_counts c where c.day = ((select gem.now()) at time zone 'UTC')::date - ago) c
      union all
      select r.day, r.tool_name, r.bucket, 1, (r.outcome = 'succeeded')::integer, (r.outcome = 'failed')::integer,
        (r.outcome = 'refused')::integer,
        (r.outcome = 'cancelled')::integer, (r.outcome = 'not_configured')::integer, r.hit::integer
      from gem.outcomes_of_receipts r
      where r.id >= (select upto from gem.outcomes_counted where only_row)
        and r.id < gem.first_id_at((select gem.now()) + interval '1 minute')
    ) counts
  ) timed
) placed
group by day, tool_name
order by day desc, calls desc, tool_name;

-- The counts lag by some seconds. tool_name is empty for all tools together. The durations cover calls that ran,
-- without hits. The queue columns show how long calls had been due when they were claimed, from a sample of calls that
-- ended in their first attempt.
create or replace view gem.throughput as
select m.minute, m.tool_name, m.succeeded, m.failed, m.refused, m.cancelled, m.not_configured, m.hits,
  gem.part_ms(m.durations, 0.5) as p50_ms, gem.part_ms(m.durations, 0.95) as p95_ms,
  gem.part_ms(m.waits, 0.5) as queue_p50_ms, gem.part_ms(m.waits, 0.95) as queue_p95_ms, m.durations, m.waits
from gem.outcome_minutes m;

-- Sums gem.outcomes over its days, by tool.
create or replace view gem.outcome_totals with (security_barrier) as
select tool_name, sum(succeeded)::bigint as succeeded, sum(failed)::bigint as failed, sum(refused)::bigint as refused,
  sum(cancelled)::bigint as cancelled, sum(not_configured)::bigint as not_configured, sum(hits)::bigint as hits
from (
  select d.tool_name, d.succeeded, d.failed, d.refused, d.cancelled, d.not_configured, d.hits
  from generate_series(0, 30) ago cross join lateral (
    select * from gem.outcome_days d where d.day = ((select gem.now()) at time zone 'UTC')::date - ago) d
  union all
  select r.tool_name, (r.outcome = 'succeeded')::integer, (r.outcome = 'failed')::integer,
    (r.outcome = 'refused')::integer,
    (r.outcome = 'cancelled')::integer, (r.outcome = 'not_configured')::integer, r.hit::integer
  from gem.outcomes_of_receipts r
  where r.id >= (select upto from gem.outcomes_counted where only_row)
    and r.id < gem.first_id_at((select gem.now()) + interval '1 minute')
) counts
group by tool_name;

create or replace view gem.key_hits with (security_barrier) as
select day, tool_name, succeeded, hits, round(100.0 * hits / succeeded, 1) as percent from gem.outcomes where hits > 0;

-- The callers of the last 5,000 failures share the hundred rows. Refused and cancelled calls are not failures:
-- gem.receipts has them. The list of codes must be the same as in the index; otherwise Postgres reads all failures.
create or replace view gem.recent_failures with (security_barrier) as
select r.created_at as at, r.tool_name, r.status, r.call_id, r.result -> 'error' ->> 'error_code' as error_code,
  coalesce(r.result -> 'error' ->> 'message', r.result ->> 'reason') as message, r.attempt, r.worker_id,
  share.created_by, r.duration
from (
  select f.id, c.created_by, row_number() over (partition by c.created_by order by f.created_at desc) as nth,
    f.created_at
  from (
    select r.id, r.call_id, r.created_at from public.core_tool_receipts r
    where r.status <> 'succeeded'
      and coalesce(r.result #>> '{error,error_code}', '') not in ('rule_blocked', 'limit_reached', 'approval_denied',
        'approval_expired', 'rule_error', 'not_allowed', 'key_reused', 'cancelled')
      and gem.failure_kind(r.result -> 'error' ->> 'error_code') = 'failed'
    order by r.created_at desc limit 5000) f
  left join lateral (select o.created_by from public.core_tool_calls o where o.id = f.call_id offset 0) c on true
  order by nth, f.created_at desc limit 100) share
cross join lateral (select o.* from public.core_tool_receipts o where o.id = share.id offset 0) r
order by r.created_at desc;

-- Dead and stopped workers remain for an hour. A worker without rules claims nothing if rules are required. If a worker
-- that is not listed still holds calls, the next heartbeat of another worker requeues them.
create or replace view gem.workers with (security_barrier) as
select coalesce(w.worker_id, h.claimed_by) as worker_id,
  case when w.worker_id is null then 'unknown' when w.stopped_at is not null then 'stopped'
    when w.alive_until > gem.now() then 'alive' else 'dead' end
    as state,
  coalesce(h.calls, 0) as holds, w.concurrency, gem.now() - h.since as longest,
    gem.now() - w.heartbeat_at as last_heartbeat,
  w.started_at, w.stopped_at, w.gem_version, w.registry_version, w.rules_version,
  w.rules_version is null and w.worker_id is not null and (select l.rules_required from gem.limits l) as claims_nothing
from public.core_workers w
full join (select c.claimed_by, count(*) as calls, min(c.claimed_at) as since from public.core_tool_calls c
  where c.status = 'running' group by 1) h
  on h.claimed_by = w.worker_id
order by w.stopped_at is not null, w.alive_until < gem.now(), w.started_at desc;

-- The timeout comes from the worker's registry. A worker abandons a handler after its timeout. If the call still runs
-- half a minute later, the worker cannot write its end.
create or replace view gem.overdue with (security_barrier) as
with timeouts as materialized (
  select v.version, t ->> 'name' as tool_name, (t ->> 'timeout_ms')::float8 * interval '1 millisecond' as timeout
  from public.core_registry_versions v, jsonb_array_elements(v.registry -> 'tools') t
  where v.version in (select w.registry_version from public.core_workers w)
)
select c.id as call_id, c.tool_name, c.claimed_by as worker_id, c.claimed_at, gem.now() - c.claimed_at as runs_for,
  t.timeout
from public.core_tool_calls c
join public.core_workers w on w.worker_id = c.claimed_by
join timeouts t on t.version = w.registry_version and t.tool_name = c.tool_name
where c.status = 'running' and c.claimed_at < (select gem.now()) - t.timeout - interval '30 seconds'
order by c.claimed_at;

-- This counts receipts that are older than these views, such as the receipts of an earlier GEM. Workers count later
-- receipts.
insert into gem.outcomes_counted (upto, at) values (gem.first_id_at(gem.now() - interval '15 seconds'), gem.now())
  on conflict do nothing;
insert into gem.outcome_counts (day, tool_name, bucket, succeeded, failed, refused, cancelled, not_configured, hits)
select r.day, r.tool_name, r.bucket, count(*) filter (where outcome = 'succeeded'),
  count(*) filter (where outcome = 'failed'),
  count(*) filter (where outcome = 'refused'), count(*) filter (where outcome = 'cancelled'),
    count(*) filter (where outcome = 'not_configured'),
  count(*) filter (where hit)
from gem.outcomes_of_receipts r
where not exists (select from gem.outcome_counts)
  and r.id in (select o.id from public.core_tool_receipts o
    where o.created_at < (select at - interval '15 seconds' from gem.outcomes_counted))
group by 1, 2, 3;
insert into gem.outcome_days (day, tool_name, succeeded, failed, refused, cancelled, not_configured, hits)
select c.day, c.tool_name, sum(c.succeeded), sum(c.failed), sum(c.refused), sum(c.cancelled), sum(c.not_configured),
  sum(c.hits)
from gem.outcome_counts c
where not exists (select from gem.outcome_days)
group by 1, 2;

select gem.grant_to('gem_worker', 'execute on function gem.count_outcomes(integer)');
select gem.grant_to('gem_monitor',
  'select on gem.queue, gem.outcomes, gem.outcome_totals, gem.throughput, gem.key_hits, gem.recent_failures,
    gem.workers, gem.overdue');
select gem.grant_to('gem_monitor', 'execute on function gem.now(), gem.queue_by_tool(), gem.first_id_at(timestamptz),
  gem.failure_kind(text), gem.duration_bucket(interval), gem.bucket_ms(integer), gem.part_ms(integer[], float8)');
revoke all on all functions in schema gem from public;

-- Progress: output of calls before their receipts. A worker writes the progress of all its calls together, a few times
-- a second.

-- Writes rows of many calls, and returns the state of each call. p_streams is a list of {call, attempt, after, rows:
-- [{kind, data}]}: `after` is the seq of the attempt's last row that the worker knows to be written, or null. If a
-- worker sends rows again because it lost the answer, they are not written twice. The states are
--   written  all rows are written, and seq is that of the last
--   full     the call has 2,000 rows, and the last row states this: nothing more is written for the call
--   busy     another transaction has locked the call: send the rows again
--   gone     the attempt does not hold its call: nothing is written
-- The function does not wait for locks, because one locked call would delay all streams.
create or replace function gem.progress(p_streams jsonb) returns table (call_id uuid, attempt integer, seq integer,
  state text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- use the indexes on ids, whatever the statistics are
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan set jit = off as $$
#variable_conflict use_column
declare
  moment timestamptz := gem.now();
  most   constant integer := 2000;
  held   uuid[]; -- the locked calls: none can begin another attempt before these rows are written
begin
  held := array(
    select c.id from jsonb_to_recordset(p_streams) s (call uuid, attempt integer)
    join public.core_tool_calls c on c.id = s.call and c.attempt = s.attempt and c.status = 'running'
    for no key update of c skip locked);
  return query
  with streams as materialized (
    select s.call, s.attempt, s.rows, c.id is not null as holds, s.call = any (held) as locked,
      coalesce(last.seq, s.after, 0) as last,
      coalesce(last.seq > s.after or s.after is null and last.attempt = s.attempt, false) as again
    from jsonb_to_recordset(p_streams) s (call uuid, attempt integer, after integer, rows jsonb)
    left join public.core_tool_calls c on c.id = s.call and c.attempt = s.attempt and c.status = 'running'
    left join lateral (
      select p.seq, p.attempt from public.core_tool_progress p where p.call_id = s.call
        order by p.seq desc limit 1) last on true
  ), added as (
    insert into public.core_tool_progress (call_id, attempt, seq, at, kind, data)
    select s.call, s.attempt, s.last + r.n, moment, case when s.last + r.n < most then r.kind else 'status' end,
      case when s.last + r.n < most then r.data else '{"state": "stopped", "why": "rows"}' end
    from streams s, rows from (jsonb_to_recordset(s.rows) as (kind text, data jsonb)) with ordinality r (kind, data, n)
    where s.holds and s.locked and not s.again and s.last + r.n <= most
  )
  select s.call, s.attempt, ended.seq, case when not s.holds then 'gone' when not s.locked then 'busy'
    when ended.seq = most then 'full' else 'written' end
  from streams s, lateral (
    select least(s.last + case when s.again then 0 else jsonb_array_length(s.rows) end, most) as seq) ended;
end
$$;

-- Removes the progress of calls whose receipts are older than ten minutes, at most five thousand rows. The next
-- heartbeat continues. The first row of a call is removed last, because the search for old progress uses it.
create or replace function gem.forget_progress() returns void language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
    set jit = off as $$
declare
  before timestamptz := gem.now() - interval '10 minutes';
  ended  uuid[];
begin
  ended := array(
    select p.call_id from public.core_tool_progress p
    where p.seq = 1 and p.at < before and before > coalesce(
      (select r.created_at from public.core_tool_receipts r where r.call_id = p.call_id),
      (select timestamptz 'infinity' from public.core_tool_calls c where c.id = p.call_id), '-infinity')
    order by p.at limit 1000 for update skip locked);
  if cardinality(ended) > 0 then
    delete from public.core_tool_progress p where p.ctid = any (array(
      select o.ctid from public.core_tool_progress o where o.call_id = any (ended) order by o.call_id,
        o.seq desc limit 5000));
  end if;
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.progress(jsonb)');
revoke all on all functions in schema gem from public;

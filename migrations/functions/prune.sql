-- Pruning removes finished calls from the tables, with their receipts and journals. It is the only exception to the
-- rule that written rows stay. `gem prune` calls gem.prune in small batches, and writes the returned rows to an archive
-- before it commits. Only the owner may execute it. The caller decides which calls are old enough; `gem prune` walks
-- gem_events_first.

-- Removes the finished calls among p_calls, and returns each with its line for the archive: the rows of the call, of
-- its receipt and of its events, as {"gem_archive": 1, "call", "receipt", "events"}, plus "llm_requests" if it asked
-- models, and "second_receipts" if an import found any. Without p_lines, the line is null. Progress is not archived.
-- With p_keep_keys, the data that hits need of each removed success with a key is kept in gem.kept_keys. The function
-- keeps a call, and does not return it, while
--   another call that stays was made on its behalf, or repeats its receipt,
--   the handler that made it has not ended, or
--   it has no receipt, which gem audit reports, or another transaction has locked it.
-- A running call that is about to repeat the receipt does not prevent this: Postgres rejects its end, and it decides
-- again. The caller commits once the lines are safe. Until then the rows are locked, and nothing is deleted.
drop function if exists gem.prune(uuid[]);
drop function if exists gem.prune(uuid[], boolean);
create or replace function gem.prune(p_calls uuid[], p_lines boolean default true, p_keep_keys boolean default false)
returns table (call_id uuid, line text)
language plpgsql security definer set search_path = pg_catalog,
  pg_temp set timezone = 'UTC' set intervalstyle = 'postgres' as $$
#variable_conflict use_column
declare
  ids uuid[];
begin
  -- With the offsets, Postgres looks up the rows of each call. Otherwise it may read whole tables first.
  --
  -- These locks make new references to the rows wait; once the rows are deleted, Postgres rejects the references. The
  -- next statement sees older references.
  ids := array(
    select c.id from public.core_tool_calls c
    where c.id = any (p_calls) and gem.is_final(c.status) and not (c.parent_step is not null and exists (
      select from public.core_tool_calls p where p.id = c.parent_call_id and not gem.is_final(p.status) offset 0))
    for update skip locked);
  ids := array(select r.call_id from public.core_tool_receipts r where r.call_id = any (ids) for update skip locked);

  ids := array(
    with recursive batch as (
      select c.id, c.parent_call_id as parent, r.id as receipt, r.replay_of
      from public.core_tool_calls c, lateral (
        select o.id, o.replay_of from public.core_tool_receipts o where o.call_id = c.id offset 0) r
      where c.id = any (ids)
    ), needed (id) as (
      select b.id from batch b
      where exists (select from public.core_tool_calls c where c.parent_call_id = b.id and c.id <> all (ids) offset 0)
        or exists (select from public.core_tool_receipts r where r.replay_of = b.receipt
          and r.call_id <> all (ids) offset 0)
      union
      select above.id from needed n
      join batch b on b.id = n.id
      join batch above on above.id = b.parent or above.receipt = b.replay_of
    )
    select b.id from batch b where b.id not in (select n.id from needed n));

  perform gem.llm_prune(ids);

  return query
    select c.id, case when p_lines then (jsonb_build_object('gem_archive', 1, 'call', to_jsonb(c),
        'receipt', to_jsonb(r), 'events', (select jsonb_agg(to_jsonb(e) order by e.seq)
          from public.core_tool_events e where e.call_id = c.id))
      || case when asked.id is null then '{}' else jsonb_build_object('llm_requests', asked.requests) end
      || case when second.id is null then '{}' else jsonb_build_object('second_receipts', second.receipts) end)::text
        end
    from public.core_tool_calls c
    cross join lateral (select o.* from public.core_tool_receipts o where o.call_id = c.id offset 0) r
    left join (select s.call_id as id, jsonb_agg(to_jsonb(s)) as receipts from gem.imported_second_receipts s
      where s.call_id = any (ids)
      group by s.call_id) second on second.id = c.id
    left join (select q.call_id as id, jsonb_agg(to_jsonb(q) order by q.n) as requests from public.core_llm_requests q
      where q.call_id = any (ids)
      group by q.call_id) asked on asked.id = c.id
    where c.id = any (ids)
    order by r.replay_of is null, r.created_at, c.id; -- receipts that repeat another one come before it

  if p_keep_keys then
    insert into gem.kept_keys (key, receipt_id, call_id, created_by, input_hash, result, ended_at)
    select r.idempotency_key, r.id, c.id, c.created_by, case r.effects #>> '{idempotency,mode}'
        when 'keyed' then jsonb_hash_extended(c.input - (r.effects #>> '{idempotency,key_field}'), 0)
        when 'safe-retry' then jsonb_hash_extended(c.input, 0) end, r.result, r.created_at
    from public.core_tool_receipts r join public.core_tool_calls c on c.id = r.call_id
    where r.call_id = any (ids) and r.status = 'succeeded' and r.replay_of is null and r.idempotency_key is not null
    on conflict do nothing;
  end if;

  -- Set here and not in the function's header: an owner that is not a superuser may not use a custom setting there.
  perform set_config('gem.pruning', 'on', true);
  delete from public.core_tool_progress p where p.call_id = any (ids);
  delete from gem.notice_calls n where n.call_id = any (ids);
  delete from public.core_llm_requests r where r.call_id = any (ids);
  delete from gem.imported_second_receipts s where s.call_id = any (ids);
  delete from public.core_tool_events e where e.call_id = any (ids);
  delete from public.core_tool_receipts r where r.call_id = any (ids);
  delete from public.core_tool_calls c where c.id = any (ids);
  perform set_config('gem.pruning', '', true);
end
$$;

-- Removes at most p_limit kept keys of calls that ended before p_before. Returns how many it removed. A key stays while
-- a receipt repeats it. Only the owner may execute it; `gem prune --keep-keys` calls it.
create or replace function gem.prune_kept_keys(p_limit integer, p_before timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  removed integer;
  old     text[];
begin
  old := array(
    select k.key from gem.kept_keys k
    where k.ended_at < p_before
      and not exists (select from public.core_tool_receipts r where r.replay_of = k.receipt_id offset 0)
    order by k.ended_at limit p_limit for update skip locked);
  -- The locks make new repetitions wait, and this statement sees the ones that came before the locks.
  delete from gem.kept_keys k where k.key = any (old)
    and not exists (select from public.core_tool_receipts r where r.replay_of = k.receipt_id offset 0);
  get diagnostics removed = row_count;
  return removed;
end
$$;

-- Removes occurrences that were written before p_before, except the last of each schedule, and removed schedules with
-- their last one. Returns the number of schedules from which it removed anything, at most p_limit. `gem prune` calls
-- it.
create or replace function gem.prune_occurrences(p_limit integer, p_before timestamptz) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  this  record;
  did   boolean;
  count integer := 0;
begin
  perform set_config('gem.pruning', 'on', true);
  for this in
    -- the rows that stay are consecutive instants: one that waited was written after later ones
    select s.id, s.removed is not null as removed, (select min(k.due_at) from gem.occurrences k
      where k.schedule_id = s.id and (k.at >= p_before or s.removed is null and k.due_at in (
        select max(l.due_at) from gem.occurrences l where l.schedule_id = s.id and not l.backfilled
        union all -- with the last call: see gem.open_occurrence
        select max(l.due_at) from gem.occurrences l
        where l.schedule_id = s.id and not l.backfilled and l.call_id is not null))) as keep_from
    from gem.schedules s
    where exists (select from gem.occurrences o where o.schedule_id = s.id and o.at < p_before)
      or (s.removed ->> 'at')::timestamptz < p_before
  loop
    with gone as (
      delete from gem.occurrences o
      where o.schedule_id = this.id and o.at < p_before and (this.keep_from is null or o.due_at < this.keep_from)
      returning o.upto
    )
    update gem.schedules s set pruned_upto = greatest(s.pruned_upto, (select max(gone.upto) from gone))
    where s.id = this.id and exists (select from gone);
    did := found;
    if this.removed and this.keep_from is null then
      delete from gem.schedules s where s.id = this.id and (s.removed ->> 'at')::timestamptz < p_before;
      did := did or found;
    end if;
    count := count + did::integer;
    exit when count >= p_limit;
  end loop;
  perform set_config('gem.pruning', '', true);
  return count;
end
$$;

revoke all on all functions in schema gem from public;

-- Pruning: how finished calls leave the tables, with their receipts and journals. It is the one exception to "what is written
-- stays". `gem prune` calls gem.prune in small batches, and writes what it returns to an archive before it commits. Only the
-- owner may execute it. The caller says which calls are old enough; `gem prune` walks gem_events_first.

-- Removes the finished calls among p_calls, and returns each with its line for the archive: the rows of the call, of its
-- receipt and of its events as they were, as {"gem_archive": 1, "call", "receipt", "events"}, "llm_requests" where it
-- asked models, and "second_receipts" where an import found such. Progress is not archived. A call
-- stays, and is not returned, while
--   another call that stays was made on its behalf, or repeats its receipt,
--   the handler that made it has not ended, or
--   it has no receipt, which gem audit reports, or another transaction has it locked.
-- A running call that is about to repeat its receipt does not keep it: its end is refused, and it is decided again.
-- The caller commits when the lines are safe; until then the rows are locked, and nothing is gone.
create or replace function gem.prune(p_calls uuid[]) returns table (call_id uuid, line text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC' set intervalstyle = 'postgres' as $$
#variable_conflict use_column
declare
  ids uuid[];
begin
  -- Locked, so that what refers to them from now on waits, and is refused when they are gone; what referred to them before is
  -- seen by the next statement.
  ids := array(
    select c.id from public.core_tool_calls c
    where c.id = any (p_calls) and gem.is_final(c.status) and not (c.parent_step is not null and exists (
      select from public.core_tool_calls p where p.id = c.parent_call_id and not gem.is_final(p.status)))
    for update skip locked);
  ids := array(select r.call_id from public.core_tool_receipts r where r.call_id = any (ids) for update skip locked);

  ids := array(
    with recursive batch as (
      select c.id, c.parent_call_id as parent, r.id as receipt, r.replay_of
      from public.core_tool_calls c join public.core_tool_receipts r on r.call_id = c.id
      where c.id = any (ids)
    ), needed (id) as (
      select b.id from batch b
      where exists (select from public.core_tool_calls c where c.parent_call_id = b.id and c.id <> all (ids))
        or exists (select from public.core_tool_receipts r where r.replay_of = b.receipt and r.call_id <> all (ids))
      union
      select above.id from needed n
      join batch b on b.id = n.id
      join batch above on above.id = b.parent or above.receipt = b.replay_of
    )
    select b.id from batch b where b.id not in (select n.id from needed n));

  perform gem.llm_prune(ids);

  return query
    select c.id, (jsonb_build_object('gem_archive', 1, 'call', to_jsonb(c), 'receipt', to_jsonb(r), 'events',
        (select jsonb_agg(to_jsonb(e) order by e.seq) from public.core_tool_events e where e.call_id = c.id))
      || case when asked.id is null then '{}' else jsonb_build_object('llm_requests', asked.requests) end
      || case when second.id is null then '{}' else jsonb_build_object('second_receipts', second.receipts) end)::text
    from public.core_tool_calls c
    join public.core_tool_receipts r on r.call_id = c.id
    left join (select s.call_id as id, jsonb_agg(to_jsonb(s)) as receipts from gem.imported_second_receipts s where s.call_id = any (ids)
      group by s.call_id) second on second.id = c.id
    left join (select q.call_id as id, jsonb_agg(to_jsonb(q) order by q.n) as requests from public.core_llm_requests q where q.call_id = any (ids)
      group by q.call_id) asked on asked.id = c.id
    where c.id = any (ids)
    order by r.replay_of is null, r.created_at, c.id; -- a receipt after those that repeat it

  -- Set here, and not with the function: an owner that is no superuser may not do that with a setting of its own.
  perform set_config('gem.pruning', 'on', true);
  delete from public.core_tool_progress p where p.call_id = any (ids);
  delete from public.core_llm_requests r where r.call_id = any (ids);
  delete from gem.imported_second_receipts s where s.call_id = any (ids);
  delete from public.core_tool_events e where e.call_id = any (ids);
  delete from public.core_tool_receipts r where r.call_id = any (ids);
  delete from public.core_tool_calls c where c.id = any (ids);
  perform set_config('gem.pruning', '', true);
end
$$;

revoke all on all functions in schema gem from public;

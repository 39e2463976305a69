-- The history by which `gem hook` judges coding agents. The hook reads and writes it only through these functions.

-- Returns what a session did, in order, as an array of {kind, path, command, outcome, failed}: the last 2,000 edits,
-- writes, changes and test runs each, and the first read, edit and write of each file in p_paths. {"kind": "cut",
-- "path": KIND} means that earlier facts of that kind exist.
create or replace function gem.hook_facts(p_source text, p_session text, p_paths text[]) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
  -- use the index, whatever the statistics are
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  with last as materialized (
    select l.*, row_number() over (partition by l.kind order by l.seq desc) as n
    from unnest(array['edit', 'write', 'change', 'test']) k (kind), lateral (
      select * from public.core_hook_events e
      where e.source = p_source and e.session_id = p_session and e.kind = k.kind and e.kind <> 'read'
      order by e.seq desc limit 2001) l
  ), facts as (
    select seq, kind, path, command, outcome, failed from last where n <= 2000
    union
    select first.seq, first.kind, first.path, first.command, first.outcome, first.failed
    from unnest(p_paths) p (path), unnest(array['read', 'edit', 'write']) k (kind), lateral (
      select * from public.core_hook_events e
      where e.source = p_source and e.session_id = p_session and md5(e.path) = md5(p.path) and e.path = p.path
        and e.kind = k.kind
      order by -e.seq desc limit 1) first
    union all
    select 0, 'cut', last.kind, null, null, '{}' from last where n = 2001
  )
  select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('kind', f.kind, 'path', f.path, 'command', f.command,
    'outcome', f.outcome,
    'failed', case when f.failed <> '{}' then f.failed end)) order by f.seq), '[]')
  from facts f
$$;

-- Records the facts of one action, an array in the same form, and deletes a few expired rows.
create or replace function gem.hook_record(p_source text, p_session text, p_tool_use_id text, p_event text,
  p_facts jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into public.core_hook_events (source, session_id, tool_use_id, event, part, kind, path, command, outcome,
    failed, at)
  select p_source, p_session, nullif(p_tool_use_id, ''), p_event, f.part - 1, f.fact ->> 'kind', f.fact ->> 'path',
    f.fact ->> 'command', f.fact ->> 'outcome',
    array(select jsonb_array_elements_text(f.fact -> 'failed')), gem.now()
  from jsonb_array_elements(p_facts) with ordinality f (fact, part)
  order by f.part
  on conflict do nothing;
  perform gem.prune_hook_events(20);
end
$$;

-- Removes rows that were recorded more than 30 days ago, at most p_limit. Returns their number.
create or replace function gem.prune_hook_events(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$ -- use the index, whatever the statistics are
declare
  -- a comparison with a volatile function would not use the index
  before  timestamptz := gem.now() - interval '30 days';
  removed integer;
begin
  delete from public.core_hook_events e where e.ctid = any (array(
    select old.ctid from public.core_hook_events old where old.at < before
      order by old.at limit p_limit for update skip locked));
  get diagnostics removed = row_count;
  return removed;
end
$$;

select gem.grant_to('gem_worker',
  'execute on function gem.hook_facts(text, text, text[]), gem.hook_record(text, text, text, text, jsonb)');
select gem.grant_to('gem_operator', 'select on public.core_hook_events'),
  gem.open_to('gem_operator', 'public.core_hook_events', 'gem_operator_reads', 'for select to %I using (true)');
revoke all on all functions in schema gem from public;

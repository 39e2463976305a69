-- The versions of rules and domains that workers run with, and the removal of old rows of counters.

-- Records the rules that a worker is about to run with. Returns the recorded rules of that version. They differ if
-- another worker recorded other rules under that version earlier. p_longest is the longest time that one of the rules
-- looks back.
create or replace function gem.record_rules(p_version text, p_sha256 text, p_rules jsonb, p_longest interval)
returns table (sha256 text, rules jsonb) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into public.core_rules_versions (version, sha256, rules, longest, recorded_at)
  values (p_version, p_sha256, p_rules, p_longest, gem.now())
  on conflict do nothing;
  return query select v.sha256, v.rules from public.core_rules_versions v where v.version = p_version;
end
$$;

-- Does the same for a domains.json.
create or replace function gem.record_domains(p_version text, p_sha256 text, p_domains jsonb)
returns table (sha256 text, domains jsonb) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into gem.domains_versions (version, sha256, domains, recorded_at)
    values (p_version, p_sha256, p_domains, gem.now())
  on conflict do nothing;
  return query select v.sha256, v.domains from gem.domains_versions v where v.version = p_version;
end
$$;

-- Removes rows of counters that are older than twice the longest period of all recorded rules, at most p_limit. Returns
-- their number. It removes a counter's oldest rows first, so that no gap appears. A counter's last row remains until
-- its call is pruned; it does not remain forever, because callers' input determines the names of counters. A counter
-- without rows begins again at 1. Only the owner may execute it; gem prune calls it.
create or replace function gem.prune_rule_runs(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  before  timestamptz;
  removed integer;
begin
  select gem.now() - 2 * max(v.longest) into before from public.core_rules_versions v;
  with old as (
    select r.counter, r.n from gem.rule_runs r
    where r.at < before and ( -- the offsets keep Postgres from reading other counters and calls
      exists (select from gem.rule_runs later where later.counter = r.counter and later.n = r.n + 1 offset 0)
      or not exists (select from public.core_tool_calls c where c.id = r.call_id offset 0))
    order by r.at, r.counter, r.n limit p_limit for update
  )
  delete from gem.rule_runs r using old where (r.counter, r.n) = (old.counter, old.n);
  get diagnostics removed = row_count;
  return removed;
end
$$;

-- Removes rows of places that are older than a day and twice the longest period of all recorded rules, at most p_limit,
-- and returns their number. It removes a counter's oldest rows first, up to the first one that an open call needs. The
-- last row of a counter goes once its call is pruned. Only the owner may execute it; gem prune calls it.
create or replace function gem.prune_rule_places(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  before  timestamptz;
  removed integer;
begin
  select gem.now() - greatest(2 * max(v.longest), interval '1 day') into before from public.core_rules_versions v;
  with old as materialized (
    select r.counter, r.n from gem.rule_places r
    where r.at < before and (
      exists (select from gem.rule_places later where later.counter = r.counter and later.n = r.n + 1 offset 0)
      or not exists (select from public.core_tool_calls c where c.id = r.call_id offset 0))
    order by r.at, r.counter, r.n limit p_limit for update
  ), needed as materialized (
    select o.counter, gem.first_needed(o.counter) as n from (select distinct old.counter from old) o
  )
  delete from gem.rule_places r using old join needed on needed.counter = old.counter
  where (r.counter, r.n) = (old.counter, old.n) and (needed.n is null or r.n < needed.n);
  get diagnostics removed = row_count;
  return removed;
end
$$;

select gem.grant_to('gem_worker',
  'execute on function gem.record_rules(text, text, jsonb, interval), gem.record_domains(text, text, jsonb)');
revoke all on all functions in schema gem from public;

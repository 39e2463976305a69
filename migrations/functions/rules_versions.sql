-- The files of rules and of domains that workers run with, and how the rows that limits count leave.

-- Records the rules that a worker is about to run with, and returns what stands under their version: the same, or what another
-- worker recorded there before. p_longest is the longest time that one of them looks back.
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
  insert into gem.domains_versions (version, sha256, domains, recorded_at) values (p_version, p_sha256, p_domains, gem.now())
  on conflict do nothing;
  return query select v.sha256, v.domains from gem.domains_versions v where v.version = p_version;
end
$$;

-- Removes rows that no rule looks at any more, p_limit at most, and returns how many: those older than twice the longest time that any
-- recorded rules look back. The first of a counter go first, so that no gap comes up. The last stays as long as its call: a counter is named after
-- whatever callers send, and would stay for ever. One without rows begins again at 1. Only the owner may execute it; gem prune does.
create or replace function gem.prune_rule_runs(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  before  timestamptz;
  removed integer;
begin
  select gem.now() - 2 * max(v.longest) into before from public.core_rules_versions v;
  with old as (
    select r.counter, r.n from gem.rule_runs r
    where r.at < before and (exists (select from gem.rule_runs later where later.counter = r.counter and later.n = r.n + 1)
      or not exists (select from public.core_tool_calls c where c.id = r.call_id))
    order by r.at, r.counter, r.n limit p_limit for update
  )
  delete from gem.rule_runs r using old where (r.counter, r.n) = (old.counter, old.n);
  get diagnostics removed = row_count;
  return removed;
end
$$;

select gem.grant_to('gem_worker', 'execute on function gem.record_rules(text, text, jsonb, interval), gem.record_domains(text, text, jsonb)');
revoke all on all functions in schema gem from public;

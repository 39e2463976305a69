-- The guards with which the database enforces the promises: each must exist and be enabled. The guards of a domain's
-- tables, which may be absent, come last.
select 'guards' as name, guard.rel || '.' || guard.guard as id, format('the %s %s', guard.kind, guard.fault) as what
from (
  select 'trigger' as kind, e.rel, e.guard,
    case when t.oid is null then 'is missing' when t.tgenabled not in ('O', 'A') then 'is disabled' end as fault
  from (values
    ('core_tool_calls', 'gem_before_insert'), ('core_tool_calls', 'gem_after_insert'),
      ('core_tool_calls', 'gem_state_holds'),
    ('core_tool_calls', 'gem_removed_whole'), ('core_tool_calls', 'gem_not_emptied'),
    ('core_tool_receipts', 'gem_outcome_holds'), ('core_tool_receipts', 'gem_written_once'),
      ('core_tool_receipts', 'gem_not_emptied'),
    ('core_tool_events', 'gem_append_only'), ('core_tool_events', 'gem_not_emptied'),
    ('extract_documents', 'gem_before_insert'), ('extract_documents', 'gem_append_only'),
      ('extract_documents', 'gem_not_emptied'),
    ('extract_document_parts', 'gem_before_insert'), ('extract_document_parts', 'gem_append_only'),
      ('extract_document_parts', 'gem_not_emptied')
  ) e (rel, guard)
  left join pg_trigger t on t.tgrelid = to_regclass('public.' || e.rel) and t.tgname = e.guard
  where e.rel like 'core_%' or to_regclass('public.' || e.rel) is not null

  union all
  select 'unique index', e.rel, e.guard, case when i.indexrelid is null then 'is missing'
    when not i.indisunique then 'is not unique'
    when not (i.indisvalid and i.indisready and i.indislive) then 'is not valid' end
  from (values
    ('core_tool_calls', 'gem_calls_one_holder_per_key'), ('core_tool_calls', 'gem_calls_one_child_per_step'),
    ('core_tool_receipts', 'gem_receipts_one_per_call'), ('core_tool_receipts', 'gem_receipts_one_success_per_key'),
    ('core_tool_events', 'core_tool_events_pkey'), ('rule_runs', 'rule_runs_pkey'),
      ('rule_runs', 'rule_runs_counter_call_id_key'),
    ('core_llm_requests', 'core_llm_requests_call_id_n_key'),
      ('llm_spend', 'llm_spend_budget_subject_period_starts_key'),
    ('rule_places', 'rule_places_pkey'),
    ('occurrences', 'occurrences_pkey'), ('occurrences', 'gem_occurrences_once')
  ) e (rel, guard)
  cross join lateral (select case
    when e.rel in ('rule_runs', 'rule_places', 'llm_spend', 'occurrences') then 'gem.' else 'public.' end as schema) s
  left join pg_index i on i.indrelid = (s.schema || e.rel)::regclass and i.indexrelid = to_regclass(s.schema || e.guard)

  union all
  select 'row level security', e.rel, 'row_security', case when not c.relrowsecurity then 'is switched off' end
  from (values ('core_tool_calls'), ('core_tool_receipts'), ('core_tool_events'), ('core_workers'),
    ('core_registry_versions'),
    ('core_rules_versions'), ('core_hook_events'), ('core_llm_versions'), ('core_llm_requests'), ('core_tool_progress'),
      ('extract_documents'), ('extract_document_parts')) e (rel)
  join pg_class c on c.oid = to_regclass('public.' || e.rel)
) guard
where guard.fault is not null

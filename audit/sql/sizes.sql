-- Counts the objects to check.
with c as (
  select count(*) as calls, count(*) filter (where status in ('succeeded', 'failed', 'not_configured')) as finished,
    count(*) filter (where status = 'queued') as queued, count(*) filter (where status = 'running') as running,
    count(*) filter (where status = 'waiting') as waiting, count(*) filter (where parent_step is not null) as children
  from public.core_tool_calls
), r as (
  select count(*) as receipts, count(*) filter (where replay_of is not null) as hits from public.core_tool_receipts
), e as (
  select count(*) as events from public.core_tool_events
)
select size.*
-- the guards of guards.sql
from c, r, e, lateral (values ('guards', case when to_regclass('public.extract_documents') is null then 38 else 46 end),
  ('calls', calls), ('finished calls', finished), ('queued calls', queued), ('running calls', running),
  ('waiting calls', waiting), ('children', children), ('receipts', receipts), ('hits', hits),
    ('events', events)) size (name, n)

-- Compares the ledger of requests to models with receipts. Rows of the ledger are removed with their call. If a call
-- ended without its handler, because it was cancelled or lost too often, its receipt omits requests whose worker was
-- lost.
with sums as (
  select call_id, count(*) as requests, count(*) filter (where cost is null) as unknown, coalesce(sum(cost), 0) as cost,
    max(n) as last, max(attempt) as attempt
  from public.core_llm_requests group by call_id
), receipt as (
  select r.call_id, r.tool_name, coalesce(r.status = 'succeeded' or r.result #> '{error,details,usage}' is not null,
    false) as by_handler,
    coalesce(r.result #> '{usage,call}', r.result #> '{error,details,usage,call}') as usage,
    case when jsonb_typeof(r.effects -> 'external_calls') = 'array' then r.effects -> 'external_calls' end as entries
  from public.core_tool_receipts r where r.replay_of is null
), entry as (
  select r.call_id, e -> 'llm' ->> 'request' as n, min((e -> 'llm')::text)::jsonb as llm, count(*) as times
  from receipt r, jsonb_array_elements(r.entries) e where e ? 'llm' group by 1, 2
)
select 'llm-call' as name, s.call_id::text as id, case
  when c.id is null then 'the ledger has requests of a call that does not exist'
  when s.attempt > c.attempt then format('the ledger has a request of its attempt %s, and the call is attempt %s',
    s.attempt, c.attempt)
  else format('the ledger has %s requests of it, and the last is number %s', s.requests, s.last) end as what
from sums s
left join public.core_tool_calls c on c.id = s.call_id
where c.id is null or s.attempt > c.attempt or s.requests <> s.last

union all

select 'llm-entries', coalesce(e.call_id, a.call_id)::text, case
  when a.id is null then format('its receipt has a request %s to a model, and the ledger does not',
    coalesce(e.n, 'null'))
  when e.call_id is null then format('the ledger has its request %s, which was %s, and its receipt does not', a.n,
    a.status)
  when e.times > 1 then format('its receipt has its request %s %s times', e.n, e.times)
  else format('its receipt lists its request %s: %s by %s for %s USD; and the ledger: %s by %s for %s', e.n,
    e.llm ->> 'outcome', e.llm ->> 'target',
    coalesce(e.llm ->> 'cost_usd', 'unknown'), a.status, a.target, coalesce((a.cost / 1e9)::text, 'unknown')) end
from entry e
full join (select a.*, r.by_handler from public.core_llm_requests a join receipt r on r.call_id = a.call_id) a
  on a.call_id = e.call_id and a.n::text = e.n
where a.id is null or e.call_id is null and a.by_handler or e.times > 1
  or e.call_id is not null and ((e.llm ->> 'target', (e.llm ->> 'cost_usd')::numeric * 1e9) is distinct
    from (a.target, a.cost::numeric)
    or a.status not in ('sent', 'lost') and e.llm ->> 'outcome' is distinct from a.status)

union all

select 'llm-usage', r.call_id::text,
  format('its receipt reports %s for its requests, and the ledger %s requests, %s of them with unknown cost, '
    'for %s USD', r.usage, coalesce(s.requests, 0), coalesce(s.unknown, 0), coalesce(s.cost, 0) / 1e9)
from receipt r
left join sums s on s.call_id = r.call_id
where (s.call_id is not null or r.tool_name like 'llm.%') and jsonb_typeof(r.usage) = 'object'
  and ((r.usage ->> 'requests')::bigint, (r.usage ->> 'unknown_requests')::bigint,
    coalesce((r.usage ->> 'cost_usd')::numeric * 1e9, 0))
    is distinct from (coalesce(s.requests, 0), coalesce(s.unknown, 0), coalesce(s.cost, 0))

union all

select 'llm-due', a.call_id::text, format('the call ended at %s, and its request %s is still open', c.updated_at, a.n)
from public.core_llm_requests a
join public.core_tool_calls c on c.id = a.call_id
where a.status = 'sent' and c.status in ('succeeded', 'failed', 'not_configured')
  and c.updated_at < now() - interval '61 minutes'
  and a.at < now() - interval '61 minutes'

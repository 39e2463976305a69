-- Compares budgets with the ledger of requests to models. Rows of the ledger are removed with their call, and the
-- budget's `pruned` then has their part.
with counted as (
  select spend as id, count(*) as requests, coalesce(sum(coalesce(q.cost,
    q.reserved)) filter (where q.status <> 'sent'), 0) as spent,
    coalesce(sum(q.reserved) filter (where q.status = 'sent'), 0) as reserved
  from public.core_llm_requests q, unnest(q.spends) spend group by spend
), corrected as (
  select spend as id, sum(amount) as amount from gem.llm_corrections group by spend
)
select 'llm-spend' as name, concat_ws(' ', s.budget, nullif(s.subject, ''), s.period, s.starts::date) as id,
  format('it has %s requests, which spent %s and have %s reserved; '
    'its requests, with %s that were pruned, and its corrections add up to %s, %s and %s',
    s.requests, s.spent, s.reserved, s.pruned_requests, coalesce(c.requests, 0) + s.pruned_requests,
      coalesce(c.spent, 0) + s.pruned + coalesce(k.amount, 0),
    coalesce(c.reserved, 0)) as what
from gem.llm_spend s
left join counted c on c.id = s.id
left join corrected k on k.id = s.id
where (s.requests, s.spent, s.reserved) is distinct from
  (coalesce(c.requests, 0) + s.pruned_requests, coalesce(c.spent, 0) + s.pruned + coalesce(k.amount, 0),
    coalesce(c.reserved, 0))

union all

select 'llm-spend', c.id::text, format('%s requests count in a budget that does not exist', c.requests)
from counted c left join gem.llm_spend s on s.id = c.id where s.id is null

union all

select 'llm-spend', k.id::text, 'a correction belongs to a budget that does not exist'
from corrected k left join gem.llm_spend s on s.id = k.id where s.id is null

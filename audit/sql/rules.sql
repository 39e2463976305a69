-- Compares the rows that limits counted, gem.rule_runs, with the rules of the version that counted each row. The oldest
-- rows of a counter are removed first, so old windows may be incomplete, but no row between two others is missing.
--
-- A counter is the rule's name, a slash, calls, starts, sum:/pointer or failures, and the values that are counted
-- together.
with run as (
  select counter, n, at, call_id, amount, total, rules_version, split_part(counter, '/', 1) as rule,
    substr(counter, strpos(counter, '/') + 1) as counts,
    lag(n) over counted as n_before, lag(at) over counted as at_before, lag(total) over counted as total_before,
    sum(amount) over counted as added
  from gem.rule_runs
  window counted as (partition by counter order by n)
), bound as ( -- the rules that bound a window
  select v.version, e ->> 'name' as rule, e ->> 'action' as action, e -> 'limit' ? 'sum' as sums,
    (e #>> '{limit,max}')::numeric as most,
    make_interval(secs => left(w, -1)::double precision * case right(w, 1) when 's' then 1 when 'm' then 60
      when 'h' then 3600 when 'd' then 86400 end) as within
  from public.core_rules_versions v
  cross join jsonb_array_elements(v.rules -> 'rules') e
  cross join lateral (select e #>> '{limit,within}' as w) text
  where e ->> 'action' in ('block', 'wait') and e ? 'limit'
), bounded as (
  select r.*, b.sums, b.most, b.within
  from run r
  -- The starts of a rule that delays calls, and the calls of a rule that blocks, are counted separately, because the
  -- rule's action may have changed.
  join bound b on b.version = r.rules_version and b.rule = r.rule
    and starts_with(r.counts, case when b.action = 'wait' then 'starts per ' when b.sums then 'sum:/'
      else 'calls per ' end)
), moment as ( -- the rows of a counter by time and, between them, the beginning of each row's window
  select counter, at as edge, false as asks, n, added, null::timestamptz as at, null::numeric as most,
    null::interval as within, null::text as rules_version from run
  where amount is not null
  union all
  select counter, at - within, true, n, added, at, most, within, rules_version from bounded where sums
), window_sum as (
  select *, added - coalesce(max(added) filter (where not asks) over (partition by counter order by edge, asks,
    n rows unbounded preceding), 0) as sum
  from moment
)
select 'rule-counted' as name, counter as id, case
    when n_before <> n - 1 then format('its row %s comes after the row %s', n, n_before)
    when at < at_before then format('its row %s is of %s, and the row before of %s', n, at, at_before)
    when total is null <> (amount is null) or n_before is not null and total_before is null <> (total is null)
      then format('its row %s has the amount %s and the total %s, and the row before the total %s', n,
        coalesce(amount::text, 'null'),
        coalesce(total::text, 'null'), coalesce(total_before::text, 'null'))
    when amount < 0 then format('its row %s has the amount %s', n, amount)
    else format('its row %s has the amount %s and the total %s, and the row before the total %s', n, amount, total,
      coalesce(total_before::text, '0'))
  end as what
from run
where n < 1 or n_before <> n - 1 or at < at_before or total is null <> (amount is null) or n_before is not null
  and total_before is null <> (total is null)
  or amount < 0 or total <> amount + case when n = 1 then 0 else total_before end

union all

select 'rule-counted', r.counter, format('its row %s is of the call %s, which no worker has claimed', r.n, r.call_id)
from run r
join public.core_tool_calls c on c.id = r.call_id
where c.attempt = 0

union all

select 'rule-window', r.counter,
  format('by the rules %s it lets %s through in %s, and its row %s is %s after the row %s', r.rules_version, r.most,
  r.within,
  r.n, r.at - o.at, o.n)
from bounded r
join gem.rule_runs o on o.counter = r.counter and o.n = r.n - r.most::bigint
where not r.sums and r.at - o.at < r.within -- with a limit of 0 each row exceeds it

union all

select 'rule-window', w.counter, format('by the rules %s it lets %s through in %s, and up to its row %s these were %s',
  w.rules_version, w.most, w.within, w.n, w.sum)
from window_sum w
where w.asks and w.sum > w.most

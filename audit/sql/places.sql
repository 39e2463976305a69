-- Compares the places of running rules, gem.rule_places, with themselves and with the calls that have them. The oldest
-- rows of a counter are removed first, so no row between two others is missing.
with row as (
  select *, lag(n) over line as n_before, lag(at) over line as at_before, lag(holders) over line as held_before,
    lag(head) over line as head_before, lag(waiting) over line as waited_before,
    lag(n) over line is not null or n = 1 as follows -- the row before is known, or there is none
  from gem.rule_places window line as (partition by counter order by n)
), wanted as (
  select *,
    coalesce(waited_before, 0) + case
      when action = 'queued' then 1
      when action = 'took' and head is distinct from head_before and n > 1 then -1 -- served from the queue
      when action = 'left' and call_id <> all (coalesce(held_before, '{}')) then -1 -- out of the queue
      else 0 end as should_wait,
    case action
      when 'took' then array_remove(held_before, call_id) || call_id
      when 'queued' then coalesce(held_before, '{}')
      else coalesce(array_remove(held_before, call_id), '{}') end as should_hold
  from row
), last as (
  select distinct on (counter) counter, n, at, holders, head, max from gem.rule_places order by counter, n desc
), live as ( -- what a call last did in a counter, unless it left
  select * from (
    select distinct on (call_id, counter) * from gem.rule_places order by call_id, counter, n desc) r
  where r.action <> 'left'
)
select 'place-counted' as name, r.counter as id, case
    when r.n_before <> r.n - 1 then format('its row %s comes after the row %s', r.n, r.n_before)
    when r.at < r.at_before then format('its row %s is of %s, and the row before of %s', r.n, r.at, r.at_before)
    when r.head < r.head_before then
      format('its row %s has served the queue up to the row %s, and the row before to %s', r.n, r.head, r.head_before)
    when r.waiting <> r.should_wait then format('its row %s counts %s calls in the queue, and the row before %s', r.n,
      r.waiting, coalesce(r.waited_before, 0))
    when q.call_id <> r.call_id then format('its row %s serves the row %s of the queue, which is of the call %s', r.n,
      r.head, q.call_id)
    else format('its row %s has the holders %s, and the row before %s', r.n, r.holders, coalesce(r.held_before, '{}'))
  end as what
from wanted r
left join gem.rule_places q on r.action = 'took' and r.head > r.head_before and q.counter = r.counter and q.n = r.head
where r.n < 1 or r.n_before <> r.n - 1 or r.at < r.at_before or r.head < r.head_before or q.call_id <> r.call_id
  or r.follows and (r.waiting <> r.should_wait or r.holders <> r.should_hold)

union all

select 'place-most', r.counter, format('by the rules %s it has %s places, and its row %s gives them to %s calls',
  r.rules_version, r.max, r.n, cardinality(r.holders))
from row r
where r.action = 'took' and cardinality(r.holders) > r.max

union all

select 'place-held', l.counter, format('the call %s has a place, and %s', h.id, coalesce('is ' || c.status,
  'does not exist'))
from last l
cross join unnest(l.holders) h (id)
left join public.core_tool_calls c on c.id = h.id
where (c.placed and (c.status in ('running', 'queued') or c.status = 'waiting' and c.waits_for = 'place')) is not true

union all

select 'place-held', c.id::text, case
  when c.placed then 'the call has a place or waits for one, and no counter names it'
  else format('the call is %s, and the counter %s names it', c.status, v.counter) end
from public.core_tool_calls c
left join live v on v.call_id = c.id
where c.status in ('queued', 'running', 'waiting') and c.placed <> (v.call_id is not null)

union all

select 'place-idle', l.counter, format('it has %s places and %s calls in them since %s, and the call %s waits', l.max,
  cardinality(l.holders), l.at, v.call_id)
from last l
join live v on v.counter = l.counter and v.action = 'queued'
where cardinality(l.holders) < l.max and l.at < now() - interval '1 minute'

union all

select 'place-idle', v.counter, format('the call %s has a place since %s, and still waits for one', v.call_id, v.at)
from live v
join public.core_tool_calls c on c.id = v.call_id and c.status = 'waiting'
where v.action = 'took' and v.at < now() - interval '1 minute'

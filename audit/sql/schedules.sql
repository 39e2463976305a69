-- The instants of schedules. Since the oldest occurrence that is kept, or since the expression was saved, each is
-- covered exactly once, or is after the last one.
with covers as (
  select o.schedule_id, o.due_at, o.upto from gem.occurrences o where not o.backfilled
  union all
  select s.id, s.held_at, s.held_at from gem.schedules s where s.held_at is not null
), ordered as (
  select s.id, s.name, s.cron, s.zone, c.due_at,
    max(c.upto) over (partition by s.id order by c.due_at, c.upto
      rows between unbounded preceding and 1 preceding) as after
  from covers c join gem.schedules s on s.id = c.schedule_id and c.due_at > s.since
  union all
  select s.id, s.name, s.cron, s.zone, s.next_at, coalesce((select max(c.upto) from covers c where c.schedule_id = s.id
    and c.due_at > s.since), s.since)
  from gem.schedules s where s.next_at is not null
)
select 'instant-covered' as name, o.name || ' ' || o.due_at as id, case
  when o.after >= o.due_at then 'the instant is covered twice'
  else format('the next instant after %s was %s, and is not covered', o.after,
    gem.cron_next(o.cron, o.zone, o.after)) end as what
from ordered o
where o.after >= o.due_at or gem.cron_next(o.cron, o.zone, o.after) <> o.due_at

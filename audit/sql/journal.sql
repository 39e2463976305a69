-- Replays every journal and compares the result with the call's row. The checks build on each other: gaps, order,
-- holder, replay. So a call is reported by the first check that it fails.
--
-- Some events change no state: requests to cancel, steps, arrivals, and verdicts of rules. The walk from event to event
-- skips them, and a separate part checks them. Questions of rules, whose names begin with ##, are not progress. An
-- imported journal begins in the state in which the earlier GEM left the call.
with event as (
  select call_id, seq, at, event, attempt, worker_id, data,
    -- The state after the event: see the picture in migrations/functions/states.sql.
    case event
      when 'queued' then 'queued'
      when 'claimed' then 'running'
      when 'succeeded' then event
      when 'failed' then event
      when 'not_configured' then event
      when 'waiting' then 'waiting'
      when 'imported' then coalesce(data ->> 'status', '')
      when 'cancel_requested' then null
      when 'began' then null
      when 'step' then null
      when 'called' then null
      when 'returned' then null
      when 'answered' then null
      when 'timed_out' then null
      when 'ruled' then null
      when 'woken' then 'queued'
      when 'delayed' then 'queued'
      when 'retried' then 'queued'
      when 'released' then 'queued'
      when 'lost' then 'queued'
      else '' -- an unknown event
    end as state,
    -- The worker that holds the call from here on.
    case event when 'claimed' then worker_id when 'imported' then data ->> 'claimed_by' end as taker
  from public.core_tool_events
), step as (
  select *,
    lag(state) over journal as before,
    lag(attempt) over journal as attempt_before,
    lag(taker) over journal as holder,
    lag(at) over journal as held_since,
    lead(seq) over journal is null as last
  from event
  window journal as (partition by call_id order by state is null desc, seq)
), checked as (
  select *,
    state is null or case event -- see of_none
      when 'queued' then before is null
      when 'claimed' then before = 'queued'
      when 'succeeded' then before = 'running' or before = 'waiting' and attempt = 0 -- a question
      when 'waiting' then before = 'running' or before = 'queued' and attempt = 0 and seq = 2
      when 'failed' then before in ('running', 'queued', 'waiting')
      when 'woken' then before = 'waiting'
      when 'imported' then before is null and state in ('queued', 'running', 'succeeded', 'failed', 'not_configured')
      when 'not_configured' then before = 'running'
      else before = 'running' and state <> ''
    end as legal,
    case event
      when 'cancel_requested' then worker_id is null
      when 'timed_out' then worker_id is not null
      when 'began' then true -- by the holder: see of_none
      when 'step' then true
      when 'called' then true
      when 'ruled' then true
      when 'returned' then worker_id is not null -- the child's worker, or one that ran the timers
      when 'answered' then worker_id is null
      when 'queued' then attempt = 0 and worker_id is null
      when 'claimed' then worker_id is not null -- a failover may have lost earlier attempts
        and (attempt = attempt_before + 1 or attempt > attempt_before and data ? 'restored')
      when 'woken' then attempt = attempt_before -- by a worker, by an answer, or by gem resume
      when 'lost' then attempt = attempt_before and worker_id is not null and data ->> 'lost_worker' = holder
      when 'imported' then attempt = case state when 'queued' then 0 else 1 end and worker_id is null
      when 'waiting' then attempt = attempt_before and worker_id is not null
        and coalesce(worker_id = holder, attempt = 0)
      else attempt = attempt_before and case before when 'running' then worker_id = holder else worker_id is null end
    end as held
  from step
), walked as (
  select call_id, count(*) as events, min(seq) as lowest, max(seq) as highest,
    min(lpad(seq::text, 10, '0') || format('event %s is %s, and the call was %s before', seq, event,
      coalesce(nullif(before, ''), 'not there')))
      filter (where legal is not true) as disorder,
    min(lpad(seq::text, 10, '0') || format('event %s is %s of attempt %s by %s, and the call was with attempt %s of %s',
      seq, event,
      attempt, coalesce(worker_id, 'nobody'), coalesce(attempt_before, 0), coalesce(holder, 'nobody')))
      filter (where held is not true) as stranger,
    max(state) filter (where last) as state,
    max(attempt) filter (where last) as attempt,
    max(case when event in ('claimed', 'imported') then taker
        when before = 'running' and state not in ('queued', 'waiting') then holder end)
      filter (where last) as claimed_by,
    max(case when event = 'claimed' then at when before = 'running'
      and state not in ('queued', 'waiting') then held_since end)
      filter (where last) as claimed_at,
    max(data ->> 'run_at') filter (where seq = 1) as run_at,
    max(data ->> 'priority') filter (where seq = 1) as priority,
    -- If a call that no worker runs ends, its end is also the request to cancel, unless it is a question whose time
    -- is over.
    case when not bool_or(event = 'timed_out' and attempt = 0)
      then max(at) filter (where last and event = 'failed' and before <> 'running') end as ended_unrun_at,
    max(case when data ? 'for' then 'call, answer or time' when data ? 'code' then 'code'
      when data ? 'place' then 'place' else 'key' end) filter (where last and event = 'waiting') as waits_for,
    max(data ->> 'key') filter (where last and event = 'waiting') as key,
    (max((data -> 'for')::text) filter (where last and event = 'waiting'))::jsonb as waits,
    min(at) filter (where event = 'queued') as created_at,
    bool_or(event = 'woken') as woken,
    max(data ->> 'receipt_id') filter (where last) as receipt,
    max(at) filter (where last) as ended_at,
    bool_or(event = 'imported') as imported
  from checked
  group by call_id
), seldom as (
  select call_id,
    -- Retries before the last progress of a durable call do not count.
    count(*) filter (where event = 'retried' and seq > last_progress) as retries,
    count(*) filter (where event = 'lost' and seq > last_progress) as losses,
    count(*) filter (where event = 'lost' and seq > last_wait) as kills,
    count(*) filter (where progress) as steps,
    substr(max(lpad(seq::text, 10, '0') || (data ->> 'run_at'))
      filter (where event in ('retried', 'released', 'delayed', 'lost', 'woken', 'cancel_requested', 'answered')),
        11) as run_at,
    count(*) filter (where event = 'cancel_requested') as cancels,
    min(at) filter (where event = 'cancel_requested') as cancelled_at
  from (
    select *, coalesce(max(seq) filter (where progress) over (partition by call_id), 0) as last_progress,
      coalesce(max(seq) filter (where event = 'waiting' and data ? 'for') over (partition by call_id), 0) as last_wait
    from (
      select *, event in ('began', 'step', 'timed_out') or event = 'called' and (data ->> 'name' like '##%') is not true
        or event = 'waiting' and data ? 'for' and (data #>> '{for,0}' like '##%') is not true as progress
      from public.core_tool_events
      where event in ('retried', 'lost', 'cancel_requested', 'began', 'step', 'called', 'timed_out', 'waiting', 'woken',
        'released', 'delayed',
        'answered')) known) e
  group by call_id
), came as (
  select call_id, data ->> 'name' as name from public.core_tool_events where event in ('returned', 'answered')
  union
  select call_id, jsonb_array_elements_text(case when jsonb_typeof(data -> 'names') = 'array' then data -> 'names' end)
  from public.core_tool_events where event = 'timed_out'
), awaited as ( -- the number of names that a call still waits for
  select w.call_id, count(*) filter (where came.name is null) as to_come
  from walked w
  cross join jsonb_array_elements_text(case when jsonb_typeof(w.waits) = 'array' then w.waits end) n (name)
  left join came on came.call_id = w.call_id and came.name = n.name
  group by w.call_id
), aside as ( -- events that change no state, with the last earlier event that did
  select call_id, seq, event, attempt, worker_id, state,
    event in ('began', 'called') and data ? 'restored' as restored, -- the claim may be lost
    max(seq) filter (where state is not null) over (partition by call_id order by seq) as after
  from event
), of_none as (
  select a.call_id, min(lpad(a.seq::text, 10, '0') || a.event) as first
  from aside a
  left join public.core_tool_events p on p.call_id = a.call_id and p.seq = a.after and p.attempt = a.attempt
    and case
      when a.event = 'cancel_requested' then p.event in ('claimed', 'waiting', 'woken', 'retried', 'released', 'lost')
        or p.event = 'imported' and p.data ->> 'status' = 'running'
      -- A child may end at any time before its parent, and an answer may arrive before the first attempt.
      when a.event = 'answered' then a.state is null and p.event <> 'cancel_requested'
      when a.event = 'returned' then p.event in ('claimed', 'waiting', 'woken', 'retried', 'released', 'delayed',
        'lost')
        or p.event = 'queued' and exists (select from public.core_tool_events m
          where m.call_id = a.call_id and m.event = 'called' and m.data ? 'restored' offset 0)
      when a.event = 'timed_out' and p.event = 'waiting' then p.data ? 'for'
      else p.event = 'claimed' and p.worker_id = a.worker_id
    end
  where a.state is null and p.call_id is null and not a.restored
  group by a.call_id
), replayed as (
  select c.id as call, w.*, c.events as counted, s.cancels, n.first as of_none, r.id as receipt_id,
    r.created_at as receipt_at, r.duration, t.ran,
    case
      when c.id is null then 'journal-orphan'
      when (w.lowest = 1 and w.highest = w.events and w.events = c.events) is not true then 'journal-gaps'
      when w.disorder is not null or s.cancels > 1 or n.first is not null then 'journal-order'
      when w.stranger is not null then 'journal-holder'
    end as broken,
    concat_ws('; ',
      case when c.status is distinct from w.state then format('status is %s, and %s by the journal', c.status, w.state)
        end,
      case when c.attempt is distinct from w.attempt then format('attempt is %s, and %s by the journal', c.attempt,
        w.attempt) end,
      case when c.claimed_by is distinct from w.claimed_by then format('claimed_by is %s, and %s by the journal',
        coalesce(c.claimed_by, 'null'), coalesce(w.claimed_by, 'null')) end,
      -- The journal lacks the time of an imported claim.
      case when c.claimed_at is distinct from w.claimed_at
        and not (w.imported and w.attempt = 1 and w.claimed_by is not null)
        then format('claimed_at is %s, and %s by the journal',
          coalesce(c.claimed_at::text, 'null'), coalesce(w.claimed_at::text, 'null')) end,
      case when c.retries is distinct from coalesce(s.retries, 0)
        then format('retries is %s, and %s by the journal', c.retries, coalesce(s.retries, 0)) end,
      case when c.losses is distinct from coalesce(s.losses, 0)
        then format('losses is %s, and %s by the journal', c.losses, coalesce(s.losses, 0)) end,
      case when c.kills is distinct from coalesce(s.kills, 0)
        then format('kills is %s, and %s by the journal', c.kills, coalesce(s.kills, 0)) end,
      case when c.steps is distinct from coalesce(s.steps, 0)
        then format('steps is %s, and %s by the journal', c.steps, coalesce(s.steps, 0)) end,
      case when c.run_at is distinct from coalesce(s.run_at, w.run_at)::timestamptz
        then format('run_at is %s, and %s by the journal', c.run_at, coalesce(s.run_at, w.run_at, 'null')) end,
      case when c.priority is distinct from w.priority::integer
        then format('priority is %s, and %s by the journal', c.priority, coalesce(w.priority, 'null')) end,
      -- An insert writes both with the same time. The journal lacks the creation time of an imported call.
      case when c.created_at is distinct from w.created_at and not w.imported
        then format('created_at is %s, and %s by the journal', c.created_at, w.created_at) end,
      -- The calls of a caller that crowds the queue have a lower level, even if this began while the call waited, and
      -- those with a place under a rule the highest: see gem.level_of and gem.wake.
      case when (c.level = c.priority or c.created_by is not null and c.priority > -500
        and c.level = greatest(least(c.priority, 0) - 500, -1000)
          or w.woken and c.level in (-500, 2000)) is not true
        then format('level is %s, and no level of the priority %s', c.level, c.priority) end,
      case when c.cancel_requested_at is distinct from coalesce(s.cancelled_at, w.ended_unrun_at)
        then format('cancel_requested_at is %s, and %s by the journal', coalesce(c.cancel_requested_at::text, 'null'),
          coalesce(s.cancelled_at, w.ended_unrun_at)::text) end,
      -- A running call holds its key without an event, and a durable call keeps it between its attempts.
      case when w.state in ('queued', 'waiting') and (w.key is not null or coalesce(s.steps, 0) = 0)
        and c.computed_key is distinct from w.key
        then format('computed_key is %s, and %s by the journal', coalesce(c.computed_key, 'null'),
          coalesce(w.key, 'null')) end,
      case when (c.waits_for is not distinct from w.waits_for or w.waits_for = 'call, answer or time'
        and c.waits_for in ('call', 'answer', 'time')
          or c.waits_for = 'parent' and c.parent_step is not null
            and w.state in ('succeeded', 'failed', 'not_configured')) is not true
        then format('waits_for is %s, and %s by the journal', coalesce(c.waits_for, 'null'),
          coalesce(w.waits_for, 'null')) end,
      case when to_jsonb(c.waits) is distinct from w.waits
        then format('waits is %s, and %s by the journal', coalesce(to_jsonb(c.waits)::text, 'null'),
          coalesce(w.waits::text, 'null')) end,
      -- If nothing is missing, wait-stuck reports it.
      case when case when w.waits is null then c.need is null else c.need between 1
        and greatest(a.to_come, 1) end is not true
        then format('need is %s, and %s by the journal', coalesce(c.need::text, 'null'),
          coalesce('at most ' || a.to_come, 'null')) end
    ) as differences,
    -- The last event of a call that GEM ended names its receipt, and has the same time. The duration is the time since
    -- the last claim.
    r.id is not null and w.state in ('succeeded', 'failed', 'not_configured') and not (w.imported and w.events = 1)
      and (r.id::text = w.receipt and r.created_at = w.ended_at) is not true as misnamed,
    r.id is not null and w.state in ('succeeded', 'failed', 'not_configured') and not w.imported
      and r.duration is distinct from t.ran as mistimed
  from public.core_tool_calls c
  full join walked w on w.call_id = c.id
  left join seldom s on s.call_id = w.call_id
  left join of_none n on n.call_id = w.call_id
  left join awaited a on a.call_id = w.call_id
  left join (select * from public.core_tool_receipts offset 0) r on r.call_id = w.call_id -- see receipts.sql
  cross join lateral (select case when w.claimed_at is not null then greatest(w.ended_at - w.claimed_at, '0')
    end as ran) t
)
select distinct name, coalesce(call, call_id)::text as id,
  case name
    when 'journal-orphan' then format('%s events belong to a call that does not exist', events)
    when 'journal-gaps' then case when call_id is null then format('there is no journal, and the call counts %s events',
      counted)
      else format('there are %s events, from %s to %s, and the call counts %s', events, lowest, highest, counted) end
    when 'journal-order' then coalesce(substr(disorder, 11),
      format('event %s is %s, and no such attempt ran', substr(of_none, 1, 10)::integer, substr(of_none, 11)),
      format('%s events are cancel_requested', cancels))
    when 'journal-holder' then substr(stranger, 11)
    when 'journal-replay' then differences
    when 'journal-receipt' then case when misnamed then
      format('the last event names the receipt %s of %s, and the call''s is %s of %s',
      coalesce(receipt, 'null'), ended_at, receipt_id, receipt_at)
      else format('the duration of the call''s receipt is %s, and %s by the journal', coalesce(duration::text, 'null'),
        coalesce(ran::text, 'null')) end
  end as what
from replayed, unnest(case when broken is not null then array[broken] else array[
  case when differences <> '' then 'journal-replay' end,
  -- The event can name only one of two receipts: receipt-second reports those.
  case when (misnamed or mistimed) and call not in (select call_id from public.core_tool_receipts
    group by call_id having count(*) > 1)
    then 'journal-receipt' end
] end) as name
where (broken is not null or differences <> '' or misnamed or mistimed) and name is not null

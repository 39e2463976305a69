-- notify.json decides who hears about questions, failures, refusals, budgets and schedules. A notice is a row of
-- gem.notices, written in the transaction of its cause. Workers with a notify.json move it to gem.notice_batches, one
-- for each channel, and a batch becomes a call to the channel's tool.
--
-- The calls in gem.notice_calls deliver notices. No notice is about them or their children, because that notice could
-- fail too, and so on.

-- Records a version of notify.json, as gem.record_rules does for rules. Only workers with the version that was used
-- last take notices. Otherwise, during a deployment, workers with an earlier one would drop what only the new rules
-- match.
create or replace function gem.record_notify(p_version text, p_sha256 text, p_notify jsonb)
returns table (sha256 text, notify jsonb) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  insert into gem.notify_versions as v (version, sha256, notify, recorded_at, used_at)
  values (p_version, p_sha256, p_notify, gem.now(), gem.now())
  on conflict (version) do update set used_at = gem.now() where v.sha256 = p_sha256;
  return query select v.sha256, v.notify from gem.notify_versions v where v.version = p_version;
end
$$;

-- Adds the kinds, and the percentages of budgets, that a worker's notify.json needs.
create or replace function gem.want_notices(p_kinds text[], p_marks smallint[]) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  insert into gem.notice_kinds as k (kind, marks)
  select kind, case when kind = 'budget' then p_marks else '{}' end from unnest(p_kinds) kind order by kind
  on conflict (kind) do update set marks = array(select distinct m from unnest(k.marks || excluded.marks) m order by m)
  where not k.marks @> excluded.marks
$$;

-- Stops all notices until a worker with a notify.json starts. Returns how many were not delivered.
create or replace function gem.stop_notices() returns bigint
language sql security definer set search_path = pg_catalog, pg_temp as $$
  with kinds as (delete from gem.notice_kinds),
    waiting as (delete from gem.notices returning 1),
    batches as (delete from gem.notice_batches returning count)
  select (select count(*) from waiting) + coalesce((select sum(count) from batches), 0)::bigint
$$;

-- Writes a notice, and removes a few that are more than a day old, in case no worker takes them. A tool's name that is
-- not one of a registry's is left out: a caller chose it.
create or replace function gem.note(p_kind text, p_subject text, p_tool text, p_code text, p_at timestamptz)
returns void language sql as $$
  delete from gem.notices n where n.id in (select o.id from gem.notices o where o.at < p_at - interval '1 day'
    order by o.at limit 10 for update skip locked);
  insert into gem.notices (at, kind, subject, tool, code)
  values (p_at, p_kind, gem.printable(p_subject, 300), case when p_code <> 'unknown_tool'
    and p_tool ~ '^[a-z][a-z0-9_]*([.][a-z0-9_]+)+$' then left(p_tool, 200) else '' end, gem.printable(p_code, 100));
$$;

-- Reports whether a call delivers a notice, or is a descendant of one that does.
create or replace function gem.is_delivery(p_call uuid) returns boolean language sql stable as $$
  select exists (select from gem.ancestors(p_call, false) a join gem.notice_calls n on n.call_id = a.id)
$$;

-- For each receipt that is not a success.
create or replace function gem.note_end() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
declare
  code text := case when new.status = 'failed' then new.result #>> '{error,error_code}' else new.status end;
  what text := gem.failure_kind(code);
begin
  if not exists (select from gem.notice_kinds) then
    return null;
  end if;
  if exists (select from gem.notice_calls n where n.call_id = new.call_id and n.otherwise is not null) then
    perform gem.note('undelivered', new.call_id::text, new.tool_name, code, new.created_at);
  elsif exists (select from gem.notice_kinds k where k.kind = what) and not gem.is_delivery(new.call_id) then
    perform gem.note(what, new.call_id::text, new.tool_name, code, new.created_at);
  end if;
  return null;
end
$$;

-- For each question that begins to wait for people.
create or replace function gem.note_question() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
begin
  if new.tool_name in ('wait.answer', 'wait.approval')
    and exists (select from gem.notice_kinds k where k.kind = 'question') and not gem.is_delivery(new.id) then
    perform gem.note('question', new.id::text, new.tool_name, '', new.updated_at);
  end if;
  return null;
end
$$;

-- For each instant of a schedule that was refused or missed.
create or replace function gem.note_occurrence() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from gem.notice_kinds k where k.kind = 'schedule') then
    perform gem.note('schedule', s.name, s.tool_name, new.skipped, new.at) from gem.schedules s
    where s.id = new.schedule_id;
  end if;
  return null;
end
$$;

-- For each schedule that ended, or that GEM paused since its user has not saved it for long.
create or replace function gem.note_schedule() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from gem.notice_kinds k where k.kind = 'schedule') then
    perform gem.note('schedule', new.name, new.tool_name,
      case when new.next_at is null then 'ended' else 'paused' end, gem.now());
  end if;
  return null;
end
$$;

-- For each percentage of a budget that the spent share passed.
create or replace function gem.note_spend() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
begin
  perform gem.note('budget', new.budget, '', m::text, gem.now()) from gem.notice_kinds k, unnest(k.marks) m
  where k.kind = 'budget' and new.spent::numeric * 100 >= m * new."limit"::numeric
    and old.spent::numeric * 100 < m * new."limit"::numeric;
  return null;
end
$$;

create or replace trigger gem_tells after insert on public.core_tool_receipts
  for each row when (new.status <> 'succeeded') execute function gem.note_end();
create or replace trigger gem_tells_at_once after insert on public.core_tool_calls
  for each row when (new.waits_for = 'answer') execute function gem.note_question();
create or replace trigger gem_tells after update of waits_for on public.core_tool_calls
  for each row when (new.waits_for = 'answer' and old.waits_for is distinct from 'answer')
  execute function gem.note_question();
create or replace trigger gem_tells after insert on gem.occurrences
  for each row when (new.skipped in ('refused', 'missed')) execute function gem.note_occurrence();
create or replace trigger gem_tells after update of next_at, paused on gem.schedules
  for each row when (new.next_at is null and old.next_at is not null and new.removed is null
    or old.paused is null and new.paused ->> 'as' = 'age') execute function gem.note_schedule();
create or replace trigger gem_tells after update of spent on gem.llm_spend
  for each row when (new.spent > old.spent and new."limit" > 0) execute function gem.note_spend();

-- Removes and returns up to p_limit notices, the oldest first, unless another version of notify.json was used later.
-- `about` describes a question by its tool, its asker, the people who may answer and its text; or it has an undelivered
-- notice. A question that has ended is not returned.
create or replace function gem.take_notices(p_limit integer, p_version text) returns table (kind text, subject text,
  tool text, code text, at timestamptz, about jsonb) language sql security definer set search_path = pg_catalog, pg_temp
as $$
  with taken as (
    delete from gem.notices n
    where n.id in (select o.id from gem.notices o
      where p_version = (select v.version from gem.notify_versions v order by v.used_at desc limit 1)
      order by o.id limit p_limit for update skip locked)
    returning n.*
  ), told as (
    select t.*, coalesce(
      (select jsonb_build_object('tool', p.tool_name, 'asker', c.asked_for, 'roles', c.answer_by,
          'question', left(c.input ->> 'text', 300))
        from public.core_tool_calls c
        left join public.core_tool_calls p on p.id = c.parent_call_id and c.parent_step is not null
        where t.kind = 'question' and c.id = t.subject::uuid and c.waits_for = 'answer'),
      (select jsonb_build_object('notice', n.notice, 'channel', n.channel, 'otherwise', n.otherwise)
        from gem.notice_calls n
        where t.kind = 'undelivered' and n.call_id = t.subject::uuid)) as about
    from taken t
  )
  select t.kind, t.subject, t.tool, t.code, t.at, t.about from told t
  where t.kind <> 'question' or t.about is not null
  order by t.id
$$;

-- Reports whether p_failed of the times, which are in order, are within a time.
create or replace function gem.within(p_times timestamptz[], p_failed integer, p_within interval) returns boolean
language sql immutable as $$
  select p_failed is null or exists (select from generate_series(p_failed, cardinality(p_times)) i
    where p_times[i] - p_times[i - p_failed + 1] <= p_within)
$$;

-- Adds notices to batches. p_batches is a list of {channel, kind, tool, code, subject, count, first_at, last_at,
-- recent, notice, every_ms, failed, within_ms, otherwise}.
create or replace function gem.batch_notices(p_batches jsonb) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  insert into gem.notice_batches as b (channel, kind, tool, code, subject, count, first_at, last_at, recent, reached,
    notice, every, failed, within, otherwise)
  select n.channel, n.kind, n.tool, n.code, n.subject, n.count, n.first_at, n.last_at, n.recent,
    gem.within(n.recent, n.failed, n.within_ms * interval '1 millisecond'), n.notice,
    n.every_ms * interval '1 millisecond', n.failed, n.within_ms * interval '1 millisecond', n.otherwise
  from jsonb_to_recordset(p_batches) n (channel text, kind text, tool text, code text, subject text, count bigint,
    first_at timestamptz, last_at timestamptz, recent timestamptz[], notice jsonb, every_ms bigint, failed integer,
    within_ms bigint, otherwise text)
  order by n.channel, n.kind, n.tool, n.code, n.subject
  on conflict (channel, kind, tool, code, subject) do update
  set count = b.count + excluded.count,
    first_at = case when b.count = 0 then excluded.first_at else b.first_at end,
    notice = case when b.count = 0 then excluded.notice else b.notice end,
    last_at = greatest(b.last_at, excluded.last_at),
    reached = b.reached and b.count > 0
      or gem.within(b.recent || excluded.recent, excluded.failed, excluded.within),
    recent = (b.recent || excluded.recent)[
      greatest(1, cardinality(b.recent) + cardinality(excluded.recent) - coalesce(excluded.failed, 0) + 1):],
    every = excluded.every, failed = excluded.failed, within = excluded.within, otherwise = excluded.otherwise
$$;

-- Locks and returns up to p_limit batches of these channels that are due. Removes batches that have been empty for a
-- day, and those of unknown channels after a day.
create or replace function gem.due_notices(p_channels text[], p_limit integer) returns setof gem.notice_batches
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at constant timestamptz := gem.now();
begin
  delete from gem.notice_batches b
  where b.id in (select o.id from gem.notice_batches o
    where o.last_at < at - interval '1 day' and coalesce(o.sent_at, o.last_at) < at - interval '1 day'
      and (o.count = 0 or not o.reached or o.channel <> all (p_channels))
      and coalesce(o.sent_at + o.every, at) <= at
    limit p_limit for update skip locked);
  return query select b.* from gem.notice_batches b
  where b.channel = any (p_channels) and b.count > 0 and coalesce(b.sent_at + b.every <= at, true)
    and b.reached
  order by b.first_at limit p_limit for no key update skip locked;
end
$$;

-- Makes the call that delivers a batch, which the caller has locked, and empties the batch. If the call cannot be
-- inserted, it returns the reason, and the batch is tried again after a minute, or after `every` if that is longer.
create or replace function gem.send_notice(p_batch bigint, p_call uuid, p_tool text, p_input jsonb) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at    constant timestamptz := gem.now();
  batch gem.notice_batches;
begin
  select b.* into batch from gem.notice_batches b where b.id = p_batch;
  if batch.count > 0 is not true then
    return 'another worker has delivered it';
  end if;
  begin
    insert into gem.notice_calls (call_id, channel, notice, otherwise, at)
    values (p_call, batch.channel, batch.notice || jsonb_build_object('count', batch.count), batch.otherwise, at);
    insert into public.core_tool_calls (id, tool_name, input) values (p_call, p_tool, p_input);
  exception
    when serialization_failure or deadlock_detected or lock_not_available or query_canceled then raise;
    when others then
      update gem.notice_batches b set sent_at = at, every = greatest(b.every, '1 minute') where b.id = p_batch;
      return gem.printable(sqlerrm, 300);
  end;
  if batch.every > '0' then
    update gem.notice_batches b set count = 0, recent = '{}', sent_at = at where b.id = p_batch;
  else
    delete from gem.notice_batches b where b.id = p_batch;
  end if;
  return null;
end
$$;

-- Notices that no worker takes, and deliveries of the last day that failed, up to a thousand of each.
create or replace view gem.notice_problems with (security_barrier) as
select 'notices_waiting' as kind, count(*) as count, null::uuid as call_id, min(n.at) as since
from (
  (select o.at from gem.notices o where o.at < gem.now() - interval '1 minute' order by o.at limit 1000)
  union all -- of a channel that no worker's file has
  (select b.first_at from gem.notice_batches b where b.count > 0 and b.reached
    and coalesce(b.sent_at + b.every, b.last_at) < gem.now() - interval '5 minutes' limit 1000)) n
having count(*) > 0
union all
select 'undelivered', count(*), (array_agg(f.id order by f.at desc))[1], max(f.at)
from (select c.id, c.updated_at as at from gem.notice_calls n join public.core_tool_calls c on c.id = n.call_id
  where n.at > gem.now() - interval '1 day' and c.status in ('failed', 'not_configured')
  order by n.at desc limit 1000) f
having count(*) > 0;

select gem.grant_to('gem_monitor', 'select on gem.notice_problems');
select gem.grant_to('gem_worker', 'execute on function gem.record_notify(text, text, jsonb),
  gem.want_notices(text[], smallint[]), gem.take_notices(integer, text), gem.batch_notices(jsonb),
  gem.due_notices(text[], integer), gem.send_notice(bigint, uuid, text, jsonb)');
select gem.grant_to('gem_operator', 'execute on function gem.stop_notices()');
revoke all on all functions in schema gem from public;

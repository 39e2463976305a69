-- Schedules make calls at the instants of a cron expression: see cron.sql. Workers run gem.run_schedules every second,
-- as part of gem.run_timers. The row of a schedule is locked while its instants are written, so any number of workers
-- may do it. Each instant becomes a row of gem.occurrences: a call, or the reason why there is none.
--
-- An instant is late if it was due more than a minute ago. Of the late ones, `missed` lets run
--   skip   none
--   one    the last one, if it is within missed_within
--   all    each one within missed_within, at most the first thousand of them
-- While the call of the last instant is open, `overlap` decides:
--   skip    the instant gets no call
--   queue   it waits for the end of that call; further instants get none meanwhile
--   cancel  that call is asked to end, and the new one does not wait for it
--   allow   both run
--
-- The schedules of operators have created_by null, or the user for whom an operator made them, and their calls have the
-- rights of the service. The calls of schedules that signed-in users make (signed_in) have the rights of their user:
-- see user_schedules.sql.

-- Replaces {due_at} and {previous_at} in the strings and names of a document, and {{ by a brace. It works on the text
-- of the document, so that nesting costs nothing: outside of strings, neither can occur in it.
create or replace function gem.fill_times(p_document jsonb, p_due timestamptz, p_previous timestamptz) returns jsonb
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  seconds constant text := 'YYYY-MM-DD"T"HH24:MI:SS"Z"';
begin
  return ( -- split at {{, so that {{due_at} stays as it is written
    select string_agg(replace(replace(part.text,
      '{due_at}', to_char(p_due at time zone 'UTC', seconds)),
      '{previous_at}', to_char(p_previous at time zone 'UTC', seconds)), '{' order by part.n)
    from unnest(string_to_array(p_document::text, '{{')) with ordinality part (text, n))::jsonb;
end
$$;

-- Returns the open call of the last instant that has one, or null.
create or replace function gem.open_occurrence(p_schedule uuid) returns uuid language sql stable as $$
  select c.id from (
    select o.call_id from gem.occurrences o
    where o.schedule_id = p_schedule and o.call_id is not null and not o.backfilled
    order by o.due_at desc limit 1) last
  join public.core_tool_calls c on c.id = last.call_id and not gem.is_final(c.status)
$$;

drop function if exists gem.insert_call_of(gem.schedules, timestamptz, uuid, interval);
drop function if exists gem.occur(gem.schedules, timestamptz, boolean);
drop function if exists gem.pause_schedule(text, text, text, text);
drop function if exists gem.run_schedule_now(text, text);
drop function if exists gem.backfill_schedule(text, timestamptz, timestamptz, text);

-- Inserts the call of an instant, with the rights of the schedule. p_who describes the operator who asks for the call,
-- by default the one who saved the schedule. The call's journal names this person, who therefore cannot approve the
-- call. The token and the headers of the current request do not matter. If the insert fails, the caller must roll back
-- to a savepoint, which restores them.
create or replace function gem.insert_call_of(p_schedule gem.schedules, p_due timestamptz, p_id uuid,
  p_jitter interval, p_who jsonb default null) returns void language plpgsql as $$
declare
  claims   constant text        := current_setting('request.jwt.claims', true);
  headers  constant text        := current_setting('request.headers', true);
  sent     constant text        := current_setting('gem.sent', true); -- see gem.before_insert_call
  input    constant jsonb       := gem.fill_times(p_schedule.input, p_due, coalesce(
    (select o.due_at from gem.occurrences o
      where o.schedule_id = p_schedule.id and o.call_id is not null and o.due_at < p_due
      order by o.due_at desc limit 1), least(p_schedule.since, p_due)));
  at       constant timestamptz := gem.now();
  runs_at  constant timestamptz := at -- a hash spreads the schedules of the same minute
    + p_jitter * ((hashtextextended(format('%s %s', p_schedule.id, extract(epoch from p_due)), 0) & 65535) / 65536.0);
begin
  perform set_config('request.headers', '', true), set_config('gem.sent', '', true),
    set_config('request.jwt.claims', case when p_schedule.signed_in then
      jsonb_build_object('sub', p_schedule.created_by, 'role', gem.role_of_users())::text else '' end, true);
  -- The queued event comes first. The call takes its time from it.
  perform set_config('gem.again', p_id::text, true);
  insert into public.core_tool_events (call_id, seq, at, event, attempt, data)
  values (p_id, 1, at, 'queued', 0, coalesce(p_who, p_schedule.changed) - '{at,resumed_by}'::text[]
    || jsonb_strip_nulls(jsonb_build_object('saved_by', p_schedule.changed ->> 'by',
      'saved_login', p_schedule.changed ->> 'login'))
    || jsonb_build_object('schedule', p_schedule.name, 'run_at', runs_at, 'priority', p_schedule.priority));
  if p_schedule.signed_in then
    perform gem.insert_as_user(p_id, p_schedule.tool_name, input, p_schedule.session_id, p_schedule.priority, runs_at);
  else
    insert into public.core_tool_calls (id, tool_name, input, session_id, priority, run_at, created_by)
    values (p_id, p_schedule.tool_name, input, p_schedule.session_id, p_schedule.priority, runs_at,
      p_schedule.created_by);
  end if;
  perform set_config('gem.again', '', true);
  perform set_config('request.headers', coalesce(headers, ''), true), set_config('gem.sent', coalesce(sent, ''), true),
    set_config('request.jwt.claims', coalesce(claims, ''), true);
end
$$;

-- Inserts the call of one instant and writes the occurrence. The id of the call consists of the time and a hash of the
-- schedule and the time. If a failover loses the occurrence and a worker restores the call, the schedule finds that
-- call and does not insert another one. A frontend can choose the ids of its calls, so a call of other rights does not
-- count.
create or replace function gem.occur(p_schedule gem.schedules, p_due timestamptz, p_backfilled boolean default false,
  p_who jsonb default null) returns void language plpgsql as $$
declare
  call  uuid := gem.receipt_id(gem.receipt_id(p_schedule.id, p_due), p_due); -- twice, so that no id gives another away
  found boolean := (select (c.tool_name, c.created_by, c.signed_in) is not distinct from (p_schedule.tool_name,
    p_schedule.created_by, p_schedule.signed_in) from public.core_tool_calls c where c.id = call);
  why   text;
begin
  if not found then
    call := gem.new_id(gem.now());
  end if;
  begin
    perform gem.insert_call_of(p_schedule, p_due, call, p_schedule.jitter, p_who) where found is not true;
  exception
    when serialization_failure or deadlock_detected or lock_not_available or query_canceled then raise;
    when others then
      if p_backfilled then
        raise; -- a person asks for it, and can repeat it
      end if;
      why := gem.printable(sqlerrm, 300);
      call := null;
  end;
  insert into gem.occurrences (schedule_id, due_at, upto, count, backfilled, call_id, skipped, detail, at)
  values (p_schedule.id, p_due, p_due, 1, p_backfilled, call, case when call is null then 'refused' end, why,
    gem.now());
end
$$;

-- Writes one row for the instants from p_due to p_upto that get no call.
create or replace function gem.skip_times(p_schedule gem.schedules, p_due timestamptz, p_upto timestamptz,
  p_skipped text, p_detail text default null) returns void language plpgsql as $$
declare
  ends   constant timestamptz := gem.now() + interval '1 second'; -- the time to stop counting
  passed timestamptz := p_due;
  count  integer     := 0;
begin
  while passed <= p_upto and count <= 1000 loop
    count := case when gem.now() > ends then 1001 else count + 1 end;
    passed := gem.cron_next(p_schedule.cron, p_schedule.zone, passed);
  end loop;
  insert into gem.occurrences (schedule_id, due_at, upto, count, skipped, detail, at)
  values (p_schedule.id, p_due, p_upto, nullif(count, 1001), p_skipped, p_detail, gem.now());
end
$$;

-- Handles the due instants of a schedule. The caller has locked its row.
create or replace function gem.run_schedule(p_schedule uuid) returns void language plpgsql as $$
declare
  at    constant timestamptz := gem.now();
  this  gem.schedules;
  late  timestamptz; -- the last late instant
  first timestamptz; -- the first late one that gets a call
  upto  timestamptz; -- the last of those before it, which get none
  open  uuid;
  due   timestamptz;
  count integer := 0;
  busy  boolean := false; -- another transaction has locked the call to cancel
  oldest interval;
begin
  select s.* into this from gem.schedules s where s.id = p_schedule;
  if this.signed_in then
    -- An insert takes this lock. A wait for it here could end in a deadlock: this transaction may have several.
    if not pg_try_advisory_xact_lock(hashtextextended('gem.limits ' || this.created_by, 0)) then
      update gem.schedules s set look_at = at + interval '1 second' where s.id = this.id;
      return;
    end if;
    select l.max_schedule_age into oldest from gem.limits l;
    if (this.changed ->> 'at')::timestamptz < at - oldest then
      update gem.schedules s set look_at = null, paused = jsonb_build_object('as', 'age', 'by', 'gem',
        'at', gem.rfc3339(at),
        'reason', format('nobody has saved or resumed it for %s', oldest))
      where s.id = this.id;
      return;
    end if;
  end if;
  if this.held_at is not null and gem.open_occurrence(this.id) is null then
    perform gem.occur(this, this.held_at);
    this.held_at := null;
  end if;

  due := this.next_at;
  late := case when due <= at - interval '1 minute' then gem.cron_last(this.cron, this.zone,
    due - interval '1 microsecond', least(at - interval '1 minute', this.ends_at)) end;
  if late is not null then
    first := case this.missed
      when 'one' then case when late >= at - this.missed_within then late end
      when 'all' then gem.cron_next(this.cron, this.zone,
        greatest(due, at - this.missed_within) - interval '1 microsecond') end;
    upto := case when first <= late then gem.cron_last(this.cron, this.zone, due - interval '1 microsecond',
      first - interval '1 microsecond') else late end;
    if upto is not null then
      perform gem.skip_times(this, due, upto, 'missed', 'no worker ran at the time');
      due := gem.cron_next(this.cron, this.zone, upto);
    end if;
  end if;

  while due <= least(at, this.ends_at) loop
    -- The next look continues. This transaction holds the lock of a user, whose inserts wait for it.
    exit when gem.now() > at + case when this.signed_in then interval '200 ms' else interval '4 seconds' end;
    if count = 1000 and due <= late then
      perform gem.skip_times(this, due, late, 'missed', 'a thousand earlier instants have run late');
      due := gem.cron_next(this.cron, this.zone, late);
      continue;
    end if;
    count := count + 1;
    open := case when this.overlap <> 'allow' then gem.open_occurrence(this.id) end;
    if open is not null and this.overlap = 'cancel' then
      if not gem.lock_soon(open) then
        busy := true;
        exit;
      end if;
      perform gem.cancel(open, jsonb_build_object('by', 'schedule ' || this.name));
      open := null;
    end if;
    if this.held_at is not null then
      perform gem.skip_times(this, due, due, 'overlap', 'an earlier instant still waits');
    elsif open is not null and this.overlap = 'queue' then
      this.held_at := due;
    elsif open is not null then
      perform gem.skip_times(this, due, due, 'overlap', format('call %s has not ended', open));
    else
      perform gem.occur(this, due);
    end if;
    due := gem.cron_next(this.cron, this.zone, due);
  end loop;
  if due > this.ends_at then
    due := null;
  end if;
  -- a held instant is looked at every two seconds: calls that end do not know their schedules
  update gem.schedules s set next_at = due, held_at = this.held_at,
    look_at = case when busy then at + interval '1 second' when this.held_at is null then due
      else least(due, at + interval '2 seconds') end
  where s.id = this.id;
end
$$;

-- Runs the schedules that are due, or p_only if it is, for about a second. Returns their number, or p_limit if there
-- are more.
create or replace function gem.run_schedules(p_limit integer, p_only uuid default null) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
declare
  at    constant timestamptz := gem.now();
  count integer := 0;
  ids   uuid[];
  this  uuid;
begin
  loop
    ids := array(select s.id from gem.schedules s where s.look_at <= at and (p_only is null or s.id = p_only)
      order by s.look_at limit 100 for no key update skip locked);
    exit when cardinality(ids) = 0;
    foreach this in array ids loop
      if count >= p_limit or gem.now() > at + interval '1 second' then
        return p_limit;
      end if;
      count := count + 1;
      begin
        perform gem.run_schedule(this);
      exception when others then
        raise warning 'gem: schedule % is tried again in a minute: %', this, gem.printable(sqlerrm, 300);
        update gem.schedules s set look_at = at + interval '1 minute' where s.id = this;
      end;
    end loop;
  end loop;
  return count;
end
$$;

-- Returns the schedules that are due, at most a thousand. After gem.run_timers has failed, a worker runs them one by
-- one.
create or replace function gem.due_schedules() returns setof uuid
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.id from gem.schedules s where s.look_at <= gem.now() order by s.look_at limit 1000
$$;

-- Puts off a schedule that failed by a minute.
create or replace function gem.postpone_schedule(p_schedule uuid) returns void
language sql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
  update gem.schedules s set look_at = gem.now() + interval '1 minute'
  where s.id = p_schedule and s.look_at <= gem.now()
$$;

-- Returns who acts, with the time, for the columns paused, removed and changed.
create or replace function gem.acts_now(p_by text, p_reason text) returns jsonb language sql stable as $$
  select gem.acts(p_by, p_reason) || jsonb_build_object('at', gem.rfc3339(gem.now()))
$$;

-- Takes the lock under which an insert checks the limits of a user, or none if p_of is null.
create or replace function gem.lock_limits_of(p_of text) returns void language sql as $$
  select pg_advisory_xact_lock(hashtextextended('gem.limits ' || p_of, 0)) where p_of is not null
$$;

-- Locks the schedule of a user, or of nobody, and returns its row. Raises PT404 if it does not exist.
create or replace function gem.lock_schedule(p_name text, p_of text) returns gem.schedules language plpgsql as $$
declare
  this gem.schedules;
begin
  perform gem.lock_limits_of(p_of); -- before the row, as in a request of that user
  select s.* into this from gem.schedules s
  where coalesce(s.created_by, '') = coalesce(p_of, '') and s.name = p_name and s.removed is null for no key update;
  if this.id is null then
    perform gem.refuse('PT404', 'the schedule %s does not exist', 'gem schedules list and the view tool_schedules list '
      'the schedules.', p_name);
  end if;
  return this;
end
$$;

-- Locks a schedule and writes its instants that are due, those of a pause too, so that it can be changed. Returns the
-- row. Raises PT409 if instants remain.
create or replace function gem.settle_schedule(p_name text, p_of text) returns gem.schedules language plpgsql as $$
declare
  at   constant timestamptz := gem.now();
  this gem.schedules        := gem.lock_schedule(p_name, p_of);
  last timestamptz;
begin
  if this.paused is not null then
    last := gem.cron_last(this.cron, this.zone, this.next_at - interval '1 microsecond', least(at, this.ends_at));
    if last is not null then
      perform gem.skip_times(this, this.next_at, last, 'paused',
        concat_ws(': ', this.paused ->> 'by', this.paused ->> 'reason'));
      this.next_at := gem.cron_next(this.cron, this.zone, last);
      update gem.schedules s set next_at = case when this.next_at > this.ends_at is not true then this.next_at end
      where s.id = this.id;
    end if;
  elsif this.next_at <= at or this.held_at is not null then
    perform gem.run_schedule(this.id);
  end if;
  this := gem.lock_schedule(p_name, p_of);
  if this.next_at <= at then
    perform gem.refuse('PT409', 'times of the schedule %s are still due',
      'Try again: they are too many for one moment, or a call that has to be cancelled is locked.', p_name);
  end if;
  return this;
end
$$;

-- Makes a schedule, or changes the one with that name, of the user p_of or of nobody. With p_signed_in, its calls have
-- only the rights of that user, and it raises what the insert of such a call raises. What p_options omits gets its
-- default. p_options may have session_id, priority, missed, missed_within, overlap, jitter, starts_at and ends_at.
-- Instants that are due under the old expression are written first. With the same cron and zone, the next instant
-- stays. Raises PT422 if the schedule cannot be read, or has no instant.
create or replace function gem.save_schedule(p_name text, p_cron text, p_tool text, p_input jsonb default '{}',
  p_zone text default 'UTC', p_options jsonb default '{}', p_of text default null, p_by text default null,
  p_reason text default null, p_signed_in boolean default false,
  out id uuid, out next timestamptz, out paused boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s'
  set timezone = 'UTC' as $$
#variable_conflict use_column
declare
  at   constant timestamptz := gem.now();
  who  constant jsonb       := gem.acts_now(p_by, p_reason);
  odd  text;
  old  gem.schedules;
  this gem.schedules;
begin
  if p_name is null or p_name !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$' then
    perform gem.refuse('PT422', 'the name %s is not possible',
      'A schedule''s name has 1 to 100 letters, digits, -, _ and ., and begins with a letter or a digit.', p_name);
  elsif coalesce(p_tool, '') = ''
    or exists (select from gem.tools) and not exists (select from gem.tools t where t.name = p_tool) then
    perform gem.refuse('PT422', 'the registry has no tool %s', 'gem tools lists the tools.', p_tool);
  elsif p_cron is null then
    perform gem.refuse('PT422', 'a schedule needs a cron expression', 'For example 0 9 * * 1-5.');
  elsif jsonb_typeof(p_input) is distinct from 'object' then
    perform gem.refuse('PT422', 'the input must be a JSON object');
  elsif jsonb_typeof(p_options) is distinct from 'object' then
    perform gem.refuse('PT422', 'the options must be a JSON object');
  end if;
  if length(p_of) > 255 or p_of = '' or p_of is null and p_signed_in then
    perform gem.refuse('PT422', 'a user''s subject has 1 to 255 characters');
  end if;
  perform gem.check_zone(p_zone);
  select k into odd from jsonb_object_keys(p_options) k where k <> all ('{session_id,priority,missed,missed_within,
    overlap,jitter,starts_at,ends_at}'::text[]) limit 1;
  if odd is not null then
    perform gem.refuse('PT422', 'schedules do not have the option %s', null, odd);
  end if;
  perform gem.check_size('the input', p_input, 1048576);

  perform gem.lock_limits_of(p_of); -- before the row
  insert into gem.schedules (id, name, created_by, tool_name, input, priority, cron, zone, missed, missed_within,
    overlap, jitter, since, changed)
  values (gem.new_id(at), p_name, p_of, p_tool, p_input, 0, p_cron, p_zone, 'one', '1 day', 'skip', '0', at, who)
  on conflict ((coalesce(created_by, '')), name) where removed is null do nothing;
  old := gem.settle_schedule(p_name, p_of);
  this := old;
  begin
    this := jsonb_populate_record(this, '{"session_id": null, "priority": 0, "missed": "one", "missed_within": "1 day",
      "overlap": "skip", "jitter": "0", "starts_at": null, "ends_at": null}'::jsonb || jsonb_strip_nulls(p_options));
    -- an interval of months and days compares as less than it lasts
    this.missed_within := justify_hours(make_interval(secs => extract(epoch from this.missed_within)::float8));
    this.jitter := justify_hours(make_interval(secs => extract(epoch from this.jitter)::float8));
  exception when data_exception or datetime_field_overflow then
    perform gem.refuse('PT422', 'the options cannot be read: %s', null, sqlerrm);
  end;
  if this.missed not in ('skip', 'one', 'all') then
    perform gem.refuse('PT422', 'missed is %s, and can be skip, one or all', null, this.missed);
  elsif this.overlap not in ('skip', 'queue', 'cancel', 'allow') then
    perform gem.refuse('PT422', 'overlap is %s, and can be skip, queue, cancel or allow', null, this.overlap);
  elsif this.missed_within not between '0' and '31 days' then
    perform gem.refuse('PT422', 'missed_within is %s, and can be from 0 to 31 days', null, this.missed_within::text);
  elsif this.jitter not between '0' and '1 hour' then
    perform gem.refuse('PT422', 'jitter is %s, and can be from 0 to 1 hour', null, this.jitter::text);
  elsif this.priority not between -1000 and 1000 then
    perform gem.refuse('PT422', 'priority is %s, and can be from -1000 to 1000', null, this.priority::text);
  elsif length(this.session_id) > 255 then
    perform gem.refuse('PT422', 'session_id may have at most 255 characters');
  elsif this.starts_at not between '1970-01-01' and at + interval '8 years' then
    perform gem.refuse('PT422', 'starts_at is %s, and can be from 1970 to 8 years ahead', null, this.starts_at::text);
  elsif this.ends_at not between '1970-01-01' and '9999-12-31' then
    perform gem.refuse('PT422', 'ends_at is %s, and can be from 1970 to 9999', null, this.ends_at::text);
  end if;

  next := old.next_at;
  if old.next_at is null or (old.cron, old.zone, old.starts_at) is distinct from (p_cron, p_zone, this.starts_at) then
    this.since := greatest(at, this.starts_at - interval '1 microsecond',
      (select max(o.upto) from gem.occurrences o where o.schedule_id = old.id), old.held_at);
    next := gem.cron_next(p_cron, p_zone, this.since);
    if next is null then
      perform gem.refuse('PT422', 'the expression %s has no instant in eight years', null, p_cron);
    end if;
  end if;
  if next > this.ends_at then
    perform gem.refuse('PT422', 'the schedule would never run: its next instant would be %s', null, gem.rfc3339(next));
  end if;
  this.tool_name := p_tool;
  this.input := p_input;
  this.signed_in := p_signed_in;
  if p_signed_in then
    begin
      perform gem.insert_call_of(this, at, gem.new_id(at), '0');
      raise exception using errcode = 'GEM00'; -- undoes it
    exception when sqlstate 'GEM00' then null;
    end;
  end if;
  update gem.schedules s set tool_name = p_tool, input = p_input, signed_in = p_signed_in, session_id = this.session_id,
    priority = this.priority, cron = p_cron, zone = p_zone, missed = this.missed, missed_within = this.missed_within,
    overlap = this.overlap, jitter = this.jitter, starts_at = this.starts_at, ends_at = this.ends_at,
    since = this.since, next_at = next, changed = who,
    look_at = case when old.paused is null then
      case when old.held_at is null then next else least(next, at + interval '2 seconds') end end
  where s.id = old.id;
  id := old.id;
  paused := old.paused is not null;
end
$$;

-- Pauses a schedule. Instants that are due are written first. p_as is operator or user. An operator's pause replaces a
-- user's, and the user cannot undo it.
create or replace function gem.pause_schedule(p_name text, p_of text default null, p_by text default null,
  p_reason text default null, p_as text default 'operator') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  who  constant jsonb := gem.acts_now(p_by, p_reason);
  this gem.schedules  := gem.settle_schedule(p_name, p_of);
begin
  update gem.schedules s set paused = who || jsonb_build_object('as', p_as), look_at = null
  where s.id = this.id and (s.paused is null or p_as = 'operator' and s.paused ->> 'as' <> 'operator');
end
$$;

-- Pauses all schedules of a user for operators, and returns their number. Meanwhile the user cannot make others.
create or replace function gem.pause_schedules_of(p_of text, p_by text default null, p_reason text default null)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  who   constant jsonb := gem.acts_now(p_by, p_reason);
  count integer;
begin
  perform gem.lock_limits_of(p_of);
  update gem.schedules s set paused = who || '{"as": "operator", "all": true}', look_at = null
  where s.created_by = p_of and s.removed is null and (s.paused -> 'all' = 'true') is not true;
  get diagnostics count = row_count;
  return count;
end
$$;

-- Resumes a schedule, and records the instants of the pause. Returns the next instant.
create or replace function gem.resume_schedule(p_name text, p_of text default null, p_by text default null,
  p_reason text default null) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  who  constant jsonb := gem.acts_now(p_by, p_reason);
  this gem.schedules  := gem.settle_schedule(p_name, p_of);
begin
  update gem.schedules s set paused = null,
    changed = s.changed || jsonb_build_object('at', who ->> 'at', 'resumed_by', who ->> 'by'), -- who saved it stays
    look_at = case when this.held_at is null then this.next_at else gem.now() end
  where s.id = this.id and s.paused is not null;
  return this.next_at;
end
$$;

-- Removes a schedule: it makes no further calls. Its occurrences remain until gem prune removes them, and its input
-- does not.
create or replace function gem.remove_schedule(p_name text, p_of text default null, p_by text default null,
  p_reason text default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  who  constant jsonb := gem.acts_now(p_by, p_reason);
  this gem.schedules  := gem.settle_schedule(p_name, p_of);
begin
  if this.held_at is not null then
    perform gem.skip_times(this, this.held_at, this.held_at, 'overlap', 'the schedule was removed');
  end if;
  if exists (select from gem.occurrences o where o.schedule_id = this.id) then
    update gem.schedules s set removed = who, input = '{}', look_at = null, held_at = null where s.id = this.id;
  else
    delete from gem.schedules s where s.id = this.id;
  end if;
end
$$;

-- Makes a call of a schedule now, and returns its id. No instant is affected.
create or replace function gem.run_schedule_now(p_name text, p_of text default null, p_by text default null,
  p_reason text default null) returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  made constant uuid := gem.new_id(gem.now());
begin
  perform gem.insert_call_of(gem.lock_schedule(p_name, p_of), gem.now(), made, '0', gem.acts(p_by, p_reason));
  return made;
end
$$;

-- Makes the calls of the instants from p_from to p_to that have none, and returns their number. They must be past, at
-- most a thousand, and after the times whose record gem prune has removed. If one call is refused, none is made.
create or replace function gem.backfill_schedule(p_name text, p_from timestamptz, p_to timestamptz,
  p_of text default null, p_by text default null, p_reason text default null) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  this  gem.schedules := gem.settle_schedule(p_name, p_of);
  due   timestamptz   := gem.cron_next(this.cron, this.zone,
    greatest(p_from, this.starts_at) - interval '1 microsecond');
  until constant timestamptz := least(p_to, this.ends_at, this.next_at - interval '1 microsecond', gem.now());
  count integer       := 0;
begin
  if due <= this.pruned_upto then
    perform gem.refuse('PT422', 'gem prune has removed the record of the times up to %s', 'Begin after it.',
      gem.rfc3339(this.pruned_upto));
  end if;
  while due <= until loop
    if due is distinct from this.held_at
      and not exists (select from gem.occurrences o where o.schedule_id = this.id and o.due_at = due
        and o.call_id is not null) then
      count := count + 1;
      if count > 1000 then
        perform gem.refuse('PT422', 'more than 1000 instants from %s to %s have no call',
          'Backfill a shorter period first.', gem.rfc3339(p_from), gem.rfc3339(p_to));
      end if;
      perform gem.occur(this, due, true, gem.acts(p_by, p_reason));
    end if;
    due := gem.cron_next(this.cron, this.zone, due);
  end loop;
  return count;
end
$$;

create or replace trigger gem_append_only before update or delete on gem.occurrences
  for each row execute function gem.refuse_change('occurrences are append-only');
create or replace trigger gem_not_emptied before truncate on gem.occurrences
  for each statement execute function gem.refuse_change('occurrences are append-only');

select gem.grant_to('gem_worker', 'execute on function gem.run_schedules(integer, uuid), gem.due_schedules(),
  gem.postpone_schedule(uuid)');
select gem.grant_to('gem_operator', 'select on gem.schedules, gem.occurrences');
select gem.open_to('gem_operator', 'gem.' || t, 'gem_operator_reads', 'for select to %I using (true)')
from unnest(array['schedules', 'occurrences']) t;
select gem.grant_to('gem_operator', 'execute on function
  gem.cron_times(text, text, integer),
  gem.save_schedule(text, text, text, jsonb, text, jsonb, text, text, text, boolean),
  gem.pause_schedule(text, text, text, text, text), gem.pause_schedules_of(text, text, text),
  gem.resume_schedule(text, text, text, text), gem.remove_schedule(text, text, text, text),
  gem.run_schedule_now(text, text, text, text),
  gem.backfill_schedule(text, timestamptz, timestamptz, text, text, text)');
revoke all on all functions in schema gem from public;

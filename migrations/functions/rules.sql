-- Rules: conditions of the rules file about earlier calls and about people. The worker knows the rules, and selects the
-- rules that apply to a call. It sends the conditions that need the database as checks (rules.Check in Go). gem.gate
-- answers all checks of a call in one statement, after it has taken the call's key. There are seven kinds of check:
--
--   call       met: the call itself matched a rule that asks people
--   count      met if the counter let `max` calls through within the window
--   sum        met if the sum of their amounts and the call's amount exceeds `max`
--   failures   met if the last calls of the counter failed, until some time after the last failure
--   requires   met if no call of the session had succeeded with one of these tools when this call was made
--   after      met if a call of the session had ended in a given way when this call was made
--   running    met if `max` calls of the counter run: see places.sql
--
-- A counter's state is its rows in gem.rule_runs. A call that passes gets a row in each of its counters. A call that is
-- stopped, or waits for people, gets none. A transaction that reads a counter holds the counter's advisory lock until
-- it ends. It locks the call's row and key first, then the counters in order. The `at` of a counter's rows never
-- decreases, even if the clock goes back.
--
--   delayed    {rules, run_at}                  the call gets a start time (running → queued)
--   called     {name, call_id, tool}            a question to people: name is ## and a digest of the question, followed
--                                               by #2 and so on if the same question was asked before and withdrawn
--   waiting    {for: [name], rules, expires_at} the call waits for people (running → waiting); this is not progress
--   ruled      {version, verdicts, approvals}   the verdicts that a durable call received before its first step

-- Returns the first row of a counter, from p_first to p_last, whose `at` is after p_after or whose total is at least
-- p_total. It searches by halving, because `at` and `total` never decrease.
create or replace function gem.first_run(p_counter text, p_first bigint, p_last bigint, p_after timestamptz,
  p_total numeric) returns bigint
language plpgsql stable as $$
declare
  low  bigint := p_first;
  high bigint := p_last + 1;
  mid  bigint;
  past boolean;
begin
  while low < high loop
    mid := (low + high) / 2;
    select coalesce(r.at > p_after, false) or coalesce(r.total >= p_total, false) into past
    from gem.rule_runs r where r.counter = p_counter and r.n = mid;
    if past then
      high := mid;
    else
      low := mid + 1;
    end if;
  end loop;
  return low;
end
$$;

-- Returns the error codes with which calls to a tool failed in a session. It jumps from code to code in the index of
-- sessions, so its cost does not depend on the number of calls.
create or replace function gem.codes_in_session(p_session text, p_created_by text, p_tool text) returns text[]
language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
  set jit = off
as $$
declare
  codes text[] := '{}';
  last  text   := '';
begin
  loop
    if p_created_by is null then
      select coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) into last
        from public.core_tool_calls c
      where c.session_id = p_session and c.created_by is null and c.tool_name = p_tool
        and coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) > last
        and c.status <> 'running'
      order by coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) limit 1;
    else
      select coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) into last
        from public.core_tool_calls c
      where c.session_id = p_session and c.created_by = p_created_by and c.tool_name = p_tool
        and coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) > last
        and c.status <> 'running'
      order by coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) limit 1;
    end if;
    exit when not found;
    codes := codes || last;
  end loop;
  return array_remove(array_remove(codes, 'succeeded'), 'not_configured');
end
$$;

-- Returns the last call of a session that ended between two times, for one of p_tools, in one of the ways p_ended. A
-- way is a status or the error code of a failure; `failed` includes all error codes.
create or replace function gem.ended_in_session(p_session text, p_created_by text, p_tools text[], p_ended text[],
  p_from timestamptz,
  p_upto timestamptz, out id uuid, out tool text, out ended text, out ended_at timestamptz)
language plpgsql stable
  -- use the index of sessions, whatever the statistics are
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
  set jit = off
as $$
declare
  one   record;
  this  text;
  way   text;
begin
  foreach this in array p_tools loop
    foreach way in array case when 'failed' = any (p_ended) then p_ended || gem.codes_in_session(p_session,
      p_created_by, this) else p_ended end loop
      if p_created_by is null then
        select c.id, c.updated_at into one from public.core_tool_calls c
        where c.session_id = p_session and c.created_by is null and c.tool_name = this
          and coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) = way
          and c.updated_at > p_from and c.updated_at <= p_upto and c.status <> 'running'
        order by c.updated_at desc limit 1;
      else
        select c.id, c.updated_at into one from public.core_tool_calls c
        where c.session_id = p_session and c.created_by = p_created_by and c.tool_name = this
          and coalesce(c.error ->> 'error_code', nullif(nullif(c.status, 'queued'), 'waiting')) = way
          and c.updated_at > p_from and c.updated_at <= p_upto and c.status <> 'running'
        order by c.updated_at desc limit 1;
      end if;
      if one.id is not null and (ended_at is null or one.updated_at > ended_at) then
        id := one.id;
        tool := this;
        ended := way;
        ended_at := one.updated_at;
      end if;
    end loop;
  end loop;
end
$$;

-- Returns the receipts of the last p_in_a_row calls of a counter, the latest first, and the time of the latest, if all
-- of them failed. It ignores cancelled calls, and reads at most a thousand rows.
create or replace function gem.failed_in_a_row(p_counter text, p_call uuid, p_in_a_row integer, out receipts uuid[],
  out latest timestamptz)
language plpgsql stable as $$
declare
  run     record;
  receipt record;
begin
  receipts := '{}';
  for run in select r.call_id from gem.rule_runs r where r.counter = p_counter and r.call_id <> p_call
    order by r.n desc limit 1000 loop
    select r.id, r.status, r.created_at, r.result -> 'error' ->> 'error_code' as code into receipt
    from public.core_tool_receipts r where r.call_id = run.call_id;
    continue when receipt.id is null or receipt.code = 'cancelled';
    exit when receipt.status <> 'failed';
    receipts := receipts || receipt.id;
    latest := greatest(latest, receipt.created_at);
    if cardinality(receipts) = p_in_a_row then
      return;
    end if;
  end loop;
  receipts := null;
  latest := null;
end
$$;

-- Returns a time, rounded up to a multiple of p_ms milliseconds since 1970, or unchanged if p_ms is null.
create or replace function gem.coarse(p_at timestamptz, p_ms bigint) returns timestamptz language sql immutable as $$
  select case when p_ms is null then p_at
    else timestamptz '1970-01-01 00:00:00Z' + (ceil(extract(epoch
      from p_at) * 1000 / p_ms) * p_ms)::float8 * interval '1 millisecond' end
$$;

-- Answers one check of a call. Returns whether it is met, and if so `seen`. For a counter it also returns the row that
-- the call would get (place is its number, moment its time, total its total), has (whether the call already has a row),
-- and starts_at (when a call that must wait may start). p_again: the call may already have a row.
create or replace function gem.look(p_check jsonb, p_call uuid, p_session text, p_created_by text,
  p_created_at timestamptz, p_at timestamptz,
  p_again boolean, out met boolean, out seen jsonb, out has boolean, out place bigint, out moment timestamptz,
    out total numeric,
  out starts_at timestamptz)
language plpgsql stable as $$
#variable_conflict use_variable
declare
  kind      text     := p_check ->> 'kind';
  line      text     := p_check ->> 'counter';
  most      numeric  := p_check ->> 'max';
  adds      numeric  := p_check ->> 'add';
  -- set if other callers count, too: this caller must not learn what they did, or when
  coarse    bigint   := p_check ->> 'coarse_ms';
  span      interval := ((p_check ->> 'within_ms') || ' milliseconds')::interval;
  last_n    bigint;
  last_at   timestamptz;
  so_far    numeric; -- the total of all rows
  gone      numeric; -- the total of the rows before the window
  leaves    numeric; -- the total at which there is room
  oldest    bigint;
  free_at   timestamptz;
  last_start timestamptz;
  past      record;
begin
  met := false;
  has := false;
  if kind = 'call' then
    met := true;
    return;
  elsif kind = 'requires' or kind = 'after' then
    select e.id, e.tool, e.ended, e.ended_at into past
    from gem.ended_in_session(p_session, p_created_by, array(select jsonb_array_elements_text(p_check -> 'tools')),
      (case kind when 'after' then array(select jsonb_array_elements_text(p_check -> 'ended')) else '{succeeded}' end),
      coalesce(p_created_at - span, '-infinity'), p_created_at) e;
    met := (past.id is null) = (kind = 'requires');
    if met and kind = 'after' then
      seen := jsonb_build_object('tool', past.tool, 'ended', past.ended, 'ended_at', past.ended_at,
        'receipt_id', (select r.id from public.core_tool_receipts r where r.call_id = past.id));
    end if;
    return;
  end if;

  if p_again then
    select r.at, r.over into starts_at, met from gem.rule_runs r where r.counter = line and r.call_id = p_call;
    has := found;
    if has then
      met := met and p_check ->> 'action' = 'warn'; -- the earlier verdict remains
      return;
    end if;
    met := false;
  end if;
  select r.n, r.at, r.total into last_n, last_at, so_far from gem.rule_runs r where r.counter = line
    order by r.n desc limit 1;
  place := coalesce(last_n, 0) + 1;
  moment := greatest(p_at, last_at);
  if kind = 'count' then
    oldest := place - most::bigint;
    if most = 0 then
      met := true;
    elsif oldest > 0 then
      select r.at + span into free_at from gem.rule_runs r where r.counter = line and r.n = oldest;
      met := coalesce(free_at > moment, false);
    end if;
    if most > 0 then
      starts_at := greatest(moment, free_at);
      if starts_at > p_at then -- rounding must not make a start too late
        last_start := p_at + ((p_check ->> 'at_most_ms') || ' milliseconds')::interval;
        starts_at := case when starts_at > last_start then gem.coarse(starts_at, coarse)
          else least(gem.coarse(starts_at, coarse), last_start) end;
      end if;
    end if;
  elsif kind = 'sum' then
    total := adds + coalesce(so_far, 0);
    gone := so_far; -- no row is in the window
    if last_n is not null then
      select r.n into oldest from gem.rule_runs r where r.counter = line order by r.n limit 1;
      select r.total - r.amount into gone from gem.rule_runs r
      where r.counter = line and r.n = gem.first_run(line, oldest, last_n, moment - span, null);
      gone := coalesce(gone, so_far);
    end if;
    met := total - coalesce(gone, 0) > most;
    if met then
      seen := case when coarse is null then jsonb_build_object('total', coalesce(so_far - gone, 0)) end;
      if adds <= most then -- when enough rows have left the window to make room for the call
        leaves := total - most;
        select r.at + span into free_at from gem.rule_runs r
        where r.counter = line and r.n = gem.first_run(line, oldest, last_n, null, leaves);
      end if;
    end if;
  elsif kind = 'failures' then
    select f.receipts, f.latest + ((p_check ->> 'cooldown_ms') || ' milliseconds')::interval as until into past
    from gem.failed_in_a_row(line, p_call, (p_check ->> 'in_a_row')::integer) f;
    met := coalesce(past.until > moment, false);
    if met then
      free_at := past.until;
      seen := case when coarse is null then jsonb_build_object('receipts', past.receipts) end;
    end if;
  end if;
  if met and free_at is not null then
    seen := coalesce(seen, '{}') || jsonb_build_object('free_at', gem.coarse(free_at, coarse));
  end if;
end
$$;

-- Returns the first denial of a call by a person, as {rule, seen: {by, reason}}, or null if nobody denied it. A denial
-- applies to the call even if the rule or the tool's entry has changed. It counts as soon as it is accepted, before its
-- question ends.
create or replace function gem.denial(p_call uuid) returns jsonb language sql stable as $$
  select jsonb_build_object('rule', coalesce(c.input #>> '{rules,0,name}', ''),
    'seen', jsonb_strip_nulls(jsonb_build_object('by', e.data ->> 'by',
      'reason', nullif(e.data #>> '{value,reason}', ''))))
  from public.core_tool_calls c join public.core_tool_events e on e.call_id = c.id
  where c.parent_call_id = p_call and c.parent_step like '##%'
    and e.event = 'answered' and e.data #> '{value,approved}' = 'false'
  order by e.at, c.id limit 1
$$;
drop function if exists gem.is_denied(uuid, jsonb);

-- Takes the key of an attempt and answers the checks of its call. It takes no key if p_key is null or a person denied
-- the call. verdict, receipt_id and result are as in gem.hold_key; without a key the verdict is run. outcome is null if
-- the key's verdict ends the attempt. Otherwise it is one of:
--   run       the call runs, and has its rows
--   stopped   a rule blocks the call: nothing was written
--   denied, expired  people denied it, or did not answer in time: nothing was written
--   unasked   people could not be asked: nothing was written
--   asked     the call waits for people, and the attempt no longer holds it
--   delayed   the call is queued until its start, and the attempt no longer holds it
--   parked    the call waits for a place of a running rule, and the attempt no longer holds it
-- at is the time of the decision. met lists the checks that are met, [{check, seen}], by their index from 0. A denial
-- of a question that no current check asks is {check: -1, rule, seen}. approvals lists the approvals. p_again: an
-- earlier attempt, or an earlier try of this statement, may have written rows. People may decide until p_deadline
-- milliseconds after the call was due. p_open is the number of milliseconds for which a question waits at most, as
-- open_ms of gem.wait; null if a worker must claim the questions first.
drop function if exists gem.gate(uuid, integer, text, text, jsonb, text, boolean, bigint);
create or replace function gem.gate(p_call uuid, p_attempt integer, p_worker text, p_key text, p_checks jsonb,
  p_version text, p_again boolean,
  p_deadline bigint, p_open bigint default null, out verdict text, out receipt_id uuid, out result jsonb,
    out outcome text, out at timestamptz,
    out starts_at timestamptz,
  out met jsonb, out approvals jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off -- use the indexes, whatever the statistics are
  set plan_cache_mode = force_generic_plan -- planned once
as $$
#variable_conflict use_variable
declare
  call      record;
  this      jsonb;
  i         integer;
  sees      record;
  answer    record;
  looks     jsonb       := '[]'; -- the answer to each check
  due       timestamptz := gem.due(p_call) + (p_deadline || ' milliseconds')::interval;
  one_wait  boolean     := (select count(*) = 1 from jsonb_array_elements(p_checks) k
    where k ->> 'action' = 'wait' and k ->> 'kind' <> 'running');
  missed    boolean     := false; -- the call missed its start
  name      text;
  stops     boolean     := false;
  no        text;                -- denied or expired
  unasked   boolean     := false; -- a question could not be asked
  asking    jsonb       := '[]'; -- checks that people have not decided
  denial    jsonb       := case when p_again then gem.denial(p_call) end;
  told      jsonb;
  place     record;
  lacking   jsonb;                -- the first check without a free place, for which the call may wait
  until     timestamptz;          -- how long it may
  free      jsonb       := '[]'; -- the checks whose places it takes if it runs
  kept      text[]      := '{}'; -- the counters in which it then has a place
begin
  verdict := 'run';
  met := '[]';
  approvals := '[]';
  -- A denied call ends with its denial. It takes no key, so it cannot repeat the success of another call.
  if p_key is not null and denial is null then
    select h.verdict, h.receipt_id, h.result into verdict, receipt_id, result
      from gem.hold_key(p_call, p_attempt, p_worker, p_key) h;
    if verdict <> 'run' then
      return;
    end if;
  end if;
  select c.id, c.session_id, c.created_by, c.created_at, c.signed_in, c.priority, c.traceparent, c.events,
    c.cancel_requested_at, c.placed, c.steps into call
  from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  perform pg_advisory_xact_lock(hashtextextended('gem.rule ' || line, 0)) from (
    select distinct (k ->> 'counter') collate "C" as line from jsonb_array_elements(p_checks) k where k ? 'counter'
    union
    select r.counter from gem.rule_places r where call.placed and r.call_id = p_call
      order by 1) counters;
  at := gem.now(); -- read the time after waiting for the counters
  if p_again and denial is null then
    denial := gem.denial(p_call); -- a denial may have been accepted during that wait
  end if;

  for this, i in select k.value, k.ordinality - 1 from jsonb_array_elements(p_checks) with ordinality k loop
    if this ->> 'kind' = 'running' then
      select * into place from gem.look_place(this, p_call, at, p_version, p_worker);
      looks := looks || 'null'::jsonb;
      if place.state <> 'full' then
        kept := kept || (this ->> 'counter');
      end if;
      if place.state = 'free' then
        free := free || this;
      elsif place.state = 'full' and not (call.steps > 0 and call.cancel_requested_at is not null) then -- to clean up
        until := least(coalesce(place.since, at) + ((this ->> 'at_most_ms') || ' milliseconds')::interval, due);
        -- a call that has made progress waits: its steps would be lost
        if this ->> 'action' = 'block' and call.steps = 0 or until <= at then
          stops := true;
        else
          lacking := coalesce(lacking, this || jsonb_build_object('until', until));
        end if;
        met := met || jsonb_build_object('check', i, 'seen',
          case when this ->> 'action' = 'wait' and until <= at then '{"not_in_time": true}' else '{}' end::jsonb);
      end if;
      continue;
    end if;
    select * into sees from gem.look(this, p_call, call.session_id, call.created_by, call.created_at, at, p_again);
    if this ->> 'action' = 'wait' then
      if sees.has and one_wait and sees.starts_at < at - greatest(interval '1 minute',
        ((this ->> 'within_ms') || ' milliseconds')::interval) then
        missed := true; -- otherwise all calls that missed their start would run at the same time
        select * into sees from gem.look(this, p_call, call.session_id, call.created_by, call.created_at, at, false);
      end if;
      sees.met := sees.starts_at is null or sees.starts_at > at;
      if sees.met and not sees.has
        and (sees.starts_at is null or sees.starts_at > at + ((this ->> 'at_most_ms') || ' milliseconds')::interval
          or coalesce(sees.starts_at > due, false)) then
        stops := true;
        sees.seen := coalesce(sees.seen, '{}') || jsonb_build_object('not_in_time', true)
          || case when sees.starts_at is null then '{}' else jsonb_build_object('free_at', sees.starts_at) end;
      elsif sees.met then
        starts_at := greatest(starts_at, sees.starts_at);
        sees.seen := jsonb_build_object('free_at', sees.starts_at);
      end if;
    elsif this ? 'digest' then
      name := '##' || (this ->> 'digest');
      loop -- a question that was withdrawn or cancelled is asked again under another name
        select c.id, c.status, r.result, r.result ->> 'reason' as reason,
          r.result -> 'error' ->> 'error_code' as code into answer
        from public.core_tool_calls c left join public.core_tool_receipts r on r.call_id = c.id
        where c.parent_call_id = p_call and c.parent_step = name;
        exit when answer.code is distinct from 'cancelled';
        name := '##' || (this ->> 'digest') || '#' || coalesce(nullif(split_part(name, '#', 4), '')::integer, 1) + 1;
      end loop;
      if answer.id is null then
        asking := case when sees.met then asking || (this || jsonb_build_object('name', name)) else asking end;
      elsif not gem.is_final(answer.status) then
        asking := asking || (this || jsonb_build_object('name', name));
        sees.met := true;
      elsif (answer.result ->> 'approved')::boolean then
        approvals := approvals || (jsonb_build_object('rule', this ->> 'rule', 'id', answer.id,
            'by', answer.result ->> 'by', 'at', answer.result ->> 'at', 'digest', this ->> 'digest')
          || case when answer.reason <> '' then jsonb_build_object('reason', answer.reason) else '{}' end);
      elsif answer.status <> 'succeeded' then
        unasked := true;
        sees.met := true;
        sees.seen := coalesce(sees.seen, '{}') || jsonb_strip_nulls(jsonb_build_object('reason',
          answer.result -> 'error' ->> 'message'));
      else
        no := case when coalesce(answer.reason = 'expired' and not answer.result ? 'by', false)
            and no is distinct from 'denied'
          then 'expired' else 'denied' end;
        sees.met := true;
        sees.seen := coalesce(sees.seen, '{}') || jsonb_strip_nulls(jsonb_build_object('reason', answer.reason, 'by',
          answer.result ->> 'by'));
      end if;
    elsif this ->> 'action' = 'block' then
      stops := stops or sees.met;
    end if;
    if sees.met then
      met := met || jsonb_build_object('check', i, 'seen', coalesce(sees.seen, '{}'));
    end if;
    looks := looks || to_jsonb(sees);
  end loop;

  if denial is not null and no is distinct from 'denied' then
    no := 'denied';
    unasked := false; -- a question may fail after its answer was accepted
    met := (select coalesce(jsonb_agg(m.value order by m.ordinality), '[]')
      from jsonb_array_elements(met) with ordinality m
      where p_checks #> array[m.value ->> 'check', 'digest'] is null
        or p_checks #>> array[m.value ->> 'check', 'rule'] <> denial ->> 'rule')
      || (denial || '{"check": -1}');
  end if;
  if stops or unasked or no is not null then
    outcome := case when stops then 'stopped' when unasked then 'unasked' else no end;
    starts_at := null;
    perform gem.withdraw(p_call, '{}');
    return;
  end if;
  outcome := case when asking <> '[]' then 'asked' when starts_at is not null then 'delayed'
    when lacking is not null then 'parked' else 'run' end;
  starts_at := case when outcome = 'delayed' then starts_at end;
  if outcome <> 'run' and call.cancel_requested_at is not null then
    perform gem.release(p_call, p_attempt, p_worker); -- the next claim ends it
    return;
  elsif outcome = 'asked' then
    perform gem.ask(p_call, p_attempt, p_worker, at, asking, p_deadline, p_open);
    return;
  elsif outcome = 'parked' then
    perform gem.leave_places(array[p_call], p_worker, array[lacking ->> 'counter']);
    perform gem.wait_for_place(p_call, p_attempt, p_worker, at, lacking, p_version, (lacking ->> 'until')::timestamptz);
    return;
  end if;

  for this, i in select k.value, k.ordinality - 1 from jsonb_array_elements(p_checks) with ordinality k
    where k.value ? 'counter' and k.value ->> 'kind' <> 'running'
      and (outcome = 'run' or k.value ->> 'action' = 'wait')
  loop
    told := looks -> i;
    -- If several counters give a start time, the call takes the latest, and checks the other counters again at that
    -- time. A row with a later time than necessary would delay all later rows of its counter.
    if not (told ->> 'has')::boolean and (outcome = 'run' or (told ->> 'starts_at')::timestamptz = starts_at) then
      if missed and this ->> 'action' = 'wait' then
        update gem.rule_runs r set call_id = gen_random_uuid() where r.counter = this ->> 'counter'
          and r.call_id = p_call;
      end if;
      insert into gem.rule_runs (counter, n, at, call_id, over, amount, total, rules_version)
      values (this ->> 'counter', (told ->> 'place')::bigint, case when outcome = 'delayed' then starts_at
        else (told ->> 'moment')::timestamptz end,
        p_call, (told ->> 'met')::boolean and outcome = 'run', (this ->> 'add')::numeric, (told ->> 'total')::numeric,
          p_version);
    end if;
  end loop;
  if outcome = 'delayed' then
    perform gem.put_back(p_call, p_attempt, p_worker, 'delayed', p_starts_at => starts_at, p_at => at,
      p_data => jsonb_build_object('rules',
      (select jsonb_agg(p_checks -> (m ->> 'check')::integer ->> 'rule') from jsonb_array_elements(met) m
       where p_checks -> (m ->> 'check')::integer ->> 'action' = 'wait'
         and p_checks -> (m ->> 'check')::integer ->> 'kind' <> 'running')));
    return;
  elsif p_again then
    perform gem.withdraw(p_call, '{}');
  end if;
  if call.placed then -- the rules may have changed since
    perform gem.leave_places(array[p_call], p_worker, kept);
  end if;
  for this in select k.value from jsonb_array_elements(free) k loop
    perform gem.add_place(gem.last_place(this ->> 'counter'), this ->> 'counter', at, p_call, 'took',
      (this ->> 'max')::integer, p_version);
  end loop;
  if call.placed <> (kept <> '{}') then
    update public.core_tool_calls c set placed = not c.placed where c.id = p_call;
  end if;
end
$$;

-- Asks people about each check that has no question yet, with a call to wait.approval, and parks the call until one of
-- the questions ends. It withdraws questions with other digests, because their subject has changed. It waits for locks
-- only briefly, because it holds the counters' locks: another transaction may be inserting a level of the queue.
drop function if exists gem.ask(uuid, integer, text, timestamptz, jsonb, bigint);
create or replace function gem.ask(p_call uuid, p_attempt integer, p_worker text, p_at timestamptz, p_checks jsonb,
  p_deadline bigint, p_open bigint) returns void
language plpgsql set lock_timeout = '500ms' as $$
declare
  call   record;
  before jsonb;
  names  text[];
  made   integer;
  ends   timestamptz;
begin
  perform gem.leave_places(array[c.id], p_worker) from public.core_tool_calls c where c.id = p_call and c.placed;
  names := array(select k ->> 'name' from jsonb_array_elements(p_checks) k);
  perform gem.withdraw(p_call, names);
  select c.session_id, c.created_by, c.signed_in, c.priority, c.traceparent, c.events, c.computed_key,
    gem.due(c.id) + (p_deadline || ' milliseconds')::interval as deadline into call
  from public.core_tool_calls c where c.id = p_call;
  select jsonb_agg(jsonb_strip_nulls(jsonb_build_object('tool', e.tool_name, 'status', e.status, 'error_code',
    e.error ->> 'error_code',
    'at', gem.rfc3339(e.updated_at))) order by e.updated_at) into before
  from (
    select * from (
      select c.tool_name, c.status, c.error, c.updated_at, c.session_id, c.parent_step from public.core_tool_calls c
      where c.created_by = call.created_by order by c.created_at desc limit 200) own
    where own.session_id = call.session_id and gem.is_final(own.status) and own.parent_step is null
      and own.tool_name ~ '^[a-z][a-z0-9_.]{0,199}$'
    order by own.updated_at desc limit 10) e;
  with asked as (
    select k.value, k.ordinality, k.value ->> 'name' as name,
      least(p_at + ((k.value ->> 'ask_ms') || ' milliseconds')::interval, call.deadline) as until
    from jsonb_array_elements(p_checks) with ordinality k
  ), child as (
    insert into public.core_tool_calls (id, tool_name, input, session_id, parent_call_id, parent_step, created_by,
      signed_in, priority, traceparent, run_at, status, wake_at)
    select gem.new_id(p_at), 'wait.approval', a.value -> 'question' || jsonb_build_object('until', gem.rfc3339(a.until),
      'before', coalesce(before, '[]')),
      call.session_id, p_call, a.name, call.created_by, call.signed_in, call.priority, call.traceparent, p_at,
      case when p_open is null then 'queued' else 'waiting' end, p_at + (p_open || ' milliseconds')::interval
    from asked a order by a.ordinality
    on conflict (parent_call_id, parent_step) where parent_call_id is not null do nothing
    returning id, parent_step, status, created_at, answer_until
  ), question as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select child.id, 2, child.created_at, 'waiting', 0, p_worker, gem.question_waits(child.answer_until, p_worker)
    from child where child.status = 'waiting'
  ), journal as (
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
    select p_call, call.events + row_number() over (order by a.ordinality), p_at, 'called', p_attempt, p_worker,
      jsonb_build_object('name', a.name, 'call_id', child.id, 'tool', 'wait.approval')
    from child join asked a on a.name = child.parent_step
    returning 1
  )
  select (select count(*) from journal), max(a.until) into made, ends from asked a;
  update public.core_tool_calls c
  set status = 'waiting', waits_for = 'call', waits = names, need = 1, placed = false, computed_key = null,
    claimed_by = null, claimed_at = null, kills = 0,
      updated_at = p_at, events = c.events + made + 1
  where c.id = p_call;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call, call.events + made + 1, p_at, 'waiting', p_attempt, p_worker, jsonb_build_object('for', names,
    'rules', (select jsonb_agg(k ->> 'rule') from jsonb_array_elements(p_checks) k), 'expires_at', ends));
  if call.computed_key is not null then
    perform gem.wake_waiting(call.computed_key, 1, p_worker);
  end if;
end
$$;

-- Cancels the open questions of a call, except p_but. It skips locked questions; these end at their deadline.
create or replace function gem.withdraw(p_call uuid, p_but text[]) returns void language plpgsql as $$
declare
  question uuid;
begin
  for question in
    select k.id from public.core_tool_calls k
    where k.parent_call_id = p_call and k.parent_step like '##%' and k.parent_step <> all (p_but)
      and k.status in ('queued', 'running', 'waiting') and k.cancel_requested_at is null
    for no key update skip locked
  loop
    perform gem.cancel(question);
  end loop;
end
$$;

-- Returns a time in the format of wait.approval.
create or replace function gem.rfc3339(p_at timestamptz) returns text language sql immutable as $$
  select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- Writes the rules' verdicts on a call to its journal, once, because a durable call may end on a worker with other
-- rules.
create or replace function gem.note_ruling(p_call uuid, p_attempt integer, p_worker text, p_ruling jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  at     timestamptz := gem.now();
  length integer;
begin
  select c.events into length from public.core_tool_calls c
  where c.id = p_call and coalesce(c.attempt = p_attempt and c.claimed_by = p_worker and c.status = 'running', false)
    for no key update;
  if not found then
    perform gem.raise_not_held(p_call, p_attempt, p_worker);
  end if;
  if not exists (select from public.core_tool_events e where e.call_id = p_call and e.event = 'ruled'
    and e.attempt = p_attempt) then
    insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
      values (p_call, length + 1, at, 'ruled', p_attempt, p_worker, p_ruling);
    update public.core_tool_calls c set events = c.events + 1, updated_at = at where c.id = p_call;
  end if;
end
$$;

select gem.grant_to('gem_worker',
  'execute on function gem.gate(uuid, integer, text, text, jsonb, text, boolean, bigint, bigint),
  gem.note_ruling(uuid, integer, text, jsonb)');
revoke all on all functions in schema gem from public;

-- Failovers. A standby that is promoted may lack the last commits of the primary, and so does a restored backup. A
-- worker that lives on remembers the ends that it has written lately, and puts them back:
--
--   1. Each heartbeat and each claim compares the server that the worker has met (core_workers.server) with the present
--      one. If they differ, the heartbeat returns `moved`, and the claim raises GM006.
--   2. gem.meet_server records the new server as an epoch, once, with the difference to the previous one.
--   3. gem.compare_ends returns the ends that the server lacks.
--   4. gem.restore puts one of them back, or records why it cannot.
--
-- After a promotion, no worker claims calls for five seconds, so that the others can do the same. A worker that has not
-- met the server yet counts as alive for fifteen seconds.

-- Returns what identifies the running server: when Postgres started. It differs on another server and after a restart,
-- but not after a crash from which the same process recovers. Test databases replace this function.
create or replace function gem.server() returns timestamptz language sql stable as
  'select pg_catalog.pg_postmaster_start_time()';

-- Returns the system identifier and the timeline of the server, or null for what the owner may not read.
create or replace function gem.place_of_server(out system_id text, out timeline text) language plpgsql
  set search_path = pg_catalog, pg_temp as $$
begin
  begin
    system_id := (select s.system_identifier::text from pg_control_system() s);
  exception when insufficient_privilege or undefined_function then
    null;
  end;
  begin
    -- pg_control_checkpoint would return the earlier timeline until the first checkpoint after a promotion.
    timeline := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
  exception when insufficient_privilege or undefined_function or object_not_in_prerequisite_state then
    null;
  end;
end
$$;

-- Reports whether commits may be missing on a server that was met for this reason.
create or replace function gem.may_lack_commits(p_why text) returns boolean language sql immutable as $$
  select p_why in ('promotion', 'restore', 'unknown')
$$;

-- Reports whether commits after p_since may have been lost, as far as the workers know.
create or replace function gem.may_have_lost(p_since timestamptz) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select exists (select from gem.epochs e where e.at > p_since and gem.may_lack_commits(e.why))
$$;

-- Records that a worker has met the present server, and the server as an epoch if it is new. Returns the epoch, and the
-- time from which the worker may claim calls; null: at once, because the server lacks no commits. Of a server with more
-- than fifty changes in a day, such as one that sleeps when idle, only the last of consecutive restarts is kept. p_knew
-- is the gem.server() that the worker met last; null: the worker is starting. If that was another server, and this
-- server has no earlier epoch, a failover lost the first epoch too.
drop function if exists gem.meet_server(text);
create or replace function gem.meet_server(p_worker text, p_knew timestamptz default null, out epoch bigint,
  out why text, out may_claim_at timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  here constant timestamptz := gem.server();
  now_ timestamptz;
  last record;
  this record;
begin
  select e.epoch, e.why, e.at into this from gem.epochs e where e.server = here;
  if this.epoch is null then
    lock table gem.epochs in share row exclusive mode; -- one worker records it, and the others see its row
    now_ := gem.now();
    select e.epoch, e.why, e.at into this from gem.epochs e where e.server = here;
  end if;
  if this.epoch is null then
    select e.epoch, e.system_id, e.timeline into last from gem.epochs e order by e.epoch desc limit 1;
    insert into gem.epochs as e (server, system_id, timeline, at, why)
    select here, p.system_id, p.timeline, now_, case
      when last.epoch is null then 'first'
      when (last.system_id = p.system_id and last.timeline = p.timeline) is null then 'unknown'
      when last.system_id <> p.system_id then 'restore'
      when last.timeline <> p.timeline then 'promotion'
      else 'restart' end
    from gem.place_of_server() p
    returning e.epoch, e.why, e.at into this;
    if this.why = 'restart' and (select count(*) from gem.epochs e where e.at > now_ - interval '1 day') > 50 then
      delete from gem.epochs e where e.epoch = last.epoch and e.why = 'restart' and e.reran = 0;
    end if;
    delete from gem.epoch_calls c where c.epoch in (
      select e.epoch from gem.epochs e where e.at < now_ - interval '90 days');
    delete from gem.epochs e where e.at < now_ - interval '90 days' and e.epoch <> this.epoch;
  end if;
  if this.why = 'first' and p_knew <> here then
    update gem.epochs e set why = 'unknown', at = gem.now() where e.epoch = this.epoch and e.why = 'first'
    returning e.epoch, e.why, e.at into this;
    if this.epoch is null then -- another worker did
      select e.epoch, e.why, e.at into this from gem.epochs e where e.server = here;
    end if;
  end if;
  epoch := this.epoch;
  why := this.why;
  may_claim_at := case when gem.may_lack_commits(this.why) then this.at + interval '5 seconds' end;
  update public.core_workers w set server = here, may_claim_at = meet_server.may_claim_at
  where w.worker_id = p_worker;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- Codes that prove that a worker was given a call
------------------------------------------------------------------------------------------------------------------------

-- Pads a key of at most 64 bytes with zeros to 64 bytes, and returns it with each byte xored with p_with.
create or replace function gem.padded(p_key bytea, p_with integer) returns bytea language sql immutable
  set search_path = pg_catalog, pg_temp as $$
  select string_agg(substring(int4send(case when i < octet_length(p_key) then get_byte(p_key, i) else 0 end # p_with)
    from 4), '' order by i)
  from generate_series(0, 63) i
$$;

-- Returns the form of a key that gem.hmac takes: the key padded for the inner and for the outer hash.
create or replace function gem.hmac_key(p_key bytea) returns bytea language sql immutable
  set search_path = pg_catalog, pg_temp as $$
  select gem.padded(p_key, 54) || gem.padded(p_key, 92)
$$;

-- Returns the HMAC-SHA-256 of a message (RFC 2104).
create or replace function gem.hmac(p_hmac_key bytea, p_message bytea) returns bytea language sql immutable as $$
  select sha256(substring(p_hmac_key from 65) || sha256(substring(p_hmac_key for 64) || p_message))
$$;

insert into gem.secrets (name, value)
select 'claims', gem.hmac_key(k.key)
from (select uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) as key) k
on conflict do nothing;

-- Returns the code of a claim. With it a worker can have a call restored that the server lacks, but only with the
-- content that the worker was given.
create or replace function gem.claim_code(p_secret bytea, p_call uuid, p_attempt integer, p_worker text, p_tool text,
  p_input jsonb, p_created_by text, p_signed_in boolean, p_session_id text, p_parent uuid) returns bytea
language sql stable as $$
  select gem.hmac(p_secret, convert_to(jsonb_build_array(p_call, p_attempt, p_worker, p_tool,
    encode(sha256(convert_to(p_input::text, 'UTF8')), 'hex'), p_created_by, p_signed_in, p_session_id, p_parent)::text,
    'UTF8'))
$$;

-- Raises an exception unless p_code is the code of an attempt of a call with the given content.
create or replace function gem.check_claim_code(p_worker text, p_attempt integer, p_code bytea, p_call jsonb)
returns void language plpgsql as $$
begin
  if (p_code = (
      select gem.claim_code(s.value, (p_call ->> 'id')::uuid, p_attempt, p_worker, p_call ->> 'tool_name',
        p_call -> 'input', p_call ->> 'created_by', (p_call ->> 'signed_in')::boolean, p_call ->> 'session_id',
        (p_call ->> 'parent_call_id')::uuid)
      from gem.secrets s where s.name = 'claims')) is not true then
    perform gem.refuse('insufficient_privilege', 'attempt %s of call %s was not given to worker %s', null,
      p_attempt::text, p_call ->> 'id', p_worker);
  end if;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- Restoring ends
------------------------------------------------------------------------------------------------------------------------

-- Takes attempts that a worker has ended, and returns the ones without a receipt on this server.
create or replace function gem.compare_ends(p_worker text, p_calls uuid[], p_attempts integer[])
returns table (call_id uuid, attempt integer)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select m.call_id, m.attempt from unnest(p_calls, p_attempts) m (call_id, attempt)
  where not exists (
    select from public.core_tool_receipts r
    where r.call_id = m.call_id and r.attempt = m.attempt and r.worker_id = p_worker offset 0)
$$;

-- Raises an exception unless a worker may restore something on the present server.
create or replace function gem.check_restoring(p_epoch bigint) returns void language plpgsql as $$
begin
  if not exists (select from gem.epochs e where e.epoch = p_epoch and e.server = gem.server()
    and gem.may_lack_commits(e.why) and e.at > gem.now() - interval '15 minutes') then
    perform gem.refuse('insufficient_privilege', 'epoch %s restores nothing: it is over, or no commit was lost', null,
      p_epoch::text);
  end if;
end
$$;

-- Writes the claim of an attempt again that the server lacks. p_call is the row, which is older than the claim, and
-- locked. Returns the new row.
create or replace function gem.claim_again(p_call public.core_tool_calls, p_attempt integer, p_worker text,
  p_epoch bigint) returns public.core_tool_calls language plpgsql as $$
declare
  at    constant timestamptz := gem.now();
  call_ public.core_tool_calls;
begin
  if p_call.status = 'waiting' then
    perform gem.wake(p_call.id, p_worker);
  elsif p_call.status = 'running' then -- an earlier attempt, which had lost the call
    perform gem.release(p_call.id, p_call.attempt, p_call.claimed_by);
  end if;
  update public.core_tool_calls c
  set status = 'running', attempt = p_attempt, claimed_by = p_worker, claimed_at = at, updated_at = at,
    events = c.events + 1
  where c.id = p_call.id returning c.* into call_;
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  values (p_call.id, call_.events, at, 'claimed', p_attempt, p_worker, jsonb_build_object('restored', p_epoch));
  return call_;
end
$$;

-- Writes an event of progress that the server lacks into the journal of a call, whichever attempt now holds the call.
create or replace function gem.progress_again(p_call uuid, p_attempt integer, p_worker text, p_event text,
  p_data jsonb) returns void language sql volatile as $$
  with later as (
    update public.core_tool_calls c set steps = c.steps + 1, retries = 0, losses = 0, updated_at = gem.now(),
      events = c.events + 1
    where c.id = p_call returning c.events, c.updated_at
  )
  insert into public.core_tool_events (call_id, seq, at, event, attempt, worker_id, data)
  select p_call, events, updated_at, p_event, p_attempt, p_worker, p_data from later
$$;

-- Writes into the journal of its parent that a call was made, if the parent lacks this: its handler would otherwise
-- make the call again, under another id.
create or replace function gem.call_again(p_call public.core_tool_calls, p_worker text, p_epoch bigint) returns void
language plpgsql as $$
declare
  parent record;
begin
  if p_call.parent_step is null then
    return;
  end if;
  select c.attempt, c.status into parent from public.core_tool_calls c where c.id = p_call.parent_call_id
  for no key update;
  if gem.is_final(parent.status) or exists (
      select from public.core_tool_events e
      where e.call_id = p_call.parent_call_id and e.event = 'called' and e.data ->> 'name' = p_call.parent_step) then
    return;
  end if;
  perform gem.progress_again(p_call.parent_call_id, parent.attempt, p_worker, 'called', jsonb_build_object('name',
    p_call.parent_step, 'call_id', p_call.id, 'tool', p_call.tool_name, 'restored', p_epoch));
end
$$;

-- Gives an attempt that holds its call the key that it had taken. If another call holds the key or has succeeded with
-- it, the attempt has no key, and the function returns false.
create or replace function gem.take_key_again(p_call uuid, p_key text) returns boolean language plpgsql as $$
begin
  update public.core_tool_calls c set computed_key = p_key
  where c.id = p_call and c.computed_key is distinct from p_key;
  if found and gem.key_has_succeeded(p_key) then
    update public.core_tool_calls c set computed_key = null where c.id = p_call;
    return false;
  end if;
  return true;
exception when unique_violation then
  return false;
end
$$;

-- Ends a call whose earlier end the database lost. p_end is {key, registry_version, receipt_id} of the end, without
-- receipt_id if no receipt was accepted, and with status, result, effects and context unless the worker has forgotten
-- them. The attempt must hold the call. Returns `restored` if it wrote that end. Otherwise the call ends as
-- outcome_unknown, and the result is `ran_twice` if another call holds the key or has succeeded with it, or `unknown`.
create or replace function gem.end_again(p_call uuid, p_attempt integer, p_worker text, p_end jsonb,
  p_epoch bigint default null) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  holds boolean := p_end ->> 'key' is null or gem.take_key_again(p_call, p_end ->> 'key');
begin
  if p_end ? 'status' and (holds or p_end ->> 'status' <> 'succeeded') then
    perform gem.finish(p_call, p_attempt, p_worker, p_end ->> 'status', p_end -> 'result', p_end -> 'effects',
      p_end ->> 'registry_version', p_context => p_end ->> 'context', p_receipt => (p_end ->> 'receipt_id')::uuid,
      p_epoch => p_epoch);
    return 'restored';
  end if;
  perform gem.finish(p_call, p_attempt, p_worker, 'failed', jsonb_build_object('error', jsonb_build_object('error_code',
    'outcome_unknown', 'message', 'The call had ended, and the database lost its end. Check whether it took effect, '
    'and if not, make a new call.', 'details', null)), coalesce(p_end -> 'effects', '{}'), p_end ->> 'registry_version',
    p_receipt => (p_end ->> 'receipt_id')::uuid, p_epoch => p_epoch);
  return case when holds then 'unknown' else 'ran_twice' end;
end
$$;

-- Reports whether an attempt of another worker holds a key with which nothing has succeeded, and that worker may still
-- restore the end of the attempt. It has the five seconds in which no call is claimed, or fifteen if it has not met the
-- server yet.
create or replace function gem.key_may_become_free(p_call uuid, p_worker text, p_key text) returns boolean
language sql volatile as $$
  select p_key is not null and exists (
      select from public.core_tool_calls c
      join public.core_workers w on w.worker_id = c.claimed_by and w.worker_id <> p_worker and w.stopped_at is null
      join gem.epochs e on e.server = gem.server() and e.at > gem.now() - case when w.server = e.server
        then interval '5 seconds' else interval '15 seconds' end
      where c.computed_key = p_key and c.status = 'running' and c.id <> p_call)
    and not gem.key_has_succeeded(p_key)
$$;

-- Lists what became of an attempt whose end or step was lost.
create or replace function gem.list_lost(p_epoch bigint, p_call uuid, p_attempt integer, p_worker text, p_tool text,
  p_what text, p_found text, p_receipt uuid default null, p_effects jsonb default null) returns void
language sql volatile as $$
  insert into gem.epoch_calls (epoch, call_id, attempt, worker_id, tool_name, what, receipt_id, found, effects, at)
  select p_epoch, p_call, p_attempt, p_worker, p_tool, p_what, p_receipt, p_found, p_effects, gem.now()
  where (select count(*) from gem.epoch_calls c where c.epoch = p_epoch) < 10000
  on conflict do nothing
$$;

-- Restores an attempt of a worker that the server lacks. p_code is the code of the claim. p_call is the call as it was
-- claimed: {id, tool_name, input, created_by, signed_in, session_id, parent_call_id, parent_step, idempotency_key}, or
-- only {id, tool_name} if the worker has forgotten the rest. p_end is {key} for an attempt that still runs. If p_ended,
-- it is as in gem.end_again.
--
-- Only an attempt whose handler may have had effects outside of Postgres is restored. A lost call is not inserted again
-- without its parent. Returns one of these:
--   restored   The receipt is written, with the id that it had.
--   unknown    The call ends, or had already ended, as outcome_unknown.
--   ran_twice  Another attempt has run meanwhile, or another call has the key or the name. An attempt that still runs
--              no longer holds its call.
--   missing    The server lacks the call, and the worker has forgotten its input, or its parent is missing as well.
--   claimed    The attempt still runs, and holds the call again.
--   later      An attempt of another worker holds the key, and that worker may still restore its end. Nothing has
--              changed.
--   null       The server lacks nothing.
-- gem.epoch_calls lists the ended attempts with one of the first four results.
create or replace function gem.restore(p_worker text, p_epoch bigint, p_attempt integer, p_code bytea, p_call jsonb,
  p_ended boolean, p_end jsonb) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  id_     constant uuid := (p_call ->> 'id')::uuid;
  call_   public.core_tool_calls;
  found_  text;
  what_   text;
  holds   boolean;
begin
  perform gem.check_restoring(p_epoch);
  select c.* into call_ from public.core_tool_calls c where c.id = id_ for no key update;
  if call_.id is null and not p_call ? 'input' then
    what_ := case when p_ended then 'missing' end;
  else
    perform gem.check_claim_code(p_worker, p_attempt, p_code, case when call_.id is null then p_call else
      jsonb_build_object('id', call_.id, 'tool_name', call_.tool_name, 'input', call_.input, 'created_by',
        call_.created_by, 'signed_in', call_.signed_in, 'session_id', call_.session_id, 'parent_call_id',
        call_.parent_call_id) end);
  end if;
  if exists (
      select from public.core_tool_receipts r
      where r.call_id = id_ and r.attempt = p_attempt and r.worker_id = p_worker) then
    return null;
  end if;
  if p_end ->> 'status' is distinct from 'failed' and gem.key_may_become_free(id_, p_worker, p_end ->> 'key') then
    return 'later';
  end if;
  found_ := coalesce(call_.status || ', attempt ' || call_.attempt, 'missing');

  if call_.id is null and p_call ? 'input' then
    what_ := case
      when p_call ->> 'parent_call_id' is null then null
      when not exists (select from public.core_tool_calls c where c.id = (p_call ->> 'parent_call_id')::uuid)
        then 'missing'
      when exists (select from public.core_tool_calls c where c.parent_call_id = (p_call ->> 'parent_call_id')::uuid
        and c.parent_step = p_call ->> 'parent_step') then 'ran_twice' end;
    if what_ is null then
      insert into public.core_tool_calls (id, tool_name, input, created_by, session_id, parent_call_id, parent_step,
        idempotency_key)
      values (id_, p_call ->> 'tool_name', p_call -> 'input', p_call ->> 'created_by', p_call ->> 'session_id',
        (p_call ->> 'parent_call_id')::uuid, p_call ->> 'parent_step', p_call ->> 'idempotency_key');
      update public.core_tool_calls c
      set signed_in = (p_call ->> 'signed_in')::boolean, created_by = p_call ->> 'created_by' -- not this session's
      where c.id = id_ returning c.* into call_;
      perform gem.call_again(call_, p_worker, p_epoch);
    elsif not p_ended then
      return null; -- at its end it is restored again
    end if;
  end if;
  if call_.attempt < p_attempt and not gem.is_final(call_.status) then
    call_ := gem.claim_again(call_, p_attempt, p_worker, p_epoch);
    what_ := 'claimed';
  end if;
  holds := coalesce(call_.status = 'running' and call_.attempt = p_attempt and call_.claimed_by = p_worker, false);
  if not p_ended then
    if holds and coalesce(call_.computed_key, '') <> p_end ->> 'key' then
      what_ := 'claimed';
      if not gem.take_key_again(id_, p_end ->> 'key') then
        perform gem.release(id_, p_attempt, p_worker, p_outside => (
          select coalesce(w.outside ->> call_.tool_name, 'unknown') from public.core_workers w
          where w.worker_id = p_worker));
        what_ := 'ran_twice';
      end if;
    end if;
    return what_;
  end if;

  if holds then
    what_ := gem.end_again(id_, p_attempt, p_worker, p_end, p_epoch);
  elsif call_.error ->> 'error_code' = 'outcome_unknown'
      or gem.is_final(call_.status) and call_.attempt < p_attempt then
    what_ := 'unknown';
  elsif call_.id is not null then
    what_ := 'ran_twice';
  end if;
  perform gem.list_lost(p_epoch, id_, p_attempt, p_worker, coalesce(p_call ->> 'tool_name', ''), what_, found_,
    (p_end ->> 'receipt_id')::uuid, p_end -> 'effects');
  return what_;
end
$$;

-- Writes the beginnings of steps that must not run twice, and that the server lacks, into the journals of their calls.
-- p_keys has the keys that the attempts held, or empty texts.
-- If the server lacks the attempt too, it is claimed again, and the worker releases it: the step is then not run again.
-- If the server lacks the call, another attempt has begun the step too, or the call has ended without it, it is listed
-- as missing, ran_twice or unknown.
-- Returns how many were written.
drop function if exists gem.restore_steps(text, bigint, uuid[], integer[], text[]);
drop function if exists gem.restore_steps(text, bigint, uuid[], integer[], text[], text[]);
create or replace function gem.restore_steps(p_worker text, p_epoch bigint, p_calls uuid[], p_attempts integer[],
  p_names text[], p_keys text[], p_tools text[]) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  lost    record;
  call_   public.core_tool_calls;
  what_   text;
  data_   jsonb;
  written integer := 0;
begin
  perform gem.check_restoring(p_epoch);
  -- all rows before the counters of the first call's places
  perform from public.core_tool_calls c where c.id = any (p_calls) order by c.id for no key update;
  for lost in
    select m.call_id, m.attempt, m.name, m.key, m.tool
    from unnest(p_calls, p_attempts, p_names, p_keys, p_tools) with ordinality m (call_id, attempt, name, key, tool,
      place)
    where not exists (
      select from public.core_tool_events e
      where e.call_id = m.call_id and e.event = 'began' and e.attempt = m.attempt and e.worker_id = p_worker
        and e.data ->> 'name' = m.name offset 0)
    order by m.place
  loop
    select c.* into call_ from public.core_tool_calls c where c.id = lost.call_id for no key update;
    what_ := case
      when call_.id is null then 'missing'
      when exists (
        select from public.core_tool_events e
        where e.call_id = lost.call_id and e.event = 'began' and e.data ->> 'name' = lost.name) then 'ran_twice'
      when gem.is_final(call_.status) then 'unknown' end;
    if what_ is not null then
      perform gem.list_lost(p_epoch, lost.call_id, lost.attempt, p_worker, lost.tool, what_,
        coalesce(call_.status || ', attempt ' || call_.attempt, 'missing'));
      continue;
    end if;
    if call_.attempt < lost.attempt then
      call_ := gem.claim_again(call_, lost.attempt, p_worker, p_epoch);
    end if;
    data_ := jsonb_build_object('name', lost.name, 'restored', p_epoch);
    if call_.status = 'running' and call_.attempt = lost.attempt and call_.claimed_by = p_worker then
      if lost.key <> '' then
        perform gem.take_key_again(lost.call_id, lost.key); -- if another call has it, this one ends without
      end if;
      perform gem.step(lost.call_id, lost.attempt, p_worker, 'began', data_, call_.steps, false);
    else -- a later attempt, which no longer holds the call: it must know of the step first
      perform gem.progress_again(lost.call_id, lost.attempt, p_worker, 'began', data_);
    end if;
    written := written + 1;
  end loop;
  return written;
end
$$;

-- Counts calls that run again although a worker had ended them: Postgres had all their effects, and lost them too. A
-- call that the server lacks is listed as missing.
create or replace function gem.count_reran(p_worker text, p_epoch bigint, p_calls uuid[], p_attempts integer[],
  p_tools text[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform gem.check_restoring(p_epoch);
  with ended as (
    select m.call_id, m.attempt, m.tool, exists (
      select from public.core_tool_calls c where c.id = m.call_id offset 0) as there
    from unnest(p_calls, p_attempts, p_tools) m (call_id, attempt, tool)
  ), listed as (
    insert into gem.epoch_calls (epoch, call_id, attempt, worker_id, tool_name, what, found, at)
    select p_epoch, n.call_id, n.attempt, p_worker, n.tool, 'missing', 'missing', gem.now() from ended n
    where not n.there
    limit greatest(10000 - (select count(*) from gem.epoch_calls c where c.epoch = p_epoch), 0)
    on conflict do nothing
  )
  update gem.epochs e set reran = e.reran + (select count(*) from ended n where n.there) where e.epoch = p_epoch;
end
$$;

------------------------------------------------------------------------------------------------------------------------
-- For operators
------------------------------------------------------------------------------------------------------------------------

-- The changes of the server, with the numbers of calls whose ends were lost. `why` is as in gem.epochs.
create or replace view gem.server_changes with (security_barrier) as
select e.epoch, e.at, e.why, e.server as started_at, e.timeline, lag(e.timeline) over (order by e.epoch) as
  earlier_timeline, gem.may_lack_commits(e.why) as may_lack_commits, e.reran,
  coalesce(l.restored, 0) as restored, coalesce(l.unknown, 0) as unknown, coalesce(l.ran_twice, 0) as ran_twice,
  coalesce(l.missing, 0) as missing
from gem.epochs e
left join (
  select c.epoch, count(*) filter (where c.what = 'restored') as restored,
    count(*) filter (where c.what = 'unknown') as unknown, count(*) filter (where c.what = 'ran_twice') as ran_twice,
    count(*) filter (where c.what = 'missing') as missing
  from gem.epoch_calls c group by 1) l on l.epoch = e.epoch;

-- These calls, without their effects.
create or replace view gem.server_change_calls with (security_barrier) as
select c.epoch, c.call_id, c.attempt, c.worker_id, c.tool_name, c.what, c.receipt_id, c.found, c.at
from gem.epoch_calls c;

select gem.grant_to('gem_monitor', 'select on gem.server_changes, gem.server_change_calls');
select gem.grant_to('gem_monitor', 'execute on function gem.may_lack_commits(text), gem.may_have_lost(timestamptz)');
select gem.grant_to('gem_mcp', 'execute on function gem.may_have_lost(timestamptz)');
select gem.grant_to('gem_worker', 'execute on function gem.server(), gem.meet_server(text, timestamptz),
  gem.compare_ends(text, uuid[], integer[]), gem.end_again(uuid, integer, text, jsonb, bigint),
  gem.restore(text, bigint, integer, bytea, jsonb, boolean, jsonb),
  gem.restore_steps(text, bigint, uuid[], integer[], text[], text[], text[]),
  gem.count_reran(text, bigint, uuid[], integer[], text[])');
revoke all on all functions in schema gem from public;

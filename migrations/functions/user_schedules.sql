-- The schedules of signed-in users, and of servers with service_role. Frontends manage them with the functions below,
-- and read them in the view tool_schedules. gem.limits.max_schedules allows signed-in users to have schedules.
--
-- A call of a signed-in user's schedule is inserted as if the user sent it, with a token that has only `sub` and
-- `role`. So the policies on core_tool_calls and all limits of users hold. A call that they refuse becomes an
-- occurrence that is skipped as refused.

-- Returns the role of signed-in users.
create or replace function gem.role_of_users() returns name language sql stable as $$
  select coalesce(to_regrole('authenticated'), to_regrole('gem_frontend'))::name
$$;

-- Inserts a call as a frontend does. The function belongs to gem_scheduler, so the policies for signed-in users apply.
create or replace function gem.insert_as_user(p_id uuid, p_tool text, p_input jsonb, p_session text,
  p_priority integer, p_run_at timestamptz) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  insert into public.core_tool_calls (id, tool_name, input, session_id, priority, run_at)
  values (p_id, p_tool, p_input, p_session, p_priority, p_run_at)
$$;

do $$
begin
  if to_regrole('gem_scheduler') is not null then
    if not pg_has_role('gem_scheduler', 'usage') then -- the role's creator is a member without usage
      execute format('grant gem_scheduler to %I', current_user);
    end if;
    grant usage, create on schema gem to gem_scheduler; -- the next statement requires create
    alter function gem.insert_as_user(uuid, text, jsonb, text, integer, timestamptz) owner to gem_scheduler;
    revoke create on schema gem from gem_scheduler;
    execute format('grant execute on function gem.insert_as_user(uuid, text, jsonb, text, integer, timestamptz) to %I',
      current_user);
  end if;
exception
  when insufficient_privilege then
    raise notice 'signed-in users cannot have schedules: this role may not become gem_scheduler';
end
$$;

-- Reports whether the caller manages the schedules of all users: service_role, and the owner without a token.
create or replace function gem.manages_all_schedules() returns boolean language sql stable as $$
  select case when gem.token_claims() is null then pg_has_role(session_user, current_user, 'member')
    else coalesce(gem.token_claims() ->> 'role' = 'service_role', false) end
$$;

drop function if exists gem.managed_schedule(text, text);

-- Returns whose schedule of that name a frontend manages, null meaning nobody's, whether that user is signed in, and
-- whether an operator paused it. service_role and the owner may name any user. It raises PT403 if a signed-in user may
-- not change the schedule, and takes the lock under which a user's limits are checked.
create or replace function gem.managed_schedule(p_of text, p_name text, out owner text, out signed_in boolean,
  out paused boolean) language plpgsql as $$
declare
  claims constant jsonb := gem.token_claims();
  theirs boolean; -- the schedule's signed_in
begin
  signed_in := not gem.manages_all_schedules();
  owner := case when signed_in then nullif(claims ->> 'sub', '') else nullif(p_of, '') end;
  perform gem.lock_limits_of(owner);
  if not signed_in then
    return;
  elsif owner is null then
    perform gem.refuse('PT403', 'a schedule needs a user, and the token has no subject');
  elsif claims ->> 'role' is distinct from gem.role_of_users() or claims -> 'is_anonymous' = 'true' then
    -- its calls would not have the rights of this token
    perform gem.refuse('PT403', 'only users with the role %s have schedules, and no anonymous visitors', null,
      gem.role_of_users());
  elsif length(owner) > 255 then
    perform gem.refuse('PT422', 'created_by may have at most 255 characters');
  elsif p_of <> owner then
    perform gem.refuse('PT403', 'created_by is another user than you', 'Leave it out.');
  end if;
  select s.signed_in, s.paused ->> 'as' = 'operator' into theirs, paused from gem.schedules s
  where coalesce(s.created_by, '') = owner and s.name = p_name and s.removed is null;
  if not theirs then
    perform gem.refuse('PT403', 'an operator made the schedule %s for you, and you may not change it', null, p_name);
  end if;
end
$$;

-- Refuses a signed-in user's schedule beyond the limits. p_name is null to ask whether users may have schedules at all.
create or replace function gem.check_user_schedule(p_of text, p_name text default null, p_cron text default null,
  p_zone text default null) returns void language plpgsql as $$
declare
  most gem.limits;
  due  timestamptz := gem.now();
  next timestamptz;
begin
  select * into most from gem.limits;
  if most.max_schedules = 0 then
    perform gem.refuse('PT403', 'signed-in users may not have schedules here',
      'The database''s owner can allow them: update gem.limits set max_schedules = 10.');
  elsif (select p.proowner = to_regrole('gem_scheduler') and pg_has_role(p.proowner, gem.role_of_users(), 'usage')
    from pg_proc p
    where p.oid = 'gem.insert_as_user(uuid, text, jsonb, text, integer, timestamptz)'::regprocedure) is not true then
    perform gem.refuse('PT403', 'signed-in users cannot have schedules: the role gem_scheduler lacks the rights of %s',
      'Run gem migrate without --no-api, as a role that may create roles.', gem.role_of_users());
  elsif length(p_cron) > 200 then
    perform gem.refuse('PT422', 'the expression may have at most 200 characters');
  elsif exists (select from gem.schedules s
    where s.created_by = p_of and s.removed is null and s.paused -> 'all' = 'true') then
    perform gem.refuse('PT403', 'an operator has paused your schedules', 'Ask the operators to resume them.');
  elsif most.max_schedules <= (select count(*) from gem.schedules s where s.created_by = p_of and s.removed is null
    and s.name is distinct from p_name) then
    perform gem.refuse('PT429', 'too many schedules: you may have %s', 'Remove one first.', most.max_schedules::text);
  end if;
  -- a hundred instants show the pattern of a day; the limit of calls in an hour bounds the others
  for i in 1..case when p_cron is null or most.min_schedule_gap <= '1 minute' then 0 else 100 end loop
    next := gem.cron_next(p_cron, p_zone, due);
    exit when next is null;
    if i > 1 and next - due < most.min_schedule_gap then
      perform gem.refuse('PT422', 'the expression has times that are %s apart, and at least %s must be between them',
        null, (next - due)::text, most.min_schedule_gap::text);
    end if;
    due := next;
  end loop;
end
$$;

-- Makes a schedule, or changes the caller's schedule of that name: see gem.save_schedule. Returns {"id", "next",
-- "paused"}. service_role may make a schedule for a user: created_by.
create or replace function public.schedule_tool_call(name text, cron text, tool_name text, input jsonb default '{}',
  zone text default 'UTC', options jsonb default '{}', created_by text default null)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  who   record;
  saved record;
begin
  who := gem.managed_schedule(created_by, name);
  if who.signed_in then
    perform gem.check_zone(coalesce(zone, 'UTC'));
    perform gem.check_user_schedule(who.owner, name, cron, coalesce(zone, 'UTC'));
  end if;
  saved := gem.save_schedule(name, cron, tool_name, coalesce(input, '{}'), coalesce(zone, 'UTC'),
    coalesce(options, '{}'), who.owner, gem.subject(), null, who.signed_in);
  return jsonb_build_object('id', saved.id, 'next', gem.rfc3339(saved.next), 'paused', saved.paused);
end
$$;

-- Pauses a schedule of the caller.
create or replace function public.pause_tool_schedule(name text, reason text default null,
  created_by text default null) returns void language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  perform gem.pause_schedule(name, m.owner, gem.subject(), reason,
    case when m.signed_in then 'user' else 'operator' end) from gem.managed_schedule(created_by, name) m;
end
$$;

-- Resumes a schedule of the caller, and returns its next instant. The instants of the pause are recorded as skipped.
create or replace function public.resume_tool_schedule(name text, created_by text default null) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  who record;
begin
  who := gem.managed_schedule(created_by, name);
  if who.signed_in then
    if who.paused then
      perform gem.refuse('PT403', 'an operator paused the schedule %s', 'Ask the operators to resume it.', name);
    end if;
    perform gem.check_user_schedule(who.owner, name);
  end if;
  return gem.resume_schedule(name, who.owner, gem.subject());
end
$$;

-- Removes a schedule of the caller: it makes no further calls.
create or replace function public.remove_tool_schedule(name text, created_by text default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  who record;
begin
  who := gem.managed_schedule(created_by, name);
  if who.signed_in and who.paused then
    perform gem.refuse('PT403', 'an operator paused the schedule %s', 'Ask the operators to remove it.', name);
  end if;
  perform gem.remove_schedule(name, who.owner, gem.subject());
end
$$;

-- Returns the caller's schedules, and all of them to service_role, each with its last occurrence.
create or replace function gem.schedules_of_caller() returns table (id uuid, name text, tool_name text, input jsonb,
  session_id text, priority integer, cron text, zone text, missed text, missed_within interval, overlap text,
  jitter interval, starts_at timestamptz, ends_at timestamptz, next_at timestamptz, paused_at timestamptz,
  pause_reason text, created_by text, last_due_at timestamptz, last_call_id uuid, last_skipped text, last_detail text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.id, s.name, s.tool_name, s.input, s.session_id, s.priority, s.cron, s.zone, s.missed, s.missed_within,
    s.overlap, s.jitter, s.starts_at, s.ends_at, s.next_at, (s.paused ->> 'at')::timestamptz, s.paused ->> 'reason',
    s.created_by, o.upto, o.call_id, o.skipped, o.detail
  from gem.schedules s
  left join lateral (select l.* from gem.occurrences l where l.schedule_id = s.id and not l.backfilled
    order by l.due_at desc limit 1) o on true
  where s.removed is null
    and (gem.manages_all_schedules() or s.created_by = nullif(gem.token_claims() ->> 'sub', ''))
$$;

create or replace view public.tool_schedules with (security_invoker = true) as select * from gem.schedules_of_caller();

revoke all on all functions in schema gem from public;

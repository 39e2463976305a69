-- Requests to models: the ledger, the budgets, and which targets are cooling down. Amounts are in units of
-- 10⁻⁹ USD.
--
--   begin ──▶ sent ──▶ done | failed | cut | cancelled
--               └────▶ lost     the attempt ended before the request
--
-- A request takes its reserve from each budget before it is sent. When it ends, its cost replaces the reserve. If the
-- cost is unknown, the reserve counts as spent. So the `spent` of a budget is the sum of coalesce(cost, reserved) over
-- its ended requests, and its `reserved` is the sum of the reserves of its open requests.
--
-- All functions lock rows in one order, which prevents deadlocks: the call, its requests, rows of gem.llm_spend by id,
-- rows of gem.llm_targets by name. They insert new rows of these two tables before they lock any. The call comes first,
-- because a frontend may hold its lock for any time, and a request that waits for it must not hold budgets. Functions
-- do not wait for the row of a target that works and has no limit on requests, because its requests would otherwise
-- commit one by one.

-- Records the routes that a worker is about to run with. Returns the recorded routes of that version. They differ if
-- another worker recorded other routes under that version earlier.
create or replace function gem.record_routes(p_version text, p_sha256 text, p_routes jsonb)
returns table (sha256 text, routes jsonb) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into public.core_llm_versions (version, sha256, routes, recorded_at)
    values (p_version, p_sha256, p_routes, gem.now())
  on conflict do nothing;
  return query select v.sha256, v.routes from public.core_llm_versions v where v.version = p_version;
end
$$;

-- Begins a request: takes the reserve for the first target that is available, and writes the request's row. If it
-- returns no id, the worker must not send anything. `skipped` then has the reason for each target, {target, why, until,
-- wait_ms, reason}; `exceeded` lists the budgets with too little left, {budget, limit_usd, spent_usd, reserved_usd,
-- resets_at}, with amounts in units; and wait_ms is the time until the first cooldown ends.
--
-- p_targets is a list of {target, provider, model, max_concurrent, reserve, priced, estimated_input, budgets: [{name,
-- subject, period, limit}]}. p_max_cost limits the total cost of the call's requests. The attempt's number proves that
-- it holds the call, because each claim has a new number. The function closes requests that earlier attempts of the
-- call left open as lost.
drop function if exists gem.llm_begin(uuid, integer, text, text, text, bigint, jsonb);
create or replace function gem.llm_begin(p_call uuid, p_attempt integer, p_label text, p_route text, p_version text,
  p_max_cost bigint,
  p_targets jsonb, out id bigint, out n integer, out target text, out skipped jsonb, out exceeded jsonb,
    out wait_ms bigint, out began timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- use the indexes on ids, whatever the statistics are
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  moment timestamptz;
  lost   bigint[] := '{}';
begin
  perform from public.core_tool_calls c
  where c.id = p_call and c.attempt = p_attempt and c.status = 'running' for no key update;
  if not found then
    perform gem.refuse('GM001', 'call %s is not held by attempt %s', null, p_call::text, p_attempt::text);
  end if;
  moment := gem.now(); -- read the time after waiting for the row
  if p_attempt > 1 then
    lost := array(select r.id from public.core_llm_requests r
      where r.call_id = p_call and r.status = 'sent' and r.attempt < p_attempt order by r.id for no key update);
  end if;
  perform gem.llm_lock(p_targets, moment, lost);
  if cardinality(lost) > 0 then
    perform gem.llm_lose(lost, moment);
  end if;
  select r.* into id, n, target, skipped, exceeded, wait_ms, began
  from gem.llm_grant(p_call, p_attempt, p_label, p_route, p_version, p_max_cost, p_targets, moment) r;
end
$$;

-- Begins many requests of first attempts in one statement. p_requests lists them in order, as {call, label, route,
-- version, max_cost, targets}. Returns a row for each request that it could begin or refuse; place is its
-- index from 0, and the other columns are as in gem.llm_begin. The others, whose call is locked or no longer held, must
-- be begun alone, and so must all if a budget stays locked: only some of them wait for it.
create or replace function gem.llm_begin_all(p_requests jsonb)
returns table (place integer, id bigint, n integer, target text, skipped jsonb, exceeded jsonb, wait_ms bigint,
  began timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan set jit = off set lock_timeout = '5s' as $$
declare
  held   uuid[] := array(
    select c.id from public.core_tool_calls c
    where c.id = any (array(select (r ->> 'call')::uuid from jsonb_array_elements(p_requests) r))
      and coalesce(c.attempt = 1 and c.status = 'running', false) -- found by id: see gem.finish
    order by c.id for no key update skip locked);
  moment timestamptz := gem.now();
  this   record;
begin
  perform gem.llm_lock((
    select jsonb_agg(t) from jsonb_array_elements(p_requests) r, jsonb_array_elements(r -> 'targets') t
    where (r ->> 'call')::uuid = any (held)), moment);
  for this in
    select r.ordinality - 1 as place, (r.value ->> 'call')::uuid as call, r.value as request
    from jsonb_array_elements(p_requests) with ordinality r order by r.ordinality
  loop
    continue when this.call <> all (held);
    return query select this.place::integer, g.*
    from gem.llm_grant(this.call, 1, this.request ->> 'label', this.request ->> 'route',
      this.request ->> 'version', (this.request ->> 'max_cost')::bigint, this.request -> 'targets', moment) g;
  end loop;
end
$$;

-- Locks what requests to targets change: the counts of their budgets and, where it matters, the targets. It inserts
-- missing rows first. It also locks what a loss of the requests p_lost changes.
create or replace function gem.llm_lock(p_targets jsonb, p_at timestamptz, p_lost bigint[] default '{}') returns void
language plpgsql as $$
declare
  counts_in bigint[]; -- rows of gem.llm_spend
  names     text[];   -- of targets
  missing   boolean;  -- a row of either table is missing
begin
  for try in 1 .. 2 loop
    select array_agg(s.id), array_agg(a.target), bool_or(s.id is null and b.name is not null or m.target is null)
      into counts_in, names, missing
    from jsonb_to_recordset(p_targets) a (target text, budgets jsonb)
    left join gem.llm_targets m on m.target = a.target
    left join jsonb_to_recordset(a.budgets) b (name text, subject text, period text) on true
    left join gem.llm_spend s on s.budget = b.name and s.subject = coalesce(b.subject, '') and s.period = b.period
      and s.starts = gem.llm_starts(b.period, p_at);
    exit when not missing;
    insert into gem.llm_spend (budget, subject, period, starts)
    select distinct b.name, coalesce(b.subject, ''), b.period, gem.llm_starts(b.period, p_at)
    from jsonb_to_recordset(p_targets) a (budgets jsonb),
      jsonb_to_recordset(a.budgets) b (name text, subject text, period text)
    order by 1, 2, 3, 4 on conflict do nothing;
    insert into gem.llm_targets (target) select distinct a.target from jsonb_to_recordset(p_targets) a (target text)
      order by 1 on conflict do nothing;
  end loop;
  if cardinality(p_lost) > 0 then
    select counts_in || array_agg(spend), names || array_agg(r.target) into counts_in, names
    from public.core_llm_requests r left join unnest(r.spends) spend on true where r.id = any (p_lost);
  end if;
  perform from gem.llm_spend s where s.id = any (counts_in) order by s.id for no key update;
  perform from gem.llm_targets s
  where s.target = any (names) and (cardinality(p_lost) > 0 or s.backoff > 0 or s.target in (
    select a.target from jsonb_to_recordset(p_targets) a (target text, max_concurrent integer)
      where a.max_concurrent > 0))
  order by s.target for no key update;
end
$$;

-- Begins a request whose call, budgets and targets are locked (see gem.llm_begin).
create or replace function gem.llm_grant(p_call uuid, p_attempt integer, p_label text, p_route text, p_version text,
  p_max_cost bigint, p_targets jsonb, p_at timestamptz, out id bigint, out n integer, out target text,
  out skipped jsonb, out exceeded jsonb, out wait_ms bigint, out began timestamptz)
language plpgsql as $$
#variable_conflict use_column
declare
  call      record;
  so_far    numeric;  -- the cost, actual or reserved, of the call's requests
  this      record;   -- an entry of p_targets
  state     record;   -- the target's row
  over      jsonb;    -- budgets with too little left for it
  spends    bigint[]; -- its budgets
  why       text;
  until     timestamptz;
  back      timestamptz;
begin
  skipped := '[]';
  exceeded := '[]';
  select c.tool_name, c.created_by, c.session_id into call from public.core_tool_calls c where c.id = p_call;
  select coalesce(max(r.n), 0) + 1, coalesce(sum(coalesce(r.cost, r.reserved)), 0) into n, so_far
  from public.core_llm_requests r where r.call_id = p_call;
  if n > 1000 then
    perform gem.refuse('GM005', 'call %s has made 1000 requests to models', null, p_call::text);
  end if;

  for this in
    select a.* from jsonb_to_recordset(p_targets) a (target text, provider text, model text, max_concurrent integer,
      reserve bigint, priced boolean,
      estimated_input bigint, budgets jsonb)
  loop
    select * into state from gem.llm_targets s where s.target = this.target;
    until := null;
    select coalesce(array_agg(s.id), '{}'), coalesce(jsonb_agg(jsonb_build_object('budget', s.budget, 'limit_usd',
      b."limit", 'spent_usd', s.spent,
        'reserved_usd', s.reserved, 'resets_at', gem.llm_ends(s.period, s.starts))) filter (where s.spent + s.reserved +
          this.reserve > b."limit"), '[]')
    into spends, over
    from jsonb_to_recordset(this.budgets) b (name text, subject text, period text, "limit" bigint)
    join gem.llm_spend s on s.budget = b.name and s.subject = coalesce(b.subject, '') and s.period = b.period
      and s.starts = gem.llm_starts(b.period, p_at);
    -- This checks budgets first, because a call should not wait for a target that its budget cannot pay for.
    if not this.priced and (p_max_cost is not null or jsonb_array_length(this.budgets) > 0) then
      why := 'unpriced';
    elsif so_far + this.reserve > p_max_cost then
      why := 'max_cost';
    elsif over <> '[]' then
      why := 'budget';
      exceeded := exceeded || coalesce((select jsonb_agg(o) from jsonb_array_elements(over) o
        where not exceeded @> jsonb_build_array(o)), '[]');
    elsif state.cooldown_until > p_at then
      why := 'cooldown';
      until := state.cooldown_until;
    elsif state.backoff > 0 and state.cooldown_until > p_at - interval '10 seconds' and exists (
        select from public.core_llm_requests r
        where r.call_id = p_call and r.target = this.target and r.status in ('failed', 'cut') offset 0) then
      why := 'cooldown'; -- the failures may be due to this call: others probe the target first
      until := state.cooldown_until + interval '10 seconds';
    elsif state.backoff > 0 and state.probing_since > p_at - interval '1 minute' then
      why := 'cooldown';
      until := state.probing_since + interval '1 minute';
    elsif coalesce(this.max_concurrent, 0) > 0 and gem.llm_full(this.target, this.max_concurrent) then
      why := 'busy';
    else
      target := this.target;
      exit;
    end if;
    back := least(back, until);
    skipped := skipped || jsonb_strip_nulls(jsonb_build_object('target', this.target, 'why', why, 'until', until,
      'wait_ms', ceil(extract(epoch from until - p_at) * 1000), 'reason', case
        when why = 'cooldown' then state.why end));
  end loop;
  if target is null then
    n := null;
    wait_ms := ceil(extract(epoch from back - p_at) * 1000);
    return;
  end if;

  update gem.llm_spend s
  set reserved = s.reserved + this.reserve, requests = s.requests + 1, last_at = p_at, "limit" = b."limit"
  from jsonb_to_recordset(this.budgets) b (name text, subject text, "limit" bigint)
  where s.id = any (spends) and b.name = s.budget and coalesce(b.subject, '') = s.subject;
  insert into public.core_llm_requests as r (call_id, attempt, n, label, tool_name, route, target, provider, model,
    routes_version, created_by, session_id,
    status, at, reserved, estimated_input, spends)
  values (p_call, p_attempt, n, p_label, coalesce(call.tool_name, ''), p_route, this.target, this.provider, this.model,
    p_version, call.created_by,
    call.session_id, 'sent', p_at, this.reserve, this.estimated_input, spends)
  returning r.id, r.at into id, began;
  if state.backoff > 0 then
    update gem.llm_targets s set probe = id, probing_since = p_at where s.target = this.target;
  end if;
end
$$;

-- Returns the start of the period that contains a time, in UTC, and the end of the period that begins at a time.
create or replace function gem.llm_starts(p_period text, p_at timestamptz) returns timestamptz
  language sql immutable as $$
  select date_trunc(p_period, p_at at time zone 'UTC') at time zone 'UTC'
$$;
create or replace function gem.llm_ends(p_period text, p_starts timestamptz) returns timestamptz
  language sql immutable as $$
  select (p_starts at time zone 'UTC' + ('1 ' || p_period)::interval) at time zone 'UTC'
$$;

-- Reports whether at least p_most open requests of a target belong to live attempts. It checks the attempts only if
-- p_most requests are open.
create or replace function gem.llm_full(p_target text, p_most integer) returns boolean language sql stable as $$
  select (select count(*) from (
      select from public.core_llm_requests r where r.target = p_target
        and r.status = 'sent' limit p_most) sent) >= p_most
    and (select count(*) from public.core_llm_requests r join public.core_tool_calls c on c.id = r.call_id
      where r.target = p_target and r.status = 'sent' and c.status = 'running' and c.attempt = r.attempt) >= p_most
$$;

-- Ends a request, which began at p_began: after a failover, a request of another call may have the same id. p_began is
-- null if there was no failover. Only the first end counts. Returns the new status, or null if the request had already
-- ended. The status is `lost` if the attempt no longer holds the call, because the cost on the call's receipt must not
-- change later.
--
-- p_cooldown_ms is the minimum cooldown of the target; a cooldown that ends later remains. p_failure: the provider
-- failed. After three failures within a minute the target cools down for 30 s. Then one request probes it. If the probe
-- fails, too, the cooldown doubles, up to 5 min. A success resets all this, unless its request began before the
-- cooldown. The figures of a working target are samples: they omit a request if another request has locked the row.
drop function if exists gem.llm_end(bigint, text, text, integer, text, text, bigint, bigint, bigint, bigint, bigint,
  text, bigint, bigint, bigint, bigint, bigint, text, boolean, jsonb);
create or replace function gem.llm_end(p_id bigint, p_status text, p_kind text, p_http integer, p_request_id text,
  p_answered text,
  p_input bigint, p_output bigint, p_cache_read bigint, p_cache_write bigint, p_reasoning bigint, p_source text,
    p_cost bigint,
  p_provider_cost bigint, p_first_ms bigint, p_ms bigint, p_cooldown_ms bigint, p_cooldown_why text, p_failure boolean,
  p_reported jsonb default null, p_began timestamptz default null)
returns text language plpgsql security definer set search_path = pg_catalog, pg_temp
  -- use the indexes on ids, whatever the statistics are
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
  set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  moment  timestamptz;
  held    record;
  req     record;
  a       record;  -- the target; null if there is nothing to record
  changes boolean; -- whether its cooldown may change
  probed  boolean;
  rate    double precision; -- tokens per second
begin
  select r.call_id into req from public.core_llm_requests r
  where r.id = p_id and r.status = 'sent' and (p_began is null or r.at = p_began);
  if not found then
    return null;
  end if;
  -- The step with the answer commits next. If the worker freezes before the commit, or its machine fails, the
  -- transaction would lock the call until its connection ends, and gem.recover skips locked calls.
  perform set_config('idle_in_transaction_session_timeout', '10s', true);
  select c.attempt, c.status into held from public.core_tool_calls c where c.id = req.call_id for no key update;
  select r.* into req from public.core_llm_requests r where r.id = p_id and r.status = 'sent' for no key update;
  if not found then
    return null;
  end if;
  perform from gem.llm_spend s where s.id = any (req.spends) order by s.id for no key update;
  select p_failure or p_cooldown_ms > 0 or s.backoff > 0 or s.failed_at <> '{}' into changes from gem.llm_targets s
    where s.target = req.target;
  if changes then
    select s.* into a from gem.llm_targets s where s.target = req.target for no key update;
  else
    select s.* into a from gem.llm_targets s where s.target = req.target for no key update skip locked;
  end if;
  moment := gem.now();
  if (held.attempt = req.attempt and held.status = 'running') is not true then
    perform gem.llm_lose(array[p_id], moment);
    return 'lost';
  end if;

  update public.core_llm_requests r
  set status = p_status, ended_at = moment, cost = p_cost, provider_cost = p_provider_cost, input_tokens = p_input,
    output_tokens = p_output,
      cache_read_tokens = p_cache_read, cache_write_tokens = p_cache_write, reasoning_tokens = p_reasoning,
        usage_source = p_source,
      http_status = p_http, request_id = p_request_id, answered = p_answered, error_kind = p_kind,
        first_content_ms = p_first_ms, ms = p_ms,
      reported = p_reported
  where r.id = p_id;
  update gem.llm_spend s set reserved = s.reserved - req.reserved, spent = s.spent + coalesce(p_cost, req.reserved)
    where s.id = any (req.spends);

  if a.target is null then
    return p_status;
  end if;
  probed := coalesce(a.probe = p_id, false);
  if probed then
    a.probe := null;
    a.probing_since := null;
  end if;
  if p_status = 'done' then
    a.failed_at := '{}';
    if probed or req.at > a.cooldown_at then
      a.backoff := 0;
      a.probe := null;
      a.probing_since := null;
    end if;
    a.first_content_ms := coalesce(a.first_content_ms + 0.3 * (p_first_ms - a.first_content_ms), p_first_ms,
      a.first_content_ms);
    if p_source = 'provider' and p_reported is null then
      a.samples := a.samples + 1;
      a.output_tokens := coalesce(a.output_tokens, 0) + (p_output - coalesce(a.output_tokens, 0)) / a.samples;
      if p_first_ms is not null and p_output > 0 then -- an answer may arrive in one piece
        rate := p_output * 1000.0 / greatest(p_ms - p_first_ms, 1);
        a.tokens_per_s := coalesce(a.tokens_per_s + 0.3 * (rate - a.tokens_per_s), rate);
      end if;
      if req.estimated_input > 0 and p_input > 0 then
        a.input_ratio := coalesce(a.input_ratio, 1) +
          (p_input::double precision / req.estimated_input - coalesce(a.input_ratio, 1)) / a.samples;
      end if;
    end if;
  elsif p_failure then
    a.failed_at := array(select f from unnest(a.failed_at) f where f > moment - interval '1 minute') || moment;
    if probed or a.backoff = 0 and cardinality(a.failed_at) >= 3 then
      a.backoff := least(a.backoff + 1, 10);
      a.cooldown_at := moment;
      a.failed_at := '{}';
      if (a.cooldown_until > moment + gem.llm_backoff(a.backoff)) is not true then
        a.cooldown_until := moment + gem.llm_backoff(a.backoff);
        a.why := p_kind;
      end if;
    elsif a.backoff > 0 then
      a.failed_at := '{}'; -- this request began before the cooldown
    end if;
  end if;
  if p_cooldown_ms > 0 and (a.cooldown_until > moment + p_cooldown_ms * interval '1 millisecond') is not true then
    a.cooldown_until := moment + p_cooldown_ms * interval '1 millisecond';
    a.why := p_cooldown_why;
  end if;
  update gem.llm_targets s
  set cooldown_until = a.cooldown_until, why = a.why, failed_at = a.failed_at, backoff = a.backoff,
    cooldown_at = a.cooldown_at,
    probe = a.probe,
      probing_since = a.probing_since, first_content_ms = a.first_content_ms, tokens_per_s = a.tokens_per_s,
        output_tokens = a.output_tokens,
      input_ratio = a.input_ratio, samples = a.samples
  where s.target = a.target;
  return p_status;
end
$$;

-- Returns how long a target cools down after so many cooldowns in a row.
create or replace function gem.llm_backoff(p_cooldowns integer) returns interval language sql immutable as $$
  select least(interval '30 seconds' * power(2, p_cooldowns - 1), interval '5 minutes')
$$;

-- Returns the known state of targets, in the order of p_targets. cooldown_until is null if the target is not cooling
-- down.
create or replace function gem.llm_target_states(p_targets text[])
returns table (target text, cooldown_until timestamptz, why text, samples bigint, first_content_ms double precision,
  tokens_per_s double precision,
  output_tokens double precision, input_ratio double precision)
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  select one.target, cooldown.until, case when cooldown.until is not null then a.why end, coalesce(a.samples, 0),
    a.first_content_ms, a.tokens_per_s, a.output_tokens,
    a.input_ratio
  from (select gem.now() as at) now, unnest(p_targets) with ordinality one (target, place)
  left join gem.llm_targets a on a.target = one.target
  left join lateral (select greatest(case when a.cooldown_until > now.at then a.cooldown_until end,
    case when a.backoff > 0 and a.probing_since > now.at - interval '1 minute' then a.probing_since +
      interval '1 minute' end) as until) cooldown on true
  order by one.place
$$;

-- Closes requests that are `sent` as lost, and spends their reserves. The caller has locked them and their budgets.
create or replace function gem.llm_lose(p_ids bigint[], p_at timestamptz) returns void language sql as $$
  with lost as (
    update public.core_llm_requests r set status = 'lost', ended_at = p_at where r.id = any (p_ids)
      and r.status = 'sent'
    returning r.id, r.target, r.reserved, r.spends
  ), spent as (
    update gem.llm_spend s set reserved = s.reserved - sums.reserve, spent = s.spent + sums.reserve
    from (select spend, sum(l.reserved) as reserve from lost l, unnest(l.spends) spend group by spend) sums
      where s.id = sums.spend
  )
  update gem.llm_targets s set probe = null, probing_since = null from lost l where s.target = l.target
    and s.probe = l.id;
$$;

-- Locks requests that are `sent`, with their budgets, and closes them as lost. It skips requests that are locked.
create or replace function gem.llm_lose_now(p_ids bigint[]) returns void language plpgsql set search_path = pg_catalog,
  pg_temp as $$
declare
  ids bigint[] := array(select r.id from public.core_llm_requests r where r.id = any (p_ids) and r.status = 'sent'
    order by r.id for no key update skip locked);
begin
  if cardinality(ids) = 0 then
    return;
  end if;
  perform from gem.llm_spend s where s.id = any (array(select unnest(r.spends) from public.core_llm_requests r
    where r.id = any (ids)))
  order by s.id for no key update;
  perform from gem.llm_targets s where s.target = any (array(select r.target from public.core_llm_requests r
    where r.id = any (ids)))
  order by s.target for no key update;
  perform gem.llm_lose(ids, gem.now());
end
$$;

-- Closes as lost the requests that were sent more than an hour ago by attempts that no longer hold their calls. It
-- closes at most a hundred per target, and the next heartbeat continues.
create or replace function gem.llm_sweep() returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  before timestamptz := gem.now() - interval '1 hour';
begin
  perform gem.llm_lose_now(array(
    select old.id from gem.llm_targets s, lateral (
      select r.id from public.core_llm_requests r
      where r.target = s.target and r.status = 'sent' and r.at < before
        and not exists (select from public.core_tool_calls c where c.id = r.call_id and c.status = 'running'
          and c.attempt = r.attempt)
      order by r.at limit 100) old));
end
$$;

-- Closes the open requests of calls that are about to be pruned, and adds their costs to gem.llm_spend, which keeps
-- them when the requests are deleted. The calls have ended, and are locked.
create or replace function gem.llm_prune(p_calls uuid[]) returns void language plpgsql set search_path = pg_catalog,
  pg_temp as $$
declare
  ids bigint[] := array(select r.id from public.core_llm_requests r where r.call_id = any (p_calls)
    order by r.id for update);
begin
  if cardinality(ids) = 0 then
    return;
  end if;
  perform from gem.llm_spend s where s.id = any (array(select unnest(r.spends) from public.core_llm_requests r
    where r.id = any (ids)))
  order by s.id for no key update;
  perform from gem.llm_targets s where s.target = any (array(select r.target from public.core_llm_requests r
    where r.id = any (ids) and r.status = 'sent'))
  order by s.target for no key update;
  perform gem.llm_lose(ids, gem.now());
  update gem.llm_spend s set pruned = s.pruned + sums.cost, pruned_requests = s.pruned_requests + sums.requests
  from (select spend, sum(coalesce(r.cost, r.reserved)) as cost, count(*) as requests
    from public.core_llm_requests r, unnest(r.spends) spend where r.id = any (ids) group by spend) sums
  where s.id = sums.spend;
end
$$;

-- Removes rows of budgets whose period ended more than a year ago and which have no requests left, at most p_limit.
-- Returns their number. Only the owner may execute it; gem prune calls it.
create or replace function gem.prune_llm_spend(p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  before  timestamptz := gem.now() - interval '366 days';
  removed integer;
begin
  perform set_config('gem.pruning', 'on', true);
  with old as (
    select o.id from gem.llm_spend o
    where gem.llm_ends(o.period, o.starts) < before and o.requests = o.pruned_requests
      order by o.id limit p_limit for update skip locked
  ), corrections as (
    delete from gem.llm_corrections k using old where k.spend = old.id
  )
  delete from gem.llm_spend s using old where s.id = old.id;
  get diagnostics removed = row_count;
  perform set_config('gem.pruning', '', true);
  return removed;
end
$$;

-- Adds an amount in units of 10⁻⁹ USD to the spending of a budget in its current period, and returns the corrected
-- budget. A negative amount is a refund. It refuses to subtract more than was spent, and refuses a budget that has no
-- requests in that period.
create or replace function gem.llm_correct(p_budget text, p_subject text, p_amount bigint, p_by text, p_reason text)
returns table (period text, starts timestamptz, ends timestamptz, spent bigint, reserved bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  who    constant jsonb       := gem.acts(p_by, p_reason);
  moment constant timestamptz := gem.now();
  s      gem.llm_spend;
begin
  if who ->> 'reason' is null then
    perform gem.refuse('PT422', 'a correction needs a reason, which is kept with it');
  elsif p_amount = 0 or p_amount not between -1000000000000000 and 1000000000000000 then
    perform gem.refuse('PT422', 'a correction is between -1000000 and 1000000 USD, and not 0');
  end if;
  select b.* into s from gem.llm_spend b
  where b.budget = p_budget and b.subject = p_subject and b.starts <= moment
    and gem.llm_ends(b.period, b.starts) > moment
  -- the routes may have changed its period, and back again
  order by b.last_at desc nulls last, b.id desc limit 1 for no key update;
  if not found then
    perform gem.refuse('PT404',
      'the budget %s has no requests' || case when p_subject <> '' then ' for %s' else '' end || ' in this period',
      'Budgets that are counted separately, such as for each user, need a subject.', p_budget, p_subject);
  elsif s.spent + p_amount < 0 then
    perform gem.refuse('PT409', 'the budget %s has spent %s USD in this period, and no more can be subtracted', null,
      p_budget, trim_scale(s.spent / 1e9)::text);
  end if;
  insert into gem.llm_corrections (spend, amount, by, login, reason, at)
  values (s.id, p_amount, who ->> 'by', who ->> 'login', who ->> 'reason', moment);
  return query update gem.llm_spend b set spent = b.spent + p_amount where b.id = s.id
    returning b.period, b.starts, gem.llm_ends(b.period, b.starts), b.spent, b.reserved;
end
$$;

create or replace trigger gem_append_only before update or delete on gem.llm_corrections
  for each row execute function gem.refuse_change('corrections of budgets are append-only');
create or replace trigger gem_not_emptied before truncate on gem.llm_corrections
  for each statement execute function gem.refuse_change('corrections of budgets are append-only');

select gem.grant_to('gem_operator', 'execute on function gem.llm_correct(text, text, bigint, text, text)');
select gem.grant_to('gem_operator', 'select on gem.llm_corrections, gem.llm_spend');
select gem.grant_to('gem_worker', 'select on public.core_llm_requests');
select gem.open_to('gem_worker', 'public.core_llm_requests', 'gem_worker_reads', 'for select to %I using (true)');
select gem.grant_to('gem_worker', 'execute on function gem.record_routes(text, text, jsonb),
  gem.llm_begin(uuid, integer, text, text, text, bigint, jsonb), gem.llm_begin_all(jsonb),
  gem.llm_target_states(text[]),
  gem.llm_end(bigint, text, text, integer, text, text, bigint, bigint, bigint, bigint, bigint, text, bigint, bigint,
    bigint, bigint, bigint, text, boolean, jsonb, timestamptz)');
revoke all on all functions in schema gem from public;

-- Cron expressions: five fields for minutes, hours, days, months and weekdays, with names, lists, ranges and steps, or
-- @hourly to @yearly. If neither day field begins with *, a day needs to match only one of them. As in Vixie cron:
--
--   fixed      Neither the minute nor the hour begins with *. A time that a clock change skips comes at the end of the
--              gap. A time that occurs twice comes the first time only.
--   not fixed  The expression follows the clock: a gap skips its times, and an overlap repeats them.

-- Returns the values of one field, ascending. p_names are the names of the values from p_first on.
create or replace function gem.cron_values(p_field text, p_what text, p_first integer, p_last integer,
  p_names text[] default '{}') returns integer[] language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  named constant text := case when p_names = '{}' then '' else '|[a-z]{3}' end;
  item  text;
  part  text[];
  low   integer;
  high  integer;
  found integer[] := '{}';
begin
  foreach item in array string_to_array(lower(p_field), ',') loop
    part := regexp_match(item, '^(?:(\*)|(\d{1,2}' || named || ')(?:-(\d{1,2}' || named || '))?)(?:/(\d{1,3}))?$');
    low := coalesce(array_position(p_names, part[2]) - 1 + p_first, case when part[2] ~ '^\d' then part[2]::integer end,
      case when part[1] = '*' then p_first end);
    high := coalesce(array_position(p_names, part[3]) - 1 + p_first,
      case when part[3] ~ '^\d' then part[3]::integer end,
      case when part[1] = '*' then p_last when part[3] is null then low end);
    if p_what = 'weekday' and part[3] = 'sun' and low > 0 then
      high := 7;
    end if;
    if part[4] is not null and part[1] is null and part[3] is null then
      perform gem.refuse('PT422', 'the %s %s has a step without a range', 'Write %3$s.', p_what, item,
        format('%s-%s/%s', part[2], p_last, part[4]));
    elsif low is null or high is null or low < p_first or high > p_last or low > high or part[4]::integer = 0 then
      perform gem.refuse('PT422', 'the %s %s cannot be read',
        'It needs numbers from %3$s to %4$s' || case when named = '' then '' else ', or names such as %5$s' end
          || '; * for all; and lists, ranges and steps such as %3$s,%4$s or %3$s-%4$s/2.',
        p_what, item, p_first::text, p_last::text, p_names[2]);
    end if;
    found := found || array(select generate_series(low, high, coalesce(part[4]::integer, 1)));
  end loop;
  return array(select distinct v from unnest(found) v order by v);
end
$$;

-- Returns the parts of an expression. Raises PT422 with a hint if it cannot be read.
create or replace function gem.read_cron(p_cron text, out minutes integer[], out hours integer[], out days integer[],
  out months integer[], out weekdays integer[], out either_day boolean, out fixed boolean)
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  whole constant text   := lower(btrim(p_cron, E' \t'));
  field constant text[] := regexp_split_to_array(case whole
    when '@hourly' then '0 * * * *' when '@daily' then '0 0 * * *' when '@midnight' then '0 0 * * *'
    when '@weekly' then '0 0 * * 0' when '@monthly' then '0 0 1 * *'
    when '@yearly' then '0 0 1 1 *' when '@annually' then '0 0 1 1 *' else left(whole, 1000) end, '[ \t]+');
begin
  if coalesce(cardinality(field), 0) <> 5 or length(whole) > 1000 then
    perform gem.refuse('PT422', 'the cron expression %s cannot be read',
      'It has five fields: minute, hour, day, month and weekday, such as "0 9 * * 1-5" for 9:00 from Monday to Friday. '
        'Or it is @hourly, @daily, @weekly, @monthly or @yearly.', p_cron);
  end if;
  minutes := gem.cron_values(field[1], 'minute', 0, 59);
  hours := gem.cron_values(field[2], 'hour', 0, 23);
  days := gem.cron_values(field[3], 'day', 1, 31);
  months := gem.cron_values(field[4], 'month', 1, 12,
    '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}');
  weekdays := array(select distinct w % 7 from unnest(gem.cron_values(field[5], 'weekday', 0, 7,
    '{sun,mon,tue,wed,thu,fri,sat}')) w);
  either_day := left(field[3], 1) <> '*' and left(field[5], 1) <> '*';
  fixed := left(field[1], 1) <> '*' and left(field[2], 1) <> '*';
end
$$;

-- Returns how far a zone's clock is ahead of UTC at an instant.
create or replace function gem.zone_offset(p_zone text, p_at timestamptz) returns interval language sql stable as $$
  select (p_at at time zone p_zone) - (p_at at time zone 'UTC')
$$;

-- Returns the first instant after p_after on one day of the zone, or null. p_cron matches the day.
create or replace function gem.cron_next_on(p_cron record, p_zone text, p_day timestamp, p_after timestamptz)
returns timestamptz language plpgsql stable as $$
declare
  starts constant timestamptz := p_day at time zone p_zone;
  -- clocks go back by at most three hours
  before constant interval    := gem.zone_offset(p_zone, starts - interval '3 hours');
  after  constant interval    := gem.zone_offset(p_zone, starts + interval '27 hours');
  since  integer; -- the hour of p_after, counted from p_day
  clock  timestamp            := p_day - interval '1 minute'; -- the time after which the next is searched
  low    timestamptz          := starts - interval '3 hours';
  high   timestamptz          := starts + interval '27 hours';
  middle timestamptz;
  hour   integer;
  minute integer;
begin
  if before = after then -- no clock change is near
    if p_after >= starts then
      clock := date_trunc('minute', p_after at time zone p_zone);
    end if;
    if clock >= p_day + interval '1 day' then
      return null;
    end if;
    foreach hour in array p_cron.hours loop
      if p_day + make_interval(hours => hour + 1) > clock + interval '1 minute' then
        foreach minute in array p_cron.minutes loop
          if p_day + make_interval(hours => hour, mins => minute) > clock then
            return (p_day + make_interval(hours => hour, mins => minute) - after) at time zone 'UTC';
          end if;
        end loop;
      end if;
    end loop;
    return null;
  end if;
  while p_cron.fixed and after > before and high - low > interval '1 second' loop -- finds the end of the gap: high
    middle := low + date_trunc('second', (high - low) / 2);
    if gem.zone_offset(p_zone, middle) = before then
      low := middle;
    else
      high := middle;
    end if;
  end loop;
  since := floor(extract(epoch from (p_after at time zone p_zone) - p_day) / 3600);
  return (
    select min(i.at)
    from (
      select case when p_cron.fixed then coalesce(min(t.at) over (partition by t.clock), high) else t.at end as at
      from (
        select c.clock, case when u.at at time zone p_zone = c.clock then u.at end as at
        from (select p_day + make_interval(hours => h, mins => m) as clock
          from unnest(p_cron.hours) h, unnest(p_cron.minutes) m
          where h >= since - 3 and h <= coalesce((
            select min(l) from unnest(p_cron.hours) l where l >= greatest(since, 0) + 4), 23)) c,
          unnest(array[before, after]) ahead, lateral (select (c.clock - ahead) at time zone 'UTC' as at) u) t) i
    where i.at > p_after);
end
$$;

-- Returns the first instant of an expression after p_after, in a time zone of Postgres, or null if there is none in
-- eight years.
create or replace function gem.cron_next(p_cron text, p_zone text, p_after timestamptz) returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  cron  record;
  day   timestamp            := date_trunc('day', p_after at time zone p_zone) - interval '1 day';
  last  constant timestamp   := day + interval '8 years 2 days';
  by_day     boolean;
  by_weekday boolean;
  until timestamp; -- a clock change at midnight can repeat the end of the day before: the day after the first find
  found timestamptz;
begin
  cron := gem.read_cron(p_cron);
  if not isfinite(p_after) then
    return null;
  end if;
  while day <= coalesce(until, last) loop
    if extract(month from day)::integer <> all (cron.months) then
      day := date_trunc('month', day) + interval '1 month';
      continue;
    end if;
    by_day := extract(day from day)::integer = any (cron.days);
    by_weekday := extract(dow from day)::integer = any (cron.weekdays);
    if by_day and by_weekday or cron.either_day and (by_day or by_weekday) then
      found := least(found, gem.cron_next_on(cron, p_zone, day, p_after));
      if found is not null and until is null then
        until := day + interval '1 day';
      end if;
    end if;
    day := day + interval '1 day';
  end loop;
  return found;
end
$$;

-- Returns the last instant of an expression after p_after and at or before p_at, or null if there is none.
create or replace function gem.cron_last(p_cron text, p_zone text, p_after timestamptz, p_at timestamptz)
returns timestamptz language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  low    timestamptz := p_after; -- an instant follows it, at or before p_at
  high   timestamptz := p_at;    -- none does
  middle timestamptz;
begin
  if coalesce(gem.cron_next(p_cron, p_zone, low) > p_at, true) then
    return null;
  end if;
  while high - low > interval '30 seconds' loop
    middle := low + (high - low) / 2;
    if gem.cron_next(p_cron, p_zone, middle) <= p_at then
      low := middle;
    else
      high := middle;
    end if;
  end loop;
  return gem.cron_next(p_cron, p_zone, low);
end
$$;

-- Raises PT422 unless Postgres knows the time zone, by a name with a slash or UTC. Other names are abbreviations, which
-- know no clock changes, or definitions of a zone. Those have digits.
create or replace function gem.check_zone(p_zone text) returns void language plpgsql stable as $$
begin
  perform p_at at time zone case when p_zone !~ '^(right|posix)/' -- right/ counts leap seconds
      and p_zone ~ '^(UTC|[A-Za-z_]+(/[A-Za-z_-]+)+|Etc/GMT[+-][0-9]|Etc/GMT[+-]1[0-4])$'
    then p_zone else '' end from gem.now() p_at;
exception when invalid_parameter_value then
  perform gem.refuse('PT422', 'the time zone %s is unknown', 'Use a name such as Europe/Berlin or UTC.', p_zone);
end
$$;

-- Returns the next instants of an expression, at most p_count, which is from 1 to 1,000.
create or replace function gem.cron_times(p_cron text, p_zone text, p_count integer) returns setof timestamptz
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  at timestamptz := gem.now();
begin
  perform gem.check_zone(p_zone);
  if p_count not between 1 and 1000 then
    perform gem.refuse('PT422', '%s times were asked for, and 1 to 1000 are possible', null, p_count::text);
  end if;
  for i in 1..p_count loop
    at := gem.cron_next(p_cron, p_zone, at);
    exit when at is null;
    return next at;
  end loop;
end
$$;

revoke all on all functions in schema gem from public;

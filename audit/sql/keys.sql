-- Idempotency: hits, their keys, and the keys of all receipts. once.sql has the checks that need all receipts.
select 'hit-source' as name, h.call_id::text as id,
  format('its receipt repeats the receipt %s, which %s', h.replay_of, case
    when s.status <> 'succeeded' then 'is ' || s.status
    when s.replay_of is not null then 'is a repetition itself, of ' || s.replay_of
    when s.tool_name <> h.tool_name then format('is of %s, and not of %s', s.tool_name, h.tool_name)
    when s.idempotency_key is distinct from h.idempotency_key
      then format('has the key %s, and not %s', coalesce(s.idempotency_key, 'null'),
        coalesce(h.idempotency_key, 'null'))
    else 'has another result' end) as what
from public.core_tool_receipts h
join public.core_tool_receipts s on s.id = h.replay_of
where (s.status = 'succeeded' and s.replay_of is null and s.tool_name = h.tool_name
  and s.idempotency_key = h.idempotency_key and s.result is not distinct from h.result) is not true

union all

-- A hit is marked and has no other effects except verdicts of rules, and no other receipt is marked. Receipts of an
-- earlier GEM may have any marks.
select 'hit-effects', r.call_id::text,
  format('its receipt %s, and its effects are %s',
    case when r.replay_of is null then 'repeats none' else 'repeats ' || r.replay_of end, left(r.effects::text, 150))
from public.core_tool_receipts r
join public.core_tool_calls c on c.id = r.call_id
  and not (c.events = 1 and c.status in ('succeeded', 'failed', 'not_configured'))
where case
  when r.replay_of is null then r.effects #>> '{idempotency,hit}' = 'true'
  else r.effects #>> '{idempotency,hit}' is distinct from 'true' or r.effects - 'idempotency' - 'rules' <> '{}' end

union all

-- By the predicate of gem_calls_one_holder_per_key: a durable call keeps its key between its attempts.
select 'key-running', min(id::text),
  format('the key %s is held by %s calls: %s', computed_key, count(*),
    string_agg(id::text, ', ' order by claimed_at, id))
from public.core_tool_calls
where (status in ('running', 'queued') or status = 'waiting' and waits_for <> 'key') and computed_key is not null
group by computed_key having count(*) > 1

union all

-- A receipt has the key of its call, which follows from the call's input, or from the client's key and the caller: see
-- Key and ClientKey in receipts/key.go. This skips callers whose name Go would quote with a backslash.
select 'key-computed', call_id::text,
  format('its receipt has the key %s, and the call %s', coalesce(k.idempotency_key, 'null'),
    coalesce(k.computed, 'has ' || k.held, 'has none'))
from (
  select r.call_id, r.idempotency_key, c.computed_key as held, r.status, r.effects #>> '{idempotency,mode}' as mode,
    case r.effects #>> '{idempotency,mode}'
      when 'keyed' then r.tool_name || ':' || field || case
        when jsonb_typeof(value) = 'string' and octet_length(value #>> '{}') <= 200 then '="' || (value #>> '{}') || '"'
        when jsonb_typeof(value) = 'string' then ' sha256 ' || encode(sha256(convert_to(value #>> '{}', 'UTF8')), 'hex')
        when octet_length(document) <= 200 then '=' || document
        else ' sha256 ' || encode(sha256(convert_to(document, 'UTF8')), 'hex') end
      when 'safe-retry' then r.tool_name || ':' || case
        when octet_length(caller) <= 198 then 'caller="' || caller || '"'
        else ' sha256 ' || encode(sha256(convert_to('"' || caller || '"', 'UTF8')), 'hex') end
        || ':' || case when octet_length(client_key) <= 200 then 'client=' || client_key
        else ' sha256 ' || encode(sha256(convert_to(client_key, 'UTF8')), 'hex') end
    end as computed,
    caller ~ '^[ !#-\[\]-~]*$' as plain
  from public.core_tool_receipts r
  join public.core_tool_calls c on c.id = r.call_id,
  lateral (select r.effects #>> '{idempotency,key_field}' as field,
    c.input -> (r.effects #>> '{idempotency,key_field}') as sent,
    coalesce(c.created_by, '') as caller, nullif(btrim(c.idempotency_key, E' \t\n\x0b\f\r'), '') as client_key) v,
  lateral (select case when jsonb_typeof(sent) = 'string' then to_jsonb(btrim(sent #>> '{}', E' \t\n\x0b\f\r'))
    else sent end as value) trimmed,
  lateral (select regexp_replace(value::text, -- without the zeros at the end of fractions, and strings as they are
    '("(?:[^"\\]|\\.)*")|(-?\d+)(?:(\.\d*[1-9])|\.)0+(?=[\],} ]|$)', '\1\2\3', 'g') as document) printed
  where c.status in ('succeeded', 'failed', 'not_configured') and c.events <> 1
) k
where idempotency_key is distinct from held
  or (mode = 'keyed' or mode = 'safe-retry' and plain) and computed is distinct from idempotency_key
    and (idempotency_key is not null or status = 'succeeded')
  or mode = 'keyed' and status = 'succeeded' and idempotency_key is null

-- Compares receipts of extract.run with the text in the call's input. It skips hits, because their input may differ,
-- and documents, because they are large.
--
-- Offsets count bytes, characters or units of UTF-16. In an ASCII text these are the same, and Postgres finds a byte at
-- once. Otherwise the query adds a placeholder after each character that takes two units, and cuts the text into
-- pieces, because Postgres counts characters from the start.
with run as materialized (
  select r.call_id, r.result, r.result #>> '{document,sha256}' as hash, c.input ->> 'text' as text,
    r.result #>> '{document,offsets}' as unit
  from public.core_tool_receipts r
  join public.core_tool_calls c on c.id = r.call_id
  where r.tool_name = 'extract.run' and r.status = 'succeeded' and r.replay_of is null and c.input ? 'text'
    and r.result #>> '{document,offsets}' in ('utf16', 'codepoint', 'byte')
      and jsonb_typeof(r.result -> 'extractions') = 'array'
), read as materialized (
  select call_id, result, unit, encode(sha256(convert_to(text, 'UTF8')), 'hex') is not distinct from hash as same,
    case when unit = 'byte' or octet_length(text) = length(text) then convert_to(text, 'UTF8') end as bytes,
    case when unit <> 'byte' and octet_length(text) <> length(text) then array(
      select piece[1] from regexp_matches(case unit
        when 'utf16' then regexp_replace(text, '([\U00010000-\U0010ffff])', E'\\1\x01', 'g') else text end,
        '.{1,250}', 'g') with ordinality found (piece, n) order by n) end as pieces
  from run
), quoted as (
  select r.call_id, e.*, case when e.start >= 0 and e."end" > e.start and e."end" - e.start <= 150000 then
    case when r.bytes is not null then substring(r.bytes from e.start + 1 for e."end" - e.start) = convert_to(e.quote,
      'UTF8')
    else substr(array_to_string(r.pieces[e.start / 250 + 1 : e."end" / 250 + 1], ''), e.start % 250 + 1,
      e."end" - e.start) =
      case r.unit when 'utf16' then regexp_replace(e.quote, '([\U00010000-\U0010ffff])', E'\\1\x01', 'g')
        else e.quote end end end as stands
  from read r
  cross join lateral jsonb_to_recordset(r.result -> 'extractions') as e (class text, quote text, start integer,
    "end" integer, shard integer)
), shard as (
  select r.call_id, s.index, s.status, s.cached, s.call_id as child
  from public.core_tool_receipts r
  cross join lateral jsonb_to_recordset(case when jsonb_typeof(r.result -> 'shards') = 'array' then r.result -> 'shards'
    else '[]' end)
    as s (index integer, status text, cached boolean, call_id uuid)
  where r.tool_name = 'extract.run' and r.status = 'succeeded' and r.replay_of is null
)
select 'extract-text' as name, call_id::text as id,
  'the hash of its document differs from the text in its input' as what
from read where not same

union all

select 'extract-quote', call_id::text, format('its %s from %s to %s differs from the text there', class,
  coalesce(start::text, 'null'), coalesce("end"::text, 'null'))
from quoted where stands is not true

union all

-- A child that was pruned before its parent is not missing.
select 'extract-shard', s.call_id::text, case when k.tool_name <> 'extract.shard' or k.parent_call_id is distinct
  from s.call_id
  then format('its shard %s names the call %s, which is not its child', s.index, s.child)
  else format('its shard %s is listed as %s%s, and the receipt of the call %s is %s%s', s.index, case
    when s.cached then 'a hit that was ' else '' end, s.status,
    s.child, case when r.replay_of is null then '' else 'a hit that ' end, coalesce(r.status, 'not there')) end
from shard s
join public.core_tool_calls k on k.id = s.child
left join public.core_tool_receipts r on r.call_id = k.id
where k.tool_name <> 'extract.shard' or k.parent_call_id is distinct from s.call_id or r.status is null
  or s.status = 'read' and r.status <> 'succeeded' or s.cached is distinct from (r.replay_of is not null)

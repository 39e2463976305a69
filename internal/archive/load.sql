-- What Load fills: temporary tables with the columns of GEM's own, without their constraints, and a row for each line.
-- They end with the transaction, and need no right but TEMP.

create temp table core_tool_calls on commit drop as
select (jsonb_populate_record(null::public.core_tool_calls, '{}')).* with no data;

create temp table core_tool_receipts on commit drop as
select (jsonb_populate_record(null::public.core_tool_receipts, '{}')).* with no data;

create temp table core_tool_events on commit drop as
select (jsonb_populate_record(null::public.core_tool_events, '{}')).* with no data;

create unique index on pg_temp.core_tool_calls (id);

create temp table archive_lines (
  line    bigint not null, -- counts the lines of all files
  place   text   not null, -- the file and the line's number in it
  call_id uuid,
  hash    uuid,            -- of the line's bytes
  fault   text,            -- why the line cannot be read; it has no call_id then
  torn    boolean not null default false
) on commit drop;

-- Loads lines that follow one another in a file; null is a line that is too long. A line that cannot be read becomes a
-- row of archive_lines and nothing else. Of a call that has several lines, the first is loaded.
create function pg_temp.load_lines(p_line bigint, p_file text, p_number bigint, p_lines bytea[]) returns void
  language plpgsql as $$
declare
  i integer;
  content jsonb;
  call public.core_tool_calls;
  receipt public.core_tool_receipts;
  events public.core_tool_events[];
  fault text;
  detail text;
begin
  for i in 1 .. cardinality(p_lines) loop
    fault := null;
    -- Nothing is written inside this block: a subtransaction that writes would get an id, and a snapshot of a worker
    -- that holds more than 64 of them is slow.
    begin
      content := convert_from(p_lines[i], 'UTF8')::jsonb;
      call := jsonb_populate_record(null::public.core_tool_calls, content -> 'call');
      receipt := jsonb_populate_record(null::public.core_tool_receipts, nullif(content -> 'receipt', 'null'));
      events := array(select e from jsonb_populate_recordset(null::public.core_tool_events,
        nullif(content -> 'events', 'null')) e);
      fault := case
        when p_lines[i] is null then 'the line is longer than 256 MiB'
        when call.id is null or content -> 'gem_archive' is distinct from '1' then 'it is not a line of an archive'
        when (select count(*) <> count(distinct e.seq) from unnest(events) e) then
          'two of its events have the same number'
      end;
      -- The audit casts these values. One that cannot be cast is a fault of its line, and must not stop the checks of
      -- all lines.
      perform (e.data ->> 'run_at')::timestamptz, (e.data ->> 'priority')::integer from unnest(events) e;
    exception when data_exception or program_limit_exceeded then
      get stacked diagnostics fault = message_text, detail = pg_exception_detail;
      fault := concat_ws(': ', fault, nullif(detail, ''));
    end;

    insert into pg_temp.archive_lines (line, place, call_id, hash, fault)
    values (p_line + i - 1, p_file || ':' || p_number + i - 1, case when fault is null then call.id end,
      md5(p_lines[i])::uuid, fault);
    continue when fault is not null;
    insert into pg_temp.core_tool_calls select call.* on conflict (id) do nothing;
    continue when not found;
    insert into pg_temp.core_tool_receipts select receipt.* where receipt is distinct from null;
    insert into pg_temp.core_tool_events select * from unnest(events);
  end loop;
end
$$;

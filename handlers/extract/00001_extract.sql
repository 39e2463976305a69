-- The tables of the domain extract: documents that are too large for one input, in parts. The tool extract.add_document
-- fills them, and so does an insert. Nothing of them is changed afterwards, so that the places of a receipt stay places
-- in the document.
set local search_path = pg_catalog, pg_temp;

-- A document. gem prune removes a row if it and its last part are older than --older-than, and no open call has its
-- id as document_id.
create table if not exists public.extract_documents (
  id         uuid        primary key,
  created_by text,                                -- whose it is: extract.run reads documents of its caller only
  title      text,                                -- of 200 characters at most
  call_id    uuid,                                -- null for one that was not made by a call
  created_at timestamptz not null
);

-- Its text, in parts that follow one another and are numbered from 1 without gaps. Rows leave with their document.
create table if not exists public.extract_document_parts (
  document_id uuid        not null references public.extract_documents,
  seq         integer     not null,
  text        text        not null,
  sha256      text        not null,               -- of the text in UTF-8
  bytes       integer     not null,               -- of the text in UTF-8
  total       integer     not null,               -- the bytes of this part and of those before it
  created_by  text,                               -- the document's
  call_id     uuid,
  created_at  timestamptz not null,
  primary key (document_id, seq)
);
-- What a caller added in the last hour, and what is old enough to leave.
create index if not exists gem_extract_documents_of_caller on public.extract_documents (created_by, created_at)
  where created_by is not null;
create index if not exists gem_extract_parts_of_caller on public.extract_document_parts (created_by, created_at)
  where created_by is not null;
create index if not exists gem_extract_documents_old on public.extract_documents (created_at);

-- As of calls and receipts: estimates must not tell of the rows of others.
do $$
declare
  col record;
begin
  for col in
    select a.attrelid::regclass as rel, a.attname as name from pg_attribute a
    where a.attrelid in ('public.extract_documents'::regclass, 'public.extract_document_parts'::regclass)
      and a.attnum > 0 and not a.attisdropped
  loop
    execute format('alter table %s alter column %I set statistics 0', col.rel, col.name);
  end loop;
end
$$;

create schema if not exists gem_extract;

-- Refuses what a signed-in user adds beyond the calls and bytes an hour of gem.limits.
create or replace function gem_extract.check_hour(p_caller text, p_rows bigint, p_bytes bigint) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  most gem.limits;
begin
  select * into most from gem.limits;
  if p_rows > most.max_calls_per_hour then
    perform gem.refuse('PT429', -- PostgREST answers with the HTTP status 429
      'too many documents or parts in an hour: you may add %s', 'Send larger parts, or try again later.',
        most.max_calls_per_hour::text);
  elsif p_bytes > most.max_bytes_per_hour then
    perform gem.refuse('PT429', 'too much text in an hour: you may add %s bytes', 'Try again later.',
      most.max_bytes_per_hour::text);
  end if;
end
$$;

-- A document is its caller's, whatever the row says; service_role may act for another, as with calls.
create or replace function gem_extract.before_document() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
declare
  claims  jsonb   := gem.token_claims();
  signed_in boolean := claims ->> 'role' is distinct from 'service_role' and claims is not null;
begin
  new.id := coalesce(new.id, gen_random_uuid()); -- PostgREST sends null for what a row of a bulk insert leaves out
  new.created_at := gem.now();
  if signed_in or new.created_by is null then
    new.created_by := nullif(claims ->> 'sub', '');
  end if;
  if length(new.title) > 200 or length(new.created_by) > 255 then
    perform gem.refuse('check_violation', 'title may have at most 200 characters, and created_by 255');
  end if;
  if signed_in then
    perform pg_advisory_xact_lock(hashtextextended('gem.limits ' || new.created_by, 0));
    perform gem_extract.check_hour(new.created_by, 1 + (
      select count(*) from public.extract_documents d where d.created_by = new.created_by
        and d.created_at > new.created_at - interval '1 hour'), 0);
  end if;
  return new;
end
$$;

-- A part is the next one of its document. The names of constraints in the errors are the error codes of
-- extract.add_document.
create or replace function gem_extract.before_part() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $$
declare
  claims   jsonb   := gem.token_claims();
  signed_in  boolean := claims ->> 'role' is distinct from 'service_role' and claims is not null;
  most     constant bigint := 524288;  -- bytes of a part
  most_all constant bigint := 8388608; -- and of a document
  last     record;
  past     record;
begin
  if signed_in then -- one request of a caller after another, as with calls
    perform pg_advisory_xact_lock(hashtextextended('gem.limits ' || (claims ->> 'sub'), 0));
  end if;
  -- Locked, so that parts that come together are added one after the other.
  select d.created_by into new.created_by from public.extract_documents d
  where d.id = new.document_id and (not signed_in or d.created_by = nullif(claims ->> 'sub', '')) for no key update;
  if not found then
    perform gem.refuse('foreign_key_violation/not_found', 'there is no document %s' || case
      when signed_in then ' of yours' else '' end, null,
      new.document_id::text);
  end if;
  select p.seq, p.total into last from public.extract_document_parts p where p.document_id = new.document_id
    order by p.seq desc limit 1;
  new.seq := coalesce(new.seq, coalesce(last.seq, 0) + 1);
  new.bytes := octet_length(convert_to(new.text, 'UTF8'));
  new.total := coalesce(last.total, 0) + new.bytes;
  if new.seq <> coalesce(last.seq, 0) + 1 then
    perform gem.refuse('check_violation/part_out_of_order', 'the next part of the document %s is %s, and not %s',
      'Parts are added in order, and stay as they are. Leave seq out for the next one.',
      new.document_id::text, (coalesce(last.seq, 0) + 1)::text, new.seq::text);
  elsif new.text is null or new.text = '' then
    perform gem.refuse('check_violation/part_empty', 'text is empty', 'A part has 1 to 524288 bytes in UTF-8.');
  elsif new.bytes > most then
    perform gem.refuse('check_violation/part_too_large', 'text takes %s bytes in UTF-8, and a part may take %s',
      'Send the text in several parts.', new.bytes::text, most::text);
  elsif new.total > most_all then
    perform gem.refuse('check_violation/document_too_large',
      'the document would take %s bytes in UTF-8, and may take %s',
      'Put the rest into another document.', new.total::text, most_all::text);
  end if;
  new.sha256 := encode(sha256(convert_to(new.text, 'UTF8')), 'hex');
  new.created_at := gem.now();
  if signed_in then
    select count(*) as parts, coalesce(sum(p.bytes), 0) as bytes into past
    from public.extract_document_parts p where p.created_by = new.created_by
      and p.created_at > new.created_at - interval '1 hour';
    perform gem_extract.check_hour(new.created_by, past.parts + 1, past.bytes + new.bytes);
  end if;
  return new;
end
$$;

create or replace trigger gem_before_insert before insert on public.extract_documents
  for each row execute function gem_extract.before_document();
create or replace trigger gem_before_insert before insert on public.extract_document_parts
  for each row execute function gem_extract.before_part();
create or replace trigger gem_append_only before update or delete on public.extract_documents
  for each row execute function gem.refuse_change('a document stays as it was added: see gem prune');
create or replace trigger gem_append_only before update or delete on public.extract_document_parts
  for each row execute function gem.refuse_change('a document stays as it was added: see gem prune');
create or replace trigger gem_not_emptied before truncate on public.extract_documents
  for each statement execute function gem.refuse_change('a document stays as it was added: see gem prune');
create or replace trigger gem_not_emptied before truncate on public.extract_document_parts
  for each statement execute function gem.refuse_change('a document stays as it was added: see gem prune');

-- Removes documents that are older than p_before, p_limit at most, and returns how many. `gem prune` calls it, as it
-- does with every gem_<domain>.prune.
create or replace function gem_extract.prune(p_before timestamptz, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  ids     uuid[];
  removed integer;
begin
  -- Not one that a transaction has locked which adds to it.
  ids := array(
    select d.id from public.extract_documents d
    where d.created_at < p_before
      and not exists (select from public.extract_document_parts p where p.document_id = d.id
        and p.created_at >= p_before)
      and not exists (
        select from public.core_tool_calls c where c.status in ('queued', 'waiting', 'running')
          and lower(c.input ->> 'document_id') = d.id::text)
    order by d.created_at limit p_limit for update skip locked);
  -- What was added, or called, before the documents were locked is seen by a second look only.
  ids := array(
    select d.id from public.extract_documents d
    where d.id = any (ids)
      and not exists (select from public.extract_document_parts p where p.document_id = d.id
        and p.created_at >= p_before)
      and not exists (
        select from public.core_tool_calls c where c.status in ('queued', 'waiting', 'running')
          and lower(c.input ->> 'document_id') = d.id::text));
  perform set_config('gem.pruning', 'on', true);
  delete from public.extract_document_parts p where p.document_id = any (ids);
  delete from public.extract_documents d where d.id = any (ids);
  get diagnostics removed = row_count;
  perform set_config('gem.pruning', '', true);
  return removed;
end
$$;
revoke all on all functions in schema gem_extract from public;

-- What was read: a row for each extraction of each extract.run that succeeded. Offsets are in the unit that the call
-- asked for. row_to_json makes lines of it.
create or replace view gem.extractions with (security_invoker = true) as
select r.call_id, r.created_at, e.n, r.result #>> '{document,document_id}' as document_id,
  r.result #>> '{document,sha256}' as document_sha256,
  r.result #>> '{document,offsets}' as offsets, e.class, e.quote, e.start, e."end", e.line, e.match, e.attributes,
    e.inferred, e.shard
from public.core_tool_receipts r
cross join lateral rows from (
  jsonb_to_recordset(case when jsonb_typeof(r.result -> 'extractions') = 'array' then r.result -> 'extractions'
    else '[]' end)
    as (class text, quote text, start integer, "end" integer, line integer, match text, attributes jsonb,
      inferred boolean, shard integer)
) with ordinality as e (class, quote, start, "end", line, match, attributes, inferred, shard, n)
where r.tool_name = 'extract.run' and r.status = 'succeeded';

------------------------------------------------------------------------------------------------------------------------
-- Rights: as in functions/frontends.sql, for the roles of Supabase's API where they are
------------------------------------------------------------------------------------------------------------------------

alter table public.extract_documents enable row level security;
alter table public.extract_document_parts enable row level security;
drop policy if exists gem_own_documents on public.extract_documents;
create policy gem_own_documents on public.extract_documents for
  select using (created_by = (select public.gem_caller()));
drop policy if exists gem_new_documents on public.extract_documents;
create policy gem_new_documents on public.extract_documents for insert with
  check (created_by = (select public.gem_caller()));
drop policy if exists gem_own_parts on public.extract_document_parts;
create policy gem_own_parts on public.extract_document_parts for
  select using (created_by = (select public.gem_caller()));
drop policy if exists gem_new_parts on public.extract_document_parts;
create policy gem_new_parts on public.extract_document_parts for insert with
  check (created_by = (select public.gem_caller()));
do $$
begin
  if pg_notification_queue_usage() < 0.5 then
    notify pgrst, 'reload schema'; -- PostgREST keeps a copy of it
  end if;
end
$$;

-- gem.refuse raises the errors that frontends can see. Their text may contain a caller's words, which must not break
-- out of their context: PostgREST writes the message of an error PTxxx into the HTTP status line, where a line break
-- would begin a header.

-- Returns at most p_most characters of a text as printable ASCII, with ? in place of every other character.
create or replace function gem.printable(p_text text, p_most integer) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select regexp_replace(left(p_text, p_most), '[^ -~]' collate "C", '?', 'g')
$$;

-- Raises an error. p_code is an SQLSTATE or its name, optionally followed by a slash and a name by which programs
-- recognise the error; Postgres reports that name as a constraint. The message and the hint are templates of format():
-- each %s of the message takes the next word, and the hint takes words by number, such as %2$s. A word that is a single
-- name or number is not quoted; any other word gets double quotes. The longest words are cut, so that the message and
-- the hint have at most 300 characters each.
create or replace function gem.refuse(p_code text, p_message text, p_hint text default null,
  variadic p_words text[] default '{}')
returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  words text[]  := array(select replace(gem.printable(coalesce(u.word, 'null'), 300), '"', '''')
    from unnest(p_words) with ordinality u (word, place) order by u.place);
  room  integer := 300 - greatest(length(p_message), length(p_hint));
  most  integer := coalesce((select max(m) from generate_series(8, 250) m
    where (select sum(least(length(w), m) + 2) from unnest(words) w) <= room), 8);
begin
  words := array(
    select case when u.word ~ '^[A-Za-z0-9_.:@/+#*-]+$' and length(u.word) <= most then u.word
      when length(u.word) <= most then '"' || u.word || '"'
      else '"' || left(u.word, most - 3) || '..."' end
    from unnest(words) with ordinality u (word, place) order by u.place);
  if p_hint is null then
    raise exception using errcode = split_part(p_code, '/', 1), constraint = split_part(p_code, '/', 2),
      message = gem.printable(format(p_message, variadic words), 300);
  end if;
  raise exception using errcode = split_part(p_code, '/', 1), constraint = split_part(p_code, '/', 2),
    message = gem.printable(format(p_message, variadic words), 300),
      hint = gem.printable(format(p_hint, variadic words), 300);
end
$$;

-- Tools in SQL run with the rights of the worker.
select gem.grant_to('gem_worker',
  'execute on function gem.refuse(text, text, text, text[]), gem.printable(text, integer)');
revoke all on all functions in schema gem from public;

-- How the database refuses something. Each error that a frontend can see is raised here, since its text may hold a caller's
-- words, and travels further than they may: PostgREST writes the message of an error PTxxx into the status line of HTTP, in
-- which a line break would begin a header.

-- A text as printable ASCII: ? replaces every other character. It has at most p_most characters.
create or replace function gem.printable(p_text text, p_most integer) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select regexp_replace(left(p_text, p_most), '[^ -~]' collate "C", '?', 'g')
$$;

-- Raises an error with a code: an SQLSTATE or its name, and behind a slash the name by which a program knows the error, which
-- Postgres gives it as that of a constraint. The message and the hint are forms for format: a %s of the message takes the next
-- of the words, and the hint takes them by number, such as %2$s. A word that is one name or number stays as it is, and any
-- other is put in double quotes. The longest words are cut, so that the message has at most 300 characters, and so has the hint.
create or replace function gem.refuse(p_code text, p_message text, p_hint text default null, variadic p_words text[] default '{}')
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
    message = gem.printable(format(p_message, variadic words), 300), hint = gem.printable(format(p_hint, variadic words), 300);
end
$$;

-- Tools in SQL run with the rights of the worker.
select gem.grant_to('gem_worker', 'execute on function gem.refuse(text, text, text, text[]), gem.printable(text, integer)');
revoke all on all functions in schema gem from public;

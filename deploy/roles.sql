-- The roles that Supabase has, for the stack of docker-compose.yml: it runs before the migrations, at each start.
--
-- PostgREST connects as authenticator, which can do nothing itself, and becomes the role that a request's token names.
-- anon is that of a request without a token, and service_role that of a backend, whom row level security does not hold.
\getenv password AUTHENTICATOR_PASSWORD

do $$
begin
  if to_regrole('anon') is null then create role anon nologin noinherit; end if;
  if to_regrole('authenticated') is null then create role authenticated nologin noinherit; end if;
  if to_regrole('service_role') is null then create role service_role nologin noinherit bypassrls; end if;
  if to_regrole('authenticator') is null then create role authenticator login noinherit; end if;
end
$$;
alter role authenticator password :'password';
grant anon, authenticated, service_role to authenticator;
grant usage on schema public to anon, authenticated, service_role;

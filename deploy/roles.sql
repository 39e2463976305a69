-- Supabase's roles for the stack of docker-compose.yml. This runs before the migrations, at each start.
--
-- PostgREST connects as authenticator, which has no rights itself, and becomes the role that a request's token names. A request
-- without a token gets anon. service_role is for backends, and row level security does not apply to it.
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

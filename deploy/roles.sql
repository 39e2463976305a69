-- The roles of the stack of docker-compose.yml, in addition to the owner. This runs before the migrations, at each
-- start, so that a changed password applies from the next start on.
--
-- worker is the login of the workers. As a member of gem_worker it has exactly the rights of a worker, which the
-- migrations grant.
--
-- mcp is the login of gem mcp. As a member of gem_mcp it becomes the user whose request it serves, gem_frontend or
-- authenticated. Its only own right is to read which calls have ended.
--
-- monitor and operator are the logins of gem dashboard. monitor reads the data for viewers, as a member of
-- gem_monitor. operator reads everything about calls, and cancels and repeats them in the name of the signed-in
-- person, as a member of gem_operator; as a member of gem_mcp it answers questions as that user.
--
-- The others are Supabase's. PostgREST connects as authenticator, which has no rights itself, and becomes the role in
-- a request's token. A request without a token gets anon. service_role is for backends and bypasses row level
-- security.
\getenv authenticator_password AUTHENTICATOR_PASSWORD
\getenv worker_password WORKER_PASSWORD
\getenv mcp_password MCP_PASSWORD
\getenv monitor_password MONITOR_PASSWORD
\getenv operator_password OPERATOR_PASSWORD

do $$
begin
  if to_regrole('gem_worker') is null then create role gem_worker nologin; end if;
  if to_regrole('worker') is null then create role worker login; end if;
  if to_regrole('gem_mcp') is null then create role gem_mcp nologin noinherit; end if;
  if to_regrole('mcp') is null then create role mcp login; end if;
  if to_regrole('gem_monitor') is null then create role gem_monitor nologin; end if;
  if to_regrole('monitor') is null then create role monitor login; end if;
  if to_regrole('gem_operator') is null then create role gem_operator nologin; end if;
  if to_regrole('operator') is null then create role operator login; end if;
  if to_regrole('anon') is null then create role anon nologin noinherit; end if;
  if to_regrole('authenticated') is null then create role authenticated nologin noinherit; end if;
  if to_regrole('service_role') is null then create role service_role nologin noinherit bypassrls; end if;
  if to_regrole('authenticator') is null then create role authenticator login noinherit; end if;
end
$$;
-- by which gem migrate recognises them
comment on role gem_worker is 'Made by GEM. All databases of this server that have GEM share it.';
comment on role gem_mcp is 'Made by GEM. All databases of this server that have GEM share it.';
comment on role gem_monitor is 'Made by GEM. All databases of this server that have GEM share it.';
comment on role gem_operator is 'Made by GEM. All databases of this server that have GEM share it.';
alter role worker password :'worker_password';
grant gem_worker to worker;
alter role mcp password :'mcp_password';
grant gem_mcp to mcp;
alter role monitor password :'monitor_password';
grant gem_monitor to monitor;
alter role operator password :'operator_password';
grant gem_operator, gem_mcp to operator;
alter role authenticator password :'authenticator_password';
grant anon, authenticated, service_role to authenticator;
grant usage on schema public to anon, authenticated, service_role;

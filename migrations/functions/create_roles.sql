-- Creates the roles that roles.sql describes. gem dev runs this file before the migrations, because their role may not
-- create roles.
do $$
declare
  new_role text;
  ours     constant text := 'Made by GEM. All databases of this server that have GEM share it.';
begin
  foreach new_role in array array['gem_worker', 'gem_monitor', 'gem_operator', 'gem_frontend', 'gem_mcp',
    'gem_scheduler', 'gem_handler'] loop
    begin
      if not exists (select from pg_roles where rolname = new_role) then
        -- gem_mcp has a user's rights only after it becomes that user; the other two have the rights of their groups
        execute format('create role %I nologin %s', new_role, case when new_role in ('gem_operator', 'gem_scheduler')
          then 'inherit' else 'noinherit' end);
        -- the next migration recognises the role by this comment
        execute format('comment on role %I is %L', new_role, ours);
      end if;
    exception
      when duplicate_object or unique_violation then null; -- another database of this server is being migrated
      when insufficient_privilege then raise notice 'the role % was not created: this role may create none', new_role;
    end;
  end loop;
  if not pg_has_role(to_regrole('gem_mcp'), 'gem_frontend', 'member') then
    begin
      grant gem_frontend to gem_mcp;
    exception
      when unique_violation then null;
      when insufficient_privilege then raise notice 'gem_mcp may not become gem_frontend: this role may not grant it';
    end;
  end if;
  if not pg_has_role(to_regrole('gem_scheduler'), 'gem_frontend', 'member') then
    begin
      grant gem_frontend to gem_scheduler;
    exception
      when unique_violation then null;
      when insufficient_privilege then raise notice
        'gem_scheduler does not have the rights of gem_frontend: this role may not grant it';
    end;
  end if;
  if not pg_has_role(to_regrole('gem_operator'), 'gem_monitor', 'member') then
    begin
      grant gem_monitor to gem_operator;
    exception
      when unique_violation then null;
      when insufficient_privilege then raise notice
        'gem_operator does not read the views of gem_monitor: this role may not grant it';
    end;
  end if;
end
$$;

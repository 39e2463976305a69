-- +goose Up
--
-- The role gem_worker: what a worker needs, and no more. Give it to the role that a worker connects as:
--
--   create role my_worker login password '…' in role gem_worker;
--
-- It moves calls through the functions of the state machine alone: it can write no call, receipt or event by itself, and so
-- can neither forge an attempt nor end a call without its receipt. Handlers read and write the domain tables.
--
-- Where the role that migrates may create no roles there is none, and workers connect as the owner of the tables, as before.

-- +goose StatementBegin
do $$
declare
  domain_table text;
begin
  begin
    if not exists (select from pg_roles where rolname = 'gem_worker') then
      create role gem_worker nologin;
    end if;
  exception
    when duplicate_object or unique_violation then null; -- another database of this server is being migrated
    when insufficient_privilege then
      raise notice 'the role gem_worker was not created: this role may create none';
      return;
  end;

  grant usage on schema gem, public to gem_worker;
  grant execute on function
    gem.claim(text, integer, boolean, jsonb),
    gem.hold_key(uuid, integer, text, text),
    gem.finish(uuid, integer, text, text, jsonb, jsonb, text, uuid),
    gem.retry(uuid, integer, text, jsonb, integer, interval),
    gem.release(uuid, integer, text),
    gem.start_worker(text, integer, text, text, interval),
    gem.stop_worker(text),
    gem.want_wake(text, boolean),
    gem.heartbeat(text, interval),
    gem.record_registry(text, text, jsonb)
  to gem_worker;
  if to_regclass('gem.migrations') is not null then
    grant select on gem.migrations to gem_worker; -- a worker looks at the schema's version before it starts
  end if;

  grant select on public.core_tool_calls, public.core_tool_receipts, public.core_tool_events, public.core_workers to gem_worker;
  foreach domain_table in array array['core_tool_events', 'core_workers'] loop
    execute format('drop policy if exists gem_worker_reads on public.%I', domain_table);
    execute format('create policy gem_worker_reads on public.%I for select to gem_worker using (true)', domain_table);
  end loop;
  -- No delete: no built-in tool deletes.
  foreach domain_table in array array['notes', 'tasks', 'reminders', 'state_snapshots', 'leads', 'lead_sources', 'lead_photo_links',
                                      'lead_stage_changes', 'entities', 'interactions', 'comms_log'] loop
    continue when to_regclass('public.' || domain_table) is null;
    execute format('grant select, insert, update on public.%I to gem_worker', domain_table);
    execute format('drop policy if exists gem_worker_works on public.%I', domain_table);
    execute format('create policy gem_worker_works on public.%I to gem_worker using (true) with check (true)', domain_table);
  end loop;
end
$$;
-- +goose StatementEnd

-- The tables of the domain os: the shared notes, tasks and reminders of one team, and snapshots of its state.
--
-- As in every built-in domain, a row belongs to everybody who may call the tools, and its call says who made it:
-- call_id is null for rows that came from elsewhere, and created_by is the call's user. A personal row is the
-- exception: signed-in users find and change only their own, by created_by (see reader in os.go). Checks only hold for
-- rows that a call made, since others may have words of their own. The registry limits lengths. Without policies
-- Supabase's API sees nothing of the tables.
set local search_path = pg_catalog, pg_temp;

select gem.set_aside('notes', 'tasks', 'reminders', 'state_snapshots');

create table if not exists public.notes (
  id          uuid        primary key default gen_random_uuid(),
  domain      text        not null default 'both', -- business, personal, both
  title       text        not null default '',
  content     text        not null default '',
  entity_refs jsonb       not null default '[]',   -- [{type, id}]
  call_id uuid, created_by text, created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
  constraint gem_notes_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and jsonb_typeof(entity_refs) = 'array'))
);
create index if not exists gem_notes_newest on public.notes (created_at desc, id);

create table if not exists public.tasks (
  id              uuid        primary key default gen_random_uuid(),
  domain          text        not null default 'both',
  title           text        not null default '',
  description     text,
  due_at          timestamptz,
  context_ref     jsonb,                                -- {type, id} of what the task is about
  priority        text        not null default 'normal', -- low, normal, high
  status          text        not null default 'open',   -- open, done
  completed_at    timestamptz,                           -- set while status is done
  completion_note text,
  defer_reason    text,                                  -- of the last deferral
  call_id uuid, created_by text, created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
  constraint gem_tasks_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and priority in ('low', 'normal', 'high') and status in ('open', 'done')
    and (status = 'done') = (completed_at is not null)
    and (context_ref is null or jsonb_typeof(context_ref) = 'object')))
);
create index if not exists gem_tasks_newest on public.tasks (created_at desc, id);
create index if not exists gem_tasks_open on public.tasks (due_at, created_at, id) where status = 'open';
create index if not exists gem_tasks_done on public.tasks (completed_at desc nulls last, id) where status = 'done';

create table if not exists public.reminders (
  id          uuid        primary key default gen_random_uuid(),
  domain      text        not null default 'both',
  title       text        not null default '',
  remind_at   timestamptz,
  context_ref jsonb,
  call_id uuid, created_by text, created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
  constraint gem_reminders_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and remind_at is not null
    and (context_ref is null or jsonb_typeof(context_ref) = 'object')))
);
create index if not exists gem_reminders_next on public.reminders (remind_at);

create table if not exists public.state_snapshots (
  id         uuid        primary key default gen_random_uuid(),
  domain     text        not null default 'both',
  as_of      timestamptz not null default now(),
  since      timestamptz,                         -- where its count of activity begins
  state      jsonb       not null default '{}',
  created_by text, -- whose personal rows it counts; null: those of everybody
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_state_snapshots_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and jsonb_typeof(state) = 'object'))
);
create index if not exists gem_state_snapshots_latest on public.state_snapshots (domain, as_of desc);

select gem.bring_back('notes', 'tasks', 'reminders', 'state_snapshots');

alter table public.notes enable row level security;
alter table public.tasks enable row level security;
alter table public.reminders enable row level security;
alter table public.state_snapshots enable row level security;

create schema if not exists gem_os;

-- A row is its call's user's, whoever writes it and whatever it says.
create or replace function gem_os.fill_created_by() returns trigger language plpgsql set search_path = pg_catalog,
  pg_temp as $$
begin
  new.created_by := null;
  if new.call_id is not null then -- others may write rows of their own without a right on the calls
    new.created_by := (select c.created_by from public.core_tool_calls c where c.id = new.call_id);
  end if;
  return new;
end
$$;
create or replace trigger gem_created_by before insert on public.notes
  for each row execute function gem_os.fill_created_by();
create or replace trigger gem_created_by before insert on public.tasks
  for each row execute function gem_os.fill_created_by();
create or replace trigger gem_created_by before insert on public.reminders
  for each row execute function gem_os.fill_created_by();

-- The one way to make a task, for other domains too.
create or replace function gem_os.create_task(p_title text, p_domain text, p_description text, p_due_at timestamptz,
  p_context_ref jsonb, p_priority text, p_call uuid) returns uuid
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  new_id uuid;
begin
  insert into public.tasks (title, domain, description, due_at, context_ref, priority, call_id)
  values (p_title, p_domain, p_description, p_due_at, p_context_ref, p_priority, p_call) returning id into new_id;
  return new_id;
end
$$;

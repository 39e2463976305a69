--
-- The tables of the domains: what the tools of `os`, `leads`, `entity` and `comms` write and read. They are the shared
-- business data of one team: a row belongs to everyone who may call the tools, and who made it is known through its call.
--
--   notes, tasks, reminders, state_snapshots                      os
--   leads, lead_sources, lead_photo_links, lead_stage_changes     leads
--   entities, interactions                                        entity, and the calls that comms logs
--   comms_log                                                     comms: one row a message, written before it is sent
--
-- Every table has created_at, updated_at and call_id, the call that made the row; it is null for rows that came from
-- elsewhere. Like the tables of the calls these may exist already, with the rows of an earlier GEM: columns are added,
-- nulls are filled with the defaults below, and no row is refused or lost.
--
-- Lengths are not checked here: they are limits on what a caller may send, and the registry is their only home.

------------------------------------------------------------------------------------------------------------------------
-- os
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.notes (id uuid primary key default gen_random_uuid());
alter table public.notes
  add column if not exists domain      text        not null default 'both',  -- business, personal, both
  add column if not exists title       text        not null default '',
  add column if not exists content     text        not null default '',
  add column if not exists entity_refs jsonb       not null default '[]',    -- [{type, id}]
  add column if not exists call_id     uuid,
  add column if not exists created_at  timestamptz not null default now(),
  add column if not exists updated_at  timestamptz not null default now();

create table if not exists public.tasks (id uuid primary key default gen_random_uuid());
alter table public.tasks
  add column if not exists domain          text        not null default 'both',
  add column if not exists title           text        not null default '',
  add column if not exists description     text,
  add column if not exists due_at          timestamptz,
  add column if not exists context_ref     jsonb,                                -- {type, id} of what the task is about
  add column if not exists priority        text        not null default 'normal', -- low, normal, high
  add column if not exists status          text        not null default 'open',   -- open, done
  add column if not exists completed_at    timestamptz,                          -- set while status is done
  add column if not exists completion_note text,
  add column if not exists defer_reason    text,                                 -- of the last deferral
  add column if not exists call_id         uuid,
  add column if not exists created_at      timestamptz not null default now(),
  add column if not exists updated_at      timestamptz not null default now();

create table if not exists public.reminders (id uuid primary key default gen_random_uuid());
alter table public.reminders
  add column if not exists domain      text        not null default 'both',
  add column if not exists title       text        not null default '',
  add column if not exists remind_at   timestamptz,
  add column if not exists context_ref jsonb,
  add column if not exists call_id     uuid,
  add column if not exists created_at  timestamptz not null default now(),
  add column if not exists updated_at  timestamptz not null default now();

create table if not exists public.state_snapshots (id uuid primary key default gen_random_uuid());
alter table public.state_snapshots
  add column if not exists domain     text        not null default 'both',
  add column if not exists as_of      timestamptz not null default now(),
  add column if not exists since      timestamptz,                              -- where its count of activity begins
  add column if not exists state      jsonb       not null default '{}',
  add column if not exists call_id    uuid,
  add column if not exists created_at timestamptz not null default now(),
  add column if not exists updated_at timestamptz not null default now();

------------------------------------------------------------------------------------------------------------------------
-- leads
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.leads (id uuid primary key default gen_random_uuid());
alter table public.leads
  add column if not exists name        text        not null default '',
  add column if not exists phone       text        not null default '',      -- as the caller wrote it
  add column if not exists suburb      text        not null default '',
  add column if not exists email       text,
  add column if not exists source      text        not null default 'other', -- the first one; later ones are in lead_sources
  add column if not exists stage       text        not null default 'new',
  add column if not exists notes       text,                                 -- from its creation; later ones are in lead_stage_changes
  add column if not exists lost_reason text,                                 -- set while stage is lost
  add column if not exists call_id     uuid,
  add column if not exists created_at  timestamptz not null default now(),
  add column if not exists updated_at  timestamptz not null default now();

create table if not exists public.lead_sources (id uuid primary key default gen_random_uuid());
alter table public.lead_sources
  add column if not exists lead_id    uuid,
  add column if not exists source     text        not null default 'other',
  add column if not exists campaign   jsonb,
  add column if not exists call_id    uuid,
  add column if not exists created_at timestamptz not null default now(),
  add column if not exists updated_at timestamptz not null default now();

create table if not exists public.lead_photo_links (id uuid primary key default gen_random_uuid());
alter table public.lead_photo_links
  add column if not exists lead_id    uuid,
  add column if not exists link       text        not null default '',
  add column if not exists position   integer     not null default 1,        -- its place in the list that the call gave
  add column if not exists call_id    uuid,
  add column if not exists created_at timestamptz not null default now(),
  add column if not exists updated_at timestamptz not null default now();

create table if not exists public.lead_stage_changes (id uuid primary key default gen_random_uuid());
alter table public.lead_stage_changes
  add column if not exists lead_id    uuid,
  add column if not exists from_stage text,
  add column if not exists to_stage   text        not null default 'new',    -- equal to from_stage where only a note was added
  add column if not exists reason     text,                                  -- why it was lost
  add column if not exists notes      text,
  add column if not exists call_id    uuid,
  add column if not exists created_at timestamptz not null default now(),
  add column if not exists updated_at timestamptz not null default now();

------------------------------------------------------------------------------------------------------------------------
-- entity
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.entities (id uuid primary key default gen_random_uuid());
alter table public.entities
  add column if not exists entity_type text        not null default 'other', -- client, supplier, partner, friend, lead, other
  add column if not exists name        text        not null default '',
  add column if not exists contact     jsonb       not null default '{}',    -- phone, email, address, …: any keys
  add column if not exists notes       text,
  add column if not exists call_id     uuid,
  add column if not exists created_at  timestamptz not null default now(),
  add column if not exists updated_at  timestamptz not null default now();

create table if not exists public.interactions (id uuid primary key default gen_random_uuid());
alter table public.interactions
  add column if not exists entity_id        uuid,
  add column if not exists interaction_type text        not null default 'other', -- call, sms, email, meeting, site_visit, other
  add column if not exists summary          text        not null default '',
  add column if not exists details          jsonb,
  add column if not exists occurred_at      timestamptz not null default now(),
  add column if not exists call_id          uuid,
  add column if not exists created_at       timestamptz not null default now(),
  add column if not exists updated_at       timestamptz not null default now();

------------------------------------------------------------------------------------------------------------------------
-- comms: a row is written as `sending` before the message leaves, and moves on to `sent` or `failed`. A row that stays
-- `sending` belongs to a worker that died in between: whether its message left is not known.
------------------------------------------------------------------------------------------------------------------------

create table if not exists public.comms_log (id uuid primary key default gen_random_uuid());
alter table public.comms_log
  add column if not exists channel     text        not null default 'other',   -- email, sms
  add column if not exists recipient   text        not null default '',
  add column if not exists subject     text,
  add column if not exists body        text        not null default '',
  add column if not exists context_ref jsonb,
  add column if not exists template_id text,
  add column if not exists status      text        not null default 'sending', -- sending, sent, failed
  add column if not exists message_id  text,                                   -- the service's own id of the message
  add column if not exists error       text,                                   -- why it failed, the last time
  add column if not exists sent_at     timestamptz,
  add column if not exists call_id     uuid,
  add column if not exists created_at  timestamptz not null default now(),
  add column if not exists updated_at  timestamptz not null default now();

------------------------------------------------------------------------------------------------------------------------
-- Tables that were there before. On a database without them these loops find nothing to do.
------------------------------------------------------------------------------------------------------------------------

do $do$
declare
  domain_tables constant text[] := array['notes', 'tasks', 'reminders', 'state_snapshots', 'leads', 'lead_sources',
    'lead_photo_links', 'lead_stage_changes', 'entities', 'interactions', 'comms_log'];
  c record;
begin
  -- Earlier checks on these columns may know other words.
  for c in
    select k.conrelid::regclass as rel, k.conname
    from unnest(domain_tables) as tab
    join pg_constraint k on k.conrelid = format('public.%I', tab)::regclass and k.contype = 'c' and k.conname not like 'gem\_%'
    where exists (select from pg_attribute a where a.attrelid = k.conrelid and a.attnum = any (k.conkey)
                  and a.attname in ('domain', 'priority', 'status', 'source', 'stage', 'entity_type', 'interaction_type', 'channel'))
  loop
    execute format('alter table %s drop constraint %I', c.rel, c.conname);
  end loop;

  -- What a handler takes for granted is filled in where it was null.
  for c in
    select * from (values
      ('notes', 'domain', $$'both'$$), ('notes', 'title', $$''$$), ('notes', 'content', $$''$$), ('notes', 'entity_refs', $$'[]'$$),
      ('tasks', 'domain', $$'both'$$), ('tasks', 'title', $$''$$), ('tasks', 'priority', $$'normal'$$), ('tasks', 'status', $$'open'$$),
      ('reminders', 'domain', $$'both'$$), ('reminders', 'title', $$''$$),
      ('state_snapshots', 'domain', $$'both'$$), ('state_snapshots', 'as_of', 'now()'), ('state_snapshots', 'state', $$'{}'$$),
      ('leads', 'name', $$''$$), ('leads', 'phone', $$''$$), ('leads', 'suburb', $$''$$),
      ('leads', 'source', $$'other'$$), ('leads', 'stage', $$'new'$$),
      ('entities', 'entity_type', $$'other'$$), ('entities', 'name', $$''$$), ('entities', 'contact', $$'{}'$$),
      ('interactions', 'interaction_type', $$'other'$$), ('interactions', 'summary', $$''$$), ('interactions', 'occurred_at', 'now()'),
      ('comms_log', 'channel', $$'other'$$), ('comms_log', 'recipient', $$''$$), ('comms_log', 'body', $$''$$),
      ('comms_log', 'status', $$'sent'$$)
    ) as filled (tab, col, val)
    union all
    select tab, col, 'now()' from unnest(domain_tables) as tab, unnest(array['created_at', 'updated_at']) as col
  loop
    if exists (select from pg_attribute a where a.attrelid = format('public.%I', c.tab)::regclass and a.attname = c.col
               and not (a.attnotnull and a.atthasdef)) then
      execute format('update public.%1$I set %2$I = %3$s where %2$I is null', c.tab, c.col, c.val);
      execute format('alter table public.%1$I alter column %2$I set default %3$s, alter column %2$I set not null', c.tab, c.col, c.val);
    end if;
  end loop;

  -- A handler names neither the id nor a column that it does not know: such a column may stay empty in new rows.
  for c in
    select a.attrelid::regclass as rel, a.attname, a.attname = 'id' as is_id
    from unnest(domain_tables) as tab
    join pg_attribute a on a.attrelid = format('public.%I', tab)::regclass and a.attnum > 0 and not a.attisdropped
    where a.attnotnull and not a.atthasdef and a.attidentity = '' and (a.attname <> 'id' or a.atttypid = 'uuid'::regtype)
      and (a.attname = 'id' or not exists (select from pg_index i where i.indrelid = a.attrelid and i.indisprimary and a.attnum = any (i.indkey)))
  loop
    if c.is_id then
      execute format('alter table %s alter column id set default gen_random_uuid()', c.rel);
    else
      execute format('alter table %s alter column %I drop not null', c.rel, c.attname);
    end if;
  end loop;
end
$do$;

------------------------------------------------------------------------------------------------------------------------
-- What Postgres holds by itself, for the rows that a call made. A row without a call may come from an earlier GEM, with
-- words of its own: a check is asked at every update, and such a row could then never be changed again.
------------------------------------------------------------------------------------------------------------------------

alter table public.notes
  drop constraint if exists gem_notes_values,
  add constraint gem_notes_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and jsonb_typeof(entity_refs) = 'array'));

alter table public.tasks
  drop constraint if exists gem_tasks_values,
  add constraint gem_tasks_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and priority in ('low', 'normal', 'high') and status in ('open', 'done')
    and (status = 'done') = (completed_at is not null)
    and (context_ref is null or jsonb_typeof(context_ref) = 'object')));

alter table public.reminders
  drop constraint if exists gem_reminders_values,
  add constraint gem_reminders_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and remind_at is not null
    and (context_ref is null or jsonb_typeof(context_ref) = 'object')));

alter table public.state_snapshots
  drop constraint if exists gem_state_snapshots_values,
  add constraint gem_state_snapshots_values check (call_id is null or (
    domain in ('business', 'personal', 'both') and jsonb_typeof(state) = 'object'));

alter table public.leads
  drop constraint if exists gem_leads_values,
  add constraint gem_leads_values check (call_id is null or (
    source in ('gmb', 'google_ads', 'meta', 'referral', 'repeat', 'other')
    and stage in ('new', 'contacted', 'inspection_scheduled', 'quoted', 'won', 'lost')
    and (stage = 'lost' or lost_reason is null)));

alter table public.lead_sources
  drop constraint if exists gem_lead_sources_values,
  add constraint gem_lead_sources_values check (call_id is null or (
    lead_id is not null and source in ('gmb', 'google_ads', 'meta', 'referral', 'repeat', 'other')
    and (campaign is null or jsonb_typeof(campaign) = 'object'))),
  drop constraint if exists gem_lead_sources_lead,
  add constraint gem_lead_sources_lead foreign key (lead_id) references public.leads (id) on delete cascade not valid;

alter table public.lead_photo_links
  drop constraint if exists gem_lead_photo_links_values,
  add constraint gem_lead_photo_links_values check (call_id is null or (lead_id is not null and position >= 1)),
  drop constraint if exists gem_lead_photo_links_lead,
  add constraint gem_lead_photo_links_lead foreign key (lead_id) references public.leads (id) on delete cascade not valid;

alter table public.lead_stage_changes
  drop constraint if exists gem_lead_stage_changes_values,
  add constraint gem_lead_stage_changes_values check (call_id is null or (
    lead_id is not null and to_stage in ('new', 'contacted', 'inspection_scheduled', 'quoted', 'won', 'lost')
    and (to_stage = 'lost' or reason is null))),
  drop constraint if exists gem_lead_stage_changes_lead,
  add constraint gem_lead_stage_changes_lead foreign key (lead_id) references public.leads (id) on delete cascade not valid;

alter table public.entities
  drop constraint if exists gem_entities_values,
  add constraint gem_entities_values check (call_id is null or (
    entity_type in ('client', 'supplier', 'partner', 'friend', 'lead', 'other') and jsonb_typeof(contact) = 'object'));

alter table public.interactions
  drop constraint if exists gem_interactions_values,
  add constraint gem_interactions_values check (call_id is null or (
    entity_id is not null and interaction_type in ('call', 'sms', 'email', 'meeting', 'site_visit', 'other')
    and (details is null or jsonb_typeof(details) = 'object'))),
  drop constraint if exists gem_interactions_entity,
  add constraint gem_interactions_entity foreign key (entity_id) references public.entities (id) on delete cascade not valid;

alter table public.comms_log
  drop constraint if exists gem_comms_log_values,
  add constraint gem_comms_log_values check (call_id is null or (
    channel in ('email', 'sms') and status in ('sending', 'sent', 'failed')
    and (status = 'sent') = (sent_at is not null)));

-- One message a call: an attempt that comes later finds what the earlier one did.
create unique index if not exists gem_comms_log_one_per_call on public.comms_log (call_id) where call_id is not null;

------------------------------------------------------------------------------------------------------------------------
-- Indexes, each the ORDER BY of a list. A search for words walks the notes from the newest on until its limit is reached,
-- and all entities: with 100,000 of either, about a second or two when nothing matches.
------------------------------------------------------------------------------------------------------------------------

create index if not exists gem_notes_newest on public.notes (created_at desc, id);
create index if not exists gem_tasks_newest on public.tasks (created_at desc, id);
create index if not exists gem_tasks_open on public.tasks (due_at, created_at, id) where status = 'open';
create index if not exists gem_tasks_done on public.tasks (completed_at desc nulls last, id) where status = 'done';
create index if not exists gem_reminders_next on public.reminders (remind_at);
create index if not exists gem_state_snapshots_latest on public.state_snapshots (domain, as_of desc);
create index if not exists gem_leads_newest on public.leads (created_at desc, id);
create index if not exists gem_leads_by_stage on public.leads (stage, created_at desc, id);
create index if not exists gem_lead_sources_lead on public.lead_sources (lead_id);
create index if not exists gem_lead_photo_links_lead on public.lead_photo_links (lead_id);
create index if not exists gem_lead_stage_changes_lead on public.lead_stage_changes (lead_id, created_at desc);
create index if not exists gem_interactions_of_entity on public.interactions (entity_id, occurred_at desc);
create index if not exists gem_interactions_newest on public.interactions (created_at);
create index if not exists gem_comms_log_newest on public.comms_log (created_at);

-- os.audit_log_search begins with the calls that were made last. One entry a call, written when the frontend inserts it.

-- No policy: until one is added and a role is granted access, Supabase's API sees nothing of these tables; their owner does.
alter table public.notes enable row level security;
alter table public.tasks enable row level security;
alter table public.reminders enable row level security;
alter table public.state_snapshots enable row level security;
alter table public.leads enable row level security;
alter table public.lead_sources enable row level security;
alter table public.lead_photo_links enable row level security;
alter table public.lead_stage_changes enable row level security;
alter table public.entities enable row level security;
alter table public.interactions enable row level security;
alter table public.comms_log enable row level security;

-- The worker's role works on the domain tables. No delete: no built-in tool deletes.
do $$
declare
  domain_table text;
begin
  if exists (select from pg_roles where rolname = 'gem_worker') then
    foreach domain_table in array array['notes', 'tasks', 'reminders', 'state_snapshots', 'leads', 'lead_sources', 'lead_photo_links',
                                        'lead_stage_changes', 'entities', 'interactions', 'comms_log'] loop
      execute format('grant select, insert, update on public.%I to gem_worker', domain_table);
      execute format('drop policy if exists gem_worker_works on public.%I', domain_table);
      execute format('create policy gem_worker_works on public.%I to gem_worker using (true) with check (true)', domain_table);
    end loop;
  end if;
end
$$;

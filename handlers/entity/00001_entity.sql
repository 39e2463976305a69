-- The tables of the domain entity. What holds for every built-in domain is said in 00001_os.sql. A search reads all
-- entities: with 100,000 of them, it takes about a second.
set local search_path = pg_catalog, pg_temp;

select gem.set_aside('entities', 'interactions');

create table if not exists public.entities (
  id          uuid        primary key default gen_random_uuid(),
  entity_type text        not null default 'other', -- client, supplier, partner, friend, lead, other
  name        text        not null default '',
  contact     jsonb       not null default '{}',    -- phone, email, address, …: any keys
  notes       text,
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_entities_values check (call_id is null or (
    entity_type in ('client', 'supplier', 'partner', 'friend', 'lead', 'other') and jsonb_typeof(contact) = 'object'))
);

create table if not exists public.interactions (
  id               uuid        primary key default gen_random_uuid(),
  entity_id        uuid        constraint gem_interactions_entity references public.entities on delete cascade,
  interaction_type text        not null default 'other', -- call, sms, email, meeting, site_visit, other
  summary          text        not null default '',
  details          jsonb,
  occurred_at      timestamptz not null default now(),
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_interactions_values check (call_id is null or (
    (entity_id is not null or interaction_type = 'call')
      and interaction_type in ('call', 'sms', 'email', 'meeting', 'site_visit', 'other')
    and (details is null or jsonb_typeof(details) = 'object')))
);
create index if not exists gem_interactions_of_entity on public.interactions (entity_id, occurred_at desc);
create index if not exists gem_interactions_newest on public.interactions (created_at);

select gem.bring_back('entities', 'interactions');

alter table public.entities enable row level security;
alter table public.interactions enable row level security;

-- The one way to add an interaction with an entity. It returns null if the entity does not exist.
create schema if not exists gem_entity;
create or replace function gem_entity.add_interaction(p_entity uuid, p_type text, p_summary text, p_details jsonb,
  p_occurred_at timestamptz, p_call uuid) returns uuid
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  new_id uuid;
begin
  insert into public.interactions (entity_id, interaction_type, summary, details, occurred_at, call_id)
  select id, p_type, p_summary, p_details, coalesce(p_occurred_at, now()), p_call from public.entities
    where id = p_entity
  returning id into new_id;
  return new_id;
end
$$;

-- A phone call that happened is logged, whatever the id is that came with it: of an entity, of a lead, if the program
-- has the domain leads, or of something that GEM does not know. linked_to says which. Only a call with an entity is
-- shown with one.
create or replace function gem_entity.log_call(p_id uuid, p_summary text, p_details jsonb, p_call uuid, out id uuid,
  out linked_to text)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  entity uuid := (select e.id from public.entities e where e.id = p_id);
  lead   boolean;
begin
  if entity is null and to_regprocedure('gem_leads.is_lead(uuid)') is not null then
    execute 'select gem_leads.is_lead($1)' into lead using p_id;
  end if;
  linked_to := case when entity is not null then 'entity' when lead then 'lead' else 'nothing' end;
  insert into public.interactions (entity_id, interaction_type, summary, details, call_id)
  values (entity, 'call', p_summary, case when entity is null then p_details else p_details - 'entity_id' end, p_call)
    returning interactions.id into id;
end
$$;

-- The tables of the domain leads. What holds for every built-in domain is said in 00001_os.sql.
set local search_path = pg_catalog, pg_temp;

select gem.set_aside('leads', 'lead_sources', 'lead_photo_links', 'lead_stage_changes');

create table if not exists public.leads (
  id          uuid        primary key default gen_random_uuid(),
  name        text        not null default '',
  phone       text        not null default '',      -- as the caller wrote it
  suburb      text        not null default '',
  email       text,
  source      text        not null default 'other', -- the first one; later ones are in lead_sources
  stage       text        not null default 'new',
  notes       text,                                 -- from its creation; later ones are in lead_stage_changes
  lost_reason text,                                 -- set while stage is lost
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_leads_values check (call_id is null or (
    source in ('gmb', 'google_ads', 'meta', 'referral', 'repeat', 'other')
    and stage in ('new', 'contacted', 'inspection_scheduled', 'quoted', 'won', 'lost')
    and (stage = 'lost' or lost_reason is null)))
);
create index if not exists gem_leads_newest on public.leads (created_at desc, id);
create index if not exists gem_leads_by_stage on public.leads (stage, created_at desc, id);

create table if not exists public.lead_sources (
  id         uuid        primary key default gen_random_uuid(),
  lead_id    uuid        constraint gem_lead_sources_lead references public.leads on delete cascade,
  source     text        not null default 'other',
  campaign   jsonb,
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_lead_sources_values check (call_id is null or (
    lead_id is not null and source in ('gmb', 'google_ads', 'meta', 'referral', 'repeat', 'other')
    and (campaign is null or jsonb_typeof(campaign) = 'object')))
);
create index if not exists gem_lead_sources_lead on public.lead_sources (lead_id);

create table if not exists public.lead_photo_links (
  id         uuid        primary key default gen_random_uuid(),
  lead_id    uuid        constraint gem_lead_photo_links_lead references public.leads on delete cascade,
  link       text        not null default '',
  position   integer     not null default 1, -- its place in the list that the call gave
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_lead_photo_links_values check (call_id is null or (lead_id is not null and position >= 1))
);
create index if not exists gem_lead_photo_links_lead on public.lead_photo_links (lead_id);

create table if not exists public.lead_stage_changes (
  id         uuid        primary key default gen_random_uuid(),
  lead_id    uuid        constraint gem_lead_stage_changes_lead references public.leads on delete cascade,
  from_stage text,
  to_stage   text        not null default 'new', -- equal to from_stage if only a note was added
  reason     text,                               -- why it was lost
  notes      text,
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_lead_stage_changes_values check (call_id is null or (
    lead_id is not null and to_stage in ('new', 'contacted', 'inspection_scheduled', 'quoted', 'won', 'lost')
    and (to_stage = 'lost' or reason is null)))
);
create index if not exists gem_lead_stage_changes_lead on public.lead_stage_changes (lead_id, created_at desc);

select gem.bring_back('leads', 'lead_sources', 'lead_photo_links', 'lead_stage_changes');

alter table public.leads enable row level security;
alter table public.lead_sources enable row level security;
alter table public.lead_photo_links enable row level security;
alter table public.lead_stage_changes enable row level security;

-- For other domains.
create schema if not exists gem_leads;
create or replace function gem_leads.is_lead(p_id uuid) returns boolean language sql stable
  set search_path = pg_catalog, pg_temp as $$
  select exists (select from public.leads where id = p_id)
$$;

-- The table of the domain comms. What holds for every built-in domain is said in 00001_os.sql.
--
-- A row is written as `sending` before the message leaves, and then becomes `sent` or `failed`. A row that stays
-- `sending` belongs to a worker that died in between: nobody knows whether its message left.
set local search_path = pg_catalog, pg_temp;

select gem.set_aside('comms_log');

create table if not exists public.comms_log (
  id          uuid        primary key default gen_random_uuid(),
  channel     text        not null default 'other', -- email, sms
  recipient   text        not null default '',
  subject     text,
  body        text        not null default '',
  context_ref jsonb,
  template_id text,
  status      text        not null default 'sent',  -- sending, sent, failed; the default is for rows from elsewhere
  message_id  text,                                 -- the service's own id of the message
  error       text,                                 -- why it failed, the last time
  sent_at     timestamptz,
  call_id uuid, created_at timestamptz not null default now(), updated_at timestamptz not null default now(),
  constraint gem_comms_log_values check (call_id is null or (
    channel in ('email', 'sms') and status in ('sending', 'sent', 'failed')
      and (status = 'sent') = (sent_at is not null)))
);
-- One message a call: a later attempt finds what an earlier one did.
create unique index if not exists gem_comms_log_one_per_call on public.comms_log (call_id) where call_id is not null;
create index if not exists gem_comms_log_newest on public.comms_log (created_at);

select gem.bring_back('comms_log');

alter table public.comms_log enable row level security;

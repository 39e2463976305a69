create table public.orders (
  id         uuid        primary key default gen_random_uuid(),
  item       text        not null,
  call_id    uuid        not null, -- the call that made the order
  ordered_at timestamptz not null default now()
);
alter table public.orders enable row level security;
